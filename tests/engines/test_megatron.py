"""Megatron programs against measured runs and against their own laws."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from truth.rows.megatron import peaks, simumax_job
from vramcast.domain.job import Job
from vramcast.engines.megatron import ranks
from vramcast.errors import InvalidSpec
from vramcast.units import GIB


def peak(job: Job) -> int:
    return max(peaks(job, program)[0] for program in ranks(job))


@pytest.mark.parametrize(
    ("name", "measured_gib"),
    [("llama3_70b_l12_tp4_pp1_dp2_mbc8_cef", 39.07), ("llama3_405b_l4_tp8_pp1_dp1_mbc4_cef", 38.57)],
)
def test_tensor_parallel_llama_peaks_lie_within_a_third_of_a_percent(name: str, measured_gib: float) -> None:
    assert peak(simumax_job(name)) == pytest.approx(measured_gib * GIB, rel=0.0035)


def test_a_larger_micro_batch_never_needs_less() -> None:
    job = simumax_job("llama3_70b_l12_tp4_pp1_dp2_mbc8_cef")
    doubled = replace(job, workload=replace(job.workload, micro_batch=2))
    assert peak(doubled) > peak(job)


def test_every_pipeline_stage_is_a_role() -> None:
    roles = ranks(simumax_job("llama3_70b_l12_tp1_pp2_dp4_mbc8_cef"))
    assert [role.role for role in roles] == ["first stage", "last stage"]


@pytest.mark.parametrize(
    ("asked", "works"),
    [
        ({"tp": 2, "seq_len": 4097}, False),
        ({"tp": 2, "seq_len": 4097, "sequence_parallel": False}, True),
        ({"cp": 2, "seq_len": 4098}, False),
        ({"cp": 2, "tp": 2, "seq_len": 4100}, True),
        ({"cp": 2, "tp": 4, "seq_len": 4100}, False),
    ],
)
def test_positions_are_divided_evenly_or_the_plan_is_refused(asked: dict[str, Any], works: bool) -> None:
    asked = {"gpus": "8xh200-sxm-141gb", "engine": "megatron", "layers": 2} | asked
    if works:
        vramcast.train("llama-3.1-8b", **asked)
        return
    with pytest.raises(InvalidSpec, match="megatron divides positions evenly"):
        vramcast.train("llama-3.1-8b", **asked)
