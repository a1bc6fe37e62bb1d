"""Nouns that tests of the watch share: a card with a partition, a process that is dead, an event, a training step."""

from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.observation import (
    Card,
    Event,
    EventKind,
    GpuSample,
    Holder,
    Partition,
    ProcessSample,
    Reading,
    RunInfo,
    TorchSample,
)
from vramcast.units import GIB

INFO: Final = RunInfo(started_s=1.0, host="node-1", interval_s=1.0, versions={"driver": "550.54.15"})
CARD: Final = Card(
    index=0, uuid="GPU-11111111-2222-3333-4444-555555555555", model="NVIDIA H100 80GB HBM3",
    bus="00000000:17:00.0", memory_total_bytes=80 * GIB,
)
LIVING: Final = ProcessSample(
    pid=4242, memory_bytes=30 * GIB, sm_share=0.9, name="python3", command="python3 train.py", user="ada",
    container="docker/3f2a9c", started_s=1.5,
)
DEAD: Final = ProcessSample(pid=3111, memory_bytes=8 * GIB, holder=Holder.DEAD)
SAMPLE: Final = GpuSample(
    time_s=2.5, card=CARD, memory_used_bytes=40 * GIB, memory_free_bytes=39 * GIB, memory_reserved_bytes=1 * GIB,
    sm_share=0.93, power_w=612.5, throttled=("power cap",), processes=(LIVING, DEAD),
    partitions=(Partition(uuid="MIG-1", index=0, profile="1g.10gb", memory_total_bytes=10 * GIB),),
)
EVENT: Final = Event(time_s=3.0, kind=EventKind.LEAK, gpu_uuid=CARD.uuid, pid=4242, numbers={"bytes_per_s": 2.5})
STEP: Final = TorchSample(time_s=3.5, pid=4242, gpu_uuid=CARD.uuid, step=1, allocated_bytes=7)


def reading(time_s: float, **changed: Any) -> Reading:
    """SAMPLE at another moment, with other figures."""
    return Reading(time_s=time_s, gpus=(replace(SAMPLE, time_s=time_s, **changed),))
