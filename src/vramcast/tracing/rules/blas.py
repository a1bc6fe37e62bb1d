"""Matrix products: workspaces of cuBLAS and copies of operands whose strides it cannot take.

[blas] pytorch aten/src/ATen/native/cuda/Blas.cpp: `addmm_out_cuda_impl`, `prepare_matrix_for_cublas`,
`prepare_batch_matrix_for_cublas`, `addmv_out_cuda`
[gemm] pytorch aten/src/ATen/cuda/CUDABlas.cpp: `gemm_and_bias`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.domain.cublas import LT_KEPT_SINCE, lt_workspace_bytes, workspace_bytes
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.memory import Device
from vramcast.tracing.rules import layouts
from vramcast.tracing.rules.layouts import at_least, num_bytes
from vramcast.units import round_up

C_NAMES: Final = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
}
Shape = tuple[int, ...]


def handle_workspace_bytes(device: Device) -> int:
    """Workspace of one cuBLAS handle on one stream, as set by the script, the environment or by default [bytes]."""
    if device.blas_workspace is not None:
        return device.blas_workspace
    capability = device.gpu.compute_capability if device.gpu else None
    return workspace_bytes(capability, torch=layouts.installed(), environment=os.environ)


def is_of_blas(place: object) -> bool:
    """Whether a place among a device's workspaces is that of a handle of cuBLAS or cublasLt."""
    return isinstance(place, tuple) and isinstance(place[0], tuple) and place[0][0] in ("cublas", "cublasLt")


def take_workspace(call: Call) -> None:
    """The handle of this thread; backward of CUDA tensors runs in a thread of its own."""
    call.workspace(("cublas", in_backward()), handle_workspace_bytes(call.device), "cuBLAS workspace")


def in_backward() -> bool:
    """Whether the autograd engine runs, whose thread has library handles of its own."""
    return torch._C._current_graph_task_id() != -1


def take_lt_workspace(call: Call) -> None:
    """What cublasLt works in: by version one of its own or that of cuBLAS, whose handle it uses [gemm]."""
    own = lt_workspace_bytes(torch=layouts.installed(), environment=os.environ)
    kept = at_least(LT_KEPT_SINCE)
    if own and not kept:
        call.scratch(own, "cublasLt workspace")
    take_workspace(call)
    if own and kept:
        call.workspace(("cublasLt", in_backward()), own, "cublasLt workspace")


def _fits(sizes: Shape, strides: Shape) -> bool:
    """Whether cuBLAS can read a matrix where it lies [blas `prepare_matrix_for_cublas`]."""
    if strides in ((sizes[1], 1), (1, sizes[0])):
        return True
    return (strides[0] == 1 and strides[1] >= max(1, sizes[0])) or (strides[1] == 1 and strides[0] >= max(1, sizes[1]))


def _is_dense(matrix: torch.Tensor) -> bool:
    """Non-overlapping and dense, dimensions of size one left out."""
    wanted = 1
    for stride, size in sorted(zip(matrix.stride(), matrix.size(), strict=True)):
        if size != 1:
            if stride != wanted:
                return False
            wanted *= size
    return True


def _copies(call: Call, *matrices: torch.Tensor) -> None:
    """Contiguous copies of the operands that cuBLAS cannot read where they lie."""
    for matrix in matrices:
        if not _is_dense(matrix) and not _fits(tuple(matrix.size()), tuple(matrix.stride())):
            call.scratch(num_bytes(matrix), "contiguous operand")


def _batch_copies(call: Call, *matrices: torch.Tensor) -> None:
    for matrix in matrices:
        rows, columns = matrix.stride()[1:]
        size = matrix.size()
        fits = (rows == 1 and columns >= max(1, size[1])) or (columns == 1 and rows >= max(1, size[2]))
        if not fits and not (matrix.is_contiguous() and rows and columns):
            call.scratch(num_bytes(matrix), "contiguous operand")


def _check_types(*matrices: torch.Tensor) -> None:
    """What meta kernels let pass [blas `addmm_out_cuda_impl`].

    Raises: RuntimeError in torch's words
    """
    a, b = matrices
    if a.dtype is not b.dtype:
        names = " != ".join(C_NAMES.get(tensor.dtype, str(tensor.dtype)) for tensor in matrices)
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {names}")


def mm(call: Call) -> Any:
    """`mm_out_cuda`: cuBLAS."""
    a, b = call.arg(0, "self"), call.arg(1, "mat2")
    _check_types(a, b)
    out = call.run()
    if out.numel() and a.numel():
        _copies(call, b, a)  # a row-major result is computed as its transpose, second operand first
        take_workspace(call)
    return out


