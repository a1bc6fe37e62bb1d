"""Requests that were recorded: one a line, with its time and the tokens of prompt and answer.

Names of columns as published traces have them. JSON lines of Mooncake (times in milliseconds,
kvcache-ai/Mooncake FAST25-release/traces) or of one's own; CSV of Azure (Azure/AzurePublicDataset
AzureLLMInferenceDataset2023.md: TIMESTAMP, ContextTokens, GeneratedTokens) and of BurstGPT (HPMLL/BurstGPT README:
Timestamp, Request tokens, Response tokens).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from vramcast.errors import SourceError, joined

TIMES: Final = {"timestamp": 1e-3, "time": 1.0, "at": 1.0, "arrival": 1.0, "arrived_at": 1.0}
"""Column of a JSON line -> seconds of its unit; in CSV all are seconds."""
PROMPTS: Final = ("input_length", "input_len", "input", "prompt_tokens", "contexttokens", "request tokens")
ANSWERS: Final = ("output_length", "output_len", "output", "completion_tokens", "generatedtokens", "response tokens")
MOST: Final = 1_000_000


def read_arrivals(path: Path) -> tuple[tuple[float, int, int], ...]:
    """Seconds since the first request, tokens of prompt and answer, in order of time.

    Raises: SourceError in one sentence, with the line
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError("{}: cannot be read as a list of requests: {}", path, reason) from None
    found: list[tuple[float, int, int]] = []
    for line, row, unit_of in _rows(text, path):
        at_s = _time(row, unit_of, path, line)
        prompt, answer = (_tokens(row, names, path, line) for names in (PROMPTS, ANSWERS))
        if found and at_s < found[-1][0]:
            raise SourceError("{}, line {}: comes before the line above; sort the requests by time", path, line)
        if answer:  # BurstGPT lists requests that failed
            found.append((at_s, prompt, answer))
        if len(found) > MOST:
            raise SourceError("{}: more than {:,} requests; give a part of it", path, MOST)
    if not found:
        raise SourceError(
            "{}: holds no request; give one a line, such as {{\"time\": 0.5, \"input\": 2048, \"output\": 500}}", path
        )
    return tuple((at_s - found[0][0], prompt, answer) for at_s, prompt, answer in found)


def read_lengths(path: Path) -> tuple[int, ...]:
    """Tokens of answers: a number on each line, or a column of answers as of recorded requests.

    Raises: SourceError in one sentence, with the line
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError("{}: cannot be read as a list of lengths: {}", path, reason) from None
    lines = text.split()
    if lines and all(line.isdecimal() for line in lines):
        found = tuple(int(line) for line in lines if int(line))
    else:
        found = tuple(tokens for line, row, _ in _rows(text, path) if (tokens := _tokens(row, ANSWERS, path, line)))
    if not found or max(found) > 1 << 32:
        raise SourceError("{}: holds no lengths; give one a line", path)
    return found


def _rows(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any], Mapping[str, float]]]:
    """Line, columns in small letters, and their units of time."""
    lines = text.splitlines()
    if text.lstrip().startswith("{"):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise SourceError("{}, line {}: is no JSON object", path, number)
            yield number, {str(name).lower(): value for name, value in row.items()}, TIMES
        return
    for number, row in enumerate(csv.DictReader(lines), 2):
        yield number, {str(name).lower(): value for name, value in row.items()}, dict.fromkeys(TIMES, 1.0)


def _time(row: Mapping[str, Any], unit_of: Mapping[str, float], path: Path, line: int) -> float:
    name = next((name for name in unit_of if name in row), None)
    if name is None:
        raise SourceError("{}, line {}: has no time; call it {}", path, line, joined(" or ", unit_of))
    value = row[name]
    try:
        found = float(value) * unit_of[name]
    except (TypeError, ValueError):
        try:
            found = datetime.fromisoformat(str(value)[:26]).timestamp()
        except ValueError:
            found = -1.0
    if not 0 <= found < 1e12:
        raise SourceError("{}, line {}: {}={!r} is no time", path, line, name, value)
    return found


def _tokens(row: Mapping[str, Any], names: tuple[str, ...], path: Path, line: int) -> int:
    name = next((name for name in names if name in row), None)
    if name is None:
        raise SourceError("{}, line {}: has no number of tokens; call it {}", path, line, names[2])
    try:
        found = int(row[name])
    except (TypeError, ValueError):
        found = -1
    if not (names is PROMPTS) <= found <= 1 << 32:
        raise SourceError("{}, line {}: {}={!r} is no number of tokens", path, line, name, row[name])
    return found
