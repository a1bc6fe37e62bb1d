"""Predicted speeds beside published ones: `python -m benchmarks.speed [inference.jsonl ...]`.

`truth/speeds.csv` holds what projects publish of themselves; rows of inference files count where their notes state a
speed. Printed per group: cases, median and 95th-percentile absolute error, median signed error, worst case.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from truth.rows.serving.common import cluster_of, version_of
from vramcast.blocks.parameters.model import named_parameters
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Speed
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.weights import formats_of
from vramcast.errors import VramcastError
from vramcast.estimate.speed import timed
from vramcast.question.serving import parse_engine
from vramcast.states.storage import format_for, format_of, token_bytes
from vramcast.units import GIB, ceil_div

PUBLISHED: Final = Path(__file__).resolve().parents[1] / "truth" / "speeds.csv"

STATED: Final = re.compile(r"speed ([\d.]+) tok/s")

COUNTS_PROMPT: Final = ("qwen3_table",)
"""Tables whose tokens per second count prompt and answer: a longer prompt raises them, as no decode speed does."""

QUANTS: Final = {
    "bf16": None, "gptq-int8": "gptq-int8", "gptq-int4": "gptq-int4", "awq": "awq-int4", "awq-int4": "awq-int4",
    "fp8": "fp8-block",
}
"""`quant_dtype` of a row -> storage format."""

FULL_LOAD_FRACTION: Final = 0.9
"""Share of what weights leave free that the cache fills at full load [trtllm-bench's default]."""

LARGEST_BATCH: Final = 4096
"""Sequences in flight at full load [NVIDIA/TensorRT-LLM tensorrt_llm/bench/build/tuning.py `finetune_setting`]."""


class Case(NamedTuple):
    """One published speed and ours, in one unit."""

    group: str
    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative; for times the sign is that of the speed."""
        return self.predicted / self.measured - 1


def published(*engines: str, every: int = 1) -> Iterator[Case]:
    """The rows of speeds.csv, or those of some engines, or one of so many of them."""
    with PUBLISHED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not engines or row["engine"] in engines]
        for row in rows[::every]:
            predicted, measured = QUANTITIES[row["quantity"]](row), float(row["value"])
            name = " ".join(row[key] for key in ("gpu", "tp", "model", "weights", "batch", "input_len", "output_len"))
            yield Case(f"{row['engine']} {row['gpu'].partition('-')[0]} {row['quantity']}", name, predicted, measured)


def job_of(row: dict[str, str], *, batch: int) -> ServeJob:
    """The question behind a row of speeds.csv."""
    engine, version = parse_engine(row["timed_as"])
    prompt, answer = int(row["input_len"]), int(row["output_len"])
    return ServeJob(
        model=load_model(row["model"]),
        requests=Requests(context=prompt + answer, input_len=prompt, output_len=answer, concurrency=batch),
        plan=ServePlan(
            tp=int(row["tp"]), kv_dtype=row["kv_dtype"], weights=None if row["weights"] == "auto" else row["weights"]
        ),
        cluster=parse_gpus(f"{row['tp']}x{row['gpu']}"),
        engine=engine,
        version=version,
    )


def speed_of(row: dict[str, str], batch: int | None = None, most: int | None = None) -> Speed:
    """The speed of a row's plan."""
    job = job_of(row, batch=batch or int(row["batch"]))
    found = timed(replace(job, plan=replace(job.plan, max_sequences=most)))
    if found.speed is None:
        raise ValueError(found.assumptions)
    return found.speed


def _step_s(speed: Speed) -> float:
    assert speed.step_s is not None
    return speed.step_s


def _batch_s(row: dict[str, str], batch: int, most: int | None = None) -> float:
    """All prompts one after the other, then all answers together [s]."""
    speed = speed_of(row, batch, most)
    return batch * speed.prompt_tokens / speed.prefill_tokens_per_s + int(row["output_len"]) * _step_s(speed)


def _full_load(row: dict[str, str]) -> float:
    """Tokens per second when as many sequences run as the cache holds: each pays its prompt and its share of steps."""
    job = job_of(row, batch=1)
    model, plan = job.model, job.plan
    formats = formats_of(model, weights=plan.weights, dtype=None)
    weights = sum(
        owned.repeats
        * format_of(format_for(owned.parameter, quantised=formats.quantised, whole=formats.whole)).num_bytes(
            owned.parameter.shape
        )
        for owned in named_parameters(model)
    )
    free = FULL_LOAD_FRACTION * (plan.tp * (job.cluster.gpu.visible_bytes - 2 * GIB) - weights)
    per_token = plan.tp * sum(
        run.count * token_bytes(run.layer.mixer, tp=plan.tp, k_dtype="fp8") for run in model.main.runs
    )
    batch = max(1, min(LARGEST_BATCH, int(free / (per_token * job.context))))
    return batch * int(row["output_len"]) / _batch_s(row, batch, most=_most(batch))


def _most(batch: int) -> int:
    """Sequences that trtllm-bench lets run, for which there is a graph [finetune_setting]."""
    step = 32 if batch < 256 else 128 if batch < 1024 else 256
    return max(64, step * ceil_div(batch, step))


QUANTITIES: Final[dict[str, Callable[[dict[str, str]], float]]] = {
    "decode_tokens_per_s": lambda row: int(row["batch"]) / _step_s(speed_of(row)),
    "prefill_tokens_per_s": lambda row: speed_of(row).prefill_tokens_per_s,
    "first_token_ms": lambda row: 1000 * speed_of(row).time_to_first_token_s,
    "latency_ms": lambda row: 1000 * _batch_s(row, int(row["batch"])),
    "batch_tokens_per_s": lambda row: (
        int(row["batch"]) * int(row["output_len"]) / _batch_s(row, int(row["batch"]))
    ),
    "full_load_tokens_per_s": _full_load,
}


def stated(path: Path) -> Iterator[Case]:
    """Rows of transformers whose notes state a speed."""
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        found = STATED.search(str(row.get("notes") or ""))
        if found is None or row.get("engine") != "transformers" or not str(row["quantity"]).startswith("peak"):
            continue
        measured, prompt, answer = float(found[1]), int(row["input_len"]), int(row["output_len"])
        quant = str(row["quant_dtype"]).lower()
        try:
            speed = timed(_transformers_job(row, quant, prompt, answer)).speed
        except VramcastError:
            speed = None
        if speed is None or speed.step_s is None:
            continue
        seconds = speed.time_to_first_token_s + answer * speed.step_s
        tokens = prompt + answer if row["source_class"] in COUNTS_PROMPT else answer
        kind = "MoE" if re.search(r"-A\d+B", str(row["model"])) else quant
        yield Case(f"{row['source_class']} {kind}", f"{row['case_id']} {row['model']} {quant} {prompt}",
                   tokens / seconds, measured)


def _transformers_job(row: dict[str, Any], quant: str, prompt: int, answer: int) -> ServeJob:
    return ServeJob(
        model=load_model(str(row["model"])),
        requests=Requests(context=prompt + answer, input_len=prompt, output_len=answer),
        plan=ServePlan(pp=int(row["pp"]), weights=QUANTS[quant]),
        cluster=cluster_of(row),
        engine="transformers",
        version=version_of(row) or (4, 50),
    )


def table(cases: list[Case]) -> Iterator[str]:
    """One line a group."""
    yield f"{'group':<52}{'cases':>6}{'median':>8}{'p95':>8}{'signed':>8}  worst"
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    for name, members in sorted(groups.items()):
        errors = sorted(abs(case.error) for case in members)
        worst = max(members, key=lambda case: abs(case.error))
        p95 = errors[min(len(errors) - 1, round(0.95 * (len(errors) - 1)))]
        signed = statistics.median(case.error for case in members)
        yield (
            f"{name:<52}{len(members):>6}{statistics.median(errors):>8.1%}{p95:>8.1%}{signed:>+8.1%}  "
            f"{worst.name} ({worst.error:+.0%})"
        )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="inference rows, for the speeds that their notes state")
    parser.add_argument("--rows", action="store_true", help="every case")
    options = parser.parse_args()
    cases = [*published(), *(case for path in options.files for case in stated(path))]
    if options.rows:
        for case in cases:
            print(f"{case.group:<52}{case.name:<60}{case.predicted:>12.1f}{case.measured:>12.1f}{case.error:>+8.1%}")
    print("\n".join(table(cases)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
