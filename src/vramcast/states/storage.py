"""How many bytes a stored weight takes: its bits, and the scales, zeros and constants beside them.

[fp8] DeepSeek-V3, arXiv:2412.19437, section 3.3.2: fp32 scale per 128 x 128 block.
[compressed-tensors] neuralmagic compressed-tensors, src/compressed_tensors/compressors: packed int32, 16-bit scale per
group, `weight_shape` of two int64.
[GPTQ] AutoGPTQ nn_modules/qlinear/qlinear_cuda.py: int32 packs, packed zeros and fp16 scales per group, int32 g_idx.
[AWQ] casper-hansen/AutoAWQ awq/modules/linear/gemm.py: int32 packs, packed zeros and fp16 scales per group.
[QLoRA] Dettmers et al., arXiv:2305.14314, section 3: fp32 absmax per 64; double quantisation: 8-bit absmax with an fp32
constant per 256.   [bnb8] bitsandbytes nn/modules.py `Int8Params`: fp32 constant per output row.
[MX] Open Compute Project, Microscaling Formats v1.0: e8m0 scale per 32.
[NVFP4] NVIDIA, nvfp4: fp8 scale per 16 and fp32 scale per tensor.
[ggml] see states/ggml.py.
[bnb] bitsandbytes 0.50.2 backends/: kernels of its own for CUDA, ROCm, XPU and HPU; other devices go through PyTorch.
[vllm] platforms/rocm.py `supported_quantization` has bitsandbytes from 0.12 on

What one layer keeps of a sequence: keys and values that grow with it, recurrent states that do not.

Symbols:  G key/value heads   D head width   N state width
[GQA] Ainslie et al., arXiv:2305.13245: 2 G D elements a token.
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1: one compressed vector and one rotary key a token, on every
tensor-parallel rank. [DSA] DeepSeek-V3.2: beside it one fp8 index key with an fp32 scale per 128 channels.
[Mamba] Gu and Dao, arXiv:2312.00752; [Mamba-2] arXiv:2405.21060; [GDN] arXiv:2412.06464; [KDA] arXiv:2510.26692.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu
from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention, Parameter
from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.states.ggml import QUANTISED, TYPES, GgmlType
from vramcast.units import ceil_div

Shape = tuple[int, ...]


class Side(Struct, frozen=True):
    """Values stored beside the weights, one per tile of the matrix."""

    name: str
    bits: int
    rows: int = 0  # of a tile; 0: all
    columns: int = 0  # of a tile; 0: all
    flat: int = 0  # elements of a tile, rows joined; instead of rows and columns

    def num_bytes(self, matrices: int, rows: int, columns: int) -> int:
        """Of so many matrices of one shape [bytes]."""
        if self.flat:
            return ceil_div(ceil_div(matrices * rows * columns, self.flat) * self.bits, 8)
        tiles = ceil_div(rows, self.rows or rows) * ceil_div(columns, self.columns or columns)
        return ceil_div(matrices * tiles * self.bits, 8)


class Format(Struct, frozen=True):
    """One way to store a matrix: elements per block, bytes per block, values beside it."""

    block_elements: int
    block_bytes: int
    sides: tuple[Side, ...] = ()
    applies: Callable[[Parameter], bool] | None = None  # to which weights; None: to all
    compute: str = ""  # dtype its products run in, where it is not the model's

    def num_bytes(self, shape: Shape) -> int:
        """A weight of that shape with everything beside it [bytes].

        >>> FORMATS["fp8-block"].num_bytes((256, 256))
        65552
        """
        return self.data_bytes(shape) + self.side_bytes(shape)

    def data_bytes(self, shape: Shape) -> int:
        """The weight alone; rows of a block format are padded to whole blocks [bytes]."""
        matrices, rows, columns = _as_matrices(shape)
        return matrices * rows * ceil_div(columns, self.block_elements) * self.block_bytes

    def side_bytes(self, shape: Shape) -> int:
        """Scales, zeros and constants of a weight of that shape [bytes]."""
        return sum(side.num_bytes(*_as_matrices(shape)) for side in self.sides)

    def parts(self, shape: Shape) -> tuple[tuple[str, int], ...]:
        """The weight and everything beside it as tensors of their own: name and size [bytes].

        >>> FORMATS["fp8-block"].parts((256, 256))
        (('', 65536), ('scales', 16))
        """
        *leading, rows, columns = (1, *shape) if len(shape) == 1 else shape
        beside = [(side.name, side.num_bytes(prod(leading), rows, columns)) for side in self.sides]
        return (("", self.num_bytes(shape) - sum(size for _, size in beside)), *beside)

    @property
    def bits_per_weight(self) -> float:
        """Of a large square matrix."""
        return self.num_bytes((1 << 14, 1 << 14)) * 8 / (1 << 28)


def _as_matrices(shape: Shape) -> tuple[int, int, int]:
    """Number of matrices, rows and columns; a vector is one row."""
    *leading, rows, columns = (1, *shape) if len(shape) == 1 else shape
    return prod(leading), rows, columns


KEPT_WHOLE: Final = ("router", "shared_gate", "indexer.weights", "head.", "projection", "patch")
"""Parts of the paths of matrices that quantisers leave in 16 bits: routers, small gates, heads, patch embeddings."""


def is_matrix(parameter: Parameter) -> bool:
    """Anything but vectors: what llama.cpp quantises, embeddings and heads included."""
    return len(parameter.shape) > 1


def is_linear(parameter: Parameter) -> bool:
    """A matrix of a layer: what quantisers convert; embeddings, heads, routers, norms and convolutions are not."""
    return parameter.kind == "matrix" and len(parameter.shape) > 1 and not any(
        part in parameter.path for part in KEPT_WHOLE
    )


BITSANDBYTES: Final = frozenset(("nf4", "nf4-dq", "int8-bnb"))
"""Formats that bitsandbytes makes of the linear layers of a network in memory, whichever its checkpoint has."""


def bitsandbytes_converts(parameter: Parameter, left_whole: tuple[str, ...]) -> bool:
    """Whether a matrix is packed when every linear layer but the head is.

    Args:
        parameter: of any part of the network
        left_whole: how the paths of those begin that are no linear layer of their own in the code that runs it
    """
    matrix = parameter.kind == "matrix" and len(parameter.shape) > 1
    return matrix and not parameter.path.startswith(("head.", *left_whole))


def is_expert(parameter: Parameter) -> bool:
    """A matrix of routed experts."""
    return parameter.expert and len(parameter.shape) > 2


def _packed(bits: int, *sides: Side, applies: Callable[[Parameter], bool] = is_linear) -> Format:
    """`bits` per weight, packed into whole bytes."""
    return Format(8, bits, sides, applies)


def _gptq(bits: int) -> Format:
    return _packed(bits, Side("zeros", bits, 1, 128), Side("scales", 16, 1, 128), Side("g_idx", 32, 0, 1))


def _ggml(stored: GgmlType) -> Format:
    sides = (Side("row scale", 8 * stored.row_bytes, 1, 0),) if stored.row_bytes else ()
    return Format(stored.block, stored.block_bytes, sides, is_matrix)


GGUF: Final = frozenset(QUANTISED - {"mxfp4", "nvfp4"})
"""Formats that are types of ggml and nothing else."""

FORMATS: Final[dict[str, Format]] = {
    "fp32": Format(1, 4),
    "bf16": Format(1, 2),
    "fp16": Format(1, 2),
    "fp8": _packed(8, Side("scale", 32)),
    "fp8-channel": _packed(8, Side("scales", 32, 1, 0)),
    "fp8-block": _packed(8, Side("scales", 32, 128, 128)),
    "int8": _packed(8, Side("scales", 32, 1, 0)),
    "int8-bnb": _packed(8, Side("constants", 32, 1, 0)),
    "int4": _packed(4, Side("scales", 16, 1, 128)),
    "int4-g32": _packed(4, Side("scales", 16, 1, 32)),
    "int4-experts": _packed(4, Side("scales", 16, 1, 32), applies=is_expert),
    "gptq-int2": _gptq(2),
    "gptq-int3": _gptq(3),
    "gptq-int4": _gptq(4),
    "gptq-int8": _gptq(8),
    "awq-int4": _packed(4, Side("zeros", 4, 1, 128), Side("scales", 16, 1, 128)),
    "nf4": _packed(4, Side("absmax", 32, flat=64)),
    "nf4-dq": _packed(4, Side("absmax", 8, flat=64), Side("absmax of absmax", 32, flat=64 * 256)),
    "mxfp4": _packed(4, Side("scales", 8, 1, 32), applies=is_expert),
    "nvfp4": _packed(4, Side("scales", 8, 1, 16), Side("scale", 32)),
    **{name: _ggml(TYPES[name]) for name in GGUF},
}
"""Name -> format; sizes of groups are the usual ones (128 for integers) where the name says none."""


SPOKEN: Final = {
    "awq": "awq-int4", "gptq": "gptq-int4", "bitsandbytes": "nf4", "bnb-4bit": "nf4", "w4a16": "int4", "4bit": "int4",
    "8bit": "int8", "bfloat16": "bf16", "float16": "fp16",
}
"""What a format is called in the field -> its name here."""


def format_of(name: str) -> Format:
    """The format of a name.

    Raises: UnknownName with the nearest names, InvalidSpec for a file's mix of formats
    """
    if name not in FORMATS:
        from vramcast.states.ggml import known_mix

        if known_mix(name):
            raise InvalidSpec("weights={} is a mix of GGUF types; use --engine llama.cpp, or one type, q4_k", name)
        raise UnknownName.of("weight format", name, FORMATS)
    return FORMATS[name]


def format_for(
    parameter: Parameter, *, quantised: str, whole: str, left_whole: tuple[str, ...] | None = None
) -> str:
    """The format a weight has: the quantised one where it applies, else the other.

    Args:
        parameter: the weight
        quantised: key of FORMATS
        whole: key of FORMATS
        left_whole: for networks that bitsandbytes converts in memory: as for `bitsandbytes_converts`
    """
    if left_whole is not None and quantised in BITSANDBYTES:
        return quantised if bitsandbytes_converts(parameter, left_whole) else whole
    applies = format_of(quantised).applies
    return quantised if applies is None or applies(parameter) else whole


NO_BITSANDBYTES: Final = ("Huawei", "Moore Threads")
"""Vendors whose cards bitsandbytes has no kernels for [bnb]."""

ROCM_BITSANDBYTES_SINCE: Final[Version] = (0, 12)
"""vLLM on AMD's cards [vllm]."""


