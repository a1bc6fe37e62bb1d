"""One rank among many, of which only this one runs: PyTorch's own fake group behind the names of the real ones.

Python objects that ranks exchange: every rank is taken to send what this one sends. Their buffers are those of the real
functions, so that what they take on the device is seen. DDP's real C++ reducer works on simulated tensors; its check
against other ranks does not. FSDP1's checkpoints: parameters whose share of a rank is empty have states on other ranks
only. Distributed tensors work out layouts for lists of all parameters in time that grows with their square: not here.
[fake] torch.testing._internal.distributed.fake_pg: answers at once and moves nothing
[c10d] torch.distributed.distributed_c10d: init_process_group, _new_process_group_helper, all_gather_object,
gather_object, broadcast_object_list, scatter_object_list
[prop] torch.distributed.tensor._sharding_prop._propagate_use_strided_shard_flag of torch 2.13: for every tensor of a
list it looks through the whole list for strided shards, to mark the tensor's own; without any there is nothing to mark
[rng] torch._prims.rng_prims.run_dtensor_rng_op of torch 2.13: sets the offset of the card's generator before and after;
its state is a tensor of the host, so nothing is allocated beside what the operator takes
[ddp] torch.nn.parallel.distributed, torch/csrc/distributed/c10d/reducer.cpp
[optim] torch.distributed.fsdp._optim_utils of torch 2.13: _convert_state_with_orig_params
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch._prims import rng_prims
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.testing._internal.distributed import fake_pg  # registers the backend

from vramcast.errors import InvalidSpec
from vramcast.tracing.environment.patches import Patches, variables
from vramcast.tracing.simulation import Simulation

CARDS_PER_MACHINE = 8  # cards of the usual training server [count]


class World(NamedTuple):
    """Ranks of the job and which of them this process is."""

    size: int = 1  # ranks of the default process group
    rank: int = 0
    cards_per_machine: int = CARDS_PER_MACHINE
    is_launched: bool = False  # by torchrun, though it is alone

    @property
    def local_size(self) -> int:
        """Ranks on this machine, and cards that the process sees."""
        return min(self.size, self.cards_per_machine)

    @property
    def local_rank(self) -> int:
        return self.rank % self.cards_per_machine

    def environment(self) -> Mapping[str, str]:
        """Variables that torchrun sets [torch.distributed.elastic.agent.server.local_elastic_agent]."""
        machines = -(-self.size // self.cards_per_machine)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.cards_per_machine),
            "GROUP_WORLD_SIZE": str(machines),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
        }


ALONE = World()
"""A job of one process."""


def parse_world(*, size: int, rank: int = 0, cards_per_machine: int = CARDS_PER_MACHINE) -> World:
    """Raises: InvalidSpec"""
    if size < 1:
        raise InvalidSpec("world size {} has no rank; give 1 or more", size)
    if not 0 <= rank < size:
        raise InvalidSpec("rank {} is not in a world of {} ranks; give 0 to {}", rank, size, size - 1)
    if cards_per_machine < 1:
        raise InvalidSpec("{} cards per machine hold no rank; give 1 or more", cards_per_machine)
    return World(size, rank, cards_per_machine)


NCCL_VERSION: Final = (2, 28, 9)
"""What scripts are told: any that knows all data types of torch 2.13 will do."""
REDUCING: Final = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
)
"""Methods of process groups, in any version, that are told how to reduce."""


@contextmanager
def simulate_distributed(patches: Patches, simulation: Simulation, world: World) -> Iterator[None]:
    """Within: `torch.distributed` works as on that rank of that world, and the variables of torchrun are set, unless it
    is alone: scripts take a process that has them for one of several, with DDP and its buckets.

    On the way out groups made within are gone and the variables are as before.
    """
    _patch_layouts(patches)
    _patch_objects(patches)
    if world.size > 1:
        _patch_checkpoints(patches, simulation)
    _patch_reductions(patches, simulation)
    _patch_groups(patches, world)
    excepthook = sys.excepthook  # init_process_group replaces it
    had_group = dist.is_initialized()
    try:
        with variables(world.environment() if world.size > 1 or world.is_launched else {}):
            yield
    finally:
        if dist.is_initialized() and not had_group:
            dist.destroy_process_group()
        getattr(_mesh_resources, "mesh_stack", []).clear()
        sys.excepthook = excepthook


def _patch_groups(patches: Patches, world: World) -> None:
    """The real functions run; only what would look for other processes is answered."""
    make, store = c10d._new_process_group_helper, fake_pg.FakeStore

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
    patches.set(dist.ProcessGroup, "monitored_barrier", lambda *_args, **_kwargs: None)
    for name in ("is_nccl_available", "is_gloo_available", "is_torchelastic_launched"):
        for module in (dist, c10d):
            patches.set(module, name, lambda: True)
    for module in (dist, c10d, device_mesh):
        patches.set(module, "split_group", split_group)
        patches.set(module, "ProcessGroupNCCL", ProcessGroupNCCL)
    patches.set(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.set(torch._C, "_get_accelerator", lambda *_args: torch.device("cuda"))
    # All ranks have the same parameters [c10d::verify_params_across_processes].
    patches.set(dist, "_verify_params_across_processes", lambda *_args: None)
    wrapper = getattr(rng_prims, "run_dtensor_rng_op", None)
    if wrapper is not None:  # which earlier versions of torch do not have
        patches.put(wrapper.python_key_table, Simulation, _run)


class ProcessGroupNCCL:
    """Stands for the class of builds with CUDA: no group here is one, its options are taken and have no effect."""

    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = range(3)

    class Options(SimpleNamespace):
        """`is_high_priority_stream`, and `config` of the communicator."""

        def __init__(self, is_high_priority_stream: bool = False, **named: Any) -> None:
            super().__init__(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace(), **named)

    NCCLConfig = SimpleNamespace


def split_group(
    parent_pg: Any = None, split_ranks: Sequence[Sequence[int]] | None = None, timeout: Any = None,
    pg_options: Any = None, group_desc: str | None = None, **_named: Any,
) -> Any:
    """A part of a group, made as any new one; None where this rank is in none of the parts."""
    within = dist.get_process_group_ranks(parent_pg)
    for ranks in split_ranks or ():
        part = [within[rank] for rank in ranks]
        made = dist.new_group(part, timeout, pg_options=pg_options, group_desc=group_desc)
        if dist.get_rank() in part:
            return made
    return None


def _patch_reductions(patches: Patches, simulation: Simulation) -> None:
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


def _patch_objects(patches: Patches) -> None:
    """Replace the functions in both modules that offer them."""
    for name, answer in ANSWERS.items():
        for module in (dist, c10d):
            patches.set(module, name, answer)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Everybody's object."""
    _take(obj, group, copies=dist.get_world_size(group))
    object_list[:] = [obj] * dist.get_world_size(group)


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Everybody's object on one rank."""
    if not _is_here(dst, group, group_dst):
        _take(obj, group, copies=1)
        return
    size = dist.get_world_size(group)
    _take(obj, group, copies=size)
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * size


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
    group_src: int | None = None, weights_only: bool | None = None,
) -> None:
    """What the source holds is taken to be what this rank holds."""
    for obj in object_list:
        _take(obj, group, copies=1)


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None, group: Any = None, group_src: int | None = None,
) -> None:
    """This rank's part, where this rank knows it."""
    if scatter_object_input_list:
        obj = scatter_object_input_list[dist.get_rank(group)]
        _take(obj, group, copies=1)
        scatter_object_output_list[0] = obj


