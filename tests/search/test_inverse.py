"""Inverse questions: the longest, the largest, the fewest; and what decided."""

from functools import cache
from itertools import islice, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from tests.search._options import job, read
from vramcast.api.packing import packed
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Answer, Found, Peak, RankAnswer, StepTime
from vramcast.domain.job import Job
from vramcast.domain.packing import Candidate, Room, chance_to_run_out
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.estimate.training import may_run_out, need_of, needed_bytes, rank_programs
from vramcast.question.tables import FINDS
from vramcast.report.chinese import terms
from vramcast.search.goals import scaled_model
from vramcast.search.inverse import GOALS, WORTH_IT, Question, find
from vramcast.search.techniques import (
    COPY,
    NOT_STATES,
    ONLY_ONE,
    SEVERAL,
    SHARD,
    TAKE,
    USE_MORE,
    Table,
    decisions,
    techniques,
)

# Inverse training questions: what is found fits, the next larger one does not.


def ask(goal: str, model: str | None = "llama-3.2-1b", **options: Any) -> Answer:
    return vramcast.plan("train", model, find=goal, **({"on": "a100-sxm4-40gb", "seq_len": 1024} | options))


def found(answer: Answer) -> Found:
    assert answer.found is not None
    return answer.found


def test_the_options_offer_exactly_what_the_search_can_do() -> None:
    assert set(FINDS) == set(GOALS)


@pytest.mark.parametrize("options", [
    {"gpus": "a100-sxm4-40gb"}, {"gpus": "a100-sxm4-40gb", "recompute": "full"}, {"zero": 2, "engine": "deepspeed"},
    {"engine": "huggingface", "peft": "lora", "gpus": "l4"}, {"engine": "megatron", "pp": 2, "tp": 2},
])
def test_what_live_tensors_alone_refuse_has_an_interval_beyond_the_card(options: dict[str, Any]) -> None:
    jobs = (job(micro_batch=batch, seq_len=512, **options) for batch in range(1, 1000, 2))
    refused = list(islice((asked for asked in jobs if may_run_out(asked, rank_programs(asked))), 3))
    assert len(refused) == 3
    for asked in refused:  # the first ones, which miss by least
        assert need_of(asked, rank_programs(asked)).high_bytes > asked.cluster.gpu.visible_bytes


def test_a_longer_sequence_than_the_longest_does_not_fit() -> None:
    answer = ask("longest-sequence", seq_len=None, recompute="full")
    longest = int(str(found(answer).value))
    assert longest % 128 == 0
    (longer,) = (tried for tried in found(answer).tried if tried.what == f"--seq-len {longest + 128}")
    assert longer.reason and longer.verdict in (Fit.MAY_RUN_OUT, Fit.NOT)
    assert not any("4096" in text for text in answer.assumptions)  # the length is found, not assumed


def test_doubling_the_batch_at_the_knee_gains_less_than_five_per_cent() -> None:
    answer = ask("knee", on="h100-sxm-80gb", recompute="full")
    rates = {tried.what: tried for tried in found(answer).tried}
    knee = int(str(found(answer).value))
    after = rates[f"--micro-batch {2 * knee}"]
    before = rates[f"--micro-batch {knee}"]
    assert before.tokens_per_s is not None
    assert not after.fits or (after.tokens_per_s or 0) < (1 + WORTH_IT) * before.tokens_per_s


