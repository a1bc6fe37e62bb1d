"""Steps from operators: rates of the card, the host that starts them, what it waits for."""


import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.timing.roofline import Operation, step_of
from vramcast.timing.training.parts import KERNEL_S, LAUNCH_S

CARD = load_gpu("a100-sxm4-80gb")
LAUNCH = LAUNCH_S["Ampere"]
SMALL = Operation("pointwise", "forward", "norm")
LARGE = Operation("product", "forward", "mlp", "bf16", flops=1e13, num_bytes=1e9)


def test_the_host_runs_ahead_of_large_kernels_unless_it_reads_a_result() -> None:
    ahead, held = (step_of([LARGE, *between, *[SMALL] * 100], CARD) for between in ([], [replace(SMALL, kind="wait")]))
    assert ahead is not None and "launch" in ahead.seconds and ahead.seconds["launch"] == pytest.approx(0.0)
    assert held is not None and held.seconds["launch"] == pytest.approx(100 * (LAUNCH - KERNEL_S), rel=0.02)
