"""Rows of single operators through their real code."""

import json

import pytest

pytest.importorskip("torch")

from truth.contract import Refused
from truth.rows.kernels import predict
from truth.score import PUBLISHED
from truth.traced_kernels import Scored, traced_peak

ROWS = PUBLISHED / "kernels.jsonl"


def row(kernel, provider, x_value, mode="full"):
    rows = map(json.loads, ROWS.read_text(encoding="utf-8").splitlines())
    wanted = {"kernel": kernel, "provider": provider, "x_value": x_value, "mode": mode}
    return next(row for row in rows if wanted.items() <= row.items())


@pytest.mark.parametrize(("kernel", "provider", "x_value"), [
    ("cross_entropy", "huggingface", "4096"), ("sparsemax", "torch", "8192"), ("swiglu", "huggingface", "2048"),
    ("tiled_swiglu", "deepspeed_tiled", "1024"), ("rms_norm", "huggingface", "4096"),
    ("rope", "huggingface", "512"),
    ("megatron_cross_entropy", "megatron-unfused", "8192"), ("fused_neighborhood_attention", "torch", "1024"),
    ("fused_neighborhood_attention", "torch", "64"), ("sparse_multi_token_attention", "torch", "256"),
    ("fused_moe", "huggingface", "128"),
])
def test_the_peak_is_that_of_the_card_to_the_byte(kernel, provider, x_value):
    measured = row(kernel, provider, x_value)
    assert Scored("", measured, traced_peak(measured)).is_exact


@pytest.mark.parametrize(("kernel", "provider", "timestamp", "sizes"), [
    ("fused_linear_jsd", "torch", "2024-10-09 12:29:33", {"BT": 2048, "H": 1024, "V": 32000}),
    ("fused_linear_simpo_loss", "huggingface", "2024-11-15 14:29:33", {"B": 4, "T": 512, "H": 1024, "V": 32000}),
    ("fused_linear_orpo_loss", "huggingface", "2024-11-14 14:29:33", {"B": 4, "T": 512, "H": 1024, "V": 32000}),
])
def test_formula_and_code_of_a_benchmark_agree(kernel, provider, timestamp, sizes):
    name, value = next(iter(sizes.items()))
    asked = {
        "kernel": kernel, "provider": provider, "mode": "full", "x_name": name, "x_value": str(value),
        "config": json.dumps(sizes | {"dtype": "torch.bfloat16"}), "gpu": "NVIDIA A100-SXM4-80GB",
        "liger_version": "0.4.1", "timestamp": timestamp, "measured_mb_p50": 1.0,
    }
    (prediction,) = predict(asked)
    assert traced_peak(asked) == pytest.approx(prediction.predicted, rel=2e-3)


def test_what_is_no_eager_code_is_refused():
    with pytest.raises(Refused, match="no eager PyTorch"):
        traced_peak(row("cross_entropy", "liger", "8192"))
