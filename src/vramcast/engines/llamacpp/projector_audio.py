"""The graph of thirty seconds of sound: Gemma 4's conformer, whose attention sees blocks of frames.

Symbols:  N frames behind two halvings   C frames of a block   S frames that a block sees   B blocks   D width of a head

[gemma4a] ggml-org/llama.cpp tools/mtmd/models/gemma4a.cpp, `warmup_audio_size` of clip-model.h. Held against clip.cpp
at build 9000 over a file of zeros: 153.93 MiB.
"""

from __future__ import annotations

from math import prod
from typing import Final

from vramcast.domain.model import Norm
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Tensor, fed
from vramcast.engines.llamacpp.projector_graph import Clip
from vramcast.units import ceil_div

FRAMES: Final = 3000
"""Of a spectrum: thirty seconds, the longest piece that is encoded at once, and what it starts with."""

BLOCK: Final = 12
SEEN: Final = 24
DISTANCES: Final = 13
"""Frames of a block, frames that it sees, and distances that positions are told by."""

KERNEL: Final = 5
"""Of the convolution over frames."""


def gemma4_audio(clip: Clip) -> Tensor:
    """Two convolutions that halve, conformer layers, two linears."""
    clip.clamps = True
    shapes = {one.path.removeprefix("audio."): one.shape for one in clip.stack.extra}
    bins = shapes["in"][1] // shapes["conv1"][0] * 4
    x = ops.cont(ops.transpose(fed("f32", FRAMES, bins)))
    for name in ("conv0", "conv1"):
        x = _halved(clip, x, shapes[name][0])
    x = ops.cont(ops.permute(x, 1, 2, 0, 3))
    x = clip.linear(ops.reshape(x, x.ne[0] * x.ne[1], x.ne[2]), shapes["in"][0], bias=False)
    heads, layers = x.ne[0] // shapes["layers.0.scale"][0], sum(path.endswith(".scale") for path in shapes)
    positions = fed("f32", x.ne[0], DISTANCES)
    mask = fed("f32", SEEN, BLOCK, ceil_div(x.ne[1], BLOCK))
    for _ in range(layers):
        x = _fed_forward(clip, x, shapes["layers.0.feed0.up"][0])
        x = ops.like("add", x, clip.norm(_attention(clip, clip.norm(x, Norm.RMS), heads, positions, mask), Norm.RMS))
        x = ops.like("add", x, _convolution(clip, clip.norm(x, Norm.RMS)))
        x = clip.norm(_fed_forward(clip, x, shapes["layers.0.feed1.up"][0]), Norm.RMS)
    x = ops.like("rms_norm", clip.linear(x, shapes["out"][0], bias=True))
    return clip.linear(x, shapes["projector"][0], bias=False)


def _halved(clip: Clip, x: Tensor, channels: int) -> Tensor:
    """A convolution of 3 x 3 with a step of two, a norm over channels, ReLU."""
    across, down, before = (x.ne[0] + 1) // 2, (x.ne[1] + 1) // 2, x.ne[2]
    kernel = clip.weight(3, 3, before, channels, dtype="f32")
    columns = ops.sized("im2col", "f32", (9 * before, across, down), kernel, x)
    rows = ops.mul_mat(ops.reshape(columns, 9 * before, across * down), ops.reshape(kernel, 9 * before, channels))
    x = ops.cont(ops.permute(ops.reshape(rows, across, down, 1, channels), 0, 1, 3, 2))
    x = ops.like("mul", ops.like("norm", ops.cont(ops.permute(x, 1, 2, 0, 3))), clip.weight(channels))
    return ops.like("unary", ops.cont(ops.permute(x, 2, 0, 1, 3)))


def _fed_forward(clip: Clip, x: Tensor, width: int) -> Tensor:
    """Half a step: norm, SiLU between two linears, norm."""
    inner = ops.like("unary", clip.linear(clip.norm(x, Norm.RMS), width, bias=False))
    out = clip.norm(clip.linear(inner, x.ne[0], bias=False), Norm.RMS)
    return ops.like("add", x, ops.like("scale", out))


def _attention(clip: Clip, x: Tensor, heads: int, positions: Tensor, mask: Tensor) -> Tensor:
    """Every block sees itself and as many frames before it."""
    hidden, frames = x.ne[0], x.ne[1]
    width, blocks = hidden // heads, ceil_div(frames, BLOCK)
    q, k, v = (ops.reshape(clip.linear(x, hidden, bias=False), width, heads, frames) for _ in range(3))
    q = ops.like("mul", ops.like("scale", q), clip.weight(width))
    q = ops.reshape(ops.sized("pad", "f32", (width, heads, blocks * BLOCK), q), width, heads, BLOCK, blocks)
    q = ops.cont(ops.permute(q, 0, 3, 1, 2))
    k = ops.cont(ops.permute(_windows(ops.like("scale", k), blocks), 0, 3, 1, 2))
    v = ops.cont(ops.permute(_windows(v, blocks), 1, 3, 0, 2))
    scores = ops.mul_mat(k, q)
    far = ops.reshape(ops.mul_mat(clip.weight(hidden, hidden), positions), width, heads, DISTANCES)
    far = ops.cont(ops.permute(far, 0, 2, 1, 3))
    moved = ops.mul_mat(far, ops.reshape(q, width, BLOCK * blocks, heads))
    moved = ops.reshape(moved, DISTANCES, BLOCK, blocks, heads)
    moved = ops.sized("pad", "f32", (SEEN + 1, BLOCK, blocks, heads), moved)
    moved = ops.reshape(moved, (SEEN + 1) * BLOCK, blocks, heads)
    moved = ops.cont(ops.view(moved, BLOCK * SEEN, blocks, heads, steps=moved.nb[1:3]))
    scores = ops.like("add", scores, ops.reshape(moved, SEEN, BLOCK, blocks, heads))
    for op in ("scale", "unary", "scale"):
        scores = ops.like(op, scores)
    weights = ops.like("soft_max", ops.like("add", scores, mask))
    out = ops.cont(ops.permute(ops.mul_mat(v, weights), 0, 2, 3, 1))
    out = ops.cont(out, hidden, prod(out.ne) // hidden)
    return clip.linear(ops.cont(ops.view(out, hidden, frames)), hidden, bias=False)


def _windows(x: Tensor, blocks: int) -> Tensor:
    """Frames that each block sees: (D, heads, S, B), overlapping ones copied."""
    width, heads = x.ne[0], x.ne[1]
    x = ops.sized("pad", "f32", (width, heads, SEEN * blocks), x)
    x = ops.cont(ops.like("roll", x))
    return ops.cont(ops.view(x, width, heads, SEEN, blocks, steps=(x.nb[1], x.nb[2], BLOCK * x.nb[2])))


def _convolution(clip: Clip, x: Tensor) -> Tensor:
    """A gate, a convolution over earlier frames, a norm, SiLU, a linear."""
    hidden, frames = x.ne[0], x.ne[1]
    both = clip.linear(x, 2 * hidden, bias=False)
    half = [ops.view(both, hidden, frames, steps=(both.nb[1],)) for _ in range(2)]
    gate = ops.like("unary", ops.cont(half[0]))
    x = ops.cont(ops.transpose(ops.like("mul", half[1], gate)))
    x = ops.like("roll", ops.sized("pad", "f32", (frames + KERNEL - 1, hidden), x))
    x = ops.sized("ssm_conv", "f32", (hidden, frames), x, clip.weight(KERNEL, hidden, dtype="f32"))
    x = ops.like("mul", ops.like("rms_norm", x), clip.weight(hidden))
    return clip.linear(ops.like("unary", x), hidden, bias=False)
