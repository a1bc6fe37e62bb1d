"""The technique table: every row can be asked again in its own words, and says what that question says."""

from functools import cache
from typing import Any

import pytest

from tests.search._options import job, read
from vramcast.domain.answer import StepTime
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.estimate.training import needed_bytes
from vramcast.search.techniques import Table, techniques

CASES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "pytorch", "seq_len": 2048, "micro_batch": 4},
    "megatron": {"engine": "megatron", "seq_len": 2048, "zero": "0", "micro_batch": 2},
    "one card": {"gpus": "a100-sxm4-80gb", "seq_len": 2048, "micro_batch": 2},
    "two machines": {"gpus": "2x8xh100-sxm-80gb", "engine": "pytorch", "seq_len": 1024},
    "deepspeed": {"engine": "deepspeed", "zero": "1", "seq_len": 2048},
}


@cache
def table(case: str) -> Table:
    return techniques(job(**CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_every_row_asked_again_by_its_own_options_gives_its_bytes(case: str) -> None:
    for row in table(case).techniques:
        options = {name.replace("_", "-"): value for name, value in CASES[case].items()}
        if "shards" in read(row.change):
            options.pop("zero", None)
        asked = options | read(row.change)
        if row.change.startswith("--engine"):
            asked.setdefault("shards", job(**CASES[case]).plan.shards)  # as the job has it, not the engine's default
            asked.pop("zero", None)
        found = needed_bytes(job(**asked))
        assert found == row.device_bytes, row.change
        assert row.fits == (found <= job(**CASES[case]).cluster.gpu.visible_bytes)


@pytest.mark.parametrize("case", ["ddp", "two machines", "megatron", "deepspeed"])
def test_more_sharding_by_one_engine_never_saves_less(case: str) -> None:
    """Another engine trains in another recipe: DeepSpeed's ZeRO 1 may take less than PyTorch's FSDP of fp32 weights."""
    by_engine: dict[str, list[int]] = {}
    for row in table(case).techniques:
        if row.name.startswith("ZeRO "):
            by_engine.setdefault(read(row.change).get("engine", CASES[case]["engine"]), []).append(row.saves_bytes)
    assert sum(map(len, by_engine.values())) >= 2
    for savings in by_engine.values():
        assert savings[0] > 0
        assert savings == sorted(savings)


@pytest.mark.parametrize("case", ["ddp", "megatron", "two machines"])
def test_what_only_another_engine_has_is_compared_on_it(case: str) -> None:
    rows = {row.name: row for row in table(case).techniques}
    assert rows["optimizer on the CPU"].against == "deepspeed"
    assert rows["optimizer on the CPU"].saves_bytes > 0


def test_one_card_has_nobody_to_share_with() -> None:
    names = {row.name for row in table("one card").techniques}
    assert not names & {"ZeRO 1", "ZeRO 2", "ZeRO 3", "FSDP", "HSDP", "tensor parallelism", "pipeline parallelism"}
    assert {"full recomputation", "8-bit optimizer", "QLoRA"} <= names


def test_hybrid_sharding_is_for_several_machines() -> None:
    assert "HSDP" in {row.name for row in table("two machines").techniques}
    assert "HSDP" not in {row.name for row in table("ddp").techniques}


def test_what_no_engine_has_is_named_with_the_reason() -> None:
    assert any("activations on the CPU: " in text for text in table("megatron").refused)


def test_recomputation_costs_between_a_sixth_and_a_half_of_the_time() -> None:
    (row,) = (row for row in table("megatron").techniques if row.name == "full recomputation")
    assert row.slowdown is not None
    assert 0.16 < row.slowdown < 0.5


def test_an_unknown_or_unchanged_time_is_not_a_slowdown_of_zero() -> None:
    def unknown(asked: Job) -> StepTime:
        raise Unsupported("no time")

    def constant(asked: Job) -> StepTime:
        return StepTime(
            step_s=1.0, tokens_per_s=1.0, tokens_per_s_per_gpu=1.0, model_flops_per_s_per_gpu=1.0, seconds={},
            sources=(), assumptions=(),
        )

    for pace in (unknown, constant):
        assert all(row.slowdown is None for row in techniques(job(**CASES["one card"]), pace=pace).techniques)


def test_every_technique_says_when_to_use_it_what_it_needs_and_what_it_costs() -> None:
    assert len({way.name for way in TECHNIQUES}) == len(TECHNIQUES)
    assert all(way.cost and way.when and way.needs for way in TECHNIQUES)
