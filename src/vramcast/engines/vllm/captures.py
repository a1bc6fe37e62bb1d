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
from vramcast.domain.serving import ServePlan, Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.profile import inner_width
from vramcast.engines.vllm.settings import Settings
from vramcast.units import MIB


class Graphs(NamedTuple):
    """Captured graphs of all batch sizes: so much, and more for layers, their widths and for experts [MiB]."""

    since: Version
    base: float
    per_layer: float
    per_hidden: float  # for 1,024 channels of the residual stream: buffers of the widest layer
    per_inner: float  # for 1,024 channels of a feed-forward block of one rank
    per_expert_layer: float  # such layers capture more kernels
    sizes: int  # batch sizes captured in these runs
    first: float  # share that the first size takes alone
    adapters: float  # times as much with slots for adapters
    source: str


TAKEN: Final[tuple[Graphs, ...]] = (
    Graphs(
        (0, 12), 162, 13.8, 49.6, 8.5, 25, 51, 0.2, 3.0,
        "15 start-up logs of 0.19 on H100, 16 to 80 dense layers, within 7 %, 4 with experts; adapters: as in 0.11.2",
    ),
    Graphs(
        (0, 11, 1), 113, 9.7, 34.7, 6, 17.5, 51, 0.2, 3.0,
        "as 0.10; adapters: captured once with and once without them, twice the kernels with: one log of 0.11.2 on L4",
    ),
    Graphs((0, 8), 113, 9.7, 34.7, 6, 17.5, 51, 0.2, 2.0, "those of 0.19 less a third: one log of 0.10.2"),
    Graphs((0, 0), 0, 5.6, 0, 0, 6, 35, 0.0, 3.5, "5 start-up logs of 0.7 to 0.9 on T4, four of them with adapters"),
)
"""Version -> what the driver has less when all are captured; the last row is the V0 engine's."""

ESTIMATED: Final = Graphs(
    (0, 18), -89, 12.8, 97.6, 6.2, 25, 51, 0.2, 3.0, "15 start-up logs of 0.19 on H100, half of them within 7 %"
)
"""What the profile expects them to take [estimate]."""

PACKED_SIZES: Final = 2
"""Captures of so few sizes are of one token each, which is multiplied with packed matrices."""

LARGEST: Final = 512
LARGEST_BLACKWELL: Final = 1024
BLACKWELL_SINCE: Final[Version] = (0, 31)
GPT_OSS_LARGEST: Final[tuple[tuple[Version, int], ...]] = (((0, 11, 1), 1024), ((0, 11), 992), ((0, 0), 1024))
"""Largest batch with a graph; of data-centre Blackwell; of gpt-oss by version, in sixteens from 256 on
[vllm/model_executor/models/config.py `GptOssForCausalLMConfig`, wheels 0.11.0, 0.11.2, 0.19.0]."""

V0_LARGEST: Final = 256
SIXTEENS_SINCE: Final[Version] = (0, 11, 1)
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
    oss = settings.v1 and model.family == "gpt_oss"
    most = next(most for since, most in GPT_OSS_LARGEST if settings.version >= since) if oss else LARGEST
    if settings.version >= BLACKWELL_SINCE and gpu.sm in (100, 103):
        most = max(most, LARGEST_BLACKWELL)
    if not settings.v1:
        most = V0_LARGEST
    step = 16 if oss or (settings.v1 and settings.version >= SIXTEENS_SINCE) else 8
    largest = min(most, settings.batched_tokens)
    if settings.version >= TWICE_SINCE:
        largest = min(largest, 2 * settings.max_sequences)
    if not settings.v1:  # the sequences themselves, rounded up
        largest = min(largest, max(4, -(-settings.max_sequences // 8) * 8) if settings.max_sequences > 2 else 2)
    for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, step)):
        if size <= largest:
            yield size


def graphs(model: Model, stage: Stage, settings: Settings, gpu: Gpu, *, plan: ServePlan, unpacked: int) -> Tensor:
    """CUDA graphs of every captured batch size.

    Args:
        model: the network
        stage: layers of the rank
        settings: batch and version
        gpu: the card
        plan: parallelism and slots for adapters
        unpacked: largest matrix that kernels unpack for a product of several tokens [bytes]
    """
    row = next(row for row in TAKEN if settings.version >= row.since) if settings.v1 else TAKEN[-1]
    sizes = captured_sizes(settings, model, gpu)
    held = unpacked if sizes > PACKED_SIZES else 0
    return Tensor(
        name="captured graphs", num_bytes=_captured(row, model, stage, sizes=sizes, plan=plan) + held,
        category=Category.GRAPHS, stream="graphs", basis=Basis.MEASURED,
        formula=f"{sizes} batch sizes; {row.base} MiB + {row.per_layer} MiB a layer for {row.sizes}", source=row.source,
    )


def expected_bytes(model: Model, stage: Stage, settings: Settings, gpu: Gpu, *, plan: ServePlan) -> int:
    """What the profile of a version that captures a few graphs ahead expects all of them to take [estimate]."""
    return _captured(ESTIMATED, model, stage, sizes=captured_sizes(settings, model, gpu), plan=plan)


def _captured(row: Graphs, model: Model, stage: Stage, *, sizes: int, plan: ServePlan) -> int:
    channels = [run.layer.channel for run in stage.runs(model)]
    layers = sum(run.count for run in stage.runs(model))
    expert_layers = sum(run.count for run in stage.runs(model) if isinstance(run.layer.channel, MoE))
    inner = max((inner_width(channel, plan.tp) for channel in channels), default=0)
    whole = row.base + row.per_layer * layers + row.per_expert_layer * expert_layers
    whole = max(0.0, whole + (row.per_hidden * model.hidden + row.per_inner * inner) / 1024)
    share = row.first + (1 - row.first) * sizes / row.sizes if sizes else 0.0
    return round(whole * share * (row.adapters if plan.lora_slots else 1) * MIB)
