"""DistributedDataParallel: the real C++ reducer works on simulated tensors; its check against other ranks does not.

[ddp] torch.nn.parallel.distributed, torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from vramcast.tracing.environment.patches import Patches


def patch_replicas(patches: Patches) -> None:
    """Replace what compares this rank's parameters with those of others."""

    def verify(_group: Any, _tensors: Any, _logger: Any = None) -> None:
        """All ranks have the same parameters [c10d::verify_params_across_processes]."""

    patches.set(dist, "_verify_params_across_processes", verify)
