"""Adapters of Megatron-Bridge, NeMo and mcore-bridge: which linears of Megatron's layers have one.

[Bridge] NVIDIA-NeMo/Megatron-Bridge at 067f987d src/megatron/bridge/peft/lora.py `LoRA.transform`: all weights are
frozen, adapters are of the model's 16 bits and in the buffers of the distributed optimizer. So are mcore-bridge's
[swift megatron/utils/megatron_lm_utils.py `wrap_model`: Float16Module casts whatever PEFT made].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.blocks.parameters.targets import matrices, parts_of
from vramcast.domain.job import Job, Peft, Precision
from vramcast.errors import Unsupported
from vramcast.operators.megatron_lora import Lora
from vramcast.parallel.layout import Layout

QUERIES: Final = ("attention.q", "attention.k", "attention.v")

PRODUCTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "attention.qkv": ("linear_qkv", QUERIES),
    "attention.q": ("linear_q_proj", ("attention.q",)),
    "attention.q_down": ("linear_q_down_proj", ("attention.q_a",)),
    "attention.q_up": ("linear_q_up_proj", ("attention.q_b",)),
    "attention.kv_down": ("linear_kv_down_proj", ("attention.kv_a",)),
    "attention.kv_up": ("linear_kv_up_proj", ("attention.kv_b",)),
    "attention.out": ("linear_proj", ("attention.out",)),
    "mlp.up": ("linear_fc1", ("mlp.gate", "mlp.up")),
    "mlp.down": ("linear_fc2", ("mlp.down",)),
    "experts.up": ("linear_fc1 of the experts", ("moe.experts.gate", "moe.experts.up")),
    "experts.down": ("linear_fc2 of the experts", ("moe.experts.down",)),
    "shared_expert.up": ("linear_fc1 of the shared experts", ("moe.shared.gate", "moe.shared.up")),
    "shared_expert.down": ("linear_fc2 of the shared experts", ("moe.shared.down",)),
    "mamba.in": ("in_proj", ("mamba.in",)),
    "mamba.out": ("out_proj", ("mamba.out",)),
}
"""Product on the tape -> Megatron's module, and the weights that it makes at once."""


def check_adapters(job: Job, fsdp: bool) -> None:
    """Raise Unsupported for adapters that Megatron-Bridge does not make, or that are not modelled."""
    plan, peft = job.plan, job.plan.peft
    assert peft is not None
    if peft.method != "lora":
        raise Unsupported(
            f"--peft {peft.method} is not modelled for megatron, which has lora here; use --engine huggingface or "
            "unsloth"
        )
    if peft.base != "full":
        raise Unsupported(
            f"Megatron's frozen weights are not packed, as --base-weights {peft.base} asks; use --engine "
            "huggingface or unsloth"
        )
    if peft.modules_to_save or peft.trainable_parameters:
        raise Unsupported(
            "modules trained whole beside adapters are not modelled for megatron; use --engine huggingface or unsloth"
        )
    if plan.precision is Precision.FP8 or fsdp or plan.shards == "everything":
        raise Unsupported(
            "adapters are modelled for megatron in 16 bits, with a distributed optimizer or without; leave out fp8 and "
            "Megatron's FSDP"
        )
    if len(job.model.stacks) > 1 or not job.model.main.causal:
        raise Unsupported(
            f"{job.model.name}: adapters are modelled for Megatron's decoders; use --engine huggingface or unsloth"
        )
    if any("layers." in target for target in peft.targets):
        raise Unsupported(
            "adapters in some of the layers are not modelled for megatron; use --engine huggingface or unsloth"
        )


def lora_of(job: Job, layout: Layout, of_mcore_bridge: bool) -> Lora | None:
    """The adapters of a job.

    Raises: Unsupported for a part of a product that Megatron makes at once, and for what mcore-bridge refuses
    """
    peft = job.plan.peft
    if peft is None:
        return None
    products = frozenset(_products(job, peft))
    if of_mcore_bridge and layout.etp > 1 and any(name.startswith("experts.") for name in products):
        raise Unsupported("mcore-bridge has no adapters of experts that ranks divide; use --etp 1")
    return Lora(peft.rank, products, peft.dropout, layout.tp, layout.etp, of_mcore_bridge)


def _products(job: Job, peft: Peft) -> list[str]:
    main = job.model.main
    has = {path for run in main.runs for path in matrices(run.layer, main.hidden)}
    wanted = {part for target in peft.targets for part in parts_of(target.removeprefix(f"{main.name}."))}
    found, covered = [], set[str]()
    for product, (module, parts) in PRODUCTS.items():
        there = has.intersection(parts)
        if product == "attention.q" and "attention.k" in has:
            continue
        if not there & wanted or (product == "attention.qkv" and "attention.k" not in has):
            continue
        if missing := sorted(there - wanted):
            raise Unsupported(
                f"Megatron's LoRA corrects {module} as a whole; add {', '.join(missing)} to --lora-targets"
            )
        found.append(product)
        covered |= there
    if others := sorted(wanted - covered):
        raise Unsupported(f"adapters on {', '.join(others)} are not modelled for megatron; leave them out")
    return found
