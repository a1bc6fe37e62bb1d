"""The decision path: one card, above what its states fill, sharded, split, offloaded, more machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.search._options import job, read
from vramcast.domain.answer import Fit
from vramcast.estimate.training import need, needed_bytes
from vramcast.report.chinese import terms
from vramcast.search.decisions import COPY, NOT_STATES, ONLY_ONE, SEVERAL, SHARD, TAKE, USE_MORE, decisions


def test_a_small_model_needs_one_card_and_one_question() -> None:
    (only,) = decisions(job(gpus="8xh100-sxm-80gb", seq_len=2048))
    assert only.yes
    assert only.name == "one-card"
    assert only.action == COPY


def test_a_path_ends_at_the_first_step_that_fits_on_the_cards() -> None:
    path = decisions(job("llama-3.1-8b", "8xh100-sxm-80gb", seq_len=4096))
    assert [step.name for step in path][:3] == ["one-card", "one-card-recompute", "size"]
    fitting = [step for step in path if step.yes and step.name != "size"]
    assert fitting == [path[-1]]
    assert path[-1].action == TAKE


def test_every_figure_is_that_of_the_question_it_names() -> None:
    asked = job("llama-3.1-8b", "8xh100-sxm-80gb", seq_len=4096)
    for step in decisions(asked):
        if step.options:
            options = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": 4096} | read(step.options)
            options.setdefault("engine", "pytorch")
            assert needed_bytes(job(**options)) == step.device_bytes


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


def test_half_as_many_machines_as_the_path_ends_with_would_not_do() -> None:
    asked = job("llama-3.1-8b", "t4", seq_len=2048)
    last = decisions(asked)[-1]
    assert last.name == "more"
    count = int(last.finding.partition(":")[0])
    options = {"zero": "3", "engine": "deepspeed", "recompute": "full", "seq_len": 2048}
    assert needed_bytes(job("llama-3.1-8b", f"{count}x1xt4", **options)) == last.device_bytes
    half = need(job("llama-3.1-8b", f"{count // 2}x1xt4", **options))
    assert half is not None
    assert half.high_bytes > asked.cluster.gpu.visible_bytes


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


def test_a_path_for_one_engine_has_its_figures_as_far_as_it_has_the_technique() -> None:
    asked = job("llama-3.1-8b", "8xh100-sxm-80gb", engine="megatron", zero="0", seq_len=4096)
    path = {step.name: step for step in decisions(asked, engine="megatron")}
    own = job("llama-3.1-8b", "8xh100-sxm-80gb", engine="megatron", zero="1", seq_len=4096)
    assert path["zero-1"].engine == "megatron"
    assert path["zero-1"].device_bytes == needed_bytes(own)
    titan = job("llama-3.1-8b", "8xh100-sxm-80gb", engine="torchtitan", seq_len=4096)
    others = {step.name: step.engine for step in decisions(titan, engine="torchtitan")}
    assert others["zero-1"] == "deepspeed"  # torchtitan has no such stage
    assert others["size"] == ""


def test_every_figure_of_a_path_on_one_engine_can_be_asked_for() -> None:
    asked = job("llama-3.1-8b", "8xh100-sxm-80gb", engine="torchtitan", shards="everything", seq_len=4096)
    for step in decisions(asked, engine="torchtitan"):
        if step.options:
            options = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": 4096} | read(step.options)
            options.setdefault("engine", "torchtitan")
            assert needed_bytes(job(**options)) == step.device_bytes
