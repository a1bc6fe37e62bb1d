"""The Hugging Face Trainer and Unsloth-style engines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.engines.test_pytorch import job
from tests.peaks import live_at_peak
from vramcast.domain.job import Job, Peft, Phase, Precision, Recompute, Shards
from vramcast.domain.program import Category, extent
from vramcast.engines import deepspeed, huggingface, pytorch, unsloth
from vramcast.errors import UnknownName, Unsupported
from vramcast.operators.lora import ADAPTERS


def lora(**changes: object) -> Job:
    """A LoRA fine-tune under autocast."""
    return job(precision=Precision.AMP_BF16, recompute=Recompute.FULL, peft=Peft(rank=8), **changes)


def test_a_frozen_base_is_loaded_in_16_bits() -> None:
    assert extent(huggingface.ranks(lora())[0].phases[Phase.LOAD]).net == pytest.approx(2 * 1_235_814_400, rel=0.01)


def test_autocast_returns_the_logits_once_more_in_fp32() -> None:
    names = {t.name for phase in huggingface.ranks(lora())[0].phases.values() for t in live_at_peak(phase)}
    found = huggingface.ranks(lora())[0].phases[Phase.STEP]
    assert extent(found).net == 0
    assert names


def test_sharded_jobs_go_to_deepspeed() -> None:
    asked = job(gpus=4, shards=Shards.EVERYTHING, precision=Precision.MIXED_BF16)
    mine, theirs = huggingface.ranks(asked)[0].phases, deepspeed.ranks(asked)[0].phases
    assert extent(mine[Phase.LOAD]) == extent(theirs[Phase.LOAD])


def test_trained_copies_of_embedding_and_head_stand_beside_the_originals() -> None:
    plain = extent(huggingface.ranks(lora())[0].phases[Phase.LOAD]).net
    asked = lora()
    assert asked.plan.peft is not None
    saving = replace(asked.plan, peft=replace(asked.plan.peft, modules_to_save=("embedding",)))
    more = extent(huggingface.ranks(replace(asked, plan=saving))[0].phases[Phase.LOAD]).net
    assert more - plain == 2 * 128_256 * 2048


@pytest.mark.parametrize("method", [*ADAPTERS, "prefix", "prompt", "ln"])
def test_every_peft_method_runs_through_and_cancels_out(method: str) -> None:
    asked = job(peft=Peft(method=method, rank=8, virtual_tokens=20, trainable_parameters=3_000_000))
    phases = pytorch.ranks(asked)[0].phases
    assert extent(phases[Phase.STEP]).net == 0


def test_an_unknown_peft_method_names_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="lora"):
        pytorch.ranks(job(peft=Peft(method="lorra")))


def test_unsloth_never_makes_the_whole_logits() -> None:
    phases = unsloth.ranks(lora())[0].phases
    assert extent(phases[Phase.STEP]).net == 0
    assert extent(phases[Phase.STEP]).peak < extent(huggingface.ranks(lora())[0].phases[Phase.STEP]).peak


def test_unsloth_on_several_gpus_is_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="use --engine huggingface"):
        unsloth.ranks(lora(gpus=2))


def test_adapters_have_gradients_and_the_base_has_none() -> None:
    live = live_at_peak(huggingface.ranks(lora())[0].phases[Phase.STEP])
    gradients = [t for t in live if t.category is Category.GRADIENTS]
    assert all("lora" in tensor.name for tensor in gradients)
