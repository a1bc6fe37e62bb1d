"""Training that is aware of the quantisation to come: which layers round, and what is not modelled of it.

[QAT] pytorch/ao v0.17.0 torchao/quantization/qat/api.py `_qat_config_transform`: every `nn.Linear` of the network,
which the stacked experts of transformers 5 are not; operators/fake_quantised.py
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Job
from vramcast.domain.model import MoE
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.fake_quantised import MX, Fake
from vramcast.operators.linear import Numerics
from vramcast.units import HALF

GROUP: Final = 128
"""Elements of a weight with one scale, unasked [torchao `Int4WeightFakeQuantizeConfig`]."""

MX_BLOCK: Final = 32

ROUNDED_BASES: Final = {"torchtune": ("", "lora")}
"""Engines whose frozen weights beside adapters round, too [torchtune modules/peft/lora.py `QATLoRALinear`]."""


ROUNDED_HEAD: Final = "every chunk of torchtune's loss rounds the head's weight anew and keeps that until backward"


def fake_of(job: Job, numerics: Numerics) -> Fake | None:
    """What linear layers round what they read to; None: nothing.

    Raises: InvalidSpec for a group that widths are no multiples of; Unsupported for what is not modelled of it
    """
    kind = job.engine_options.get("qat")
    if kind is None:
        return None
    group = int(job.engine_options.get("qat_group", MX_BLOCK if kind == MX else GROUP))
    if numerics.weight != HALF or numerics.compute != HALF or numerics.residual != HALF:
        raise Unsupported("quantisation-aware training is modelled for weights and states of 16 bits; use "
                          "--precision bf16")
    method = job.plan.peft.method if job.plan.peft is not None else ""
    if method not in ROUNDED_BASES.get(job.engine, ("",)) or job.plan.compile or job.plan.tp > 1:
        raise Unsupported("quantisation-aware training is modelled where every weight learns, and of torchtune's LoRA, "
                          "without torch.compile and tensor parallelism")
    layers = job.model.main.layers
    if len(job.model.stacks) > 1 or any(isinstance(layer.channel, MoE) for layer in layers):
        raise Unsupported("quantisation-aware training is not modelled for {}, which has experts or towers",
                          job.model.name)
    if job.model.hidden % group:
        raise InvalidSpec("groups of {} elements do not divide rows of {}; use --engine-option qat_group=32", group,
                          job.model.hidden)
    return Fake(str(kind), group)


def fake_sentences(job: Job) -> tuple[str, ...]:
    """What is said of it."""
    if (kind := job.engine_options.get("qat")) is None:
        return ()
    if job.engine == "torchtune":
        found = Note("linear layers round weights and inputs as {} and back, in plain operators of torchao", kind)
        whole = job.plan.peft is None and not job.model.tied
        return (found, ROUNDED_HEAD) if whole else (found,)
    return (Note("linear layers round weights and inputs as {} and back, in plain operators of torchao 0.17; the head "
                 "does where its layer is called, which fused losses do not", kind),)