def test_the_largest_model_grows_with_what_is_spent_on_it() -> None:
    small = tuple(load_model(name) for name in ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-2-13b"))
    asked = job("llama-2-7b", "8xa100-sxm4-40gb", engine="pytorch", seq_len=1024)
    answer = find("largest-model", Question(asked, (asked.cluster,), models=lambda: small))
    sizes = {tried.what.partition(":")[0]: tried.parameters or 0 for tried in found(answer).tried}
    assert sizes["copies"] < sizes["ZeRO 1"] < sizes["ZeRO 2"] < sizes["ZeRO 3"]
    assert sizes["ZeRO 3"] < sizes["ZeRO 3, full recomputation"]
    assert found(answer).value == answer.question["model"]
    allowed = [tried for tried in found(answer).tried if tried.fits and "--allow" not in tried.reason]
    assert {tried.what.partition(",")[0] for tried in found(answer).tried if tried not in allowed} >= {"LoRA", "QLoRA"}
    assert any((tried.model or "").startswith(str(found(answer).value)) for tried in allowed)


def test_what_must_be_allowed_is_shown_and_only_then_chosen() -> None:
    models = tuple(load_model(name) for name in ("llama-3.2-1b", "llama-3.1-8b"))
    asked = job("llama-2-7b", "a100-sxm4-40gb", seq_len=1024)
    engines = ("pytorch", "huggingface")
    plain = Question(asked, (asked.cluster,), models=lambda: models, engines=engines)
    assert found(find("largest-model", plain)).value == "llama-3.2-1b"
    assert found(find("largest-model", plain._replace(allowed=frozenset({"peft"})))).value == "llama-3.1-8b"


def test_no_machine_is_passed_over_on_which_a_search_finds_a_plan() -> None:
    machines = ["8xh200-sxm-141gb", "8xb200-180gb"]
    answer = ask("smallest-box", "llama-3.1-70b", on=machines, headroom="0%")
    assert found(answer).value == machines[0]
    assert "--tp" in str(found(answer).what)
    safe = ask("smallest-box", "llama-3.1-70b", on=machines)
    (passed_over, *_) = found(safe).tried
    assert passed_over.what.startswith(f"--gpus {machines[0]} ")
    assert found(safe).value == machines[1]
    assert passed_over.verdict in (Fit.MAY_RUN_OUT, Fit.NOT)


def test_the_smallest_machine_is_the_first_that_is_enough() -> None:
    answer = ask("smallest-box", "llama-3.1-8b", on=["a100-sxm4-40gb", "t4"], max_gpus=8)
    chosen = found(answer)
    assert answer.fits
    memory = {tried.what: (tried.capacity_bytes or 0) for tried in chosen.tried}
    first = [tried.what for tried in chosen.tried].index(str(chosen.what))
    assert all(tried.verdict in (Fit.MAY_RUN_OUT, Fit.NOT) for tried in chosen.tried[:first])
    again = job("llama-3.1-8b", **{"seq-len": 1024, "engine": "pytorch"} | read(str(chosen.what)))
    assert needed_bytes(again) <= memory[str(chosen.what)]


def test_the_cheapest_machine_is_in_one_currency() -> None:
    answer = ask("cheapest-box", "llama-3.1-8b", on=["aws:g6e.12xlarge", "aws:p5.48xlarge"])
    assert found(answer).value == "aws:g6e.12xlarge"
    assert answer.cost is not None
    with pytest.raises(InvalidSpec, match="price"):
        ask("cheapest-box", "llama-3.1-8b", on=["8xh100-sxm-80gb"])


@pytest.mark.parametrize(("goal", "options", "words"), [
    ("largest-batch", {"micro_batch": "4"}, "varies --micro-batch"),
    ("longest-sequence", {"seq_len": 4096}, "varies --seq-len"),
    ("largest-batch", {"on": ["t4", "h100-sxm-80gb"]}, "one cluster"),
    ("largest-batch", {"engine": "pytorch,huggingface"}, "one value of --engine"),
    ("largest-model", {}, "leave out 'llama-3.2-1b'"),
    ("smallest-box", {"tp": "2"}, "varies --tp"),
    ("largest-batch", {"budget": "5usd"}, "says nothing"),
    ("smallest-box", {"on": "h100-sxm-80gb", "max_gpus": 0}, "whole number"),
])
def test_a_contradictory_question_is_refused_by_name(goal: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        ask(goal, **{"on": "8xt4"} | options)


def test_an_unknown_goal_or_kind_lists_nothing_it_cannot_do() -> None:
    with pytest.raises(UnknownName, match="goal"):
        find("largest-hat", Question(job(), ()))
    with pytest.raises(UnknownName, match="train"):
        vramcast.plan("trian", "llama-3.2-1b", on="t4")


@given(parameters=st.integers(2 * 10**8, 10**12))
@settings(max_examples=30, deadline=None)
def test_the_family_has_a_model_of_every_size(parameters: int) -> None:
    built = count_parameters(scaled_model(parameters)).total
    assert 0.97 * parameters < built <= parameters
    assert count_parameters(scaled_model(2 * parameters)).total > built


def test_plans_that_do_not_fit_are_shown_with_what_they_need() -> None:
    options = {"on": "8xh100-sxm-80gb", "recompute": "full", "headroom": "0%"}
    found_ = vramcast.plan("train", "llama-3.1-8b", find="longest-sequence", **options).found
    assert found_ is not None and found_.nearest_failing is not None
    failing = [one for one in found_.tried if not one.fits]
    assert len(failing) > 1
    for one in failing:
        length = int(one.what.split()[-1])
        whole = vramcast.train("llama-3.1-8b", gpus="8xh100-sxm-80gb", recompute="full", seq_len=length)
        assert one.needed_bytes == whole.fullest.needed_bytes
        assert "at least" not in one.reason
    assert found_.nearest_failing == min(failing, key=lambda one: one.needed_bytes or 0)


@pytest.mark.parametrize("goal", ["largest-batch", "longest-sequence", "fewest-gpus", "smallest-box"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b"])
def test_every_plan_shown_needs_what_it_needs_when_asked_for(goal: str, model: str) -> None:
    on = {"smallest-box": "a100-sxm4-40gb,l40s", "fewest-gpus": "a10"}.get(goal, "a100-sxm4-40gb")
    answer = ask(goal, model, on=on, seq_len=None if goal == "longest-sequence" else 1024)
    asked = {} if goal == "longest-sequence" else {"seq_len": 1024}
    shown = [tried for tried in found(answer).tried if tried.needed_bytes]
    assert shown
    for tried in shown:
        options = {"model": model, "gpus": "a100-sxm4-40gb", "shards": "nothing"} | asked | read(tried.what)
        assert needed_bytes(job(**options)) == tried.needed_bytes, tried.what
    failing = [tried for tried in shown if not tried.fits]
    nearest = found(answer).nearest_failing
    if nearest is not None and failing:
        assert nearest.needed_bytes / nearest.capacity_bytes <= min(
            tried.needed_bytes / tried.capacity_bytes for tried in failing
        )


# The decision path: one card, above what its states fill, sharded, split, offloaded, more machines.

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


# Jobs on cards that they share: as many as find room, on the fewest, each card within what its jobs may need.

MISSES = ((0.9, 0.5), (1.0, 0.9), (1.2, 0.99), (1.5, 1.0))
"""Measured / predicted, and the share of runs up to there."""


def packing_job(name: str, size: int, gpus: int = 1, misses: tuple[tuple[float, float], ...] = ()) -> Candidate:
    peak = Peak(allocated_bytes=size, reserved_bytes=size, device_bytes=size)
    rank = RankAnswer(role="all", count=gpus, peak=peak, interval_bytes=(size, size), phases={"step": peak}, ledger=(),
                      misses=misses)
    return Candidate(name=name, gpus=gpus, answers={
        "card": Answer(question={}, fits=True, capacity_bytes=100, ranks=(rank,), num_parameters=0)})


def fewest(sizes: list[int], cards: int, capacity: int) -> int | None:
    """By looking at every way to place them."""
    found = [len(set(places)) for places in product(range(cards), repeat=len(sizes))
             if all(sum(size for size, place in zip(sizes, places, strict=True) if place == card) <= capacity
                    for card in range(cards))]
    return min(found, default=None)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), cards=st.integers(1, 3))
def test_jobs_stand_on_the_fewest_cards_that_hold_them(sizes: list[int], cards: int) -> None:
    jobs = [packing_job(f"job {index}", size) for index, size in enumerate(sizes)]
    found = packed(jobs, [Room(kind="card", capacity_bytes=12)] * cards)
    assert found.is_least
    assert found.is_whole == (fewest(sizes, cards, 12) is not None)
    if found.is_whole:
        assert found.used == fewest(sizes, cards, 12)
    assert all(card.claimed_bytes <= card.capacity_bytes for card in found.cards)
    names = [one.name for card in found.cards for one in card.jobs] + [one.name for one in found.unplaced]
    assert sorted(names) == [f"job {index}" for index in range(len(sizes))]


def test_a_job_of_several_cards_takes_them_of_one_machine() -> None:
    rooms = [Room(kind="card", capacity_bytes=10, machine=machine) for machine in (0, 1, 1)]
    found = packed([packing_job("two", 6, gpus=2), packing_job("one", 4)], rooms)
    assert [[one.name for one in card.jobs] for card in found.cards] == [[], ["two", "one"], ["two"]]
    lacking = packed([packing_job("three", 6, gpus=3)], rooms).unplaced[0]
    assert lacking.why == "it takes 3 cards of one machine, and 2 are there"


@pytest.mark.parametrize(("capacity", "chance"), [(300, 0.0), (299, 0.01), (240, 0.01), (239, 0.1), (179, 1.0)])
def test_jobs_that_miss_alike_run_out_together(capacity: int, chance: float) -> None:
    two = [packing_job("a", 100, misses=MISSES), packing_job("b", 100, misses=MISSES)]
    assert chance_to_run_out(two, "card", capacity) == pytest.approx(chance)
    assert packed(two, [Room(kind="card", capacity_bytes=capacity)], risk=0.05).is_whole == (chance <= 0.05)


@pytest.mark.parametrize("risk", [0.0, 1.0, -1.0, float("nan")])
def test_a_risk_is_a_share(risk: float) -> None:
    with pytest.raises(InvalidSpec, match="above 0 and below 1"):
        packed([packing_job("a", 1)], [Room(kind="card", capacity_bytes=2)], risk=risk)


# The technique table: every row can be asked again in its own words, and says what that question says.

CASES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "pytorch", "seq_len": 2048, "micro_batch": 4},
    "megatron": {"engine": "megatron", "seq_len": 2048, "zero": "0", "micro_batch": 2},
    "one card": {"gpus": "a100-sxm4-80gb", "seq_len": 2048, "micro_batch": 2},
    "two machines": {"gpus": "2x8xh100-sxm-80gb", "engine": "pytorch", "seq_len": 1024},
    "deepspeed": {"engine": "deepspeed", "zero": "1", "seq_len": 2048},
}


