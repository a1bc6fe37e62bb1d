"""A steady step ends as it began: what it leaves behind would pile up, step by step."""

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named
from tests.formats.test_random_plans import plans
from vramcast.api import job_of
from vramcast.domain.job import Phase
from vramcast.domain.program import live_at_end
from vramcast.errors import VramcastError
from vramcast.estimate.training import rank_programs

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
