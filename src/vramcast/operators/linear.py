"""Linear layers as eager PyTorch runs them: y = x W^T + b.

Symbols:  T tokens   I in features   O out features
[autograd] pytorch tools/autograd/derivatives.yaml `addmm`, `mm`: the weight gradient needs x, the input gradient W.
[autocast] pytorch aten/src/ATen/autocast_mode.cpp `cached_cast`: fp32 leaf weights that require a gradient are cast
once per autocast context and the copy is cached; everything else is cast at every call.

Frozen weights stored in few bits, and what a product with them unpacks.

Symbols:  n elements of one weight
[QLoRA] Dettmers et al., arXiv:2305.14314, section 3: NF4 blocks of 64 with an fp32 constant each, or constants in 8
bits in blocks of 256 with fp32 constants of their own (double quantisation).
[bnb] bitsandbytes autograd/_functions.py `MatMul4Bit`: the weight is unpacked for forward and again for backward;
nn/modules.py `Linear4bit.forward`: the input is cast to the compute type, the product back to the input's.
[GPTQ] AutoGPTQ nn_modules/qlinear/qlinear_cuda_old.py: int32 packs, zeros and fp16 scales per group of 128 rows; above
128 rows of input the weight is shifted apart into int32, cast to 8 bits (16 where it has 8), masked, less its zero,
times its scale, each by a kernel of its own, and multiplied with torch.matmul. utils/import_utils.py
`dynamically_import_QuantLinear` takes it where ExLlama is off and rows are in order (desc_act false).
[triton] AutoGPTQ nn_modules/triton_utils/dequant.py `QuantLinearFunction`: one kernel unpacks the weight, for forward
and again for backward, which keeps the packed one.
[bnb8] bitsandbytes autograd/_functions.py `MatMul8bitLt`: an 8-bit copy of the input, an int32 product of the input's
type in the end; `ctx.tensors` keeps the input, backward unpacks the weight.
[torchao] pytorch/ao torchao/dtypes/nf4tensor.py `get_original_weight`, `LinearNF4`, `nf4_split`: 8-bit scalers of
blocks of 64 and a 16-bit factor for 256 of them, all sharded with the codes; eager code unpacks through two int64
indices, both halves looked up, both scaled, and their stack, which all live until it returns, forward and backward
[fp8] transformers integrations/finegrained_fp8.py `act_quant`: an 8-bit copy of the input, an fp32 scale per 128
channels.

Linear layers of quantisation-aware training: weights and inputs are rounded to few bits and back before the product.

Symbols:  n elements of the input   m elements of the weight   g elements that share a scale
Rounding is plain autograd in fp32: it keeps what clamps read, and no two products share an input any more.

[QAT] pytorch/ao v0.17.0 torchao/quantization/qat/linear.py `FakeQuantizedLinear.forward`, fake_quantizer.py
`Int4WeightFakeQuantizer._bf16_activations_forward`, `IntxFakeQuantizer`, quant_primitives.py
`_do_fake_quantize_affine`: scales are fp32, and so is what they are multiplied with
[MX] torchao/prototype/qat/mx.py `_MXQuantizedForwardFakeQuantizedBackward`: blocks of 32 in 4 bits with a scale of 8
bits each are all that is kept; products are emulated, so both sides are unpacked forward and again backward
The bytes of an element were read off a recording of that code by `vramcast trace`, of n and of m alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from vramcast.domain.job import Precision
from vramcast.domain.program import Category, Tensor
from vramcast.errors import Note
from vramcast.operators.graph import Graph, Value
from vramcast.operators.reduction import H100, Chip, column_sum_bytes
from vramcast.units import ceil_div


class Fake(NamedTuple):
    """Which layers round, and how."""

    kind: str  # key of KINDS
    group: int = 32  # g, elements of a weight that share a scale


class Rounding(NamedTuple):
    """What rounding an element and back costs; of a group beside it, so much for all of its elements [bytes]."""

    kept: int  # until backward, beside the rounded copy that the product keeps
    forward: int  # more while it runs
    backward: int
    group: tuple[int, int, int] = (0, 0, 0)  # the same three of a group

    def sizes(self, elements: int, group: int) -> tuple[int, int, int]:
        """The three for so many elements."""
        rates = zip((self.kept, self.forward, self.backward), self.group, strict=True)
        kept, forward, backward = (rate * elements + ceil_div(of_group * elements, group) for rate, of_group in rates)
        return kept, forward, backward


PER_TOKEN: Final = Rounding(4, 8, 5)
"""8 bits with a scale and a zero for each token: the input of the clamp; a mask of it beside two copies backward."""

LEARNED_RANGE: Final = Rounding(16, 6, 8, (16, 4, 10))
"""4 bits, scales from the range of each group, through which gradients flow, too: the weight in fp32, its distance from
the least, the rounded one, and the rounded one less eight."""

PER_GROUP: Final = Rounding(4, 8, 6, (4, 0, 0))
"""4 bits, scales of each group that no gradient reaches."""

KINDS: Final[dict[str, tuple[Rounding | None, Rounding]]] = {
    "int4": (None, LEARNED_RANGE), "int8-int4": (PER_TOKEN, LEARNED_RANGE), "int8-int4-affine": (PER_TOKEN, PER_GROUP),
}
"""Kind -> rounding of inputs and of weights [QAT]."""

MX: Final = "mxfp4"

MX_PACKED: Final = (17, 32)
"""4 bits of an element and 8 of its block's scale, of 32 elements [bytes of an element]."""

