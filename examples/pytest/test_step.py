"""A training step that must fit a card, and whose peak must not creep up: `pytest examples/pytest`."""

import pytest


def step(width: int = 1024) -> None:
    import torch

    layer = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(3):
        layer(torch.ones(8, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.fits("rtx-4090")
def test_a_step_fits_and_its_peak_stays(simulated_gpu, peak_snapshot) -> None:
    step()
    peak_snapshot(simulated_gpu)
