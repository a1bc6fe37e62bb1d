"""Values that are known are those of small tensors."""

import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session
from vramcast.tracing.values import LARGEST_KNOWN_INTEGERS


def test_chosen_elements_have_known_places_spread_evenly(running):
    rows, columns = torch.where(torch.empty(2, 3, device="cuda") > 0)
    assert rows.tolist() == [0, 0, 0, 1, 1, 1] and columns.tolist() == [0, 1, 2] * 2
    labels = torch.arange(6, device="cuda")[torch.empty(6, device="cuda") > 0]
    assert labels.tolist() == list(range(6))
    assert LARGEST_KNOWN_INTEGERS >= 90_000  # boxes of an image of a detection model


def test_small_tensors_of_a_simulated_host_can_be_read():
    with Session(None).active():
        assert torch.arange(3).tolist() == [0, 1, 2] and (torch.arange(3) + 1).max().item() == 3


def test_a_truth_value_that_decides_is_enough():
    with Session(load_gpu("a100-sxm4-80gb")).active():
        unknown = torch.empty(8, device="cuda") > 0
        yes, no = torch.ones(8, dtype=torch.bool, device="cuda"), torch.zeros(1, dtype=torch.bool, device="cuda")
        assert (unknown | yes).all().item() is True
        assert torch.logical_or(yes, unknown).all().item() is True
        assert (no & unknown).tolist() == [False] * 8
        assert torch.logical_and(unknown, no).any().item() is False


def test_a_truth_value_that_does_not_decide_tells_nothing(running):
    unknown, no = torch.empty(8, device="cuda") > 0, torch.zeros(8, dtype=torch.bool, device="cuda")
    assert running.simulation.values.of(unknown | no) is None
    assert running.simulation.values.of(unknown & no.logical_not()) is None
