"""Which module writes a network's weights and forward."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from vramcast.blocks.diffusion.common import Weights
from vramcast.domain.autoencoders import Autoencoder
from vramcast.domain.denoisers import Denoiser

MODULES: Final[dict[str, str]] = {
    "UNet2DConditionModel": "unet",
    "FluxTransformer2DModel": "flux",
    "Flux2Transformer2DModel": "flux2",
    "SD3Transformer2DModel": "sd3",
    "QwenImageTransformer2DModel": "qwen_image",
    "AuraFlowTransformer2DModel": "aura_flow",
    "CogVideoXTransformer3DModel": "cogvideox",
    "HunyuanVideoTransformer3DModel": "hunyuan_video",
    "WanTransformer3DModel": "wan",
    "PixArtTransformer2DModel": "pixart",
    "OmniGenTransformer2DModel": "omnigen",
    "ZImageTransformer2DModel": "z_image",
    "AutoencoderKL": "autoencoder_kl",
    "AutoencoderKLCogVideoX": "autoencoder_cogvideox",
    "AutoencoderKLHunyuanVideo": "autoencoder_hunyuan_video",
    "AutoencoderKLWan": "autoencoder_wan",
}
"""Class of diffusers -> module of this package with `parameters`, `forward` and, where a table moves with the
weights, `buffers`; a module is imported when its network is asked for."""


def module_of(network: Denoiser | Autoencoder) -> ModuleType:
    """The module of a network."""
    return import_module(f"vramcast.blocks.diffusion.{MODULES[str(network.__struct_config__.tag)]}")


def weights_of(network: Denoiser | Autoencoder) -> Weights:
    """Its weights by layer."""
    found: Weights = module_of(network).parameters(network)
    return found


def buffer_elements(network: Denoiser | Autoencoder) -> int:
    """Elements of tables that move with the weights."""
    count = getattr(module_of(network), "buffers", None)
    return count(network) if count is not None else 0


def count_elements(network: Denoiser | Autoencoder) -> int:
    """Its parameters."""
    return sum(parameter.elements * count for _, parameter, count in weights_of(network))
