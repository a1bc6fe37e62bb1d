"""Memory of a process beside PyTorch's caching allocator: CUDA context, library images, NCCL."""

from __future__ import annotations

from typing import Final

from vramcast.domain.device import FALLBACK_CONTEXT_BYTES, Gpu
from vramcast.domain.job import Job
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.engines.training import engine_of
from vramcast.errors import Note
from vramcast.units import MIB

FALLBACK_NCCL_BYTES: Final = 100 * MIB
"""Where the catalogue says nothing of a card's links: a communicator over PCIe [bytes]."""


def outside_tensors(job: Job) -> tuple[Tensor, ...]:
    """Entries between reserved and device memory of one rank."""
    gpu = job.cluster.gpu
    around = around_process(gpu)
    communicators = communicator_count(job)
    if not communicators:
        return around
    per_communicator = communicator_bytes(gpu)
    nccl = Tensor(
        name="NCCL communicators",
        num_bytes=communicators * per_communicator,
        category=Category.COMMUNICATION,
        owner="process",
        basis=Basis.ASSUMED,
        formula=Note("{} communicators x {} MiB", communicators, per_communicator // MIB),
        source="catalogue/contexts.csv, NCCL rows",
    )
    return (*around, nccl)


def around_process(gpu: Gpu) -> tuple[Tensor, ...]:
    """What of a card a process cannot have: its context, and what others hold."""
    context = context_tensor(gpu)
    if not gpu.held_bytes:
        return (context,)
    held = Tensor(
        name="held by others", num_bytes=gpu.held_bytes, category=Category.WORKSPACES, owner="card",
        basis=Basis.ASSUMED, formula=f"--used {gpu.held_bytes // MIB}MiB", source="given by the user",
    )
    return (context, held)


def context_tensor(gpu: Gpu) -> Tensor:
    """What a process takes of a card before it allocates anything."""
    return Tensor(
        name="CUDA context and library images",
        num_bytes=gpu.context_bytes or FALLBACK_CONTEXT_BYTES,
        category=Category.WORKSPACES,
        owner="process",
        basis=Basis.MEASURED if gpu.context_bytes else Basis.ASSUMED,
        formula=Note("one {} process", gpu.arch),
        source="catalogue/contexts.csv",
    )


def communicator_bytes(gpu: Gpu) -> int:
    """Buffers of one NCCL communicator [bytes]."""
    return gpu.nccl_bytes or FALLBACK_NCCL_BYTES


def communicator_count(job: Job) -> int:
    """Groups of more than one rank that this job communicates in; the cards of one process copy to each other."""
    plan = job.plan
    stages = 1 if engine_of(job).kin == "eager" else plan.pp
    degrees = (job.data_parallel, plan.tp, stages, plan.cp, plan.ep)
    return sum(degree > 1 for degree in degrees)
