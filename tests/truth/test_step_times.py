"""Measured times: of steps, and of servers."""

import csv
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving_times import Case as Served
from benchmarks.serving_times import bounds, configuration_of, correlation, half_of, misses
from benchmarks.step_time import Case, markdown, published, spearman, stated, summary
from truth.contract import Refused
from truth.rows.serving_times import Degrees, degrees_of, job_of, predict
from truth.score import PUBLISHED
from vramcast.estimate.speed import timed_apart
from vramcast.timing.loop import Latency

# Published step times: every row is predicted, and no change makes a table worse in silence.

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = tomllib.loads((ROOT / "truth" / "step_time_budgets.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in (*published(), *stated(PUBLISHED)):
        found.setdefault(case.table, []).append(case)
    return found


@pytest.mark.parametrize("name", BUDGETS)
def test_tables_stay_within_their_budget(tables: dict[str, list[Case]], name: str) -> None:
    found = summary(tables[name])
    assert found.median <= BUDGETS[name]["median"]
    if "rank" in BUDGETS[name]:
        assert found.rank is not None
        assert found.rank >= BUDGETS[name]["rank"]


def test_every_table_has_a_budget(tables: dict[str, list[Case]]) -> None:
    assert set(tables) <= set(BUDGETS)


def test_every_row_names_its_source_and_the_day_it_was_checked() -> None:
    with (ROOT / "truth" / "step_times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] and row["checked"].startswith("20") for row in rows)
    assert len(rows) >= 300


def test_rank_correlation_is_one_for_the_same_order_and_minus_one_for_the_reverse() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 40.0]) == pytest.approx(1)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert spearman([1.0, 2.0], [1.0, 2.0]) is None


def test_tables_of_documents_have_a_line_for_every_table(tables: dict[str, list[Case]]) -> None:
    lines = list(markdown([case for cases in tables.values() for case in cases]))
    assert sum(line.startswith("| ") and "&nbsp;" not in line for line in lines) == len(tables) + 1


# How rows of serving latencies become questions.

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
    prefill, decode = degrees(4, 1, 1, 4), degrees(8, 1, 2, 4)
    unsaid = row(mode="disagg", prefill=prefill, decode=decode, measured="2026-02-05", concurrency=1214)
    apart = [found.level for found in predict(unsaid)]
    assert levels == ["TTFT", "TPOT"] and apart == [f"{level} apart with drafts" for level in levels]
    with pytest.raises(Refused, match="no recipes are like the row"):
        list(predict(unsaid | {"concurrency": 3}))


def test_users_apart_are_in_one_place_at_a_time() -> None:
    """By Little's law; and more instances of a kind make what that kind does no slower."""
    def apart(prefill: int, decode: int, users: int = 64) -> Latency:
        jobs = [job_of(row(mode="disagg", decode=degrees(8, 1, 8, 1), concurrency=users), Degrees(*one, 1), None)
                for one in ((1, 1, 4, True), (8, 1, 1, True))]
        return timed_apart(*jobs, instances=(prefill, decode), spread=0.1)

    few, prompts, answers, crowd = apart(1, 1), apart(4, 1), apart(1, 4), apart(1, 4, 2048)
    assert prompts.first_token_s < few.first_token_s and answers.token_s < few.token_s
    assert crowd.first_token_s > 3 * answers.first_token_s
    assert crowd.token_s < 2 * apart(1, 16, 2048).token_s  # who waits for a prompt generates nothing


def test_a_curve_lies_in_one_half() -> None:
    curve = [row(concurrency=count, id=str(count)) for count in (1, 2, 4)]
    assert len({configuration_of(item) for item in curve}) == len({half_of(item) for item in curve}) == 1


@pytest.mark.parametrize(("changes", "expected"), [
    ({"measured": "2025-11-02", "concurrency": 512, "parallel": degrees(8, 1, 8, 1)}, ("fp8", 1600, {
        "moe-backend": "CUTLASS",
        "attention-dp-timeout-iters": 60,  # the script let ranks attend apart, which the row does not say
    })),
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


def test_intervals_hold_nine_of_ten_runs_of_a_model_that_the_others_know_nothing_of() -> None:
    """Twelve models whose runs spread alike around means of their own: the constant's share of tails is enough."""
    spread = [0.8 + 0.02 * number for number in range(21)]
    found = [Served({"engine": "vllm", "system": "h100_sxm", "model": f"m{one}"}, level, 1.0, ratio * (0.76 + one / 25))
             for one in range(12) for ratio in spread for level in ("TTFT", "TPOT")]
    for line in misses(found):
        held = int(re.search(r"runs, (\d+)%", line)[1])  # type: ignore[index]
        assert 90 <= held < 100


def test_bounds_of_misses_are_those_of_models_on_cards_not_of_rows() -> None:
    """A thousand runs of one model say as much as eight of another; fewer than that say less."""
    def runs(model: str, count: int, ratio: float) -> list[Served]:
        return [Served({"engine": "vllm", "system": "h100_sxm", "model": model}, "TTFT", 1.0, ratio)] * count

    assert bounds([*runs("many", 1000, 1.0), *runs("eight", 8, 3.0)]) == (1.0, 3.0)
    four = [*runs("many", 1000, 1.0), *runs("others", 20, 1.1), *runs("third", 30, 1.15), *runs("more", 9, 1.2)]
    assert bounds([*runs("one", 1, 3.0), *four]) == (1.0, 1.2)


@pytest.mark.parametrize(("changes", "tokens"), [
    ({}, None),
    ({"measured": "2026-01-14"}, 3),
    ({"measured": "2026-01-14", "parallel": degrees(1, 8, 1, 8)}, 1),
])
def test_runs_that_draft_say_how_many_tokens(changes: dict[str, Any], tokens: int | None) -> None:
    given = row(**({"engine_version": "1.1.0rc2.post2"} | changes))
    draft = job_of(given, degrees_of(given["parallel"]), None).plan.draft
    assert (draft and draft.tokens) == tokens


def test_a_flat_curve_has_no_order_and_equal_values_share_a_place() -> None:
    users = [Served(row(concurrency=count), "TTFT", float(ours), float(count))
             for count, ours in ((4, 1), (4, 1), (8, 2), (8, 2), (16, 2))]
    assert correlation(users) == pytest.approx(0.9, abs=0.05)
    assert correlation([case._replace(predicted=1.0) for case in users]) is None
