"""Backward allocates what it does on CUDA: gradients meet in place, formulas fill their own zeros."""

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Phase


def allocated_in_backward(loss_of):
    """The operators that allocated, in order, while the loss of a vector on the device ran back."""
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        doubled = x * 2
        loss = loss_of(doubled)
        loss.backward()
        blocks = session.device.tape.blocks
        return [block.operator.split(".")[1] for block in blocks if block.origin.phase is Phase.BACKWARD]


def test_a_gradient_that_only_the_engine_holds_is_added_to_in_place():
    assert "add" not in allocated_in_backward(lambda w: (w.exp() + w.sin()).sum())


def test_a_gradient_that_still_waits_elsewhere_is_not_overwritten():
    def loss_of(w):
        exponential, sine = w.exp(), w.sin()
        # The sum's gradient waits for w and for the exponential while that of the sine arrives at w.
        return ((w + exponential) * w.detach() + sine).sum()

    assert allocated_in_backward(loss_of).count("add") == 1


def test_an_expanded_gradient_is_not_added_to_in_place():
    assert allocated_in_backward(lambda w: (w + w.exp()).sum()).count("add") == 1


@pytest.mark.parametrize("loss_of", [
    lambda w: w.max(dim=-1)[0].sum(),
    lambda w: w.gather(-1, torch.zeros(64, 1, dtype=torch.int64, device="cuda")).sum(),
    lambda w: w.index_select(0, torch.zeros(4, dtype=torch.int64, device="cuda")).sum(),
    lambda w: w[torch.zeros(4, dtype=torch.int64, device="cuda")].sum(),
])
def test_what_was_picked_goes_back_into_one_new_tensor(loss_of):
    operators = allocated_in_backward(loss_of)
    assert {"scatter", "scatter_add", "index_add", "index_put"}.isdisjoint(operators)
    assert sum("zeros" in operator for operator in operators) == 1
