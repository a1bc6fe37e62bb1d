"""Remembered layouts are those that the meta kernels give."""


import torch
from torch import nn

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session


def sizes(session):
    torch.manual_seed(0)
    with session.active():
        model = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for length in (16, 32, 16):
            model(torch.randn(2, length, 256, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [(block.operator, block.num_bytes, block.died) for block in session.device.tape.blocks]


def test_a_run_with_remembered_layouts_is_the_run_without():
    forgetful = Session(load_gpu("a100-sxm-80gb"))
    forgetful.simulation.kernels._slow = frozenset()
    assert sizes(Session(load_gpu("a100-sxm-80gb"))) == sizes(forgetful)


def test_an_operator_that_repeats_is_answered_from_memory():
    session = Session(load_gpu("a100-sxm-80gb"))
    sizes(session)
    kernels = session.simulation.kernels
    before = len(kernels._remembered)
    with session.active():
        x = torch.randn(2, 32, 256, device="cuda")
        torch.nn.functional.gelu(x)
        torch.nn.functional.gelu(x)
    assert 0 < before <= len(kernels._remembered) <= before + 2
