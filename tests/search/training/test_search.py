"""Searches over training plans: balance, offload, affine bounds."""

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.search._options import read
from vramcast.api import job_of
from vramcast.catalogue.gpus import parse_gpus
from vramcast.domain.device import Price
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.planning import NO_ROOM, Goal, Limits, PlanAnswer, Space
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec
from vramcast.estimate.step_time import step_time
from vramcast.estimate.training import answer, needed_bytes
from vramcast.report.document import reason_words
from vramcast.report.messages import Words
from vramcast.search.training.balance import Piece, balanced, best_split
from vramcast.search.training.limits import label, options
from vramcast.search.training.megatron import blocks
from vramcast.search.training.search import search
from vramcast.search.training.states import NotAffine, affine

# The search finds what trying every plan finds, and says what to do where none fits.


def space_of(gpus: str = "4xa100-sxm4-40gb", model: str = "llama-3.2-1b", batch: int = 16, **axes: Any) -> Space:
    job = job_of({"model": model, "gpus": gpus, "engine": "megatron", "seq-len": "2k"})
    clusters = tuple(map(parse_gpus, axes.pop("on", [gpus])))
    return Space(model=job.model, workload=job.workload, global_batch=batch, clusters=clusters, **axes)


def every_job(space: Space) -> list[Job]:
    """All plans of a space, one by one."""
    found = []
    for block in blocks(space, space.clusters[:1]):
        for degrees, batch in zip(*block.possible.nonzero(), strict=True):
            every = np.ndindex(len(block.variants), len(block.recomputations))
            found += [block.job_at(*places, int(degrees), int(batch)) for places in every]
    return found


EIGHT: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "batch": 64, "cp": (1,), "virtual_stages": (1,),
}
SMALL = {"pp": (1, 2), "virtual_stages": (1,), "cp": (1,), "recompute": (Recompute.NONE, Recompute.SELECTIVE)}


@cache
def of_eight(limits: Limits, goal: Goal = Goal.FASTEST) -> PlanAnswer:
    """The search over EIGHT, which several tests look at."""
    return search(space_of(**EIGHT), limits, goal)


@pytest.mark.parametrize(("goal", "headroom"), [(Goal.FASTEST, 0.0), (Goal.FASTEST, 0.5), (Goal.LEAST_MEMORY, 0.0)])
def test_the_winner_is_what_trying_every_plan_finds(goal: Goal, headroom: float) -> None:
    space = space_of(**SMALL)
    capacity = space.clusters[0].gpu.visible_bytes * (1 - headroom)
    jobs = [(job, needed_bytes(job)) for job in every_job(space)]
    fitting = [(job, needed) for job, needed in jobs if needed <= capacity]
    best = search(space, Limits(headroom=headroom), goal, top=3).plans[0]
    assert best.time is not None
    if goal is Goal.FASTEST:
        assert best.time.step_s <= min(step_time(job).step_s for job, _ in fitting) * 1.0001
    else:  # live memory is what the goal compares
        assert best.peak.allocated_bytes <= min(answer(job).peak.allocated_bytes for job, _ in fitting[:40]) * 1.02
    assert best.fullest.needed_bytes <= capacity


def test_a_label_asks_the_same_question_again() -> None:
    for job in every_job(space_of(**SMALL))[::7]:
        again = job_of({"model": "llama-3.2-1b", "gpus": "4xa100-sxm4-40gb", "seq-len": 2048, **options(job)})
        assert answer(again).peak == answer(job).peak, label(job)
        assert step_time(again).step_s == pytest.approx(step_time(job).step_s)


def test_plans_are_ranked_and_no_two_alike() -> None:
    found = of_eight(Limits())
    seconds = [plan.time.step_s for plan in found.plans if plan.time]
    assert seconds == sorted(seconds)
    assert len(set(found.labels)) == len(found.labels)
    assert found.num_fitting <= found.num_plans
    assert all(plan.leaves(None) for plan in found.plans)
    assert found.nearest_failing is None or not found.nearest_failing.leaves(None)


def test_a_named_headroom_takes_the_place_of_the_interval() -> None:
    bare = of_eight(Limits(headroom=0.0))
    assert all(plan.fits for plan in bare.plans)
    assert not all(plan.leaves(None) for plan in bare.plans)
    assert bare.nearest_failing is None or not bare.nearest_failing.fits


def test_plans_that_may_run_out_are_shown_where_no_other_fits_and_called_so() -> None:
    space, least = space_of(**EIGHT), of_eight(Limits(), Goal.LEAST_MEMORY).plans[0]
    tight = replace(space.clusters[0].gpu, visible_bytes=least.fullest.needed_bytes + (1 << 20))
    found = search(replace(space, clusters=(replace(space.clusters[0], gpu=tight),)), Limits(), Goal.FASTEST)
    assert found.plans and NO_ROOM in found.warnings
    assert {plan.verdict for plan in found.plans} == {Fit.MAY_RUN_OUT}


