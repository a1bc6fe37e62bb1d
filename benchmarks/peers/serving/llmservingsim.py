"""Traffic that LLMServingSim was validated on: `python -m benchmarks.peers.serving.llmservingsim CHECKOUT`.

Its repository [sim] holds runs of vLLM 0.19 on four machines, request by request, and what it says of them itself with
layers that were profiled on the same cards. Ours is told the requests and the server's arguments, and nothing of the
card but its data sheet. Printed per machine and latency: measured, both errors, of the mean and of the 99th percentile;
then the median of their sizes.

[sim] casys-kaist/LLMServingSim @5daddb2 (MIT) bench/examples/CARD/MODEL/{vllm/requests.jsonl, vllm/meta.json,
validation/summary.txt}; `validation/summary.txt` is made by its bench/core/validate.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.score import percentile
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.serving import Requests, ServeJob, ServePlan, Traffic
from vramcast.estimate.serving import deploy
from vramcast.estimate.traffic import latencies_of, setting_of
from vramcast.question.serving import parse_engine

CARDS: Final = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000-bw-se"}
"""Folder -> card; that of RTXPRO6000 names 1,597 GB/s, which are the Server Edition's."""

LONGEST: Final = 32768
"""Context where neither the server nor the network says one."""

LATENCIES: Final = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}


class Case(NamedTuple):
    """One figure of one run [ms]."""

    run: str
    name: str  # "TTFT Mean"
    measured: float
    ours: float
    theirs: float

    @property
    def errors(self) -> tuple[float, float]:
        return self.ours / self.measured - 1, self.theirs / self.measured - 1


def asked(folder: Path) -> ServeJob:
    """The question behind a run: its server's arguments and its requests."""
    meta: dict[str, Any] = json.loads((folder / "vllm" / "meta.json").read_text(encoding="utf-8"))
    arguments = meta["engine_kwargs"]
    tp, dp = arguments["tensor_parallel_size"], arguments["data_parallel_size"]
    engine, version = parse_engine(f"vllm@{meta['vllm_version']}")
    model = load_model(meta["model"])
    arrivals = tuple((row["arrival_time"], row["input_toks"], row["output_toks"]) for row in requests_of(folder))
    begun = arrivals[0][0]
    return ServeJob(
        model=model, requests=Requests(context=arguments["max_model_len"] or model.context or LONGEST),
        plan=ServePlan(
            tp=tp, dp=dp, expert_parallel=arguments["enable_expert_parallel"],
            max_sequences=arguments["max_num_seqs"], batched_tokens=arguments["max_num_batched_tokens"],
        ),
        cluster=parse_gpus(f"{tp * dp}x{CARDS[folder.parent.name]}"), engine=engine, version=version,
        traffic=Traffic(arrivals=tuple((at - begun, *sizes) for at, *sizes in arrivals)),  # type: ignore[misc]
    )


def requests_of(folder: Path) -> list[dict[str, Any]]:
    """In the order in which they came."""
    lines = (folder / "vllm" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda row: float(row["arrival_time"]))


def cases(folder: Path) -> Iterator[Case]:
    """All figures of a run that both tell."""
    job = asked(folder)
    found = latencies_of(setting_of(job, deploy(job)))
    for line in (folder / "validation" / "summary.txt").read_text(encoding="utf-8").splitlines():
        kind, _, rest = line.partition(" ")
        words = rest.split()
        if kind not in LATENCIES or words[0] not in ("Mean", "P99"):
            continue
        own = found[LATENCIES[kind]]
        ours = statistics.mean(own) if words[0] == "Mean" else percentile(sorted(own), 0.99)
        yield Case("/".join(folder.parts[-2:]), f"{kind} {words[0]}", float(words[1]), 1000 * ours, float(words[2]))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.serving.llmservingsim", description=__doc__)
    parser.add_argument("checkout", type=Path)
    folders = sorted((parser.parse_args().checkout / "bench" / "examples").glob("*/*/"))
    found = [case for folder in folders for case in cases(folder)]
    print(f"{'run, latency':<60}{'measured':>12}{'ours':>9}{'theirs':>9}")
    for case in found:
        ours, theirs = case.errors
        print(f"{case.run + ' ' + case.name:<60}{case.measured:>9.1f} ms{ours:>+9.1%}{theirs:>+9.1%}")
    for number, whose in enumerate(("ours", "LLMServingSim")):
        sizes = [abs(case.errors[number]) for case in found]
        print(f"{whose}: median {statistics.median(sizes):.1%}, mean {statistics.mean(sizes):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
