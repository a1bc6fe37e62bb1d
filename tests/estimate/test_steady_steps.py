"""A steady step ends as it began: what it leaves behind would pile up, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named
from tests.formats.test_random_plans import plans
from vramcast.api import job_of
from vramcast.domain.job import Phase
from vramcast.domain.program import live_at_end
from vramcast.errors import VramcastError
from vramcast.estimate.training import needed_bytes, rank_programs

SAME_AFTERWARDS = (Phase.STEP, Phase.EVALUATION, Phase.CHECKPOINT)


def left_behind(options: dict[str, Any]) -> dict[str, int]:
    return {
        f"{program.role}, {phase}: {tensor.path}": count
        for program in rank_programs(job_of(options)) for phase in SAME_AFTERWARDS
        for tensor, count in live_at_end(program.phases.get(phase, ())).items()
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(plans(), st.sampled_from([1, 2, 5]), st.sampled_from(["fsdp1", "fsdp2", "deepspeed", None]),
       st.sampled_from(["optimizer+gradients", "everything"]))
def test_a_random_plan_leaves_nothing_behind(
    options: dict[str, Any], grad_accum: int, by: str | None, shards: str
) -> None:
    options |= named({"grad_accum": grad_accum} | ({"sharded_by": by, "shards": shards} if by else {}))
    try:
        found = left_behind(options)
    except VramcastError:
        assume(False)
    assert not found, options


@pytest.mark.parametrize("by", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("engine", ["pytorch", "huggingface"])
def test_micro_batches_without_synchronisation_leave_no_gathered_weights(engine: str, by: str) -> None:
    """Though they stay between forward and backward: gathered anew in each micro-batch, they would pile up."""
    asked = {"model": "llama-3.2-1b", "gpus": "8xh100", "shards": "optimizer+gradients", "engine": engine}
    asked |= {"sharded_by": by}
    few, many = (needed_bytes(job_of(named(asked | {"grad_accum": count}))) for count in (2, 16))
    assert few == many
    assert left_behind(named(asked | {"grad_accum": 4})) == {}


@pytest.mark.parametrize("model", ["llama-3.2-1b", "t5-base", "whisper-small", "olmoe-1b-7b", "qwen2.5-vl-7b"])
@pytest.mark.parametrize("grad_accum", [1, 4])
@pytest.mark.parametrize("options", [
    {"engine": "huggingface", "sharded_by": "fsdp1"}, {"engine": "huggingface", "sharded_by": "fsdp2"},
    {"engine": "huggingface", "sharded_by": "fsdp2", "engine_option": ("accelerate=1.12",)},
    {"engine": "huggingface", "sharded_by": "fsdp2", "offload_parameters": "cpu"},
    {"engine": "huggingface", "sharded_by": "deepspeed"}, {"engine": "pytorch", "sharded_by": "fsdp2"},
])
def test_sharding_leaves_nothing_behind(model: str, grad_accum: int, options: dict[str, Any]) -> None:
    asked = {"model": model, "gpus": "8xh100", "shards": "everything", "grad_accum": grad_accum} | options
    assert left_behind(named(asked)) == {}
