"""The hook inside real training loops on simulated cards: what it records is what the simulation counts."""

import ast
import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramcast  # noqa: E402
from vramcast.catalogue.gpus import load_gpu  # noqa: E402
from vramcast.domain.answer import Peak  # noqa: E402
from vramcast.domain.observation import EventKind, TorchSample  # noqa: E402
from vramcast.sources.snapshots import read_snapshot  # noqa: E402
from vramcast.tracing.extensions.stand_ins import prepare_torchvision  # noqa: E402
from vramcast.tracing.session import Session  # noqa: E402
from vramcast.units import GIB  # noqa: E402
from vramcast.watch.recording import Recording, read_run  # noqa: E402


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random tokens of one length."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(0, 1000, (128,))
        return {"input_ids": ids, "labels": ids}


def perceptron() -> tuple[Any, Any]:
    layers = (torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
    model = torch.nn.Sequential(*layers).cuda()
    return model, torch.optim.AdamW(model.parameters())


def steps(run: Recording, phase: str = "step") -> list[TorchSample]:
    return [sample for sample in run.torch if sample.phase == phase]


def test_what_a_closure_runs_is_not_called_the_optimizer(tmp_path: Path) -> None:
    with vramcast.simulate("h100-sxm-80gb"), vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        model, optimizer = perceptron()
        memory.attach(model, optimizer)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
            memory.step()
    run = read_run(tmp_path / "run.sqlite")
    assert {sample.phase for sample in run.torch} == {"load", "step", "between", "forward", "closure"}


def test_a_plain_loop_is_recorded_as_the_simulation_counts_it(tmp_path: Path) -> None:
    with vramcast.simulate("h100-sxm-80gb") as card, vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        model, optimizer = perceptron()
        memory.attach(model, optimizer)
        for _ in range(3):
            loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()
    run = read_run(tmp_path / "run.sqlite")
    phases = card.answer.fullest.phases
    for sample, phase in zip(steps(run), ("first step", "step", "step"), strict=True):
        assert sample.peak_allocated_bytes == phases[phase].allocated_bytes
        assert sample.peak_reserved_bytes == phases[phase].reserved_bytes
        assert sample.device_used_bytes == phases[phase].device_bytes
        assert sample.step_s is None  # a simulation's time means nothing
    assert steps(run, "load")[0].peak_allocated_bytes == phases["load"].allocated_bytes
    what = run.torch_runs[-1]
    weights = sum(-(-one.numel() * 4 // 512) * 512 for one in model.parameters())
    assert (what.weight_bytes, what.gradient_bytes) == (weights, weights)
    assert what.optimizer_bytes == 2 * weights  # its counts of steps are on the host
    assert (what.model, what.optimizer, what.batch) == ("Sequential", "AdamW", {"0": (256, 1024)})
    assert what.simulated and what.num_parameters == sum(one.numel() for one in model.parameters())


def test_memory_that_runs_out_leaves_a_snapshot_that_replays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "oom.pickle"
    recorder = vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=path)
    with (
        Session(load_gpu("t4"), capacity_bytes=700 << 20).active(), pytest.raises(torch.OutOfMemoryError),
        recorder as memory,
    ):
        model, optimizer = perceptron()
        memory.attach(model, optimizer)
        for size in (10_000, 20_000):
            loss = model(torch.randn(size, 1024, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()
    assert "step 2, forward" in caplog.text
    assert {event.kind for event in read_run(tmp_path / "run.sqlite").events} == {
        EventKind.OUT_OF_MEMORY, EventKind.SNAPSHOT,
    }
    found = vramcast.replay(path).devices[0]
    assert found.num_failures == 1
    assert read_snapshot(path).devices[0].trace.sizes[-1] == 20_000 * 4096 * 4
    said = vramcast.diagnose(path)
    assert said.findings[0].cause.value == "too_big"


def test_a_program_that_tries_less_goes_on_and_its_snapshot_stays(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    recorder = vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=path)
    with Session(load_gpu("t4"), capacity_bytes=64 << 20).active(), recorder as memory:
        kept = []
        for size in (50 << 20, 20 << 20):
            try:
                kept += [torch.empty(10 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                kept.clear()
                assert path.exists()  # written before the exception left torch
            memory.step()
    run = read_run(tmp_path / "run.sqlite")
    assert [sample.num_ooms for sample in steps(run)] == [1, 1]
    assert vramcast.replay(path).devices[0].num_failures == 1


def test_a_card_that_is_asked_for_less_afterwards_replays_to_the_end(tmp_path: Path) -> None:
    with Session(load_gpu("t4"), capacity_bytes=64 << 20).active():
        torch.cuda.memory._record_memory_history()
        kept = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        again = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "run.pickle"))
        del kept, again
    found = vramcast.replay(tmp_path / "run.pickle").devices[0]
    assert found.num_failures == 1
    assert found.replayed.peak_allocated_bytes == 50 << 20


def gpt2() -> Any:
    prepare_torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=1000, n_embd=128, n_layer=2, n_head=4, n_positions=256)
    return transformers.GPT2LMHeadModel(config)


def test_the_trainer_of_transformers_is_recorded_as_the_simulation_counts_it(tmp_path: Path) -> None:
    prepare_torchvision()
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    logged: list[Any] = []
    with vramcast.simulate("h100-sxm-80gb") as card:
        memory = vramcast.record_memory(tmp_path / "run.sqlite", log=lambda *given: logged.append(given))
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=4, bf16=True, report_to=[],
            gradient_accumulation_steps=2, save_strategy="no", disable_tqdm=True,
        )
        transformers.Trainer(
            model=gpt2(), args=arguments, train_dataset=Tokens(), callbacks=[memory.transformers()]
        ).train()
        memory.close()
    run = read_run(tmp_path / "run.sqlite")
    assert [sample.step for sample in steps(run)] == [1, 2, 3]
    assert steps(run)[-1].peak_allocated_bytes == card.peak.allocated_bytes
    assert steps(run)[-1].peak_reserved_bytes == card.peak.reserved_bytes
    assert [step for _, step in logged] == [1, 2, 3]
    assert logged[-1][0]["vramcast/reserved_measured_GiB"] == card.peak.reserved_bytes / GIB
    assert {sample.phase for sample in run.torch} >= {"load", "forward", "backward", "optimizer", "step"}
    what = run.torch_runs[-1]
    assert (what.framework, what.model, what.batch["input_ids"]) == ("transformers", "GPT2LMHeadModel", (4, 128))
    assert what.optimizer_bytes is not None and what.weight_bytes is not None
    assert what.optimizer_bytes >= 2 * (what.gradient_bytes or 0)


@pytest.mark.filterwarnings("ignore")
def test_lightning_is_recorded_as_the_simulation_counts_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(64, 256), torch.randint(0, 10, (64,)))
    logger = pytest.importorskip("lightning.pytorch.loggers").CSVLogger(str(tmp_path), name="", version="")
    predicted = SimpleNamespace(peak=Peak(allocated_bytes=GIB, reserved_bytes=GIB, device_bytes=GIB))
    with vramcast.simulate("h100-sxm-80gb") as card:
        memory = vramcast.record_memory(tmp_path / "run.sqlite", predicted=predicted)
        trainer = lightning.Trainer(
            max_steps=3, accelerator="gpu", devices=1, logger=logger, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[memory.lightning()],
            default_root_dir=str(tmp_path),
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=16))
        memory.close()
    run = read_run(tmp_path / "run.sqlite")
    assert [sample.step for sample in steps(run)] == [1, 2, 3]
    assert steps(run)[-1].peak_allocated_bytes == card.peak.allocated_bytes
    assert steps(run)[-1].peak_reserved_bytes == card.peak.reserved_bytes
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["1", "2", "3"] and rows[-1]["vramcast/allocated_predicted_GiB"] == "1.0"
    assert float(rows[-1]["vramcast/allocated_error"]) == pytest.approx(GIB / card.peak.allocated_bytes - 1)
    what = run.torch_runs[-1]
    assert (what.framework, what.model) == ("lightning", "Module")
    assert what.batch == {"0": (16, 256), "1": (16,)}
    gradients, states = what.gradient_bytes or 0, what.optimizer_bytes or 0
    assert gradients == what.weight_bytes and states >= 2 * gradients


