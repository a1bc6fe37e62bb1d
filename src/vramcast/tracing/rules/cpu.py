"""What operators allocate on the CPU beyond their outputs. The only table used while the host is simulated.

[flash] pytorch aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: cpu_flash_attention, cpu_flash_attention_backward
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules import (
    cpu_convolution,
    cpu_indexing,
    cpu_linalg,
    cpu_pointwise,
    cpu_recurrent,
    cpu_sorting,
    ctc,
    engine,
    inside,
    sparse,
)
from vramcast.tracing.rules.layouts import contiguous_copy

FLOAT_BYTES: Final = 4
HALF: Final = frozenset({torch.bfloat16, torch.float16})
KEY_BLOCK: Final = 512  # [flash]
QUERY_BLOCKS: Final = ((768, 256), (192, 64), (0, 32))
"""From how many queries on, how many are taken at a time [flash]."""


def attention(call: Call) -> Any:
    """Per thread: scores of one block of queries and keys, two rows of sums, the block's output [flash]."""
    query, key = call.args[:2]
    out = call.run()
    queries, keys = _blocks(query, key)
    per_thread = queries * keys + 2 * queries + queries * query.size(-1)
    reduced = queries * keys if query.dtype in HALF else 0
    call.scratch(FLOAT_BYTES * per_thread * torch.get_num_threads(), "scores of a block")
    call.scratch(query.element_size() * reduced * torch.get_num_threads(), "scores in half precision")
    return out


def attention_backward(call: Call) -> Any:
    """The gradient row by row; per thread the scores of one block and their gradient; sums of its rows [flash]."""
    gradient, query, key = call.args[:3]
    out = call.run()
    contiguous_copy(call, gradient.transpose(1, 2))
    queries, keys = _blocks(query, key)
    scores = 2 * queries * keys * torch.get_num_threads()
    call.scratch(FLOAT_BYTES * scores, "scores of a block")
    if query.dtype in HALF:
        call.scratch(query.element_size() * scores, "scores in half precision")
    call.scratch(FLOAT_BYTES * queries, "sums of rows")
    return out


def _blocks(query: torch.Tensor, key: torch.Tensor) -> tuple[int, int]:
    """Queries and keys taken at a time; query and key are batch, heads, positions, size."""
    length = query.size(2)
    block = next(block for least, block in QUERY_BLOCKS if length >= least)
    return min(block, length), min(KEY_BLOCK, key.size(2))


SIZED: Final = cpu_sorting.SIZED
RULES: Final[Mapping[str, Rule]] = {
    **ctc.RULES, **engine.RULES, **inside.RULES, **sparse.RULES,
    **cpu_convolution.RULES, **cpu_indexing.RULES, **cpu_linalg.RULES, **cpu_pointwise.RULES,
    **cpu_recurrent.RULES, **cpu_sorting.RULES,
    "aten._scaled_dot_product_flash_attention_for_cpu": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}
