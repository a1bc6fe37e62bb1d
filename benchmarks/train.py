"""vramcast beside its peers on one question, whole processes in turn: `python -m benchmarks.train --peers DIR`."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
MEASURED_GIB: Final = 60.68
"""Llama-3-70B, 12 layers, tp 2, dp 4, B200: max_memory_allocated, SimuMax's B200 release v1.2."""

QUESTION: Final = shlex.split(
    "train llama-3-70b --layers 12 --gpus 8xb200-180gb --engine megatron --tp 2 --sequence-parallel "
    "--shards optimizer --precision mixed-bf16 --seq-len 4096 --micro-batch 1 --grad-accum 4 --loss fused --json"
)

PEERS: Final = {
    "SimuMax 1.2": "simumax.py",
    "Megatron-LM theoretical_memory_usage": "megatron_formula.py",
    "llm-analysis 0.2.2": "llm_analysis.py",
    "EleutherAI calc_transformer_mem": "eleuther.py",
    "accelerate estimate-memory": "accelerate_estimate.py",
}


def run(command: list[str]) -> tuple[float, str]:
    """Seconds of one whole process, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return seconds, done.stdout


def gib_of(name: str, output: str) -> float:
    """The peak a tool answered [GiB]."""
    if name == "vramcast":
        return float(json.loads(output)["peak"]["allocated_bytes"]) / 2**30
    return float(output.split()[-1])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="the peers' checkouts, see peers/README.md")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers' packages")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    ours = [sys.executable, "-m", "vramcast", *QUESTION]
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "vramcast": ours}
    commands |= {
        name: [options.python, str(HERE / "peers" / script), str(options.peers)] for name, script in PEERS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    answers: dict[str, float] = {}
    missing: dict[str, str] = {}
    for _ in range(options.runs + 1):  # the first round warms the caches and is not counted
        for name, command in commands.items():
            if name in missing:
                continue
            try:
                elapsed, output = run(command)
                seconds[name].append(elapsed)
                if name != "python -c pass":
                    answers[name] = gib_of(name, output)
            except (RuntimeError, ValueError, IndexError, KeyError) as reason:
                missing[name] = str(reason)
    own_seconds = statistics.median(seconds["vramcast"][1:])
    print(f"{'tool':<40}{'median s':>9}{'/ ours':>8}{'GiB':>9}{'error':>9}")
    for name in commands:
        if name in missing:
            print(f"{name:<40} could not run: {missing[name][:80]}")
            continue
        median = statistics.median(seconds[name][1:])
        answer = f"{answers[name]:>9.2f}{answers[name] / MEASURED_GIB - 1:>+9.1%}" if name in answers else ""
        print(f"{name:<40}{median:>9.3f}{median / own_seconds:>8.2f}{answer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