MX_CONVERTING: Final = 30
"""While blocks are packed or unpacked by plain operators: indices and halves in 32 bits [bytes of an element]."""


def fake_linear(
    graph: Graph, path: str, x: Value, *, tokens: int, dense: Dense, numerics: Numerics, fake: Fake
) -> Value:
    """One matrix product of what both sides are after rounding.

    Valid for: weights, inputs and products of 16 bits
    Source: [QAT], [MX]
    """
    width, inputs = numerics.compute, tokens * dense.in_features
    x = cast(graph, x, elements=inputs, to_bytes=width, name=f"{path}.input")
    differentiable = dense.trainable or x.gradient_bytes > 0
    size = tokens * dense.out_features * width
    y = graph.value(path, size, gradient_bytes=size if differentiable else 0)
    gradients, passing = bias_gradients(graph, path, tokens=tokens, dense=dense, numerics=numerics)
    gradient = graph.tensor(f"{path}.weight_gradient", dense.elements * numerics.gradient, Category.GRADIENTS)
    flops = 2 * tokens * dense.out_features * dense.in_features
    if fake.kind == MX:
        return _emulated(graph, x, y, inputs, dense.elements, [gradient, *gradients], passing, flops=flops)
    of_input, of_weight = KINDS[fake.kind]
    if of_input is not None:
        x = _rounded(graph, f"{path}.rounded_input", [x], inputs, of_input.sizes(inputs, dense.in_features), [])
    sizes = of_weight.sizes(dense.elements, fake.group)
    if not dense.trainable:  # the rounded weight is kept for the input's gradient, of its rounding nothing
        making = graph.tensor(f"{path}.rounded_weight.rounding", sizes[0] + sizes[1])
        graph.call("fake_quantise", [x], [], temporaries=[making], differentiable=False)
        weight = graph.value(f"{path}.rounded_weight", 2 * dense.elements, gradient_bytes=0)
        return graph.call("linear", [x], [y], extra=[weight], flops=flops, views_gradient=True)
    weight = _rounded(graph, f"{path}.rounded_weight", [], dense.elements, sizes, [gradient])
    return graph.call(
        "linear", [x, weight], [y], saved=[x, weight], weight_gradients=gradients, backward_temporaries=passing,
        flops=flops, views_gradient=True,
    )


def rounding_bytes(fake: Fake | None, *, tokens: int, columns: int, elements: int) -> tuple[int, int, int]:
    """What a product of so many rows with so many weights keeps of its rounding, and has more of forward and backward:
    the gradients of both rounded sides, too.

    Raises: KeyError for rounding that is emulated
    """
    if fake is None:
        return 0, 0, 0
    of_input, of_weight = KINDS[fake.kind]
    inputs = tokens * columns
    kept, forward, backward = of_weight.sizes(elements, fake.group)
    kept_input, *_ = of_input.sizes(inputs, columns) if of_input is not None else (-2 * inputs,)
    return kept + kept_input + 2 * (elements + inputs), forward, backward + 2 * elements


