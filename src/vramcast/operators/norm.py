"""RMSNorm and LayerNorm, as Hugging Face code, fused ATen operators, compiled, Liger, TransformerEngine run them.

Symbols:  R rows (tokens)   H width
[llama] transformers models/llama/modeling_llama.py `LlamaRMSNorm.forward`
[gemma] transformers models/gemma/modeling_gemma.py `GemmaRMSNorm.forward`
[t5] transformers models/t5/modeling_t5.py `T5LayerNorm.forward`
[aten] pytorch aten/src/ATen/native/cuda/layer_norm_kernel.cu: statistics are fp32 for 16-bit inputs
[liger] Liger-Kernel src/liger_kernel/ops/rms_norm.py, layer_norm.py
[te] TransformerEngine transformer_engine/pytorch/module/layernorm.py: saves input, statistics, weight
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.program import Category, Tensor
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.operators.reduction import H100, Chip, column_sum_bytes
from vramcast.units import FP32


class Norm(Struct, frozen=True):
    """Shape and element sizes of one normalization."""

    rows: int  # R [tokens]
    width: int  # H
    itemsize: int  # of the activations [bytes]
    weight_itemsize: int
    trainable: bool = True
    bias: bool = False
    partial_sums: int = 132  # fp32 rows of weight gradients in Liger's backward: one a multiprocessor of the GPU
    chip: Chip = H100
    name: str = "norm"

    @property
    def elements(self) -> int:
        return self.rows * self.width

    @property
    def num_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def fp32_bytes(self) -> int:
        return self.elements * FP32

    @property
    def statistics_bytes(self) -> int:
        """One fp32 number a row."""
        return self.rows * FP32

    @property
    def weight_bytes(self) -> int:
        return self.width * self.weight_itemsize

    @property
    def scaled_bytes(self) -> int:
        """Bytes of weight * x: the wider type wins."""
        return self.elements * max(self.itemsize, self.weight_itemsize)

    @property
    def sum_bytes(self) -> int:
        """Buffer of the weight gradient's sum over the rows."""
        return column_sum_bytes(rows=self.rows, columns=self.width, chip=self.chip)

    def weight_gradients(self, graph: Graph) -> list[Tensor]:
        if not self.trainable:
            return []
        names = ("weight", "bias") if self.bias else ("weight",)
        return [graph.tensor(f"grad.{self.name}.{name}", self.weight_bytes, Category.GRADIENTS) for name in names]

    def statistics(self, graph: Graph, *names: str) -> list[Value]:
        return [
            graph.value(f"{self.name}.{name}", self.statistics_bytes, gradient_bytes=0) for name in names
        ]


def _rsqrt(graph: Graph, x32: Value, norm: Norm) -> tuple[Value, Value]:
    """mean(x32 ** 2), which a variable holds, and rsqrt(it + eps), all fp32: keeps x32 and the rsqrt."""
    n, small = norm.name, norm.statistics_bytes
    squared = aten.power(graph, x32, num_bytes=norm.fp32_bytes, name=f"{n}.pow")
    variance = aten.unary(graph, squared, num_bytes=small, name=f"{n}.variance")
    shifted = aten.shift(graph, variance, num_bytes=small, name=f"{n}.variance_eps")
    return variance, aten.unary(graph, shifted, num_bytes=small, name=f"{n}.rsqrt", saves="output", temporaries=1)


def _normalize(graph: Graph, x32: Value, norm: Norm) -> Value:
    """x32 * rsqrt(mean(x32 ** 2) + eps), all fp32: keeps x32 (twice) and the rsqrt."""
    variance, rsqrt = _rsqrt(graph, x32, norm)
    normalized = aten.multiply(graph, x32, rsqrt, num_bytes=norm.fp32_bytes, name=f"{norm.name}.normalized")
    graph.hold(variance)
    return normalized


def _rms_huggingface(graph: Graph, x: Value, norm: Norm) -> Value:
    """[llama]: upcast, normalize in fp32, downcast, scale."""
    x32 = cast(graph, x, elements=norm.elements, to_bytes=FP32, name=f"{norm.name}.fp32")
    normalized = _normalize(graph, x32, norm)
    down = cast(graph, normalized, elements=norm.elements, to_bytes=norm.itemsize, name=f"{norm.name}.cast")
    wide = aten.promote(graph, down, num_bytes=norm.scaled_bytes)
    return aten.scale_by_weight(
        graph, wide, num_bytes=norm.scaled_bytes, weight_bytes=norm.weight_bytes, name=f"{norm.name}.out",
        trainable=norm.trainable,
        sum_bytes=norm.sum_bytes,
    )


