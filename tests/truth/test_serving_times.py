"""How rows of serving latencies become questions."""

from typing import Any

import pytest

from benchmarks.serving_times import configuration_of, half_of
from truth.rows.serving_times import degrees_of, job_of, predict


def degrees(tp: int, dp: int | None, parts: int, experts: int) -> dict[str, Any]:
    return {"tp_size": tp, "pp_size": 1, "attention_dp_size": dp, "moe_tp_size": parts, "moe_ep_size": experts}


@pytest.mark.parametrize(("parallel", "expected"), [
    (degrees(8, 1, 8, 1), (8, 1, 1, False, 1)),
    (degrees(8, 1, 1, 8), (8, 1, 1, True, 1)),
    (degrees(64, 1, 8, 8), (8, 1, 1, True, 1)),  # --tp 8 --ep 8, multiplied
    (degrees(1, 64, 8, 8), (1, 1, 8, True, 1)),
    (degrees(2, 2, 1, 4), (1, 1, 2, True, 1)),
    (degrees(1, 8, 1, 8), (1, 1, 8, True, 1)),
    (degrees(1, None, 2, 1), (1, 1, 2, True, 1)),  # copies of attention, experts divided
    (degrees(4, None, 1, 0), (4, 1, 1, False, 1)),
    (degrees(8, 1, 8, 1) | {"num_workers": 3}, (8, 1, 1, False, 3)),
])
def test_degrees_are_those_of_the_command(parallel: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert degrees_of(parallel) == expected


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "engine": "trtllm", "engine_version": "0.8.1.post1", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm",
        "precision": "fp4", "gemm": "nvfp4", "moe": "nvfp4", "mode": "agg", "input_len": 1024, "output_len": 1024,
        "concurrency": 24, "parallel": degrees(8, 1, 1, 8), "ttft_ms": 400.0, "tpot_ms": 10.0,
    }
    return plain | changes


def test_both_latencies_are_predicted() -> None:
    levels = [found.level for found in predict(row())]
    half = degrees(8, 1, 8, 1)
    apart = [found.level for found in predict(row(mode="disagg", prefill=half, decode=half))]
    assert levels == ["TTFT", "TPOT"] and apart == [f"{level} apart, instances unsaid" for level in levels]


def test_a_curve_lies_in_one_half() -> None:
    curve = [row(concurrency=count, id=str(count)) for count in (1, 2, 4)]
    assert len({configuration_of(item) for item in curve}) == len({half_of(item) for item in curve}) == 1


@pytest.mark.parametrize(("changes", "expected"), [
    ({"engine": "sglang"}, ("fp8", 16384, {"scheduler-recv-interval": 30})),
    ({"engine": "vllm", "model": "MiniMaxAI/MiniMax-M2.5"}, ("fp8", 2048, {})),
    ({"model": "meta-llama/Llama-3.1-70B", "parallel": degrees(4, 1, 4, 1)}, ("fp8", 16384, {
        "batch-wait-timeout-iters": 20, "batch-wait-max-tokens-ratio": 0.9,
    })),
])
def test_servers_are_asked_as_the_scripts_of_the_runs_started_them(
    changes: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    job = job_of(asked := row(**changes), degrees_of(asked["parallel"]), None)
    assert (job.plan.kv_dtype, job.plan.batched_tokens, job.engine_options) == expected
    assert job.requests.input_len == round(0.9 * 1024)


def test_runs_with_drafts_have_levels_of_their_own() -> None:
    assert [found.level for found in predict(row(measured="2026-01-14"))] == ["TTFT with drafts", "TPOT with drafts"]
