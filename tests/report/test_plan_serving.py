"""A search for deployments and one deployment say the same figure by the same name, in text and in JSON."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.api import planned_serving
from vramcast.domain.planning import PlanAnswer
from vramcast.report.messages import Words
from vramcast.report.plan import render
from vramcast.report.text import render as render_one

LOAD = {"concurrency": 64, "input-len": 2000, "output-len": 300}


@cache
def found(**options: Any) -> PlanAnswer:
    given = {"model": "llama-3.1-8b", "on": "aws:g7e.2xlarge,aws:g7e.12xlarge"} | LOAD
    return planned_serving(given | {name.replace("_", "-"): value for name, value in options.items()})[0]


@cache
def alone() -> Any:
    return vramcast.serve(
        "llama-3.1-8b", gpus="aws:g7e.2xlarge", engine="vllm@0.19", weights="fp8", context=2300, concurrency=64,
        input_len=2000, output_len=300,
    )


def test_decoding_alone_has_a_name_of_its_own() -> None:
    text = render_one(alone(), Words("en"))
    assert re.search(r"decode alone: 45\.\d tokens/s per user", text)
    assert re.search(r"with the prompts' time: 29\.\d tokens/s per user, 1,9\d\d tokens/s in all \(2,000", text)


def test_chinese_reports_say_replicas_in_chinese() -> None:
    text = render(found(), Words("zh"))
    assert "replica" not in text
    assert "（1 个副本，1 x aws:g7e.2xlarge）" in text
    assert "（2 个副本，1 x aws:g7e.12xlarge）" in text  # the table and the picture


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_of_least_memory_says_what_it_measures(language: str) -> None:
    words = Words(language)
    assert words("plan.measure") in render(found(goal="least-memory"), words)
    head = words("plan.needed").split(" ")[-1]
    assert head in render(found(goal="least-memory"), words)
    assert words("plan.measure") not in render(found(), words)


def test_without_a_plan_nothing_is_said_to_win() -> None:
    none = found(per_user="100000")
    text = render(none, Words("en"))
    assert "Why it wins" not in text and "does not fit" not in text
    assert text.startswith("none of ") and "keeps the limits" in text.splitlines()[0]
    assert "Nearest that misses a limit\n" in text and "  possible with --per-user " in text
    assert none.nearest_failing is not None
    full = replace(none, nearest_failing=replace(none.nearest_failing, fits=False))
    assert "Nearest that does not fit\n" in render(full, Words("en"))
    assert "Why none fits\n" in render(full, Words("en"))
