"""Process groups without other processes: PyTorch's own fake group behind the names of the real ones.

[c10d] torch.distributed.distributed_c10d: init_process_group, _new_process_group_helper
[fake] torch.testing._internal.distributed.fake_pg: answers at once and moves nothing
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vramcast.tracing.distributed.world import World
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

NCCL_VERSION: Final = (2, 28, 9)
"""What scripts are told: any that knows all data types of torch 2.13 will do."""
REDUCING: Final = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
)
"""Methods of process groups, in any version, that are told how to reduce."""


@contextmanager
def process_groups(patches: Patches, world: World) -> Iterator[None]:
    """Within: any process group is made without other processes, and the variables of torchrun are set.

    On the way out groups made within are gone and the variables are as before.
    """
    from torch.testing._internal.distributed import fake_pg  # registers the backend

    _patch_groups(patches, world, fake_pg.FakeStore)
    before = {name: os.environ.get(name) for name in world.environment()}
    os.environ.update(world.environment())
    excepthook = sys.excepthook  # init_process_group replaces it
    had_group = dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_initialized() and not had_group:
            dist.destroy_process_group()
        _forget_meshes()
        sys.excepthook = excepthook
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _patch_groups(patches: Patches, world: World, store: Callable[[], Any]) -> None:
    """The real functions run; only what would look for other processes is answered."""
    make = c10d._new_process_group_helper

    def rendezvous(_url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[Any]:
        yield store(), world.rank if rank < 0 else rank, world.size if world_size < 0 else world_size

    def new_group(size: int, rank: int, ranks: Any, backend: Any, _store: Any, name: Any, **kwargs: Any) -> Any:
        """A fake group that answers with the backend that was asked for."""
        kwargs.pop("backend_options", None)
        made = make(size, rank, ranks, "fake", store(), name, **kwargs)
        group = made[0] if isinstance(made, tuple) else made
        if group is not c10d.GroupMember.NON_GROUP_MEMBER and group in c10d._world.pg_map:
            asked = str(backend or "nccl").lower()
            asked = "nccl" if asked == "undefined" else asked
            c10d._world.pg_map[group] = (asked, c10d._world.pg_map[group][1])
        return made

    patches.set(c10d, "rendezvous", rendezvous)
    patches.set(c10d, "_new_process_group_helper", new_group)
    patches.set(c10d, "_get_default_timeout", lambda _backend: c10d.default_pg_timeout)
    patches.set(c10d, "_store_based_barrier", lambda *_args, **_kwargs: None)
    for name in ("is_nccl_available", "is_gloo_available", "is_torchelastic_launched"):
        for module in (dist, c10d):
            patches.set(module, name, lambda: True)
    patches.set(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.set(torch._C, "_get_accelerator", lambda *_args: torch.device("cuda"))


def patch_reductions(patches: Patches, simulation: Simulation) -> None:
    """Let rules know how a collective reduces: in C++'s operators it is a box that Python cannot open."""
    for name in REDUCING:
        if hasattr(dist.ProcessGroup, name):
            patches.set(dist.ProcessGroup, name, _naming_reduction(getattr(dist.ProcessGroup, name), simulation))


def _naming_reduction(collective: Any, simulation: Simulation) -> Any:
    def named(*args: Any, **kwargs: Any) -> Any:
        options = next((arg for arg in (*args, *kwargs.values()) if hasattr(arg, "reduceOp")), None)
        named_op = getattr(getattr(options, "reduceOp", None), "op", None)
        simulation.reduction = getattr(named_op, "name", "").lower()
        try:
            return collective(*args, **kwargs)
        finally:
            simulation.reduction = ""

    return named


def _forget_meshes() -> None:
    """Device meshes that were current when the run ended."""
    from torch.distributed.device_mesh import _mesh_resources

    stack = getattr(_mesh_resources, "mesh_stack", None)
    if stack:
        stack.clear()
