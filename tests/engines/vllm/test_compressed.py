"""DeepSeek V4's blocks against the figures of a start-up log."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.catalogue.models import load_model
from vramcast.engines.vllm.groups import compressed_groups
from vramcast.units import GIB


def test_one_sequence_needs_what_the_error_of_a_short_pool_says() -> None:
    answer = vramcast.serve(
        "deepseek-v4-flash", gpus="2xgh200-96gb", engine="vllm@0.22", context=30000, batched_tokens=16384
    )
    assert answer.capacity is not None
    assert answer.capacity.sequence_bytes / GIB == pytest.approx(6.66, abs=0.005)


def test_states_of_compressors_take_more_blocks_than_what_they_compress() -> None:
    groups, _ = compressed_groups([load_model("deepseek-v4-flash").main.layers])
    compressed, states = groups[0], [group for group in groups[1:] if group.window < 128 or group.block_tokens == 8]
    assert sum(group.blocks(30000, 8192) for group in states) > 10 * compressed.blocks(30000, 8192)


def test_stages_share_the_layers_of_a_block() -> None:
    layers = load_model("deepseek-v4-flash").main.layers
    _, whole = compressed_groups([layers])
    _, halves = compressed_groups([layers[:22], layers[22:]])
    assert whole[0] <= sum(halves) <= whole[0] * 1.2