ANSWERS: Final[Mapping[str, Callable[..., None]]] = {
    "all_gather_object": all_gather_object,
    "gather_object": gather_object,
    "broadcast_object_list": broadcast_object_list,
    "scatter_object_list": scatter_object_list,
}


def _is_here(dst: int | None, group: Any, group_dst: int | None) -> bool:
    if group_dst is not None:
        return dist.get_rank(group) == group_dst
    return dist.get_rank() == (dst or 0)


def _take(obj: Any, group: Any, *, copies: int) -> None:
    """The pickled object on the group's device, and as many received ones; all freed on return."""
    if dist.get_backend(group) != "nccl":
        return
    device = torch.device("cuda", torch.cuda.current_device())
    num_bytes = len(pickle.dumps(obj))
    own = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    sizes = torch.zeros(copies, dtype=torch.long, device=device)
    received = torch.empty(num_bytes * copies, dtype=torch.uint8, device=device) if copies > 1 else None
    del own, sizes, received


_MODULE: Final = "torch.distributed.tensor._sharding_prop"
_NAME: Final = "_propagate_use_strided_shard_flag"


def _patch_layouts(patches: Patches) -> None:
    """Look at the tensor's own layouts first, from the first mesh on: before, distributed tensors may not be loaded."""
    make = DeviceMesh.__init__

    def make_mesh(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        _patch_loaded(patches)
        make(self, *args, **kwargs)

    patches.set(DeviceMesh, "__init__", make_mesh)


def _patch_loaded(patches: Patches) -> None:
    propagation = sys.modules.get(_MODULE)
    mark = getattr(propagation, _NAME, None)
    if mark is None or mark.__name__ != _NAME:
        return  # not loaded, of another version of torch, or done

    def mark_if_strided(strategy: Any, schema: Any) -> None:
        strided = propagation._StridedShard  # type: ignore[union-attr]
        if any(isinstance(placement, strided) for spec in _specs(strategy) for placement in spec.placements):
            mark(strategy, schema)

    patches.set(propagation, _NAME, mark_if_strided)


def _specs(strategy: Any) -> Iterator[Any]:
    for choice in strategy.strategies:
        outputs = choice.output_specs if isinstance(choice.output_specs, (tuple, list)) else (choice.output_specs,)
        yield from (spec for spec in outputs if spec is not None)
        yield from choice.input_specs or ()


def _run(simulation: Simulation, _before: int, _after: int, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with simulation:
        return operator(*args, **kwargs)


OWN_ONLY: Final = "a checkpoint holds this rank's optimizer states: those of other ranks are not gathered"


def _patch_checkpoints(patches: Patches, simulation: Simulation) -> None:
    """Gather where this rank has a part of every parameter, else give what it has."""
    from torch.distributed.fsdp import _optim_utils

    convert = _optim_utils._convert_state_with_orig_params

    def converted(keys: Any, local_keys: Any, infos: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        known = {name for key in keys for name in key.unflat_param_names}
        wanted = {name for name, info in infos.items() if info.param_requires_grad[info.param_indices[name]]}
        if wanted <= known:
            return convert(keys, local_keys, infos, states, *args, **kwargs)
        simulation.assumptions.note(OWN_ONLY, simulation.origins.place())
        return {key.unflat_param_names[0]: dict(states[local]) for key, local in local_keys.items()}

    patches.set(_optim_utils, "_convert_state_with_orig_params", converted)
