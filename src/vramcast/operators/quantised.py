"""Frozen weights stored in few bits, and what a product with them unpacks.

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
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from vramcast.units import ceil_div


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
