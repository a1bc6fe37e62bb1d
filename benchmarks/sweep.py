"""Questions per second of `vramcast sweep`: `python -m benchmarks.sweep [--workers 1 2] [--engine ray]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

MODELS: Final = (
    "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "gemma-2-9b",
    "mistral-7b-v0.3", "phi-4", "qwen3-30b-a3b", "mixtral-8x7b",
)
SWEEPS: Final[dict[str, dict[str, list[Any]]]] = {
    "train": {
        "command": ["train"],
        "model": list(MODELS),
        "gpus": ["8xh100-sxm-80gb", "8xh200-sxm-141gb", "8xa100-sxm-80gb", "16xh100-sxm-80gb", "64xh100-sxm-80gb"],
        "engine": ["torchtitan", "megatron", "deepspeed"],
        "seq-len": [2048, 4096, 8192],
        "recompute": ["none", "selective", "full"],
        "micro-batch": [1, 2, 4, 8],
    },
    "serve": {
        "command": ["serve"],
        "model": list(MODELS),
        "gpus": ["h100-sxm-80gb", "2xh100-sxm-80gb", "8xh100-sxm-80gb", "2xl40s", "4xa100-sxm-80gb", "8xh20"],
        "engine": ["vllm", "sglang", "tensorrt-llm"],
        "context": [4096, 16384, 32768],
        "kv-dtype": ["auto", "fp8"],
        "concurrency": [1, 8, 32, 128],
    },
}
"""Axes of two products of more than 5,000 questions, of everyday cases."""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engine", default="local")
    options = parser.parse_args()
    print(f"{'questions':<10}{'workers':>8}{'seconds':>9}{'per second':>12}  verdicts")
    for name, axes in SWEEPS.items():
        for workers in options.workers:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "questions.toml"
                lines = [f"{axis} = {values!r}".replace("'", '"') for axis, values in axes.items()]
                file.write_text("[axes]\n" + "\n".join(lines) + "\n")
                command = [sys.executable, "-m", "vramcast", "sweep", str(file), "--out", f"{folder}/results.csv"]
                command += ["--quiet", "--workers", str(workers), "--engine", options.engine, "--lang", "en"]
                start = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds = time.perf_counter() - start
            verdict = done.stdout.rpartition(";")[0]
            count = int(verdict.split()[0].replace(",", ""))
            print(f"{name:<10}{workers:>8}{seconds:>9.1f}{count / seconds:>12.0f}  {verdict}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
