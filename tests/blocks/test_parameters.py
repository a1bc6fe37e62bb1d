"""Weight tensors of layers, embeddings and heads: shapes, splits, and sums that papers and hubs print."""

from __future__ import annotations

import pytest

from vramcast.blocks.parameters import count_parameters, layer_parameters, named_parameters
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.model import MLP, Attention, Layer, MoE, Split

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


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12_879_925_248), ("qwen3-30b-a3b", 3_353_032_704), ("llama-3.1-8b", 8_030_261_248)],
)
def test_active_weights_leave_idle_experts_out(name: str, active: int) -> None:
    assert count_parameters(load_model(name)).active == active


def test_parts_of_every_count_fit_together() -> None:
    for name in MODELS.names():
        model = load_model(name)
        count = count_parameters(model)
        assert 0 < count.active <= count.total, name
        assert count.embedding + count.head <= count.total, name
        assert count.trainable + count.frozen == count.total, name
        paths = [(owned.owner, owned.parameter.path) for owned in named_parameters(model, mtp=True)]
        assert len(paths) == len(set(paths)), name


