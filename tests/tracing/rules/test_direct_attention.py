"""What attention takes: direct, flash."""

from importlib.util import find_spec

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session
from vramcast.units import MIB

# Attention by its own operators, and xformers where it is installed.

FLASH_STATE = [(16, ""), (8, "")]
STARTS = (0, 100, 300, 700)


def heads(*sizes, dtype=torch.bfloat16):
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def starts():
    return torch.tensor(STARTS, dtype=torch.int32, device="cuda")


def flash(q, k, cu, longest):
    return torch.ops.aten._flash_attention_forward(q, k, k, cu, cu, longest, longest, 0.0, True, False)


def test_flash_keeps_output_statistics_and_state(taken):
    q = heads(2, 1024, 64, 64)
    assert taken(lambda: flash(q, q, None, 1024)) == [(16 * MIB, ""), (2 * 64 * 1024 * 4, ""), *FLASH_STATE]


def test_flash_of_sequences_in_a_row_keeps_a_statistic_a_token(taken):
    q, cu = heads(700, 16, 64), starts()
    assert taken(lambda: flash(q, q, cu, 400)) == [(700 * 16 * 64 * 2, ""), (16 * 700 * 4, ""), *FLASH_STATE]


def test_backward_of_flash_leaves_room_for_128_rows_more_a_sequence(taken):
    q, cu = heads(700, 16, 64), starts()
    out, sums, seed, offset, _ = flash(q, q, cu, 400)
    rows, size = 700 + 3 * 128, 700 * 16 * 64 * 2
    blocks = taken(lambda: torch.ops.aten._flash_attention_backward(
        out, q, q, q, out, sums, cu, cu, 400, 400, 0.0, True, seed, offset
    ))
    assert blocks == [
        (size, ""), (size, ""), (size, ""), (rows * 16 * 4, "row sums of gradient * output"),
        (rows * 16 * 64 * 4, "fp32 gradient of queries"),
    ]


@pytest.mark.parametrize(("cu", "sizes", "statistics"), [
    (False, (2, 1000, 16, 64), 2 * 16 * 1024), (True, (1, 700, 16, 64), 3 * 16 * 416),
])
def test_efficient_attention_pads_the_statistics_of_every_sequence(taken, cu, sizes, statistics):
    q, where = heads(*sizes), starts() if cu else None
    longest = 400 if cu else None
    blocks = taken(lambda: torch.ops.aten._efficient_attention_forward(
        q, q, q, None, where, where, longest, longest, 0.0, 0, True
    ))
    assert blocks == [(torch.Size(sizes).numel() * 2, ""), (statistics * 4, "")]


def test_efficient_gradients_may_share_one_tensor(taken):
    q = heads(2, 1024, 16, 64)
    out, sums, seed, offset, *_ = torch.ops.aten._efficient_attention_forward(
        q, q, q, None, None, None, None, None, 0.0, 0, True
    )
    blocks = taken(lambda: torch.ops.aten._efficient_attention_backward(
        out, q, q, q, None, out, None, None, 1024, 1024, sums, 0.0, seed, offset, 0, False,
        shared_storage_dqdkdv=True,
    ))
    sizes = [size for size, _ in blocks]
    assert sizes[:2] == [3 * 4 * MIB, 2 * 16 * 1024 * 4]


IS_HERE = find_spec("xformers") is not None


@pytest.mark.skipif(not IS_HERE, reason="xformers is not installed")
@pytest.mark.parametrize(("card", "dropout", "kept"), [
    ("a100-sxm4-80gb", 0.0, 0), ("a100-sxm4-80gb", 0.1, 512), ("t4", 0.0, 0),
])
def test_xformers_itself_takes_flash_where_the_card_has_it(card, dropout, kept):
    session = Session(load_gpu(card))
    with session.active():
        import xformers.ops

        q = heads(2, 1024, 16, 64, dtype=torch.float16).requires_grad_()
        before = torch.cuda.memory_allocated()
        mask = xformers.ops.LowerTriangularMask()
        out = xformers.ops.memory_efficient_attention(q, q, q, attn_bias=mask, p=dropout)
        assert torch.cuda.memory_allocated() - before == 4 * MIB + 2 * 16 * 1024 * 4 + kept
        out.backward(torch.empty_like(out))
    used = {block.operator for block in session.device.tape.blocks}
    assert bool({"aten._flash_attention_forward", "flash_attn_2_cuda.fwd"} & used) == (card != "t4")
    assert not session.simulation.unseen


# The package flash-attn, its operators defined here by the schemas of its interface.

OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, int window_size_left, int window_size_right, float softcap, "
    "Tensor? alibi_slopes"
)
GRADIENTS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk"
SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {OPTIONS}, bool return_softmax) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_backward({GRADIENTS}, Tensor(c!)? dv, {OPTIONS}, bool deterministic, Tensor? rng_state=None) "
    "-> Tensor",
)
CALL = (0.0, 0.125, True, -1, -1, 0.0, None, False)


def forward(q, *_):
    batch, queries, flash_heads, _ = q.shape
    statistics = torch.empty(batch, flash_heads, queries, dtype=torch.float32, device="meta")
    return torch.empty_like(q), statistics, q.new_empty(0), torch.empty(2, dtype=torch.int64, device="meta")


def backward(_dout, q, *_):
    batch, queries, flash_heads, _ = q.shape
    return torch.empty(batch, flash_heads, -(-queries // 128) * 128, dtype=torch.float32, device="meta")


@pytest.fixture
def operators():
    library = torch.library.Library("flash_attn", "FRAGMENT")
    for schema, kernel in zip(SCHEMAS, (forward, backward), strict=True):
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, "Meta")
    yield torch.ops.flash_attn
    library._destroy()


def flash_heads(batch, tokens, count, width):
    return torch.randn(batch, tokens, count, width, device="cuda", dtype=torch.bfloat16)


def test_forward_returns_the_output_the_statistics_and_the_state_of_the_generator(taken, operators):
    q = flash_heads(4, 2048, 16, 64)
    blocks = taken(lambda: operators._flash_attn_forward(q, q, q, *CALL))
    assert blocks == [(16 * MIB, ""), (4 * 16 * 2048 * 4, ""), (16, "")]


def test_one_query_to_many_keys_is_split_over_the_card(taken, operators):
    q, k = flash_heads(1, 1, 8, 128), flash_heads(1, 32_768, 8, 128)
    names = {name: size for size, name in taken(lambda: operators._flash_attn_forward(q, k, k, *CALL))}
    assert names["outputs of splits"] == 128 * names["log-sum-exps of splits"] > 8 * 128 * 4


def test_backward_sums_the_gradient_of_queries_in_fp32_and_expands_shared_heads(taken, operators):
    q, k = flash_heads(2, 1000, 16, 80), flash_heads(2, 1000, 4, 80)
    out, statistics, *_ = operators._flash_attn_forward(q, k, k, *CALL)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, k)]
    expanded = 2 * 1000 * 16 * 80 * 2
    assert taken(lambda: operators._flash_attn_backward(q, q, k, k, out, statistics, *gradients, *CALL)) == [
        (2 * 16 * 1024 * 4, ""), (2 * 1024 * 16 * 96 * 4, "fp32 gradient of queries"),
        (expanded, "gradient of keys, a copy a query head"), (expanded, "gradient of values, a copy a query head"),
    ]
