"""From options to a space: what is named is fixed, what is forbidden is gone, and contradictions are one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.domain.job import Precision, Recompute, Shards
from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.question.plan_options import AXES, PLAN_OPTIONS, TECHNIQUES
from vramcast.question.planning import PlanQuestion, build_planning
from vramcast.sources.resolve import resolve_checkpoint


def ask(**options: Any) -> PlanQuestion:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return build_planning({"model": "llama-3.2-1b", "on": ("8xh100-sxm-80gb",)} | named, resolve=resolve_checkpoint)


def test_every_axis_is_an_option_and_a_field_of_the_space() -> None:
    space = ask().space
    assert all(hasattr(space, field) for field in AXES.values())
    assert set(AXES) <= set(PLAN_OPTIONS)
    assert all(hasattr(space, row.field) for row in TECHNIQUES.values())


def test_the_batch_assumed_has_a_sample_for_every_card() -> None:
    assert ask(on=("64x8xh100-sxm-80gb",)).space.global_batch == 512


def test_what_is_named_is_fixed_and_several_values_leave_a_choice() -> None:
    space = ask(tp="2,4", zero=("1", "3"), precision="fp8", recompute="none", micro_batch=("1", "2")).space
    assert space.tp == (2, 4)
    assert space.shards == (Shards.OPTIMIZER, Shards.EVERYTHING)
    assert space.precisions == (Precision.FP8,)
    assert space.recompute == (Recompute.NONE,)
    assert space.micro_batches == (1, 2)
    assert space.pp == ()


def test_what_is_forbidden_is_not_in_the_space() -> None:
    space = ask(forbid="recompute,pipeline,tensor,sharding").space
    assert space.recompute == (Recompute.NONE,)
    assert (space.tp, space.pp) == ((1,), (1,))
    assert space.shards == (Shards.NOTHING,)


def test_a_kind_of_machine_comes_in_powers_of_two_up_to_the_most_gpus() -> None:
    clusters = ask(on=("aws:p5.48xlarge",), max_gpus=40).space.clusters
    assert [cluster.num_nodes for cluster in clusters] == [1, 2, 4]
    assert [cluster.num_nodes for cluster in ask(on=("aws:p5.48xlarge",)).space.clusters] == [1]
    assert [cluster.count for cluster in ask(on=("2x8xh100-sxm-80gb",)).space.clusters] == [16]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"on": ()}, InvalidSpec, "--on"),
        ({"on": ("8xh1000",)}, UnknownName, "h100"),
        ({"on": ("aws:p5.48xlarge",), "max_gpus": 4}, InvalidSpec, "leaves none"),
        ({"goal": "best"}, InvalidSpec, "fastest"),
        ({"budget": "100usd"}, InvalidSpec, "--tokens"),
        ({"budget": "100", "tokens": "1T"}, InvalidSpec, "currency"),
        ({"deadline": "soon", "tokens": "1T"}, InvalidSpec, "30d"),
        ({"headroom": "150%"}, InvalidSpec, "below 100%"),
        ({"tp": "two"}, InvalidSpec, "whole number"),
        ({"tp": ","}, InvalidSpec, "names nothing"),
        ({"zero": "1", "shards": "nothing"}, InvalidSpec, "give one"),
        ({"allow": "magic"}, UnknownName, "technique"),
        ({"allow": "fp8", "forbid": "fp8"}, InvalidSpec, "contradict"),
        ({"forbid": "pipeline", "pp": "4"}, InvalidSpec, "leaves nothing of 4"),
        ({"forbid": "recompute", "recompute": "full"}, InvalidSpec, "leaves nothing of full"),
        ({"engine": "horovod"}, UnknownName, "engine"),
        ({"lora_rank": "8"}, InvalidSpec, "--peft"),
        ({"grad_accum": 4}, UnknownName, "grad-accum"),
        ({"top": 0}, InvalidSpec, "top=0"),
        ({"global_batch": -1}, InvalidSpec, "global-batch"),
    ],
)
def test_an_impossible_space_is_refused_by_name(
    options: dict[str, Any], error: type[VramcastError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        ask(**options)
    assert "\n" not in str(raised.value)


@given(
    options=st.dictionaries(
        st.sampled_from(sorted(PLAN_OPTIONS)),
        st.text(max_size=12) | st.integers(-2, 2**70) | st.booleans() | st.lists(st.text(max_size=5), max_size=3),
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_options_are_understood_or_refused_in_one_sentence(options: dict[str, Any]) -> None:
    if isinstance(options.get("prices"), str) or isinstance(options.get("hardware"), str):
        return  # files of the user
    try:
        build_planning({"model": "llama-3.2-1b", "on": ("h100-sxm-80gb",)} | options, resolve=resolve_checkpoint)
    except VramcastError as error:
        assert "\n" not in str(error)
