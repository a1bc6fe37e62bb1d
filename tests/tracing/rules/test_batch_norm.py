"""Batch norm runs in cuDNN where CUDA lets it, with outputs in CUDA's order."""

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session


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
