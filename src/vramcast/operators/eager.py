"""Eager execution without autograd: forward code whose tensors live as long as Python refers to them.

A forward is written like the framework's own code, over shapes instead of numbers. Every new tensor is an allocation
in the program; when the last reference to its storage goes (a variable is bound anew, a function returns), it is freed,
as the caching allocator sees it from PyTorch. Views share the storage they look at.

[aten] pytorch aten/src/ATen/native: point-wise operators and products make one new tensor; casts to the same type none.
[sdpa] pytorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: the output and fp32 log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Final, Literal

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.units import FP32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Shape = tuple[int, ...]


class Storage:
    """Memory of a tensor; it is freed with its last reference."""

    __slots__ = ("tape", "tensor")

    def __init__(self, tape: Tape, tensor: Tensor) -> None:
        self.tape = tape
        self.tensor = tensor
        tape.nodes.append(Alloc(tensor))

    def __del__(self) -> None:
        self.tape.nodes.append(Free(self.tensor))


class Array:
    """A tensor of forward code: sizes, bytes of one element, and the storage it looks at."""

    __slots__ = ("shape", "storage", "width")

    def __init__(self, shape: Shape, width: int, storage: Storage | None) -> None:
        self.shape = shape
        self.width = width
        self.storage = storage

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.elements * self.width

    def view(self, *shape: int) -> Array:
        """Other sizes of the same storage; a part of it, an expansion or a permutation too."""
        return Array(shape, self.width, self.storage)

    def chunk(self, parts: int, axis: int = -1) -> list[Array]:
        """Equal parts along an axis, as views."""
        sizes = list(self.shape)
        sizes[axis] //= parts
        return [self.view(*sizes) for _ in range(parts)]


class Tape:
    """Records what forward code does to memory."""

    def __init__(self, owner: str, source: str, *, dequantises: bool = False) -> None:
        self.owner = owner
        self.source = source
        self.dequantises = dequantises  # a product unpacks its weight to the width of its input first
        self.nodes: list[Node] = []
        self.names: dict[tuple[str, Shape, int, str], Tensor] = {}

    @property
    def program(self) -> Program:
        return tuple(self.nodes)

    @contextmanager
    def owned(self, owner: str) -> Iterator[None]:
        """Tensors made inside belong to that part of the network."""
        before, self.owner = self.owner, owner
        yield
        self.owner = before

    def new(self, name: str, shape: Sequence[int], width: int, category: Category = Category.ACTIVATIONS) -> Array:
        """A new tensor. Equal ones of one owner are instances of one ledger entry."""
        sizes = tuple(shape)
        key = (name, sizes, width, self.owner)
        if key not in self.names:
            self.names[key] = Tensor(
                name=name, num_bytes=prod(sizes) * width, category=category, owner=self.owner, source=self.source,
                formula=f"{' x '.join(f'{size:,}' for size in sizes)} x {width} B",
            )
        return Array(sizes, width, Storage(self, self.names[key]))

    def outside(self, shape: Sequence[int], width: int) -> Array:
        """A tensor of nobody's: weights, and what is too small to list."""
        return Array(tuple(shape), width, None)

    def repeat(self, count: int, body: Callable[..., tuple[Array, ...]], state: list[Array]) -> None:
        """`state = body(*state)` so many times: once written out, the others as a loop of equal rounds.

        The state is a list that the caller holds instead of variables, so that a round's input dies as it does when a
        loop binds its variable anew.
        """
        for round_ in range(min(2, count)):
            start = len(self.nodes)
            state[:] = body(*state)
            if round_:
                self.nodes[start:] = [Loop(count - 1, tuple(self.nodes[start:]), label=self.owner)]

    # point-wise

    def like(self, name: str, x: Array, width: int | None = None) -> Array:
        """A new tensor of the sizes of x."""
        return self.new(name, x.shape, width or x.width)

    def cast(self, x: Array, width: int, name: str = "cast") -> Array:
        """`x.to(dtype)`: x itself where it has that width."""
        return x if x.width == width else self.like(name, x, width)

    def add(self, a: Array, b: Array | None = None, name: str = "sum") -> Array:
        """a + b, or a * b, or a + number: as wide as the wider, as large as the larger one."""
        if b is None:
            return self.like(name, a)
        large = a if a.elements >= b.elements else b
        return self.like(name, large, max(a.width, b.width))

    def multiply(self, a: Array, b: Array | None = None, name: str = "sum") -> Array:
        """a * b, or a * number."""
        return self.add(a, b, name)

    def modulation(self, x: Array, width: int | None = None) -> Array:
        """A scale or gate of x: a vector of every sample, too small to list, from the step's embedding."""
        return self.outside((x.shape[0], x.shape[-1]), width or x.width)

    def prompt(self, name: str, shape: Sequence[int], width: int) -> Array:
        """What encoders made of a text."""
        return self.new(name, shape, width)

    def embedded(self, name: str, shape: Sequence[int], width: int, elements: int) -> Array:
        """Rows of a table of so many elements."""
        return self.new(name, shape, width)

    def block(self, body: Callable[..., tuple[Array, ...]], *arrays: Array) -> tuple[Array, ...]:
        """What training may run again in backward."""
        return body(*arrays)

    def activation(self, x: Array, name: str = "activated") -> Array:
        """silu, gelu, relu as one operator."""
        return self.like(name, x)

    def cat(self, parts: Sequence[Array], axis: int, name: str = "joined") -> Array:
        """The parts one behind the other, copied."""
        sizes = list(parts[0].shape)
        sizes[axis] = sum(part.shape[axis] for part in parts)
        return self.new(name, sizes, max(part.width for part in parts))

    def copy(self, x: Array, name: str = "contiguous") -> Array:
        return self.like(name, x)

    def pad(self, x: Array, more: Sequence[int], name: str = "padded") -> Array:
        """x with so much more along its last axes."""
        lead = len(x.shape) - len(more)
        sizes = (*x.shape[:lead], *(size + extra for size, extra in zip(x.shape[lead:], more, strict=True)))
        return self.new(name, sizes, x.width)

    def written(self, part: Array) -> Array:
        """A part that is copied into another tensor, and dies."""
        return self.outside(part.shape, part.width)

    def assigned(self, out: Array, parts: Sequence[Array]) -> Array:
        """A tensor whose parts were written one after the other."""
        return out

    # networks' operators

    def linear(self, x: Array, out_features: int, name: str, *, of_text: bool = False) -> Array:
        """x W^T + b; a quantised weight is unpacked whole for the product.

        Args:
            of_text: it reads what encoders made, which training may tell apart
        """
        unpacked = self.new("dequantised weight", (out_features, x.shape[-1]), x.width) if self.dequantises else None
        out = self.new(name, (*x.shape[:-1], out_features), x.width)
        del unpacked
        return out

    def layer_norm(self, x: Array, name: str = "normed") -> Array:
        """The fused operator: its output beside two numbers a row [aten]."""
        rows = x.elements // x.shape[-1]
        statistics = [self.new(f"{name}.{part}", (rows,), FP32) for part in ("mean", "rstd")]
        out = self.like(name, x)
        del statistics
        return out

    def group_norm(self, x: Array, name: str = "normed") -> Array:
        return self.like(name, x)

    def rms_norm(self, x: Array, name: str = "normed", *, fused: bool = False) -> Array:
        """diffusers `RMSNorm`: x times the inverse root of its fp32 mean square; the square is a tensor of its own.

        Args:
            fused: networks that call torch.nn.RMSNorm, which training tells apart

        Source: huggingface/diffusers models/normalization.py `RMSNorm.forward`
        """
        wide = self.cast(x, FP32, f"{name}.fp32")
        square = self.like(f"{name}.square", wide)
        inverse = self.new(f"{name}.rsqrt", (*x.shape[:-1], 1), FP32)
        del wide, square
        scaled = self.like(f"{name}.scaled", x, FP32)
        del inverse
        narrow = self.cast(scaled, x.width, f"{name}.narrow")
        del scaled
        return self.like(name, narrow)

    def torch_rms_norm(self, x: Array, name: str = "normed") -> Array:
        """torch.nn.RMSNorm: an fp32 copy, its square and the scaled copy, one operator after the other."""
        wide = self.cast(x, FP32, f"{name}.fp32")
        squares = self.like(f"{name}.square", wide)
        del squares
        scaled = self.like(f"{name}.scaled", wide)
        weighted = self.like(f"{name}.weighted", scaled)
        del scaled, wide
        return self.cast(weighted, x.width, name)

    def attention(
        self, q: Array, k: Array | None = None, v: Array | None = None, *, v_width: int | None = None,
        name: str = "attention",
    ) -> Array:
        """Scaled-dot-product attention of (B, S, heads, D) queries [sdpa]."""
        batch, queries, heads, head_dim = q.shape
        out = self.new(name, (batch, queries, heads, v_width or head_dim), q.width)
        self.new(f"{name}.logsumexp", (batch, heads, queries), FP32)
        return out

    def conv(
        self, x: Array, out_channels: int, *, kernel: int | Shape = 3, stride: int | Shape = 1,
        padding: int | Shape = 1, name: str = "convolved",
    ) -> Array:
        """A convolution over the last axes (B, C, ...).

        Leaves out cuDNN's workspace: measured pipelines decode without a visible one.
        """
        axes = len(x.shape) - 2
        kernels, strides, paddings = (
            (size,) * axes if isinstance(size, int) else size for size in (kernel, stride, padding)
        )
        sizes = [
            (size + 2 * margin - window) // step + 1
            for size, window, step, margin in zip(x.shape[2:], kernels, strides, paddings, strict=True)
        ]
        return self.new(name, (x.shape[0], out_channels, *sizes), x.width)

    def upsample(self, x: Array, factor: Sequence[int], name: str = "upsampled") -> Array:
        """The last axes so many times larger."""
        lead = len(x.shape) - len(factor)
        sizes = (*x.shape[:lead], *(size * times for size, times in zip(x.shape[lead:], factor, strict=True)))
        return self.new(name, sizes, x.width)


NARROW_CHANNELS: Final = 4
"""Of an image: cuDNN has kernels of their own for so few."""


def kernel_of_convolution(
    channels: int, window: Iterable[int], stride: Iterable[int]
) -> Literal["narrow", "pointwise", "dense", "strided"]:
    """What kind of kernel cuDNN's heuristics take a convolution for, by the channels and window of its filter."""
    if channels <= NARROW_CHANNELS:
        return "narrow"
    if all(size == 1 for size in window):
        return "pointwise"
    return "dense" if all(step == 1 for step in stride) else "strided"


__all__ = ["FP32", "Array", "Tape"]