@cache
def table(case: str) -> Table:
    return techniques(job(**CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_every_row_asked_again_by_its_own_options_gives_its_bytes(case: str) -> None:
    for row in table(case).techniques:
        options = {name.replace("_", "-"): value for name, value in CASES[case].items()}
        if "shards" in read(row.change):
            options.pop("zero", None)
        asked = options | read(row.change)
        if row.change.startswith("--engine"):
            asked.setdefault("shards", job(**CASES[case]).plan.shards)  # as the job has it, not the engine's default
            asked.pop("zero", None)
        found = needed_bytes(job(**asked))
        assert found == row.device_bytes, row.change
        assert row.fits == (found <= job(**CASES[case]).cluster.gpu.visible_bytes)


@pytest.mark.parametrize("case", ["ddp", "two machines", "megatron", "deepspeed"])
def test_more_sharding_by_one_engine_never_saves_less(case: str) -> None:
    """Another engine trains in another recipe: DeepSpeed's ZeRO 1 may take less than PyTorch's FSDP of fp32 weights."""
    by_engine: dict[str, list[int]] = {}
    for row in table(case).techniques:
        if row.name.startswith("ZeRO "):
            by_engine.setdefault(read(row.change).get("engine", CASES[case]["engine"]), []).append(row.saves_bytes)
    assert sum(map(len, by_engine.values())) >= 2
    for savings in by_engine.values():
        assert savings[0] > 0
        assert savings == sorted(savings)


@pytest.mark.parametrize("case", ["ddp", "megatron", "two machines"])
def test_what_only_another_engine_has_is_compared_on_it(case: str) -> None:
    rows = {row.name: row for row in table(case).techniques}
    assert rows["optimizer on the CPU"].against == "deepspeed"
    assert rows["optimizer on the CPU"].saves_bytes > 0


def test_one_card_has_nobody_to_share_with() -> None:
    names = {row.name for row in table("one card").techniques}
    assert not names & {"ZeRO 1", "ZeRO 2", "ZeRO 3", "FSDP", "HSDP", "tensor parallelism", "pipeline parallelism"}
    assert {"full recomputation", "8-bit optimizer", "QLoRA"} <= names


def test_hybrid_sharding_is_for_several_machines() -> None:
    assert "HSDP" in {row.name for row in table("two machines").techniques}
    assert "HSDP" not in {row.name for row in table("ddp").techniques}


def test_what_no_engine_has_is_named_with_the_reason() -> None:
    assert any("activations on the CPU: " in text for text in table("megatron").refused)


def test_recomputation_costs_between_a_sixth_and_a_half_of_the_time() -> None:
    (row,) = (row for row in table("megatron").techniques if row.name == "full recomputation")
    assert row.slowdown is not None
    assert 0.16 < row.slowdown < 0.5


def test_an_unknown_or_unchanged_time_is_not_a_slowdown_of_zero() -> None:
    def unknown(asked: Job) -> StepTime:
        raise Unsupported("no time")

    def constant(asked: Job) -> StepTime:
        return StepTime(
            step_s=1.0, tokens_per_s=1.0, tokens_per_s_per_gpu=1.0, model_flops_per_s_per_gpu=1.0, seconds={},
            sources=(), assumptions=(),
        )

    for pace in (unknown, constant):
        assert all(row.slowdown is None for row in techniques(job(**CASES["one card"]), pace=pace).techniques)


def test_every_technique_says_when_to_use_it_what_it_needs_and_what_it_costs() -> None:
    assert len({way.name for way in TECHNIQUES}) == len(TECHNIQUES)
    assert all(way.cost and way.when and way.needs for way in TECHNIQUES)
