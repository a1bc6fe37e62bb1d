"""The widest moment of a serving forward: a layer's up projections beside the residual stream, then the logits.

Symbols:  T tokens of the step   H hidden   F feed-forward width of one rank   k experts a token   V vocabulary
Engines hold the same tensors there; what differs (workspaces, samplers) is their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.model import MLP, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.units import ceil_div

HIDDEN_COPIES: Final = 4
"""Tensors of T x H alive beside them: residuals before and after, attention output, normed states."""


def widest_moment(
    model: Model, stage: Stage, *, tokens: int, tp: int, experts_divided: int, width: int, source: str
) -> Iterator[Tensor]:
    """Tensors alive in the widest layer of a step.

    Args:
        model: the network
        stage: layers of the rank
        tokens: of the step, T
        tp: ranks that share a layer's matrices
        experts_divided: ranks that share one expert's matrices
        width: of an activation [bytes]
        source: where the engine's forward is written
    """
    h = model.hidden
    yield _tensor("hidden states", HIDDEN_COPIES * tokens * h * width, f"{HIDDEN_COPIES} x {tokens:,} x {h:,}", source)
    dense = max((_dense(run.layer.channel, tp) for run in stage.runs(model)), default=0)
    yield _tensor("mlp.gate_up and product", 3 * tokens * dense * width, f"3 x {tokens:,} x {dense:,}", source)
    routed = max((_routed(run.layer.channel, h, experts_divided) for run in stage.runs(model)), default=0)
    yield _tensor("experts", tokens * routed * width, f"{tokens:,} x {routed:,}", source)


def _dense(channel: MLP | MoE | None, tp: int) -> int:
    if isinstance(channel, MoE):
        return ceil_div(channel.shared_width, tp)
    return ceil_div(channel.width, tp) if channel is not None else 0


def _routed(channel: MLP | MoE | None, hidden: int, divided: int) -> int:
    """Elements a token has in the experts' tensors: up projections or outputs, products, and the sum."""
    if not isinstance(channel, MoE):
        return 0
    inner, h = ceil_div(channel.expert.width, divided), channel.latent_width or hidden
    return channel.top_k * (max(2 * inner, h) + inner) + h


def logits(model: Model, *, sequences: int, width: int, source: str) -> Iterator[Tensor]:
    """Logits of one position of every sequence, in the model's width and in fp32."""
    elements = sequences * model.vocab
    per = f"{sequences:,} sequences x {model.vocab:,}"
    yield _tensor("logits", elements * width, f"{per} x {width} B", source)
    yield _tensor("logits in fp32", elements * 4, f"{per} x 4 B", source)


def transient(*tensors: Tensor) -> Program:
    """Tensors that live together and die together."""
    return (*map(Alloc, tensors), *map(Free, tensors))


def _tensor(name: str, num_bytes: int, formula: str, source: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="step", formula=formula, source=source
    )
