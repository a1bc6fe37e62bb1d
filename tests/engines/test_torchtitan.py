"""torchtitan's memory: published logs, and what must hold whatever the numbers."""

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.program import live_at_end
from vramcast.engines.torchtitan import ranks
from vramcast.engines.torchtitan.setting import facts
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.timeline import simulate
from vramcast.units import GIB


def job(**plan: object) -> Job:
    options = {"shards": Shards.EVERYTHING, "recompute": Recompute.SELECTIVE, **plan}
    return Job(
        model=load_model("llama-3-8b"), workload=Workload(seq_len=8192, micro_batch=1), plan=Plan(**options),
        cluster=parse_gpus("8xh100-sxm-80gb"), engine="torchtitan", engine_options={"version": "2025-02-06"},
    )


def reserved(question: Job) -> float:
    program = ranks(question)[0]
    marks = simulate(program.phases, alloc_conf=program.alloc_conf)
    return max(mark.reserved_bytes for mark in marks.values()) / GIB


def test_the_logged_memory_of_llama_3_8b_on_eight_h100_is_met() -> None:
    assert reserved(job()) == pytest.approx(49.59, rel=0.01)


def test_weights_that_stay_gathered_cost_what_was_logged() -> None:
    kept = replace(job(), engine_options={"version": "2025-02-06", "reshard": "never"})
    assert reserved(kept) == pytest.approx(62.18, rel=0.01)


@pytest.mark.parametrize("plan", [
    {}, {"tp": 2}, {"recompute": Recompute.FULL}, {"cp": 2}, {"pp": 2}, {"compile": True},
    {"offload_optimizer": "cpu"},
])
def test_a_steady_step_leaves_everything_as_it_found_it(plan: dict[str, object]) -> None:
    question = replace(job(**plan), workload=Workload(seq_len=8192, micro_batch=4))
    for program in ranks(question):
        assert not live_at_end(program.phases[Phase.STEP])


def test_versions_are_dates() -> None:
    assert facts("2024-01").expandable is False
    assert facts().chunked_loss
    with pytest.raises(InvalidSpec, match="2025-02"):
        facts("v1.0")


@pytest.mark.parametrize("plan", [
    {"shards": Shards.NOTHING}, {"shards": Shards.OPTIMIZER}, {"precision": Precision.FP32},
    {"offload_optimizer": "nvme"},
])
def test_what_torchtitan_cannot_do_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="use "):
        ranks(job(**plan))


@pytest.mark.parametrize(("asked", "fits"), [
    ({"seq_len": 4475, "micro_batch": 3}, True),
    ({"seq_len": 4475, "micro_batch": 3, "tp": 2}, False),
    ({"seq_len": 4475, "micro_batch": 2, "tp": 2}, True),  # one sequence of 8,950 tokens
    ({"seq_len": 4475, "micro_batch": 2, "tp": 2, "engine_option": "version=2026-08-01"}, False),
    ({"seq_len": 4098, "micro_batch": 1, "cp": 2}, False),
    ({"seq_len": 4475, "engine_option": "version=2026-06-01"}, False),
    ({"seq_len": 4475, "engine_option": "version=2025-07-01"}, True),
])
def test_positions_that_parallelism_does_not_divide_are_refused_as_torchtitan_does(
    asked: dict[str, Any], fits: bool
) -> None:
    asked = {"gpus": "8xh200-sxm-141gb", "engine": "torchtitan", "layers": 2} | asked
    if fits:
        vramcast.train("llama-3.1-8b", **asked)
        return
    with pytest.raises(InvalidSpec, match="torchtitan divides positions evenly"):
        vramcast.train("llama-3.1-8b", **asked)


@pytest.mark.parametrize(("options", "words"), [
    ({"schedule": "gpipe"}, "without pp above 1"),
    ({"schedule": "interleaved", "pp": 2}, "without virtual-stages above 1"),
    ({"schedule": "gpipe", "pp": 2, "virtual_stages": 2, "micro_batch": 4}, "one stage on a rank"),
])
def test_a_schedule_that_says_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        vramcast.train("llama-3.2-1b", gpus="8xh100", engine="torchtitan", **options)
