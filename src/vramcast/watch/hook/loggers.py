"""Predicted beside measured, step by step, for what a training logs to: TensorBoard, W&B, MLflow, Lightning.

memory = vramcast.record_memory("run.sqlite", predicted="answer.json", log=wandb.run)

Callbacks of training frameworks, made when they are asked for: only then is a framework imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from vramcast import report
from vramcast.domain.observation import TorchSample
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.units import GIB
from vramcast.watch.hook import counters

if TYPE_CHECKING:
    from vramcast.watch.hook.recorder import MemoryRecorder

Write = Callable[[dict[str, float], int], None]
"""Takes the figures of a step by name, and the number of that step."""

MEASURED: Final = {
    "allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes", "device": "device_used_bytes",
}
"""Level -> where a step's sample has it; of the device it is what all processes use after the step."""


class PeakLike(Protocol):
    """The three levels of a peak [bytes]."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def device_bytes(self) -> int: ...


class Predicted(Protocol):
    """Whatever has a peak: an answer, or one that --json wrote."""

    @property
    def peak(self) -> PeakLike: ...


def predicted_peak(given: Predicted | str | Path | None) -> PeakLike | None:
    """The peak of an answer, or of the file that --json wrote.

    Raises: SourceError where a file holds none
    """
    if given is None:
        return None
    if isinstance(given, (str, Path)):
        return report.written.compared.read_answer_file(Path(given)).peak
    return given.peak


def figures(sample: TorchSample, predicted: PeakLike | None) -> dict[str, float]:
    """What is logged of a step: each level in GiB as measured and as predicted, and how far the prediction is off.

    The prediction is that of steady steps, so that the first step differs by design. Unknown is absent.

    >>> from vramcast.domain.answer import Peak
    >>> sample = TorchSample(time_s=0, pid=1, gpu_uuid="", step=2, phase="step", peak_allocated_bytes=2 << 30)
    >>> figures(sample, Peak(allocated_bytes=3 << 30, reserved_bytes=4 << 30, device_bytes=5 << 30))
    {'vramcast/allocated_measured_GiB': 2.0, 'vramcast/allocated_predicted_GiB': 3.0, 'vramcast/allocated_error': 0.5}
    """
    found: dict[str, float] = {}
    for level, field in MEASURED.items():
        measured = getattr(sample, field)
        if not measured:
            continue
        found[f"vramcast/{level}_measured_GiB"] = measured / GIB
        if predicted is not None:
            expected = getattr(predicted, f"{level}_bytes")
            found[f"vramcast/{level}_predicted_GiB"] = expected / GIB
            found[f"vramcast/{level}_error"] = expected / measured - 1
    return found


def writer_of(target: Any) -> Write:
    """What writes to a logger, whatever it is called by its makers.

    Args:
        target: a SummaryWriter, `wandb.run`, the module `mlflow`, a logger of Lightning, or a function of figures and
            step

    Raises: InvalidSpec for what nothing can be logged to
    """
    for method, adapter in ADAPTERS.items():
        if hasattr(target, method):
            return adapter(target)
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise InvalidSpec(
        "log={} is nothing to log to; give a SummaryWriter, wandb.run, mlflow, a logger of Lightning, or a function of "
        "figures and step", type(target).__name__
    )


def _scalars(writer: Any) -> Write:
    """[torch] torch/utils/tensorboard/writer.py `add_scalar`."""
    def write(found: dict[str, float], step: int) -> None:
        for name, value in found.items():
            writer.add_scalar(name, value, step)

    return write


def _metrics(module: Any) -> Write:
    """MLflow's `log_metrics` and that of Lightning's loggers."""
    return lambda found, step: module.log_metrics(found, step=step)


def _run(run: Any) -> Write:
    """A run of W&B, or its module. It drops what comes for a step before its own count: the step is our metric."""
    defined: list[Any] = []  # not before the first step: the module takes metrics once a run has begun

    def write(found: dict[str, float], step: int) -> None:
        if not defined:
            defined.append(run.define_metric("vramcast/*", step_metric="vramcast/step"))
        run.log({**found, "vramcast/step": step})

    return write


ADAPTERS: Final[dict[str, Callable[[Any], Write]]] = {
    "add_scalar": _scalars, "log_metrics": _metrics, "define_metric": _run,
}
"""A method that only this kind of logger has -> what writes by it."""


LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")
"""Two names of one library, whose callbacks the other does not take."""


def transformers_callback(recorder: MemoryRecorder) -> Any:
    """A `transformers.TrainerCallback`.

    Raises: Unsupported where transformers is not installed
    """
    base: Any = _imported(("transformers",), "transformers").TrainerCallback

    class MemoryCallback(base):  # type: ignore[misc]
        """Steps of a Trainer, as it tells them."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            recorder.attach(given.get("model"), given.get("optimizer"), framework="transformers")

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            recorder.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            recorder.flush()

    return MemoryCallback()


def lightning_callback(recorder: MemoryRecorder) -> Any:
    """A `lightning.pytorch.Callback`. Lightning runs forward and backward within the optimizer's step, so that phases
    are marked where it says that they end, and nothing is hooked.

    Raises: Unsupported where Lightning is not installed
    """
    base: Any = _imported(LIGHTNING, "lightning").Callback

    class MemoryCallback(base):  # type: ignore[misc]
        """Steps of a Trainer, as it tells them."""

        def __init__(self) -> None:
            self.steps_before = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            recorder.attach(module, trainer.optimizers, phases=False, framework="lightning")
            recorder.log_to(*trainer.loggers)
            self.steps_before = trainer.global_step

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_index: int) -> None:
            recorder.begin_forward()
            recorder.note_batch(counters.shapes(batch))

        def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
            recorder.mark("forward")

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            recorder.mark("backward")

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if trainer.global_step > self.steps_before:
                self.steps_before = trainer.global_step
                recorder.mark("optimizer")
                recorder.step()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            recorder.failed(exception)
            recorder.flush()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            recorder.flush()

    return MemoryCallback()


def _imported(names: tuple[str, ...], package: str) -> ModuleType:
    """The module that the program uses already, else the first that is installed."""
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise Unsupported("a callback for {} needs {}, which is not installed: pip install {}", package, package, package)
