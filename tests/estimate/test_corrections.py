"""A calibration changes what it holds for, by what was measured, and nothing else."""

from typing import Any

import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.calibration import Calibration, Correction, Plan
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.table import SERVING
from vramcast.estimate.corrections import applicable, plan_facts
from vramcast.estimate.serving import answer
from vramcast.units import GIB


def job_of(engine: str = "vllm", **plan: Any) -> ServeJob:
    return ServeJob(
        model=load_model("llama-3.1-8b"),
        requests=Requests(context=8192),
        plan=ServePlan(**plan),
        cluster=parse_gpus(f"{plan.get('tp', 1)}xh100-sxm-80gb"),
        engine=engine,
        version=SERVING[engine].default,
    )


def calibration_of(job: ServeJob, **ratios: float) -> Calibration:
    unit = 1 << 20
    return Calibration(
        engine=job.engine, oldest=job.version, newest=job.version, gpu=job.cluster.gpu.name, plan=plan_facts(job),
        corrections={
            name.replace("_", " "): Correction(measured_bytes=round(ratio * unit), predicted_bytes=unit)
            for name, ratio in ratios.items()
        },
        source="run.toml",
    )


@pytest.mark.parametrize(("change", "words"), [
    ({"engine": "sglang"}, "measured with sglang, not vllm"),
    ({"gpu": "l40s"}, "measured on l40s, not h100-sxm-80gb"),
    ({"oldest": (0, 11), "newest": (0, 12)}, "holds for vllm 0.11 to 0.12, not 0.19"),
])
def test_a_calibration_of_another_engine_card_or_version_is_ignored_with_a_warning(
    change: dict[str, Any], words: str
) -> None:
    job = job_of()
    other = replace(calibration_of(job, weights=2.0), **change)
    found = answer(replace(job, calibration=other))
    assert found.ranks == answer(job).ranks
    assert any("calibration run.toml is ignored" in text and words in text for text in found.warnings)


@pytest.mark.parametrize(("plan", "kept"), [
    (Plan(model="llama-3.1-8b"), {"weights", "activations", "communication"}),
    (Plan(model="qwen3-8b"), {"communication"}),
    (Plan(model="llama-3.1-8b", tp=2), set()),
    (Plan(model="llama-3.1-8b", weights="fp8"), {"communication"}),
])
def test_only_what_belongs_to_the_same_plan_carries_over(plan: Plan, kept: set[str]) -> None:
    job = job_of()
    calibration = replace(calibration_of(job, weights=1.1, activations=1.1, communication=1.1), plan=plan)
    held, warnings = applicable(replace(job, calibration=calibration))
    assert (set(held.calibration.corrections) if held.calibration else set()) == kept
    assert len(warnings) == 3 - len(kept)


def test_a_correction_that_an_engine_has_no_use_for_is_said() -> None:
    job = job_of(graphs=False)
    found = answer(replace(job, calibration=calibration_of(job, encoder_cache=2.0)))
    assert any("is not corrected for encoder cache" in text for text in found.warnings)


def test_graphs_that_grow_lower_the_safe_fraction() -> None:
    job = job_of()
    plain, found = answer(job).capacity, answer(replace(job, calibration=calibration_of(job, cuda_graphs=6.0))).capacity
    assert plain is not None and found is not None
    assert plain.safe_fraction is not None and found.safe_fraction is not None
    assert found.safe_fraction < plain.safe_fraction
    assert plain.kv_bytes - found.kv_bytes < GIB
