"""Resampling copies what its kernels read or write contiguous."""

import pytest
import torch
from torch.nn import functional as F

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
