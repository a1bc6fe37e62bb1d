"""A training run as it was measured: what `vramcast calibrate` holds against a prediction."""

from __future__ import annotations

from vramcast.domain.model import Noun
from vramcast.domain.observation import TorchRun


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
