"""CTC takes what ATen's CUDA kernels take."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from vramcast.catalogue.gpus import load_gpu  # noqa: E402
from vramcast.tracing.session import Session  # noqa: E402

STEPS, BATCH, LABELS = 50, 4, 30


def blocks_of(step):
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        step()
    return session


def loss_of(lengths):
    scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
    targets = torch.ones(BATCH, 20, dtype=torch.long, device="cuda")
    steps = torch.full((BATCH,), STEPS, dtype=torch.long, device="cuda")
    return torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, steps, lengths)


def alphas(session):
    return [block.num_bytes for block in session.device.tape.blocks if block.operator == "aten._ctc_loss"][3]


def test_forward_variables_follow_the_longest_known_target():
    session = blocks_of(lambda: loss_of(torch.tensor([3, 7, 5, 2], device="cuda")).backward())
    assert alphas(session) == BATCH * STEPS * (2 * 7 + 1) * 4
    assert not session.simulation.unseen


def test_where_lengths_are_unknown_targets_fill_their_room():
    session = blocks_of(lambda: loss_of(torch.empty(BATCH, dtype=torch.long, device="cuda")).backward())
    assert alphas(session) == BATCH * STEPS * (2 * 20 + 1) * 4
    assert any("20 labels" in each.what for each in session.assumptions)
