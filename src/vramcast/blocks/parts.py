"""The small operators of a block, in the variants its sizes name.

Linear layers of a block: learned, frozen, stored in few bits, with an adapter.

What a block needs to know about the run: local sizes, element widths and implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.targets import JOINED, has, matrices, parts_of
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Layer, Model, Norm
from vramcast.operators import aten
from vramcast.operators.activation import FUSED
from vramcast.operators.activation import activation as _activation
from vramcast.operators.activation import gated_activation as _gated_activation
from vramcast.operators.attention import rope as _rope
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import QUANTISED, Dense, Numerics, cast, fake_linear, linear
from vramcast.operators.lora import ADAPTERS, Adapter, Target, folded
from vramcast.operators.norm import Norm as NormSpec
from vramcast.operators.norm import layer_norm, rms_norm
from vramcast.units import FP32

if TYPE_CHECKING:
    from vramcast.operators.linear import Fake
    from vramcast.operators.lora import Adapter


def norm_variant(model: Model) -> str:
    """The RMSNorm that a family's code in transformers writes, a key of RMS_NORM_VARIANTS."""
    if model.main.layers[0].norm is not Norm.RMS:
        return "eager"
    return next((name for name in ("gemma", "t5") if model.family.startswith(name)), "eager")


class Dispatch(Struct, frozen=True):
    """How torchtitan brings rows to their experts and back."""

    ranks: int = 1  # over which whole experts are spread
    row_ranks: int = 1  # tensor-parallel ranks that divide the rows among themselves
    in_order: bool = False  # rows come back in the order of tokens and are summed in fp32, instead of scattered
    fp32_gate: bool = False  # the gate reads an fp32 copy of the states


