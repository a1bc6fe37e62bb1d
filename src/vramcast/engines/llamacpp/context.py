"""A llama.cpp context worked out: settings, placement, weights, caches and compute buffers."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import Attention, Head, Layer, Model, MultiLatentAttention, Run
from vramcast.domain.serving import ServeJob
from vramcast.engines.ggml.allocator import MATRIX_ROW_PADDING
from vramcast.engines.llamacpp.cache import DeviceCache, caches_of
from vramcast.engines.llamacpp.compute import Reserved, compute_buffers
from vramcast.engines.llamacpp.placement import Placement, placement_of
from vramcast.engines.llamacpp.settings import Settings, checked_options, settings_of
from vramcast.engines.llamacpp.weights import Weight, weights_of
from vramcast.states.ggml import QUANTISED, row_bytes
from vramcast.units import round_up

CUDA_ALIGNMENT: Final = 128
HOST_ALIGNMENT: Final = 32

WINDOWED: Final = frozenset(
    ("cohere2", "deepseek_v4", "exaone4", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4",
     "gemma4_text", "gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "olmo3", "step3p7", "step3p7_text")
)
"""Families whose sliding windows llama.cpp knows [src/models/*.cpp swa_type]; those of others attend to everything."""


class Context:
    """Everything a deployment is made of, worked out once."""

    def __init__(self, job: ServeJob) -> None:
        options = checked_options(job)
        job = replace(job, model=as_loaded(job.model))
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


def as_loaded(model: Model) -> Model:
    """The network as llama.cpp computes it: without the windows it does not know."""
    if model.family in WINDOWED:
        return model
    runs = tuple(Run(count=run.count, layer=_unwindowed(run.layer)) for run in model.main.runs)
    return replace(model, stacks=(*model.stacks[:-1], replace(model.main, runs=runs)))


def _unwindowed(layer: Layer) -> Layer:
    mixer = layer.mixer
    return replace(layer, mixer=replace(mixer, window=None)) if isinstance(mixer, Attention) and mixer.window else layer


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


def host_bytes(context: Context) -> int:
    """What the host holds: weights, cache, compute and output buffers [bytes]."""
    host = context.placement.host
    weights = sum(weight_bytes(weight, card=False) for kept in weights_on(context, host).values() for weight in kept)
    output = 4 * context.job.model.vocab * context.settings.slots
    return weights + context.cache_on(host).num_bytes + context.reserved.host + output


def card_bytes(context: Context, card: int) -> int:
    """What a card holds, the CUDA context left out [bytes]."""
    weights = sum(weight_bytes(weight, card=True) for kept in weights_on(context, card).values() for weight in kept)
    return weights + context.cache_on(card).num_bytes + context.reserved.cards[card]
