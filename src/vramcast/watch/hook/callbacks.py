"""Callbacks of training frameworks, made when they are asked for: only then is a framework imported."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from vramcast.errors import Unsupported
from vramcast.watch.hook import counters

if TYPE_CHECKING:
    from vramcast.watch.hook.recorder import MemoryRecorder

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
