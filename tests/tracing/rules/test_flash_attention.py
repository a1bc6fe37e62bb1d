"""The package flash-attn, its operators defined here by the schemas of its interface."""

import pytest
import torch

from vramcast.units import MIB

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
    batch, queries, heads, _ = q.shape
    statistics = torch.empty(batch, heads, queries, dtype=torch.float32, device="meta")
    return torch.empty_like(q), statistics, q.new_empty(0), torch.empty(2, dtype=torch.int64, device="meta")


def backward(_dout, q, *_):
    batch, queries, heads, _ = q.shape
    return torch.empty(batch, heads, -(-queries // 128) * 128, dtype=torch.float32, device="meta")


@pytest.fixture
def operators():
    library = torch.library.Library("flash_attn", "FRAGMENT")
    for schema, kernel in zip(SCHEMAS, (forward, backward), strict=True):
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, "Meta")
    yield torch.ops.flash_attn
    library._destroy()


def heads(batch, tokens, count, width):
    return torch.randn(batch, tokens, count, width, device="cuda", dtype=torch.bfloat16)


def test_forward_returns_the_output_the_statistics_and_the_state_of_the_generator(taken, operators):
    q = heads(4, 2048, 16, 64)
    blocks = taken(lambda: operators._flash_attn_forward(q, q, q, *CALL))
    assert blocks == [(16 * MIB, ""), (4 * 16 * 2048 * 4, ""), (16, "")]


def test_one_query_to_many_keys_is_split_over_the_card(taken, operators):
    q, k = heads(1, 1, 8, 128), heads(1, 32_768, 8, 128)
    names = {name: size for size, name in taken(lambda: operators._flash_attn_forward(q, k, k, *CALL))}
    assert names["outputs of splits"] == 128 * names["log-sum-exps of splits"] > 8 * 128 * 4


def test_backward_sums_the_gradient_of_queries_in_fp32_and_expands_shared_heads(taken, operators):
    q, k = heads(2, 1000, 16, 80), heads(2, 1000, 4, 80)
    out, statistics, *_ = operators._flash_attn_forward(q, k, k, *CALL)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, k)]
    expanded = 2 * 1000 * 16 * 80 * 2
    assert taken(lambda: operators._flash_attn_backward(q, q, k, k, out, statistics, *gradients, *CALL)) == [
        (2 * 16 * 1024 * 4, ""), (2 * 1024 * 16 * 96 * 4, "fp32 gradient of queries"),
        (expanded, "gradient of keys, a copy a query head"), (expanded, "gradient of values, a copy a query head"),
    ]
