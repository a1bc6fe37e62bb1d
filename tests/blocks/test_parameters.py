"""Weight tensors of layers, embeddings and heads: shapes, splits, and sums that papers and hubs print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.blocks.parameters import (
    Stored,
    checkpoint_elements,
    count_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    named_parameters,
)
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.model import (
    MLP,
    Attention,
    Head,
    Layer,
    Mamba,
    Model,
    MoE,
    MultiLatentAttention,
    Norm,
    Run,
    Split,
    Stack,
)

GQA = Attention(num_heads=32, num_kv_heads=8, head_dim=128)
SWIGLU = MLP(width=14336, gated=True)
LLAMA_LAYER = Layer(mixer=GQA, channel=SWIGLU)


def shapes(layer: Layer, hidden: int) -> dict[str, tuple[int, ...]]:
    return {parameter.path: parameter.shape for parameter in layer_parameters(layer, hidden=hidden)}


def test_llama_layer_has_nine_tensors() -> None:
    assert shapes(LLAMA_LAYER, 4096) == {
        "mixer_norm.weight": (4096,),
        "channel_norm.weight": (4096,),
        "attention.q": (4096, 4096),
        "attention.k": (1024, 4096),
        "attention.v": (1024, 4096),
        "attention.out": (4096, 4096),
        "mlp.gate": (14336, 4096),
        "mlp.up": (14336, 4096),
        "mlp.down": (4096, 14336),
    }


def test_megatron_splits_inputs_by_column_and_outputs_by_row() -> None:
    splits = {parameter.path: parameter.split for parameter in layer_parameters(LLAMA_LAYER, hidden=4096)}
    assert splits["attention.q"] is Split.COLUMN
    assert splits["attention.k"] is splits["attention.v"] is Split.KV
    assert splits["attention.out"] is splits["mlp.down"] is Split.ROW
    assert splits["mlp.gate"] is splits["mlp.up"] is Split.COLUMN
    assert splits["mixer_norm.weight"] is Split.REPLICATED


def test_a_bias_behind_a_row_split_is_whole_on_every_rank() -> None:
    attention = Attention(num_heads=12, num_kv_heads=12, head_dim=64, qkv_bias=True, out_bias=True)
    splits = {p.path: p.split for p in layer_parameters(Layer(mixer=attention, channel=None), hidden=768)}
    assert splits["attention.q.bias"] is Split.COLUMN
    assert splits["attention.out.bias"] is Split.REPLICATED


def test_experts_are_stacked_and_marked() -> None:
    moe = MoE(num_experts=8, top_k=2, expert=MLP(width=14336, gated=True), shared_width=512, shared_gate=True)
    parameters = {p.path: p for p in layer_parameters(Layer(mixer=None, channel=moe), hidden=4096)}
    assert parameters["moe.experts.gate"].shape == (8, 14336, 4096)
    assert parameters["moe.experts.down"].shape == (8, 4096, 14336)
    assert parameters["moe.router"].shape == (8, 4096)
    assert [path for path, p in parameters.items() if p.expert] == [
        "moe.experts.gate",
        "moe.experts.up",
        "moe.experts.down",
    ]
    assert parameters["moe.shared_gate"].shape == (1, 4096)


def test_routing_correction_can_be_frozen() -> None:
    moe = MoE(num_experts=4, top_k=1, expert=SWIGLU, score_bias=True, score_bias_is_parameter=False)
    frozen = [p.path for p in layer_parameters(Layer(mixer=None, channel=moe), hidden=64) if not p.trainable]
    assert frozen == ["moe.score_bias"]


def test_latent_attention_of_deepseek_v3_has_187_million_weights() -> None:
    mla = MultiLatentAttention(
        num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_head_dim=128
    )
    layer = Layer(mixer=mla, channel=None)
    assert sum(p.elements for p in layer_parameters(layer, hidden=7168)) - 7168 == 187_107_328


def test_mamba_2_layer_matches_codestral() -> None:
    mamba = Mamba(version=2, inner_dim=8192, state_dim=128, num_heads=128, head_dim=64, num_groups=8)
    found = shapes(Layer(mixer=mamba, channel=None), 4096)
    assert found["mamba.in"] == (18560, 4096)
    assert found["mamba.conv"] == (10240, 1, 4)
    assert found["mamba.out"] == (4096, 8192)


def test_parallel_parts_can_share_their_norm() -> None:
    shared = Layer(mixer=GQA, channel=SWIGLU, norm=Norm.LAYER, parallel=True, shared_input_norm=True)
    norms = [path for path in shapes(shared, 4096) if "norm" in path]
    assert norms == ["mixer_norm.weight", "mixer_norm.bias"]


def test_post_norms_double_the_norms() -> None:
    layer = Layer(mixer=GQA, channel=SWIGLU, post_norms=True)
    assert [path for path in shapes(layer, 4096) if "norm" in path] == [
        "mixer_norm.weight",
        "channel_norm.weight",
        "mixer_post_norm.weight",
        "channel_post_norm.weight",
    ]


def test_tied_head_owns_nothing() -> None:
    stack = Stack(name="decoder", hidden=64, runs=(Run(count=1, layer=LLAMA_LAYER),))
    model = Model(name="m", family="llama", vocab=100, stacks=(stack,), tied=True)
    assert head_parameters(model) == ()
    assert [p.path for p in embedding_parameters(model)] == ["embedding.tokens"]


def test_factorised_embedding_brings_a_projection() -> None:
    stack = Stack(name="decoder", hidden=1024, runs=(Run(count=1, layer=LLAMA_LAYER),))
    model = Model(name="m", family="opt", vocab=50272, stacks=(stack,), tied=True, embedding_width=512, head=Head.LM)
    assert [p.shape for p in embedding_parameters(model)] == [(50272, 512), (1024, 512)]
    assert [p.shape for p in head_parameters(model)] == [(512, 1024)]


def test_prediction_module_owns_projection_norms_and_a_layer() -> None:
    model = load_model("deepseek-v3")
    (module,) = mtp_parameters(model)
    paths = {parameter.path: parameter.shape for parameter in module}
    assert paths["mtp.projection"] == (7168, 14336)
    assert paths["mtp.head"] == (129280, 7168)
    assert "mtp.moe.experts.gate" in paths


def test_named_parameters_keep_runs_and_sum_to_the_total() -> None:
    model = load_model("llama-3.1-8b")
    named = list(named_parameters(model))
    assert {owned.owner for owned in named} == {"embedding", "decoder", "decoder.layers.0-31", "head"}
    assert sum(owned.parameter.elements * owned.repeats for owned in named) == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12_879_925_248), ("qwen3-30b-a3b", 3_353_032_704), ("llama-3.1-8b", 8_030_261_248)],
)
def test_active_weights_leave_idle_experts_out(name: str, active: int) -> None:
    assert count_parameters(load_model(name)).active == active


def test_gpt2_checkpoint_also_stores_its_causal_masks() -> None:
    model = load_model("gpt2")
    assert count_parameters(model).total == 124_439_808
    assert model.buffers == 12 * 1024 * 1024
    assert checkpoint_elements(model, [Stored.CAUSAL_MASKS]) == 137_022_720


@pytest.mark.parametrize("name", MODELS.names())
def test_parts_of_every_count_fit_together(name: str) -> None:
    model = load_model(name)
    count = count_parameters(model)
    assert 0 < count.active <= count.total
    assert count.embedding + count.head <= count.total
    assert count.trainable + count.frozen == count.total
    paths = [(owned.owner, owned.parameter.path) for owned in named_parameters(model, mtp=True)]
    assert len(paths) == len(set(paths))


@given(
    heads=st.integers(1, 8),
    groups=st.integers(1, 8),
    width=st.integers(1, 64),
    hidden=st.integers(1, 256),
    count=st.integers(1, 5),
)
def test_a_run_weighs_as_much_as_its_layers(heads: int, groups: int, width: int, hidden: int, count: int) -> None:
    attention = Attention(num_heads=heads * groups, num_kv_heads=groups, head_dim=width)
    layer = Layer(mixer=attention, channel=MLP(width=4 * hidden, gated=False))
    one = sum(p.elements for p in layer_parameters(layer, hidden=hidden))

    def total(runs: tuple[Run, ...]) -> int:
        stack = Stack(name="decoder", hidden=hidden, runs=runs)
        return count_parameters(Model(name="m", family="m", vocab=10, stacks=(stack,))).total

    folded, listed = total((Run(count=count, layer=layer),)), total((Run(count=1, layer=layer),) * count)
    assert folded == listed
    assert folded == count * one + hidden + 2 * 10 * hidden
