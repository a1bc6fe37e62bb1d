"""The profiled step: a forward of the largest batch, then the sampler on as many sequences as run at once.

Symbols:  T batched tokens   H hidden   F feed-forward width   V vocabulary   S sequences
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import MLP, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.defaults import Settings
from vramcast.units import ceil_div

SOURCE: Final = "vllm-project/vllm v1/worker/gpu_model_runner.py `profile_run`, `_dummy_sampler_run`"

SAMPLER_BYTES: Final = (((0, 17), 12.8), ((0, 0), 38.4))
"""Version -> bytes per sequence and vocabulary entry while the sampler is profiled; from 0.17 on the logits' own width
comes on top. Fitted on start-up logs of 0.6 to 0.19, see docs/serving.md."""


def profiled_step(model: Model, settings: Settings, stage: Stage, *, tp: int, width: int = 2) -> Program:
    """The step whose peak vLLM subtracts from the cache."""
    hidden = _tensor("hidden states", settings.batched_tokens * model.hidden * width)
    forward = _forward(model, settings, stage, tp=tp, width=width)
    sampler = _sampler(model, settings, width=width) if stage.last else None
    nodes: list[Alloc | Free] = []
    if forward is not None:
        nodes += [Alloc(forward), Free(forward)]
    if sampler is not None:
        nodes += [Alloc(hidden), Alloc(sampler), Free(sampler), Free(hidden)]
    return tuple(nodes)


def _sampler(model: Model, settings: Settings, *, width: int) -> Tensor:
    factor = next(value for since, value in SAMPLER_BYTES if settings.version >= since)
    if settings.version >= (0, 17):
        factor += width
    elements = settings.max_sequences * model.vocab
    formula = f"{factor} B x {settings.max_sequences} sequences x {model.vocab}"
    return _tensor("sampler", int(factor * elements), formula)


def _forward(model: Model, settings: Settings, stage: Stage, *, tp: int, width: int) -> Tensor | None:
    sizes = [_layer_bytes(model, run.layer.channel, settings, tp=tp, width=width) for run in stage.runs(model)]
    return _tensor("layer", max(sizes)) if sizes else None


def _layer_bytes(model: Model, channel: MLP | MoE | None, settings: Settings, *, tp: int, width: int) -> int:
    tokens, h = settings.batched_tokens, model.hidden
    if isinstance(channel, MoE):
        inner = ceil_div(channel.expert.width, tp)
        return tokens * channel.top_k * (max(2 * inner, h) + inner) * width
    inner = ceil_div(channel.width, tp) if channel is not None else 0
    return int(tokens * (3 * inner + 4.25 * h) * width)


def _tensor(name: str, num_bytes: int, formula: str = "") -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="profiled step", formula=formula,
        source=SOURCE,
    )
