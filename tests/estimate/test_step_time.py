"""Whole steps: parts that add up, figures that papers publish, and what must never be faster."""

import pytest
from msgspec.structs import replace

from vramcast.api import job_of
from vramcast.domain.answer import StepTime
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.estimate.step_time import step_time, timed


def job(**options: object) -> Job:
    given = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "megatron"} | options
    return job_of({name.replace("_", "-"): value for name, value in given.items()})


def timing(**options: object) -> StepTime:
    return step_time(job(**options))


TITAN = {"engine": "torchtitan", "seq_len": "8k", "micro_batch": 2, "compile": True}


def test_compiled_float8_costs_its_casts_and_eager_float8_is_slower_than_16_bits() -> None:
    whole, float8 = (timing(**TITAN, precision=name) for name in ("amp-bf16", "fp8"))
    assert float8.seconds["pointwise"] > 1.5 * whole.seconds["pointwise"]
    assert 1.2 < whole.step_s / float8.step_s < 1.45
    plain, eager = (timing(**(TITAN | {"compile": False}), precision=name) for name in ("amp-bf16", "fp8"))
    assert eager.step_s > plain.step_s


def test_what_is_not_timed_is_said_in_one_sentence() -> None:
    asked = job(engine="pytorch", objective="dpo")
    with pytest.raises(Unsupported, match="objective=dpo is not timed"):
        step_time(asked)
    found = timed(asked)
    assert found.time is None
    assert found.assumptions[0].startswith("no step time: ")
    with pytest.raises(Unsupported, match="projects queries and outputs in two steps"):
        step_time(job(model="deepseek-v4-flash", engine="pytorch"))
    unknown = replace(asked.cluster, gpu=replace(asked.cluster.gpu, bandwidth_bytes_per_s=None))
    with pytest.raises(Unsupported, match="has no bandwidth"):
        step_time(replace(job(), cluster=unknown))
