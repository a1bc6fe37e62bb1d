"""Real messages are recognised, and their sizes are those that a dumb search for numbers with units finds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from vramcast.sources.failures import read_failures

TRUTH = Path(os.environ.get("VRAMCAST_TRUTH") or Path(__file__).resolve().parents[4] / "shared" / "truth")
FILE = TRUTH / "oom_messages.jsonl"
ROWS: list[dict[str, Any]] = (
    [json.loads(line) for line in FILE.read_text("utf-8").splitlines()] if FILE.is_file() else []
)
REAL = [row for row in ROWS if row["format"] != "TEMPLATE"]
TEMPLATES = [row for row in ROWS if row["format"] == "TEMPLATE" and "{" in row["message"]]

SAME_TEXT = {"vllm-tpu": "vllm"}
"""The message does not tell the plugin from the engine whose words it raises."""

DUMB = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(bytes|[KMG]i?B)\b")
FACTORS = {"bytes": 1, "KiB": 2**10, "KB": 2**10, "MiB": 2**20, "MB": 2**20, "GiB": 2**30, "GB": 2**30}
PLACEHOLDER = re.compile(r"\{[^}]*\}")

pytestmark = pytest.mark.skipif(not ROWS, reason="the shared messages are not at hand")


@pytest.mark.parametrize("row", REAL, ids=lambda row: f"{row['family']} {row['format']}")
def test_a_real_message_is_one_statement_with_all_its_sizes_and_counts(row: dict[str, Any]) -> None:
    statements = read_failures(row["message"]).statements
    family = SAME_TEXT.get(row["family"], row["family"])
    assert [(item.family, item.wording) for item in statements] == [(family, row["format"])]
    numbers = statements[0].numbers
    message = row["message"].partition("# GPU blocks")[2] or row["message"]
    stated = [round(float(number) * FACTORS[unit]) for number, unit in DUMB.findall(message)]
    stated += [int(number) for number in re.findall(r"buffer of size (\d+)", message)]
    assert sorted(value for name, value in numbers.items() if name.endswith("_bytes")) == sorted(stated)
    counts = re.findall(r"\((\d+)\)(?! is the)|length is (\d+)|handle (\d+) prefill", row["message"])
    stated = [int(number) for found in counts for number in found if number]
    kept = ("max_model_len", "kv_tokens", "estimated_max_len", "tried_tokens")
    assert sorted(value for name, value in numbers.items() if name in kept) == sorted(stated)


@pytest.mark.parametrize("row", TEMPLATES, ids=lambda row: row["versions"])
@pytest.mark.parametrize("optional", [True, False])
def test_a_template_filled_in_gives_back_what_was_filled_in(row: dict[str, Any], optional: bool) -> None:
    template = row["message"].replace("[proc]*", "Process 7 has 2.50 GiB memory in use. ")
    template = re.sub(r"\[([^\]]*)\]", r"\1" if optional else "", template)
    sizes = iter(range(1, 99))
    filled = PLACEHOLDER.sub(lambda place: "3" if "dev" in place[0] else f"{next(sizes)}.25 MiB", template)
    (statement,) = read_failures(filled).statements
    read = [value for name, value in statement.numbers.items() if name.endswith("_bytes")]
    assert statement.family == "torch-cuda"
    assert statement.numbers["device"] == 3
    assert sorted(read) == sorted(round(float(number) * FACTORS[unit]) for number, unit in DUMB.findall(filled))
