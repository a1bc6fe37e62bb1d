"""bitsandbytes' layers and optimizers; skipped where it is not installed."""

import pytest
import torch

pytest.importorskip("bitsandbytes")

from vramcast.units import MIB


def blocks(session, run):
    start = len(session.device.tape.blocks)
    run()
    assert not session.simulation.unseen
    return {block.name or block.operator: block.num_bytes for block in session.device.tape.blocks[start:]}


def test_adam_with_8_bit_states_keeps_two_bytes_a_parameter(running):
    import bitsandbytes

    layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
    optimizer = bitsandbytes.optim.AdamW8bit(layer.parameters())
    layer.weight.grad = torch.randn_like(layer.weight)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    scales, tables = 2 * 4096 * 4096 // 256 * 4, 2 * 1024
    assert torch.cuda.memory_allocated() - before == 2 * 4096 * 4096 + scales + tables
    assert not running.simulation.unseen


def test_a_4_bit_weight_is_unpacked_for_many_rows_only(running):
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(4096, 4096, bias=False, compute_dtype=torch.bfloat16).cuda()
    few, many = (torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16) for rows in (16, 2048))
    with torch.no_grad():
        assert "unpacked weight" not in blocks(running, lambda: layer(few))
        assert blocks(running, lambda: layer(many))["unpacked weight"] == 32 * MIB


@pytest.mark.parametrize("threshold", [0.0, 6.0])
def test_8_bit_products_are_32_bit_integers_first(running, threshold):
    import bitsandbytes

    layer = bitsandbytes.nn.Linear8bitLt(4096, 4096, bias=False, has_fp16_weights=False, threshold=threshold).cuda()
    x = torch.randn(1024, 4096, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        assert blocks(running, lambda: layer(x))["32-bit products"] == 16 * MIB
