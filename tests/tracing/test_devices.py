"""Numbers stand for cards, and torch's own class is back afterwards."""


import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.distributed.groups import World
from vramcast.tracing.session import Session


def test_a_number_is_a_card() -> None:
    real = torch.device
    with Session(load_gpu("h100-sxm-80gb"), world=World(8)).active():
        assert torch.device(3) == torch.device("cuda:3")
        assert isinstance(torch.zeros(1, device=2).device, torch.device)
        assert torch.zeros(1, device=2).device.index == 2
        assert {real: "key"}[torch.device] == "key"
        assert torch.device("meta").type == "meta"
    assert torch.device is real


def test_scripted_functions_compile_while_factories_are_replaced() -> None:
    import torch.jit as jit

    with Session(load_gpu("h100-sxm-80gb")).active():

        @jit.script
        def zeros(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    assert zeros(torch.ones(2)).tolist() == [0.0, 0.0]
