"""Cards without bf16 tensor cores compute in fp16 with a loss scale; bf16 on them is said to be emulated."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.api import job_of
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.job import Precision
from vramcast.domain.planning import PlanAnswer
from vramcast.timing.training.rates import rates_of


@pytest.mark.parametrize(
    ("engine", "recipe"),
    [("pytorch", "amp-fp16"), ("huggingface", "amp-fp16"), ("deepspeed", "mixed-fp16"), ("megatron", "mixed-fp16"),
     ("torchtitan", "amp-bf16")],
)
def test_the_default_recipe_is_one_the_card_has(engine: str, recipe: str) -> None:
    for card, expected in (("v100-sxm2-32gb", recipe), ("a100-sxm4-40gb", recipe.replace("fp16", "bf16"))):
        job = job_of({"model": "llama-3.2-1b", "gpus": f"2x{card}", "engine": engine})
        assert job.plan.precision.value == expected


def test_fp16_is_said_where_nobody_asked_for_it() -> None:
    answer = vramcast.train("llama-3.2-1b", gpus="t4", seq_len=512)
    assert any("amp-fp16 with a loss scale" in text for text in answer.assumptions)
    assert not answer.warnings


def test_bf16_named_on_an_old_card_is_warned_of_and_slow() -> None:
    asked = {"gpus": "t4", "seq_len": 512}
    fp16 = vramcast.train("llama-3.2-1b", **asked)
    bf16 = vramcast.train("llama-3.2-1b", precision="amp-bf16", **asked)
    assert any("emulated" in text and "--precision amp-fp16" in text for text in bf16.warnings)
    assert fp16.time is not None and bf16.time is not None
    assert bf16.time.step_s > 1.5 * fp16.time.step_s
    t4 = load_gpu("t4")
    emulated, whole = rates_of(t4, Precision.BF16), rates_of(t4, Precision.FP32)
    assert emulated is not None and whole is not None
    assert emulated.products == whole.products


def test_pure_bf16_and_fp8_are_offered_only_where_the_card_has_them() -> None:
    for card, has_bf16, has_fp8 in (("t4", False, False), ("a10", True, False), ("h100", True, True)):
        found = vramcast.plan("train", "llama-3.2-1b", on=card, max_gpus=1, seq_len=2048, global_batch=8)
        assert isinstance(found, PlanAnswer)
        names = {technique.name for technique in found.techniques}
        assert ("pure bf16" in names) is has_bf16
        assert ("fp8" in names) is has_fp8
        path = [f"{decision.question} {decision.action}" for decision in found.decisions]
        assert has_bf16 or not any("bf16" in text for text in path)


def test_a_search_over_old_and_new_cards_gives_each_its_own_recipe() -> None:
    found = vramcast.plan(
        "train", "llama-3.2-1b", on=["2xv100-sxm2-32gb", "2xa100-sxm4-40gb"], engine="deepspeed", seq_len=1024,
        global_batch=16, top=50,
    )
    assert isinstance(found, PlanAnswer)
    recipes = {(plan.question["gpus"], plan.question["plan"]["precision"]) for plan in found.plans}
    assert recipes == {("2xv100-sxm2-32gb", "mixed-fp16"), ("2xa100-sxm4-40gb", "mixed-bf16")}
    assert any("v100-sxm2-32gb" in text for text in found.assumptions)


def test_bf16_asked_of_a_search_on_an_old_card_is_warned_of() -> None:
    found = vramcast.plan(
        "train", "llama-3.2-1b", on="v100-sxm2-32gb", max_gpus=1, seq_len=512, global_batch=4, precision="amp-bf16",
        top=1,
    )
    assert isinstance(found, PlanAnswer)
    assert any("emulated" in text for text in found.plans[0].warnings)
