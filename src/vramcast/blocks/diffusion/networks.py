"""Which module writes a network's weights and forward."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from vramcast.blocks.diffusion.common import Network, Weights
from vramcast.domain.autoencoders import Autoencoder
from vramcast.domain.denoisers import Denoiser

MODULES: Final[dict[str, str]] = {
    "UNet2DConditionModel": "unet",
    "FluxTransformer2DModel": "flux",
    "Flux2Transformer2DModel": "flux",
    "QwenImageTransformer2DModel": "flux",
    "SD3Transformer2DModel": "joint",
    "AuraFlowTransformer2DModel": "joint",
    "CogVideoXTransformer3DModel": "video",
    "HunyuanVideoTransformer3DModel": "video",
    "WanTransformer3DModel": "video",
    "PixArtTransformer2DModel": "single",
    "OmniGenTransformer2DModel": "single",
    "ZImageTransformer2DModel": "single",
    "AutoencoderKL": "autoencoder_kl",
    "AutoencoderKLCogVideoX": "autoencoder_cogvideox",
    "AutoencoderKLHunyuanVideo": "autoencoder_hunyuan_video",
    "AutoencoderKLWan": "autoencoder_wan",
}
"""Class of diffusers -> module of this package whose `NETWORKS` has it; imported when its network is asked for."""


def network_of(network: Denoiser | Autoencoder) -> Network:
    tag = str(network.__struct_config__.tag)
    found: Network = import_module(f"vramcast.blocks.diffusion.{MODULES[tag]}").NETWORKS[tag]
    return found


def weights_of(network: Denoiser | Autoencoder) -> Weights:
    return network_of(network).parameters(network)


def buffer_elements(network: Denoiser | Autoencoder) -> int:
    """Elements of tables that move with the weights."""
    return network_of(network).buffers(network)


def count_elements(network: Denoiser | Autoencoder) -> int:
    return sum(parameter.elements * count for _, parameter, count in weights_of(network))
