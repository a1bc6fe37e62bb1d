"""One llama.cpp context on its cards: what fits, what the host computes, and what CUDA adds."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import MoE
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.llamacpp.context import (
    Context,
    DeviceCache,
    card_bytes,
    host_bytes,
    stored_bytes,
    weight_bytes,
    weights_on,
)
from vramcast.engines.llamacpp.settings import CONTEXT_MULTIPLE, Settings, settings_of
from vramcast.engines.llamacpp.weights import EXPERTS
from vramcast.engines.serving.rank import corrected_tensor
from vramcast.errors import Note
from vramcast.units import MIB, format_bytes


def layers_that_fit(job: ServeJob, room: int) -> int:
    """The largest -ngl whose fullest card stays within its room; 0 when none does.

    Args:
        job: the plan that does not fit
        room: bytes of a card beside the CUDA context
    """
    def placed(layers: int) -> Context:
        return Context(replace(job, plan=replace(job.plan, gpu_layers=layers)))

    def largest(low: int, high: int, buffers: int) -> int:
        """By weights and caches, beside so many bytes of buffers."""
        while low < high:
            middle = (low + high + 1) // 2
            context = placed(middle)
            fits = all(stored_bytes(context, card) <= room - buffers for card in range(context.placement.cards))
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    low, high = 0, job.model.num_layers + 1 if job.plan.gpu_layers is None else job.plan.gpu_layers
    buffers = 0  # that change little from one number of layers to the next, and are most of the work
    while low < high:
        middle = max(low + 1, largest(low, high, buffers))
        context = placed(middle)
        short = max((card_bytes(context, card) for card in range(context.placement.cards)), default=0) - room
        low, high = (middle, high) if short <= 0 else (low, middle - 1)
        buffers = max(context.reserved.cards, default=0)
    return low


LEAST_CONTEXT: Final = 4096
"""`--fit-ctx` [common/fit.cpp]."""

PLACING: Final = ("cpu-moe", "n-cpu-moe", "override-tensor", "tensor-split", "device")
"""Options that say where weights lie: where one is given nothing is moved [common/fit.cpp]."""


def fitted(job: ServeJob) -> tuple[ServeJob, tuple[Note, ...]]:
    """The job as it runs where nobody says what lies on the cards, and what was moved to the host.

    Since `--fit`, a gibibyte of each card is left free: a context that nobody gives is made shorter, down to 4,096
    tokens, then the experts of as many layers as it takes are moved, then whole layers.
    """
    options = job.engine_options
    if not settings_of(job).has("fit") or options.get("fit") == "off":
        return job, ()
    room, layers = _room(job) - FIT_MARGIN, job.model.num_layers

    def fits(asked: ServeJob) -> bool:
        context = Context(asked)
        return all(card_bytes(context, card) <= room for card in range(context.placement.cards))

    if fits(job):
        return job, ()
    shorter: tuple[Note, ...] = ()
    if job.requests.context is None and (most := max(LEAST_CONTEXT, context_that_fits(job, room))) < job.context:
        job = replace(job, requests=replace(job.requests, context=most))
        shorter = Note("--fit leaves 1024 MiB of each card free where -c is not given: a context of {:,} tokens", most),
        if fits(job):
            return job, shorter
    if job.plan.gpu_layers is not None or "fit" in options or any(name in options for name in PLACING):
        return job, shorter
    if any(isinstance(run.layer.channel, MoE) for run in job.model.main.runs):
        def without(count: int) -> ServeJob:
            return replace(job, engine_options={**options, "n-cpu-moe": count})

        if fits(without(layers)):
            count = 1 + bisect_left(range(1, layers), True, key=lambda moved: fits(without(moved)))
            return without(count), (*shorter, Note(
                "--fit leaves 1024 MiB of each card free where -ngl is not given: experts of {} of {} layers are on "
                "the host", count, layers))
        job = without(layers)
    most = layers_that_fit(job, room)
    return replace(job, plan=replace(job.plan, gpu_layers=most)), (*shorter, Note(
        "--fit leaves 1024 MiB of each card free where -ngl is not given: {} of {} layers are on the cards, the head "
        "counted", most, layers + 1))


def context_that_fits(job: ServeJob, room: int) -> int:
    """Tokens each sequence could have on the cards of a plan that does not fit; 0 when none fits.

    Args:
        job: the plan; its context is more than fits
        room: bytes of a card beside the CUDA context

    Returns: a multiple of 256 below the context asked for [tokens]
    """
    def used(blocks: int) -> int:
        """Of the fullest card [bytes]; without the buffers, where there is no room for them anyway."""
        requests = replace(job.requests, context=blocks * CONTEXT_MULTIPLE, input_len=None, output_len=None)
        context = Context(replace(job, requests=requests))
        stored = [stored_bytes(context, card) for card in range(context.placement.cards)]
        if max(stored, default=0) > room:
            return max(stored)
        return max(map(sum, zip(stored, context.reserved.cards, strict=True)), default=0)

    high = -(-job.context // CONTEXT_MULTIPLE)
    if high < 2:
        return 0
    least, most = used(1), used(high - 1)
    if least > room:
        return 0
    if most <= room:
        return (high - 1) * CONTEXT_MULTIPLE
    low, high, guess = 1, high - 1, True  # fits, does not
    while high - low > 1:  # memory grows nearly on a line: where that crosses the room, or else the middle
        middle, before = (low + high) // 2, high - low
        if guess:
            middle = min(max(low + before * (room - least) // (most - least), low + 1), high - 1)
        taken = used(middle)
        low, least, high, most = (middle, taken, high, most) if taken <= room else (low, least, middle, taken)
        guess = 2 * (high - low) <= before
    return low * CONTEXT_MULTIPLE


def longest_context(context: Context, room: int) -> int:
    """Tokens each sequence could have, by what one more block of cells takes on the fullest card.

    Args:
        context: a plan that fits
        room: bytes of a card beside the CUDA context

    Returns: a multiple of 256, at least the context asked for [tokens]
    """
    job = context.job
    doubled = Context(replace(job, requests=replace(job.requests, context=2 * job.context)))
    found = 1 << 40
    for card in range(context.placement.cards):
        now = card_bytes(context, card)
        growth = card_bytes(doubled, card) - now
        if growth > 0:
            found = min(found, job.context + job.context * (room - now) // growth)
    return max(job.context, found // CONTEXT_MULTIPLE * CONTEXT_MULTIPLE)


OFFLOADED_ROWS = 32
"""From so many rows on weights on the host are brought to a card for their product, unless --no-op-offload
[ggml-org/llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu `ggml_backend_cuda_device_offload_op`]."""


class HostShares(NamedTuple):
    """Shares of a network that lie on the host, by bytes; 0: all on cards."""

    experts: float
    layers: float  # of all other weights of layers
    head: float
    cache: float
    op_offload: bool
    micro_batch: int  # tokens
    bytes_per_s: float | None  # of main memory, where the question says
    threads: int | None

    @property
    def any(self) -> bool:
        """Whether the host computes anything."""
        return bool(self.experts or self.layers or self.head or self.cache)


def host_shares(job: ServeJob) -> HostShares:
    """What stays on the host of a deployment.

    Raises: as the engine's `deploy`
    """
    context = Context(job)
    placement, host = context.placement, context.placement.host
    held: dict[str, list[int]] = {"experts": [0, 0], "layers": [0, 0], "head": [0, 0]}
    for weight in context.weights:
        kind = "head" if weight.layer is None else "experts" if re.search(EXPERTS, weight.name) else "layers"
        if weight.layer is None and not weight.name.startswith("output."):
            continue  # rows of the embedding are gathered
        held[kind][0] += weight.num_bytes * (placement.weight(weight.name, weight.layer) == host)
        held[kind][1] += weight.num_bytes
    held["head"] = held["head"] if held["head"][1] else [int(placement.output == host), 1]
    shares = {kind: on_host / whole if whole else 0.0 for kind, (on_host, whole) in held.items()}
    layers = range(job.model.num_layers)
    cache = sum(context.cache_device(layer) == host for layer in layers) / len(layers)
    named = context.options
    return HostShares(
        **shares, cache=cache, op_offload=context.settings.op_offload, micro_batch=context.settings.micro_batch,
        bytes_per_s=int(named["host-bandwidth"]) * 1e9 if "host-bandwidth" in named else None,
        threads=int(named["threads"]) if "threads" in named else None,
    )


SOURCE: Final = "ggml-org/llama.cpp src/llama-model.cpp `load_tensors`"
CACHE_SOURCE: Final = "ggml-org/llama.cpp src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp"
PROJECTOR_SOURCE: Final = "ggml-org/llama.cpp tools/mtmd/clip.cpp"
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
    return gpu.free_bytes - (gpu.context_bytes or DRIVER_BYTES)


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
            formula=Note(
                "{} tokens over {} cells, {} rows of logits",
                context.settings.tokens, context.settings.context, context.settings.outputs
            ),
        )
    )
    outside += _projector_tensors(context, card)
    role = "all" if context.placement.cards == 1 else Note("card {}", card)
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


def _projector_tensors(context: Context, card: int) -> list[Tensor]:
    """The ledger of the projector on its card."""
    found = context.projector
    if found is None or card != context.projector_device:
        return []
    size = sum(weight_bytes(weight, card=True) for weight in found.weights)
    stored = ", ".join(sorted({weight.dtype for weight in found.weights}))
    image = Note("an image of {:,} patches", found.image.patches)
    entries = (
        ("weights", size, Category.WEIGHTS, f"{len(found.weights)} tensors in {stored}"),
        ("compute buffer", found.card, Category.ACTIVATIONS, Note(
            "{}; {} at the start", image, format_bytes(found.start)
        )),
        ("copies of 16 bits", found.copies, Category.TEMPORARIES, f"{image}: its widest product"),
    )
    return [
        Tensor(name=name, num_bytes=num_bytes, category=category, owner="projector",
               source=PROJECTOR_SOURCE, formula=formula)
        for name, num_bytes, category, formula in entries
    ]


def _cache_tensors(settings: Settings, cache: DeviceCache) -> list[Tensor]:
    def total(field: str) -> int:
        return sum(int(getattr(layer, field)) for layer in cache.layers)

    parts = (
        ("context", "growing", Note(
            "{} cells, keys {}, values {}", settings.context, settings.k_type, settings.v_type
        )),
        ("sliding windows", "windowed", Note(
            "window and micro-batch, keys {}, values {}", settings.k_type, settings.v_type
        )),
        ("recurrent states", "state", Note("{} slots in f32", settings.slots)),
    )
    return [
        Tensor(
            name=name, num_bytes=total(field), category=Category.CACHE, source=CACHE_SOURCE,
            formula=Note("{} layers: {}", sum(1 for layer in cache.layers if getattr(layer, field)), formula),
        )
        for name, field, formula in parts
        if total(field)
    ]


def _assumptions(context: Context) -> tuple[str, ...]:
    settings, job = context.settings, context.job
    lines = [
        f"-c {settings.context} -np {settings.slots} -ub {settings.micro_batch} "
        f"-fa {'on' if settings.flash else 'off'} -ctk {settings.k_type} -ctv {settings.v_type}",
        Note("the host holds {} of weights, cache and buffers", format_bytes(host_bytes(context))),
        "cuBLAS and temporary copies of weights are counted with the CUDA context",
    ]
    if (found := context.projector) is not None and found.card > found.start:
        lines.append(Note(
            "the projector encodes images of up to {} x {} patches; --image-size names smaller ones",
            found.image.across, found.image.down
        ))
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
        return (Note("{} of {} layers fit, the head counted: --gpu-layers {}", fitting, layers + 1, fitting),)
    longest = longest_context(context, room)
    most = context.job.model.context or longest
    if longest >= most:
        return ()
    return (Note("the cards have room for {:,} tokens of context, the model takes {:,}", longest, most),)
