"""Inference: what torch.nn hands over as one operator is the chain that CUDA runs, with and without inference mode."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session

BATCH, TOKENS, WIDTH, HEADS = 8, 128, 64, 4
STEP = BATCH * TOKENS * WIDTH * 4  # bytes of one activation


def taken(run, *, context=torch.no_grad, dtype=torch.float32):
    """Sizes of what a module allocates for one input."""
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        module = run().cuda().eval().to(dtype)
        before = len(session.device.tape.blocks)
        with context():
            x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda", dtype=dtype)
            out = module(x)
            assert (out[0] if isinstance(out, tuple) else out).shape == x.shape
        assert not session.simulation.unseen
        return [block.num_bytes for block in session.device.tape.blocks[before:] if block.category != "workspaces"]


def layer(**options):
    return lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, **options)


class Attention(nn.Module):
    def forward(self, x):
        split = x.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(split, split, split).transpose(1, 2).reshape(x.shape)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


@pytest.mark.parametrize(("run", "dtype"), [(run, torch.float32) for run in (
    layer(), layer(norm_first=True, activation="gelu"), Attention, Weighted, lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Softmax(-1), lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    lambda: nn.Conv1d(TOKENS, TOKENS, 3, padding=1),
)] + [(layer(), torch.float16), (Attention, torch.float16)])
def test_inference_mode_takes_what_no_grad_takes(run, dtype):
    assert taken(run, context=torch.inference_mode, dtype=dtype) == taken(run, dtype=dtype)


def test_an_encoder_layer_takes_projections_attention_and_the_wide_part():
    sizes = taken(layer())
    assert sizes[:4] == [STEP, 3 * STEP, STEP, STEP]  # input, projections, attention, its projection
    assert 4 * STEP in sizes


def test_attention_weights_take_a_score_for_every_pair():
    sizes = taken(Weighted)
    assert sizes.count(BATCH * HEADS * TOKENS * TOKENS * 4) == 2  # scores and their softmax
    assert BATCH * TOKENS * TOKENS * 4 in sizes


def test_fused_attention_is_chosen_in_inference_mode():
    assert max(taken(Attention, context=torch.inference_mode, dtype=torch.float16)) == STEP // 2
