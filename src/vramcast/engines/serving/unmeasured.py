"""What a process of an engine holds beside its own tensors where no log of that engine says it: as vLLM's logs have it.

Both start the same NCCL, the same kernels of attention and the same graphs of CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.domain.device import Gpu
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import WIDTHS, dtype_of
from vramcast.engines.serving.stages import Stage, has_fabric, widest_moment
from vramcast.engines.vllm.process import ALONE, LINKED, TAKEN
from vramcast.errors import Note
from vramcast.units import GIB, MIB


def outside_allocator(gpu: Gpu, tp: int) -> Iterator[Tensor]:
    """Kernels and communicators outside PyTorch's memory and the CUDA context of one rank."""
    alone, linked = ALONE[-1], LINKED[-1]
    more = 0.0 if tp == 1 else linked.linked if has_fabric(gpu) else linked.unlinked
    yield Tensor(
        name="kernels and communicators", num_bytes=round((alone.gib + more) * GIB), category=Category.COMMUNICATION,
        owner="process", basis=Basis.ASSUMED, formula=f"tensor parallelism {tp}", source=f"vLLM's: {linked.source}",
    )


def captured_graphs(job: ServeJob, stage: Stage, sizes: Sequence[int], *, source: str) -> Iterator[Tensor]:
    """What graphs of those batch sizes hold: tensors of the largest, which the others share, and the driver's nodes."""
    if not sizes:
        return
    width, row = WIDTHS[dtype_of(job.model, job.plan.dtype)], TAKEN[0]
    step = sum(tensor.num_bytes for tensor in widest_moment(
        job.model, stage, tokens=max(sizes), tp=job.plan.tp, experts_divided=job.plan.tp, width=width, source=source,
    )) + max(sizes) * job.model.vocab * width
    node = round(row.per_layer / row.sizes * MIB)
    yield Tensor(
        name="captured graphs", num_bytes=step + len(sizes) * job.model.num_layers * node, category=Category.GRAPHS,
        stream="graphs", basis=Basis.ASSUMED, source=Note("{}; nodes as in vLLM's {}", source, row.source),
        formula=Note("a step of {}; {} sizes x {} layers x {:,} B", max(sizes), len(sizes), job.model.num_layers, node),
    )
