"""Diffusion pipelines: text encoders, a denoiser, an autoencoder, and how they are run."""

from __future__ import annotations

from typing import Literal

from vramcast.domain.autoencoders import Autoencoder
from vramcast.domain.denoisers import Denoiser
from vramcast.domain.model import Model, Noun

Network = Model | Denoiser | Autoencoder


class Component(Noun, frozen=True):
    """One network of a pipeline."""

    name: str  # as the pipeline calls it: "text_encoder_2", "transformer", "vae"
    role: Literal["encoder", "denoiser", "autoencoder"]
    network: Network
    tokens: int = 0  # encoders: length prompts are padded to
    dtype: str | None = None  # where the pipeline keeps it in another one than asked for


class Pipeline(Noun, frozen=True):
    """A repository with a model_index.json. Components stand in the order in which they are offloaded."""

    name: str
    family: str  # the pipeline's class
    components: tuple[Component, ...]
    height: int = 1024  # what is generated when nothing else is said [pixels]
    width: int = 1024
    frames: int = 1
    guidance: bool = True  # classifier-free: every step denoises with and without the prompt, in one batch
    context_tokens: int = 77  # text tokens the denoiser reads
    dtype: str = "bf16"
    notes: tuple[str, ...] = ()

    def of_role(self, role: str) -> tuple[Component, ...]:
        return tuple(component for component in self.components if component.role == role)

    @property
    def denoisers(self) -> tuple[Component, ...]:
        """One, or one for each range of noise (Wan 2.2)."""
        return self.of_role("denoiser")

    @property
    def autoencoder(self) -> Component | None:
        return next(iter(self.of_role("autoencoder")), None)
