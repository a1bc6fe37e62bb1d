"""Diagnoses held against what threads say the cause was: `python -m truth.failures FILE [--write] [--rows]`.

A row states a message and how it was resolved, in words. `failure_causes.csv` reads those words as one of our causes,
with the reason; where a resolution names no cause the reading is empty. Only rows whose resolution comes from the
thread itself count. `--write` regenerates docs/oom-disagreements.md.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
READINGS: Final = Path(__file__).with_name("failure_causes.csv")
DISAGREEMENTS: Final = ROOT / "docs" / "oom-disagreements.md"
THREAD: Final = "thread"
TEMPLATE: Final = "TEMPLATE"


class Reading(NamedTuple):
    """What a resolution says the cause was."""

    cause: str  # "" where it names none
    why: str


class Judgement(NamedTuple):
    """One message beside its reading."""

    source: str
    number: int  # of the message in its source, from 1
    family: str
    message: str
    resolution: str
    by_thread: bool
    reading: Reading
    cause: str  # "" where nothing was recognised
    confidence: float
    why: str  # in English

    @property
    def counts(self) -> bool:
        """Whether the thread names a cause."""
        return self.by_thread and bool(self.reading.cause)

    @property
    def agrees(self) -> bool:
        """Whether ours is the same."""
        return self.cause == self.reading.cause


def readings(path: Path = READINGS) -> dict[tuple[str, int], Reading]:
    """The readings by source and number."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["source"], int(row["number"])): Reading(row["cause"], row["reading"]) for row in csv.DictReader(file)
        }


def judgements(path: Path) -> Iterator[Judgement]:
    """Every message of a file, diagnosed by itself."""
    from vramcast import diagnose
    from vramcast.report.failure import sentence
    from vramcast.report.messages import Words

    read, numbers, words = readings(), Counter[str](), Words("en")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        numbers[row["source"]] += 1
        if row["format"] == TEMPLATE:
            continue
        findings = diagnose(row["message"]).findings
        first = findings[0] if findings else None
        yield Judgement(
            source=row["source"], number=numbers[row["source"]], family=row["family"], message=row["message"],
            resolution=row.get("resolution", ""), by_thread=row.get("resolution_from") == THREAD,
            reading=read.get((row["source"], numbers[row["source"]]), Reading("", "no reading of its resolution yet")),
            cause=first.cause.value if first else "", confidence=first.confidence if first else 0.0,
            why="; ".join(sentence(remark, words) for remark in first.why) if first else "not recognised",
        )


def document(found: list[Judgement]) -> str:
    """The page of disagreements."""
    counted = [item for item in found if item.counts]
    agreed = sum(item.agrees for item in counted)
    lines = [
        "# Where the doctor and the threads disagree", "",
        "Written by `python -m truth.failures ../shared/truth/oom_messages.jsonl --write`; a test holds it current.",
        "", f"{agreed} of {len(counted)} messages whose thread says what the cause was get that class. Where a thread",
        "names no cause (a request for a better message, a closed question) there is nothing to agree with, and the",
        "row does not count. No rule knows a row: what a text cannot tell stays a disagreement.", "",
        "| message | thread says | read as | the doctor says | why |", "|---|---|---|---|---|",
    ]
    for item in counted:
        if not item.agrees:
            message = _cell(item.message[:160])
            ours = f"{item.cause or 'nothing'} ({item.confidence:.0%})"
            lines.append(
                f"| {message} | {_cell(item.resolution)} | {item.reading.cause}: {_cell(item.reading.why)} | {ours} | "
                f"{_cell(item.why)} |"
            )
    lines += ["", "## How sure it is", "", *_calibration(counted)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _calibration(counted: list[Judgement]) -> Iterator[str]:
    """Stated confidence beside the share that was right."""
    yield "| stated confidence | messages | stated on average | right |"
    yield "|---|---|---|---|"
    for low, high in ((0.0, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 1.01)):
        group = [item for item in counted if low <= item.confidence < high]
        if group:
            stated = sum(item.confidence for item in group) / len(group)
            right = sum(item.agrees for item in group) / len(group)
            yield f"| {low:.0%} to {min(high, 1):.0%} | {len(group)} | {stated:.0%} | {right:.0%} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="rows of messages, one JSON object a line")
    parser.add_argument("--write", action="store_true", help="regenerate docs/oom-disagreements.md")
    parser.add_argument("--rows", action="store_true", help="every row, not only the sum")
    arguments = parser.parse_args()
    found = list(judgements(arguments.file))
    if arguments.write:
        DISAGREEMENTS.write_text(document(found), encoding="utf-8")
    counted = [item for item in found if item.counts]
    for item in found if arguments.rows else ():
        mark = "=" if item.agrees else "!" if item.reading.cause else " "
        source = "thread" if item.by_thread else "reading"
        causes = f"{item.reading.cause:22} {item.cause:22} {item.confidence:4.0%}"
        print(f"{mark} {source:8} {causes}  {item.message[:80]!r}")
    print(f"{sum(item.agrees for item in counted)} of {len(counted)} messages agree with their thread")


if __name__ == "__main__":
    main()
