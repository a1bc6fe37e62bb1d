"""The engines that train diffusion pipelines: what is true of each family of scripts as a whole.

[examples] huggingface/diffusers examples/*/train_*.py @0.40   [kohya]
kohya-ss/sd-scripts networks/lora.py `LoRANetwork`, networks/lora_flux.py, networks/lora_sd3.py @0.10.1
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.version import Version


class Trainer(NamedTuple):
    """What is true of one family of scripts."""

    oldest: Version
    newest: Version
    of: str
    casts_input: bool  # adapters read a copy of their input in their own type
    targets: dict[str, tuple[str, ...]]  # class of a denoiser -> modules with adapters, where nobody says; "": others
    text_targets: tuple[str, ...]
    caches_beside: bool  # what is cached is made while the denoiser is on the card


_ATTENTION: Final = ("to_k", "to_q", "to_v", "to_out.0")
_JOINT: Final = (
    "attn.to_k", "attn.to_q", "attn.to_v", "attn.to_out.0", "attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj",
    "attn.to_add_out",
)
_FF: Final = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")

DIFFUSION: Final[dict[str, Trainer]] = {
    "diffusers": Trainer((0, 20), (0, 42), "diffusers", casts_input=True, targets={
        "FluxTransformer2DModel": (*_JOINT, *_FF), "SD3Transformer2DModel": _JOINT, "": _ATTENTION,
    }, text_targets=("q_proj", "k_proj", "v_proj", "out_proj"), caches_beside=True),
    "sd-scripts": Trainer((0, 6), (0, 10), "sd-scripts", casts_input=False, targets={
        "UNet2DConditionModel": (*_ATTENTION, "net.0.proj", "net.2", "proj_in", "proj_out"),
        "FluxTransformer2DModel": (*_JOINT, *_FF, "proj_mlp", "single_transformer_blocks.proj_out"),
        "": (*_JOINT, *_FF),
    }, text_targets=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), caches_beside=False),
}
"""Engines that train pipelines."""
