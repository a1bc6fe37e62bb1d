"""From options to a space: what is named is fixed, what is forbidden is gone, and contradictions are one sentence."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.question.planning import PlanQuestion, build_planning
from vramcast.question.tables import PLAN_OPTIONS
from vramcast.sources.resolve import resolve_checkpoint


def ask(**options: Any) -> PlanQuestion:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return build_planning({"model": "llama-3.2-1b", "on": ("8xh100-sxm-80gb",)} | named, resolve=resolve_checkpoint)


def test_the_batch_assumed_has_a_sample_for_every_card() -> None:
    assert ask(on=("64x8xh100-sxm-80gb",)).space.global_batch == 512


@pytest.mark.parametrize(("options", "error", "words"), [
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
])
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
