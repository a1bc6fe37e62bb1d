"""What a training plan keeps beside the cards: main memory and local disks of every machine.

Leaves out gradients on their way, pinned buffers, data loaders and the operating system: the figures are lower bounds,
so a plan refused for them cannot run.

[ZeRO] Rajbhandari et al., arXiv:1910.02054, section 3.1: an fp32 copy and two moments are 12 bytes a parameter
[fsdp] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_api.py: `CPUOffloadPolicy` keeps sharded parameters, gradients
and optimizer states on the host, whichever of them is asked for
"""

from __future__ import annotations

from typing import Final

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.answer import HostNeed
from vramcast.domain.job import Job, Precision
from vramcast.units import ceil_div, format_bytes

MOMENTS: Final[dict[str, int]] = {"adam": 8, "adamw": 8, "adam-8bit": 2, "adamw-8bit": 2}
"""Optimizer -> bytes of its states of a parameter in fp32; of others only the copy of the weights is counted."""

COPY_BYTES: Final = 4
"""The fp32 weight that the optimizer updates."""

WEIGHT_BYTES: Final = 2
"""The 16-bit weight that is computed with, where it is offloaded beside the copy."""

ALL_OR_NOTHING: Final = ("torchtitan", "torchtune")
"""Engines whose offload takes weights and states together [fsdp]."""

KEEP_A_COPY: Final = ("deepspeed", "colossalai", "megatron")
"""Engines whose optimizers have an fp32 copy in every recipe; the others update the weights themselves."""


def host_need(job: Job) -> HostNeed | None:
    """What the offloaded parts of a plan take of each machine at least; None where nothing is offloaded [bytes]."""
    plan, cluster = job.plan, job.cluster
    taken = {"cpu": 0, "nvme": 0, "none": 0}
    states = plan.offload_optimizer
    if job.engine in ALL_OR_NOTHING:
        states = "none" if states == plan.offload_parameters == "none" else "cpu"
    if states == plan.offload_parameters == "none":
        return None
    number = count_parameters(job.model).total
    learning = number if plan.peft is None else plan.peft.trainable_parameters or 0
    taken[states] += learning * _state_bytes(job)
    if job.engine not in ALL_OR_NOTHING:
        taken[plan.offload_parameters] += number * WEIGHT_BYTES
    return HostNeed(
        memory_bytes=ceil_div(taken["cpu"], cluster.num_nodes),
        disk_bytes=ceil_div(taken["nvme"], cluster.num_nodes),
        memory_there_bytes=cluster.host_bytes,
        disk_there_bytes=cluster.nvme_bytes,
    )


def _state_bytes(job: Job) -> int:
    """Of a parameter: its copy and the optimizer's states."""
    whole = COPY_BYTES + MOMENTS.get(job.plan.optimizer, 0)
    half = job.plan.precision in (Precision.BF16, Precision.FP16) and job.engine not in KEEP_A_COPY
    return whole // 2 if half else whole


def has_room(job: Job) -> bool:
    """Whether what is offloaded goes into main memory and onto the disks, as far as their size is known."""
    need = host_need(job)
    return need is None or need.fits


def takes(need: HostNeed | None) -> str:
    """What is taken beside the cards, as one clause that says what was not checked; empty where nothing is."""
    if need is None:
        return ""
    return ", ".join(
        f"at least {format_bytes(needed)} of {name} in each machine"
        + (", not checked" if there is None else f" of {format_bytes(there)}")
        for name, needed, there in need.places
    )


def shortfall(need: HostNeed | None) -> str:
    """What there is too little of, as one clause; empty where nothing is."""
    if need is None:
        return ""
    return "; ".join(
        f"{name}: at least {format_bytes(needed)} needed in each machine, {format_bytes(there)} there"
        for name, needed, there in need.places if there is not None and needed > there
    )
