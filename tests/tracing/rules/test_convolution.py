"""Convolutions allocate what ATen and cuDNN take on CUDA, in their order."""

import pytest
import torch
from torch.nn import functional as F

from vramcast.allocator import Settings
from vramcast.catalogue.contexts import workspace_share
from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session

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
