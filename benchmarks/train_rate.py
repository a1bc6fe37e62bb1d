"""How many training questions one core answers in a second: `python -m benchmarks.train_rate [--peers DIR]`.

Fifty everyday questions, asked in one process from options to the text of the document. Every round asks them with
other lengths, so that no run is simulated twice. Seconds are those of the CPU: other work of the machine counts less.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import vramcast
from vramcast.estimate.timeline import LOOP
from vramcast.report.document import to_json

HERE: Final = Path(__file__).resolve().parent

QUESTIONS: Final = tuple((HERE / "everyday_questions.txt").read_text().splitlines())
"""As `vramcast train` takes them."""

PEER_QUESTION: Final = (
    "llama-3-70b --layers 12 --gpus 8xb200-180gb --engine megatron --tp 2 --sequence-parallel --shards optimizer "
    "--precision mixed-bf16 --seq-len 4096 --micro-batch 1 --grad-accum 4 --loss fused"
)
"""What the peers are asked as well."""

PEERS: Final = {"SimuMax 1.2": "simumax_rate.py", "llm-analysis 0.2.2 (a closed formula)": "llm_analysis_rate.py"}


class Asked(NamedTuple):
    """One question and its cost."""

    question: str
    seconds: float
    fits: bool


def options_of(question: str) -> dict[str, Any]:
    """A command line as keywords of `vramcast.train`."""
    model, *words = shlex.split(question)
    options: dict[str, Any] = {"model": model}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            options[name] = True
        else:
            options[name] = int(word) if word.isdigit() else word
    return options


def moved(options: dict[str, Any], place: int) -> dict[str, Any]:
    """The question with another length: shorter ones, which every model was trained with."""
    if "seq_len" not in options:
        return options | {"micro_batch": options["micro_batch"] + place}
    return options | {"seq_len": options["seq_len"] - 8 * place}


def ask(question: str, place: int) -> Asked:
    """One question, from options to text."""
    options = moved(options_of(question), place)
    start = time.process_time()
    answer = vramcast.train(**options)
    to_json(answer)
    return Asked(question, time.process_time() - start, answer.fits)


def peer_seconds(options: argparse.Namespace) -> Iterator[tuple[str, float | None]]:
    """CPU seconds a question of each peer; None where it could not run."""
    for name, script in PEERS.items():
        command = [options.python, str(HERE / "peers" / script), str(options.peers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield name, float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.strip() else None


def shown(name: str, seconds: list[float]) -> str:
    """One line: rate, mean and median."""
    mean = statistics.mean(seconds)
    return f"{name:<44}{1 / mean:>10.0f}{mean * 1e3:>10.2f}{statistics.median(seconds) * 1e3:>10.2f}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_rate", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", action="store_true", help="a line for each question")
    parser.add_argument("--peers", type=Path, help="the peers' checkouts, see peers/README.md")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers' packages")
    parser.add_argument("--compiled", action="store_true", help="with the compiled loop of the extra `fast`")
    options = parser.parse_args()
    if options.compiled and not LOOP.load():
        parser.error("--compiled needs numba: pip install 'vramcast[fast]'")
    if options.compiled:  # as the processes of the web server
        gc.freeze()
        gc.set_threshold(50_000)
    for question in (*QUESTIONS, PEER_QUESTION):  # catalogue and modules are read once a process
        ask(question, 0)
    asked = [ask(question, place + 1) for place in range(options.rounds) for question in QUESTIONS]
    if options.each:
        for question in QUESTIONS:
            print(f"{min(one.seconds for one in asked if one.question == question) * 1e3:8.2f} ms  {question}")
    print(f"{'on one core':<44}{'a second':>10}{'mean ms':>10}{'median':>10}")
    print(shown("all questions", [one.seconds for one in asked]))
    print(shown("plans that fit", [one.seconds for one in asked if one.fits]))
    print(shown("plans that do not, with what to change", [one.seconds for one in asked if not one.fits]))
    if options.peers is not None:
        own = [ask(PEER_QUESTION, place + 1).seconds for place in range(20)]
        print(shown("the peers' question, vramcast", own))
        for name, seconds in peer_seconds(options):
            if seconds is None:
                print(f"{name}: could not run")
            else:
                print(shown(name, [seconds]), f"{seconds / statistics.mean(own):.2f} x ours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
