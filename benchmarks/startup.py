"""What starting each everyday command takes beside `python -c pass`, in turn: `python -m benchmarks.startup`.

Processor seconds of whole processes, user and system, so that other work on the machine weighs little; the fastest of
several rounds. `--trace` adds a trace beside `import torch`, which needs PyTorch.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from typing import Final

COMMANDS: Final = {
    "train": "train llama-3.1-8b --gpus 8xh100-sxm-80gb", "serve": "serve llama-3.1-8b --gpus 1xh100-sxm-80gb",
    "oom": "oom -", "models": "models", "--help": "--help", "run -- CMD": "run --check -- true",
    "run -- trl": "run --check --gpus rtx-4090 -- trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name d "
    "--max_length 1024 --per_device_train_batch_size 1 --packing true",
}
TRACE: Final = "trace torch.nn:Linear --arg in_features=8 --arg out_features=8 --input 4x8"
FAILURE: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free."
)


ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Installed packages have their bytecode, and so has a checkout from the second start on."""


def seconds(arguments: list[str]) -> float:
    """Processor seconds of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], input=FAILURE, capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compared(base: str, commands: dict[str, str], rounds: int) -> None:
    """Print the fastest of every command, and how many times that of a bare interpreter that runs `base`."""
    asked = {f"python -c '{base}'": ["-c", base]}
    asked |= {name: ["-m", "vramcast", *line.split()] for name, line in commands.items()}
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds + 1):  # the first round warms the caches and is not counted
        for name, arguments in asked.items():
            taken[name].append(seconds(arguments))
    bare = min(taken[f"python -c '{base}'"][1:])
    for name, found in taken.items():
        print(f"{name:<26}{min(found[1:]) * 1000:>8.0f} ms{min(found[1:]) / bare:>7.1f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    compared("pass", COMMANDS, options.rounds)
    if options.trace:
        compared("import torch", {"trace": TRACE}, options.rounds)


if __name__ == "__main__":
    main()
