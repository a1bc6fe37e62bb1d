"""Changes proposed for a load that does not fit: each is computed, and doing it does what was promised."""

from __future__ import annotations

import re
from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Change, ServeAnswer


def ask(**options: Any) -> ServeAnswer:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "l4", "context": 32768, "concurrency": 4} | options))


def applied(change: Change, **options: Any) -> ServeAnswer:
    """The question again with the words of a change."""
    words = iter(change.change.split())
    for word in words:
        name = word.removeprefix("--")
        if name.startswith("no-"):
            options[name.removeprefix("no-").replace("-", "_")] = False
        else:
            options[name.replace("-", "_")] = next(words)
    return ask(**options)


def test_every_change_that_fits_fits_when_asked_again() -> None:
    answer = ask()
    assert not answer.fits
    fitting = [change for change in answer.changes if change.fits]
    assert fitting
    for change in answer.changes:
        again = applied(change)
        assert again.fits == change.fits, change.change
        assert again.capacity is not None
        assert again.capacity.concurrency == pytest.approx(change.concurrency)


def test_two_changes_of_one_option_are_said_as_one() -> None:
    asked: dict[str, Any] = {"gpus": "3xa16", "engine": "sglang", "context": 16384, "concurrency": 1}
    words = [change.change for change in vramcast.serve("granite-3.3-8b", **asked).changes]
    assert any(text.count("--") > 1 for text in words)
    assert all(len(options) == len(set(options)) for options in (re.findall(r"--\S+", text) for text in words))


def test_every_change_brings_the_plan_nearer() -> None:
    answer = ask()
    assert answer.capacity is not None
    assert all(change.fits or (change.concurrency or 0) > answer.capacity.concurrency for change in answer.changes)


def test_a_plan_that_fits_has_no_changes() -> None:
    assert ask(concurrency=1, context=8192).changes == ()


def test_a_model_larger_than_the_card_is_offered_fewer_bits_and_more_cards() -> None:
    answer = vramcast.serve("llama-3.1-8b", gpus="rtx-4060-ti-16gb", context=2048)
    words = [change.change for change in answer.changes if change.fits]
    assert any("--weights fp8" in word for word in words)
    assert any("--tp 2" in word for word in words)


def test_the_upper_end_of_a_change_is_that_of_the_card_that_needs_most() -> None:
    asked = {"gpus": "2xrtx-2080-ti", "engine": "llama.cpp", "context": 8192}
    before = vramcast.serve("qwen1.5-14b", **asked)
    change = next(change for change in before.changes if change.change == "--weights q4_k")
    after = vramcast.serve("qwen1.5-14b", weights="q4_k", **asked)
    assert len({rank.high_bytes for rank in after.ranks}) == 2  # the cards hold different layers
    assert change.high_bytes == after.high_bytes == after.fullest.high_bytes
