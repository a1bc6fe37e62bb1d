"""Latencies under load beside measured ones: `python -m benchmarks.serving_times serving_times.jsonl [--rows]`.

Per engine and card: rows, median and 95th-percentile absolute error, median signed error of the time to the first token
and of the time between tokens, and the median rank correlation along curves of one configuration at several
concurrencies: ours, and that of the concurrency itself, which no answer that grows with it passes ("users": what the
measured curves are disordered by). A configuration is fitted on or scored, never both: `--half fit` and `--half score`
print one of the two.

`--peer FILE` takes answers of benchmarks/peers/serving/aiconfigurator_times.py to the same rows and prints, per level,
on how many configurations ours is nearer, by the median error along each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.step_time import spearman
from truth.contract import Refused
from truth.rows.serving_times import predict
from truth.score import percentile
from vramcast.errors import VramcastError

Row = dict[str, Any]

PEER_KEYS: Final = {"TTFT": "ttft_ms", "TPOT": "tpot_ms"}

ENOUGH: Final = 8
"""Runs from which on a model on a card counts as one."""

TAIL: Final = 0.0325
"""Of the runs that intervals are made of, above and below: so few that nine of ten of a model which they know nothing
of lie between, each model on a card counting as in `bounds`."""

FEWEST: Final = 4
"""Points of a curve that has a rank correlation."""

SAME: Final = (
    "engine", "engine_version", "model", "system", "precision", "mode", "input_len", "output_len", "image", "measured",
)


class Case(NamedTuple):
    """One latency of one row."""

    row: Row
    level: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def configuration_of(row: Row) -> str:
    """What rows of one curve share: everything but how many requests are in flight."""
    degrees = [
        [(name, value) for name, value in sorted(row.get(part, {}).items()) if name != "batch_size"]
        for part in ("parallel", "prefill", "decode")
    ]
    return json.dumps([[row.get(name) for name in SAME], degrees])


def half_of(row: Row) -> str:
    """Whether constants may be fitted on a row's configuration, or it is kept to score them."""
    return ("fit", "score")[zlib.crc32(configuration_of(row).encode()) % 2]


def cases(path: Path, half: str | None) -> Iterator[Case]:
    """What can be predicted of a file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if half and half_of(row) != half:
            continue
        try:
            for found in predict(row):
                yield Case(row, found.level, found.predicted, found.measured)
        except (Refused, VramcastError):  # counted by truth.score with its reason
            continue


def correlation(members: list[Case]) -> float | None:
    """Spearman's, of predicted and measured latencies along one curve; None for few points, or equal ones."""
    if len(members) < FEWEST:
        return None
    return spearman([case.predicted for case in members], [case.measured for case in members])


def correlations(members: list[Case]) -> tuple[list[float], list[float]]:
    """Of every curve, and those of the concurrency in place of the prediction."""
    curves: dict[str, list[Case]] = defaultdict(list)
    for case in members:
        curves[configuration_of(case.row)].append(case)
    users = [[case._replace(predicted=float(case.row.get("concurrency") or 0)) for case in curve]
             for curve in curves.values()]
    return tuple([value for curve in kind if (value := correlation(curve)) is not None]
                 for kind in (curves.values(), users))  # type: ignore[return-value]


def table(found: list[Case]) -> Iterator[str]:
    """One line per level, engine and card, then one for all of a level."""
    yield (f"{'level, engine, card':<52}{'rows':>6}{'median':>8}{'p95':>8}{'signed':>8}{'curves':>8}"
           f"{'Spearman':>9}{'users':>7}")
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in found:
        groups[f"{case.level} {case.row['engine']} {case.row['system']}"].append(case)
        groups[f"{case.level}, all"].append(case)
    for name, members in sorted(groups.items()):
        errors = [abs(case.error) for case in members]
        ordered, by_users = correlations(members)
        rank = f"{statistics.median(ordered):>9.3f}{statistics.median(by_users):>7.3f}" if ordered else f"{'-':>9}"
        yield (
            f"{name:<52}{len(members):>6}{statistics.median(errors):>8.1%}{percentile(errors, 0.95):>8.1%}"
            f"{statistics.median(case.error for case in members):>+8.1%}{len(ordered):>8}{rank}"
        )


