"""A rank alone: its process groups, collectives, objects and variables."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import InvalidSpec
from vramcast.tracing.distributed.groups import World, parse_world
from vramcast.tracing.session import Session


@pytest.fixture
def run() -> Iterator[Session]:
    session = Session(load_gpu("h100-sxm-80gb"), world=World(8))
    with session.active():
        dist.init_process_group("nccl")
        yield session


def test_a_rank_out_of_its_world_is_refused_with_the_ranks_there_are() -> None:
    with pytest.raises(InvalidSpec, match="rank 8 is not in a world of 8 ranks; give 0 to 7"):
        parse_world(size=8, rank=8)
    with pytest.raises(InvalidSpec, match="world size 0"):
        parse_world(size=0)
    assert parse_world(size=64, rank=13).local_rank == 5


def test_a_group_answers_with_the_backend_that_was_asked_for(run: Session) -> None:
    pair = dist.new_group([0, 1], backend="gloo")
    assert (dist.get_backend(), dist.get_backend(pair)) == ("nccl", "gloo")
    assert (dist.get_world_size(pair), dist.get_rank(pair)) == (2, 0)
    assert dist.new_group([3, 4]) is dist.GroupMember.NON_GROUP_MEMBER


@pytest.mark.parametrize(
    ("op", "expected"), [(dist.ReduceOp.SUM, 24.0), (dist.ReduceOp.MAX, 3.0), (dist.ReduceOp.AVG, 3.0)]
)
def test_known_values_are_reduced_as_if_every_rank_held_them(run: Session, op: dist.ReduceOp, expected: float) -> None:
    count = torch.full((2,), 3.0, device="cuda")
    dist.all_reduce(count, op=op)
    assert count[1].item() == expected


def test_gathered_and_scattered_values_are_known_and_unknown_ones_are_not_made_up(run: Session) -> None:
    own = torch.arange(4.0, device="cuda")
    gathered = torch.empty(32, device="cuda")
    dist.all_gather_into_tensor(gathered, own)
    assert gathered[6].item() == 2.0
    part = torch.empty(4, device="cuda")
    dist.reduce_scatter_tensor(part, gathered)
    assert part[3].item() == 24.0
    received = torch.zeros(4, device="cuda")
    dist.recv(received, src=1)
    assert run.memory.of(received).twin is None


def test_a_list_to_gather_into_passes_through_one_flat_buffer(run: Session) -> None:
    own = torch.empty(1 << 20, device="cuda")
    parts = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
    before = run.device.allocator.allocated_bytes
    run.device.allocator.reset_peaks()
    dist.all_gather(parts, own)
    assert run.device.allocator.peak_allocated_bytes - before == 8 * 4 << 20
    assert run.device.allocator.allocated_bytes == before


def test_only_groups_that_communicate_need_a_communicator(run: Session) -> None:
    dist.new_group([0, 2])
    pair = dist.new_group([0, 1])
    assert run.device.communicators == set()
    dist.all_reduce(torch.zeros(1, device="cuda"), group=pair)
    assert run.device.communicators == {pair.group_name}


def test_objects_come_back_from_every_rank_and_their_buffers_do_not_stay(run: Session) -> None:
    before = run.device.allocator.allocated_bytes
    found: list[object] = [None] * 8
    dist.all_gather_object(found, {"rank": "any"})
    assert found == [{"rank": "any"}] * 8
    sent = ["kept"]
    dist.broadcast_object_list(sent, src=0)
    assert sent == ["kept"]
    dist.barrier()
    dist.new_group(backend="gloo").monitored_barrier()
    assert run.device.allocator.allocated_bytes == before


def test_meshes_of_several_dimensions_find_their_groups(run: Session) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    assert [mesh["shard"].size(), mesh["replicate"].size()] == [4, 2]
    assert dist.get_process_group_ranks(mesh["replicate"].get_group()) == [0, 4]
