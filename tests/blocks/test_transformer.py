"""Residual layers of eager PyTorch."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.blocks.sizes import Dispatch, Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import MLP, Attention, Layer, Mamba, MoE, MultiLatentAttention, Norm
from vramcast.domain.program import Program, live_at_end
from vramcast.operators.linear import Numerics
from vramcast.operators.lowering import lower

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
