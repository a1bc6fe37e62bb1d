"""A question about training a diffusion pipeline, complete."""

from __future__ import annotations

from typing import Literal

from vramcast.domain.device import Cluster
from vramcast.domain.job import Plan, Workload
from vramcast.domain.model import Noun
from vramcast.domain.pipeline import Pipeline
from vramcast.domain.version import Version

Placed = Literal["on", "cached", "none"]
"""Whether a frozen network works in every step, once before the first one, or never."""


class DiffusionSetting(Noun, frozen=True, kw_only=True):
    """What a script of diffusion training does beside what every training says."""

    height: int | None = None  # of a sample [pixels]; None: as the pipeline generates
    width: int | None = None
    frames: int | None = None
    tokens: int | None = None  # of a prompt, where the script says how long they are
    trains: Literal["denoiser", "controlnet", "embedding", "text-kv"] = "denoiser"
    vae: Placed = "on"
    vae_dtype: Literal["half", "fp32"] | None = None  # "half": as everything frozen; None: fp32 where fp16 overflows
    text: Placed = "on"
    text_learns: bool = False  # with adapters where the denoiser has some, whole where it is trained whole
    text_words: bool = False  # tables of words learn beside the rest
    text_rank: int | None = None  # of those adapters; None: as the denoiser's
    prior: bool = False  # a class image beside every sample: twice the batch
    ema: bool = False
    weights: Literal["fp8"] | None = None  # type in which a frozen denoiser is held; None: what the precision says
    swapped: int = 0  # blocks that wait on the host, as sd-scripts counts them
    fused: bool = False  # each weight is stepped within backward, and its gradient dies
    targets: tuple[str, ...] = ()  # modules with adapters, as the tool calls them; (): its own default
    validation: bool = False  # images are made between steps
    text_reloaded: bool = False  # for them the encoders come back


class DiffusionJob(Noun, frozen=True, kw_only=True):
    """One question about training a pipeline."""

    pipeline: Pipeline
    workload: Workload
    plan: Plan
    cluster: Cluster
    engine: str
    engine_version: Version | None = None
    setting: DiffusionSetting = DiffusionSetting()
    alloc_conf: str = ""
    env: dict[str, str] = {}
    workspaces: dict[str, float] = {}  # of cuDNN: kernel and phase -> share of the tensors that it moves
    assumed: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of a sample [pixels]."""
        asked, usual = self.setting, self.pipeline
        side = self.workload.image_size
        return (
            asked.frames or usual.frames, asked.height or side or usual.height, asked.width or side or usual.width,
        )

    @property
    def batch(self) -> int:
        """Samples of one forward."""
        return self.workload.micro_batch * (2 if self.setting.prior else 1)