def has_bitsandbytes(gpu: Gpu, engine: str = "", version: Version = ()) -> bool:
    """Whether bitsandbytes has kernels of its own for a card, and an engine takes it there."""
    refused = engine == "vllm" and gpu.vendor == "AMD" and version < ROCM_BITSANDBYTES_SINCE
    return gpu.vendor not in NO_BITSANDBYTES and not refused


def refuse_bitsandbytes(stored: str, gpu: Gpu, engine: str = "", version: Version = ()) -> None:
    """Raise Unsupported for what bitsandbytes would store on a card that it has no kernels for."""
    if not has_bitsandbytes(gpu, engine, version):
        raise Unsupported(
            "{} is bitsandbytes', which has no kernels for {}'s {} here; use another format, or NVIDIA's cards",
            stored, gpu.vendor, gpu.name
        )


KV_BITS: Final[dict[str, tuple[int, int]]] = {
    "fp32": (1, 4), "bf16": (1, 2), "fp16": (1, 2), "f16": (1, 2), "f32": (1, 4),
    "fp8": (1, 1), "fp8_e4m3": (1, 1), "fp8_e5m2": (1, 1), "int8": (1, 1), "int4": (2, 1),
    "fp4": (16, 9), "nvfp4": (16, 9),  # an fp8 scale for every 16
    "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22), "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}
