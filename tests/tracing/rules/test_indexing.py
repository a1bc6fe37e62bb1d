"""Truth values as indices: coordinates beside the result, and sorted in backward."""

import pytest
import torch

ROWS, WIDTH = 4096, 64
COORDINATES = "coordinates of a mask"


def scratch(session, name=COORDINATES):
    return [block.num_bytes for block in session.device.tape.blocks if block.name == name]


@pytest.mark.parametrize("is_known", [True, False])
def test_rows_by_a_mask_take_their_coordinates_forward_and_backward(running, is_known):
    x = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    mask = torch.ones(ROWS, dtype=torch.bool, device="cuda") if is_known else x.detach()[:, 0] > 0
    chosen = x[mask]
    assert scratch(running) == [8 * ROWS]
    chosen.sum().backward()
    assert scratch(running) == [8 * ROWS] * 2
    assert scratch(running, "order of indices") == [8 * ROWS]


def test_elements_by_a_mask_take_a_coordinate_a_dimension(running):
    x = torch.empty(ROWS, WIDTH, device="cuda").normal_()
    assert x[x > 0].shape == (ROWS * WIDTH,)
    assert scratch(running) == [8 * 2 * ROWS * WIDTH]


def test_filling_by_a_mask_takes_nothing(running):
    x = torch.randn(ROWS, WIDTH, device="cuda")
    x[x > 0] = 0.0
    assert scratch(running) == []
