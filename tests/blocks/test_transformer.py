"""Blocks: their parameters, transformers and networks of diffusion."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.blocks.diffusion.common import Step, count_elements, network_of
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import count_parameters, named_parameters
from vramcast.blocks.parts import Dispatch, Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain import pipeline as net
from vramcast.domain import pipeline as vae
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import MLP, Attention, Layer, Mamba, MoE, MultiLatentAttention, Norm, Split
from vramcast.domain.program import Program, extent, live_at_end
from vramcast.operators.eager import Tape
from vramcast.operators.linear import Numerics
from vramcast.operators.lowering import lower
from vramcast.units import MIB

# Residual layers of eager PyTorch.

LLAMA = Layer(mixer=Attention(num_heads=32, num_kv_heads=8, head_dim=128), channel=MLP(width=14336, gated=True))
BERT = Layer(
    mixer=Attention(num_heads=12, num_kv_heads=12, head_dim=64, rope=False, qkv_bias=True, out_bias=True),
    channel=MLP(width=3072, gated=False, activation="gelu", bias=True), norm=Norm.LAYER, norm_placement="post",
)
FALCON = Layer(
    mixer=Attention(num_heads=8, num_kv_heads=1, head_dim=64), channel=MLP(width=2048, gated=False, activation="gelu"),
    norm=Norm.LAYER, parallel=True, shared_input_norm=True,
)
FALCON_H1 = Layer(
    mixer=Attention(num_heads=8, num_kv_heads=2, head_dim=64), channel=MLP(width=2048, gated=True),
    beside=Mamba(version=2, inner_dim=768, state_dim=128, num_heads=12, head_dim=64),
)
MIXTRAL = Layer(
    mixer=Attention(num_heads=8, num_kv_heads=2, head_dim=64),
    channel=MoE(num_experts=8, top_k=2, expert=MLP(width=1024, gated=True)),
)
DEEPSEEK = Layer(
    mixer=MultiLatentAttention(
        num_heads=8, q_lora_rank=256, kv_lora_rank=128, qk_nope_dim=64, qk_rope_dim=32, v_head_dim=64
    ),
    channel=MLP(width=1024, gated=True),
)


def ends(program: Program) -> int:
    """Tensors that are neither freed nor handed on."""
    return sum(abs(count) for count in live_at_end(program).values())


@settings(max_examples=25, deadline=None)
@given(
    layer=st.sampled_from([LLAMA, BERT, FALCON, FALCON_H1, MIXTRAL, DEEPSEEK]),
    batch=st.integers(1, 3),
    seq_len=st.sampled_from([64, 128, 512]),
    numerics=st.sampled_from([Numerics(), Numerics(4, 4, 4, 4), Numerics(4, 2, 4, 4)]),
    kernel=st.sampled_from(list(AttentionKernel)),
    frozen=st.booleans(),
    dispatch=st.sampled_from(
        [None, Dispatch(), Dispatch(ranks=2, row_ranks=2, in_order=True), Dispatch(fp32_gate=True)]
    ),
    recompute=st.booleans(),
    every_expert=st.booleans(),
)
def test_backward_frees_what_forward_left(
    layer: Layer, batch: int, seq_len: int, numerics: Numerics, kernel: AttentionKernel, frozen: bool,
    dispatch: Dispatch | None, recompute: bool, every_expert: bool,
) -> None:
    hidden = 4096 if layer is LLAMA else 768 if layer is BERT else 512
    sizes = Sizes(batch=batch, seq_len=seq_len, hidden=hidden, numerics=numerics, attention=kernel, frozen=frozen)
    if layer is MIXTRAL:
        sizes = replace(sizes, dispatch=dispatch, every_expert=every_expert)
    graph = decoder_layer(layer, sizes)
    if recompute:
        graph.checkpoint(0, outputs_alive=True)
    stream = graph.inputs[0].tensor
    graph.outputs[0].tensor = stream
    gradient = graph.tensor("gradient", sizes.residual_bytes)
    low = lower(graph, gradient=gradient)
    assert ends(low.forward + low.backward) == 0


def test_two_mixers_of_one_norm_cost_what_each_costs() -> None:
    sizes, both = Sizes(batch=1, seq_len=512, hidden=512), replace(FALCON_H1, channel=None)
    layers = replace(both, beside=None), replace(both, mixer=both.beside, beside=None), both
    flops = [sum(operator.flops for operator in decoder_layer(layer, sizes).operators) for layer in layers]
    assert flops[2] == flops[0] + flops[1]


# Weight tensors of layers, embeddings and heads: shapes, splits, and sums that papers and hubs print.

GQA = Attention(num_heads=32, num_kv_heads=8, head_dim=128)
SWIGLU = MLP(width=14336, gated=True)
LLAMA_LAYER = Layer(mixer=GQA, channel=SWIGLU)


def test_megatron_splits_inputs_by_column_and_outputs_by_row() -> None:
    splits = {parameter.path: parameter.split for parameter in layer_parameters(LLAMA_LAYER, hidden=4096)}
    assert splits["attention.q"] is Split.COLUMN
    assert splits["attention.k"] is splits["attention.v"] is Split.KV
    assert splits["attention.out"] is splits["mlp.down"] is Split.ROW
    assert splits["mlp.gate"] is splits["mlp.up"] is Split.COLUMN
    assert splits["mixer_norm.weight"] is Split.REPLICATED
    attention = Attention(num_heads=12, num_kv_heads=12, head_dim=64, qkv_bias=True, out_bias=True)
    splits = {p.path: p.split for p in layer_parameters(Layer(mixer=attention, channel=None), hidden=768)}
    assert splits["attention.q.bias"] is Split.COLUMN
    assert splits["attention.out.bias"] is Split.REPLICATED


def test_experts_are_stacked_and_marked() -> None:
    moe = MoE(num_experts=8, top_k=2, expert=MLP(width=14336, gated=True), shared_width=512, score_bias=True,
              score_bias_is_parameter=False)
    parameters = {p.path: p for p in layer_parameters(Layer(mixer=None, channel=moe), hidden=4096)}
    assert parameters["moe.experts.down"].shape == (8, 4096, 14336)
    assert [p.path for p in parameters.values() if p.expert] == [f"moe.experts.{n}" for n in ("gate", "up", "down")]
    assert [p.path for p in parameters.values() if not p.trainable] == ["moe.score_bias"]


def test_parts_of_every_count_fit_together() -> None:
    for name in MODELS.names():
        model = load_model(name)
        count = count_parameters(model)
        assert 0 < count.active <= count.total, name
        assert count.embedding + count.head <= count.total, name
        assert count.trainable + count.frozen == count.total, name
        paths = [(owned.owner, owned.parameter.path) for owned in named_parameters(model, mtp=True)]
        assert len(paths) == len(set(paths)), name


# Networks of pipelines against published parameter counts and against the code of diffusers.
# Peaks are those of diffusers 0.42.1 run on tensors without storage, live storages summed (rounded to 512 bytes,
# weights left out): the forward here has to allocate and free what that code does.

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
