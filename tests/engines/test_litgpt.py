"""litgpt's memory: published runs, and what must hold whatever the numbers."""

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Peft, Phase, Plan, Precision, Shards, Workload
from vramcast.domain.program import extent, live_at_end
from vramcast.engines.litgpt import ranks
from vramcast.errors import Unsupported
from vramcast.units import GIB

QV = ("attention.q", "attention.v")


def job(peft: Peft | None, *, model: str = "llama-3.2-1b", batch: int = 1, gpus: str = "1xa10g") -> Job:
    count = int(gpus.split("x")[0])
    shards = Shards.EVERYTHING if count > 1 else Shards.NOTHING
    return Job(
        model=load_model(model), workload=Workload(seq_len=512, micro_batch=batch, grad_accum=4),
        plan=Plan(precision=Precision.BF16, peft=peft, shards=shards), cluster=parse_gpus(gpus), engine="litgpt",
    )


def lora(**changes: object) -> Peft:
    return replace(Peft(method="lora", rank=32, targets=QV, dropout=0.05, adapter_dtype="bf16"), **changes)


def peak(question: Job) -> float:
    phases = ranks(question)[0].phases
    return extent(tuple(node for program in phases.values() for node in program)).peak / GIB


def test_lora_of_llama_3_2_1b_is_what_was_measured() -> None:
    assert peak(job(lora())) == pytest.approx(4.182, rel=0.01)


def test_quantised_lora_of_llama_3_2_1b_is_what_was_measured() -> None:
    assert peak(job(lora(base="nf4"), batch=2)) == pytest.approx(5.15, rel=0.02)


@pytest.mark.parametrize("model", ["llama-3.2-1b", "phi-1.5", "gemma-2b", "stablelm-base-alpha-3b"])
@pytest.mark.parametrize("peft", [lora(), lora(base="nf4"), Peft(method="adapter", targets=()), None])
def test_steps_leave_what_they_found(model: str, peft: Peft | None) -> None:
    phases = ranks(job(peft, model=model))[0].phases
    assert not live_at_end(phases[Phase.STEP])


@pytest.mark.parametrize("peft", [Peft(method="ia3"), lora(targets=("router",))])
def test_methods_litgpt_lacks_are_refused(peft: Peft) -> None:
    with pytest.raises(Unsupported, match="use "):
        ranks(job(peft))


@pytest.mark.parametrize("model", ["bert-base", "t5-large", "whisper-small", "qwen2.5-vl-7b"])
def test_what_is_no_decoder_of_text_is_refused(model: str) -> None:
    with pytest.raises(Unsupported, match="decoders of text only"):
        vramcast.train(model, gpus="h100-sxm-80gb", engine="litgpt", micro_batch=1)
