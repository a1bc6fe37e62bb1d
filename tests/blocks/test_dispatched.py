"""Experts as torchtitan runs them."""

from __future__ import annotations

import pytest

from vramcast.blocks.sizes import Dispatch, Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import MLP, Attention, Layer, MoE
from vramcast.domain.program import extent, live_at_end
from vramcast.operators.lowering import lower

LAYER = Layer(
    mixer=Attention(num_heads=8, num_kv_heads=2, head_dim=64),
    channel=MoE(num_experts=8, top_k=2, expert=MLP(width=1024, gated=True)),
)
SIZES = Sizes(batch=1, seq_len=2048, hidden=512)


def kept(dispatch: Dispatch | None) -> int:
    return extent(lower(decoder_layer(LAYER, SIZES._replace(dispatch=dispatch))).forward).net


def names(dispatch: Dispatch) -> list[str]:
    graph = decoder_layer(LAYER, SIZES._replace(dispatch=dispatch))
    return [operator.name for operator in graph.operators]


def test_rows_are_exchanged_only_between_ranks() -> None:
    assert "all_to_all" not in names(Dispatch())
    assert names(Dispatch(ranks=4)).count("all_to_all") == 2


def test_rows_in_order_keep_them_all_in_fp32() -> None:
    rows = SIZES.tokens * 2 * SIZES.hidden
    assert kept(Dispatch(in_order=True)) > kept(None) + 2 * rows


@pytest.mark.parametrize(
    "dispatch",
    [Dispatch(), Dispatch(ranks=4), Dispatch(ranks=2, row_ranks=2, in_order=True), Dispatch(fp32_gate=True)],
)
def test_a_layer_leaves_nothing_behind(dispatch: Dispatch) -> None:
    found = lower(decoder_layer(LAYER, SIZES._replace(dispatch=dispatch)))
    ends = {tensor.name for tensor, count in live_at_end(found.forward + found.backward).items() if count}
    assert ends == {"hidden", "channel_residual", "grad.hidden", "grad.channel_residual"}
