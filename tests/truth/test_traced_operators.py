"""The sweep over PyTorch's own list of operators, on a few of them."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from truth.traced_operators import Observed, Place, Row, compared


@pytest.fixture(scope="module")
def table():
    """In a process of its own: torch.testing changes torch's settings as it is imported."""
    pytest.importorskip("expecttest")
    names = ["add", "transpose", "cumsum", "nn.functional.conv2d", "nonzero", "linalg.qr", "histogram"]
    command = [sys.executable, "-m", "truth.traced_operators", "--samples", "3", "--rows", "--only", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_operators_do_on_the_card_what_they_do_on_the_host(table):
    assert table[-1].startswith(
        "float32: 6 of 7 operators run, 6 with the CPU's shapes, types, views and gradients and all memory counted, "
        "6 with its strides, too; 1 of a size that data decide"
    )


def test_what_nobody_read_and_what_cards_do_not_have_is_listed(table):
    lists = [line for line in table if "linalg.qr" in line]
    assert len(lists) == 1 and "unknown" in lists[0] and "aten.linalg_qr" in lists[0]
    assert any("histogram" in line and "refused" in line and "'CUDA' backend" in line for line in table)


def test_a_difference_is_told():
    place = Place((2, 3), "torch.float32", None, False, (3, 1))
    real, row = Observed([place], [], 0), Row("any", 1)
    assert compared(row, real, real) == row
    assert compared(row, real, Observed([place._replace(view_of=0)], [], 0)).different
    assert compared(row, real, Observed([place], [], 1)).different == "1 results without memory"
    turned = compared(row, real, Observed([place._replace(stride=(1, 2))], [], 0))
    assert turned.strides and turned.is_same
    assert compared(row, real, Observed([], [], 0)).different
