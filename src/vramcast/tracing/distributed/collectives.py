"""Collectives: what they allocate, what values they leave, which communicators they need; SyncBatchNorm's operators.

Every rank is taken to hold what this one holds: the only assumption under which one process can answer for all. So a
sum is a multiple, a gather is copies. Where a result depends on other data nothing is known of it. Left out: the
staging buffers of SyncBatchNorm's channels-last kernels of large batches, below a megabyte.
[nccl] pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: allgather and reduce_scatter of lists work on a flat
buffer of all ranks' tensors (newLikeFlat) when these have one size; what goes in and comes out of one collective that
is not waited for stays alive until then (stashed_for_allocator_safety_)
[bn] pytorch aten/src/ATen/native/cuda/Normalization.cu and .cuh: statistics are kept in the type that sums are in
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group

from vramcast.domain.program import Category
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import accumulator

Reduction = Callable[[torch.Tensor, int], torch.Tensor]

REDUCTIONS: Final[Mapping[str, Reduction]] = {
    "sum": lambda values, size: values * size,
    "avg": lambda values, _size: values.clone(),
    "min": lambda values, _size: values.clone(),
    "max": lambda values, _size: values.clone(),
    "product": lambda values, size: values**size,
    "band": lambda values, _size: values.clone(),
    "bor": lambda values, _size: values.clone(),
}
"""What `size` equal tensors become."""


def _group_of(call: Call) -> Any:
    """The process group among the arguments, boxed or by name."""
    for arg in (*call.args, *call.kwargs.values()):
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return ProcessGroup.unbox(arg)
    name = call.kwargs.get("group_name")
    if name is None:
        places = [argument.name for argument in call.func._schema.arguments]
        name = call.args[places.index("group_name")]
    return _resolve_process_group(name) if isinstance(name, str) else name


def _join(call: Call) -> int:
    """Note that this group communicates: its communicator exists from now on. Returns the group's size."""
    group = _group_of(call)
    size: int = group.size()
    if size > 1:
        call.device.communicators.add(group.group_name)
    return size


def _reduction(call: Call) -> Reduction | None:
    """How the call reduces; None where equal inputs do not say the result."""
    named = call.kwargs.get("reduce_op") or next((arg for arg in call.args if isinstance(arg, str)), "")
    return REDUCTIONS.get(named if isinstance(named, str) and named else call.simulation.reduction)


def _values(call: Call, tensor: torch.Tensor) -> torch.Tensor | None:
    resident = call.simulation.memory.of(tensor)
    if resident is None or resident.twin is None:
        return None
    return call.simulation.values.of(tensor)


def _leave(call: Call, tensor: torch.Tensor, values: torch.Tensor | None) -> None:
    """What a tensor holds afterwards."""
    resident = call.simulation.memory.of(tensor)
    if resident is None:
        return
    if values is None:
        resident.twin = None
    elif resident.twin is not None:
        view = call.simulation.values.of(tensor)
        if view is not None:
            view.copy_(values)
    else:
        call.simulation.values.set(tensor, values)


def _reduced(call: Call, values: torch.Tensor | None, size: int) -> torch.Tensor | None:
    reduce = _reduction(call)
    if values is None or reduce is None:
        return None
    return reduce(values, size).to(values.dtype)


def _is_buffer(call: Call, tensors: Sequence[torch.Tensor], what: str) -> None:
    """Note that tensors are there for communication alone, unless someone holds them for more."""
    for tensor in tensors:
        resident = call.simulation.memory.of(tensor)
        if resident is not None and resident.block is not None and resident.block.category is None:
            resident.block.category, resident.block.name = Category.COMMUNICATION, what


def _flat(call: Call, tensors: Sequence[torch.Tensor]) -> None:
    """The flat buffer for a list of tensors of one size."""
    if tensors and all(tensor.size() == tensors[0].size() for tensor in tensors):
        call.scratch(len(tensors) * tensors[0].numel() * tensors[0].dtype.itemsize, "flattened list")


