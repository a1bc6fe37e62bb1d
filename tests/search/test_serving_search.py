"""Inverse questions: the plan found fits, the next smaller one does not, and impossible things are said to be so."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.answer import Found, ServeAnswer
from vramcast.engines.serving.checks import runs_on
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.options import options_in
from vramcast.question.tables import GOALS as NAMES
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.search.serving import GOALS

FEW = settings(max_examples=5, deadline=None)


def found(answer: ServeAnswer) -> Found:
    assert answer.found is not None
    return answer.found


def ask(goal: str, model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, find=goal, **({"gpus": "l40s", "context": 16384} | options))


def test_the_options_offer_exactly_what_the_search_can_do() -> None:
    assert set(NAMES) == set(GOALS)


@pytest.mark.parametrize("goal", NAMES)
def test_the_answer_is_that_of_a_plan_that_fits(goal: str) -> None:
    answer = ask(goal)
    assert answer.fits
    assert found(answer).what is not None
    assert any(tried.fits for tried in found(answer).tried)
    assert found(answer).num_tried >= len(found(answer).tried)


def test_no_smaller_card_of_the_catalogue_holds_what_the_smallest_holds() -> None:
    answer = ask("smallest-gpu", concurrency=4)
    chosen = load_gpu(str(found(answer).value))
    for tried in found(answer).tried:
        name = tried.what.split("x", 1)[1].split()[0]
        if load_gpu(name).visible_bytes < chosen.visible_bytes:
            assert not tried.fits
            assert tried.reason


def test_the_smallest_card_needs_no_card_in_the_question() -> None:
    assert vramcast.serve("llama-3.2-1b", find="smallest-gpu", context=2048).fits
    held = vramcast.serve("llama-3.2-1b", find="smallest-gpu", context=2048, used="2GiB")  # on whichever card
    assert any(entry.path.endswith("held by others") for entry in held.fullest.ledger)


def test_old_cards_run_bf16_models_in_fp16() -> None:
    answer = ask("smallest-gpu", "qwen2.5-1.5b", context=2048)
    assert all("fp16" in tried.what for tried in found(answer).tried if "v100" in tried.what or "xt4" in tried.what)


def test_the_longest_context_is_at_most_the_models_own() -> None:
    assert found(ask("longest-context", "llama-3.2-1b", gpus="h200")).value == 131072


def test_among_cards_that_are_all_too_small_the_largest_is_the_nearest() -> None:
    answer = vramcast.serve("deepseek-v3", find="smallest-gpu", context=2048)
    nearest = found(answer).nearest_failing
    assert nearest is not None
    assert answer.capacity_bytes == nearest.capacity_bytes
    assert answer.capacity_bytes == max(
        gpu.visible_bytes for gpu in map(load_gpu, gpu_names()) if runs_on("vllm", (0, 19), gpu)
    )


@given(context=st.integers(1, 24), users=st.integers(1, 6))
@FEW
def test_cards_passed_over_for_their_weights_would_not_have_fitted(context: int, users: int) -> None:
    answer = ask("smallest-gpu", context=1024 * context, concurrency=users)
    for tried in found(answer).tried:
        if "weights alone" in tried.reason:
            gpus, *rest = tried.what.removeprefix("--gpus ").split()
            options = {"dtype": rest[1]} if rest else {}
            whole = vramcast.serve("llama-3.1-8b", gpus=gpus, context=1024 * context, concurrency=users, **options)
            assert not whole.fits


def test_an_unknown_goal_names_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match="smallest-gpu"):
        ask("cheapest")
    from vramcast.api import serve_job_of
    from vramcast.search.serving import find

    with pytest.raises(UnknownName, match="fewest-gpus"):
        find("fewest-gpu", serve_job_of({"model": "llama-3.1-8b", "gpus": "h100"}))


def test_no_card_at_all_is_one_sentence() -> None:
    from vramcast.api import serve_job_of
    from vramcast.search.serving import find

    with pytest.raises(InvalidSpec, match="no card to choose from"):
        find("smallest-gpu", serve_job_of({"model": "llama-3.1-8b", "gpus": "h100"}), cards=())


def test_every_engine_of_language_models_is_timed_and_searched() -> None:
    from vramcast.engines.serving.table import SERVING
    from vramcast.timing.work import EXECUTIONS

    language = {name: engine for name, engine in SERVING.items() if not engine.runs_pipelines}
    assert set(language) == set(EXECUTIONS)
    assert all(engine.support and engine.formats for engine in language.values())


@pytest.mark.parametrize(("goal", "engine"), [
    *((goal, "vllm") for goal in NAMES), ("most-users", "sglang"), ("longest-context", "llama.cpp"),
    ("best-split", "llama.cpp"), ("fewest-gpus", "transformers"),
])
def test_every_plan_shown_needs_what_it_needs_when_asked_for(goal: str, engine: str) -> None:
    asked = {"gpus": "2xl4", "context": 8192, "concurrency": 4, "engine": engine}
    try:
        answer = ask(goal, "llama-3.1-70b", **asked)
    except InvalidSpec:
        return  # nothing is possible at all
    for tried in found(answer).tried:
        options = options_in(tried.what, SERVE_OPTIONS)
        if tried.needed_bytes is None or options is None:
            continue
        again = vramcast.serve("llama-3.1-70b", **asked | {name.replace("-", "_"): v for name, v in options.items()})
        assert (again.fullest.needed_bytes, again.fits) == (tried.needed_bytes, tried.fits), tried.what