def _rms_gemma(graph: Graph, x: Value, norm: Norm) -> Value:
    """[gemma]: upcast, normalize and scale by (1 + weight) in fp32, downcast."""
    x32 = cast(graph, x, elements=norm.elements, to_bytes=FP32, name=f"{norm.name}.fp32")
    normalized = _normalize(graph, x32, norm)
    scaled = aten.scale_by_weight(
        graph, normalized, num_bytes=norm.fp32_bytes, weight_bytes=norm.weight_bytes, name=f"{norm.name}.scaled",
        trainable=norm.trainable,
        sum_bytes=norm.sum_bytes,
    )
    return cast(graph, scaled, elements=norm.elements, to_bytes=norm.itemsize, name=f"{norm.name}.out")


def _rms_t5(graph: Graph, x: Value, norm: Norm) -> Value:
    """[t5]: the fp32 copy is only squared; x itself is scaled, which promotes it to fp32."""
    n = norm.name
    x32 = cast(graph, x, elements=norm.elements, to_bytes=FP32, name=f"{n}.fp32")
    _, rsqrt = _rsqrt(graph, x32, norm)
    wide = aten.promote(graph, x, num_bytes=norm.fp32_bytes)
    normalized = aten.multiply(graph, wide, rsqrt, num_bytes=norm.fp32_bytes, name=f"{n}.normalized")
    down = cast(graph, normalized, elements=norm.elements, to_bytes=norm.weight_itemsize, name=f"{n}.cast")
    return aten.scale_by_weight(
        graph, down, num_bytes=norm.elements * norm.weight_itemsize, weight_bytes=norm.weight_bytes,
        name=f"{n}.out", trainable=norm.trainable,
        sum_bytes=norm.sum_bytes,
    )


def _fused(graph: Graph, x: Value, norm: Norm, statistics: tuple[str, ...]) -> Value:
    """One kernel each way: keeps its input and the statistics of its rows [aten] [te]."""
    out = graph.value(f"{norm.name}.out", norm.num_bytes)
    return graph.call(
        "norm", [x], [out], saved=[x], extra=norm.statistics(graph, *statistics),
        weight_gradients=norm.weight_gradients(graph),
    )


def partial_sums(graph: Graph, norm: Norm, *names: str) -> list[Tensor]:
    """Rows of partial weight gradients, and their fp32 sum before the cast."""
    size = norm.width * FP32
    tensors = [graph.tensor(f"{norm.name}.{name}.partial", norm.partial_sums * size) for name in names]
    if norm.weight_itemsize != FP32:
        tensors.append(graph.tensor(f"{norm.name}.{names[-1]}.sum", size))
    return tensors


def _rms_liger(graph: Graph, x: Value, norm: Norm) -> Value:
    """[liger] `LigerRMSNormFunction`, llama casting: dX is written over dY."""
    out = graph.value(f"{norm.name}.out", norm.num_bytes)
    return graph.call(
        "norm", [x], [out], saved=[x], extra=norm.statistics(graph, "rstd"), reuses_gradient=True,
        weight_gradients=norm.weight_gradients(graph), backward_temporaries=partial_sums(graph, norm, "dw"),
    )


def _layer_norm_liger(graph: Graph, x: Value, norm: Norm) -> Value:
    """[liger] `LigerLayerNormFunction`: a new dX; statistics have the width of x."""
    out = graph.value(f"{norm.name}.out", norm.num_bytes)
    statistics = [
        graph.value(f"{norm.name}.{name}", norm.rows * norm.itemsize, gradient_bytes=0) for name in ("mean", "rstd")
    ]
    return graph.call(
        "norm", [x], [out], saved=[x], extra=statistics, weight_gradients=norm.weight_gradients(graph),
        backward_temporaries=partial_sums(graph, norm, "dw", "db"),
    )


NormBuilder = Callable[[Graph, Value, Norm], Value]

_rms_fused: Final[NormBuilder] = partial(_fused, statistics=("rstd",))
_layer_norm_fused: Final[NormBuilder] = partial(_fused, statistics=("mean", "rstd"))

RMS_NORM_VARIANTS: Final[dict[str, NormBuilder]] = {
    "eager": _rms_huggingface,
    "huggingface": _rms_huggingface,
    "gemma": _rms_gemma,
    "t5": _rms_t5,
    "torch": _rms_fused,
    "compiled": _rms_fused,
    "transformer_engine": _rms_fused,
    "liger": _rms_liger,
}

LAYER_NORM_VARIANTS: Final[dict[str, NormBuilder]] = {
    "eager": _layer_norm_fused,
    "torch": _layer_norm_fused,
    "compiled": _layer_norm_fused,
    "transformer_engine": _layer_norm_fused,
    "liger": _layer_norm_liger,
}


def rms_norm(graph: Graph, x: Value, norm: Norm, variant: str = "eager") -> Value:
    """Append an RMSNorm; `variant` is a key of RMS_NORM_VARIANTS."""
    return RMS_NORM_VARIANTS[variant](graph, x, norm)


def layer_norm(graph: Graph, x: Value, norm: Norm, variant: str = "eager") -> Value:
    """Append a LayerNorm with bias; `variant` is a key of LAYER_NORM_VARIANTS."""
    return LAYER_NORM_VARIANTS[variant](graph, x, replace(norm, bias=True))