"""Cache dtype -> (elements, bytes) of a block."""


def cache_bytes(elements: int, dtype: str) -> int:
    """So many cached elements [bytes]."""
    if dtype not in KV_BITS:
        raise UnknownName.of("cache dtype", dtype, KV_BITS)
    block, size = KV_BITS[dtype]
    return ceil_div(elements, block) * size


def local_kv_heads(num_kv_heads: int, tp: int) -> int:
    """Key/value heads of one rank: at least one, copied when there are fewer heads than ranks."""
    return max(1, ceil_div(num_kv_heads, tp))


def token_bytes(mixer: Mixer | None, *, tp: int = 1, k_dtype: str = "bf16", v_dtype: str | None = None) -> int:
    """What one more token adds to one layer's cache on one rank [bytes].

    Leaves out the window: how many tokens are kept is the cache's business.

    >>> from vramcast.domain.model import Attention
    >>> token_bytes(Attention(num_heads=32, num_kv_heads=8, head_dim=128))  # Llama-3.1-8B: 131,072 over 32 layers
    4096
    """
    match mixer:
        case Attention(shared_kv=True):
            return 0
        case Attention():
            heads = local_kv_heads(mixer.num_kv_heads, tp)
            keys = cache_bytes(heads * mixer.head_dim, k_dtype)
            return keys + cache_bytes(heads * (mixer.v_head_dim or mixer.head_dim), v_dtype or k_dtype)
        case MultiLatentAttention():
            latent = cache_bytes(mixer.kv_lora_rank + mixer.qk_rope_dim, k_dtype)
            index = mixer.indexer_dim + 4 * ceil_div(mixer.indexer_dim, 128) if mixer.indexer_dim else 0
            return latent + index
        case _:
            return 0


def state_elements(mixer: Mixer | None, *, tp: int = 1) -> tuple[int, int]:
    """Elements of the convolution and of the recurrent state of one sequence in one layer on one rank."""
    match mixer:
        case Mamba(version=1):
            inner = ceil_div(mixer.inner_dim, tp)
            return inner * (mixer.conv_kernel - 1), inner * mixer.state_dim
        case Mamba():
            groups = 2 * max(1, ceil_div(mixer.num_groups, tp)) * mixer.state_dim
            channels = ceil_div(mixer.inner_dim, tp) + groups
            return channels * (mixer.conv_kernel - 1), ceil_div(mixer.num_heads, tp) * mixer.head_dim * mixer.state_dim
        case LinearAttention():
            keys, values = ceil_div(mixer.num_k_heads, tp), ceil_div(mixer.num_v_heads, tp)
            channels = 2 * keys * mixer.k_head_dim + values * mixer.v_head_dim
            convolution = 0 if mixer.variant == "lightning" else channels * (mixer.conv_kernel - 1)
            return convolution, values * mixer.k_head_dim * mixer.v_head_dim
        case _:
            return 0, 0


def state_bytes(mixer: Mixer | None, *, tp: int = 1, conv_width: int = 2, state_width: int = 4) -> int:
    """The fixed state of one sequence in one layer on one rank [bytes]."""
    convolution, recurrent = state_elements(mixer, tp=tp)
    return convolution * conv_width + recurrent * state_width
