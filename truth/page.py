"""Every measured case beside its prediction, for the page: `python -m truth.page [FILE...] [--check]`.

Writes `src/vramcast/web/routes/accuracy.json`; with --check nothing is written and a difference is an error. A case is
a row of texts and numbers; texts that repeat (groups, sources, reasons) stand once and are named by their place.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from truth.contract import STEP_TIME, VERDICT
from truth.score import LEVELS, PUBLISHED, Row, Scored, score_file, statistics_of
from vramcast.units import GIB, MIB

PAGE: Final = Path(__file__).resolve().parent.parent / "src" / "vramcast" / "web" / "routes" / "accuracy.json"

COLUMNS: Final = ("group", "level", "unit", "name", "card", "measured", "predicted", "source", "mark", "refused")
"""What a case says, in order. Those of `LISTED` are places in the list of their name, -1 for none; `measured` and
`predicted` are null where there is none."""

LISTED: Final = ("group", "level", "unit", "card", "source", "mark", "refused")

TRACED: Final = {"vision_nvidia_smi.jsonl": "predicted by the traced path: python -m truth.traced_vision"}
"""File whose rows another program predicts -> what is said of them here."""

MEASURED: Final[dict[str, int]] = {
    "measured_bytes": 1, "measured_gib": GIB, "measured_peak_gib": GIB, "measured_peak_mib": MIB,
    "measured_mb_p50": MIB,
}
"""Where a row of training says what was measured -> its unit [bytes]."""

TOLD: Final = ("tp", "pp", "seq_len", "max_model_len", "micro_batch", "batch")
"""Fields that tell the cases of one model apart."""

REPOSITORY: Final = re.compile(
    r"(?:github\.com/)?(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:\([^)]*\)| refs/pull/\d+)?"
    r"(?: ?@(?:(?P<commit>[0-9a-f]{7,40}\^?)|HEAD|main))?[ :/]"
)
INSIDE: Final = re.compile(r"(?:\(|; )(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*) ")
"""A repository in brackets behind the name of a study, or behind the package that its file comes in."""

UNKNOWN_PLACE: Final = re.compile(r"^GitHub file .*no repository name.*$")


def document(files: Iterable[Path]) -> dict[str, Any]:
    """All cases of some files."""
    lists: dict[str, dict[str, int]] = {name: {} for name in LISTED}
    cases, scored = [], []
    for path in files:
        rows = [json.loads(line) if line.strip() else {} for line in path.read_text(encoding="utf-8").splitlines()]
        for item in score_file(path):
            if item.level == VERDICT:
                continue  # has no error; python -m truth.score counts them
            scored.append(item)
            cases.append(_case(item, rows[item.row - 1], lists))
    sources = [[text, url] if (url := address(text)) else [text] for text in lists["source"]]
    texts: dict[str, Any] = {name: list(known) for name, known in lists.items()}
    return {"schema": 1, "columns": list(COLUMNS), "lists": texts | {"source": sources}, "groups": _groups(scored),
            "cases": cases}


def _case(item: Scored, row: Row, lists: dict[str, dict[str, int]]) -> list[Any]:
    values: dict[str, Any] = {
        "group": item.group, "level": item.level, "unit": unit_of(item.level, row), "name": name_of(row, item),
        "card": str(row.get("gpu") or ""), "mark": item.mark, "source": source_of(row),
        "refused": TRACED.get(item.file, item.refused or ""),
        "measured": measured(row, item), "predicted": item.prediction and _short(item.prediction.predicted),
    }
    for name in LISTED:
        known, text = lists[name], values[name]
        values[name] = known.setdefault(text, len(known)) if text else -1
    return [values[name] for name in COLUMNS]


def measured(row: Row, item: Scored) -> float | None:
    """What was measured, also of a case that is not predicted."""
    if item.prediction is not None:
        return _short(item.prediction.measured)
    for name, unit in MEASURED.items():
        if isinstance(row.get(name), (int, float)):
            return _short(row[name] * unit)
    value = row.get("value")
    return _short(value) if isinstance(value, (int, float)) else None


def _short(value: float) -> float:
    """Bytes whole, small figures with six digits."""
    return round(value) if abs(value) >= 1e6 else float(f"{value:.6g}")


def unit_of(level: str, row: Row) -> str:
    """The unit of a case's numbers."""
    if level == STEP_TIME:
        return "s"
    return "bytes" if level.partition(",")[0] in LEVELS else str(row.get("unit", ""))


def name_of(row: Row, item: Scored) -> str:
    """What tells a case from the others of its group."""
    if "kernel" in row:
        return f"{row['kernel']}/{row['provider']} {row['mode']} {row['x_name']}={row['x_value']}"
    peft = row.get("peft")
    told = {name: row.get(name) for name in TOLD} | {"peft": peft.get("peft_type") if isinstance(peft, dict) else peft}
    parts = [f"{name}={value}" for name, value in told.items() if value not in (None, "", "none", 1)]
    return " ".join([str(row.get("model") or ""), *parts])[:110].strip() or item.label


def source_of(row: Row) -> str:
    """Where a figure was published, as the truth says it."""
    text = str(row.get("source") or "")
    return UNKNOWN_PLACE.sub("a file on GitHub whose repository is not recorded", text)


def address(text: str) -> str:
    """The web address of a source, as far as its text tells one; of a file its repository at that commit.

    >>> address("NVIDIA/Megatron-LM@d98e8a64:tests/golden.json")
    'https://github.com/NVIDIA/Megatron-LM/tree/d98e8a64'
    >>> address("PyPI mmdet: configs/atss/metafile.yml; open-mmlab/mmdetection configs/atss/metafile.yml")
    'https://github.com/open-mmlab/mmdetection'
    >>> address("somebody's blog")
    ''
    """
    if text.startswith("https://"):
        return text.split()[0]
    match = REPOSITORY.match(text) or INSIDE.search(text)
    if match is None:
        return ""
    commit = match.groupdict().get("commit")
    return f"https://github.com/{match['name']}" + (f"/tree/{commit}" if commit else "")


def _groups(scored: list[Scored]) -> list[dict[str, Any]]:
    """What `truth.score` says of every group and level, without rows that are marked as doubtful."""
    keys = sorted({(item.group, item.level) for item in scored if not item.mark})
    found = []
    for group, level in keys:
        record = statistics_of([item for item in scored if (item.group, item.level, item.mark) == (group, level, "")])
        figures = {"group": group, "level": level, "cases": record["rows"], "predicted": record["predicted"]}
        if "worst" in record:
            figures |= {
                "median": round(record["median_abs_error"], 7), "p95": round(record["p95_abs_error"], 7),
                "worst": round(record["worst"]["error"], 7),
                "under": round(record["underestimated_over_5_percent_share"], 7),
            }
        if "peers" in record:
            figures["peers"] = {
                name: {"median": round(part["median_abs_error"], 7), "worst": round(part["max_abs_error"], 7)}
                for name, part in record["peers"].items()
            }
        found.append(figures)
    return found


def text_of(document: dict[str, Any]) -> str:
    """One case a line, so that changes of a prediction can be seen."""
    head = {name: value for name, value in document.items() if name != "cases"}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in document["cases"])
    before = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1]
    return f'{before},\n"cases":[\n{lines}\n]}}\n'


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.page", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=sorted(PUBLISHED.glob("*.jsonl")), metavar="FILE")
    parser.add_argument("--check", action="store_true", help="write nothing; a difference is an error")
    options = parser.parse_args(arguments)
    text = text_of(document(sorted(options.files, key=lambda path: path.name)))  # however they are listed
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is stale: python -m truth.page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
