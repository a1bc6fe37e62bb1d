"""Networks of pipelines against published parameter counts and against the code of diffusers.

Peaks are those of diffusers 0.42.1 run on tensors without storage, live storages summed (rounded to 512 bytes, weights
left out): the forward here has to allocate and free what that code does.
"""

from typing import Any

import pytest

from vramcast.blocks.diffusion.common import Step, count_elements, network_of
from vramcast.domain import pipeline as net
from vramcast.domain import pipeline as vae
from vramcast.domain.program import extent
from vramcast.operators.eager import Tape
from vramcast.units import MIB

XL = net.UNet(
    block_out_channels=(320, 640, 1280), down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * 2),
    transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20), cross_attention_dim=2048,
    use_linear_projection=True, projection_class_embeddings_input_dim=2816,
)
COG = net.CogVideoX(num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True)

COUNTS: list[tuple[Any, int]] = [
    (net.UNet(cross_attention_dim=768), 859_520_964),  # Stable Diffusion 1.5
    (XL, 2_567_463_684),
    (net.Flux(guidance_embeds=True), 11_901_408_320),
    (net.Flux(), 11_891_178_560),  # schnell
    (net.Flux2(), 32_223_281_152),
    (net.SD3(num_layers=24, num_attention_heads=24, caption_projection_dim=1536), 2_028_328_000),
    (net.QwenImage(), 20_430_401_088),
    (net.AuraFlow(pos_embed_max_size=9216), 6_858_605_568),
    (COG, 5_570_283_072),
    (net.HunyuanVideo(), 12_821_012_544),
    (net.Wan(num_attention_heads=12, num_layers=30, ffn_dim=8960), 1_418_996_800),
    (net.OmniGen(), 3_762_072_592),
    (net.ZImage(), 6_154_908_736),
    (vae.AutoencoderKL(), 83_653_863),
    (vae.AutoencoderKLCogVideoX(), 215_583_907),
    (vae.AutoencoderKLHunyuanVideo(), 246_478_803),
    (vae.AutoencoderKLWan(), 126_892_531),
]


@pytest.mark.parametrize(("network", "count"), COUNTS, ids=lambda value: getattr(type(value), "__name__", "")[:20])
def test_parameters_are_as_published(network: Any, count: int) -> None:
    assert count_elements(network) == count


STEPS: list[tuple[Any, Step, float, float]] = [
    (XL, Step(2, 1, 128, 128, 77, 2), 315.61, 0.01),
    (net.UNet(cross_attention_dim=768), Step(2, 1, 64, 64, 77, 2), 130.23, 0.01),
    (net.Flux(num_layers=2, num_single_layers=0), Step(1, 1, 128, 128, 512, 2), 342.10, 0.01),
    (net.Flux(num_layers=0, num_single_layers=2), Step(1, 1, 128, 128, 512, 2), 468.05, 0.01),
    (net.CogVideoX(num_layers=2), Step(2, 13, 60, 90, 226, 2), 1571.91, 0.01),
    (
        net.CogVideoX(num_attention_heads=48, num_layers=2, use_rotary_positional_embeddings=True),
        Step(2, 13, 60, 90, 226, 2), 2705.99, 0.01,
    ),
    (net.HunyuanVideo(num_layers=2, num_single_layers=0), Step(1, 33, 90, 160, 256, 2), 8478.35, 0.01),
    (net.HunyuanVideo(num_layers=0, num_single_layers=2), Step(1, 33, 90, 160, 256, 2), 12665.36, 0.06),
    (net.PixArt(num_layers=2), Step(2, 1, 128, 128, 300, 2), 222.07, 0.01),
    (net.QwenImage(num_layers=2), Step(1, 1, 128, 128, 200, 2), 374.44, 0.02),
    (net.Wan(num_layers=2), Step(1, 21, 60, 104, 512, 2), 3554.45, 0.10),
    (
        net.SD3(num_layers=2, num_attention_heads=24, caption_projection_dim=1536),
        Step(2, 1, 128, 128, 333, 2), 323.10, 0.08,
    ),
    (net.Flux2(num_layers=2, num_single_layers=0), Step(1, 1, 128, 128, 512, 2), 859.19, 0.07),
    (net.Flux2(num_layers=0, num_single_layers=2), Step(1, 1, 128, 128, 512, 2), 1165.19, 0.14),
    (net.ZImage(n_layers=2), Step(1, 1, 128, 128, 128, 2), 490.36, 0.12),
    (net.AuraFlow(num_mmdit_layers=1, num_single_dit_layers=1), Step(2, 1, 128, 128, 256, 2), 666.55, 0.08),
]


@pytest.mark.parametrize(("network", "step", "peak", "tolerance"), STEPS)
def test_a_step_peaks_where_the_frameworks_code_does(network: Any, step: Step, peak: float, tolerance: float) -> None:
    written = network_of(network)
    tape = Tape("denoiser", written.source)
    written.forward(tape, network, step)
    assert extent(tape.program).net == 0
    assert extent(tape.program).peak / MIB == pytest.approx(peak, rel=tolerance)


DECODES: list[tuple[Any, tuple[int, ...], int, bool, float, float]] = [
    (vae.AutoencoderKL(latent_channels=16, use_post_quant_conv=False), (1, 16, 128, 128), 2, False, 1536.5, 0.001),
    (vae.AutoencoderKL(), (1, 4, 128, 128), 4, False, 3072.5, 0.001),
    (vae.AutoencoderKL(), (1, 4, 128, 128), 2, True, 389.41, 0.001),
    (vae.AutoencoderKLCogVideoX(), (1, 16, 13, 60, 90), 2, False, 15090.77, 0.001),
    (vae.AutoencoderKLCogVideoX(), (1, 16, 13, 60, 90), 2, True, 3856.68, 0.001),
    (vae.AutoencoderKLHunyuanVideo(), (1, 16, 33, 90, 160), 2, True, 3401.78, 0.03),
    (vae.AutoencoderKLWan(), (1, 16, 1, 166, 166), 2, False, 5818.04, 0.001),  # Qwen-Image
    (vae.AutoencoderKLWan(), (1, 16, 21, 60, 104), 2, False, 4047.77, 0.08),
]


@pytest.mark.parametrize(("network", "shape", "itemsize", "tiling", "peak", "tolerance"), DECODES)
def test_decoding_peaks_where_the_frameworks_code_does(
    network: Any, shape: tuple[int, ...], itemsize: int, tiling: bool, peak: float, tolerance: float
) -> None:
    written = network_of(network)
    tape = Tape("vae", written.source)
    written.forward(tape, network, tape.new("latent", shape, itemsize), tiling=tiling)
    assert extent(tape.program).net == 0
    assert extent(tape.program).peak / MIB == pytest.approx(peak, rel=tolerance)
