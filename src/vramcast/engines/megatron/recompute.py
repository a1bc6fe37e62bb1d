"""What --recompute-modules names, and which layers have it.

Source: Megatron-LM d98e8a64d core/transformer/transformer_config.py `__post_init__`, transformer_layer.py
`TransformerLayer.__init__`, moe/moe_layer.py `MoELayer.__init__`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vramcast.blocks.megatron_layer import owns_norm
from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import MLP, Attention, Layer, MoE, MultiLatentAttention
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

if TYPE_CHECKING:
    from vramcast.engines.megatron.options import Options

DEFAULT: Final = ("core_attn",)

Has = Callable[[Layer, "Options"], bool]


def _norms(layer: Layer, options: Options) -> bool:
    te = options.transformer_impl == "transformer_engine"
    return any(owns_norm(layer, part, te=te) for part in ("mixer", "cross", "channel"))


def _shared(layer: Layer, options: Options) -> bool:
    return isinstance(layer.channel, MoE) and layer.channel.shared_width > 0 and not options.shared_expert_overlap


MODULES: Final[dict[str, tuple[Has, str]]] = {
    "core_attn": (
        lambda layer, _: isinstance(layer.mixer, (Attention, MultiLatentAttention)), "it has no softmax attention",
    ),
    "moe_act": (
        lambda layer, options: isinstance(layer.channel, MoE) and options.grouped_gemm,
        "it has no experts in grouped products",
    ),
    "layernorm": (
        _norms, "TransformerEngine makes each of its norms within the product behind it, and keeps what that reads",
    ),
    "mla_up_proj": (lambda layer, _: isinstance(layer.mixer, MultiLatentAttention), "it has no latent attention"),
    "mlp": (lambda layer, _: isinstance(layer.channel, MLP), "it has no dense MLP"),
    "moe": (lambda layer, _: isinstance(layer.channel, MoE), "it has no experts"),
    "shared_experts": (_shared, "it has no shared experts that run by themselves"),
}
"""Name -> whether a layer has it, and why a model would not."""

OF_OTHERS: Final = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Names for mixers that are not modelled."""


def check_modules(job: Job, options: Options) -> None:
    """Raise UnknownName for a name Megatron does not have, InvalidSpec for one without effect on the job's model."""
    if job.plan.recompute is not Recompute.SELECTIVE:
        return
    layers = [run.layer for stack in job.model.stacks for run in stack.runs]
    for name in job.plan.recompute_modules:
        if name in OF_OTHERS:
            raise Unsupported(f"recompute-modules={name} is not modelled for megatron; use {', '.join(MODULES)}")
        if name not in MODULES:
            raise UnknownName.of("module to recompute", name, MODULES)
        has, why = MODULES[name]
        if not any(has(layer, options) for layer in layers):
            raise InvalidSpec(f"recompute-modules={name} changes nothing of {job.model.name}: {why}; leave it out")