class Sizes(Struct, frozen=True):
    """One rank's share of a micro-batch, and how its operators are implemented."""

    batch: int  # samples
    seq_len: int  # positions of one sample that this rank attends from [tokens]
    hidden: int  # H
    numerics: Numerics = Numerics()
    attention: AttentionKernel = AttentionKernel.FLASH
    norm: str = "eager"  # key of RMS_NORM_VARIANTS
    activation: str = "eager"  # or a key of OVERWRITES
    rope: str = "eager"  # key of ROPE_VARIANTS
    fp32_softmax: bool = True  # eager attention computes its softmax in fp32
    masked: bool = False  # attention gets an explicit mask (padded batches)
    grouped: bool = True  # the attention kernel reads grouped key/value heads without copies
    keys: int | None = None  # positions attended to, when not seq_len (context parallelism)
    tp: int = 1  # tensor-parallel ranks
    sequence_parallel: bool = False  # norms and residuals hold seq_len / tp positions
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    frozen: bool = False  # no weight of the block learns, but those `trained` names
    trained: tuple[str, ...] = ()  # paths that learn although the block is frozen
    adapter: Adapter | None = None
    norm_weights: int | None = None  # bytes of an element of a norm's weight; None: as the other weights
    wide_layer_norms: bool = False  # autocast runs LayerNorm in fp32 although the stream is 16 bits wide
    stored: str = "full"  # key of QUANTISED: how frozen linear weights are stored
    left_whole: tuple[str, ...] = ()  # how the paths of those begin that are not
    fake: Fake | None = None  # linear layers round what they read to few bits and back
    stacked: bool = False  # packed experts are one tensor, unpacked all together
    loss_chunks: int = 1  # that a chunked loss takes the tokens in
    last_logits: int | None = None  # the head reads so many positions of a sample, counted from its end
    source_len: int = 0  # encoder positions that cross-attention reads [tokens]
    fused_gate: bool = False  # gate and up are halves of one product, which lives as long as either
    copies_scores: bool = False  # bf16 scores become fp32 in a copy before eager softmax; fp16 ones inside its kernel
    expert_loop: bool = False  # experts run one after the other instead of in one grouped product
    every_expert: bool = False  # all experts read all tokens, most of them with a score of zero (Llama 4)
    experts_in_place: bool = False  # ScatterMoE's kernels read and write rows where they are
    expert_ranks: int = 1  # that divide those experts
    expert_turns: int = 1  # how many turns of that loop are told apart: each leaves behind what backward reads
    caches: bool = False  # keys and values outlive the block
    caches_products: bool = False  # what the projections made outlives it, looked at as keys and values
    dispatch: Dispatch | None = None  # of experts, where they are not run as transformers does

    @property
    def tokens(self) -> int:
        """Rows of every matrix product."""
        return self.batch * self.seq_len

    @property
    def residual_tokens(self) -> int:
        """Rows of the residual stream on this rank."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def residual_bytes(self) -> int:
        """The residual stream of one rank [bytes]."""
        return self.residual_tokens * self.hidden * self.numerics.residual

    def packs(self, path: str) -> bool:
        """Whether a weight that does not learn is stored in few bits."""
        return self.stored != "full" and not path.startswith(self.left_whole)

    def trains(self, path: str) -> bool:
        """Whether a weight of a frozen block learns."""
        return any(path.startswith(name) for name in self.trained)


def norm(graph: Graph, name: str, x: Value, *, kind: Norm, elements: int, width: int, sizes: Sizes) -> Value:
    """A normalised copy of x.

    Args:
        name: owner of the weight, "mixer_norm"
        x: input of `elements` elements
        kind: which norm
        elements: rows x width
        width: elements one statistic covers
        sizes: element widths and whether the weight learns
    """
    if sizes.wide_layer_norms and kind is not Norm.RMS:
        x = cast(graph, x, elements=elements, to_bytes=FP32, name=f"{name}.input")
    spec = NormSpec(
        rows=elements // width, width=width, itemsize=x.num_bytes // elements,
        weight_itemsize=sizes.norm_weights or sizes.numerics.weight,
        trainable=(not sizes.frozen or sizes.trains(f"{name}.weight")) and kind is not Norm.PLAIN, name=name,
    )
    if kind is Norm.RMS:
        return rms_norm(graph, x, spec, sizes.norm)
    return layer_norm(graph, x, spec, sizes.norm if sizes.norm == "liger" else "eager")


def rope(
    graph: Graph, q: Value, k: Value, *, q_elements: int, k_elements: int, sizes: Sizes, fraction: float = 1.0,
    width: int = 0,
) -> tuple[Value, Value]:
    """Rotated queries and keys; with a fraction below 1 the rest is concatenated behind.

    Under autocast cos and sin have the residual stream's width, so the products have it too; `width` is of queries
    and keys, where that may be more [bytes].
    """
    tables = sizes.numerics.residual if sizes.numerics.autocast else sizes.numerics.compute
    width = max(tables, width)
    whole = (q_elements * width, k_elements * width)
    part = tuple(round(size * fraction) for size in whole)
    out = _rope(graph, q, k, q_bytes=part[0], k_bytes=part[1], variant=sizes.rope)
    if fraction == 1.0:
        return out
    return (
        aten.add(graph, out[0], q, num_bytes=whole[0], name="q.joined"),
        aten.add(graph, out[1], k, num_bytes=whole[1], name="k.joined"),
    )


def activation(graph: Graph, owner: str, x: Value, *, kind: str, elements: int, sizes: Sizes) -> Value:
    """act(x): torch.compile makes one kernel of what is several operators in eager code."""
    return _activation(
        graph, x, elements=elements, itemsize=x.num_bytes // elements,
        variant=FUSED if sizes.activation == "compiled" else kind, name=f"{owner}.act",
        autocast=sizes.numerics.autocast, trainable=not sizes.frozen,
    )


def gated_activation(
    graph: Graph, owner: str, gate: Value, *, kind: str, elements: int, sizes: Sizes, up: Callable[[], Value]
) -> Value:
    """act(gate) * up, where eager code projects `up` after the activation has run."""
    if sizes.activation != "eager":
        return _gated_activation(graph, [gate, up()], sizes.activation, owner)
    activated = activation(graph, owner, gate, kind=kind, elements=elements, sizes=sizes)
    return product(graph, f"{owner}.product", activated, up())


def product(graph: Graph, name: str, a: Value, b: Value) -> Value:
    """a * b of as many elements, as wide as the wider one."""
    size = max(a.num_bytes, b.num_bytes)
    a, b = (aten.promote(graph, value, num_bytes=size) for value in (a, b))
    return aten.multiply(graph, a, b, num_bytes=size, name=name)


def output_gate(graph: Graph, name: str, x: Value, scores: Value) -> Value:
    """x * sigmoid(scores)."""
    opened = aten.unary(graph, scores, num_bytes=x.num_bytes, name=f"{name}.sigmoid", saves="output")
    return aten.multiply(graph, x, opened, num_bytes=x.num_bytes, name=name)


def dropout(graph: Graph, name: str, x: Value, *, elements: int, probability: float) -> Value:
    """nn.Dropout in training: a byte of mask per element is saved [derivatives.yaml `native_dropout`]."""
    if not probability:
        return x
    out = graph.value(f"{name}.dropped", x.num_bytes, gradient_bytes=x.gradient_bytes)
    mask = graph.value(f"{name}.dropout_mask", elements, gradient_bytes=0)
    return graph.call("dropout", [x], [out], extra=[mask])


def add(graph: Graph, name: str, residual: Value, x: Value) -> Value:
    """residual + x, as wide as the wider one."""
    return aten.add(graph, residual, x, num_bytes=max(residual.num_bytes, x.num_bytes), name=name)


EXPERTS: Final = "moe.experts."
"""Paths of weights that every expert has one of."""


def project(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, bias: bool = False,
    copies: int = 1,
) -> Value:
    """y = W x for the weight called `path`, as the run's sizes say it is stored and trained.

    Args:
        path: of the weight in its layer, "attention.q", or of several that one product makes, "attention.qkv"
        x: input, (tokens, shape[1])
        tokens: rows of x [tokens]
        shape: local (out, in) features
        sizes: element widths, freezing, adapters
        bias: whether a bias is added
        copies: weights of that shape in one grouped product
    """
    out_features, in_features = shape
    learns, adapter = not sizes.frozen or sizes.trains(path), adapter_of(sizes, path)
    packed = sizes.packs(path) and not learns
    if adapter is not None and adapter.stacked and path.startswith(EXPERTS) and not packed:
        target = Target(path, tokens, out_features, in_features, sizes.numerics.compute, copies)
        return folded(graph, x, target, adapter)
    if packed:
        y = _unpacked(graph, path, x, tokens=tokens, shape=shape, sizes=sizes, copies=copies if sizes.stacked else 1)
    else:
        dense = Dense(out_features, in_features, bias, learns, copies=copies)
        if sizes.fake is not None and (learns or adapter is not None):
            y = fake_linear(graph, path, x, tokens=tokens, dense=dense, numerics=sizes.numerics, fake=sizes.fake)
        else:
            y = linear(graph, path, x, tokens=tokens, dense=dense, numerics=sizes.numerics)
    if adapter is None:
        return y
    target = Target(path, tokens, out_features, in_features, y.num_bytes // (tokens * out_features), copies)
    if packed:
        storage = QUANTISED[sizes.stored]
        target = replace(target, packed=storage.follows_input, cloned=storage.cloned)
    y.gradient_bytes = y.num_bytes
    return ADAPTERS[adapter.method].forward(graph, x, y, target, adapter)


def adapter_of(sizes: Sizes, path: str) -> Adapter | None:
    """What corrects the product called `path`; None: nothing.

    Stacked experts whose gate and up are named apart get one correction of both, of twice the rank [PEFT
    src/peft/utils/transformers_weight_conversion.py `_convert_peft_config_moe`].
    """
    adapter = sizes.adapter
    if adapter is not None and path.startswith(EXPERTS) and (rank := adapter.option("expert_rank")):
        adapter = replace(adapter, rank=round(rank), dropout=0.0)
    if adapter is None or path in adapter.targets:
        return adapter
    parts = JOINED.get(path, ())
    if adapter.stacked and path.startswith(EXPERTS) and parts and all(part in adapter.targets for part in parts):
        return replace(adapter, rank=adapter.rank * len(parts))
    return None


def corrected(sizes: Sizes, layer: Layer, hidden: int) -> Iterator[tuple[str, Adapter]]:
    """The products of a layer that adapters correct, those of several weights first."""
    paths, claimed = matrices(layer, hidden), set[str]()
    for path in (*JOINED, *paths):
        adapter, parts = adapter_of(sizes, path), parts_of(path)
        if adapter is not None and has(paths, path) and claimed.isdisjoint(parts):
            claimed.update(parts)
            yield path, adapter


def _unpacked(
    graph: Graph, path: str, x: Value, *, tokens: int, shape: tuple[int, int], sizes: Sizes, copies: int
) -> Value:
    """A product with a weight that is unpacked forward and again backward, and saved where its product says so.

    `copies` weights of the shape are unpacked at once.
    """
    storage, elements = QUANTISED[sizes.stored], shape[0] * shape[1] * copies
    inputs, outputs = tokens * shape[1], tokens * shape[0]
    own_width, size = x.num_bytes // inputs, outputs * sizes.numerics.compute
    x = cast(graph, x, elements=inputs, to_bytes=sizes.numerics.compute, name=f"{path}.input")
    y = graph.value(path, size, gradient_bytes=size if x.gradient_bytes else 0)
    found = storage.unpacked_bytes(elements) + storage.beside_bytes(inputs, outputs)
    tensors = [graph.tensor(f"{path}.{name}", count) for name, count in found]
    before = [graph.tensor(f"{path}.{name}", count) for name, count in storage.before_bytes(elements)]
    if before and not storage.weight_saved:
        graph.call("unpack", [x], [], temporaries=before, differentiable=False)
    saved = [x] if storage.input_saved and x.gradient_bytes else []
    flops = 2 * tokens * shape[0] * shape[1]
    if storage.weight_saved:
        graph.call("unpack", [x], [], temporaries=[*before, *tensors[1:]], differentiable=False)
        weight = graph.value(f"{path}.unpacked", tensors[0].num_bytes, gradient_bytes=0)
        kept = [weight] if x.gradient_bytes else []
        return graph.call("quantised_linear", [x], [y], saved=saved, extra=kept, flops=flops)
    graph.call(
        "quantised_linear", [x], [y], saved=saved, temporaries=tensors, backward_temporaries=tensors, flops=flops
    )
    if before and y.gradient_bytes:  # unpacked again ahead of the product's backward
        y = graph.call("unpacked_again", [y], [graph.view(y, f"{path}.product")], passes_gradient=True,
                       backward_temporaries=before)
    return cast(graph, y, elements=outputs, to_bytes=own_width, name=f"{path}.output") if storage.follows_input else y
