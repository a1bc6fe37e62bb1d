"""Pipelines of diffusers in inference, traced: encoders, one step of the denoiser, decoding.

Networks and their configs are those of the catalogue; shapes are what a row's notes say. Steps of the denoiser repeat,
so one is enough. What several GPUs share is traced as one of them would run it alone: the autoencoder decodes on each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramcast.units import GB, GIB

if TYPE_CHECKING:
    import torch

PATCH: Final = 16
"""Pixels a side of FLUX' tokens: 8 of the autoencoder, 2 of the patch."""
CARD: Final = "h100-sxm-80gb"
"""Where a row names no card, or one that the catalogue lacks: peaks of PyTorch hardly depend on it."""

Row = Mapping[str, Any]


class Unfit(Exception):
    """Why a row cannot be traced."""


class Size(NamedTuple):
    """What is made."""

    width: int
    height: int
    frames: int = 1


class Pipeline(NamedTuple):
    """Networks of a pipeline, built on the host, and what they are given."""

    encoders: Callable[[], list[torch.nn.Module]]
    denoiser: Callable[[], torch.nn.Module]
    step: Callable[[Size], dict[str, Any]]
    autoencoder: Callable[[], torch.nn.Module]
    latents: Callable[[Size], torch.Tensor]


def predict(row: Row) -> float:
    """The level that the row measured, in its own unit.

    Raises: Unfit
    """
    from vramcast.catalogue.gpus import load_gpu
    from vramcast.tracing.session import Session

    if row["engine"] != "diffusers":
        raise Unfit(f"{row['engine']} is not diffusers")
    pipeline = PIPELINES.get(row["model"])
    if pipeline is None:
        raise Unfit("the model is not named, or the row leaves out how its inputs are made")
    if row.get("quant_dtype") != "bf16":
        raise Unfit("weights quantised by bitsandbytes are built on a card only")
    notes = row["notes"]
    session = Session(load_gpu(CARD))
    with session.active():
        run(pipeline, _size(notes), notes)
    allocator = session.device.allocator
    is_reserved = "reserved" in row["quantity"]
    peak = allocator.peak_reserved_bytes if is_reserved else allocator.peak_allocated_bytes
    return peak / (GIB if row["quantity"].endswith("gib") else GB)


def run(pipeline: Pipeline, size: Size, notes: str) -> None:
    """Encode, denoise, decode. Offloaded module by module, only what is decoded counts: its networks come and go."""
    import torch

    is_offloaded = "offload" in notes or "+vae" in notes
    with torch.no_grad():
        vae = pipeline.autoencoder().to("cuda", torch.bfloat16)
        if "slicing" in notes or "tiling" in notes:  # rows add one measure to those before
            vae.enable_slicing()
        if "tiling" in notes:
            vae.enable_tiling()
        if not is_offloaded:
            held = [encoder.to("cuda", torch.bfloat16) for encoder in pipeline.encoders()]
            held.append(pipeline.denoiser().to("cuda", torch.bfloat16))
            held[-1](**pipeline.step(size), return_dict=False)
        vae.decode(pipeline.latents(size), return_dict=False)


def _size(notes: str) -> Size:
    """`1024x1024`, `49 frames 720x480`."""
    found = re.search(r"(\d{3,4})x(\d{3,4})", notes)
    if found is None:
        raise Unfit("its notes name no size")
    frames = re.search(r"(\d+) frames", notes)
    return Size(int(found[1]), int(found[2]), int(frames[1]) if frames else 1)


def _t5() -> torch.nn.Module:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(
        d_model=4096, d_kv=64, d_ff=10_240, num_layers=24, num_heads=64, vocab_size=32_128,
        feed_forward_proj="gated-gelu",
    ))


def _clip() -> torch.nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768,
    ))


def _flux() -> torch.nn.Module:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(guidance_embeds=True)


