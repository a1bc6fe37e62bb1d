"""What PyTorch sets aside for cuBLAS, by card, release of torch and environment, and the tensors of a step that it is.

Every handle has a workspace of its own on every stream it is used on, from its first product to the end of the process.
A thread has one handle for a device: a step that differentiates has two, that of the thread which calls forward and
that of the autograd engine's thread.

[pool] pytorch aten/src/ATen/cuda/CublasHandlePool.cpp `parseChosenWorkspaceSize`, `getCUDABlasLtWorkspace`, as of
26a39059 (2.10) and of the releases named beside the constants
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vramcast.domain.job import Job
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor
from vramcast.errors import Note
from vramcast.lazy import lazy_pattern
from vramcast.units import KIB, MIB

if TYPE_CHECKING:
    from vramcast.domain.pipeline import DiffusionJob

Version = tuple[int, ...]

SMALL_BYTES: Final = (2 * 4096 + 8 * 16) * KIB
"""":4096:2:16:8" [pool]."""
LARGE_BYTES: Final = 8 * 4096 * KIB
"""":4096:8", what NVIDIA recommends for Hopper and Blackwell [pool]."""
LARGE_SINCE: Final[Mapping[int, Version]] = {9: (2, 0), 10: (2, 12), 12: (2, 12), 11: (2, 14)}
"""Major compute capability -> release [pytorch pull requests 91564; 175344 of February 2026; 189312 of July 2026]."""

KEPT_SINCE: Final[Version] = (2, 0)
"""Before, cuBLAS took its memory from the driver itself [pytorch pull request 91564]."""
HIP_SINCE: Final[Version] = (2, 6)
HIP_BYTES: Final = 32 * MIB
HIP_LARGE_BYTES: Final = 128 * MIB
HIP_LARGE: Final = ("gfx94", "gfx95")
"""hipBLAS [pytorch pull request 138791 of October 2024]."""

LT_BYTES: Final = 1024 * KIB
LT_KEPT_SINCE: Final[Version] = (2, 9)
"""Since then cublasLt keeps a workspace as cuBLAS does; before, every call took one and gave it back [pytorch pull
request 156495; `cublaslt_handle_stream_to_workspace` is in the headers of 2.9, not in those of 2.8]."""
LT_SHARED_SINCE: Final[Version] = (2, 12)
"""Since then cublasLt works in the workspace of cuBLAS unless TORCH_CUBLASLT_UNIFIED_WORKSPACE=0 [pytorch pull request
175879; `getCurrentCUDABlasHandle(setup)` is in the headers of 2.12, not in those of 2.11]."""
LT_MAY_SHARE_SINCE: Final[Version] = (2, 8)
"""Since then TORCH_CUBLASLT_UNIFIED_WORKSPACE=1 does the same [pytorch pull request 151163]."""

NEWEST: Final[Version] = (999,)
_SIZES: Final = lazy_pattern(r":([0-9]+):([0-9]+)")  # KiB, count


def workspace_bytes(
    capability: str | None, *, torch: Version | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Workspace that PyTorch gives one cuBLAS handle on one stream [bytes].

    Leaves out `torch.backends.cuda.cublas_workspace_size(...)`, which overrules both defaults and environment.

    Args:
        capability: compute capability as catalogues write it, "9.0", "gfx942"; None: not known
        torch: release, major and minor; None: the newest
        environment: of the process

    Source: [pool]

    >>> workspace_bytes("8.0"), workspace_bytes("9.0"), workspace_bytes("10.0", torch=(2, 11))
    (8519680, 33554432, 8519680)
    >>> workspace_bytes("8.0", environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    131072
    """
    release, variables = torch or NEWEST, environment or {}
    hip = (capability or "").startswith("gfx")
    if release < (HIP_SINCE if hip else KEPT_SINCE):
        return 0
    names = ("CUBLAS", "HIPBLAS", "ROCBLAS") if hip else ("CUBLAS",)
    config = next((variables[key] for name in names if (key := f"{name}_WORKSPACE_CONFIG") in variables), "")
    sizes = _SIZES.findall(config)
    if sizes:
        return sum(int(size) * int(count) for size, count in sizes) * KIB
    if hip:
        return HIP_LARGE_BYTES if (capability or "").startswith(HIP_LARGE) else HIP_BYTES
    major = (capability or "").partition(".")[0]
    since = LARGE_SINCE.get(int(major)) if major.isdecimal() else None
    return LARGE_BYTES if since is not None and release >= since else SMALL_BYTES


def lt_workspace_bytes(*, torch: Version | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Workspace of cublasLt beside that of cuBLAS [bytes]; 0: it works in that of cuBLAS.

    Source: [pool] `parseCUDABlasLtWorkspaceSize`

    >>> lt_workspace_bytes(torch=(2, 11)), lt_workspace_bytes(torch=(2, 12))
    (1048576, 0)
    """
    release, variables = torch or NEWEST, environment or {}
    said = variables.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "")
    if release >= LT_MAY_SHARE_SINCE and (said == "1" or (release >= LT_SHARED_SINCE and said != "0")):
        return 0
    size = variables.get("CUBLASLT_WORKSPACE_SIZE", "")
    return int(size) * KIB if size.isdecimal() else LT_BYTES


SOURCE = "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"
BOTH_THREADS = "{:,} B for the forward thread, as much for the autograd thread"


def blas_workspace(num_bytes: int, *, whose: str = BOTH_THREADS, name: str = "cuBLAS workspace") -> Tensor:
    """The workspace of one handle."""
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.WORKSPACES, owner="process", basis=Basis.FORMULA,
        source=SOURCE, formula=Note(whose, num_bytes),
    )


def blas_workspaces(job: Job | DiffusionJob, *, torch: Version | None = None) -> Program:
    """Those of the thread that calls forward and of the autograd engine's.

    Args:
        job: whose card and environment decide
        torch: release; None: the newest
    """
    capability = job.cluster.gpu.compute_capability
    tensor = blas_workspace(workspace_bytes(capability, torch=torch, environment=job.env))
    return (Alloc(tensor), Alloc(tensor))
