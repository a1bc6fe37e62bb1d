"""What a TensorRT-LLM process takes beside weights, activations and cache. All of it is measured.

[creator] NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py `configure_kv_cache_capacity`: everything the
driver shows in use beyond PyTorch's live tensors counts against the cache: context, NCCL, graphs, what the allocator
cannot give back
[decoder] cpp/tensorrt_llm/runtime/gptDecoderBatched.cpp: buffers of max_batch_size x vocabulary
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.units import GIB


class Runtime(NamedTuple):
    """What is in use beyond live tensors, the CUDA context left out [GiB]."""

    alone: float  # libraries, workspaces and graphs of one rank
    pair: float  # NCCL and all-reduce workspaces of two ranks
    per_doubling: float  # for each further doubling
    scaled: float  # share of block-scaled weights that loading them leaves behind


RUNTIMES: Final[dict[str, Runtime]] = {
    "Hopper": Runtime(1.45, 1.4, 0.8, 0.02),
    "Blackwell": Runtime(2.5, 1.33, 0.77, 0.062),
}
"""Generation -> runtime of the PyTorch backend; other generations as Hopper. From 37 measured capacities of
Llama-3.1-8B (bf16) and Qwen3-32B-FP8 on H100 and GB300, 1 to 4 ranks, max_num_tokens 4096 and 8192: whole blocks and
whole sequences fix each number to 0.1 GiB on GB300, to 0.5 GiB for one H100. On Blackwell block scales are rounded to
powers of two while loading, through wider copies of the weights."""

BUILT_RUNTIME: Final = Runtime(0.0, 1.4, 0.8, 0.0)
"""Of a TensorRT engine: one start-up log on A100 leaves nothing beside context and activations."""

DECODER_BYTES: Final = 27
"""Bytes per sequence and vocabulary entry of a TensorRT runtime's buffers and decoder: logits, probabilities and their
sorting [decoder]; from a start-up log of Qwen2.5-0.5B with 2,048 sequences."""

BLOCK_SCALED: Final = ("fp8-block", "nvfp4", "mxfp4")


def runtime_of(gpu: Gpu, *, pytorch: bool) -> Runtime:
    """The row of a card."""
    if not pytorch:
        return BUILT_RUNTIME
    return RUNTIMES.get(gpu.arch.split()[0], RUNTIMES["Hopper"])


def beside(gpu: Gpu, *, tp: int, ranks: int, weight_bytes: int, quantised: str, pytorch: bool) -> tuple[Tensor, ...]:
    """Everything in use beyond live tensors, the CUDA context left out.

    Args:
        gpu: the card
        tp: ranks that reduce together
        ranks: of the whole deployment
        weight_bytes: of the rank
        quantised: format of its weights
        pytorch: the PyTorch backend, else a TensorRT engine
    """
    row = runtime_of(gpu, pytorch=pytorch)
    linked = row.pair + row.per_doubling * (tp.bit_length() - 2) if tp > 1 else row.pair if ranks > 1 else 0.0
    left = row.scaled * weight_bytes if quantised in BLOCK_SCALED else 0.0
    return (
        _tensor("libraries, workspaces, graphs", round(row.alone * GIB), Category.WORKSPACES, gpu.arch),
        _tensor("NCCL and all-reduce workspaces", round(linked * GIB), Category.COMMUNICATION, f"tp={tp}, {gpu.arch}"),
        _tensor("left by loading block scales", round(left), Category.WEIGHTS, f"{row.scaled} x {weight_bytes:,} B"),
    )


def decoder(sequences: int, vocab: int) -> Tensor:
    """Buffers of a TensorRT runtime for the logits of every sequence."""
    return Tensor(
        name="runtime buffers and decoder", num_bytes=DECODER_BYTES * sequences * vocab, category=Category.WORKSPACES,
        owner="process", basis=Basis.MEASURED, formula=f"{DECODER_BYTES} B x {sequences:,} sequences x {vocab:,}",
        source="github.com/NVIDIA/TensorRT-LLM/issues/1188: Qwen2.5-0.5B, 2,048 sequences",
    )


def _tensor(name: str, num_bytes: int, category: Category, formula: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=category, owner="process", basis=Basis.MEASURED, formula=formula,
        source="37 runs on H100 and GB300; docs/serving.md",
    )
