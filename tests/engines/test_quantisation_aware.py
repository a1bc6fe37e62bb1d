"""Linear layers that round what they read to few bits and back."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramcast.api import job_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.training import answer
from vramcast.operators.fake_quantised import LEARNED_RANGE, PER_TOKEN
from vramcast.units import MIB

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}

ASKED: dict[str, Any] = {
    "engine": "huggingface", "precision": "bf16", "seq-len": 1024, "micro-batch": 2, "optimizer": "adamw",
    "loss": "eager", "gpus": "h100-sxm-80gb",
}


def peak(path: Path, *pairs: str, **more: Any) -> float:
    config = path / "config.json"
    config.write_bytes(msgspec.json.encode(CONFIG))
    options = ("autocast=true", "reentrant=false", *pairs)
    found = answer(job_of(ASKED | {"model": str(config), "engine-option": options} | more), with_changes=False)
    return found.peak.allocated_bytes / MIB


@pytest.mark.parametrize("recompute, recorded", [("none", 9180.8), ("full", 3536.6)])
def test_int4_weights_under_int8_inputs_keep_what_was_recorded(recompute: str, recorded: float, tmp_path: Path) -> None:
    """torchao 0.18 in transformers' Llama, by `vramcast trace`."""
    found = peak(tmp_path, "qat=int8-int4", "qat_group=32", recompute=recompute)
    assert found == pytest.approx(recorded, rel=0.002)


def test_emulated_products_keep_what_was_recorded(tmp_path: Path) -> None:
    assert peak(tmp_path, "qat=mxfp4", recompute="full") == pytest.approx(2849.6, rel=0.005)


def test_rounding_keeps_fp32_copies_until_backward() -> None:
    """16.8 million weights in groups of 32 kept 310.4 MB less the 2 bytes that the product keeps; so many inputs 4."""
    kept, forward, _ = LEARNED_RANGE.sizes(1 << 24, 32)
    assert kept + 2 * (1 << 24) == 310_378_496
    assert kept + forward + 2 * (1 << 24) == 413_138_944
    assert PER_TOKEN.sizes(1 << 24, 1024)[0] == 4 << 24


def test_more_is_kept_the_more_is_rounded(tmp_path: Path) -> None:
    plain = peak(tmp_path, recompute="none")
    weights = peak(tmp_path, "qat=int4", recompute="none")
    both = peak(tmp_path, "qat=int8-int4", recompute="none")
    affine = peak(tmp_path, "qat=int8-int4-affine", recompute="none")
    assert plain < weights < both
    assert plain < affine < both


@pytest.mark.parametrize("more, error", [
    ({"precision": "amp-bf16"}, Unsupported), ({"peft": "lora"}, Unsupported), ({"compile": True}, Unsupported),
])
def test_what_is_not_modelled_is_refused(more: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="quantisation-aware"):
        peak(tmp_path, "qat=int4", **more)


def test_groups_divide_rows(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="groups of 96"):
        peak(tmp_path, "qat=int4", "qat_group=96")
