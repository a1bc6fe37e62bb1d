"""Bars of post-training that no single row shows: `python -m truth.post_training_bars [FILE]`.

Limits that authors bisected beside those predicted, whether step times of one table are ranked as they were measured,
whether published least resources fit and half of them do not, and how long a question and a search take here.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import correlation, median
from typing import Any, Final

from truth.contract import STEP_TIME, Refused
from truth.rows.post_training import TUNING, options_of, predict
from vramcast import api
from vramcast.errors import VramcastError

ROWS: Final = Path("../shared/truth/post_training.jsonl")
BISECTED: Final = re.compile(r"(.+)-bisect-(\d+)$")
FEW: Final = 3
"""Step times that make a ranking, at least."""

ASKED: Final[dict[str, Any]] = {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "samples": 5, "micro-batch": 8,
                                "reference": True}
SEARCHED: Final[dict[str, Any]] = {"model": "qwen2.5-7b", "gpus": "2x8xh100-sxm-80gb", "samples": 5,
                                   "find": "fastest-step", "prompts": 2048, "mini-batch": 2048}


def main() -> None:
    """Print every bar, a line each."""
    path = Path(sys.argv[1]) if sys.argv[1:] else ROWS
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for part in (bisections, rankings, least_resources):
        print("\n".join(part(rows)))
    print("\n".join(speeds()))


def bisections(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Sequences of a micro-batch: the most that fitted, and the most that is predicted to."""
    series: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if named := BISECTED.match(row["id"]):
            series[named[1]].append(row)
    for name, found in series.items():
        fits = {int(BISECTED.match(row["id"])[2]): row["outcome"]["result"] == "fits" for row in found}  # type: ignore[index]
        measured = max(count for count, fitted in fits.items() if fitted)
        predicted = _most(lambda count, row=found[0]: _fits(row, count), 4 * measured)  # type: ignore[misc]
        yield f"bisection {name}: {measured} measured, {predicted} predicted, {predicted / measured - 1:+.1%}"


def _fits(row: dict[str, Any], count: int) -> bool:
    gpus = int(row["gpus"]["count"])
    sizes = ("data.train_batch_size", "actor.ppo_mini_batch_size", "actor.ppo_micro_batch_size",
             "rollout.log_prob_micro_batch_size", "ref.log_prob_micro_batch_size")
    settings = row["settings"] | {name: str(count * gpus) for name in sizes if name in row["settings"]}
    return api.post_training_answer(options_of(row | {"settings": settings}), with_changes=False).fits


def _most(fits: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def rankings(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Whether step times of one table are predicted in their order: Spearman's rank correlation, and Kendall's, which
    counts pairs."""
    tables: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        table = f"{row['framework']} {row['version']}, {row['source'].get('path', '')}"
        try:
            tables[table] += [(one.predicted, one.measured) for one in predict(row) if one.level == STEP_TIME]
        except (Refused, VramcastError):
            continue
    for table, times in tables.items():
        pairs = [(mine, its) for place, mine in enumerate(times) for its in times[:place] if mine[1] != its[1]]
        if len(times) >= FEW:
            in_order = sum(1 if (mine[0] > its[0]) is (mine[1] > its[1]) else -1 for mine, its in pairs) / len(pairs)
            by_rank = correlation(*map(_ranks, zip(*times, strict=True)))
            errors = median(abs(predicted / measured - 1) for predicted, measured in times)
            yield (f"ranking of {table}: {by_rank:.2f} (pairs {in_order:.2f}) over {len(times)} step times, median "
                   f"error {errors:.0%}")


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each in order; equal ones share theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def least_resources(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Published least resources by the lengths to be expected, and with half of the cards."""
    for row in rows:
        if not row["id"].startswith(TUNING) or BISECTED.match(row["id"]):
            continue
        fits, count = [], int(row["gpus"]["count"])
        for cards in (count, count // 2):
            if not cards:
                continue
            own = {"trainer.nnodes": str(max(1, cards // 8)), "trainer.n_gpus_per_node": str(min(8, cards))}
            asked = row | {"gpus": row["gpus"] | {"count": cards}, "settings": row["settings"] | own}
            try:
                answer = api.post_training_answer(options_of(asked), with_changes=False)
                fits.append("fits" if answer.fits else "does not")
            except VramcastError as reason:
                fits.append(f"cannot run ({reason})")
        half = f", with half of them {fits[1]}" if len(fits) > 1 else ""
        yield f"least resources {row['id']}: {fits[0]} on {count}{half}"


def speeds() -> Iterator[str]:
    """Processor time of a question in a process that has answered one, and of a search."""
    api.post_training_answer(ASKED, with_changes=False)
    start = time.process_time()
    api.post_training_answer(ASKED | {"micro-batch": 7}, with_changes=False)
    yield f"one question: {time.process_time() - start:.2f} s of a processor"
    start = time.process_time()
    found = api.post_training_answer(SEARCHED, with_changes=False).found
    seconds, count = time.process_time() - start, found.num_tried if found is not None else 0
    each = 1e4 * seconds / max(1, count)
    yield f"a search of {count:,} placements: {seconds:.1f} s of a processor, {each:.1f} s for 10,000"


if __name__ == "__main__":
    main()