def _rounded(
    graph: Graph, name: str, inputs: Sequence[Value], elements: int, sizes: tuple[int, int, int],
    gradients: Sequence[Tensor],
) -> Value:
    kept, forward, backward = sizes
    return graph.call(
        "fake_quantise", inputs, [graph.value(name, 2 * elements)],
        extra=[graph.value(f"{name}.kept", kept, gradient_bytes=0)],
        temporaries=[graph.tensor(f"{name}.rounding", forward)], weight_gradients=gradients,
        backward_temporaries=[graph.tensor(f"{name}.rounding_gradient", backward)],
    )


def _emulated(
    graph: Graph, x: Value, y: Value, inputs: int, weights: int, gradients: Sequence[Tensor],
    passing: Sequence[Tensor], *, flops: int,
) -> Value:
    """Both sides are packed, and unpacked one after the other for a product in 16 bits [MX]."""
    top, bottom = MX_PACKED
    packed = [ceil_div(top * inputs, bottom), ceil_div(top * weights, bottom)]
    converting = max(MX_CONVERTING * inputs, 2 * inputs + MX_CONVERTING * weights)
    making = graph.tensor(f"{y.name}.packing", sum(packed) + converting)
    graph.call("to_mx", [x], [], temporaries=[making], differentiable=False)
    extra = [graph.value(f"{y.name}.{name}_4bit", size, gradient_bytes=0)
             for name, size in zip(("input", "weight"), packed, strict=True)]
    both = [graph.tensor(f"{y.name}.unpacked_{name}", 2 * count)
            for name, count in (("input", inputs), ("weight", weights))]
    y = graph.call("linear", [x], [y], extra=extra, temporaries=both, weight_gradients=gradients,
                   backward_temporaries=[*both, *passing], flops=flops, views_gradient=True)
    # unpacked again ahead of the product's backward
    return graph.call("unpacked_again", [y], [graph.view(y, f"{y.name}.product")], passes_gradient=True,
                      backward_temporaries=[graph.tensor(f"{y.name}.unpacking", converting)])


class Numerics(Struct, frozen=True):
    """Bytes of one element in each role."""

    weight: int = 2  # stored weights
    compute: int = 2  # what matrix products read and write
    residual: int = 2  # the residual stream, norm inputs and outputs
    gradient: int = 2  # gradients of weights

    @property
    def autocast(self) -> bool:
        """Whether torch.autocast converts weights and inputs at every matrix product."""
        return self.weight != self.compute


NUMERICS: Final[dict[Precision, Numerics]] = {
    Precision.FP64: Numerics(8, 8, 8, 8),
    Precision.FP32: Numerics(4, 4, 4, 4),
    Precision.TF32: Numerics(4, 4, 4, 4),
    Precision.AMP_FP16: Numerics(4, 2, 4, 4),
    Precision.AMP_BF16: Numerics(4, 2, 4, 4),
    Precision.MIXED_FP16: Numerics(2, 2, 2, 2),
    Precision.MIXED_BF16: Numerics(2, 2, 2, 2),
    Precision.BF16: Numerics(2, 2, 2, 2),
    Precision.FP16: Numerics(2, 2, 2, 2),
}
"""Element sizes by recipe; the optimizer's copies are not activations and live with the states."""


class Dense(Struct, frozen=True):
    """One linear layer's shape and whether it learns."""

    out_features: int
    in_features: int
    bias: bool = False
    trainable: bool = True
    copies: int = 1  # weights of that shape in one grouped product (experts)
    chip: Chip = H100  # decides the buffer of the bias gradient's sum

    @property
    def elements(self) -> int:
        return self.copies * self.out_features * self.in_features


def cast(graph: Graph, value: Value, *, elements: int, to_bytes: int, name: str = "") -> Value:
    """`value.to(dtype)`: itself when the width is the same already, else a copy that saves nothing.

    The gradient of the copy has the copy's width and is cast back into a new tensor.
    """
    if value.num_bytes == elements * to_bytes:
        return value
    gradient = elements * to_bytes if value.gradient_bytes else 0
    copy = graph.value(name or f"{value.name}.cast", elements * to_bytes, gradient_bytes=gradient)
    return graph.call("cast", [value], [copy])


