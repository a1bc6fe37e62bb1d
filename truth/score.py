"""Score predictions against measured memory: `python -m truth.score [FILE...] [--json] [--rows]`.

Without a FILE the tables of the README are printed, from the runs in `truth/published/`.
Every row of the files is read, turned into a question by the adapter of its group, predicted and compared; none is
dropped: what cannot be predicted is counted with its reason. Errors are fractions of the measured value.
Rows marked `scope` (too few fields) or `suspect` (doubtful measurement) are reported in groups of their own.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.contract import STEP_TIME, VERDICT, Prediction, Refused
from truth.own_words import SAME, in_own_words
from truth.rows import adapter, engine_of, harness_of
from vramcast.errors import SourceError, VramcastError
from vramcast.estimate.interval import Purpose, Traits, measured_cases, ratio_bounds

Row = dict[str, Any]

PUBLISHED: Final = Path(__file__).resolve().parent / "published"
"""Runs that others measured and published, a row each with its source."""

PUBLISHED_FILES: Final = tuple(
    PUBLISHED / f"{name}.jsonl" for name in ("megatron_b200", "training", "recipes", "kernels", "inference")
)
"""Those that this program predicts; others of the folder belong to programs that trace."""

LEVELS: Final = ("allocated", "reserved", "device")

WHOLE: Final = re.compile(r"^(peak|max_gpu|max_single|total|gpu_mem|vram|nvidia_smi|memory_gb)|^mem_")
"""Quantities of serving rows that are a whole process or rank."""


class Scored(NamedTuple):
    """One row at one level."""

    file: str
    group: str
    grade: str
    mark: str
    level: str
    row: int  # line in the file, from 1
    label: str
    prediction: Prediction | None
    refused: str | None
    peers: dict[str, float]  # other tools' errors on the same row
    engine: str | None = None  # that predicted it
    own_words: str | None = None  # whether the row's own file asks the same; None where it has none

    @property
    def error(self) -> float:
        """(predicted - measured) / measured; of a measured 0: 0 when it is met, else 1."""
        assert self.prediction is not None
        if not self.prediction.measured:
            return float(self.prediction.predicted != 0)
        return self.prediction.predicted / self.prediction.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measured value lies in the predicted interval."""
        if self.prediction is None or self.prediction.interval is None:
            return None
        low, high = self.prediction.interval
        return low <= self.prediction.measured <= high


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.score", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    parser.add_argument("--rows", action="store_true", help="every row, worst first within its group")
    parser.add_argument("--group", action="append", help="only this group (may be repeated)")
    options = parser.parse_args(arguments)
    if not (options.files or options.json or options.rows or options.group):
        from truth.tables import scored_file, serving_table, training_table  # it reads the scores of this module

        print(training_table(scored_file), serving_table(scored_file), sep="\n", end="")
        return 0
    try:
        scored = [item for path in options.files or PUBLISHED_FILES for item in score_file(path, only=options.group)]
    except (SourceError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    groups = summarise(scored)
    if options.json:
        document: dict[str, Any] = {"groups": groups}
        if options.rows:
            document["rows"] = [row_document(item) for item in scored]
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        print_table(groups)
        if options.rows:
            print_rows(scored)
    return 0


def score_file(path: Path, *, only: list[str] | None = None, every: int = 1) -> Iterator[Scored]:
    """Every row of one file (or of some of its groups, or each n-th line) at every level it measures."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip() or number % every:
                continue
            row = _parsed(line, path, number)
            if only is None or group_of(row, path.name) in only:
                yield from score_row(row, file=path.name, number=number, folder=path.parent)


def _parsed(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path.name} line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise SourceError(f"{path.name} line {number}: a row is a JSON object")
    return row


def score_row(row: Row, *, file: str, number: int, folder: Path = Path()) -> list[Scored]:
    """One row of a file that lies in a folder; a refusal is one item without a prediction."""
    mark = "scope" if row.get("scope") else "suspect" if row.get("suspect") else ""

    def scored(level: str, prediction: Prediction | None, refused: str | None = None) -> Scored:
        return Scored(
            file,
            group_of(row, file),
            str(row.get("spec_quality", row.get("quality", ""))),
            mark,
            level,
            number,
            label_of(row),
            prediction,
            refused,
            peer_errors(row, level),
            engine_of(row, group_of(row, file)),
            in_own_words(row, folder) if "ask" in row else None,
        )

    try:
        group = group_of(row, file)
        engine = engine_of(row, group)
        return [scored(item.level, with_interval(item, engine, group)) for item in adapter(row, folder)(row)]
    except (Refused, VramcastError) as reason:
        return [scored(level_of(row), None, str(reason))]
    except Exception as bug:  # one row's bug must not hide the other rows; it is counted and named
        return [scored(level_of(row), None, f"BUG {type(bug).__name__}: {bug}")]


def with_interval(prediction: Prediction, engine: str | None, group: str) -> Prediction:
    """The prediction with the 90 % interval that the other harnesses' misses give it."""
    if prediction.interval is not None or not has_interval(prediction.level) or not (prediction.traits or engine):
        return prediction
    traits, own = prediction.traits or Traits(engine or "", engine or ""), harness_of(group)
    purpose = purpose_of(traits)
    others = (case for case in measured_cases() if case.purpose == purpose and case.harness != own)
    low, high = ratio_bounds(traits, others)
    return prediction._replace(interval=(prediction.predicted * low, prediction.predicted * high))


def purpose_of(traits: Traits) -> Purpose:
    """Whose misses a number with these traits is judged by."""
    return "training" if traits.slack else "serving"


def has_interval(level: str) -> bool:
    """Whether answers give an interval for it: sums over everything a rank holds, not their parts."""
    return level in LEVELS or WHOLE.search(level) is not None


def group_of(row: Row, file: str) -> str:
    """`group`, else `source_class`, else kernel/provider, else the file."""
    if "group" in row:
        return str(row["group"])
    if "settings" in row:
        return f"{str(row['framework']).partition(' ')[0]} {row['kind']}"
    if "source_class" in row:
        return str(row["source_class"])
    if "kernel" in row:
        return f"{row['kernel']}/{row['provider']}"
    return file.removesuffix(".jsonl")


def level_of(row: Row) -> str:
    """The level a refused row would have been scored at, from what it says it measured."""
    if "ask" in row:
        return str(row["measured"]["quantity"])
    if "quantity" in row:
        return str(row["quantity"])
    if "tpot_ms" in row:
        return "TPOT"
    metric = str(row.get("metric") or row.get("measure_kind") or "").lower()
    if "reserved" in metric:
        return "reserved"
    return "allocated" if "alloc" in metric else "device"


def label_of(row: Row) -> str:
    """A few words to recognise a row by."""
    if "ask" in row or "settings" in row or "tpot_ms" in row:
        return str(row["id"])[:110]
    if "kernel" in row:
        return f"{row['kernel']}/{row['provider']} {row['mode']} {row['x_name']}={row['x_value']} {row['gpu']}"
    parts = (row.get("model"), row.get("gpu"), row.get("peft"), row.get("seq_len"), row.get("micro_batch"))
    return " ".join(str(part) for part in parts if part not in (None, "none"))[:110]


def peer_errors(row: Row, level: str) -> dict[str, float]:
    """Errors of the tools whose estimate the row carries beside its measurement; the one time is SimuMax's."""
    if level == STEP_TIME and row.get("step_ms_estimate"):
        return {"SimuMax": row["step_ms_estimate"] / row["step_ms_measured"] - 1}
    measured = row.get("measured_peak_gib") if level == "allocated" else None
    return {name: gib / measured - 1 for name, gib in (row.get("estimates_gib") or {}).items()} if measured else {}


def summarise(scored: Iterable[Scored]) -> list[dict[str, Any]]:
    """One record per file, group, level and mark; grades apart inside."""
    groups: dict[tuple[str, str, str, str], list[Scored]] = defaultdict(list)
    for item in scored:
        groups[item.file, item.group, item.mark, item.level].append(item)
    records = []
    for (file, group, mark, level), items in sorted(groups.items()):
        record: dict[str, Any] = {"file": file, "group": group, "level": level}
        if mark:
            record["mark"] = mark
        record |= statistics_of(items)
        grades = sorted({item.grade for item in items if item.grade})
        if len(grades) > 1:
            record["grades"] = {
                grade: statistics_of([item for item in items if item.grade == grade]) for grade in grades
            }
        records.append(record)
    return records


def statistics_of(items: list[Scored]) -> dict[str, Any]:
    """Counts and errors of some rows."""
    predicted = [item for item in items if item.prediction is not None]
    record: dict[str, Any] = {
        "rows": len(items),
        "predicted": len(predicted),
        "refused": dict(Counter(item.refused for item in items if item.refused)),
    }
    if asked := [item.own_words for item in items if item.own_words]:
        record["own_words"] = dict(Counter(asked))
    if not predicted:
        return record
    errors = [item.error for item in predicted]
    worst = max(predicted, key=lambda item: abs(item.error))
    record |= {
        "median_abs_error": statistics.median(map(abs, errors)),
        "p95_abs_error": percentile([abs(error) for error in errors], 0.95),
        "mean_error": statistics.fmean(errors),
        "underestimated_share": sum(error < 0 for error in errors) / len(errors),
        "underestimated_over_5_percent_share": sum(error < -0.05 for error in errors) / len(errors),
        "worst": {"row": worst.row, "error": worst.error, "label": worst.label},
    }
    if all(item.level == VERDICT for item in predicted):
        record["right_share"] = sum(item.error == 0 for item in predicted) / len(predicted)
        record["false_fits_share"] = sum(item.error > 0 for item in predicted) / len(predicted)
    covered = [item.covered for item in predicted if item.covered is not None]
    if covered:
        record["interval_coverage"] = sum(covered) / len(covered)
    alternative = [
        abs(item.prediction.predicted / item.prediction.measured_alternative - 1)
        for item in predicted
        if item.prediction and item.prediction.measured_alternative
    ]
    if alternative:
        record["median_abs_error_if_gb"] = statistics.median(alternative)
    for peer in sorted({name for item in items for name in item.peers}):
        peer_abs = [abs(item.peers[peer]) for item in items if peer in item.peers]
        record.setdefault("peers", {})[peer] = {
            "median_abs_error": statistics.median(peer_abs),
            "max_abs_error": max(peer_abs),
        }
    return record


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def print_table(groups: list[dict[str, Any]]) -> None:
    """The summary for people."""
    print(f"{'group':<44}{'level':<22}{'rows':>5}{'pred':>5}{'median':>9}{'p95':>9}{'under':>7}{'in 90%':>8}  worst")
    for record in groups:
        name = record["group"] + (f" [{record['mark']}]" if "mark" in record else "")
        _print_line(name, record["level"], record)
        for grade, part in record.get("grades", {}).items():
            _print_line(f"  grade {grade}", record["level"], part)
        for peer, part in record.get("peers", {}).items():
            print(f"  {peer:<42}{'':<32}{part['median_abs_error']:>9.2%}{'max':>5}{part['max_abs_error']:>9.2%}")
        for reason, count in record["refused"].items():
            print(f"    refused {count}: {reason}")
        if "own_words" in record:
            same, rows = (record["own_words"].get(SAME, 0), sum(record["own_words"].values()))
            print(f"    asked by its own file, {same} of {rows} rows give the same figure")


def _print_line(name: str, level: str, record: dict[str, Any]) -> None:
    line = f"{name[:43]:<44}{level[:21]:<22}{record['rows']:>5}{record['predicted']:>5}"
    if "worst" in record:
        coverage = f"{record['interval_coverage']:>8.0%}" if "interval_coverage" in record else f"{'-':>8}"
        line += (
            f"{record['median_abs_error']:>9.2%}{record['p95_abs_error']:>9.2%}"
            f"{record['underestimated_share']:>7.0%}{coverage}  "
            f"{record['worst']['error']:+.1%} row {record['worst']['row']}"
        )
    print(line)


def print_rows(scored: list[Scored]) -> None:
    """Every row, worst first."""
    for item in sorted(scored, key=lambda item: -abs(item.error) if item.prediction else 0):
        if item.prediction is None:
            print(f"{'refused':>10}  {item.file}:{item.row} {item.group} {item.level} {item.label}: {item.refused}")
            continue
        unit, factor = ("MiB", 1 << 20) if item.level in LEVELS else ("", 1)
        print(
            f"{item.error:>+10.2%}  {item.file}:{item.row} {item.group} {item.level} "
            f"{item.prediction.predicted / factor:,.2f} for {item.prediction.measured / factor:,.2f} {unit}  "
            f"{item.label}"
        )


def row_document(item: Scored) -> dict[str, Any]:
    record: dict[str, Any] = {
        "file": item.file,
        "row": item.row,
        "group": item.group,
        "grade": item.grade,
        "mark": item.mark,
        "level": item.level,
        "label": item.label,
    }
    if item.own_words is not None:
        record["own_words"] = item.own_words
    if item.prediction is None:
        return record | {"refused": item.refused}
    record |= {
        "predicted": item.prediction.predicted,
        "measured": item.prediction.measured,
        "error": item.error,
    }
    if item.prediction.interval is not None:
        record["interval_bytes"] = list(item.prediction.interval)
    return record


if __name__ == "__main__":
    sys.exit(main())
