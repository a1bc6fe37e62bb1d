"""What is offloaded must go into main memory: a plan for which there is too little does not fit."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.search._options import job
from vramcast.domain.answer import Answer
from vramcast.estimate.host_memory import PROCESS_BYTES, host_need
from vramcast.estimate.training import answer
from vramcast.report.document import document
from vramcast.report.messages import Words
from vramcast.report.text import render

PARAMETERS = 405_853_388_800
OFFLOADED = {
    "model": "llama-3.1-405b", "gpus": "aws:p4d.24xlarge", "engine": "torchtitan", "tp": 4, "cp": 2,
    "shards": "everything", "recompute": "full", "micro_batch": 1, "seq_len": 8192, "offload_optimizer": "cpu",
}


def asked(**options: Any) -> Answer:
    return answer(job(**OFFLOADED | options))


def test_too_little_main_memory_does_not_fit_and_is_the_reason_given_first() -> None:
    found = asked()
    assert found.fullest.needed_bytes <= found.capacity_bytes
    assert not found.fits
    first, *_ = render(found, Words("en")).splitlines()
    assert first.startswith("does not fit: main memory: at least 6070.04 GiB needed in each machine, 1152.00 GiB there")
    host = document(found)["host"]
    assert (host["fits"], host["disk_bytes"], host["memory_there_bytes"]) == (False, 0, 1152 << 30)
    assert host["memory_bytes"] == pytest.approx(16 * PARAMETERS + 8 * PROCESS_BYTES[0])
    assert host["memory_bytes"] == sum(part["low_bytes"] for part in host["parts"])
    assert host["memory_high_bytes"] == sum(part["high_bytes"] for part in host["parts"])


def test_a_machine_between_both_ends_may_run_out() -> None:
    plan = job("qwen3-32b", "8xa100-sxm4-80gb", engine="deepspeed", zero="3", offload_optimizer="cpu",
               offload_parameters="cpu", recompute="full", seq_len=2048, micro_batch=1)
    died = replace(plan, cluster=replace(plan.cluster, host_bytes=744 * 10**9))
    need = host_need(died)
    assert need is not None
    assert need.fits
    assert need.may_run_out
    assert "it may run out" in render(answer(died), Words("en"))
