"""One llama.cpp context: weights, cache, compute buffers and what CUDA adds, per card."""

from __future__ import annotations

from functools import partial
from typing import Final

from vramcast.domain.job import Phase
from vramcast.domain.program import Category, Tensor
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.llamacpp.cache import DeviceCache
from vramcast.engines.llamacpp.context import Context, card_bytes, host_bytes, weight_bytes, weights_on
from vramcast.engines.llamacpp.fitting import context_that_fits, layers_that_fit, longest_context
from vramcast.engines.llamacpp.settings import Settings
from vramcast.engines.serving.corrected import corrected_tensor
from vramcast.units import MIB, format_bytes

SOURCE: Final = "ggml-org/llama.cpp src/llama-model.cpp `load_tensors`"
CACHE_SOURCE: Final = "ggml-org/llama.cpp src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp"
COMPUTE_SOURCE: Final = "ggml-org/ggml src/ggml-alloc.c over the graph of src/llama-graph.cpp"

DRIVER_BYTES: Final = 500 * MIB
"""CUDA context of a card whose generation was not measured."""

FIT_MARGIN: Final = 1024 * MIB
"""What --fit leaves free on each card [common/common.h `fit_params_target`]."""


def deploy(job: ServeJob) -> Deployment:
    """The cards of a llama.cpp deployment and what is left to the host."""
    context = Context(job)
    ranks = tuple(_rank(context, card) for card in range(context.placement.cards))
    if not ranks:
        ranks = (_idle(job),)
    return Deployment(
        ranks=ranks, assumptions=_assumptions(context), advice=partial(_advice, context),
        fitting_context=partial(context_that_fits, job, _room(job)),
    )


def _room(job: ServeJob) -> int:
    """Bytes of a card beside the CUDA context."""
    gpu = job.cluster.gpu
    return gpu.visible_bytes - (gpu.context_bytes or DRIVER_BYTES)


def _idle(job: ServeJob) -> ServingRank:
    """A card that --device none leaves alone."""
    return ServingRank(program=RankProgram(role="all", count=1, phases={Phase.LOAD: (), Phase.SERVING: ()}))


def _rank(context: Context, card: int) -> ServingRank:
    outside = [*weight_tensors(context, card)]
    cache = context.cache_on(card)
    outside += _cache_tensors(context.settings, cache)
    outside.append(
        Tensor(
            name="compute buffer", num_bytes=context.reserved.cards[card], category=Category.ACTIVATIONS,
            owner=f"micro-batch of {context.settings.tokens}", source=COMPUTE_SOURCE,
            formula=f"{context.settings.tokens} tokens over {context.settings.context} cells, "
            f"{context.settings.outputs} rows of logits",
        )
    )
    role = "all" if context.placement.cards == 1 else f"card {card}"
    program = RankProgram(
        role=role, count=1, phases={Phase.LOAD: (), Phase.SERVING: ()},
        outside=tuple(corrected_tensor(context.job, tensor) for tensor in outside if tensor.num_bytes),
    )
    return ServingRank(program=program, cache=cache if cache.num_bytes else None)


def weight_tensors(context: Context, device: int) -> list[Tensor]:
    """The ledger of a device's weights."""
    card = device != context.placement.host
    return [
        Tensor(
            name=part, num_bytes=sum(weight_bytes(weight, card=card) for weight in weights), category=Category.WEIGHTS,
            owner="layers" if weights[0].layer is not None else "", source=SOURCE,
            formula=f"{len(weights)} x {' x '.join(map(str, weights[0].shape))} in "
            f"{', '.join(sorted({weight.dtype for weight in weights}))}",
        )
        for part, weights in weights_on(context, device).items()
    ]


def _cache_tensors(settings: Settings, cache: DeviceCache) -> list[Tensor]:
    def total(field: str) -> int:
        return sum(int(getattr(layer, field)) for layer in cache.layers)

    parts = (
        ("context", "growing", f"{settings.context} cells, keys {settings.k_type}, values {settings.v_type}"),
        ("sliding windows", "windowed", f"window and micro-batch, keys {settings.k_type}, values {settings.v_type}"),
        ("recurrent states", "state", f"{settings.slots} slots in f32"),
    )
    return [
        Tensor(
            name=name, num_bytes=total(field), category=Category.CACHE, source=CACHE_SOURCE,
            formula=f"{sum(1 for layer in cache.layers if getattr(layer, field))} layers: {formula}",
        )
        for name, field, formula in parts
        if total(field)
    ]


def _assumptions(context: Context) -> tuple[str, ...]:
    settings, job = context.settings, context.job
    lines = [
        f"-c {settings.context} -np {settings.slots} -ub {settings.micro_batch} "
        f"-fa {'on' if settings.flash else 'off'} -ctk {settings.k_type} -ctv {settings.v_type}",
        f"the host holds {format_bytes(host_bytes(context))} of weights, cache and buffers",
        "cuBLAS and temporary copies of weights are counted with the CUDA context",
    ]
    if job.plan.weights is not None and "ud" in job.plan.weights.lower().split("-"):
        lines.append("a publisher's own mix is taken for the plain mix of its size")
    return tuple(lines)


def _advice(context: Context) -> tuple[str, ...]:
    cards = range(context.placement.cards)
    if not cards:
        return ()
    layers, room = context.job.model.num_layers, _room(context.job)
    needed = max(card_bytes(context, card) for card in cards)
    if needed > room:
        fitting = layers_that_fit(context.job, room)
        return (f"{fitting} of {layers + 1} layers fit, the head counted: --gpu-layers {fitting}",)
    if context.settings.has("fit") and needed > room - FIT_MARGIN:
        return (
            "--fit would move layers to the host, it leaves 1024 MiB of each card free; --fit off keeps this plan",
        )
    longest = longest_context(context, room)
    most = context.job.model.context or longest
    if longest >= most:
        return ()
    return (f"the cards have room for {longest:,} tokens of context, the model takes {most:,}",)
