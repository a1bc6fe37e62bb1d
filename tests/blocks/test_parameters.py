"""Weight tensors of layers, embeddings and heads: shapes, splits, and sums that papers and hubs print."""

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import count_parameters, named_parameters
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


def test_parts_of_every_count_fit_together() -> None:
    for name in MODELS.names():
        model = load_model(name)
        count = count_parameters(model)
        assert 0 < count.active <= count.total, name
        assert count.embedding + count.head <= count.total, name
        assert count.trainable + count.frozen == count.total, name
        paths = [(owned.owner, owned.parameter.path) for owned in named_parameters(model, mtp=True)]
        assert len(paths) == len(set(paths)), name
