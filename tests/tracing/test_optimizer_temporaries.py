"""What torch's optimizers keep and make in a step, beside the rules that predict them."""

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.program import extent
from vramcast.states.optimizers import optimizer
from vramcast.states.steps import Weight, step_program
from vramcast.tracing.holders import FULL
from vramcast.tracing.session import Session

COUNT, SIDE = 4, 1024

OPTIMIZERS = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=0.1, **how),
    "sgd-momentum": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, **how),
    "rmsprop": torch.optim.RMSprop,
    "rmsprop-momentum": lambda p, **how: torch.optim.RMSprop(p, momentum=0.9, **how),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamw-amsgrad": lambda p, **how: torch.optim.AdamW(p, amsgrad=True, **how),
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "muon": lambda p, **how: torch.optim.Muon(p),
}
KERNELS = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}


def stepped(name, kernel, dtype):
    """Bytes of states, and of temporaries in a later step."""
    with Session(load_gpu("h100-sxm-80gb")).active():
        held = [torch.nn.Parameter(torch.zeros(SIDE, SIDE, device="cuda", dtype=dtype)) for _ in range(COUNT)]
        for weight in held:
            weight.grad = torch.zeros_like(weight)
        held[0].detach() @ held[1].detach()  # cuBLAS takes its workspace
        before = torch.cuda.memory_allocated()
        steps = OPTIMIZERS[name](held, **KERNELS[kernel])
        steps.step()
        states = torch.cuda.memory_allocated() - before
        steps.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps.step()
        return states, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("width", [4, 2])
@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer_keeps_and_makes_what_its_rule_says(name, kernel, width):
    rule = optimizer(name)
    if (kernel == "fused" and not rule.fused) or (name == "muon" and kernel != "loop"):
        pytest.skip("torch has no such form")
    states, made = stepped(name, kernel, torch.float32 if width == 4 else torch.bfloat16)
    weight = Weight("layers", "weight", (SIDE, SIDE), repeats=COUNT, width=width, kind="matrix")
    assert states == pytest.approx(COUNT * rule.state_bytes((SIDE, SIDE), width=width), abs=COUNT * 4096)
    assert made == pytest.approx(extent(step_program([weight], rule, kernel=kernel)).peak, abs=1 << 20)


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
    assert kept == 2 * 30 * 64 * 65 * 4
    assert FULL in notes
