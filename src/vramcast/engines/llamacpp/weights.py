"""The tensors of a GGUF file, from its header or as a converter writes them, and the device that holds each.

[names] ggml-org/llama.cpp gguf-py/gguf/constants.py TENSOR_NAMES; vision towers lie in a file of their own (mmproj).
[load] ggml-org/llama.cpp src/llama-model.cpp `load_tensors`: layers go to cards from the last one back, divided in the
proportion of the cards' memory; the token embedding stays on the host, the head goes to a card when all layers do.
[ot] common/arg.cpp --override-tensor, --cpu-moe, --n-cpu-moe: the first pattern found in a tensor's name decides.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.model import Attention, LinearAttention, Mixer, Model, MoE, MultiLatentAttention, StoredWeights
from vramcast.domain.serving import ServeJob
from vramcast.engines.llamacpp.settings import Settings
from vramcast.errors import InvalidSpec
from vramcast.states.ggml import WHOLE, Where, known_mix, mix_format, row_bytes
from vramcast.states.storage import FORMATS

NAMES: Final = {
    "embedding.tokens": "token_embd", "embedding.positions": "position_embd", "embedding.token_types": "token_types",
    "embedding.per_layer": "per_layer_token_embd", "embedding.per_layer_projection": "per_layer_model_proj",
    "embedding.per_layer_norm": "per_layer_proj_norm", "embedding_norm": "token_embd_norm", "final_norm": "output_norm",
    "head.output": "output", "mixer_norm": "attn_norm", "channel_norm": "ffn_norm", "mixer_post_norm": "attn_post_norm",
    "channel_post_norm": "ffn_post_norm", "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v",
    "attention.out": "attn_output", "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm",
    "attention.sinks": "attn_sinks", "attention.q_a": "attn_q_a", "attention.q_a_norm": "attn_q_a_norm",
    "attention.q_b": "attn_q_b", "attention.kv_a": "attn_kv_a_mqa", "attention.kv_a_norm": "attn_kv_a_norm",
    "attention.kv_b": "attn_kv_b", "mlp.up": "ffn_up", "mlp.gate": "ffn_gate", "mlp.down": "ffn_down",
    "moe.router": "ffn_gate_inp", "moe.experts.up": "ffn_up_exps", "moe.experts.gate": "ffn_gate_exps",
    "moe.experts.down": "ffn_down_exps", "moe.shared.up": "ffn_up_shexp", "moe.shared.gate": "ffn_gate_shexp",
    "moe.shared.down": "ffn_down_shexp", "moe.shared_gate": "ffn_gate_inp_shexp", "moe.score_bias": "exp_probs_b",
    "moe.latent_in": "ffn_latent_down", "moe.latent_out": "ffn_latent_up",
    "mamba.in": "ssm_in", "mamba.conv": "ssm_conv1d",
    "mamba.x": "ssm_x", "mamba.dt": "ssm_dt", "mamba.dt_bias": "ssm_dt", "mamba.a_log": "ssm_a", "mamba.d": "ssm_d",
    "mamba.out": "ssm_out", "mamba.norm": "ssm_norm", "linear_attention.conv": "ssm_conv1d",
    "linear_attention.gate": "attn_gate", "linear_attention.beta": "ssm_beta", "linear_attention.decay": "ssm_alpha",
    "linear_attention.a_log": "ssm_a", "linear_attention.dt_bias": "ssm_dt", "linear_attention.norm": "ssm_norm",
    "linear_attention.out": "ssm_out",
}
"""Path of a parameter -> its name in a GGUF file."""

FUSED: Final = {"linear_attention.q": "attn_qkv", "linear_attention.k": "attn_qkv", "linear_attention.v": "attn_qkv"}
"""Parameters that lie together in one tensor."""

LAYER: Final = re.compile(r"blk\.(\d{1,6})\.(.+)")

BLOCK_START: Final = "blk."

MOST_NAMES: Final = 1 << 14
MOST_MIXES: Final = 16
"""Names and mixes of models that are kept [count]."""


class Weight(NamedTuple):
    """One tensor of a file."""

    name: str  # "blk.0.attn_q.weight"
    dtype: str
    shape: tuple[int, ...]  # the fastest dimension last
    num_bytes: int

    @property
    def layer(self) -> int | None:
        """The layer it belongs to."""
        return place_of(self.name)[0]

    @property
    def part(self) -> str:
        """Its name without layer and ending: "attn_q"."""
        return place_of(self.name)[1]


@lru_cache(maxsize=MOST_NAMES)
def place_of(name: str) -> tuple[int | None, str]:
    """Layer and part of a weight."""
    found = LAYER.fullmatch(name)
    return int(found[1]) if found else None, (found[2] if found else name).removesuffix(".weight")


def is_gguf(stored: StoredWeights | None) -> bool:
    """Whether headers at hand are those of a GGUF file."""
    return stored is not None and any(tensor.name == "token_embd.weight" for tensor in stored.tensors)


def weights_of(job: ServeJob, *, split_latent: bool, joined_latent: bool) -> tuple[Weight, ...]:
    """The tensors that are loaded.

    Args:
        job: model, headers, mix asked for
        split_latent: DeepSeek's keys and values are decompressed by one matrix each (attn_k_b, attn_v_b)
        joined_latent: and by one for both (attn_kv_b)
    """
    model = job.model
    if is_gguf(job.weights) and job.plan.weights is None:
        assert job.weights is not None
        stored = job.weights.tensors
        return tuple(Weight(tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes) for tensor in stored)
    return _mixed(model, mix_of(job), split_latent=split_latent, joined_latent=joined_latent)


@lru_cache(maxsize=MOST_MIXES)
def _mixed(model: Model, mix: str, *, split_latent: bool, joined_latent: bool) -> tuple[Weight, ...]:
    """The tensors of a mix: plans that are compared differ in other things."""
    place, found = where(model), []
    for name, shape, layer in _written(model, split_latent=split_latent, joined_latent=joined_latent):
        dtype = mix_format(mix, name, shape, replace(place, layer=layer or 0))
        found.append(Weight(name, dtype, shape, prod(shape[:-1]) * row_bytes(dtype, shape[-1])))
    return tuple(found)


def mix_of(job: ServeJob) -> str:
    """The mix a question names, else how the checkpoint is stored: 16 bits."""
    if (named := job.plan.weights) is not None:
        mix = known_mix(named)
        if mix is None and named in FORMATS:
            raise InvalidSpec("weights={} is no format of GGUF files, which {} reads; take q4_k_m, q8_0 or another mix",
                              named, job.engine)
        return mix or named
    whole = WHOLE.get(job.model.dtype, "f16")
    return "mxfp4_moe" if job.model.quantisation == "mxfp4" else whole


def where(model: Model) -> Where:
    """What rules of a mix look at, at the first layer."""
    layers = model.main.layers
    mixers = [one.mixer for one in layers if isinstance(one.mixer, Attention)]
    grouped = bool(mixers) and mixers[0].num_heads >= 4 * mixers[0].num_kv_heads
    experts = max((one.channel.num_experts for one in layers if isinstance(one.channel, MoE)), default=0)
    eighty = len(layers) == 80 and grouped and not experts
    return Where(
        layer=0, layers=len(layers), grouped=grouped, experts=experts, layers_80=eighty, tied=model.tied
    )


def _written(
    model: Model, *, split_latent: bool, joined_latent: bool
) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """Name, shape and layer of each tensor a converter writes for the main stack."""
    layers = model.main.layers
    for owned in named_parameters(model):
        owner, parameter, repeats = owned.owner, owned.parameter, owned.repeats
        stack, dot, span = owner.partition(".layers.")
        if (dot and stack != model.main.name) or (not dot and owner not in ("embedding", "head", model.main.name)):
            continue
        start = int(span.partition("-")[0]) if dot else 0
        for index in range(repeats):
            layer = start + index if dot else None
            prefix = f"{BLOCK_START}{layer}." if dot else ""
            mixer = layers[layer].mixer if layer is not None else None
            for part, shape in _parts(parameter.path, parameter.shape, mixer, split_latent, joined_latent):
                yield prefix + part, shape, layer


def _parts(
    path: str, shape: tuple[int, ...], mixer: Mixer | None, split_latent: bool, joined_latent: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors one parameter becomes; poolers are not converted."""
    if path.startswith("head.pooler"):
        return
    if path in FUSED:
        if path == "linear_attention.q" and isinstance(mixer, LinearAttention):
            rows = 2 * mixer.num_k_heads * mixer.k_head_dim + mixer.num_v_heads * mixer.v_head_dim
            yield "attn_qkv.weight", (rows, shape[-1])
        return
    if path == "attention.kv_b" and isinstance(mixer, MultiLatentAttention):
        heads, rank = mixer.num_heads, mixer.kv_lora_rank
        if joined_latent:
            yield "attn_kv_b.weight", shape
        if split_latent:
            yield "attn_k_b.weight", (heads, rank, mixer.qk_nope_dim)
            yield "attn_v_b.weight", (heads, mixer.v_head_dim, rank)
        return
    stem, dot, ending = path.rpartition(".")
    bare, kind = (stem, ending) if dot and ending in ("weight", "bias") else (path, "weight")
    if bare in ("moe.score_bias", "mamba.dt_bias", "linear_attention.dt_bias"):
        kind = "bias"
    flat = (shape[0], shape[-1]) if len(shape) == 3 and shape[1] == 1 else shape
    name = NAMES.get(bare, bare.replace(".", "_"))
    yield (name if name in ("ssm_a", "ssm_d") else f"{name}.{kind}"), flat


