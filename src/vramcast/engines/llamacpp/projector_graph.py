"""The graph of one image: patches, layers, and what makes the tower's output rows that a language model reads.

Symbols:  H hidden of the tower   N patches

[clip] ggml-org/llama.cpp tools/mtmd/clip.cpp `build_vit`, `build_attn`, `build_ffn`, `build_norm`, `build_rope_2d`;
tools/mtmd/models/siglip.cpp, pixtral.cpp, qwen2vl.cpp, qwen3vl.cpp, internvl.cpp, llava.cpp, gemma4v.cpp, one function
here each. [conv] ggml/src/ggml.c `ggml_conv_2d`: `im2col` in the kernel's type, a product, a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramcast.domain.model import MLP, Attention, Layer, Norm, Stack
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed, placed
from vramcast.units import round_up

CARD = 0
"""The backend whose memory holds the weights; inputs come from the other one."""

MASK_MULTIPLE = 64  # GGML_KQ_MASK_PAD

WINDOW_PATTERN = 8
"""Of so many layers of Qwen2.5-VL one sees the whole image [fullatt_block_indexes]."""

DEEPSTACK = {24: (5, 11, 17), 27: (8, 16, 24)}
"""Layers of a tower of Qwen3-VL -> those whose output is kept [deepstack_visual_indexes]."""

GEMMA4_MERGE = 3
"""Patches per side whose average is one token of Gemma 4 [clip.cpp `load_hparams`]."""

Turn = Callable[[Tensor], Tensor]


def whole_type(stored: str) -> str:
    """The type of patches, and of what merges them, in a file [convert_hf_to_gguf.py `tensor_force_quant`]."""
    return "f16" if stored == "f16" else "f32"


class Image(NamedTuple):
    """What one graph encodes."""

    across: int  # patches
    down: int

    @property
    def patches(self) -> int:
        """All of them."""
        return self.across * self.down


class Clip:
    """One graph in the making."""

    def __init__(self, stack: Stack, image: Image, *, stored: str, flash: bool, pads_mask: bool) -> None:
        self.stack, self.image, self.stored = stack, image, stored
        self.flash, self.pads_mask = flash, pads_mask
        self.graph, self.home = Graph(), CARD
        self.clamps = False  # what linears of Gemma 4 read and write [gemma4v.cpp `build_mm`]
        assert stack.vision is not None
        self.vision, self.patch = stack.vision, stack.vision.patch[-1]
        self.pixels = fed("f32", image.across * self.patch, image.down * self.patch, 3)

    def weight(self, *ne: int, dtype: str = "") -> Tensor:
        """A weight; those of one dimension are f32."""
        return placed(dtype or (self.stored if len(ne) > 1 else "f32"), *ne, home=self.home, weight=True)

    def linear(self, x: Tensor, width: int, *, bias: bool) -> Tensor:
        """A product with a weight of so many outputs, and its bias."""
        weight = self.weight(x.ne[0], width)
        result = _clamp(ops.mul_mat(weight, _clamp(x))) if self.clamps else ops.mul_mat(weight, x)
        return ops.like("add", result, self.weight(width)) if bias else result

    def norm(self, x: Tensor, kind: Norm | None) -> Tensor:
        """A norm, its weight, and of a layer norm its bias."""
        if kind is None:
            return x
        normed = ops.like("mul", ops.like("rms_norm" if kind is Norm.RMS else "norm", x), self.weight(x.ne[0]))
        return ops.like("add", normed, self.weight(x.ne[0])) if kind is Norm.LAYER else normed

    def convolved(self, pixels: Tensor, dtype: str = "") -> Tensor:
        """Patches as (across, down, H) [conv]."""
        image, hidden, inner = self.image, self.stack.hidden, 3 * self.patch**2
        kernel = self.weight(self.patch, self.patch, 3, hidden, dtype=dtype or whole_type(self.stored))
        columns = ops.sized("im2col", kernel.dtype, (inner, image.across, image.down), kernel, pixels)
        rows = ops.mul_mat(ops.reshape(columns, inner, image.patches), ops.reshape(kernel, inner, hidden))
        rows = ops.reshape(rows, image.across, image.down, 1, hidden)
        return ops.cont(ops.permute(rows, 0, 1, 3, 2))

    def patches(self, dtype: str = "") -> Tensor:
        """Patches as (H, N), with their bias."""
        flat = ops.reshape(self.convolved(self.pixels, dtype), self.image.patches, self.stack.hidden)
        out = ops.cont(ops.transpose(flat))
        return ops.like("add", out, self.weight(self.stack.hidden)) if self.vision.bias else out

    def mlp(self, x: Tensor, *widths: int, bias: bool) -> Tensor:
        """Two linears with GELU between them."""
        inner = ops.like("unary", self.linear(x, widths[0], bias=bias))
        return self.linear(inner, widths[1], bias=bias)

    def attention(self, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores, or none of them, and the output projection."""
        self.graph.expand(q)
        self.graph.expand(k)
        self.graph.expand(v)
        q, k = ops.permute(q, 0, 2, 1, 3), ops.permute(k, 0, 2, 1, 3)
        if self.flash:
            k, v = ops.cast(k, "f16"), ops.cast(ops.permute(v, 0, 2, 1, 3), "f16")
            out = ops.flash_attention(q, k, v, mask)
            out = ops.reshape(out, out.ne[0] * out.ne[1], out.ne[2])
        else:
            v = ops.cont(ops.permute(v, 1, 2, 0, 3))
            scores = ops.like("soft_max", ops.mul_mat(k, q), *((mask,) if mask is not None else ()))
            out = ops.permute(ops.mul_mat(v, scores), 0, 2, 1, 3)
            out = ops.cont(out, out.ne[0] * out.ne[1], out.ne[2])
        return self.linear(out, self.stack.hidden, bias=mixer.out_bias)

    def heads(self, mixer: Attention, x: Tensor, turn: Turn | None, *, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (width, heads, N), turned by their positions."""
        heads, width, rows = mixer.num_heads, mixer.head_dim, x.ne[1]
        if fused:
            both = self.linear(x, 3 * heads * width, bias=mixer.qkv_bias)
            q, k, v = (ops.view(both, width, heads, rows, steps=(4 * width, both.nb[1])) for _ in range(3))
        else:
            q, k, v = (ops.reshape(self.linear(x, heads * width, bias=mixer.qkv_bias), width, heads, rows)
                       for _ in range(3))
        if mixer.qk_norm == "head":
            q, k = self.norm(q, Norm.RMS), self.norm(k, Norm.RMS)
        return (q, k, v) if turn is None else (turn(q), turn(k), v)

    def feed_forward(self, mlp: MLP, x: Tensor) -> Tensor:
        """up, gate, activation, down."""
        up = self.linear(x, mlp.width, bias=mlp.bias)
        gate = (self.linear(x, mlp.width, bias=mlp.bias),) if mlp.gated else ()
        inner = ops.like("glu" if gate else "unary", *gate, up)
        return self.linear(inner, self.stack.hidden, bias=mlp.bias)

    def layer(self, layer: Layer, x: Tensor, turn: Turn | None = None, *, fused: bool = False,
              mask: Tensor | None = None, plain_values: bool = True) -> Tensor:
        """One layer over the residual stream."""
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.channel, MLP)
        scales = len(layer.extra)
        q, k, v = self.heads(layer.mixer, self.norm(x, layer.norm), turn, fused=fused)
        out = self.attention(layer.mixer, q, k, v if plain_values else ops.like("rms_norm", v), mask)
        out = ops.like("mul", out, self.weight(self.stack.hidden)) if scales else out
        out = self.norm(out, layer.norm) if layer.post_norms else out
        middle = ops.like("add", out, x)
        out = self.feed_forward(layer.channel, self.norm(middle, layer.norm))
        out = self.norm(out, layer.norm) if layer.post_norms else out
        out = ops.like("mul", out, self.weight(self.stack.hidden)) if scales else out
        return ops.like("add", middle, out)


def _clamp(x: Tensor) -> Tensor:
    """The same memory [ggml.c `ggml_clamp`]."""
    return Tensor(x.dtype, x.ne, op="clamp", src=(x,), root=x, nb=x.nb)


def _turned_by_halves(clip: Clip) -> Turn:
    """Rotary positions of both axes, each on its half [clip]."""
    places = [fed("i32", clip.image.patches) for _ in range(2)]

    def turn(x: Tensor) -> Tensor:
        first, second = (ops.like("rope", ops.view(x, x.ne[0] // 2, x.ne[1], x.ne[2], steps=x.nb[1:3]), place)
                         for place in places)
        return ops.concat(first, second, 0)

    return turn


def gemma3(clip: Clip) -> Tensor:
    """SigLIP, an average over squares of patches, a norm, and a projection that is turned over first."""
    stack, image = clip.stack, clip.image
    x = ops.like("add", clip.patches("f32"), clip.weight(stack.hidden, image.patches, dtype="f32"))
    for layer in stack.layers:
        x = clip.layer(layer, x)
    x = clip.norm(x, stack.final_norm)
    merge = round((image.patches / stack.projector_positions) ** 0.5)
    x = _pooled(clip, x, merge)
    x = ops.like("mul", ops.like("rms_norm", x), clip.weight(stack.hidden))
    matrix = clip.weight(stack.projector[0][1], stack.hidden, dtype="f16")
    return ops.mul_mat(ops.cont(ops.transpose(matrix)), x)


def _pooled(clip: Clip, x: Tensor, merge: int) -> Tensor:
    """Averages of squares of patches as (H, positions)."""
    image, hidden = clip.image, clip.stack.hidden
    grid = ops.cont(ops.transpose(x), image.across, image.down, hidden)
    across, down = image.across // merge, image.down // merge
    pooled = ops.sized("pool_2d", "f32", (across, down, hidden), grid)
    return ops.cont(ops.transpose(ops.reshape(pooled, across * down, hidden)))


def hears(stack: Stack) -> bool:
    """Whether a tower of Gemma 4 has one for sound beside it."""
    return any(one.path.startswith("audio.") for one in stack.extra)


def gemma4(clip: Clip) -> Tensor:
    """Positions of both axes from tables, norms of heads and behind blocks, an average, a projection."""
    stack, image = clip.stack, clip.image
    flat = ops.reshape(clip.convolved(ops.like("scale", clip.pixels)), image.patches, stack.hidden)
    x = ops.cont(ops.transpose(flat))
    rows = next(one.shape[1] for one in stack.extra if one.path == "vision.positions_xy")
    for _ in range(2):
        table = clip.weight(stack.hidden, rows, dtype="f32")
        x = ops.like("add", x, ops.get_rows(table, fed("i32", image.patches)))
    turn, clip.clamps = _turned_by_halves(clip), True
    for layer in stack.layers:
        x = clip.layer(layer, x, turn, plain_values=False)
    x = ops.like("scale", _pooled(clip, x, GEMMA4_MERGE))
    return ops.like("rms_norm", clip.linear(x, stack.projector[0][1], bias=False))


def pixtral(clip: Clip) -> Tensor:
    """Rotary positions, squares of patches unfolded into one row each, a token at each line's end."""
    stack, image = clip.stack, clip.image
    turn = _turned_by_halves(clip)
    x = clip.norm(clip.patches(), stack.embedding_norm)
    for layer in stack.layers:
        x = clip.layer(layer, x, turn)
    merge = round((stack.projector[0][0] / stack.hidden) ** 0.5)
    across, down = image.across // merge, image.down // merge
    x = clip.norm(x, Norm.RMS)
    grid = ops.cont(ops.permute(ops.reshape(x, stack.hidden, image.across, image.down), 2, 0, 1, 3))
    kernel = ops.view(grid, merge, merge, stack.hidden)
    x = ops.sized("im2col", "f32", (stack.hidden * merge**2, across, down), kernel, grid)
    x = clip.linear(ops.reshape(x, x.ne[0], across * down), stack.hidden, bias=False)
    x = clip.mlp(x, *(width for _, width, _ in stack.projector[1:]), bias=stack.projector[1][2])
    lines = ops.like("scale", Tensor("f32", ops.shaped(x.ne[0], 1, down)))
    lines = ops.like("add", lines, clip.weight(x.ne[0]))
    return ops.view(ops.concat(ops.reshape(x, x.ne[0], across, down), lines, 1), x.ne[0], across * down + down - 1)


def _in_squares(clip: Clip, x: Tensor) -> Tensor:
    """Rows of (2 H, across / 2, down) in the order of squares of four patches, as (H, N)."""
    image, hidden = clip.image, clip.stack.hidden
    x = ops.cont(x, 2 * hidden, image.across // 2, image.down)
    x = ops.permute(ops.reshape(x, 2 * hidden, image.across // 2, 2, image.down // 2), 0, 2, 1, 3)
    return ops.cont(x, hidden, image.patches)


def _two_frames(clip: Clip) -> Tensor:
    """An image stands for two frames, each with its kernel."""
    first = clip.convolved(clip.pixels)
    return _in_squares(clip, ops.permute(ops.like("add", first, clip.convolved(clip.pixels)), 1, 2, 0, 3))


def _merged(clip: Clip, x: Tensor) -> Tensor:
    """Four patches side by side through the projector's linears."""
    (width, inner, bias), (_, out, _) = clip.stack.projector
    rows = ops.reshape(x, width, x.elements // width)
    return clip.mlp(rows, inner, out, bias=bias)


def qwen2vl(clip: Clip) -> Tensor:
    """Qwen2-VL, and Qwen2.5-VL, most of whose layers see windows: by a mask over all patches."""
    stack, patches = clip.stack, clip.image.patches
    x, places = _two_frames(clip), fed("i32", 4 * patches)
    windowed = stack.projector_norm is Norm.RMS
    mask = _mask(clip) if windowed else None
    if windowed:
        squares = ops.reshape(x, 4 * stack.hidden, patches // 4)
        x = ops.reshape(ops.get_rows(squares, fed("i32", patches // 4)), stack.hidden, patches)
    for index, layer in enumerate(stack.layers):
        whole = (index + 1) % WINDOW_PATTERN == 0
        x = clip.layer(layer, x, lambda one: ops.like("rope", one, places), mask=None if whole else mask)
    x = _merged(clip, clip.norm(x, stack.projector_norm))
    return ops.get_rows(x, fed("i32", patches // 4)) if windowed else x


def _mask(clip: Clip) -> Tensor:
    """Of windows: f32, in half and of whole tiles where flash attention reads it."""
    patches = clip.image.patches
    mask = fed("f32", patches, patches)
    if not clip.flash:
        return mask
    rows = round_up(patches, MASK_MULTIPLE) if clip.pads_mask else patches
    return ops.cast(ops.sized("pad", "f32", (patches, rows), mask) if rows > patches else mask, "f16")


def qwen3vl(clip: Clip) -> Tensor:
    """Qwen3-VL and Qwen3.5: learned positions resized, features of inner layers kept beside the last ones."""
    stack, image = clip.stack, clip.image
    x = ops.like("add", _two_frames(clip), clip.weight(stack.hidden))
    side = round((stack.vision.positions if stack.vision else 0) ** 0.5)
    table = clip.weight(stack.hidden, side**2, dtype="f32")
    if (image.across, image.down) != (side, side):
        square = ops.permute(ops.reshape(table, stack.hidden, side, side), 2, 0, 1, 3)
        table = ops.sized("upscale", "f32", (image.across, image.down, stack.hidden), square)
        table = ops.cont(ops.permute(table, 1, 2, 0, 3), stack.hidden, image.patches)
    x, places = ops.like("add", x, _in_squares(clip, table)), fed("i32", 4 * image.patches)
    kept = len({one.path.split(".")[1] for one in stack.extra if one.path.startswith("deepstack.")})
    features: Tensor | None = None
    for index, layer in enumerate(stack.layers):
        x = clip.layer(layer, x, lambda one: ops.like("rope", one, places), fused=True)
        if kept and index in DEEPSTACK[stack.num_layers]:
            width = stack.projector[0][0]
            one = _merged(clip, clip.norm(ops.reshape(x, width, x.elements // width), Norm.LAYER))
            features = one if features is None else ops.concat(features, one, 0)
    x = _merged(clip, clip.norm(x, stack.projector_norm))
    return x if features is None else ops.concat(x, features, 0)


def internvl(clip: Clip) -> Tensor:
    """A class token behind the patches, scaled residuals, squares of patches side by side."""
    stack, image = clip.stack, clip.image
    x = ops.concat(clip.patches(), clip.weight(stack.hidden), 1)
    x = ops.like("add", x, clip.weight(stack.hidden, image.patches + 1, dtype="f32"))
    for layer in stack.layers:
        x = clip.layer(layer, x)
    x = ops.view(clip.norm(x, stack.final_norm), stack.hidden, image.patches)
    width = stack.projector[0][0]
    merge = round((width / stack.hidden) ** 0.5)
    x = ops.permute(ops.reshape(x, stack.hidden * merge, image.down // merge, image.across), 0, 2, 1, 3)
    x = ops.permute(ops.cont(x, width, image.down // merge, image.across // merge), 0, 2, 1, 3)
    x = ops.cont(x, width, image.patches // merge**2)
    return clip.mlp(clip.norm(x, Norm.LAYER), *(out for _, out, _ in stack.projector), bias=True)


def llava(clip: Clip) -> Tensor:
    """CLIP up to the layer before the last that its file has, which lacks the tower's last; two linears.

    A position table of 16 bits becomes f32 as its rows are taken.
    """
    stack, rows = clip.stack, clip.image.patches + 1
    x = ops.concat(clip.patches(), clip.weight(stack.hidden), 1)
    x = clip.norm(ops.like("add", x, ops.get_rows(clip.weight(stack.hidden, rows), fed("i32", rows))), Norm.LAYER)
    for layer in stack.layers[:-2]:
        x = clip.layer(layer, x)
    x = ops.get_rows(ops.reshape(x, x.ne[0], x.ne[1]), fed("i32", clip.image.patches))
    return clip.mlp(x, *(out for _, out, _ in stack.projector), bias=True)
