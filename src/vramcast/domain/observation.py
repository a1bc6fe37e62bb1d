"""What was observed on running GPUs: cards, their processes and partitions, torch's own counters, events.

Unknown is None: a driver that does not say how warm a card is says nothing, not 0. Shares of time are between 0 and 1,
sizes in bytes, rates in bytes per second, times in seconds since 1970 (UTC).
`MeasuredRun` is a training run as it was measured: what `vramcast calibrate` holds against a prediction.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from vramcast.domain.model import Noun

Vendor = Literal["nvidia", "amd", "huawei", "mthreads"]


class Card(Noun, frozen=True):
    """What does not change about one GPU while it is watched."""

    index: int  # as the vendor's tools count on this machine
    uuid: str  # the only name that survives a restart; made from the bus address where a tool gives none
    model: str  # as the driver prints it
    vendor: Vendor = "nvidia"
    bus: str = ""  # PCI address, "00000000:17:00.0"
    memory_total_bytes: int | None = None


class Partition(Noun, frozen=True):
    """A slice of a card with memory of its own: a MIG instance."""

    uuid: str
    index: int  # among the partitions of the card
    profile: str = ""  # "1g.10gb"
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None


class Holder(StrEnum):
    """What is known of the process behind a PID that holds memory."""

    ALIVE = "alive"
    DEAD = "dead"  # no such process in the machine's own PID namespace: memory that nobody gives back
    INVISIBLE = "invisible"  # this observer stands in a container and sees no such process, alive or dead


class ProcessSample(Noun, frozen=True):
    """One process on one card at one moment."""

    pid: int
    memory_bytes: int | None = None  # of the card; None where the driver does not say
    sm_share: float | None = None  # of the time, a kernel of this process ran
    holder: Holder = Holder.ALIVE
    graphics: bool = False  # draws on the card instead of, or beside, computing
    partition: str = ""  # uuid of the partition it runs in
    name: str = ""  # of the executable
    command: str = ""  # command line, cut
    user: str = ""
    container: str = ""  # "docker/3f2a...", "podman/...", "pod/<uid>"
    started_s: float | None = None


class GpuSample(Noun, frozen=True):
    """One card at one moment."""

    time_s: float
    card: Card
    memory_used_bytes: int | None = None  # by processes and by what the driver keeps for them
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None  # by driver and firmware: used + free + reserved = total
    sm_share: float | None = None  # of the time, any kernel ran
    memory_share: float | None = None  # of the time, the card's memory was read or written
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None  # since the driver was loaded
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    throttled: tuple[str, ...] = ()  # why clocks are held back: "power cap", "hot" ...; idling is none
    pcie_sent_bytes_per_s: float | None = None  # by the card
    pcie_received_bytes_per_s: float | None = None
    link_sent_bytes_per_s: float | None = None  # NVLink, Infinity Fabric, HCCS, MTLink: all links together
    link_received_bytes_per_s: float | None = None
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    partitions: tuple[Partition, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    processes_known: bool = True  # False: the driver does not say who is on the card

    @property
    def held_bytes(self) -> int:
        """Memory of the processes that the driver names [bytes]."""
        return sum(process.memory_bytes or 0 for process in self.processes)

    @property
    def unaccounted_bytes(self) -> int | None:
        """Used memory that no process alive and in sight holds; None where the driver does not say [bytes].

        Dead and invisible holders count as unaccounted. Part of it is the driver's own for each process.
        """
        if self.memory_used_bytes is None or not self.processes_known:
            return None
        if any(process.memory_bytes is None for process in self.processes):
            return None
        in_sight = sum(process.memory_bytes or 0 for process in self.processes if process.holder is Holder.ALIVE)
        return max(0, self.memory_used_bytes - in_sight)


class TorchSample(Noun, frozen=True):
    """What one training process' caching allocator says, once a step. Names follow `torch.cuda.memory_stats`."""

    time_s: float
    pid: int
    gpu_uuid: str  # of the card, as the driver names it
    step: int  # optimizer steps done, the one that just ended included
    phase: str = "step"  # what the peaks are of: a whole "step", or its "forward", "backward", "optimizer"; "load"
    device: int = 0  # of torch: counts visible devices
    rank: int = 0
    local_rank: int = 0
    allocated_bytes: int | None = None  # allocated_bytes.all.current
    peak_allocated_bytes: int | None = None  # allocated_bytes.all.peak since the step before
    reserved_bytes: int | None = None  # reserved_bytes.all.current
    peak_reserved_bytes: int | None = None
    active_bytes: int | None = None  # active_bytes.all.current
    inactive_split_bytes: int | None = None  # holes: inactive_split_bytes.all.current
    num_alloc_retries: int | None = None  # cache flushed and tried again, since the start
    num_ooms: int | None = None
    device_used_bytes: int | None = None  # total - free of cudaMemGetInfo: everyone on the card
    device_total_bytes: int | None = None
    step_s: float | None = None  # wall time of the step


