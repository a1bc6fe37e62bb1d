"""The decision path: one card, above what its states fill, sharded, split, offloaded, more machines."""

import pytest
from msgspec.structs import replace

from tests.search._options import job
from vramcast.domain.verdict import Fit
from vramcast.report.chinese import terms
from vramcast.search.techniques import COPY, NOT_STATES, ONLY_ONE, SEVERAL, SHARD, TAKE, USE_MORE, decisions


def test_the_size_question_compares_sixteen_bytes_a_parameter_with_a_card() -> None:
    (size,) = (step for step in decisions(job("llama-3.1-70b", "8xh100-sxm-80gb")) if step.name == "size")
    assert size.device_bytes == 16 * 70_553_706_496
    assert size.yes
    assert size.action == SHARD


def test_an_offloaded_plan_must_go_into_main_memory() -> None:
    asked = job("llama-3.1-70b", "8xh100-sxm-80gb")
    enough = decisions(asked)
    assert enough[-1].name == "offload"
    assert enough[-1].host_bytes == 18 * 70_553_706_496 + 8 * 3 * 10**9
    small = replace(asked, cluster=replace(asked.cluster, host_bytes=256 << 30))
    path = decisions(small)
    assert not next(step for step in path if step.name == "offload").yes
    assert path[-1].name == "more"


@pytest.mark.parametrize("seq_len", [4096, 6144, 7168, 7680, 16384])
def test_a_path_does_not_end_with_a_plan_that_may_run_out(seq_len: int) -> None:
    path = decisions(job("llama-3.1-8b", "8xh100-sxm-80gb", seq_len=seq_len))
    asked = [step for step in path if step.verdict is not None]
    assert asked == [step for step in path if step.name not in ("size", "more")] + [s for s in path if s.name == "more"]
    for step in asked:
        assert step.name == "more" or step.finding.startswith(f"{step.verdict}: ")
        assert step.yes == (step.verdict in (Fit.FITS, Fit.CLOSELY))


def test_every_step_and_action_has_its_words_in_chinese() -> None:
    steps = (*ONLY_ONE, *SEVERAL)
    assert {step.name for step in steps} | {"size", "more"} == set(terms("decision"))
    assert {step.otherwise for step in steps} | {TAKE, COPY, SHARD, NOT_STATES, USE_MORE} == set(terms("action"))