def _with_future(out: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The operator's result with work whose future holds the tensors: DDP's reducer reads them from there."""
    future: Any = torch.futures.Future()
    future.set_result(list(tensors))
    work = _create_work_from_future(future).boxed()
    return (out[0], work) if isinstance(out, tuple) else work


def all_reduce(call: Call) -> Any:
    """In place."""
    tensors = _reduce_in_place(call)
    if not call.simulation.reduction:  # called from C++, by DDP's reducer
        _is_buffer(call, tensors, "bucket of gradients")
    return _with_future(call.run(), tensors)


def all_reduce_coalesced(call: Call) -> Any:
    """In place; torch has no meta kernel."""
    return _with_future(None, _reduce_in_place(call))


def _reduce_in_place(call: Call) -> Sequence[torch.Tensor]:
    size = _join(call)
    tensors: Sequence[torch.Tensor] = call.args[0]
    for tensor in tensors:
        _leave(call, tensor, _reduced(call, _values(call, tensor), size))
    return tensors


def all_gather_base(call: Call) -> Any:
    """One buffer holds all ranks' tensors."""
    size = _join(call)
    out, own = call.args[0], call.args[1]
    _is_buffer(call, [out], "gathered")
    values = _values(call, own)
    _leave(call, out, None if values is None else torch.cat([values.reshape(-1)] * size).view(out.size()))
    return call.run()


def all_gather(call: Call) -> Any:
    """A list of tensors, one for each rank."""
    _join(call)
    for outs, own in zip(call.args[0], call.args[1], strict=True):
        _flat(call, outs)
        values = _values(call, own)
        for out in outs:
            _leave(call, out, None if values is None else values.reshape(out.size()))
    return call.run()


def reduce_scatter_base(call: Call) -> Any:
    """One buffer is reduced; every rank keeps its part."""
    size = _join(call)
    out, all_parts = call.args[0], call.args[1]
    _is_buffer(call, [all_parts], "to be reduced")
    values = _reduced(call, _values(call, all_parts), size)
    rank = _group_of(call).rank()
    _leave(call, out, None if values is None else values.reshape(-1).chunk(size)[rank].view(out.size()))
    return call.run()


def reduce_scatter(call: Call) -> Any:
    """A list of tensors, one for each rank, is reduced."""
    size = _join(call)
    rank = _group_of(call).rank()
    for out, parts in zip(call.args[0], call.args[1], strict=True):
        _flat(call, parts)
        _leave(call, out, _reduced(call, _values(call, parts[rank]), size))
    return call.run()


def exchange(call: Call) -> Any:
    """What comes depends on the other ranks' data."""
    _receive(call)
    return call.run()


def exchange_coalesced(call: Call) -> Any:
    """The same for several tensors at once; torch has no meta kernel."""
    return _with_future(None, _receive(call))


def _receive(call: Call) -> list[torch.Tensor]:
    _join(call)
    outs = call.args[0] if isinstance(call.args[0], (list, tuple)) else [call.args[0]]
    parts = [part for out in outs for part in (out if isinstance(out, (list, tuple)) else [out])]
    for part in parts:
        _leave(call, part, None)
    return parts


def all_to_all_base(call: Call) -> Any:
    """Where the parts have one size, every rank sends this one the part that it would send itself."""
    size = _join(call)
    out, own = call.args[0], call.args[1]
    values = _values(call, own)
    is_even = not call.arg(3, "output_split_sizes") and not call.arg(4, "input_split_sizes")
    if values is not None and is_even and values.numel() % size == 0:
        part = values.reshape(-1).chunk(size)[_group_of(call).rank()]
        _leave(call, out, torch.cat([part] * size).view(out.size()))
    else:
        _leave(call, out, None)
    return call.run()


def unchanged(call: Call) -> Any:
    """This rank's tensors stay as they are; what another rank broadcasts is what this one holds."""
    _join(call)
    return call.run()


def functional(call: Call) -> Any:
    """A result of its own; the inputs live on until someone waits for it."""
    size = _join(call)
    out = call.run()
    outs = out if isinstance(out, (list, tuple)) else [out]
    inputs = call.args[0] if isinstance(call.args[0], (list, tuple)) else [call.args[0]]
    is_reduction = call.func._overloadpacket.__name__.startswith("all_reduce")
    for one, own in zip(outs, inputs, strict=False):
        call.simulation.in_flight[one.untyped_storage()._cdata] = own
        if is_reduction:
            _leave(call, one, _reduced(call, _values(call, own), size))
    return out


def wrap(call: Call) -> Any:
    """A tensor that waits for its collective when it is used; no new memory, which torch's meta kernel takes."""
    return AsyncCollectiveTensor(call.args[0])


def wait(call: Call) -> Any:
    call.simulation.in_flight.pop(call.args[0].untyped_storage()._cdata, None)
    return call.args[0]


def copy_out(call: Call) -> Any:
    """FSDP2's gathered weights leave the buffer that they were gathered in."""
    _is_buffer(call, call.kwargs["out"], "gathered weights")
    return call.run()


def stats(call: Call) -> Any:
    own = call.args[0]
    return tuple(call.empty([own.size(1)], dtype=accumulator(own.dtype)) for _ in range(2))


def normalise(call: Call) -> Any:
    """A tensor like the input."""
    own = call.args[0]
    return call.empty(own.size(), dtype=own.dtype, strides=own.stride())


def backward_reduce(call: Call) -> Any:
    """Two sums for the input's gradient, then the gradients of weight and bias, each where it is asked for."""
    channels, mean, weight = call.args[1].size(1), call.args[2], call.args[4]
    wants_input, wants_weight, wants_bias = call.args[5:8]
    of_weight = weight.dtype if weight is not None else call.args[1].dtype
    wanted = ((wants_input, mean.dtype), (wants_input, mean.dtype), (wants_weight, of_weight), (wants_bias, of_weight))
    return tuple(call.empty([channels if is_wanted else 0], dtype=dtype) for is_wanted, dtype in wanted)


RULES: Final[Mapping[str, Rule]] = {
    "fsdp.split_with_sizes_copy": copy_out,
    "c10d._allgather_base_": all_gather_base,
    "c10d._reduce_scatter_base_": reduce_scatter_base,
    "c10d.allgather_": all_gather,
    "c10d.allreduce_coalesced_": all_reduce_coalesced,
    "c10d.alltoall_base_": all_to_all_base,
    "c10d.reduce_scatter_": reduce_scatter,
    **dict.fromkeys(("c10d.allreduce_", "c10d.reduce_"), all_reduce),
    **dict.fromkeys(("c10d.barrier", "c10d.broadcast_", "c10d.send"), unchanged),
    **dict.fromkeys((
        "c10d.alltoall_", "c10d.gather_", "c10d.recv_", "c10d.recv_any_source_", "c10d.scatter_",
    ), exchange),
    **dict.fromkeys((
        "c10d.allgather_coalesced_", "c10d.allgather_into_tensor_coalesced_", "c10d.reduce_scatter_tensor_coalesced_",
    ), exchange_coalesced),
    **{f"_c10d_functional.{name}": functional for name in (
        "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out", "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out", "all_to_all_single", "broadcast", "broadcast_",
    )},
    "_c10d_functional.wait_tensor": wait,
    "_c10d_functional._wrap_tensor_autograd": wrap,
    **dict.fromkeys(("aten.batch_norm_stats", "aten.batch_norm_gather_stats_with_counts"), stats),
    **dict.fromkeys(("aten.batch_norm_elemt", "aten.batch_norm_backward_elemt"), normalise),
    "aten.batch_norm_backward_reduce": backward_reduce,
}
PLAIN: Final = frozenset({
    "fsdp.all_gather_copy_in", "fsdp.chunk_cat", "fsdp.copy_",
})
"""FSDP2's operators copy with foreach kernels into memory they are given [torch.distributed.fsdp._fully_shard]."""