@pytest.mark.filterwarnings("ignore")
def test_lightning_that_runs_out_of_memory_leaves_a_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1024, 1024)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.randn(20_000, 1024))
    with Session(load_gpu("t4"), capacity_bytes=120 << 20).active():
        memory = vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=tmp_path / "oom.pickle")
        trainer = lightning.Trainer(
            max_steps=3, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[memory.lightning()],
            default_root_dir=str(tmp_path),
        )
        with pytest.raises(torch.OutOfMemoryError):
            trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=20_000))
        memory.close()
    assert "vramcast oom --snapshot" in caplog.text
    assert vramcast.replay(tmp_path / "oom.pickle").devices[0].num_failures == 1


def test_the_example_logs_a_prediction_that_holds(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    example = Path(__file__).parents[3] / "examples" / "loggers" / "train.py"
    done = subprocess.run([sys.executable, "-W", "ignore", str(example)], cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    step, _, shown = done.stdout.splitlines()[-1].partition(" ")
    figures = ast.literal_eval(shown)
    assert step == "3" and len(figures) == 9
    assert all(abs(value) < 0.02 for name, value in figures.items() if name.endswith("_error")), figures


def test_a_recorded_run_teaches_the_answer_to_its_own_question(tmp_path: Path) -> None:
    prepare_torchvision()
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    asked = {
        "model": "smollm-135m", "gpus": "1xh100-sxm-80gb", "engine": "huggingface", "seq_len": 128, "micro_batch": 4,
    }
    with vramcast.simulate("h100-sxm-80gb") as card:
        memory = vramcast.record_memory(tmp_path / "run.sqlite")
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=4, bf16=True, report_to=[],
            save_strategy="no", disable_tqdm=True,
        )
        transformers.Trainer(
            model=smollm(), args=arguments, train_dataset=Tokens(), callbacks=[memory.transformers()]
        ).train()
        memory.close()
    saved = tmp_path / "calibration.toml"
    found = vramcast.calibrate(tmp_path / "run.sqlite", save=saved, **asked)
    peak = {one.entry: one for one in found.compared if one.group == "peak"}
    for entry in ("weights", "optimizer"):
        assert peak[entry].measured == pytest.approx(peak[entry].predicted, rel=0.001)
    parts = ("weights", "gradients", "optimizer", "rest")
    assert sum(peak[entry].measured for entry in parts) == peak["level.allocated"].measured == card.peak.allocated_bytes
    assert peak["level.device"].measured == card.peak.device_bytes
    gradients = next(one for one in found.compared if one.entry == "gradients.all")
    assert gradients.measured == gradients.predicted
    again = vramcast.train(calibration=str(saved), **asked)
    assert again.peak.allocated_bytes == pytest.approx(card.peak.allocated_bytes, rel=0.006)
    assert again.peak.device_bytes == pytest.approx(card.peak.device_bytes, rel=0.001)


def smollm() -> Any:
    """The catalogue's smollm-135m, as transformers makes it."""
    import tomllib

    import transformers

    import vramcast.catalogue

    file = Path(vramcast.catalogue.__file__).parent / "models" / "smollm-135m.toml"
    config = transformers.AutoConfig.for_model(**tomllib.loads(file.read_text())["config"])
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def test_hooks_break_no_graph_of_a_compiled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    memory = vramcast.record_memory(tmp_path / "run.sqlite")
    marked: list[str] = []
    monkeypatch.setattr(memory, "mark", marked.append)
    memory.attach(model)
    inside = torch.compile(model.forward, backend="eager", fullgraph=True)
    whole = torch.compile(lambda given: model(given), backend="eager", fullgraph=True)  # raises where a graph breaks
    for call in (inside, whole):
        call(torch.randn(4, 8)).sum().backward()
    assert marked == []
    around = torch.compile(model, backend="eager", fullgraph=True)
    memory.attach(around)
    around(torch.randn(4, 8)).sum().backward()
    assert marked == ["load", "forward"]
    memory.close()