def test_each_machine_is_listed_once_where_several_are_compared() -> None:
    clusters = tuple(map(parse_gpus, ("8xh100-sxm-80gb", "8xh200-sxm-141gb", "2x8xh100-sxm-80gb")))
    space = replace(space_of(**EIGHT), clusters=clusters)
    found = search(space, Limits(), Goal.FASTEST)
    cards = [plan.question["gpus"].split("-")[0].removeprefix("2x") for plan in found.plans]
    assert sorted(cards) == ["8xh100", "8xh200"]


def priced(gpus: str, amount: float, currency: str = "USD") -> Any:
    return replace(parse_gpus(gpus), price=Price(per_hour=amount, currency=currency))


def test_the_cheapest_takes_the_slower_machine_where_it_is_cheap_enough() -> None:
    dear, cheap = priced("8xh100-sxm-80gb", 100.0), priced("8xa100-sxm4-80gb", 5.0)
    space = replace(space_of(**EIGHT), clusters=(dear, cheap))
    assert "h100" in search(space, Limits(), Goal.FASTEST, top=1).labels[0]
    found = search(space, Limits(), Goal.CHEAPEST, top=1)
    assert "a100" in found.labels[0]
    assert {point.on_front for point in found.front} == {True}  # one is faster, the other cheaper


def test_budget_and_deadline_leave_out_what_breaks_them() -> None:
    space = replace(space_of(**EIGHT), clusters=(priced("8xh100-sxm-80gb", 30.0),))
    best = search(space, Limits(run_tokens=10**9), Goal.FASTEST, top=1).plans[0]
    assert best.time is not None
    hours = 1e9 / best.time.tokens_per_s / 3600
    assert search(space, Limits(run_tokens=10**9, deadline_hours=hours * 1.01), Goal.FASTEST, top=1).plans
    assert not search(space, Limits(run_tokens=10**9, deadline_hours=hours * 0.99), Goal.FASTEST, top=1).plans
    assert not search(space, Limits(run_tokens=10**9, budget=hours * 29.0), Goal.FASTEST, top=1).plans


def test_a_deadline_that_no_plan_keeps_is_named_with_what_would_keep_it() -> None:
    space = space_of(**EIGHT)
    free = search(space, Limits(run_tokens=10**9), Goal.FASTEST, top=1)
    assert free.plans[0].time is not None and not free.missed
    hours = 1e9 / free.plans[0].time.tokens_per_s / 3600
    found = search(space, Limits(run_tokens=10**9, deadline_hours=hours / 3), Goal.FASTEST, top=1)
    assert not found.plans
    assert found.num_in_memory == free.num_fitting > 0
    (missed,) = found.missed
    assert missed.limit == "deadline"
    assert missed.label == free.labels[0]
    assert missed.least == pytest.approx(hours)
    assert missed.times == 4  # twice the machines are not three times as fast
    assert missed.enough is not None and missed.enough <= hours / 3
    again = replace(space, clusters=tuple(map(parse_gpus, ["4x8xh100-sxm-80gb"])))
    assert search(again, Limits(run_tokens=10**9, deadline_hours=hours / 3), Goal.FASTEST, top=1).plans
    within = Limits(run_tokens=10**9, deadline_hours=hours / 3, max_gpus=16)
    assert search(space, within, Goal.FASTEST, top=1).missed[0].times is None


def test_a_budget_that_no_plan_keeps_is_named_with_the_one_that_could_be() -> None:
    clusters = (priced("8xh100-sxm-80gb", 100.0), priced("8xa100-sxm4-80gb", 5.0))
    space = replace(space_of(**EIGHT), clusters=clusters)
    cheapest = search(space, Limits(run_tokens=10**9), Goal.CHEAPEST, top=1)
    assert cheapest.plans[0].time is not None
    cost = 1e9 / cheapest.plans[0].time.tokens_per_s / 3600 * 5.0
    found = search(space, Limits(run_tokens=10**9, budget=cost / 2, deadline_hours=1000), Goal.FASTEST, top=1)
    (missed,) = found.missed
    assert (missed.limit, missed.unit) == ("budget", "USD")
    assert missed.least == pytest.approx(cost)
    assert "a100" in missed.label
    assert search(space, Limits(run_tokens=10**9, budget=cost * 1.01), Goal.FASTEST, top=1).plans


