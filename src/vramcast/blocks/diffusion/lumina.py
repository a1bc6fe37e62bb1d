"""Lumina-Image 2.0: layers over joined text and image tokens, behind refiners of each.

[lumina2] huggingface/diffusers models/transformers/transformer_lumina2.py, models/attention.py `LuminaFeedForward`,
models/normalization.py `LuminaRMSNormZero`: layers alone are recomputed, refiners never; rotary positions are complex
numbers of 64 bits, and SiLU is made in fp32.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import Lumina2
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32, round_up

STEP_FREQUENCIES: Final = 256
CONDITION: Final = 1024
FP64: Final = 8


def _inner(spec: Lumina2) -> int:
    return round_up(4 * spec.hidden, spec.multiple_of)


def parameters(spec: Lumina2) -> Weights:
    dim, patch, condition = spec.hidden, spec.patch_size**2 * spec.in_channels, min(spec.hidden, CONDITION)
    yield from nn.each(EMBEDDERS, nn.linear("x_embedder", patch, dim))
    yield from nn.each(EMBEDDERS, nn.embedder("timestep", STEP_FREQUENCIES, condition))
    yield from nn.each(EMBEDDERS, (*nn.norm("caption.norm", spec.cap_feat_dim),
                                   *nn.linear("caption", spec.cap_feat_dim, dim)))
    yield from nn.each("noise_refiner", _layer_weights(spec, modulated=True), spec.num_refiner_layers)
    yield from nn.each("context_refiner", _layer_weights(spec, modulated=False), spec.num_refiner_layers)
    yield from nn.each("layers", _layer_weights(spec, modulated=True), spec.num_layers)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out.1", condition, dim), *nn.linear("norm_out.2", dim, patch)))


def _layer_weights(spec: Lumina2, *, modulated: bool) -> tuple[Parameter, ...]:
    dim, head, inner = spec.hidden, spec.hidden // spec.num_attention_heads, _inner(spec)
    parts = [part for name in ("norm1", "ffn_norm1", "norm2", "ffn_norm2") for part in nn.norm(name, dim)]
    for name, width in (("q", dim), ("k", head * spec.num_kv_heads), ("v", head * spec.num_kv_heads), ("out", dim)):
        parts += nn.linear(name, dim, width, bias=False)
    parts += nn.query_key_norms("", head)
    parts += [*nn.linear("ff.gate", dim, inner, bias=False), *nn.linear("ff.up", dim, inner, bias=False)]
    parts += nn.linear("ff.down", inner, dim, bias=False)
    return (*parts, *nn.linear("norm1", min(dim, CONDITION), 4 * dim)) if modulated else tuple(parts)


def forward(tape: Tape, spec: Lumina2, step: Step) -> Array:
    """One denoising step; samples of one length need no mask."""
    dim, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens, channels = (step.height // patch) * (step.width // patch), patch * patch * spec.in_channels
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.cap_feat_dim), size)
    text = tape.linear(tape.rms_norm(prompt, "caption.norm"), dim, "caption")
    head = dim // spec.num_attention_heads
    rope = [tape.new(name, (step.batch, tokens + step.tokens, head), FP64) for name in ("rope", "rope of each stream")]
    image = tape.linear(tape.new("latent", (step.batch, tokens, channels), size), dim, "x_embedder")
    with tape.owned("denoiser.context_refiner"):
        for _ in range(spec.num_refiner_layers):
            text, = _layer(tape, spec, text, modulated=False)
    with tape.owned("denoiser.noise_refiner"):
        for _ in range(spec.num_refiner_layers):
            image, = _layer(tape, spec, image)
    streams = [tape.cat((text, image), 1, "hidden.joined")]
    nn.layers(tape, "layers", spec.num_layers, partial(_layer, tape, spec), streams)
    out = nn.gated(tape, tape.layer_norm(streams[0]), "norm_out")
    del rope, image, text
    return tape.linear(out, channels, "noise")


def _layer(tape: Tape, spec: Lumina2, x: Array, *, modulated: bool = True) -> tuple[Array]:
    def gated(x: Array, name: str) -> Array:
        return nn.gated(tape, x, name) if modulated else x

    part = _attention(tape, spec, gated(tape.rms_norm(x, "norm1"), "attention.input"))
    x = tape.add(x, gated(tape.rms_norm(part, "norm2"), "gated"), name="attended")
    del part
    part = _feed_forward(tape, spec, gated(tape.rms_norm(x, "ffn_norm1"), "ff.input"))
    return (tape.add(x, gated(tape.rms_norm(part, "ffn_norm2"), "ff.gated"), name="hidden"),)


def _feed_forward(tape: Tape, spec: Lumina2, x: Array) -> Array:
    gate = tape.linear(x, _inner(spec), "ff.gate")
    wide = tape.activation(tape.cast(gate, FP32, "ff.gate.fp32"), "ff.activated")
    inner = tape.multiply(tape.cast(wide, gate.width, "ff.activated"), tape.linear(x, _inner(spec), "ff.up"))
    del gate, wide
    return tape.linear(inner, spec.hidden, "ff.down")


def _attention(tape: Tape, spec: Lumina2, x: Array) -> Array:
    heads, few = spec.num_attention_heads, spec.num_kv_heads
    width = spec.hidden // heads * few
    q = nn.heads_of(tape.linear(x, spec.hidden, "attention.q"), heads)
    k, v = (nn.heads_of(tape.linear(x, width, f"attention.{name}"), few) for name in "kv")
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = _rotated(tape, q)
    k = _rotated(tape, k)
    k, v = (tape.pad(part, (0, 0, heads - few, 0), f"{name} of all heads") for name, part in (("k", k), ("v", v)))
    y = nn.merged(tape.attention(q, k, v))
    del q, k, v
    return tape.linear(y, spec.hidden, "out")


def _rotated(tape: Tape, x: Array) -> Array:
    """x as complex numbers in fp32 times those of its position in fp64."""
    product = tape.cast(tape.cast(x, FP32, "rope.fp32"), FP64, "rope.product")
    return tape.cast(product, x.width, "rotated")


NETWORKS: Final = {
    "Lumina2Transformer2DModel": Network(
        "diffusers models/transformers/transformer_lumina2.py", parameters, forward
    ),
}
