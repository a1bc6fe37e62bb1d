"""WanTransformer3DModel: Wan 2.1 and 2.2.

[wan] huggingface/diffusers models/transformers/transformer_wan.py
"""

from __future__ import annotations

from math import prod

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    conv,
    each,
    embedder,
    feed_forward,
    heads_of,
    linear,
    merged,
    norm,
    projections,
)
from vramcast.domain.denoisers import Wan
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_wan.py"


def parameters(spec: Wan) -> Weights:
    """The weights."""
    hidden = spec.hidden
    yield from each(EMBEDDERS, conv("patch_embedding", spec.in_channels, hidden, *spec.patch_size))
    yield from each(EMBEDDERS, embedder("time_embedder", spec.freq_dim, hidden))
    yield from each(EMBEDDERS, linear("time_proj", hidden, 6 * hidden))
    yield from each(EMBEDDERS, embedder("text_embedder", spec.text_dim, hidden))
    if spec.image_dim is not None:
        image = spec.image_dim
        yield from each(EMBEDDERS, (*norm("image.norm1", image, bias=True), *norm("image.norm2", hidden, bias=True)))
        yield from each(EMBEDDERS, (*linear("image.1", image, image), *linear("image.2", image, hidden)))
    yield from each("blocks", _block_weights(spec), spec.num_layers)
    out = linear("proj_out", hidden, prod(spec.patch_size) * spec.out_channels)
    yield from each(OUTPUT, (Parameter(path="scale_shift_table", shape=(1, 2, hidden), kind="scalar"), *out))


def _block_weights(spec: Wan) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    parts = [Parameter(path="scale_shift_table", shape=(1, 6, hidden), kind="scalar")]
    for prefix in ("attn1", "attn2"):
        for name in ("q", "k", "v", "out"):
            parts += linear(f"{prefix}.{name}", hidden, hidden)
        parts += [*norm(f"{prefix}.norm_q", hidden), *norm(f"{prefix}.norm_k", hidden)]
    if spec.added_kv_proj_dim is not None:
        for name in ("k", "v"):
            parts += linear(f"attn2.image.{name}", spec.added_kv_proj_dim, hidden)
        parts += norm("attn2.image.norm_k", hidden)
    if spec.cross_attn_norm:
        parts += norm("norm2", hidden, bias=True)
    return (*parts, *linear("ff.up", hidden, spec.ffn_dim), *linear("ff.down", spec.ffn_dim, hidden))


def forward(tape: Tape, spec: Wan, step: Step) -> Array:
    """One denoising step; guidance runs a second one, not a larger batch."""
    hidden, size = spec.hidden, step.itemsize
    depth, rows, columns = spec.patch_size
    tokens = (step.frames // depth) * (step.height // rows) * (step.width // columns)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.frames, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.text_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.linear(prompt, hidden, "text_embedder")

    def block(video: Array) -> tuple[Array, ...]:
        return (_block(tape, spec, video, text),)

    streams = [video]
    del video
    with tape.owned("denoiser.blocks"):
        tape.repeat(spec.num_layers, block, streams)
    out = _fp32_modulated(tape, streams[0], "norm_out")
    del latent, rope
    return tape.linear(out, prod(spec.patch_size) * spec.out_channels, "noise")


def _fp32_modulated(tape: Tape, x: Array, name: str) -> Array:
    """The norm and its modulation in fp32, cast back."""
    wide = tape.cast(x, FP32, f"{name}.fp32")
    normed = tape.layer_norm(wide, f"{name}.norm")
    del wide
    scaled = tape.multiply(normed, name=f"{name}.scaled")
    del normed
    total = tape.add(scaled, name=f"{name}.sum")
    del scaled
    return tape.cast(total, x.width, name)


def _fp32_residual(tape: Tape, x: Array, part: Array, name: str, *, widened: bool = False) -> Array:
    """x + gate * part in fp32, the gate being fp32 already; `widened`: the part is cast before."""
    wide = tape.cast(x, FP32, f"{name}.fp32")
    gated = tape.like(f"{name}.gated", tape.cast(part, FP32, f"{name}.part") if widened else part, FP32)
    total = tape.add(wide, gated, name=f"{name}.sum")
    del wide, gated
    return tape.cast(total, x.width, name)


def _block(tape: Tape, spec: Wan, x: Array, text: Array) -> Array:
    normed = _fp32_modulated(tape, x, "norm1")
    part = _self_attention(tape, spec, normed)
    x = _fp32_residual(tape, x, part, "attended")
    normed = tape.cast(tape.layer_norm(tape.cast(x, FP32, "norm2.fp32"), "norm2.out"), x.width, "norm2")
    part = _cross_attention(tape, spec, normed, text)
    x = tape.add(x, part, name="cross attended")
    normed = _fp32_modulated(tape, x, "norm3")
    part = feed_forward(tape, normed, spec.ffn_dim)
    return _fp32_residual(tape, x, part, "hidden", widened=True)


def _self_attention(tape: Tape, spec: Wan, x: Array) -> Array:
    heads = spec.num_attention_heads
    q, k, v = projections(tape, x, spec.hidden)
    q, k = _torch_rms_norm(tape, q, "norm_q"), _torch_rms_norm(tape, k, "norm_k")
    q, k, v = (heads_of(part, heads) for part in (q, k, v))
    q, k = _rotated(tape, q), _rotated(tape, k)
    y = merged(tape.attention(q))
    del k, v
    return tape.linear(y, spec.hidden, "out")


def _torch_rms_norm(tape: Tape, x: Array, name: str) -> Array:
    """torch.nn.RMSNorm: an fp32 copy, its square and the scaled copy, one operator after the other."""
    wide = tape.cast(x, FP32, f"{name}.fp32")
    squares = tape.like(f"{name}.square", wide)
    del squares
    scaled = tape.like(f"{name}.scaled", wide)
    weighted = tape.like(f"{name}.weighted", scaled)
    del scaled, wide
    return tape.cast(weighted, x.width, name)


def _rotated(tape: Tape, x: Array) -> Array:
    """Even and odd channels apart, written into an empty tensor of the width of x."""
    out = tape.like("rotated", x)
    for name in ("even", "odd"):
        half = (*x.shape[:-1], x.shape[-1] // 2)
        first, second = (tape.new(f"rope.{name}.{part}", half, FP32) for part in ("cos", "sin"))
        tape.add(first, second, name=f"rope.{name}.sum")
        del first, second
    return out


def _cross_attention(tape: Tape, spec: Wan, x: Array, text: Array) -> Array:
    hidden, heads = spec.hidden, spec.num_attention_heads
    q = tape.linear(x, hidden, "cross.q")
    k, v = (tape.linear(text, hidden, f"cross.{name}") for name in "kv")
    q, k = _torch_rms_norm(tape, q, "cross.norm_q"), _torch_rms_norm(tape, k, "cross.norm_k")
    y = merged(tape.attention(heads_of(q, heads)))
    del k, v
    return tape.linear(y, hidden, "cross.out")
