"""A module shared among the ranks of a simulated job, as torch's own wrappers share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.distributed

BACKEND: Final = "nccl"


def shared(model: torch.nn.Module, how: str, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    """The module on this rank.

    Args:
        model: on the host
        how: key of `WRAPPERS`
        device: of this rank
        blocks: that are gathered one after the other
    """
    torch.cuda.set_device(device)
    torch.distributed.init_process_group(BACKEND)
    return WRAPPERS[how](model, device, blocks)


def _ddp(model: torch.nn.Module, device: torch.device, _blocks: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    found: torch.nn.Module = DistributedDataParallel(model.to(device), device_ids=[device.index])
    return found


def _fsdp(model: torch.nn.Module, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(block) for block in blocks}) if blocks else None
    found: torch.nn.Module = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, device_id=device, use_orig_params=True
    )
    return found


def _fsdp2(model: torch.nn.Module, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    for module in (*blocks, model):
        fully_shard(module)
    return model.to(device)


WRAPPERS: Final[Mapping[str, Callable[[torch.nn.Module, torch.device, list[torch.nn.Module]], torch.nn.Module]]] = {
    "ddp": _ddp, "fsdp": _fsdp, "fsdp2": _fsdp2,
}
"""Name -> how torch does it. Both kinds of FSDP gather the blocks that repeat one by one, and what is left as one."""