OUTPUT_COUNTS_SINCE: Final = 7467
"""Since this build the head is the first of the layers that -ngl counts (pull request 18148)."""

INPUTS: Final = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Weights of the input, which stay on the host."""

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"

LONGEST_PATTERN: Final = 400


class Placement(NamedTuple):
    """Devices by number: cards from 0, the host behind them."""

    cards: int
    layers: tuple[int, ...]  # device of each layer
    output: int  # of the head
    overrides: tuple[tuple[re.Pattern[str], int], ...] = ()

    @property
    def host(self) -> int:
        """The number of the host."""
        return self.cards

    @property
    def whole(self) -> bool:
        """Whether every layer and the head are on cards."""
        return self.host not in (*self.layers, self.output)

    def weight(self, name: str, layer: int | None) -> int:
        """The device of a weight, by its name as in the file."""
        for pattern, device in self.overrides:
            if pattern.search(name):
                return device
        if layer is not None and layer < len(self.layers):
            return self.layers[layer]
        return self.host if name.startswith(INPUTS) else self.output


def placement_of(job: ServeJob, settings: Settings, options: Mapping[str, Any]) -> Placement:
    """Where a job's layers and weights go.

    Raises: InvalidSpec for shares or patterns that cannot be read
    """
    layers = job.model.num_layers
    cards = 0 if str(options.get("device", "")) == "none" else job.cluster.count
    wanted = job.plan.gpu_layers
    if wanted is None:
        wanted = layers + 1
    if not cards:
        return Placement(0, (0,) * layers, 0)
    shares = _shares(str(options.get("tensor-split", "")), cards)
    if options.get("split-mode", "layer") == "none":
        shares = (1.0,) + (0.0,) * (cards - 1)
    counts_output = not settings.fork and settings.build >= OUTPUT_COUNTS_SINCE
    start = max(layers + 1 - wanted, 0) if counts_output else max(layers - wanted, 0)
    active = max(1, min(wanted, layers + 1))
    ends = tuple(accumulate(share / sum(shares) for share in shares))

    def device(index: int) -> int:
        if index < start or index - start >= min(wanted, layers + 1):
            return cards
        return min(cards - 1, bisect_right(ends, (index - start) / active))

    placed = tuple(device(index) for index in range(layers))
    output = device(layers) if counts_output or wanted > layers else cards
    return Placement(cards, placed, output, _overrides(options, cards, layers))


def _shares(text: str, cards: int) -> tuple[float, ...]:
    """Shares of the cards: "3,1" or "3/1"; equal cards have equal ones."""
    if not text:
        return (1.0,) * cards
    try:
        found = [float(part) for part in re.split(r"[,/]", text)]
    except ValueError:
        found = []
    if not found or len(found) > cards or min(found) < 0 or not 0 < sum(found) < 1e9:
        raise InvalidSpec("tensor-split={!r} must be up to {} numbers such as 3,1", text[:40], cards)
    return (*found, *(0.0,) * (cards - len(found)))


def _overrides(options: Mapping[str, Any], cards: int, layers: int) -> tuple[tuple[re.Pattern[str], int], ...]:
    pairs: list[tuple[str, int]] = []
    for text in filter(None, str(options.get("override-tensor", "")).split(",")):
        pattern, equals, buffer = text.rpartition("=")
        if not equals or len(pattern) > LONGEST_PATTERN:
            raise InvalidSpec("override-tensor={!r} must be written PATTERN=CPU or PATTERN=CUDA0", text[:60])
        pairs.append((pattern, _device(buffer, cards)))
    if options.get("cpu-moe"):
        pairs.append((EXPERTS, cards))
    for layer in range(min(int(options.get("n-cpu-moe", 0)), layers)):
        pairs.append((rf"{re.escape(BLOCK_START)}{layer}{EXPERTS}", cards))
    try:
        return tuple((re.compile(pattern), device) for pattern, device in pairs)
    except re.error as error:
        raise InvalidSpec("override-tensor: {}", error) from None


def _device(buffer: str, cards: int) -> int:
    name = buffer.strip().upper()
    if name == "CPU":
        return cards
    number = re.fullmatch(r"(?:CUDA|ROCM|VULKAN|GPU)(\d{1,4})", name)
    if number is None or int(number[1]) >= cards:
        raise InvalidSpec(
            "override-tensor names buffer {!r}; use CPU or CUDA0 to CUDA{}", buffer[:40], max(cards - 1, 0)
        )
    return int(number[1])
