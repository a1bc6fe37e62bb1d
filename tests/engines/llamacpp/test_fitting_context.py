"""The longest context of a plan whose cache does not fit is one that fits."""

from __future__ import annotations

import pytest

import vramcast


@pytest.mark.parametrize(
    ("model", "concurrency", "context"), [("llama-3.1-8b", 64, 32768), ("gemma-3-27b", 8, 131_072)]
)
def test_the_longest_context_fits_and_a_longer_one_does_not(model: str, concurrency: int, context: int) -> None:
    asked = {"gpus": "l40s", "engine": "llama.cpp", "concurrency": concurrency, "weights": "q4_k_m"}
    found = vramcast.serve(model, context=context, **asked)
    assert not found.fits
    assert found.capacity is not None
    longest = found.capacity.longest_context
    assert 0 < longest < context
    assert vramcast.serve(model, context=longest, **asked).fits
    assert not vramcast.serve(model, context=longest + 512, **asked).fits


def test_weights_that_do_not_fit_leave_no_context() -> None:
    found = vramcast.serve("llama-3.1-70b", gpus="rtx-4090", engine="llama.cpp", weights="q8_0", context=4096)
    assert found.capacity is not None
    assert found.capacity.longest_context == 0
