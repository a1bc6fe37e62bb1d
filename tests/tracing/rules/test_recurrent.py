"""Recurrent networks run through cuDNN: weights in one piece, a reserve while they train."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

KINDS = [
    (nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {"bidirectional": True, "batch_first": True, "proj_size": 64}),
    (nn.GRU, {"bias": False, "num_layers": 3}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_outputs_and_gradients_have_the_shapes_of_torchs(session, kind, options):
    with torch.device("meta"):
        expected, states = kind(32, 128, **options)(torch.empty(5, 7, 32))
    with session.active():
        module = kind(32, 128, **options).cuda()
        x = torch.empty(5, 7, 32, device="cuda", requires_grad=True)
        out, last = module(x)
        assert out.shape == expected.shape
        for ours, theirs in zip(last, states, strict=True):
            assert ours.shape == theirs.shape
        out.sum().backward()
        assert x.grad.shape == x.shape
        assert all(weight.grad.shape == weight.shape for weight in module.parameters())


def test_weights_lie_in_one_piece_and_hold_nothing_twice(running):
    module = nn.LSTM(256, 512, 2).cuda()
    assert running.device.allocator.allocated_bytes == sum(weight.nbytes for weight in module.parameters())
    assert len({weight.untyped_storage()._cdata for weight in module.parameters()}) == 1


def test_only_training_keeps_a_reserve(running):
    module, x = nn.LSTM(32, 128).cuda(), torch.empty(100, 8, 32, device="cuda")
    held = []
    for training in (True, False):
        out = module.train(training)(x)
        held.append(running.device.allocator.allocated_bytes)
        del out
    assert held[0] - held[1] >= 100 * 8 * 128 * 4 * 4  # four gates a value


def test_packed_sequences_run_too(running):
    packed = pack_padded_sequence(torch.empty(100, 3, 32, device="cuda"), torch.tensor([100, 60, 10]))
    out, _ = pad_packed_sequence(nn.GRU(32, 64).cuda()(packed)[0])
    assert out.shape == (100, 3, 64)


def test_flatten_parameters_is_torchs_own_afterwards(session):
    before = nn.RNNBase.flatten_parameters
    with session.active():
        assert nn.RNNBase.flatten_parameters is not before
    assert nn.RNNBase.flatten_parameters is before


def test_autocast_runs_in_fp16_on_flat_copies_of_the_weights(session):
    with session.active():
        module = nn.LSTM(32, 128).cuda()
        x = torch.empty(5, 7, 32, device="cuda")
        before = len(session.device.tape.blocks)
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = module(x)
        assert out.dtype is torch.float16
        out.float().sum().backward()
        assert all(weight.grad.dtype is torch.float32 for weight in module.parameters())
        assert all(weight.grad.shape == weight.shape for weight in module.parameters())
    count = sum(weight.numel() for weight in module.parameters())
    sizes = [block.num_bytes for block in session.device.tape.blocks[before:]]
    assert sizes.count(2 * count) == 2  # copies, and their gradients
    assert 4 * count not in sizes
