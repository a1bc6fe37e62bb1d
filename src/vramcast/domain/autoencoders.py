"""Networks that turn latents into images or video and back, as diffusers publishes them.

[diffusers] huggingface/diffusers src/diffusers/models/autoencoders at v0.35: fields and defaults of the constructors.
"""

from __future__ import annotations

from vramcast.domain.model import Noun


class _Pyramid(Noun, frozen=True):
    """Residual blocks at several resolutions, each half of the one before."""

    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    latent_channels: int = 16

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return int(2 ** (len(self.block_out_channels) - 1))


class AutoencoderKL(_Pyramid, frozen=True, tag="AutoencoderKL"):
    """Residual blocks at several resolutions, one attention in the middle; of images. FLUX.2's has other latents."""

    layers_per_block: int = 2
    latent_channels: int = 4
    sample_size: int = 512  # pixels per side above which tiles are cut
    force_upcast: bool = False  # the pipeline decodes in fp32 where it runs in fp16
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True
    batch_norm: int = 0  # FLUX.2: channels of the norm of latents


class AutoencoderKLCogVideoX(_Pyramid, frozen=True, tag="AutoencoderKLCogVideoX"):
    """Causal three-dimensional convolutions that keep the last frames of a batch for the next one."""

    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    layers_per_block: int = 3
    temporal_compression_ratio: int = 4
    sample_height: int = 480
    sample_width: int = 720


class AutoencoderKLHunyuanVideo(_Pyramid, frozen=True, tag="AutoencoderKLHunyuanVideo"):
    """Causal three-dimensional convolutions over a tile of the video at once."""

    layers_per_block: int = 2
    spatial_compression_ratio: int = 8
    temporal_compression_ratio: int = 4
    mid_block_add_attention: bool = True

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return self.spatial_compression_ratio


class AutoencoderKLWan(Noun, frozen=True, tag="AutoencoderKLWan"):
    """Causal three-dimensional convolutions, one latent frame after the other; Qwen-Image uses it for images."""

    base_dim: int = 96
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 8

    @property
    def scale(self) -> int:
        """Pixels per latent, along each side."""
        return self.scale_factor_spatial

    @property
    def latent_channels(self) -> int:
        return self.z_dim


Autoencoder = AutoencoderKL | AutoencoderKLCogVideoX | AutoencoderKLHunyuanVideo | AutoencoderKLWan
