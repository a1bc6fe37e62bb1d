"""What convolutions, pools, norms, recurrent layers and losses take."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vramcast.allocator import Settings
from vramcast.catalogue.contexts import workspace_share
from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session

# Convolutions allocate what ATen and cuDNN take on CUDA, in their order.

X = (8, 64, 56, 56)
X_BYTES = 8 * 64 * 56 * 56 * 4


def run(step, *, card="a100-sxm-80gb", version=(2, 13)):
    session = Session(load_gpu(card), settings=Settings(version=version))
    with session.active():
        step()
    return session.device.tape.blocks


def scratch(blocks):
    return [(block.name, block.num_bytes) for block in blocks if block.category == "temporaries"]


def conv(*, dtype="float32", groups=1, layout="contiguous_format", size=3, **options):
    def step():
        dtype_, layout_ = getattr(torch, dtype), getattr(torch, layout)
        x = torch.empty(X, dtype=dtype_, device="cuda").to(memory_format=layout_).requires_grad_()
        weight = torch.empty(64, 64 // groups, size, size, dtype=dtype_, device="cuda").to(memory_format=layout_)
        weight.requires_grad_()
        bias = torch.empty(64, dtype=dtype_, device="cuda", requires_grad=True)
        out = F.conv2d(x, weight, bias, padding=size // 2, groups=groups, **options)
        out.backward(torch.empty_like(out))
        assert x.grad.shape == x.shape and weight.grad.shape == weight.shape and bias.grad.shape == bias.shape
        assert out.is_contiguous(memory_format=layout_)

    return step


def test_tensor_cores_convert_the_layout_in_a_workspace():
    moved = X_BYTES + 64 * 64 * 9 * 4
    expected = [
        (f"cuDNN dense convolution, {phase}", round(workspace_share("dense", phase, (2, 13)) * (moved + outputs)))
        for phase, outputs in (("forward", 0), ("data", X_BYTES), ("filter", X_BYTES))
    ]
    assert [entry for entry in scratch(run(conv())) if entry[0].startswith("cuDNN")] == expected


@pytest.mark.parametrize(("options", "where"), [
    ({"layout": "channels_last"}, {}),  # nothing to convert
    ({"dtype": "float64"}, {}),  # no tensor cores
    ({"groups": 64}, {}),  # depthwise: ATen's own kernel
    ({}, {"card": "t4"}),  # no TF32
    ({}, {"version": (1, 12)}),
])
def test_elsewhere_there_is_no_workspace(options, where):
    assert not [entry for entry in scratch(run(conv(**options), **where)) if entry[0].startswith("cuDNN")]


def test_without_tf32_there_is_no_workspace():
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert not [entry for entry in scratch(run(conv())) if entry[0].startswith("cuDNN")]
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def test_half_precision_depthwise_runs_in_cudnn_where_torch_takes_it_for_faster():
    assert scratch(run(conv(dtype="float16", groups=64)))
    assert not [e for e in scratch(run(conv(dtype="bfloat16", groups=64))) if e[0].startswith("cuDNN")]


# Batch norm runs in cuDNN where CUDA lets it, with outputs in CUDA's order.

def sizes(step):
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        norm = torch.nn.BatchNorm2d(64, device="cuda")
        before = len(session.device.tape.blocks)
        step(norm)
    made = session.device.tape.blocks[before:]
    return [(block.operator, block.num_bytes) for block in made if "batch_norm" in block.operator]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_only_half_of_the_16_bit_types_runs_in_cudnn(dtype):
    found = sizes(lambda norm: norm(torch.empty(2, 64, 8, 8, device="cuda", dtype=getattr(torch, dtype))))
    assert ("cudnn" in found[0][0]) == (dtype == "float16")
    assert found[1][1] == 64 * 4  # statistics are fp32


def test_a_row_a_sample_does_not_run_in_cudnn():
    def step(_):
        torch.nn.BatchNorm1d(64, device="cuda")(torch.empty(8, 64, device="cuda"))

    assert all("native" in operator for operator, _ in sizes(step))


def test_evaluation_keeps_no_statistics_of_the_batch():
    found = sizes(lambda norm: norm.eval()(torch.empty(2, 64, 8, 8, device="cuda")))
    assert found == [("aten.cudnn_batch_norm", 2 * 64 * 8 * 8 * 4)]


def test_channels_last_stays():
    def step(norm):
        x = torch.empty(2, 64, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        assert norm(x).is_contiguous(memory_format=torch.channels_last)

    sizes(step)


# Resampling copies what its kernels read or write contiguous.

SIZES = {1: (2, 8, 32), 2: (2, 8, 16, 16), 3: (2, 8, 8, 8, 8)}


@pytest.mark.parametrize(("dimensions", "mode", "options"), [
    (1, "linear", {}), (1, "nearest", {}), (1, "nearest-exact", {}), (2, "bicubic", {}), (2, "nearest-exact", {}),
    (2, "bicubic", {"antialias": True}), (2, "bilinear", {"antialias": True}), (3, "trilinear", {}),
    (3, "nearest", {}), (3, "nearest-exact", {}),
])
def test_gradient_of_a_concatenation_is_copied_before_resampling_it(taken, dimensions, mode, options):
    x = torch.randn(*SIZES[dimensions], device="cuda", requires_grad=True)
    up = F.interpolate(x, scale_factor=2, mode=mode, **options)
    gradient = torch.randn(2, 16, *up.shape[2:], device="cuda")[:, :8]
    assert taken(lambda: torch.autograd.grad(up, x, gradient)) == [(x.nbytes, ""), (up.nbytes, "contiguous copy")]


@pytest.mark.parametrize(("layout", "dimensions", "mode", "options"), [
    (torch.channels_last, 2, "bicubic", {"antialias": True}), (torch.channels_last_3d, 3, "nearest", {}),
])
def test_result_in_channels_last_is_copied_from_a_contiguous_one(taken, layout, dimensions, mode, options):
    x = torch.randn(*SIZES[dimensions], device="cuda").to(memory_format=layout)
    names = [name for _, name in taken(lambda: F.interpolate(x, scale_factor=2, mode=mode, **options))]
    assert names == ["", *(["contiguous copy"] if dimensions == 3 else []), "contiguous result"]


def test_masks_of_bytes_are_resampled_to_the_nearest(running):
    mask = torch.zeros(2, 1, 8, 8, dtype=torch.uint8, device="cuda")
    assert F.interpolate(mask, scale_factor=2, mode="nearest").dtype is torch.uint8


# Recurrent networks run through cuDNN: weights in one piece, a reserve while they train.

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


# CTC takes what ATen's CUDA kernels take.

STEPS, BATCH, LABELS = 50, 4, 30


def blocks_of(step):
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        step()
    return session


def loss_of(lengths):
    scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
    targets = torch.ones(BATCH, 20, dtype=torch.long, device="cuda")
    steps = torch.full((BATCH,), STEPS, dtype=torch.long, device="cuda")
    return torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, steps, lengths)


def alphas(session):
    return [block.num_bytes for block in session.device.tape.blocks if block.operator == "aten._ctc_loss"][3]


def test_forward_variables_follow_the_longest_known_target():
    session = blocks_of(lambda: loss_of(torch.tensor([3, 7, 5, 2], device="cuda")).backward())
    assert alphas(session) == BATCH * STEPS * (2 * 7 + 1) * 4
    assert not session.simulation.unseen


def test_where_lengths_are_unknown_targets_fill_their_room():
    session = blocks_of(lambda: loss_of(torch.empty(BATCH, dtype=torch.long, device="cuda")).backward())
    assert alphas(session) == BATCH * STEPS * (2 * 20 + 1) * 4
    assert any("20 labels" in each.what for each in session.assumptions)


def test_targets_on_the_host_are_moved_to_the_card():
    def step():
        scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
        targets = torch.randint(1, LABELS, (17,))
        lengths = torch.tensor([3, 7, 5, 2])
        torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, torch.full((BATCH,), STEPS), lengths).backward()

    assert alphas(blocks_of(step)) == BATCH * STEPS * (2 * 7 + 1) * 4


def test_lengths_on_the_host_are_read_in_inference_mode_too():
    def step():
        with torch.inference_mode():
            scores = torch.randn(STEPS, BATCH, LABELS, device="cuda")
            lengths = torch.full((BATCH,), STEPS), torch.tensor([3, 7, 5, 2])
            torch.nn.functional.ctc_loss(scores, torch.ones(BATCH, 20, dtype=torch.long, device="cuda"), *lengths)

    assert alphas(blocks_of(step)) == BATCH * STEPS * (2 * 7 + 1) * 4