def linear(graph: Graph, name: str, x: Value, *, tokens: int, dense: Dense, numerics: Numerics) -> Value:
    """One matrix product with its cast of the input and of the weight under autocast.

    Leaves out: cuBLAS workspaces, which belong to the process.

    Args:
        name: path of the weight in its layer, "attention.q"
        x: input of (T, I) elements of any width
        tokens: T, rows of x [tokens]
        dense: O, I, bias and whether the weight learns
        numerics: element widths [bytes]

    Returns: the output, (T, O) elements of the compute width
    Source: [autograd], [autocast]
    """
    out, width = tokens * dense.out_features, numerics.compute
    weights, shape = dense.elements, f"{dense.out_features} x {dense.in_features}"
    x = cast(graph, x, elements=tokens * dense.in_features, to_bytes=width, name=f"{name}.input")
    differentiable = dense.trainable or x.gradient_bytes > 0
    y = graph.value(
        name, out * width, gradient_bytes=out * width if differentiable else 0,
        formula=Note("{} tokens x {} x {} B", tokens, dense.out_features, width),
    )
    extra: list[Value] = []
    if numerics.autocast:
        # backward of the input needs it, so it is saved; only that of a weight that learns is cached [autocast]
        kept = f"{name}.{'weight_cast' if dense.trainable else 'weight_copy'}"
        extra.append(graph.value(kept, weights * width, gradient_bytes=0, formula=f"{shape} x {width} B"))
    gradients: list[Tensor] = []
    passing: list[Tensor] = []
    if dense.trainable:
        element = numerics.gradient
        formula = f"{shape} x {element} B"
        gradients.append(graph.tensor(f"{name}.weight_gradient", weights * element, Category.GRADIENTS, formula))
        if element != width:  # the product is 16 bits wide before it becomes the fp32 gradient
            passing.append(graph.tensor(f"{name}.weight_gradient_16bit", weights * width))
    of_bias, partial = bias_gradients(graph, name, tokens=tokens, dense=dense, numerics=numerics)
    gradients, passing = [*gradients, *of_bias], [*passing, *partial]
    return graph.call(
        "linear", [x], [y], saved=[x] if dense.trainable else [], extra=extra, weight_gradients=gradients,
        backward_temporaries=passing, flops=2 * tokens * dense.out_features * dense.in_features,
        views_gradient=True,  # (B, S, I) inputs are folded to two dimensions and their gradients unfolded
    )


