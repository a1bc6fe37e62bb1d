"""Training loops that share their work among ranks, on one of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.distributed.groups import World
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Action, highest, play

WIDTH = 512
LAYERS = 4
PARAMETERS = LAYERS * WIDTH * WIDTH  # without biases
MIB = 1 << 20


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x))


def layers() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def held_bytes(session: Session) -> int:
    """What is allocated now, without the workspaces of libraries."""
    blocks = session.device.tape.blocks
    return sum(block.num_bytes for block in blocks if block.died is None and block.category != "workspaces")


class Trained(NamedTuple):
    session: Session
    held_bytes: int  # between two steps

    @property
    def peak_bytes(self) -> int:
        return highest(play(self.session.device.tape)).allocated_bytes


def trained(prepare: Callable[[], nn.Module], *, world: World, steps: int = 2, batch: int = 4) -> Trained:
    """A session in which a model was trained; the model is gone."""
    session = Session(load_gpu("h100-sxm-80gb"), world=world)
    with session.active():
        dist.init_process_group("nccl")
        model = prepare()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            model(torch.randn(batch, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        held = held_bytes(session)
    return Trained(session, held)


def fully_sharded(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = layers()
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model.to_empty(device="cuda")


def flat_sharded(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        layers(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=0, use_orig_params=True, **options
    )


def test_ddp_holds_buckets_of_all_gradients_beside_weights_and_states() -> None:
    run = trained(lambda: DistributedDataParallel(layers().cuda(), device_ids=[0]), world=World(8))
    # weights, two states of Adam, buckets; gradients are gone
    assert run.held_bytes == pytest.approx(4 * 4 * PARAMETERS, rel=0.01)


@pytest.mark.parametrize("rank", [0, 3])
def test_ddp_rebuilds_its_buckets_after_the_first_backward_and_the_first_is_small(rank: int) -> None:
    sizes: list[list[int]] = []
    session = Session(load_gpu("h100-sxm-80gb"), world=World(8, rank))
    with session.active():
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = DistributedDataParallel(layers().cuda(), device_ids=[rank])
        for _ in range(2):
            first = len(session.device.tape.blocks)
            model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
            made = [block for block in session.device.tape.blocks[first:] if block.operator == "aten.empty"]
            sizes.append([block.num_bytes for block in made if block.num_bytes >= MIB])
    assert sizes == [[], [MIB, 3 * MIB]]  # one megabyte first, then up to 25


def test_gradients_that_are_views_of_buckets_take_nothing_of_their_own() -> None:
    def peak(as_view: bool) -> int:
        run = trained(
            lambda: DistributedDataParallel(layers().cuda(), device_ids=[0], gradient_as_bucket_view=as_view),
            world=World(8), batch=1,
        )
        return run.peak_bytes

    assert peak(as_view=False) - peak(as_view=True) > 2 * MIB


def test_fsdp2_keeps_one_part_of_weights_and_states_on_each_rank() -> None:
    run = trained(fully_sharded, world=World(8))
    assert run.held_bytes == pytest.approx(3 * 4 * PARAMETERS / 8, rel=0.01)


def test_fsdp2_gathers_a_layer_on_its_own_stream_and_frees_it_after() -> None:
    run = trained(fully_sharded, world=World(8))
    beside = [block for block in run.session.device.tape.blocks if block.stream]
    gathered = [block for block in beside if block.num_bytes == 4 * WIDTH * WIDTH]
    assert gathered
    assert all(block.died is not None for block in gathered)


def test_more_ranks_need_less_and_a_replica_dimension_does_not_help() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    def replicated() -> nn.Module:
        return fully_sharded(mesh=init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard")))

    resting = [
        trained(prepare, world=World(size)).held_bytes
        for prepare, size in ((fully_sharded, 4), (replicated, 8), (fully_sharded, 8))
    ]
    assert resting[0] == resting[1] > resting[2]


def test_weights_kept_after_forward_are_all_there_at_the_peak() -> None:
    def peak(is_freed: bool) -> int:
        run = trained(lambda: fully_sharded(reshard_after_forward=is_freed), world=World(8))
        return run.peak_bytes

    assert peak(is_freed=False) - peak(is_freed=True) > MIB


def test_fsdp1_frees_gathered_weights_when_the_host_waited_for_them() -> None:
    run = trained(flat_sharded, world=World(8))
    said = {aside.action for aside in run.session.device.tape.asides}
    assert {Action.USE, Action.COMPLETE} <= said
    assert run.held_bytes < 4 * 4 * PARAMETERS / 8 + 2 * MIB


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1_knows_its_strategies(strategy: str) -> None:
    from torch.distributed.fsdp import ShardingStrategy

    run = trained(lambda: flat_sharded(sharding_strategy=ShardingStrategy[strategy]), world=World(8))
    parts = 1 if strategy == "NO_SHARD" else 8
    assert run.held_bytes >= 3 * 4 * PARAMETERS / parts


def test_tensor_parallel_layers_hold_a_part_of_every_matrix() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def parallel() -> nn.Module:
        mesh = init_device_mesh("cuda", (8,))
        plan = {"0.linear": ColwiseParallel(), "1.linear": RowwiseParallel()}
        return parallelize_module(nn.Sequential(Layer(), Layer()).cuda(), mesh, plan)

    run = trained(parallel, world=World(8))
    assert run.held_bytes == pytest.approx(3 * 4 * 2 * WIDTH * WIDTH / 8, rel=0.01)


def test_zero_redundancy_keeps_the_states_of_its_own_parameters() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    session = Session(load_gpu("h100-sxm-80gb"), world=World(4))
    with session.active():
        dist.init_process_group("nccl")
        model = DistributedDataParallel(layers().cuda(), device_ids=[0])
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
        before = held_bytes(session)
        model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        states = held_bytes(session) - before
    assert states == pytest.approx(2 * 4 * PARAMETERS / 4, rel=0.05)


def test_a_tape_with_streams_replays_as_it_ran() -> None:
    run = trained(flat_sharded, world=World(8))
    device = run.session.device
    again = highest(play(device.tape))
    assert again.allocated_bytes == device.allocator.peak_allocated_bytes
    assert again.reserved_bytes == device.allocator.peak_reserved_bytes


def test_foreach_kernels_serve_clipping_and_optimizers_of_distributed_parameters() -> None:
    session = Session(load_gpu("h100-sxm-80gb"), world=World(8))
    with session.active():
        dist.init_process_group("nccl")
        model = fully_sharded()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    assert any("_foreach" in block.operator for block in session.device.tape.blocks)


def test_gathered_weights_and_buckets_are_communication_and_bucket_views_are_gradients() -> None:
    sharded = trained(fully_sharded, world=World(8)).session
    view = trained(
        lambda: DistributedDataParallel(layers().cuda(), device_ids=[0], gradient_as_bucket_view=True), world=World(8)
    ).session
    assert {block.name for block in sharded.device.tape.blocks if block.category == "communication"} == {
        "gathered", "gathered weights", "to be reduced",
    }
    assert sum(block.num_bytes for block in view.device.tape.blocks if block.category == "gradients") >= 4 * PARAMETERS


def test_a_pipeline_stage_runs_where_the_tensors_that_it_gets_are_given() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    session = Session(load_gpu("h100-sxm-80gb"), world=World(4, 1))
    with session.active():
        dist.init_process_group("nccl")
        torch.cuda.set_device(1)
        given = torch.empty(1, WIDTH, device="meta", requires_grad=True)
        stage = PipelineStage(layers().cuda(), 1, 4, torch.device("cuda", 1), input_args=(given,), output_args=(given,))
        Schedule1F1B(stage, 8, loss_fn=None).step()
    assert session.device.torch_device.index == 1
    assert session.device.allocator.peak_allocated_bytes > 2 * 4 * PARAMETERS  # weights and gradients


def test_batch_norm_over_all_ranks_shares_its_statistics() -> None:
    session = Session(load_gpu("h100-sxm-80gb"), world=World(8))
    with session.active():
        dist.init_process_group("nccl")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).cuda()
        DistributedDataParallel(model, device_ids=[0])(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    assert "aten.batch_norm_stats" in {block.operator.removesuffix(".default") for block in session.device.tape.blocks}


def test_fsdp2_initializes_its_parts_and_offloads_them() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    def prepared(device: str, **options: Any) -> nn.Module:
        model = fully_sharded(**options).to_empty(device=device)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
        return model

    on_card, on_host = (
        trained(lambda device=device, options=options: prepared(device, **options), world=World(4))
        for device, options in (("cuda", {}), ("cpu", {"offload_policy": CPUOffloadPolicy()}))
    )
    assert on_card.held_bytes == pytest.approx(3 * 4 * PARAMETERS / 4, rel=0.01)
    assert on_host.held_bytes < 0.01 * on_card.held_bytes
