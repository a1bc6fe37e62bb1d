"""A search offers no plan whose offloaded states main memory is too small for."""

import pytest
from msgspec.structs import replace

from vramcast.api import job_of
from vramcast.domain.job import Recompute
from vramcast.domain.planning import Goal, Limits, PlanAnswer, Space
from vramcast.search.training.search import search


def space_of(engine: str, host_gib: int | None, *ways: str) -> Space:
    job = job_of({"model": "llama-3.1-8b", "gpus": "4xa100-sxm4-40gb", "engine": engine, "seq-len": 1024})
    cluster = replace(job.cluster, host_bytes=None if host_gib is None else host_gib << 30)
    return Space(
        model=job.model, workload=job.workload, global_batch=16, clusters=(cluster,), engines=(engine,),
        offload_optimizer=ways, recompute=(Recompute.FULL,), micro_batches=(1,), precisions=(job.plan.precision,),
    )


def found(engine: str, host_gib: int | None, *ways: str) -> PlanAnswer:
    return search(space_of(engine, host_gib, *ways), Limits(), Goal.LEAST_MEMORY, top=1)


@pytest.mark.parametrize(("engine", "enough"), [("megatron", 131), ("deepspeed", 146)])
def test_plans_are_offloaded_only_where_main_memory_holds_them(engine: str, enough: int) -> None:
    # 8.03e9 x 16 bytes (Megatron) or 18 (ZeRO-3) and 3 GB for each of four processes, rounded up to whole GiB
    for host_gib, offloaded in ((None, True), (enough, True), (enough - 1, False)):
        answer = found(engine, host_gib, "none", "cpu")
        assert ("--offload-optimizer cpu" in answer.labels[0]) is offloaded
        assert any(f"{enough - 1}.00 GiB there" in text for text in answer.warnings) is not offloaded


def test_what_adapters_offload_is_counted_in_the_engine_s_own_precision() -> None:
    job = job_of({"model": "llama-3.2-1b", "gpus": "a2", "engine": "deepspeed", "peft": "lora", "seq-len": 512})
    space = replace(space_of("deepspeed", 64, "cpu"), model=job.model, precisions=(None,))
    space = replace(space, plan=replace(space.plan, peft=job.plan.peft))
    assert search(space, Limits(), Goal.LEAST_MEMORY, top=1).plans
