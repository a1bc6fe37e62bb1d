"""Reductions of what has no dimensions: 0 and -1 name the only value there is."""

import pytest
import torch

import vramcast


@pytest.mark.parametrize("name", ["logsumexp", "sum", "mean", "amax", "argmax", "cumsum", "softmax", "prod", "std"])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_single_number_is_reduced(name: str, dim: int) -> None:
    with vramcast.simulate("h100-sxm-80gb"):
        assert getattr(torch, name)(torch.ones((), device="cuda"), dim).shape == ()
