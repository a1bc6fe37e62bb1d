"""Python objects that ranks exchange: every rank is taken to send what this one sends.

The buffers are those of the real functions, so that what they take on the device is seen.
[c10d] torch.distributed.distributed_c10d: all_gather_object, gather_object, broadcast_object_list, scatter_object_list
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from vramcast.tracing.environment.patches import Patches


def patch_objects(patches: Patches) -> None:
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
