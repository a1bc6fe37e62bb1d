"""`vramcast.trace`, `simulate` and `assert_fits`."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import vramcast  # noqa: E402
from vramcast.errors import InvalidSpec  # noqa: E402
from vramcast.sources.snapshots import read_snapshot  # noqa: E402
from vramcast.units import GIB, MIB  # noqa: E402


def train(steps: int = 2) -> None:
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_under_with_torch_has_a_card_and_afterwards_none() -> None:
    was_available = torch.cuda.is_available()
    with vramcast.simulate("h100-sxm-80gb") as run:
        assert torch.cuda.is_available()
        train()
    assert torch.cuda.is_available() == was_available
    assert run.fits and run.answer.steps == 2
    assert run.peak.allocated_bytes >= 4 * 4 * MIB
    assert sum(entry.num_bytes for entry in run.ledger) == run.peak.device_bytes
    assert run.answer.ledger == run.ledger


def test_the_run_is_written_as_a_recording_with_the_users_lines(tmp_path: Path) -> None:
    with vramcast.simulate("t4") as run:
        train()
    run.save(tmp_path / "run.pickle")
    found = read_snapshot(tmp_path / "run.pickle")
    assert any(frame.filename == __file__ for stack in found.stacks for frame in stack)
    run.answer.write_html(tmp_path / "run.html")
    assert "<html" in (tmp_path / "run.html").read_text()


def test_an_error_inside_leaves_the_block_as_itself() -> None:
    with pytest.raises(ZeroDivisionError), vramcast.simulate("t4"):
        raise ZeroDivisionError
    assert torch.zeros(1).device.type == "cpu"


def test_a_function_is_a_step() -> None:
    made: list[torch.nn.Module] = []

    def step() -> None:
        if not made:
            made.append(torch.nn.Linear(512, 512).to("cuda"))
        made[0](torch.randn(8, 512, device="cuda")).sum().backward()

    answer = vramcast.trace(step, gpu="t4", steps=3)
    assert answer.steps == 3
    assert answer.question["target"] == "step"


def test_a_module_is_copied_and_stays_where_it_is() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU())
    before = [parameter.clone() for parameter in module.parameters()]
    answer = vramcast.trace(module, input="32x1024", gpu="t4")
    assert answer.num_parameters == 1024 * 1024 + 1024
    for parameter, other in zip(module.parameters(), before, strict=True):
        assert parameter.device.type == "cpu" and torch.equal(parameter, other)


def test_names_are_targets() -> None:
    answer = vramcast.trace("torch.nn:Linear", args={"in_features": 8, "out_features": 4}, input="2x8")
    assert answer.to_json().startswith("{")
    assert str(answer).startswith("fits: ")
    assert repr(answer).startswith("<TraceResult fits: ")
    assert "<table" in answer._repr_html_() and "<svg" in answer._repr_html_()


def test_what_does_not_fit_fails_the_assertion_with_the_report() -> None:
    assert vramcast.assert_fits("torch.nn:Linear", args={"in_features": 8, "out_features": 4}, input="2x8").fits

    @vramcast.assert_fits(gpu="t4")
    def takes(size: int) -> int:
        torch.empty(size, device="cuda")
        return size

    assert takes(GIB) == GIB
    with pytest.raises(AssertionError, match=r"CUDA out of memory\. Tried to allocate 80\.00 GiB"):
        takes(20 * GIB)


def test_what_is_no_code_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="cannot be traced"):
        vramcast.trace(3)
    with pytest.raises(InvalidSpec, match="amp"):
        vramcast.trace(train, amp="bf16")
