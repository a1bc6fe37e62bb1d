"""Steps from operators: rates of the card, the host that starts them, what it waits for."""

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.timing.operations import LAUNCH_QUEUE, Operation, step_of
from vramcast.timing.training.rates import KERNEL_S, LAUNCH_S

CARD = load_gpu("a100-sxm4-80gb")
LAUNCH = LAUNCH_S["Ampere"]
SMALL = Operation("pointwise", "forward", "norm")
LARGE = Operation("product", "forward", "mlp", "bf16", flops=1e13, num_bytes=1e9)


def test_parts_and_modules_add_up_to_the_step_and_recomputation_is_no_use() -> None:
    again = LARGE._replace(phase="recompute")
    found = step_of([LARGE, again, SMALL._replace(phase="optimizer")], CARD)
    assert found is not None
    assert sum(found.modules.values()) == pytest.approx(found.step_s)
    assert set(found.modules) == {"mlp", "optimizer"} and found.modules["optimizer"] == pytest.approx(KERNEL_S)
    assert found.model_flops == LARGE.flops and found.peak == CARD.flops_per_s("bf16")


def test_the_host_runs_ahead_of_large_kernels_unless_it_reads_a_result() -> None:
    ahead, held = (step_of([LARGE, *between, *[SMALL] * 100], CARD) for between in ([], [SMALL._replace(kind="wait")]))
    assert ahead is not None and "launch" in ahead.seconds and ahead.seconds["launch"] == pytest.approx(0.0)
    assert held is not None and held.seconds["launch"] == pytest.approx(100 * (LAUNCH - KERNEL_S), rel=0.02)


def test_no_more_kernels_wait_than_the_queue_takes() -> None:
    found = step_of([LARGE._replace(flops=1e12), *[SMALL] * (2 * LAUNCH_QUEUE)], CARD)
    assert found is not None and found.seconds["launch"] > 0


def test_a_card_without_a_data_sheet_and_a_step_without_operators_have_no_time() -> None:
    assert step_of([], CARD) is None
    assert step_of([LARGE], load_gpu("a100-sxm4-80gb").__class__(
        name="x", vendor="NVIDIA", arch="Ampere", visible_bytes=1)) is None
