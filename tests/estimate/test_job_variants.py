"""Options between two jobs: what they say turns the one into the other."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields

from tests.search._options import job, read
from vramcast.domain.job import Peft, Plan, Workload
from vramcast.estimate.changes import single_changes
from vramcast.estimate.training import need, needed_bytes
from vramcast.estimate.variants import PEFT_OPTIONS, on_engine, options_between, with_plan
from vramcast.question.options import OPTIONS

DERIVED = {"trainable_parameters"}


def test_every_field_of_a_plan_is_an_option_of_the_same_name() -> None:
    named = {field.name.replace("_", "-") for noun in (Plan, Workload) for field in fields(noun)}
    assert named <= set(OPTIONS)
    adapters = {PEFT_OPTIONS.get(field.name, field.name.replace("_", "-")) for field in fields(Peft)}
    assert adapters - {name.replace("_", "-") for name in DERIVED} <= set(OPTIONS)


@pytest.mark.parametrize(
    "changes",
    [
        {"tp": 2}, {"recompute": "full"}, {"compile": True}, {"shards": "everything"}, {"loss": "fused_linear"},
        {"peft": "lora", "lora_rank": 4, "base_weights": "nf4"}, {"seq_len": 512, "micro_batch": 3},
        {"sequence_parallel": False, "tp": 2}, {"recompute": "selective", "recompute_modules": "mlp,core_attn"},
    ],
)
def test_the_options_between_two_jobs_are_those_that_were_changed(changes: dict[str, Any]) -> None:
    before, after = job(engine="megatron"), job(engine="megatron", **changes)
    assert job(**{"engine": "megatron"} | read(options_between(before, after))) == after


def test_another_engine_trains_in_its_own_recipe() -> None:
    before = job(engine="pytorch")
    after = on_engine(before, "deepspeed")
    assert options_between(before, after) == "--engine deepspeed --shards optimizer"
    assert job(engine="deepspeed", shards="optimizer") == after
    alone = job(gpus="a100-sxm4-80gb", engine="pytorch")
    assert options_between(alone, on_engine(alone, "deepspeed")) == "--engine deepspeed"
    assert on_engine(before, "pytorch") is before
    assert options_between(before, before) == ""


@pytest.mark.parametrize("engine", ["pytorch", "deepspeed", "megatron"])
def test_every_change_offered_to_a_failing_plan_leads_to_its_bytes(engine: str) -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "4xa100-sxm4-40gb", "engine": engine, "micro_batch": 4, "seq_len": 4096}
    least = {"zero": "1" if engine == "deepspeed" else "0"}
    failing = with_plan(job(**asked, **least))
    found = single_changes(failing, needed_bytes(failing), measure=need)
    assert found
    assert [change.fits for change in found] == sorted((change.fits for change in found), reverse=True)
    for change in found:
        options = least | asked | read(change.change)
        if "shards" in options:
            options.pop("zero")
        again = job(**options)
        assert needed_bytes(again) == change.device_bytes, change.change
        assert change.fits == (change.device_bytes <= again.cluster.gpu.visible_bytes)
