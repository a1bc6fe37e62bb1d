"""CTC takes what ATen's CUDA kernels take."""

import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session

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


def test_targets_on_the_host_are_moved_to_the_card():
    def step():
        scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
        targets = torch.randint(1, LABELS, (17,))
        lengths = torch.tensor([3, 7, 5, 2])
        torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, torch.full((BATCH,), STEPS), lengths).backward()

    assert alphas(blocks_of(step)) == BATCH * STEPS * (2 * 7 + 1) * 4


def test_lengths_on_the_host_are_read_in_inference_mode_too():
    def step():
        with torch.inference_mode():
            scores = torch.randn(STEPS, BATCH, LABELS, device="cuda")
            lengths = torch.full((BATCH,), STEPS), torch.tensor([3, 7, 5, 2])
            torch.nn.functional.ctc_loss(scores, torch.ones(BATCH, 20, dtype=torch.long, device="cuda"), *lengths)

    assert alphas(blocks_of(step)) == BATCH * STEPS * (2 * 7 + 1) * 4
