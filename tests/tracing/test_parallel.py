"""Modules shared among the ranks of a job that is not there."""

import pytest

from vramcast.domain.program import Category
from vramcast.estimate.ranks import communicator_bytes
from vramcast.question.tracing import build_trace
from vramcast.tracing.run import trace_job

PARAMETERS = 8 * (1024 * 4096 * 2 + 4096 + 1024)


def sizes(parallel: str, ranks: int = 8, rank: int = 0) -> dict[str, int]:
    options = {"input": ("64x1024",), "parallel": parallel, "world-size": ranks, "rank": rank, "gpu": "a100-sxm4-80gb"}
    answer = trace_job(build_trace("tests.tracing._modules:Stack", options, arguments=["width=1024", "depth=8"])).answer
    found: dict[str, int] = {}
    for entry in answer.fullest.ledger:
        found[entry.category] = found.get(entry.category, 0) + entry.num_bytes
    assert sum(found.values()) == answer.peak.device_bytes
    assert answer.fullest.count == ranks
    return found


@pytest.mark.parametrize(("parallel", "share"), [("ddp", 1), ("fsdp", 8), ("fsdp2", 8)])
def test_each_rank_holds_its_share_of_the_states(parallel: str, share: int) -> None:
    assert sizes(parallel)[Category.OPTIMIZER] == pytest.approx(8 * PARAMETERS / share, rel=0.02)


def test_every_rank_of_fsdp_needs_the_same() -> None:
    assert sizes("fsdp2", rank=0) == sizes("fsdp2", rank=5)


def test_a_communicator_takes_memory_beside_the_allocator_once() -> None:
    options = {"input": ("64x1024",), "parallel": "ddp", "world-size": 8, "gpu": "a100-sxm4-80gb"}
    job = build_trace("tests.tracing._modules:Stack", options, arguments=["width=1024", "depth=2"])
    entries = [entry for entry in trace_job(job).answer.fullest.ledger if "NCCL" in entry.path]
    assert [entry.num_bytes for entry in entries] == [communicator_bytes(job.gpu)]