def addmm(call: Call) -> Any:
    """`addmm_out_cuda_impl`: cublasLt with the bias in its epilogue where the bias is a row, else cuBLAS."""
    bias, a, b = call.arg(0, "self"), call.arg(1, "mat1"), call.arg(2, "mat2")
    _check_types(a, b)
    out = call.run()
    if not out.numel() or not a.numel():
        return out
    _copies(call, b, a)
    by_lt = (
        call.kwargs.get("beta", 1) == 1 and bias.dim() == 1 and bias.size(0) == b.size(1) and bias.is_contiguous()
        and b.size(0) > 1 and b.size(1) > 1 and not bias.is_complex()
    )
    (take_lt_workspace if by_lt else take_workspace)(call)
    return out


def bmm(call: Call) -> Any:
    """`baddbmm_out_cuda_impl` of two batches, with a sum or without."""
    out = call.run()
    first = 1 if "baddbmm" in call.name else 0
    a, b = (call.arg(first + at, name) for at, name in enumerate(("batch1", "batch2") if first else ("self", "mat2")))
    if out.numel() and a.size(2):
        _batch_copies(call, b, a)
        take_workspace(call)
    return out


def vectors(call: Call) -> Any:
    """dot, vdot, addr: one cuBLAS call; addbmm: one addmm after another into the output [blas `addbmm_impl`]."""
    out = call.run()
    take_workspace(call)
    return out


def addmv(call: Call) -> Any:
    """`addmv_out_cuda`."""
    out = call.run()
    matrix, vector = call.arg(1, "mat"), call.arg(2, "vec")
    if out.numel() and matrix.numel():
        if vector.stride(0) == 0:
            call.scratch(num_bytes(vector), "contiguous operand")
        _copies(call, matrix)
        take_workspace(call)
    return out


def mv(call: Call) -> Any:
    """`mv`: an empty output, then addmv [LinearAlgebra.cpp `mv`]."""
    out = call.run()
    _copies(call, call.arg(0, "self"))
    take_workspace(call)
    return out


def scaled_mm(call: Call) -> Any:
    """`_scaled_mm`: cublasLt with a scale a tensor or a row; its result beside nothing else [Blas.cpp]."""
    out = call.run()
    take_lt_workspace(call)
    return out


def int_mm(call: Call) -> Any:
    """`_int_mm`: cublasLt."""
    out = call.run()
    _copies(call, call.arg(1, "mat2"), call.arg(0, "self"))
    take_lt_workspace(call)
    return out


POINTERS: Final = {"aten._grouped_mm": 3, "aten._scaled_grouped_mm": 5}  # a group: operands, result, scales
POINTER: Final = 8
PROBLEM: Final = 3 * 4  # rows, columns, depth
STRIDES: Final = 3 * 8
FAST_GROUPS: Final = frozenset({9, 10})  # compute capability


def grouped_mm(call: Call) -> Any:
    """`_grouped_mm`, `_scaled_grouped_mm`: CUTLASS, which reads of every group pointers, strides and sizes.

    Leaves out the kernel's own workspace: some descriptors a multiprocessor, below 128 KiB.
    Source: pytorch aten/src/ATen/native/cuda/GroupMM.cu `bf16bf16_grouped_gemm_impl_sm90_sm100` (`input_args_size`),
    ScaledGroupMM.cu. Other dtypes than bf16 and other cards: GroupedBlas.cpp `_grouped_mm_fallback`, one product a
    group into the output
    """
    a, b = call.arg(0, "self"), call.arg(1, "mat2")
    is_fast = call.device.sm // 10 in FAST_GROUPS
    if call.name == "aten._grouped_mm" and (a.dtype is not torch.bfloat16 or not is_fast):
        alike = [tensor.to(torch.bfloat16) for tensor in (a, b)]  # others the meta kernel refuses
        shape = call.func(*alike, *call.args[2:], **call.kwargs)
        out = call.empty(shape.size(), dtype=a.dtype, strides=shape.stride())
        take_workspace(call)
        return out
    out = call.run()
    offsets = call.named("offs")
    groups = offsets.numel() if offsets is not None else a.size(0)
    pointers = round_up(groups, 2) * POINTERS[call.name] * POINTER
    call.scratch(pointers + groups * (PROBLEM + STRIDES), "grouped arguments")
    return out


RULES: Final[Mapping[str, Rule]] = {
    "aten._addmm_activation": addmm,
    "aten._grouped_mm": grouped_mm,
    "aten._int_mm": int_mm,
    "aten._scaled_grouped_mm": grouped_mm,
    "aten._scaled_mm": scaled_mm,
    "aten.addbmm": vectors,
    "aten.addmm": addmm,
    "aten.addmm_": addmm,
    "aten.addmv": addmv,
    "aten.addmv_": addmv,
    "aten.addr": vectors,
    "aten.baddbmm": bmm,
    "aten.baddbmm_": bmm,
    "aten.bmm": bmm,
    "aten.dot": vectors,
    "aten.mm": mm,
    "aten.mv": mv,
    "aten.vdot": vectors,
}
