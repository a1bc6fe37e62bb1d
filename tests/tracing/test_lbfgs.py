"""LBFGS is traced with the history that it may keep."""


import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.holders import FULL
from vramcast.tracing.session import Session

PARAMETERS = 64 * 64 + 64


def state_bytes(history_size, steps=2):
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.LBFGS(model.parameters(), history_size=history_size, max_iter=5)
        x = torch.randn(8, 64, device="cuda")

        def closure():
            optimizer.zero_grad()
            loss = model(x).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)
        blocks = session.device.tape.blocks
        kept = sum(block.num_bytes for block in blocks if block.died is None and "old_" in block.name)
        notes = [assumption.what for assumption in session.assumptions]
    return kept, notes


def test_history_is_full_from_the_second_step_on():
    kept, notes = state_bytes(30)
    assert kept == 2 * 30 * PARAMETERS * 4
    assert FULL in notes
