"""Fields left alone show what the answer took for them."""

from __future__ import annotations

import pytest

from .conftest import Opened, comes_to
from .test_answers import SERVE, asked, view
from .test_plan import SERVE as SEARCH
from .test_plan import search, searched


def placeholders(page: object, *names: str) -> dict[str, str]:
    return {name: page.locator(f"[name={name}]").get_attribute("placeholder") for name in names}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("locale", "stored"), [("en-US", "as stored"), ("zh-CN", "原样")])
def test_a_deployment_says_its_lengths_weights_and_fraction(opened: Opened, locale: str, stored: str) -> None:
    page = opened(view("serve", SERVE["fits"]), locale=locale)
    expected = asked("serve", SERVE["fits"])
    assert placeholders(page, "input-len", "output-len", "weights", "memory-fraction") == {
        "input-len": str(expected["time"]["prompt_tokens"]),
        "output-len": str(expected["time"]["answer_tokens"]),
        "weights": stored,
        "memory-fraction": str(expected["question"]["plan"]["memory_fraction"]),
    }
    page.locator("[name=memory-fraction]").fill("0.8")
    page.locator("[name=memory-fraction]").fill("")
    comes_to(page, lambda: placeholders(page, "memory-fraction"), {"memory-fraction": "0.9"})


def test_a_share_that_nobody_asked_is_written_short(opened: Opened) -> None:
    question = {"model": "qwen2.5-vl-7b", "gpus": "h100", "engine": "sglang", "context": "8k"}
    page = opened(view("serve", question))
    fraction = asked("serve", question)["question"]["plan"]["memory_fraction"]
    shown = placeholders(page, "memory-fraction")["memory-fraction"]
    assert float(shown) == pytest.approx(fraction, abs=1e-4)
    assert len(shown) <= len("0.1234")


def test_a_search_says_what_it_looked_at_and_nothing_of_what_it_varied(opened: Opened) -> None:
    page = search(opened, "serve", SEARCH)
    best = searched("serve", SEARCH)["plans"][0]
    assert placeholders(page, "engine", "weights", "input-len", "output-len", "memory-fraction", "tp") == {
        "engine": "vllm", "weights": "as stored, fp8", "input-len": str(best["time"]["prompt_tokens"]),
        "output-len": str(best["time"]["answer_tokens"]), "memory-fraction": "0.9", "tp": "default",
    }
