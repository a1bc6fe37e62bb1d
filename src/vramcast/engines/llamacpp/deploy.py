"""One llama.cpp context: weights, cache, compute buffers and what CUDA adds, per card."""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Phase
from vramcast.domain.model import Head, MultiLatentAttention
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.ggml.allocator import MATRIX_ROW_PADDING
from vramcast.engines.llamacpp.cache import DeviceCache, caches_of
from vramcast.engines.llamacpp.compute import Reserved, compute_buffers
from vramcast.engines.llamacpp.placement import Placement, placement_of
from vramcast.engines.llamacpp.settings import Settings, checked_options, settings_of
from vramcast.engines.llamacpp.weights import Weight, weights_of
from vramcast.states.ggml import QUANTISED, row_bytes
from vramcast.units import MIB, format_bytes, round_up

SOURCE: Final = "ggml-org/llama.cpp src/llama-model.cpp `load_tensors`"
CACHE_SOURCE: Final = "ggml-org/llama.cpp src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp"
COMPUTE_SOURCE: Final = "ggml-org/ggml src/ggml-alloc.c over the graph of src/llama-graph.cpp"

CUDA_ALIGNMENT: Final = 128

FIT_MARGIN: Final = 1024 * MIB
"""What --fit leaves free on each card [common/common.h `fit_params_target`]."""


class Context:
    """Everything a deployment is made of, worked out once."""

    def __init__(self, job: ServeJob) -> None:
        options = checked_options(job.engine_options)
        self.job, self.options = job, options
        self.settings: Settings = settings_of(job)
        self.placement: Placement = placement_of(job, self.settings, options)
        latent = any(isinstance(layer.mixer, MultiLatentAttention) for layer in job.model.main.layers)
        split = latent and (self.settings.fork or bool(self.settings.latent))
        self.weights = weights_of(job, split_latent=split, joined_latent=self.settings.fork or not split)
        self.caches = caches_of(job.model, self.settings)
        self.reserved: Reserved = compute_buffers(
            job.model, self.settings, self.placement, self.weights, copies=self.pipelined
        )

    @property
    def pipelined(self) -> bool:
        """Batches overlap where every layer is on one of several cards and no weight was moved [llama-context.cpp].

        ik_llama.cpp does not look at moved weights and would keep four copies of each in the compute buffer, which no
        card holds: such plans run with builds of GGML_SCHED_MAX_COPIES=1.
        """
        placement, settings = self.placement, self.settings
        if not bool(self.options.get("parallel-copies", True)) or placement.cards < 2 or not placement.whole:
            return False
        if self.options.get("split-mode", "layer") != "layer" or not settings.cache_on_cards:
            return False
        return not placement.overrides

    def cache_device(self, layer: int) -> int:
        """Where the cache of a layer is."""
        return self.placement.layers[layer] if self.settings.cache_on_cards else self.placement.host

    def cache_on(self, device: int) -> DeviceCache:
        """The caches of a device's layers."""
        kept = tuple(cache for index, cache in enumerate(self.caches) if self.cache_device(index) == device)
        return DeviceCache(layers=kept, cells=self.settings.context, slots=self.settings.slots)


def deploy(job: ServeJob) -> Deployment:
    """The cards of a llama.cpp deployment and what is left to the host."""
    context = Context(job)
    ranks = tuple(_rank(context, card) for card in range(context.placement.cards))
    if not ranks:
        ranks = (_idle(job),)
    return Deployment(ranks=ranks, assumptions=_assumptions(context), warnings=_warnings(context, ranks))


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
        role=role, count=1, phases={Phase.LOAD: (), Phase.SERVING: ()}, outside=tuple(t for t in outside if t.num_bytes)
    )
    return ServingRank(program=program, cache=cache if cache.num_bytes else None)


def weight_bytes(weight: Weight, *, card: bool) -> int:
    """What a buffer gives a tensor: on cards quantised rows are padded and tensors aligned [bytes]."""
    if not card:
        return round_up(weight.num_bytes, 32)
    padding = -weight.shape[-1] % MATRIX_ROW_PADDING if weight.shape else 0
    extra = row_bytes(weight.dtype, padding) if padding and weight.dtype in QUANTISED else 0
    return round_up(weight.num_bytes + extra, CUDA_ALIGNMENT)


def weights_on(context: Context, device: int) -> dict[str, list[Weight]]:
    """The weights of a device by their part of a layer; a tied head is a copy of the embedding on its card."""
    placement = context.placement
    found: dict[str, list[Weight]] = {}
    for weight in context.weights:
        if placement.weight(weight.name, weight.layer) == device:
            found.setdefault(weight.part, []).append(weight)
    names = {weight.name: weight for weight in context.weights}
    tied = "output.weight" not in names and context.job.model.head is Head.LM
    if tied and placement.output == device != placement.host and "token_embd.weight" in names:
        found["output (tied)"] = [names["token_embd.weight"]]
    return found


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


def host_bytes(context: Context) -> int:
    """What the host holds: weights, cache, compute and output buffers [bytes]."""
    host = context.placement.host
    weights = sum(
        weight_bytes(weight, card=False) for kept in weights_on(context, host).values() for weight in kept
    )
    output = 4 * context.job.model.vocab * context.settings.slots
    return weights + context.cache_on(host).num_bytes + context.reserved.host + output


def _assumptions(context: Context) -> tuple[str, ...]:
    settings, job = context.settings, context.job
    lines = [
        f"-c {settings.context} -np {settings.slots} -ub {settings.micro_batch} "
        f"-fa {'on' if settings.flash else 'off'} -ctk {settings.k_type} -ctv {settings.v_type}",
        f"the host holds {format_bytes(host_bytes(context))} of weights, cache and buffers",
        "cuBLAS and temporary copies of weights are counted with the CUDA context",
    ]
    if job.plan.weights is not None and "ud" in job.plan.weights.lower():
        lines.append("a publisher's own mix is taken for the plain mix of its size")
    return tuple(lines)


def _warnings(context: Context, ranks: tuple[ServingRank, ...]) -> tuple[str, ...]:
    needed = max(sum(tensor.num_bytes for tensor in rank.program.outside) for rank in ranks)
    visible = context.job.cluster.gpu.visible_bytes
    found = []
    if context.settings.has("fit") and visible - FIT_MARGIN < needed <= visible:
        found.append("--fit would take layers off the cards, it leaves 1024 MiB of each free; say --fit off to keep this plan")
    return tuple(found)


