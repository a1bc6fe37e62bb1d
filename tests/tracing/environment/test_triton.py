"""Kernels written in Triton, launched on tensors without data; skipped where Triton is not installed."""

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl

from vramcast.units import MIB


@triton.jit
def doubled(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 128)], key=["count"])(doubled)


def double(kernel, x, **options):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), **options)
    return out


def test_a_launch_allocates_nothing(running):
    x = torch.randn(1000, 1000, device="cuda")
    before = torch.cuda.memory_allocated()
    out = double(doubled, x, BLOCK=128)
    assert torch.cuda.memory_allocated() - before == torch.cuda.max_memory_allocated() - before == 4_000_256
    assert out.device.type == "cuda"
    assert not running.simulation.unseen


def test_what_a_kernel_wrote_is_not_known(running):
    x = torch.ones(1, device="cuda")
    double(doubled, x, BLOCK=128)
    x.item()
    assert list(running.assumptions)


def test_tuning_takes_a_buffer_once_and_leaves_no_choice_behind(running):
    x = torch.randn(1000, device="cuda")
    double(tuned, x)
    assert torch.cuda.max_memory_allocated() == 256 * MIB + 2 * 4096
    torch.cuda.reset_peak_memory_stats()
    double(tuned, x)
    assert torch.cuda.max_memory_allocated() == 3 * 4096 - 4096
    assert not tuned.cache


def test_launches_are_put_back(session):
    launch = triton.runtime.jit.JITFunction.run
    with session.active():
        assert triton.runtime.jit.JITFunction.run is not launch
    assert triton.runtime.jit.JITFunction.run is launch