def test_what_fails_for_memory_is_not_blamed_on_the_deadline() -> None:
    space = space_of(model="llama-3.1-70b", gpus="8xa100-sxm4-40gb", batch=64)
    found = search(space, Limits(run_tokens=10**9, deadline_hours=1e-3), Goal.FASTEST)
    assert not found.plans
    assert not found.missed and found.num_in_memory is None


def test_where_nothing_fits_the_nearest_and_what_would_are_said() -> None:
    space = space_of(**EIGHT | {"model": "llama-3.1-70b", "gpus": "8xa100-sxm4-40gb"})
    found: PlanAnswer = search(space, Limits(), Goal.FASTEST)
    assert not found.plans
    assert found.nearest_failing is not None and not found.nearest_failing.fits
    assert found.change is not None and found.change.fits
    assert found.nearest_label


@pytest.mark.parametrize(("axes", "limits", "words"), [
    ({"tp": (3,)}, Limits(), "no plan of megatron is possible"),
    ({"batch": 7, "tp": (1,), "pp": (1,), "cp": (1,)}, Limits(), "global-batch=7"),
    ({"on": ["8xa100-sxm4-40gb"]}, Limits(max_gpus=2), "max-gpus=2"),
    ({}, Limits(budget=10.0, run_tokens=10), "needs prices"),
])
def test_spaces_that_hold_nothing_get_one_sentence(axes: dict[str, Any], limits: Limits, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        search(space_of(**axes), limits, Goal.FASTEST)


def test_more_machines_are_found_where_the_engine_asked_for_fits_on_no_number_of_them() -> None:
    space = space_of("1xa100-sxm4-40gb", "llama-3.1-70b", 64, engines=("pytorch",), shards=(Shards.NOTHING,),
                     precisions=(Precision.AMP_BF16,))
    change = search(space, Limits(), Goal.FASTEST).change
    assert change is not None and change.fits
    assert "--engine megatron" in change.change
    options = read(change.change) | {"model": "llama-3.1-70b", "seq-len": 2048}
    assert needed_bytes(job_of(options)) == change.device_bytes
    bound = search(space, Limits(max_gpus=2), Goal.FASTEST)
    assert bound.change is None
    assert any("no multiple of the machines" in text for text in bound.warnings)


def test_an_engine_that_refuses_every_plan_says_why_itself() -> None:
    with pytest.raises(InvalidSpec, match="unsloth trains on one GPU, not 4"):
        search(space_of(engines=("unsloth",), precisions=(Precision.AMP_BF16,)), Limits(), Goal.FASTEST)
    both = space_of(engines=("unsloth",), precisions=(Precision.AMP_BF16,), on=["4xa100-sxm4-40gb", "a100-sxm4-40gb"])
    assert "--gpus 1xa100-sxm4-40gb" in search(both, Limits(), Goal.FASTEST, top=1).labels[0]


def test_reasons_for_the_fewest_gpus_count_gpus() -> None:
    space = space_of(model="llama-3.1-8b", on=["3xh100-sxm-80gb", "8xh100-sxm-80gb"], batch=48)
    (reason,) = search(space, Limits(), Goal.FEWEST_GPUS, top=1).reasons
    text = reason_words(reason, "fewest-gpus", Words("en"))
    assert text.endswith("8xh100-sxm-80gb instead of 3xh100-sxm-80gb needs 2.67 times the GPUs")
    alone = space_of(on=["a100-sxm4-40gb", "2xa100-sxm4-40gb"])
    assert not search(alone, Limits(), Goal.FEWEST_GPUS, top=1).reasons


def test_prices_in_two_currencies_are_not_compared() -> None:
    clusters = (priced("8xh100-sxm-80gb", 30.0), priced("8xa100-sxm4-80gb", 30.0, "CNY"))
    space = replace(space_of(**EIGHT), clusters=clusters)
    unasked = search(space, Limits(), Goal.CHEAPEST, top=1)
    assert "h100" in unasked.labels[0]
    assert "left out: 1 machines priced in CNY, which is not compared with USD; --currency chooses" in unasked.warnings
    chosen = search(space, Limits(currency="CNY"), Goal.CHEAPEST, top=1)
    assert "a100" in chosen.labels[0]
    assert any("priced in USD" in text for text in chosen.warnings)


def test_the_plan_that_misses_by_least_is_the_one_that_needs_least() -> None:
    space = space_of(gpus="2xrtx-4090", model="llama-3.1-8b", **SMALL)
    found = search(space, Limits(), Goal.FASTEST, top=1)
    assert not found.plans and found.nearest_failing is not None
    assert found.nearest_failing.fullest.needed_bytes == min(needed_bytes(job) for job in every_job(space))


# The split that is found is the best there is, and a plan made of it is faster and fits.

def slowest(split: tuple[int, ...], seconds: dict[Piece, float]) -> float | None:
    """Of every stage the seconds, None where one does not fit."""
    start, found = 0, []
    for stage, layers in enumerate(split):
        piece = Piece(stage, start, layers)
        if piece not in seconds:
            return None
        found.append(seconds[piece])
        start += layers
    return max(found)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 5))
