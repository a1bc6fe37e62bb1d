"""A module layer by layer: one traced forward, each figure with the innermost module that was running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from vramcast.domain.trace_job import TraceJob
from vramcast.estimate.layers import LayerRow
from vramcast.tracing.inputs import first_tensor
from vramcast.tracing.memory import Memory
from vramcast.tracing.origins import Origins
from vramcast.tracing.result import NUMBER
from vramcast.tracing.run import check_torch
from vramcast.tracing.session import Session
from vramcast.tracing.tape import UNTOLD, Tape
from vramcast.tracing.targets import find_before, find_target
from vramcast.tracing.workloads import Workload


def traced_layers(job: TraceJob) -> tuple[tuple[LayerRow, ...], int]:
    """Every module that ran or has parameters of its own, and the parameters of all.

    A value that two modules save is counted with the first; temporaries are what a module itself had alive at most and
    freed before the forward ended. FLOPs are those of torch.utils.flop_counter: matrix products, convolutions and
    attention, two for a multiplication with its addition.

    Raises: VramcastError of one sentence
    """
    check_torch()
    target = find_before(job)
    session = Session(job.gpu)
    with session.active():
        workload = Workload(job, target or find_target(job), session)
        seen = _Seen(session.memory, session.origins)
        shapes: dict[str, tuple[int, ...]] = {}
        handles = [module.register_forward_hook(_noting(shapes, name)) for name, module in _named(workload.model)]
        tape = session.device.tape
        start = len(tape.events)
        with torch.autograd.graph.saved_tensors_hooks(seen.save, lambda tensor: tensor), seen:
            output = workload.forward()
        end = len(tape.events)
        for handle in handles:
            handle.remove()
        del output
    temporaries = _temporaries(tape, start, end, seen.kept)
    rows = [
        LayerRow(
            path=name, kind=type(module).__name__, repeats=1,
            parameters=sum(each.numel() for each in module.parameters(recurse=False)),
            output_shape=shapes.get(name, ()),
            saved_bytes=seen.saved.get(name, 0), flops=seen.flops.get(name, 0),
            temporary_bytes=temporaries.get(name, 0),
        )
        for name, module in _named(workload.model)
    ]
    told = (row for row in rows if row.parameters or row.saved_bytes or row.flops or row.temporary_bytes)
    return tuple(_merged(told)), workload.num_parameters


class _Seen(TorchDispatchMode):
    """Watches one forward: who computes and who saves."""

    def __init__(self, memory: Memory, origins: Origins) -> None:
        super().__init__()
        self._memory, self._origins = memory, origins
        self.flops: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.kept: set[int] = set()  # indices of blocks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            module = self._module()
            self.flops[module] = self.flops.get(module, 0) + count(*args, **(kwargs or {}), out_val=out)
        return out

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd keeps a tensor: a hook."""
        resident = self._memory.of(tensor)
        block = resident.block if resident is not None else None
        if block is not None and block.category in UNTOLD and block.index not in self.kept:
            self.kept.add(block.index)
            module = self._module()
            self.saved[module] = self.saved.get(module, 0) + block.num_bytes
        return tensor

    def _module(self) -> str:
        return self._origins.modules[-1] if self._origins.modules else ""


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules by the names of origins: that of the whole is its class."""
    for name, module in model.named_modules():
        yield name or type(model).__name__, module


def _noting(shapes: dict[str, tuple[int, ...]], name: str) -> Any:
    def note(_module: Any, _inputs: Any, output: Any) -> None:
        found = first_tensor(output, with_dimensions=True)
        if found is not None:
            shapes[name] = tuple(found.shape)

    return note


def _temporaries(tape: Tape, start: int, end: int, kept: set[int]) -> dict[str, int]:
    """The most that each module had alive at once of what was freed before the forward ended [bytes]."""
    live: dict[str, int] = {}
    most: dict[str, int] = {}
    for event in tape.events[start:end]:
        block = tape.blocks[abs(event) - 1]
        if block.index in kept or block.born < start or block.died is None or block.died > end:
            continue
        module = block.origin.module
        live[module] = live.get(module, 0) + (block.num_bytes if event > 0 else -block.num_bytes)
        most[module] = max(most.get(module, 0), live[module])
    return most


def _merged(rows: Iterator[LayerRow]) -> Iterator[LayerRow]:
    """Rows that differ in numbers of their names alone are one."""
    groups: dict[LayerRow, list[LayerRow]] = {}
    for row in rows:
        groups.setdefault(replace(row, path=NUMBER.sub("*", row.path)), []).append(row)
    for merged, group in groups.items():
        yield group[0] if len(group) == 1 else replace(merged, repeats=len(group))
