"""Predicted step times beside published ones: `python -m benchmarks.step_time [TRUTH_FOLDER] [--rows]`.

`truth/step_times.csv` holds what papers and documents publish; of a folder with truth rows, those that state a step
time count, with the estimate of the tool that published them beside ours. Printed per table: cases, median and
95th-percentile absolute error, share underestimated, Spearman's rank correlation of throughput, worst case.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from truth.rows.huggingface import SECONDS, qwen_job
from truth.rows.megatron import timed_job
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Network
from vramcast.domain.job import Job
from vramcast.domain.model import Checkpoint, Model
from vramcast.errors import VramcastError
from vramcast.estimate.step_time import model_flops, step_time
from vramcast.families.table import model_from_config
from vramcast.question.build import build_job
from vramcast.question.options import OPTIONS, Kind

FOLDER: Final = Path(__file__).resolve().parents[1] / "truth"

FITTED: Final = frozenset({
    "mpt-a100-40gb", "mpt-h100", "kempnerforge-h200", "bridge-llama-h100", "bridge-llama-gb300", "megatron-b200",
    "qwen-lora",
})
"""Tables whose errors were looked at while constants were chosen; all others are held out."""


class Case(NamedTuple):
    """One published step time and ours [s]."""

    table: str
    name: str
    predicted: float
    measured: float
    tokens: float  # of the step, for the ranking by throughput
    peer: float | None = None  # the estimate of the tool that published the row

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1


def published() -> Iterator[Case]:
    """The rows of step_times.csv."""
    with (FOLDER / "step_times.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            job = job_of(row)
            name = f"{row['model']} {row['gpus']} {row['options']}"
            measured = SECONDS_OF[row["quantity"]](float(row["value"]), job)
            yield Case(row["table"], name, step_time(job).step_s, measured, tokens_of(job))


def job_of(row: dict[str, str]) -> Job:
    """The question behind a row."""
    given: dict[str, Any] = {"model": row["model"], "gpus": row["gpus"]}
    for word in row["options"].split():
        name, _, value = word.partition("=")
        kind = OPTIONS[name].kind
        given[name] = value == "true" if kind is Kind.FLAG else tuple(value.split(",")) if kind is Kind.NAMES else value
    job = build_job(given, resolve=lambda text: Checkpoint(model=network(text)))
    if not row["network_gbps"]:
        return job
    rate = Network(bytes_per_s=int(float(row["network_gbps"]) * 1e9 / 8), rdma="InfiniBand", source=row["source"])
    return replace(job, cluster=replace(job.cluster, network=rate))


@cache
def network(name: str) -> Model:
    """A model of step_models.toml, or of the catalogue."""
    configs = tomllib.loads((FOLDER / "step_models.toml").read_text())
    return model_from_config(configs[name], name=name) if name in configs else load_model(name)


def tokens_of(job: Job) -> float:
    """Tokens of one optimizer step."""
    return float(job.workload.tokens * job.workload.grad_accum * job.data_parallel)


def _with_recomputation(tflops: float, job: Job) -> float:
    """Narayanan et al., equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh) operations, one forward repeated."""
    model, s = job.model, job.workload.seq_len
    layers, h = model.num_layers, model.hidden
    flops = 96 * tokens_of(job) * layers * h * h * (1 + s / (6 * h) + model.vocab / (16 * layers * h))
    return flops / (tflops * 1e12 * job.cluster.count)


def _model_tflops(tflops: float, job: Job) -> float:
    """Six operations a weight and token, and attention under its causal mask."""
    return model_flops(job) * tokens_of(job) / (tflops * 1e12 * job.cluster.count)


SECONDS_OF: Final[dict[str, Callable[[float, Job], float]]] = {
    "step_s": lambda value, job: value,
    "tokens_per_s": lambda value, job: tokens_of(job) / value,
    "tokens_per_s_per_gpu": lambda value, job: tokens_of(job) / value / job.cluster.count,
    "tflops_with_recomputation": _with_recomputation,
    "model_tflops": _model_tflops,
}
"""Quantity of a row -> seconds of the step."""


def stated(folder: Path) -> Iterator[Case]:
    """Truth rows that state a step time: SimuMax's B200 runs and Qwen's fine-tuning table."""
    for row in _rows(folder / "megatron_b200.jsonl"):
        job = timed_job(row["model"])
        yield Case("megatron-b200", row["model"], step_time(job).step_s, row["step_ms_measured"] / 1e3,
                   tokens_of(job), row["step_ms_estimate"] / 1e3)
    for row in _rows(folder / "training.jsonl"):
        found = SECONDS.search(str(row.get("measured_raw") or ""))
        if row["group"] != "qwen_readme" or found is None:
            continue
        job = qwen_job(row)
        kind = "q-lora" if "Q-LoRA" in row["peft"] else "full" if row["peft"] == "none" else "lora"
        name = f"{row['model']} {row['n_gpus']} GPUs {row['seq_len']} {row['peft']}"
        try:
            yield Case(f"qwen-{kind}", name, step_time(job).step_s, float(found[1]), tokens_of(job))
        except VramcastError as reason:
            print(f"refused: {name}: {reason}")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def spearman(left: list[float], right: list[float]) -> float | None:
    """Rank correlation, equal values sharing their mean rank; None for fewer than three or for equal values."""
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return statistics.correlation(_ranks(left), _ranks(right))


def _ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def table(cases: list[Case]) -> Iterator[str]:
    """One line a table."""
    yield f"{'table':<24}{'':<8}{'cases':>6}{'median':>8}{'p95':>8}{'under':>7}{'rank':>7}  worst"
    for name, members in sorted(_by_table(cases).items()):
        yield _line(name, "seen" if name in FITTED else "", members)
        peers = [case._replace(predicted=case.peer) for case in members if case.peer is not None]
        if peers:
            yield _line("  its own tool", "", peers)


def _line(name: str, mark: str, members: list[Case]) -> str:
    found = summary(members)
    rank = "" if found.rank is None else f"{found.rank:.2f}"
    return (
        f"{name:<24}{mark:<8}{len(members):>6}{found.median:>8.1%}{found.p95:>8.1%}{found.under:>7.0%}{rank:>7}  "
        f"{found.worst.error:+.0%} {found.worst.name[:70]}"
    )


class Summary(NamedTuple):
    """Errors of one table."""

    median: float
    p95: float
    under: float  # share underestimated
    rank: float | None  # Spearman's correlation of throughput; None for fewer than three rows
    worst: Case


def summary(members: list[Case]) -> Summary:
    """Errors of the rows of one table."""
    errors = sorted(abs(case.error) for case in members)
    rank = spearman(
        [case.tokens / case.predicted for case in members], [case.tokens / case.measured for case in members]
    )
    return Summary(
        statistics.median(errors), errors[min(len(errors) - 1, round(0.95 * (len(errors) - 1)))],
        sum(case.error < 0 for case in members) / len(members), rank,
        max(members, key=lambda case: abs(case.error)),
    )


def markdown(cases: list[Case]) -> Iterator[str]:
    """The same for a document."""
    yield "| table | cases | median error | 95 % below | underestimated | rank correlation | |"
    yield "|---|---|---|---|---|---|---|"
    for name, members in sorted(_by_table(cases).items()):
        found = summary(members)
        rank = "" if found.rank is None else f"{found.rank:.2f}"
        mark = "constants chosen on it" if name in FITTED else ""
        errors = f"{found.median:.1%} | {found.p95:.1%} | {found.under:.0%}"
        yield f"| {name} | {len(members)} | {errors} | {rank} | {mark} |"
        peers = [case._replace(predicted=case.peer) for case in members if case.peer is not None]
        if peers:
            other = summary(peers)
            yield (f"| &nbsp;&nbsp;SimuMax on the same rows | {len(peers)} | {other.median:.1%} | {other.p95:.1%} | "
                   f"{other.under:.0%} | {other.rank or 0:.2f} | |")


def _by_table(cases: list[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.table, []).append(case)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="folder with megatron_b200.jsonl and training.jsonl")
    parser.add_argument("--rows", action="store_true", help="every row")
    options = parser.parse_args()
    cases = [*published(), *(stated(options.folder) if options.folder else ())]
    if options.rows:
        for case in cases:
            print(f"{case.table:<24}{case.error:+7.1%}{case.predicted:>10.3f}{case.measured:>10.3f}  {case.name}")
    print("\n".join(table(cases)))


if __name__ == "__main__":
    main()
