"""Peaks of one rank against PyTorch's own trackers, which know no device: without workspaces of CUDA's libraries."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.distributed.groups import World
from vramcast.tracing.session import Session

WIDTH, LAYERS, RANKS = 256, 3, 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def layers(device: str) -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def sharded(device: str, mesh: Any) -> nn.Module:
    model = layers(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def two_steps(model: nn.Module, optimizer: Any, device: str, tracker: Any = None) -> None:
    for _ in range(2):
        if tracker is not None:
            tracker.reset_mod_stats()
        model(torch.randn(4, 128, WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def optimizer_of(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)


def tracked_peak(tracker: Any, model: nn.Module, optimizer: Any) -> int:
    with tracker:
        two_steps(model, optimizer, "cpu", tracker)
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(snapshot["Total"])


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def our_peak(session: Session) -> int:
    """Requested bytes, without workspaces."""
    live = most = 0
    for event in session.device.tape.events:
        block = session.device.tape.blocks[abs(event) - 1]
        if block.category != "workspaces":
            live += block.num_bytes if event > 0 else -block.num_bytes
            most = max(most, live)
    return most


def test_fsdp2_peaks_where_torchs_tracker_says(no_group: None) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    with FakeTensorMode():
        model = sharded("cpu", mesh)
        optimizer = optimizer_of(model)
        expected = tracked_peak(FSDPMemTracker(model, optimizer), model, optimizer)
    dist.destroy_process_group()
    session = Session(load_gpu("h100-sxm-80gb"), world=World(RANKS))
    with session.active():
        dist.init_process_group("nccl")
        model = sharded("cuda", init_device_mesh("cuda", (RANKS,)))
        two_steps(model, optimizer_of(model), "cuda")
    assert our_peak(session) == pytest.approx(expected, rel=0.001)


def test_ddp_peaks_where_torchs_tracker_says(no_group: None) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model: nn.Module = DistributedDataParallel(layers("cpu"))
    optimizer, tracker = optimizer_of(model), MemTracker()
    tracker.track_external(model, optimizer)
    expected = tracked_peak(tracker, model, optimizer)
    dist.destroy_process_group()
    session = Session(load_gpu("h100-sxm-80gb"), world=World(RANKS))
    with session.active():
        dist.init_process_group("nccl")
        model = DistributedDataParallel(layers("cuda"), device_ids=[0])
        two_steps(model, optimizer_of(model), "cuda")
    # The last loss lives on while the next is made: one float more or less
    assert our_peak(session) == pytest.approx(expected, rel=0.001)
