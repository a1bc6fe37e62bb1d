"""cuBLAS workspaces of a step as tensors of its program."""

from __future__ import annotations

from vramcast.domain.cublas import Version, workspace_bytes
from vramcast.domain.job import Job
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor

SOURCE = "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"
BOTH_THREADS = "for the forward thread, as much for the autograd thread"


def blas_workspace(num_bytes: int, *, whose: str = BOTH_THREADS, name: str = "cuBLAS workspace") -> Tensor:
    """The workspace of one handle."""
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.WORKSPACES, owner="process", basis=Basis.FORMULA,
        source=SOURCE, formula=f"{num_bytes:,} B {whose}",
    )


def blas_workspaces(job: Job, *, torch: Version | None = None) -> Program:
    """Those of the thread that calls forward and of the autograd engine's.

    Args:
        job: whose card and environment decide
        torch: release; None: the newest
    """
    capability = job.cluster.gpu.compute_capability
    tensor = blas_workspace(workspace_bytes(capability, torch=torch, environment=job.env))
    return (Alloc(tensor), Alloc(tensor))