def _flux_step(size: Size) -> dict[str, Any]:
    import torch

    half = {"dtype": torch.bfloat16, "device": "cuda"}
    pixels, words = (size.width // PATCH) * (size.height // PATCH), 512
    return {
        "hidden_states": torch.randn(1, pixels, 64, **half),
        "encoder_hidden_states": torch.randn(1, words, 4096, **half),
        "pooled_projections": torch.randn(1, 768, **half), "timestep": torch.rand(1, **half),
        "guidance": torch.rand(1, device="cuda"),
        "img_ids": torch.zeros(pixels, 3, device="cuda"), "txt_ids": torch.zeros(words, 3, device="cuda"),
    }


def _image_autoencoder(channels: int, **rest: Any) -> torch.nn.Module:
    from diffusers import AutoencoderKL

    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
    }
    return AutoencoderKL(latent_channels=channels, sample_size=1024, **blocks, **rest)


def _image_latents(channels: int) -> Callable[[Size], torch.Tensor]:
    def make(size: Size) -> torch.Tensor:
        import torch

        return torch.randn(1, channels, size.height // 8, size.width // 8, dtype=torch.bfloat16, device="cuda")

    return make


def _consisid() -> torch.nn.Module:
    from diffusers import ConsisIDTransformer3DModel

    return ConsisIDTransformer3DModel(
        num_attention_heads=48, num_layers=42, in_channels=32, use_rotary_positional_embeddings=True,
        use_learned_positional_embeddings=True, is_train_face=True, is_kps=False,
    )


def _consisid_step(size: Size) -> dict[str, Any]:
    """Two samples: with and without the words."""
    import torch

    half = {"dtype": torch.bfloat16, "device": "cuda"}
    frames, height, width = (size.frames - 1) // 4 + 1, size.height // 8, size.width // 8
    tokens = frames * height * width // 4
    return {
        "hidden_states": torch.randn(2, frames, 32, height, width, **half),
        "encoder_hidden_states": torch.randn(2, 226, 4096, **half),
        "timestep": torch.zeros(2, dtype=torch.int64, device="cuda"),
        "image_rotary_emb": tuple(torch.randn(tokens, 64, device="cuda") for _ in range(2)),
        "id_cond": torch.randn(2, 1280, **half),
        "id_vit_hidden": [torch.randn(2, 577, 1024, **half) for _ in range(5)],
    }


def _omnigen() -> torch.nn.Module:
    from diffusers import OmniGenTransformer2DModel

    factors = [1.0] * 48  # one a pair of a head's 96 columns; their values do not matter here
    return OmniGenTransformer2DModel(rope_scaling={"short_factor": factors, "long_factor": factors})


def _omnigen_step(size: Size) -> dict[str, Any]:
    """Two samples: with and without the words."""
    import torch

    words, half = 128, {"dtype": torch.bfloat16, "device": "cuda"}
    length = words + 1 + (size.width // PATCH) * (size.height // PATCH)
    return {
        "hidden_states": torch.randn(2, 4, size.height // 8, size.width // 8, **half),
        "timestep": torch.rand(2, device="cuda"), "input_ids": torch.randint(0, 32_000, (2, words), device="cuda"),
        "input_img_latents": [], "input_image_sizes": {},
        "attention_mask": torch.ones(2, length, length, dtype=torch.int64, device="cuda"),
        "position_ids": torch.arange(length, device="cuda").expand(2, -1).contiguous(),
    }


def _video_autoencoder() -> torch.nn.Module:
    from diffusers import AutoencoderKLCogVideoX

    blocks = {
        "down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4,
        "block_out_channels": (128, 256, 256, 512), "layers_per_block": 3,
    }
    return AutoencoderKLCogVideoX(latent_channels=16, **blocks)


def _video_latents(size: Size) -> torch.Tensor:
    import torch

    frames = (size.frames - 1) // 4 + 1
    return torch.randn(1, 16, frames, size.height // 8, size.width // 8, dtype=torch.bfloat16, device="cuda")


PIPELINES: Final[Mapping[str, Pipeline]] = {
    "black-forest-labs/FLUX.1-dev": Pipeline(
        lambda: [_clip(), _t5()], _flux, _flux_step,
        lambda: _image_autoencoder(16, use_quant_conv=False, use_post_quant_conv=False), _image_latents(16),
    ),
    "Shitao/OmniGen-v1-diffusers": Pipeline(
        list, _omnigen, _omnigen_step, lambda: _image_autoencoder(4), _image_latents(4),
    ),
    "BestWishYsh/ConsisID-preview": Pipeline(
        lambda: [_t5()], _consisid, _consisid_step, _video_autoencoder, _video_latents,
    ),
}
