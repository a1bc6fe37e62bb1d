"""Distributed tensors work out layouts for lists of all parameters in time that grows with their square: not here.

[prop] torch.distributed.tensor._sharding_prop._propagate_use_strided_shard_flag of torch 2.13: for every tensor of a
list it looks through the whole list for strided shards, to mark the tensor's own; without any there is nothing to mark
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from torch.distributed.device_mesh import DeviceMesh

from vramcast.tracing.environment.patches import Patches

_MODULE: Final = "torch.distributed.tensor._sharding_prop"
_NAME: Final = "_propagate_use_strided_shard_flag"


def patch_layouts(patches: Patches) -> None:
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
