"""The plain PyTorch engine."""

from typing import Any

import pytest
from msgspec.structs import replace

from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import AttentionKernel, Job, Phase, Plan, Precision, Shards, Workload
from vramcast.domain.program import Extent, extent
from vramcast.engines import pytorch
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.training import answer
from vramcast.units import GIB

CARD = Gpu(name="card", vendor="NVIDIA", arch="Ampere", compute_capability="8.0", visible_bytes=80 * GIB)


def job(model: str = "llama-3.2-1b", *, gpus: int = 1, **changes: object) -> Job:
    """A small question; `changes` go to workload or plan by name."""
    in_workload = {name: value for name, value in changes.items() if name in Workload.__struct_fields__}
    in_plan = {name: value for name, value in changes.items() if name in Plan.__struct_fields__}
    workload = {"seq_len": 1024, **in_workload}
    plan = {"precision": Precision.BF16, **in_plan}
    return Job(
        model=load_model(model), workload=Workload(**workload), plan=Plan(**plan),
        cluster=Cluster(gpu=CARD, gpus_per_node=gpus),
    )


def phase(asked: Job, name: Phase = Phase.STEP) -> Extent:
    """Extent of one phase, from zero."""
    return extent(pytorch.ranks(asked)[0].phases[name])


def test_a_reference_model_of_dpo_is_one_more_copy_of_the_weights() -> None:
    alone = extent(pytorch.ranks(job())[0].phases[Phase.LOAD]).net
    both = extent(pytorch.ranks(job(objective="dpo"))[0].phases[Phase.LOAD]).net
    assert both == 2 * alone


@pytest.mark.parametrize(
    ("more", "match"),
    [({}, "add --shards everything"),
     ({"attention": AttentionKernel.EAGER, "shards": Shards.EVERYTHING}, "--attention flash"),
     ({"model": "mamba-130m", "shards": Shards.EVERYTHING}, "recurrent")],
)
def test_positions_are_divided_between_fused_kernels_beside_fsdp(more: dict[str, str], match: str) -> None:
    with pytest.raises(Unsupported, match=match):
        pytorch.ranks(job(**{"gpus": 8, "cp": 2, **more}))


def test_everything_is_sharded_by_fsdp_and_optimizer_states_alone_are_refused_with_what_would_work() -> None:
    every, nothing = (job(gpus=8, shards=shards) for shards in (Shards.EVERYTHING, Shards.NOTHING))
    shared, alone = phase(every, Phase.LOAD).net, phase(nothing, Phase.LOAD).net
    assert shared == pytest.approx(alone / 8, rel=0.01)
    with pytest.raises(InvalidSpec, match="use --shards everything, or --engine deepspeed"):
        pytorch.ranks(job(gpus=8, shards=Shards.OPTIMIZER))


@pytest.mark.parametrize(
    ("usual", "name"), [("sgd", "lomo"), ("sgd", "adalomo"), ("galore", "galore-layerwise")]
)
def test_gradients_that_die_in_backward_are_never_all_there(usual: str, name: str) -> None:
    gradients = 2 * 1_235_814_400
    plain, fused = (pytorch.ranks(job(precision=Precision.BF16, optimizer=o))[0] for o in (usual, name))
    peaks = [extent((*run.phases[Phase.LOAD], *run.phases[Phase.STEP])).peak for run in (plain, fused)]
    assert extent(fused.phases[Phase.STEP]).net == 0
    largest = 128_256 * 2048
    assert peaks[1] < peaks[0] - gradients + 4 * 4 * largest


@pytest.mark.parametrize(("changes", "named"), [
    ({"optimizer": "lomo", "grad_accum": 4}, "--grad-accum 1"),
    ({"optimizer": "lomo", "gpus": 2}, "one GPU"),
    ({"optimizer": "lomo", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "one GPU"),
    ({"optimizer": "galore", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "flattens"),
    ({"optimizer": "galore-layerwise", "engine": "huggingface", "gpus": 2}, "the Trainer stops"),
])
def test_an_engine_that_cannot_step_so_is_refused(changes: dict[str, Any], named: str) -> None:
    engine = changes.pop("engine", "pytorch")
    asked = replace(job(**{"precision": Precision.BF16, **changes}), engine=engine)
    with pytest.raises((Unsupported, InvalidSpec), match=named):
        answer(asked, with_changes=False)