class TorchRun(Noun, frozen=True):
    """What one training process runs, as counted on its own tensors; of several of one process the last one holds.

    Bytes are of storages on this rank's card, each rounded up to the blocks of the caching allocator. None: not seen.
    """

    time_s: float
    pid: int
    gpu_uuid: str
    gpu: str  # the card as torch names it
    device: int = 0
    rank: int = 0
    world_size: int = 1
    model: str = ""  # class
    num_parameters: int | None = None  # on this rank, whatever storage they have
    num_trainable: int | None = None
    dtypes: tuple[str, ...] = ()  # of parameters, the most numerous first
    weight_bytes: int | None = None  # parameters and buffers
    gradient_bytes: int | None = None  # before the optimizer's step
    optimizer: str = ""  # class
    optimizer_bytes: int | None = None  # after its first step
    batch: dict[str, tuple[int, ...]] = {}  # argument of the model -> shape, of the largest batch seen
    simulated: bool = False  # recorded on a simulated card: sizes are predictions themselves, times mean nothing
    framework: str = ""  # "transformers", "lightning"; "": a plain loop


class EventKind(StrEnum):
    """What can happen while cards are watched."""

    GPU_LOST = "gpu-lost"  # fell off the bus, or answers no more
    GPU_BACK = "gpu-back"
    PROCESS_STARTED = "process-started"
    PROCESS_ENDED = "process-ended"
    LEAK = "leak"
    LEAK_OVER = "leak-over"
    HEADROOM = "headroom"
    HEADROOM_OVER = "headroom-over"
    OUT_OF_MEMORY = "out-of-memory"
    SNAPSHOT = "snapshot"  # torch's own, written to a file
    READER_FAILED = "reader-failed"  # a tool that did not answer, or said what nobody understands
    READER_BACK = "reader-back"
    STEP_MARK = "step-mark"  # anything a hook wants to note


class Event(Noun, frozen=True):
    """Something that happened at one moment."""

    time_s: float
    kind: EventKind
    gpu_uuid: str = ""  # "": concerns no single card
    pid: int | None = None
    text: str = ""  # one sentence, English
    numbers: dict[str, float] = {}  # by name with unit: "bytes_per_s", "free_bytes"


class Reading(Noun, frozen=True):
    """Every card of one reader at one moment, and what happened since the reading before."""

    time_s: float
    gpus: tuple[GpuSample, ...]
    events: tuple[Event, ...] = ()


class RunInfo(Noun, frozen=True):
    """Where and how a recording was made."""

    started_s: float
    host: str
    interval_s: float | None = None
    writer: str = "watch"  # or "hook"
    versions: dict[str, str] = {}  # "vramcast", "driver", "nvml", "cuda", "torch" ...
    command: str = ""  # what was run
    job: str = ""  # JSON of the question whose prediction was watched, with --predict


class Highest(Noun, frozen=True):
    """The highest points of some steps, at the three levels; None where nobody measured that level [bytes]."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None  # everyone on the card, where only the card was asked


class MeasuredRun(Noun, frozen=True):
    """One process of a recording, or where no process told of itself, the fullest card of it."""

    name: str  # of the file
    gpu: str  # as torch or the driver names it
    gpu_bytes: int | None = None  # what a process can use of it, by the driver
    num_gpus: int = 1
    rank: int = 0
    versions: dict[str, str] = {}
    run: TorchRun | None = None  # what it ran; None: nobody said
    num_steps: int = 0
    phases: dict[str, Highest] = {}  # "load", "first step", "step": of the steps after the first one
    peak_phase: str = ""  # in which a steady step allocates most: "forward", "backward", "optimizer"
    step_s: float | None = None  # median of the steady steps
    num_retries: int = 0  # cached memory was given back to make room
    num_ooms: int = 0
    by_process: bool = False  # device bytes are of the process alone

    @property
    def has_counters(self) -> bool:
        """Whether torch itself was asked, and not the driver alone."""
        return self.num_steps > 0

    @property
    def is_simulated(self) -> bool:
        """Whether it ran on a simulated card."""
        return self.run is not None and self.run.simulated
