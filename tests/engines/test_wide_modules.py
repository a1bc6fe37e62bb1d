"""Norms, embedding and head of 32 bits beside layers of 16, all of which learn."""

from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_quantisation_aware import ASKED, peak
from vramcast.api import job_of
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer


@pytest.mark.parametrize("recompute, recorded", [("none", 3521.5), ("full", 2791.8)])
def test_wide_ends_beside_narrow_layers_are_as_recorded(recompute: str, recorded: float, tmp_path: Path) -> None:
    """transformers' Llama whose modules were cast so, by `vramcast trace`."""
    found = peak(tmp_path, "fp32_modules=true", "converts_outputs=false", recompute=recompute)
    assert found == pytest.approx(recorded, rel=0.007)


def test_ends_and_norms_have_four_bytes_and_layers_two() -> None:
    asked = ASKED | {"model": "qwen2.5-0.5b", "engine-option": ("autocast=true", "fp32_modules=true")}
    found = answer(job_of(asked), with_changes=False)
    sizes = {entry.path.rpartition("/")[2]: entry.num_bytes for entry in found.fullest.ledger
             if entry.path.startswith("weights")}
    assert sizes["embedding.tokens"] == pytest.approx(4 * 151_936 * 896, rel=0.001)
    assert sizes["mlp.up"] == pytest.approx(24 * 2 * 4864 * 896, rel=0.001)


@pytest.mark.parametrize("more", [
    {"peft": "lora"}, {"model": "falcon-7b"}, {"precision": "amp-bf16"}, {"model": "mixtral-8x7b"},
])
def test_what_is_cast_otherwise_is_refused(more: dict[str, Any]) -> None:
    asked = ASKED | {"model": "llama-3.2-1b", "engine-option": ("autocast=true", "fp32_modules=true")} | more
    with pytest.raises(Unsupported, match="fp32"):
        answer(job_of(asked), with_changes=False)