def test_no_other_split_has_a_faster_slowest_stage(data: st.DataObject, stages: int, more: int) -> None:
    layers = stages + more
    times = data.draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))
    ends = data.draw(st.lists(st.integers(0, 9), min_size=stages, max_size=stages))
    rooms = data.draw(st.lists(st.integers(1, layers), min_size=stages, max_size=stages))
    seconds = {
        Piece(stage, start, count): float(sum(times[start : start + count]) + ends[stage])
        for stage in range(stages) for start in range(layers) for count in range(1, rooms[stage] + 1)
    }
    everything = [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, layers), strict=True))
        for cuts in combinations(range(1, layers), stages - 1)
    ]
    best = min((found for split in everything if (found := slowest(split, seconds)) is not None), default=None)
    split = best_split(stages, layers, seconds.get)
    if best is None:
        assert split is None
    else:
        assert split is not None and slowest(split, seconds) == best


def pipeline(**options: str) -> Job:
    return job_of({
        "model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "megatron", "pp": "8", "seq-len": "4k",
        "grad-accum": "64", **options,
    })


def test_where_memory_is_short_the_proposal_still_fits() -> None:
    job = pipeline(gpus="8xa100-sxm4-40gb", **{"micro-batch": "2"})
    capacity = job.cluster.gpu.visible_bytes
    found = balanced(job, int(capacity * 0.9))
    assert found is not None
    assert answer(found).fullest.needed_bytes <= capacity


# A search offers no plan whose offloaded states main memory is too small for.

def offload_space_of(engine: str, host_gib: int | None, *ways: str) -> Space:
    job = job_of({"model": "llama-3.1-8b", "gpus": "4xa100-sxm4-40gb", "engine": engine, "seq-len": 1024})
    cluster = replace(job.cluster, host_bytes=None if host_gib is None else host_gib << 30)
    return Space(
        model=job.model, workload=job.workload, global_batch=16, clusters=(cluster,), engines=(engine,),
        offload_optimizer=ways, recompute=(Recompute.FULL,), micro_batches=(1,), precisions=(job.plan.precision,),
    )


def found(engine: str, host_gib: int | None, *ways: str) -> PlanAnswer:
    return search(offload_space_of(engine, host_gib, *ways), Limits(), Goal.LEAST_MEMORY, top=1)


@pytest.mark.parametrize(("engine", "enough"), [("megatron", 131), ("deepspeed", 146)])
def test_plans_are_offloaded_only_where_main_memory_holds_them(engine: str, enough: int) -> None:
    # 8.03e9 x 16 bytes (Megatron) or 18 (ZeRO-3) and 3 GB for each of four processes, rounded up to whole GiB
    for host_gib, offloaded in ((None, True), (enough, True), (enough - 1, False)):
        answer = found(engine, host_gib, "none", "cpu")
        assert ("--offload-optimizer cpu" in answer.labels[0]) is offloaded
        assert any(f"{enough - 1}.00 GiB there" in text for text in answer.warnings) is not offloaded


def test_what_adapters_offload_is_counted_in_the_engine_s_own_precision() -> None:
    job = job_of({"model": "llama-3.2-1b", "gpus": "a2", "engine": "deepspeed", "peft": "lora", "seq-len": 512})
    space = replace(offload_space_of("deepspeed", 64, "cpu"), model=job.model, precisions=(None,))
    space = replace(space, plan=replace(space.plan, peft=job.plan.peft))
    assert search(space, Limits(), Goal.LEAST_MEMORY, top=1).plans


# A program through two of its builds says what every other build says.

def built(spec: list[tuple[int, int, bool]], tokens: int, repeats: int) -> Program:
    nodes = []
    for fixed, slope, dies in spec:
        tensor = Tensor(name="x", num_bytes=fixed + slope * tokens, category=Category.ACTIVATIONS)
        nodes += [Alloc(tensor), Free(tensor)] if dies else [Alloc(tensor)]
    return (*nodes, Loop(repeats, tuple(nodes)), *nodes[:1])


def test_programs_of_another_shape_are_no_line() -> None:
    one = built([(1, 1, True)], 1, 2)
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, False)], 2, 2), (1, 2))
    with pytest.raises(NotAffine):
        affine(one, built([(1, 1, True)], 2, 3), (1, 2))