def bias_gradients(
    graph: Graph, name: str, *, tokens: int, dense: Dense, numerics: Numerics
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient of a bias that learns, and what its sum over the tokens needs while all gradients of the layer are
    alive (see `reduction`)."""
    if not (dense.trainable and dense.bias):
        return [], []
    size = dense.copies * dense.out_features * numerics.gradient
    partial = column_sum_bytes(rows=tokens, columns=dense.out_features, chip=dense.chip)
    passing = [graph.tensor(f"{name}.bias_gradient_partial", partial)] if partial else []
    return [graph.tensor(f"{name}.bias_gradient", size, Category.GRADIENTS)], passing


class Storage(Struct, frozen=True):
    """How n weights are kept and unpacked. Byte counts are fractions of n: (numerator, denominator)."""

    parts: tuple[tuple[str, int, int], ...]  # name, bytes = n * numerator / denominator
    unpacked: tuple[tuple[str, int, int], ...]  # tensors alive at once while the weight is unpacked, the weight first
    weight_saved: bool = False  # the product is plain autograd, which keeps the unpacked weight for the input gradient
    before: tuple[tuple[str, int, int], ...] = ()  # tensors alive at once before the weight and the output exist
    of_input: tuple[tuple[str, int, int], ...] = ()  # of the quantised input, n being its elements
    of_output: tuple[tuple[str, int, int], ...] = ()  # of a wider product, n being the output's elements
    follows_input: bool = False  # the product is cast to the type of its input, whatever it computed in
    cloned: bool = False  # PEFT clones the product before an adapter's is added
    input_saved: bool = False  # the autograd node keeps the input although the weight is frozen
    moved: float = 0.0  # bytes of an element that kernels before the product read and write
    kernels: int = 0  # before the product
    shards_constants: bool = False  # FSDP2 gives every rank a share of them, too

    def stored_bytes(self, elements: int) -> tuple[tuple[str, int], ...]:
        """Each stored tensor's bytes for one weight of `elements` elements."""
        return _bytes(self.parts, elements)

    def unpacked_bytes(self, elements: int) -> tuple[tuple[str, int], ...]:
        """Tensors alive at the peak of unpacking a weight, the unpacked weight first."""
        return _bytes(self.unpacked, elements)

    def beside_bytes(self, inputs: int, outputs: int) -> tuple[tuple[str, int], ...]:
        """Tensors beside a product with so many elements of input and output."""
        return _bytes(self.of_input, inputs) + _bytes(self.of_output, outputs)

    def before_bytes(self, elements: int) -> tuple[tuple[str, int], ...]:
        """Tensors that are gone again when the unpacked weight exists."""
        return _bytes(self.before, elements)


def _bytes(parts: tuple[tuple[str, int, int], ...], elements: int) -> tuple[tuple[str, int], ...]:
    return tuple((name, ceil_div(elements * top, bottom)) for name, top, bottom in parts)


UNPACKING: Final = 5 + 4
"""Kernels of [GPTQ] before a product: on the weight, and on its zeros, which are little [count]."""

QUANTISED: Final[dict[str, Storage]] = {
    "nf4": Storage((("weight_4bit", 1, 2), ("absmax", 4, 64)), (("weight", 2, 1),), follows_input=True, cloned=True),
    "nf4-dq": Storage(
        (("weight_4bit", 1, 2), ("absmax_8bit", 1, 64), ("absmax_absmax", 4, 64 * 256)),
        (("weight", 2, 1), ("absmax", 4, 64)), follows_input=True, cloned=True,
    ),
    "nf4-torchao": Storage(
        (("quantized_data", 1, 2), ("quantized_scalers", 1, 64), ("quantization_factor", 2, 64 * 256)),
        (("weight", 2, 1),), before=(("indices", 8, 1), ("looked_up", 2, 1), ("scaled", 2, 1), ("stacked", 2, 1)),
        shards_constants=True,
    ),
    "nf4-torchao-compiled": Storage(
        (("quantized_data", 1, 2), ("quantized_scalers", 1, 64), ("quantization_factor", 2, 64 * 256)),
        (("weight", 2, 1),), shards_constants=True,
    ),
    "int8": Storage(
        (("weight_8bit", 1, 1),), (("weight", 2, 1),), of_input=(("input_8bit", 1, 1),), of_output=(("int32", 4, 1),),
        follows_input=True, input_saved=True,
    ),
    "gptq-int4": Storage(
        (("qweight", 1, 2), ("qzeros", 1, 256), ("scales", 2, 128)),
        (("weight", 2, 1), ("shifted_int32", 4, 1), ("masked_int8", 1, 1)),
        weight_saved=True, moved=0.5 + 4 + (4 + 1) + (1 + 1) + (1 + 1) + (1 + 2), kernels=UNPACKING,
    ),
    "gptq-int4-triton": Storage(
        (("qweight", 1, 2), ("qzeros", 1, 256), ("scales", 2, 128)), (("weight", 2, 1),), moved=0.5 + 2, kernels=1,
    ),
    "gptq-int8": Storage(
        (("qweight", 1, 1), ("qzeros", 1, 128), ("scales", 2, 128)),
        (("weight", 2, 1),),
        before=(("shifted_int32", 4, 1), ("masked_int16", 2, 1)),
        weight_saved=True, moved=1 + 4 + (4 + 2) + (2 + 2) + (2 + 2) + (2 + 2), kernels=UNPACKING,
    ),
    "int8-bnb": Storage((("weight_8bit", 1, 1),), (), of_input=(("input_8bit", 1, 1),), of_output=(("int32", 4, 1),)),
    "fp8-block": Storage(
        (("weight_8bit", 1, 1), ("scales", 4, 128 * 128)), (), of_input=(("input_8bit", 1, 1), ("scales", 4, 128))
    ),
    "awq-int4": Storage((("qweight", 1, 2), ("qzeros", 1, 256), ("scales", 2, 128)), (("weight", 2, 1),)),
}
"""Storages by name, as `Peft.base` names them, with the kernel where there are several."""
