"""Eager training of forward code written for a `Tape`: what autograd saves, and what backward allocates.

The forward code is that of inference. Every operator that a gradient flows through notes what it keeps; backward
walks the notes from the last to the first and allocates gradients, which die as PyTorch's reference counts let them.

[derivatives] pytorch tools/autograd/derivatives.yaml: products keep one factor where the other needs a gradient;
attention, norms and convolutions keep their inputs in any case.
[engine] pytorch torch/csrc/autograd/engine.cpp, input_buffer.cpp `accumulate`: a gradient that nobody else holds is
summed in place. [checkpoint] torch/utils/checkpoint.py: a block's inputs are kept, its operators run again in
backward. [autocast] pytorch aten/src/ATen/autocast_mode.h: products in 16 bits, norms in fp32; casts of weights that
learn are kept until the forward ends. [flash] [efficient]: operators/attention.py
[float8] pytorch/ao v0.18 torchao/float8/float8_linear.py `matmul_with_hp_or_float8_args`, float8_scaling_utils.py
`hp_tensor_to_float8_dynamic`: both sides become fp32, then 8 bits; the input is kept, and a gradient of the weight
made, whether it learns or not.
[peft] huggingface/peft tuners/lora/layer.py `Linear.forward`: the input is cast to the adapter's type, unasked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from vramcast.domain.program import Category, Tensor
from vramcast.operators.eager import Array, Shape, Storage, Tape, kernel_of_convolution
from vramcast.units import FP32, round_up

UNSHARED: Final = 2
"""References to a storage that one gradient alone holds: its own, and the one that counts them."""


class Learning(NamedTuple):
    """What learns, and in which types."""

    full: bool = False  # every weight of the network
    width: int = FP32  # of a weight that learns, and of its gradient [bytes]
    of_text: bool = False  # weights that read the text alone
    embedding: bool = False  # tables of words alone
    autocast: int = 0  # width of autocast's type; 0: none
    adapts: Callable[[str], bool] = lambda _: False  # which linears have an adapter
    rank: int = 0
    casts_input: bool = False  # adapters read their input in their own type [peft]
    modulation: bool = False  # scales and gates need gradients
    checkpoint: bool = False
    scores: bool = False  # attention is written out, its scores materialised [kohya] library/original_unet.py
    float8: bool = False  # frozen products of a multiple of 16 features are made of 8-bit copies [float8]
    frozen: int = 0  # width of weights that do not learn, where autocast copies each for its product [bytes]
    packed: bool = False  # frozen products unpack their weight, forward and backward
    block_elements: Mapping[str, int] = {}  # weights of one block of a part of the network
    elements: int = 0  # weights of the whole network
    workspaces: Mapping[str, float] = {}  # of cuDNN: kernel and what is computed -> share of the tensors it moves


class Edge:
    """A value that needs a gradient, and the gradient once it is there."""

    __slots__ = ("grad", "name", "shape", "split", "width")

    def __init__(self, name: str, shape: Shape, width: int) -> None:
        self.name, self.shape, self.width = name, shape, width
        self.grad: Storage | None = None
        self.split: Call | None = None  # parts of it that were cut


class Tracked(Array):
    """A tensor of forward code that may need a gradient."""

    __slots__ = ("edge", "tape")

    def __init__(self, shape: Shape, width: int, storage: Storage | None, tape: Training, edge: Edge | None) -> None:
        super().__init__(shape, width, storage)
        self.edge = edge
        self.tape = tape

    def view(self, *shape: int) -> Tracked:
        """Other sizes of it; fewer elements are a part, whose gradient becomes one of the whole."""
        found = Tracked(shape, self.width, self.storage, self.tape, self.edge)
        if self.edge is not None and found.elements < self.elements:
            found.edge = self.tape.cut(self.edge, shape)
        return found


class Call:
    """What backward needs of an operator."""

    __slots__ = ("again", "inputs", "outputs", "owner", "passes", "saved", "temporaries", "weights")

    def __init__(
        self, outputs: list[Edge], inputs: list[Edge | None], *, owner: str, saved: Sequence[Storage | None] = (),
        passes: bool = False, temporaries: Sequence[tuple[str, int]] = (), weights: Sequence[tuple[str, int]] = (),
        again: Callable[[list[Storage | None]], None] | None = None,
    ) -> None:
        self.outputs, self.inputs, self.owner = outputs, inputs, owner
        self.saved: list[Storage | None] = list(saved)
        self.passes = passes  # the output's gradient is the inputs'
        self.temporaries = temporaries
        self.weights = weights  # names and elements of those whose gradients it makes
        self.again = again


class Training(Tape):
    """Records a step: forward by the network's code, then `backward`."""

    def __init__(self, owner: str, source: str, learning: Learning) -> None:
        super().__init__(owner, source, dequantises=learning.packed)
        self.learning = learning
        self.calls: list[Call] = []
        self.is_saving = True
        self.is_backward = False
        self.encoded: list[Array] = []  # by encoders that learn
        self.adapters: list[tuple[str, Shape]] = []  # weights of adapters, as forward comes by
        self.casts: list[Array] = []  # of weights, in autocast's cache
        self.gradients: list[Storage] = []
        self.kept: list[Tensor] = []  # gradients that the step leaves, in order
        self.named = 0  # elements of weights that forward has come by
        self.learned = 0  # elements of weights whose gradients were made
        self.transient = False  # gradients are summed into those of an earlier micro-batch

    # what a forward makes

    def new(self, name: str, shape: Sequence[int], width: int, category: Category = Category.ACTIVATIONS) -> Tracked:
        made = super().new(name, shape, width, category)
        return Tracked(made.shape, made.width, made.storage, self, None)

    def outside(self, shape: Sequence[int], width: int) -> Tracked:
        return Tracked(tuple(shape), width, None, self, None)

    def prompt(self, name: str, shape: Sequence[int], width: int) -> Array:
        """What encoders made of a text; a gradient goes back into those that learn."""
        return self.note(name, self.new(name, shape, width), self.encoded, passes=True)

    def embedded(self, name: str, shape: Sequence[int], width: int, elements: int) -> Array:
        learns = self.learning.full or self.learning.embedding
        return self.note(name, self.new(name, shape, width), [], weights=[(name, elements)] if learns else [])

    def modulation(self, x: Array, width: int | None = None) -> Tracked:
        width = width or self.learning.autocast or x.width
        found = self.outside((x.shape[0], x.shape[-1]), width)
        found.edge = Edge("modulation", found.shape, width) if self.learning.modulation else None
        return found

    def learns(self, x: Array) -> Tracked:
        """x as what a gradient is made for."""
        assert isinstance(x, Tracked)
        x.edge = x.edge or Edge("input", x.shape, x.width)
        return x

    def note(
        self, name: str, out: Array, inputs: Sequence[Array | None], *, saved: Sequence[Array | None] = (),
        passes: bool = False, temporaries: Sequence[tuple[str, int]] = (), weights: Sequence[tuple[str, int]] = (),
    ) -> Tracked:
        """`out` as the result of an operator, with what it keeps if a gradient flows through it."""
        assert isinstance(out, Tracked)
        self.named += sum(elements for _, elements in weights)
        edges = [x.edge if isinstance(x, Tracked) else None for x in inputs]
        if not weights and not any(edges):
            return out
        out.edge = Edge(name, out.shape, out.width)
        if self.is_saving:
            self.calls.append(Call(
                [out.edge], edges, owner=self.owner, saved=[x.storage for x in saved if x is not None], passes=passes,
                temporaries=temporaries, weights=weights,
            ))
        return out

    def cut(self, edge: Edge, shape: Shape) -> Edge:
        """A part of a value; parts cut one after the other give one gradient back."""
        part = Edge(edge.name, shape, edge.width)
        if not self.is_saving:
            return part
        if edge.split is None:
            edge.split = Call([], [edge], owner=self.owner)
            self.calls.append(edge.split)
        edge.split.outputs.append(part)
        return part

    def repeat(self, count: int, body: Callable[..., tuple[Array, ...]], state: list[Array]) -> None:
        for _ in range(count):
            state[:] = self.block(body, *state)

    def block(self, body: Callable[..., tuple[Array, ...]], *arrays: Array) -> tuple[Array, ...]:
        """The body's operators, or its inputs alone where they run again in backward."""
        if not self.is_saving or not self.learning.checkpoint:
            return self._complete(body, arrays)
        self.is_saving = False
        outs = self._complete(body, arrays)
        self.is_saving = True
        made = tuple(self._fresh(x) for x in outs)
        edges = [x.edge for x in made if x.edge is not None]
        owner, learning = self.owner, self.learning

        def again(grads: list[Storage | None]) -> None:
            outer, self.learning = self.learning, learning
            self._again(body, arrays, grads, owner)
            self.learning = outer

        if edges:
            inputs = [x.edge if isinstance(x, Tracked) else None for x in arrays]
            self.calls.append(Call(edges, inputs, owner=owner, again=again))
        return made

    def _fresh(self, x: Array) -> Tracked:
        edge = x.edge if isinstance(x, Tracked) else None
        return Tracked(x.shape, x.width, x.storage, self, edge and Edge(edge.name, x.shape, x.width))

    def _complete(self, body: Callable[..., tuple[Array, ...]], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """The body, and gradients of the weights that it does not name: modulation, norms."""
        first, before = len(self.calls), self.named
        outs = body(*arrays)
        if self.learning.full and self.owner in self.learning.block_elements:
            self._unnamed(first, self.learning.block_elements[self.owner] - (self.named - before))
        return outs

    def _unnamed(self, first: int, elements: int) -> None:
        """So many elements of weights that the forward code does not name: modulation, norms."""
        if elements > 0:
            cast = self._weight(elements, learns=True)
            self.named += elements
            if self.is_saving:
                kept = [] if cast is None else [cast.storage]
                weights = [("modulation and norms", elements)]
                self.calls.insert(first, Call([], [], owner=self.owner, saved=kept, weights=weights))

    def _again(
        self, body: Callable[..., tuple[Array, ...]], arrays: tuple[Array, ...], grads: list[Storage | None], owner: str
    ) -> None:
        outer, self.calls, before, self.owner = self.calls, [], self.owner, owner
        casts, self.casts = self.casts, []
        inner = [self._fresh(x) for x in arrays]
        outs = self._complete(body, tuple(inner))
        edges = [x.edge for x in outs if isinstance(x, Tracked) and x.edge is not None]
        del outs
        self.casts = casts
        for edge, grad in zip(edges, grads, strict=True):
            edge.grad = grad
        grads.clear()
        del edge, grad
        self._walk()
        self.calls, self.owner = outer, before
        for x, copy in zip(arrays, inner, strict=True):
            if isinstance(x, Tracked) and x.edge is not None and copy.edge is not None and copy.edge.grad is not None:
                found, copy.edge.grad = copy.edge.grad, None
                self._accumulate(x.edge, found)

    # point-wise

    def cast(self, x: Array, width: int, name: str = "cast") -> Array:
        return x if x.width == width else self.note(name, self.like(name, x, width), [x])

    def add(self, a: Array, b: Array | None = None, name: str = "sum") -> Array:
        return self.note(name, super().add(a, b, name), [a, b], passes=True)

    def multiply(self, a: Array, b: Array | None = None, name: str = "product") -> Array:
        out = super().add(a, b, name)
        kept = [x for x, other in ((a, b), (b, a)) if isinstance(other, Tracked) and other.edge is not None]
        return self.note(name, out, [a, b], saved=kept)

    def activation(self, x: Array, name: str = "activated") -> Array:
        return self.note(name, super().activation(x, name), [x], saved=[x])

    def cat(self, parts: Sequence[Array], axis: int, name: str = "joined") -> Array:
        return self.note(name, super().cat(parts, axis, name), parts, passes=True)

    def copy(self, x: Array, name: str = "contiguous") -> Array:
        return self.note(name, super().copy(x, name), [x], passes=True)

    def pad(self, x: Array, more: Sequence[int], name: str = "padded") -> Array:
        return self.note(name, super().pad(x, more, name), [x], passes=True)

    def upsample(self, x: Array, factor: Sequence[int], name: str = "upsampled") -> Array:
        return self.note(name, super().upsample(self._wide(x, name), factor, name), [x])

    def written(self, part: Array) -> Array:
        assert isinstance(part, Tracked)
        return Tracked(part.shape, part.width, None, self, part.edge)

    def assigned(self, out: Array, parts: Sequence[Array]) -> Array:
        return self.note("assigned", out, parts)

    # networks' operators

    def _narrow(self, x: Array, name: str) -> Array:
        return self.cast(x, self.learning.autocast, f"{name}.input") if self.learning.autocast else x

    def _wide(self, x: Array, name: str) -> Array:
        return self.cast(x, FP32, f"{name}.fp32") if self.learning.autocast else x

    def _weight(self, elements: int, *, learns: bool) -> Array | None:
        """The 16-bit copy of a weight in fp32 under autocast; of one that learns it stays to the end of forward."""
        narrow = self.learning.autocast
        if not narrow or narrow >= (self.learning.width if learns else self.learning.frozen):
            return None
        if not learns:
            return self.new("copy of a frozen weight", (elements,), narrow)
        cast = self.new("cast weight", (elements,), self.learning.autocast)
        self.casts.append(cast)
        return cast

    def _product(self, x: Array, out: Array, name: str, elements: int, *, learns: bool) -> Array:
        weight = self._weight(elements, learns=learns)
        needs = isinstance(x, Tracked) and x.edge is not None
        unpacked = [(f"{name} dequantised weight", elements * x.width)] if self.dequantises and not learns else []
        return self.note(
            name, out, [x], saved=([x] if learns else []) + ([weight] if needs else []), temporaries=unpacked,
            weights=[(name, elements)] if learns else [],
        )

    def linear(self, x: Array, out_features: int, name: str, *, of_text: bool = False) -> Array:
        learning, in_features = self.learning, x.shape[-1]
        narrow = self._narrow(x, name)
        learns = learning.full or (learning.of_text and of_text)
        if learning.float8 and not learns and name != "noise" and in_features % 16 == out_features % 16 == 0:
            y = self._in_8_bits(narrow, out_features, name)
        else:
            y = super().linear(narrow, out_features, name)
            y = self._product(narrow, y, name, in_features * out_features, learns=learns)
        del narrow
        if not learning.adapts(name):
            return y
        return self._adapted(x, y, name, (*x.shape[:-1], learning.rank), (in_features, out_features))

    def _in_8_bits(self, x: Array, out_features: int, name: str) -> Array:
        """x W^T of 8-bit copies that both sides become by way of two fp32 ones [float8].

        Valid for: linears without a bias
        """
        read, weights, made = x.elements, x.shape[-1] * out_features, x.elements // x.shape[-1] * out_features
        self._scratch(f"{name} input in fp32", FLOAT8_MAKING * read)
        copies = [self._scratch(f"{name} input in 8 bits", read)]
        self._scratch(f"{name} weight in fp32", FLOAT8_MAKING * weights)
        copies.append(self._scratch(f"{name} weight in 8 bits", weights))
        y = self.new(name, (*x.shape[:-1], out_features), x.width)
        del copies
        gradient = x.num_bytes
        ahead = max(FLOAT8_MAKING * made, made + FLOAT8_MAKING * weights) - gradient
        of_weight = max(FLOAT8_MAKING * made, made + FLOAT8_MAKING * read, 2 * (made + read) + weights * x.width)
        return self.note(name, y, [x], saved=[x],
                         temporaries=[(f"{name} in 8 bits", max(ahead, made + weights + of_weight))])

    def _adapted(self, x: Array, y: Array, name: str, low: Shape, sizes: tuple[int, int]) -> Array:
        """y + scaling * B(A(x)).

        Args:
            low: shape of A(x)
            sizes: elements of the weight that one output reads, and outputs
        """
        learning, (columns, outputs) = self.learning, sizes
        x = self.cast(x, learning.width, f"{name}.adapter input") if learning.casts_input else x
        read = self._narrow(x, f"{name}.adapter")
        rank = learning.rank
        if not self.is_backward:
            self.adapters += [(f"{name}.lora_A", (rank, columns)), (f"{name}.lora_B", (outputs, rank))]
        down = self.new(f"{name}.lora_A", low, read.width)
        down_ = self._product(read, down, f"{name}.lora_A", columns * rank, learns=True)
        up = self.new(f"{name}.lora_B", y.shape, read.width)
        up_ = self._product(down_, up, f"{name}.lora_B", rank * outputs, learns=True)
        del read, down, down_, up
        scaled = self.multiply(up_, name=f"{name}.lora scaled")
        del up_
        return self.add(y, scaled, name=f"{name}.adapted")

    def layer_norm(self, x: Array, name: str = "normed") -> Array:
        x = self._wide(x, name)
        rows = x.elements // x.shape[-1]
        kept = [self.new(f"{name}.{part}", (rows,), FP32) for part in ("mean", "rstd")]
        return self.note(name, self.like(name, x), [x], saved=[x, *kept])

    def group_norm(self, x: Array, name: str = "normed") -> Array:
        x = self._wide(x, name)
        return self.note(name, super().group_norm(x, name), [x], saved=[x])

    def torch_rms_norm(self, x: Array, name: str = "normed") -> Array:
        """One kernel since torch 2.9; under autocast in fp32."""
        x = self._wide(x, name)
        kept = self.new(f"{name}.rstd", (x.elements // x.shape[-1],), FP32)
        return self.note(name, self.like(name, x), [x], saved=[x, kept])

    def rms_norm(self, x: Array, name: str = "normed", *, fused: bool = False) -> Array:
        if fused:
            return self.torch_rms_norm(x, name)
        wide = self.cast(x, FP32, f"{name}.fp32")
        square = self.multiply(wide, name=f"{name}.square")
        inverse = self.new(f"{name}.rsqrt", (*x.shape[:-1], 1), FP32)
        inverse = self.note("rsqrt", inverse, [square], saved=[inverse, wide])
        del wide, square
        scaled = self.multiply(x, inverse, f"{name}.scaled")
        narrow = self.cast(scaled, self.learning.width if self.learning.full else x.width, f"{name}.narrow")
        del scaled, inverse
        kept = [narrow] if self.learning.full else []
        return self.note(name, self.like(name, narrow), [narrow], saved=kept)

    def attention(
        self, q: Array, k: Array | None = None, v: Array | None = None, *, v_width: int | None = None,
        name: str = "attention",
    ) -> Array:
        read = [self._narrow(x, name) for x in (q, k, v) if x is not None]
        batch, queries, heads, head_dim = q.shape
        if self.learning.scores and k is not None:
            scores = self.new(f"{name}.scores", (batch * heads, queries, k.shape[1]), read[0].width)
            wide = self._wide(self.note("scores", scores, read[:2], saved=read[:2]), f"{name}.scores")
            softmax = self.like(f"{name}.softmax", wide)
            softmax = self.note("softmax", softmax, [wide], saved=[softmax])
            del scores, wide
            weights = self.cast(softmax, read[0].width, f"{name}.weights")
            del softmax
            out = self.new(name, (batch, queries, heads, v_width or head_dim), read[0].width)
            return self.note(name, out, [weights, read[2]], saved=[weights, read[2]])
        out = self.new(name, (batch, queries, heads, v_width or head_dim), read[0].width)
        padded = queries if read[0].width < FP32 else round_up(queries, 32)
        sums = self.new(f"{name}.logsumexp", (batch, heads, padded), FP32)
        rows = batch * heads * round_up(queries, 128)
        made = [(f"{name}.softmax_d", rows * 4)]
        if read[0].width < FP32:
            made.append((f"{name}.dq_accumulator", rows * round_up(head_dim, 32 if head_dim <= 128 else 64) * 4))
        return self.note(name, out, read, saved=[*read, out, sums], temporaries=made)

    def conv(
        self, x: Array, out_channels: int, *, kernel: int | Shape = 3, stride: int | Shape = 1,
        padding: int | Shape = 1, name: str = "convolved",
    ) -> Array:
        given = x
        x = self._narrow(x, name)
        kernels = (kernel,) * (len(x.shape) - 2) if isinstance(kernel, int) else kernel
        elements = x.shape[1] * out_channels * prod(kernels)
        learns = self.learning.full
        weight = self._weight(elements, learns=learns)
        out = super().conv(x, out_channels, kernel=kernel, stride=stride, padding=padding, name=name)
        kind = kernel_of_convolution(x.shape[1], kernels, (stride,) if isinstance(stride, int) else stride)
        moved = x.num_bytes + elements * x.width
        made = {phase: round(self.learning.workspaces.get(f"{kind} {phase}", 0) * (moved + more))
                for phase, more in (("forward", 0), ("data", out.num_bytes), ("filter", out.num_bytes))}
        forward = self._scratch(f"{name} cuDNN workspace", made["forward"])
        del forward
        needs = isinstance(x, Tracked) and x.edge is not None
        backward = max(made["data"] * needs, made["filter"] * learns)
        out = self.note(
            name, out, [x], saved=[x, weight], weights=[(name, elements)] if learns else [],
            temporaries=[(f"{name} cuDNN workspace", backward)] if backward else [],
        )
        if not self.learning.adapts(name):
            return out
        del x, weight
        low = (out.shape[0], self.learning.rank, *out.shape[2:])
        return self._adapted(given, out, name, low, (elements // out_channels, out_channels))

    # backward

    def backward(self, out: Array) -> None:
        """The step's other half, from the gradient of what forward returned."""
        assert isinstance(out, Tracked)
        assert out.edge is not None
        edge = out.edge
        if self.learning.full:
            self._unnamed(0, self.learning.elements - self.named)
        self.casts.clear()
        self.is_backward = True
        edge.grad = self._gradient(edge)
        del out
        self._walk()

    def _walk(self) -> None:
        while self.calls:
            self._run(self.calls.pop())

    def _run(self, call: Call) -> None:
        before, self.owner = self.owner, call.owner
        grads: list[Storage | None] = []
        for edge in call.outputs:
            grads.append(edge.grad)
            edge.grad = None
        if call.again is not None:
            call.again(grads)
            self.owner = before
            return
        temporaries = [self._scratch(name, size) for name, size in call.temporaries]
        found: list[tuple[Edge, Storage]] = []
        for into in filter(None, call.inputs if any(grads) else ()):
            passed = grads[0] if call.passes and into.width == call.outputs[0].width else None
            found.append((into, passed or self._gradient(into)))
        for name, elements in call.weights:
            self._learn(name, elements)
        del temporaries
        grads.clear()
        passed = None
        call.saved.clear()
        while found:
            edge, grad = found.pop(0)
            self._accumulate(edge, grad)
            del grad
        self.owner = before

    def _gradient(self, edge: Edge) -> Storage:
        storage = super().new(f"gradient of {edge.name}", edge.shape, edge.width).storage
        assert storage is not None
        return storage

    def _scratch(self, name: str, num_bytes: int) -> Storage | None:
        if not num_bytes:
            return None
        return super().new(name, (num_bytes,), 1, Category.TEMPORARIES).storage

    def _learn(self, name: str, elements: int) -> None:
        """The gradient of a weight: in autocast's type first, then as wide as the weight."""
        narrow = self.learning.autocast
        casts = 0 < narrow < self.learning.width
        cast = self._scratch(f"gradient of {name} cast", elements * narrow) if casts else None
        made = super().new(f"gradient of {name}", (elements,), self.learning.width, Category.GRADIENTS).storage
        assert made is not None
        del cast
        self.learned += elements
        if not self.transient:
            self.gradients.append(made)
            self.kept.append(made.tensor)

    def _accumulate(self, edge: Edge, grad: Storage) -> None:
        if edge.grad is None:
            edge.grad = grad
        elif sys.getrefcount(edge.grad) > UNSHARED:
            edge.grad = self._gradient(edge)


FLOAT8_MAKING: Final = 2 * FP32 + 1
"""The product with a scale and its clamp in fp32, and the result [bytes of an element]."""

__all__ = ["Learning", "Training"]
