"""CUDA graphs: how many batch sizes are captured, and what all of them take.

[sizes] vllm-project/vllm vllm/config/vllm.py `_set_cudagraph_sizes`, for V0 vllm/worker/model_runner.py
[estimate] vllm/v1/worker/gpu_model_runner.py `profile_cudagraph_memory`: the largest capture and a few more, scaled
[lora] vllm/config/compilation.py `cudagraph_specialize_lora`: once with adapters and once without
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.model import Model, MoE
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.settings import Settings
from vramcast.units import MIB


class Graphs(NamedTuple):
    """Captured graphs of all batch sizes: so much, and more for each layer; layers of experts capture more kernels."""

    base: float  # [MiB]
    per_layer: float  # [MiB]
    per_expert_layer: float  # [MiB]
    sizes: int  # batch sizes captured in these runs
    first: float  # share that the first size takes alone
    adapters: float  # times as much with slots for adapters
    source: str


V1: Final = Graphs(
    328, 18.7, 20, 51, 0.2, 1.5,
    "27 start-up logs of 0.19 on H100, 16 to 80 layers, most within 25 %; with adapters one log of 0.11",
)
V0: Final = Graphs(0, 5.6, 6, 35, 0.0, 3.5, "5 start-up logs of 0.7 to 0.9 on T4, four of them with adapters")

PACKED_SIZES: Final = 2
"""Captures of so few sizes are of one token each, which is multiplied with packed matrices."""

LARGEST: Final = 512
LARGEST_BLACKWELL: Final = 1024
BLACKWELL_SINCE: Final[Version] = (0, 31)
LARGEST_OF_FAMILY: Final = {"gpt_oss": 1024}
"""Largest batch with a graph; of data-centre Blackwell; of families [vllm/model_executor/models/config.py]."""

V0_LARGEST: Final = 256
SIXTEENS_SINCE: Final[Version] = (0, 12)
"""Before, sizes went up in eights to the end."""

TWICE_SINCE: Final[Version] = (0, 10)
"""From then on no size is above twice the sequences [sizes]."""


def captured_sizes(settings: Settings, model: Model, gpu: Gpu) -> int:
    """Batch sizes with a graph: 1, 2, 4, eights, from 256 on sixteens [sizes]."""
    if settings.eager:
        return 0
    if settings.options.graph_sizes is not None:
        return settings.options.graph_sizes
    return sum(1 for _ in _sizes(settings, model, gpu))


def _sizes(settings: Settings, model: Model, gpu: Gpu) -> Iterator[int]:
    most = LARGEST_OF_FAMILY.get(model.family, LARGEST)
    if settings.version >= BLACKWELL_SINCE and gpu.sm in (100, 103):
        most = max(most, LARGEST_BLACKWELL)
    if not settings.v1:
        most = V0_LARGEST
    step = 16 if settings.v1 and settings.version >= SIXTEENS_SINCE else 8
    largest = min(most, settings.batched_tokens)
    if settings.version >= TWICE_SINCE:
        largest = min(largest, 2 * settings.max_sequences)
    if not settings.v1:  # the sequences themselves, rounded up
        largest = min(largest, max(4, -(-settings.max_sequences // 8) * 8) if settings.max_sequences > 2 else 2)
    for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, step)):
        if size <= largest:
            yield size


def graphs(model: Model, stage: Stage, settings: Settings, gpu: Gpu, *, adapters: bool, unpacked: int) -> Tensor:
    """CUDA graphs of every captured batch size.

    Args:
        model: the network
        stage: layers of the rank
        settings: batch and version
        gpu: the card
        adapters: whether there are slots for adapters
        unpacked: largest matrix that kernels unpack for a product of several tokens [bytes]
    """
    layers = tuple(stage.layers(model))
    expert_layers = sum(isinstance(layer.channel, MoE) for layer in layers)
    row, sizes = V1 if settings.v1 else V0, captured_sizes(settings, model, gpu)
    whole = row.base + row.per_layer * len(layers) + row.per_expert_layer * expert_layers
    mib = whole * (row.first + (1 - row.first) * sizes / row.sizes) if sizes else 0.0
    mib *= row.adapters if adapters else 1
    held = unpacked if sizes > PACKED_SIZES else 0
    return Tensor(
        name="captured graphs", num_bytes=round(mib * MIB) + held, category=Category.GRAPHS, stream="graphs",
        basis=Basis.MEASURED,
        formula=f"{sizes} batch sizes; {row.base} MiB + {len(layers)} layers x {row.per_layer} MiB for {row.sizes}",
        source=row.source,
    )
