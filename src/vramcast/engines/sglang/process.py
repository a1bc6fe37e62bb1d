"""What an SGLang process takes beside weights and pools: communicators, tables of running requests, graphs.

[init] sgl-project/sglang python/sglang/srt/model_executor/model_runner.py `init_torch_distributed`: the free memory
that the static fraction is a fraction of is read after the communicators are set up
[requests] python/sglang/srt/mem_cache/memory_pool.py `ReqToTokenPool`; `init_memory_pool`: how many run at once
[workspace] python/sglang/srt/layers/attention/flashinfer_backend.py, SGLANG_FLASHINFER_WORKSPACE_SIZE
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.links import has_fabric
from vramcast.engines.sglang.fraction import SEQUENCE_GRAPHS, prefill_mib
from vramcast.engines.sglang.settings import Settings, is_latent
from vramcast.units import GIB, MIB

FABRIC_BYTES: Final = round(1.25 * GIB)
"""NCCL, custom all-reduce and their buffers on a rank whose cards share a fabric: one start-up log, 4 x H100, whose
pool fixes it to 0.1 GiB."""

PCIE_BYTES: Final = 100 * MIB
"""A communicator over PCIe; bridges that join two cards do not change it for more [catalogue/contexts.csv]."""

MOST_RUNNING: Final = 4096
FEWEST_RUNNING: Final = 2048
RUNNING_PER_CONTEXT: Final = 512
"""Requests that may run at once: so many for each longest sequence in the pool, within these bounds [requests]."""

EXTRA_TOKENS: Final = 4
"""Positions of a request beyond the longest context [requests]."""

ATTENTION_WORKSPACE: Final = 384 * MIB


def communication(job: ServeJob) -> tuple[Tensor, ...]:
    """Communicators, set up before a rank looks at its free memory [init]."""
    plan = job.plan
    if plan.tp * plan.pp * (plan.dp if plan.expert_parallel else 1) == 1:
        return ()
    gpu = job.cluster.gpu
    fabric = has_fabric(gpu)
    return (Tensor(
        name="communicators and custom all-reduce", num_bytes=FABRIC_BYTES if fabric else PCIE_BYTES,
        category=Category.COMMUNICATION, owner="process", basis=Basis.MEASURED,
        formula=f"tp={plan.tp}, {gpu.link or 'PCIe'}",
        source="start-up log on 4 x H100" if fabric else "catalogue/contexts.csv, NCCL rows",
    ),)


def running_requests(tokens: int, context: int, asked: int | None) -> int:
    """Requests that may run at once on one rank [count].

    >>> running_requests(298_447, 40_960, None)  # as a start-up log prints
    3730
    """
    if asked is not None:
        return max(1, asked)
    return max(FEWEST_RUNNING, min(MOST_RUNNING, int(tokens / context * RUNNING_PER_CONTEXT)))


def request_table(requests: int, context: int, draft_tokens: int) -> Tensor:
    """Where every token of every running request lies."""
    width = context + EXTRA_TOKENS + draft_tokens
    return Tensor(
        name="table of running requests", num_bytes=4 * requests * width, category=Category.WORKSPACES, owner="process",
        formula=f"{requests:,} requests x {width:,} positions x 4 B",
        source="sgl-project/sglang python/sglang/srt/mem_cache/memory_pool.py `ReqToTokenPool`",
    )


def attention_workspace() -> Tensor:
    """Scratch of the attention kernels."""
    return Tensor(
        name="attention workspace", num_bytes=ATTENTION_WORKSPACE, category=Category.WORKSPACES, owner="process",
        formula=f"{ATTENTION_WORKSPACE // MIB} MiB", source="SGLang environ.py SGLANG_FLASHINFER_WORKSPACE_SIZE",
    )


def graphs(job: ServeJob, settings: Settings) -> Tensor:
    """CUDA graphs, as large as SGLang itself reckons when it sets memory aside for them."""
    sequences = settings.graph_sequences
    decodes, prefills = sequences * SEQUENCE_GRAPHS, 0
    if settings.prefill_graphs:
        prefills = prefill_mib(job.version, settings.chunk, is_latent(job.model))
    return Tensor(
        name="captured graphs", num_bytes=(decodes + prefills if sequences else 0) * MIB, category=Category.GRAPHS,
        stream="graphs", basis=Basis.ASSUMED,
        formula=f"{sequences} sequences x {SEQUENCE_GRAPHS} MiB + {prefills} MiB of prefills" if sequences else "none",
        source="sgl-project/sglang python/sglang/srt/arg_groups/memory_hook.py `reserve_for_graph_mb`",
    )
