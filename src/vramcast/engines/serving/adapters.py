"""Slots for LoRA adapters: taken at start-up for the largest rank allowed, whatever is loaded later.

[lora] vllm-project/vllm vllm/lora/layers `create_lora_weights`: per projection A of rank x in and B of out x rank,
`max_loras` of each; A of column-parallel and B of row-parallel layers are not divided
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from vramcast.blocks.parameters import layer_parameters
from vramcast.domain.model import Attention, Layer, Parameter, Split
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.stages import Stage
from vramcast.parallel.layout import Layout
from vramcast.states.storage import is_linear
from vramcast.states.weights import local_shape

ADAPTER_BYTES = 2
"""Adapters are held in 16 bits."""


def adapter_slots(job: ServeJob, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    """Both matrices of every adapted projection, with how many equal layers there are."""
    slots, rank = job.plan.lora_slots, job.plan.lora_rank
    if not slots:
        return
    for run in stage.runs(job.model):
        for parameter in _adapted(run.layer, job.model.hidden):
            out, inside = _local(parameter, run.layer, job.plan.tp)
            yield Tensor(
                name=parameter.path,
                num_bytes=slots * rank * (out + inside) * ADAPTER_BYTES,
                category=Category.ADAPTERS,
                owner="layers",
                formula=f"{slots} slots x rank {rank} x ({inside:,} + {out:,}) x {ADAPTER_BYTES} B",
                source="vllm-project/vllm vllm/lora/layers `create_lora_weights`",
            ), run.count


def _adapted(layer: Layer, hidden: int) -> Iterator[Parameter]:
    """Projections that engines adapt: those of attention and of dense feed-forward blocks."""
    for parameter in layer_parameters(layer, hidden=hidden):
        if is_linear(parameter) and not parameter.expert:
            yield parameter


def _local(parameter: Parameter, layer: Layer, tp: int) -> tuple[int, int]:
    """Rows of B and columns of A on one rank."""
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    shape = local_shape(parameter, replace(Layout(tp=tp), kv_heads=kv_heads))
    if parameter.split is Split.ROW:
        return parameter.shape[0], parameter.shape[1] // tp
    return shape[0], shape[-1]