def beside(found: list[Case], path: Path) -> Iterator[str]:
    """One line per level: errors of both tools on rows that both answer, and on how many curves ours is less."""
    answers = {one["id"]: one for one in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    levels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for case in found:
        theirs = answers.get(case.row["id"], {}).get(PEER_KEYS[case.level.split()[0]])
        if theirs is not None:
            pair = abs(case.error), abs(theirs / case.measured - 1)
            levels[case.level][configuration_of(case.row)].append(pair)
    unanswered = sum("reason" in one for one in answers.values())
    yield f"aiconfigurator: {len(answers)} rows asked, {unanswered} without an answer"
    for level, curves in sorted(levels.items()):
        pairs = [pair for curve in curves.values() for pair in curve]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        medians = [[statistics.median(column) for column in zip(*curve, strict=True)] for curve in curves.values()]
        nearer = sum(mine < other for mine, other in medians) / len(medians)
        yield (
            f"{level:<52}{len(pairs):>6}  ours {ours:>6.1%}  theirs {theirs:>6.1%}  nearer on {nearer:.0%} of "
            f"{len(medians)} configurations"
        )


def model_of(case: Case) -> str:
    """Runs that miss alike."""
    return str(case.row["model"]).rpartition("/")[2].replace("DeepSeek-V3", "DeepSeek-R1")


def bounds(found: list[Case]) -> tuple[float, float]:
    """The middle of measured over predicted, TAIL left out at each end; a model on a card under an engine counts from
    ENOUGH runs."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for case in found:
        groups[case.row["engine"], case.row["system"], model_of(case)].append(case.measured / case.predicted)
    weighted = sorted((ratio, min(ENOUGH, len(group)) / len(group)) for group in groups.values() for ratio in group)
    passed = list(accumulate(weight for _, weight in weighted))
    return tuple(weighted[bisect_left(passed, share * passed[-1])][0] for share in (TAIL, 1 - TAIL))  # type: ignore[return-value]


def misses(found: list[Case]) -> Iterator[str]:
    """One line per level: the bounds, and how many runs of a model those of the others hold."""
    for level in ("TTFT", "TPOT"):
        members = [case for case in found if case.level == level]
        held: dict[tuple[str, ...], list[bool]] = defaultdict(list)
        for model in {*map(model_of, members)}:
            low, high = bounds([case for case in members if model_of(case) != model])
            for case in members:
                if model_of(case) == model:
                    held[model, case.row["engine"], case.row["system"]].append(
                        low <= case.measured / case.predicted <= high)
        of_runs = statistics.mean(one for group in held.values() for one in group)
        counts = {group: min(ENOUGH, len(runs)) for group, runs in held.items()}
        of_groups = sum(counts[group] * statistics.mean(runs) for group, runs in held.items()) / sum(counts.values())
        low, high = bounds(members)
        yield (f"{level}: measured {low:.2f} to {high:.2f} times predicted; without a model {of_runs:.0%} of its runs, "
               f"{of_groups:.0%} where each model on a card counts as in the bounds")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_times", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--half", choices=("fit", "score"), help="one half of the configurations only")
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--peer", type=Path, metavar="FILE", help="another tool's answers, beside ours")
    parser.add_argument("--misses", action="store_true", help="what intervals of speeds are made of")
    options = parser.parse_args()
    found = list(cases(options.file, options.half))
    if options.rows:
        for case in found:
            print(f"{case.level:<28}{case.predicted:>12.2f}{case.measured:>12.2f}{case.error:>+9.1%}  {case.row['id']}")
    print("\n".join(table(found)))
    if options.misses:
        print("\n".join(misses(found)))
    if options.peer:
        print("\n".join(beside(found, options.peer)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
