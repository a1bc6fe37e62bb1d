"""Random questions, each answer examined: `python -m tools.fuzz [--questions N] [--seed N] [--minutes N]`.

Question I of seed S is always the same one: `python -m tools.fuzz --seed S --only I` asks it again. What is found is
printed as it is found, one JSON object a line, each kind of fault once unless --all; the exit status is 1 where there
was any.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import time
from collections import Counter
from random import Random

from tools.fuzz.ask import examined
from tools.fuzz.draw import TABLES
from vramcast.estimate.timeline import LOOP
from vramcast.web.exchange import QUICK, SEARCH

EVERY_FORM = 16
"""Of so many answers one is written as text, too."""


def main() -> int:
    """Draw, ask, report."""
    asked = _arguments()
    seen: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    slowest: list[tuple[float, int]] = []
    start = time.monotonic()
    if asked.compiled and not LOOP.load():
        sys.exit("--compiled needs numba")
    places = [asked.only] if asked.only is not None else range(asked.first, asked.first + asked.questions)
    for place in places:
        for found in examined(Random(f"{asked.seed}:{place}"), asked.command, every_form=place % EVERY_FORM == 0):
            command, options = found.question
            tally["questions"] += found.num_answers
            tally[f"{command} {'refused' if found.refusal else 'answered'}"] += 1
            slowest = sorted([*slowest, (round(found.seconds, 2), place)])[-8:]
            limit = SEARCH.seconds if command.startswith("plan") or "find" in options else QUICK.seconds
            is_slow = found.seconds > asked.slow * limit
            for fault in (*found.faults, *([f"slow: {found.seconds:.1f} s"] if is_slow else [])):
                kind = _kind(fault)
                seen[kind] += 1
                if asked.all or seen[kind] <= asked.shown:
                    print(json.dumps({"place": place, "command": command, "options": options, "fault": fault}),
                          flush=True)
            if asked.only is not None:
                print(json.dumps({"options": options, "refusal": str(found.refusal)}))
        if asked.minutes and time.monotonic() - start > 60 * asked.minutes:
            break
        if place % 1000 == 999:
            _print_state(place, tally, seen, slowest)
    _print_state(place, tally, seen, slowest)
    for kind, number in seen.most_common():
        print(f"{number:6} {kind}", file=sys.stderr)
    return 1 if seen else 0


def _kind(fault: str) -> str:
    """What faults have in common: everything but names of models, numbers and quoted values."""
    lines = fault.strip().splitlines()
    short = lines[-1] if len(lines) == 1 else f"{lines[-1]} {' < '.join(re.findall(r'File .*/(.*), line', fault)[-2:])}"
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", short))[:160]


def _print_state(place: int, tally: Counter[str], seen: Counter[str], slowest: list[tuple[float, int]]) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{place}: {dict(tally)}, {sum(seen.values())} faults of {len(seen)} kinds, {memory} MiB, slowest {slowest}",
          file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--questions", type=int, default=1000, help="places to draw at")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="only this place")
    parser.add_argument("--command", choices=TABLES, help="only questions of this command")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--slow", type=float, default=1.0, help="how often the web's limit of time is a fault")
    parser.add_argument("--shown", type=int, default=3, help="faults of a kind that are printed")
    parser.add_argument("--all", action="store_true", help="print every fault")
    parser.add_argument("--compiled", action="store_true", help="play the allocator compiled (extra `fast`)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
