"""vramcast beside its peers on serving questions, whole processes in turn: `python -m benchmarks.serve`.

Every peer gets a virtual environment of its own under `--venvs`, made on the first run; those that cannot be installed
or cannot answer are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.blocks.parameters.model import named_parameters
from vramcast.catalogue.models import load_model, read_entry
from vramcast.domain.model import Model, MoE
from vramcast.states.storage import format_of, is_expert

SCRIPTS: Final = Path(__file__).resolve().parent / "peers" / "serving"

VISIBLE_GIB: Final = 79.19
"""What an H100 80 GB shows to vLLM."""

CONTEXT: Final = 8192


class Question(NamedTuple):
    """One start-up of vLLM 0.19 on H100 whose log is public, and the size of its cache."""

    model: str
    hub: str
    tp: int
    fraction: float
    kv_gib: float  # of one card


QUESTIONS: Final = (
    Question("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", 1, 0.95, 58.11),
    Question("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", 2, 0.95, 63.76),
    Question("qwen3-8b", "Qwen/Qwen3-8B", 1, 0.95, 57.50),
    Question("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 1, 0.95, 58.53),
    Question("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite-Chat", 1, 0.95, 43.61),
    Question("gemma-3-27b", "google/gemma-3-27b-it", 1, 0.95, 19.53),
    Question("gpt-oss-20b", "openai/gpt-oss-20b", 2, 0.90, 59.32),
)
"""Measured in llm-d-planner's pull request 205 (v0.19.0, 8,192 tokens of context)."""


class Peer(NamedTuple):
    """A tool, what to install of it, and the script that asks it."""

    name: str
    packages: tuple[str, ...]
    script: str


PEERS: Final = (
    Peer("hf-mem 0.5.6", ("hf-mem==0.5.6",), "hf_mem.py"),
    Peer("llm-d-planner 0.3.3", ("llm-d-planner==0.3.3",), "llm_d.py"),
    Peer("llm-analysis 0.2.2", ("llm-analysis==0.2.2",), "llm_analysis.py"),
    Peer("aiconfigurator 0.12.0", ("aiconfigurator==0.12.0",), "aiconfigurator.py"),
)


class Run(NamedTuple):
    """One whole process: seconds, weights and cache of one card, or why there is no answer."""

    seconds: float
    weights_gib: float
    kv_gib: float
    reason: str = ""


def facts(question: Question) -> dict[str, Any]:
    """What a peer is told: the question, and what it would fetch from the hub."""
    model, entry = load_model(question.model), read_entry(question.model)
    config = entry.config | entry.config.get("text_config", {})
    channels = (run.layer.channel for run in model.main.runs)
    return question._asdict() | {
        "visible_gib": VISIBLE_GIB,
        "context": CONTEXT,
        "config": config,
        "moe": any(isinstance(channel, MoE) for channel in channels),
        "parameters_by_dtype": stored(model),
    }


def stored(model: Model) -> dict[str, int]:
    """Elements by storage dtype as headers count them: packed 4-bit experts and their scales are bytes."""
    counts = {"BF16": 0, "U8": 0}
    for owned in named_parameters(model):
        packed = model.quantisation == "mxfp4" and is_expert(owned.parameter)
        size = format_of("mxfp4").num_bytes(owned.parameter.shape) if packed else owned.parameter.elements
        counts["U8" if packed else "BF16"] += owned.repeats * size
    return {dtype: count for dtype, count in counts.items() if count}


def ours(question: Question) -> list[str]:
    """The command line of vramcast."""
    return [
        sys.executable, "-m", "vramcast", "serve", question.model, "--gpus", f"{question.tp}xh100-sxm-80gb", "--engine",
        "vllm@0.19", "--context", str(CONTEXT), "--memory-fraction", str(question.fraction), "--json",
    ]


def answered(command: list[str], *, own: bool) -> Run:
    """One process, timed and read."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    seconds = time.perf_counter() - start
    if done.returncode not in ((0, 1) if own else (0,)):
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return Run(seconds, 0.0, 0.0, lines[-1])
    if own:
        answer = json.loads(done.stdout)
        weights = sum(entry["bytes"] for entry in answer["ranks"][0]["ledger"] if entry["path"].startswith("weights/"))
        return Run(seconds, weights / 2**30, answer["capacity"]["kv_bytes"] / 2**30)
    weights_gib, kv_gib = map(float, done.stdout.split()[-2:])
    return Run(seconds, weights_gib, kv_gib)


def installed(peer: Peer, venvs: Path) -> tuple[Path | None, str]:
    """The interpreter of a peer's environment, made if need be, or why there is none."""
    folder = venvs / peer.packages[0].replace("==", "-")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *peer.packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, f"does not install: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}"
    return python, ""


def measure(command: list[str], runs: int, *, own: bool) -> Run:
    """The median time of several runs with the last answer; the first run warms the caches and is not counted."""
    found = [answered(command, own=own)]
    if found[0].reason:
        return found[0]
    found += [answered(command, own=own) for _ in range(runs)]
    return found[-1]._replace(seconds=statistics.median(run.seconds for run in found[1:]))


def table(results: dict[str, list[Run]]) -> list[str]:
    """One line a tool: time, mean and worst error of the cache, and the cache of every question."""
    heads = "".join(f"{question.model[:15] + f' tp{question.tp}':>22}" for question in QUESTIONS)
    lines = [f"{'tool':<24}{'median s':>9}{'mean':>8}{'worst':>8}{heads}"]
    lines.append(f"{'measured [GiB]':<49}" + "".join(f"{question.kv_gib:>22.2f}" for question in QUESTIONS))
    for name, runs in results.items():
        answers = [(run, question) for run, question in zip(runs, QUESTIONS, strict=True) if not run.reason]
        cells = "".join(
            f"{'-':>22}" if run.reason else f"{run.kv_gib:>12.2f} ({run.kv_gib / question.kv_gib - 1:>+6.1%})"
            for run, question in zip(runs, QUESTIONS, strict=True)
        )
        if not answers:
            lines.append(f"{name:<24}no answer: {runs[0].reason[:260]}")
            continue
        errors = [abs(run.kv_gib / question.kv_gib - 1) for run, question in answers]
        seconds = statistics.median(run.seconds for run, _ in answers)
        lines.append(f"{name:<24}{seconds:>9.3f}{statistics.mean(errors):>8.1%}{max(errors):>8.1%}{cells}")
        lines += [f"    {question.model}: {run.reason[:260]}"
                  for run, question in zip(runs, QUESTIONS, strict=True) if run.reason]
    return lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    folder = Path(tempfile.gettempdir()) / "vramcast-peers"
    parser.add_argument("--venvs", type=Path, default=folder, help="where peers are installed")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    results = {"vramcast": [measure(ours(question), options.runs, own=True) for question in QUESTIONS]}
    for peer in PEERS:
        python, reason = installed(peer, options.venvs)
        if python is None:
            results[peer.name] = [Run(0.0, 0.0, 0.0, reason)] * len(QUESTIONS)
            continue
        results[peer.name] = [
            measure([str(python), str(SCRIPTS / peer.script), json.dumps(facts(question))], options.runs, own=False)
            for question in QUESTIONS
        ]
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
