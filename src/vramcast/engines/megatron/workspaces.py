"""Buffers that live through the run: library workspaces, global buffers, and what a micro-batch reads.

[cuBLAS] pytorch aten/src/ATen/cuda/CublasHandlePool.cpp: one workspace per handle and stream; the autograd thread of
the device has a handle of its own.
[Buffer] Megatron-LM megatron/core/utils.py, GlobalMemoryBuffer.
"""

from __future__ import annotations

from vramcast.domain.model import Layer, Mamba, MoE
from vramcast.domain.program import Category, Tensor
from vramcast.engines.blas import blas_workspace
from vramcast.engines.megatron.context import Context
from vramcast.engines.megatron.stages import Chunk


def _tensor(name: str, num_bytes: int, category: Category, source: str, formula: str = "") -> Tensor:
    return Tensor(name=name, num_bytes=num_bytes, category=category, owner="process", source=source, formula=formula)


def workspaces(context: Context, chunks: list[Chunk]) -> list[Tensor]:
    """cuBLAS workspaces of PyTorch (forward and backward thread) and of TransformerEngine."""
    found: list[Tensor] = []
    if _torch_products(context, chunks):
        for thread in ("forward", "backward"):
            found.append(
                blas_workspace(
                    context.cublas_workspace_bytes, whose="for its handle", name=f"cuBLAS workspace, {thread} thread"
                )
            )
    if context.te:
        found.append(
            _tensor(
                "TransformerEngine cuBLAS workspace",
                context.te_workspace_bytes,
                Category.WORKSPACES,
                "TransformerEngine pytorch/cpp_extensions/gemm.py",
            )
        )
        if context.options.grouped_gemm and _layers(chunks, MoE):
            streams = 4
            for index in range(streams):
                found.append(
                    _tensor(
                        f"grouped cuBLAS workspace {index + 1}",
                        context.te_workspace_bytes,
                        Category.WORKSPACES,
                        "TransformerEngine pytorch/cpp_extensions/gemm.py",
                    )
                )
    return found


def _layers(chunks: list[Chunk], kind: type) -> list[Layer]:
    return [
        run.layer
        for chunk in chunks
        for run in chunk.runs
        if isinstance(run.layer.channel, kind) or isinstance(run.layer.mixer, kind)
    ]


def _torch_products(context: Context, chunks: list[Chunk]) -> bool:
    """Whether PyTorch itself multiplies matrices on this rank."""
    if not context.te or context.attention_kernel == "unfused" or any(chunk.head for chunk in chunks):
        return True
    return bool(_layers(chunks, MoE) or _layers(chunks, Mamba))


def buffers(context: Context, chunks: list[Chunk]) -> list[Tensor]:
    """Megatron's global memory buffer: gathered inputs, and scores of its own attention."""
    sizes = [0]
    hidden = context.model.hidden
    if context.sp and (not context.te or any(chunk.head for chunk in chunks)):
        sizes.append(context.tokens * hidden * context.element)
    if not context.te:
        for chunk in chunks:
            for run in chunk.runs:
                heads = getattr(run.layer.mixer, "num_heads", 0) // context.tp
                sizes.append(context.batch * heads * context.seq * context.seq * context.element)
    if not max(sizes):
        return []
    return [_tensor("global memory buffer", max(sizes), Category.COMMUNICATION, "Megatron-LM core/utils.py")]


def inputs(context: Context) -> list[Tensor]:
    """Tokens, labels, positions (int64), loss mask (fp32) and attention mask of a micro-batch."""
    n = context.tokens
    found = [
        _tensor(
            "tokens, labels, positions, loss mask",
            n * (8 + 8 + 8 + 4),
            Category.INPUTS,
            "Megatron-LM training/utils, get_batch_on_this_tp_rank",
            f"{n:,} x (8 + 8 + 8 + 4) B",
        )
    ]
    if context.options.attention_mask:
        whole = context.job.workload.seq_len
        found.append(
            _tensor(
                "attention mask",
                context.batch * context.seq * whole,
                Category.INPUTS,
                "Megatron-LM core/datasets/gpt_dataset.py",
                f"{context.batch} x {context.seq:,} x {whole:,} B",
            )
        )
    return found
