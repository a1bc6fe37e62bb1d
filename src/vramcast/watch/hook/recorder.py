"""`vramcast.record_memory`: what one training process tells of itself, step by step."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from msgspec.structs import replace

from vramcast.domain.observation import Event, EventKind, RunInfo, TorchRun, TorchSample
from vramcast.errors import InvalidSpec
from vramcast.report.messages import words_here
from vramcast.watch.hook import counters, writer
from vramcast.watch.hook.counters import Place
from vramcast.watch.hook.loggers import Predicted, figures, predicted_peak, writer_of
from vramcast.watch.hook.writer import Writer

AFTER: Final = {
    "load": "forward", "between": "forward", "forward": "backward", "backward": "optimizer", "optimizer": "forward",
    "closure": "forward",
}
"""Phase that ended -> the one that runs then."""
CLOSURE: Final = "closure"
"""What an optimizer ran after the forward in its closure: backward and step, which nothing tells apart."""
COUNTED_STEPS: Final = 2
"""Steps in which gradients and states are counted: an optimizer makes its states in the first ones."""
MOST_SNAPSHOTS: Final = 3
"""Libraries that try and catch (kernel searches, batch size finders) can run out of memory over and over."""
LAST_WORDS_S: Final = 10.0
"""How long the end of a run waits for its recording."""

MethodT = TypeVar("MethodT", bound=Callable[..., None])

_log: Final = logging.getLogger("vramcast")


def _harmless(method: MethodT) -> MethodT:
    """The method, which never lets training fail: an error is said once and ends the recording."""

    @wraps(method)
    def guarded(self: MemoryRecorder, *args: Any, **kwargs: Any) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.broken = True
            self.say("hook.broken", path=self.path, why=f"{type(error).__name__}: {error}")

    return cast(MethodT, guarded)


class MemoryRecorder:
    """Records torch's counters once a step. Use it with `with`, or through a callback of a framework."""

    def __init__(
        self, path: str | Path, *, snapshot_at_oom: str | Path | None = None, history: bool | None = None,
        reset_peaks: bool = True, device: int | None = None, predicted: Predicted | str | Path | None = None,
        log: Any = None,
    ) -> None:
        """Nothing is recorded yet; see `record_memory`."""
        names = (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1))  # as torchrun and its kin set them
        self.rank, self.local_rank, self.world_size = (int(os.environ.get(name) or usual) for name, usual in names)
        self.path = self._own(Path(path))
        self.snapshot_at_oom = None if snapshot_at_oom is None else self._own(Path(snapshot_at_oom))
        self.broken = False
        self.step_count = 0
        self._history = history if history is not None else snapshot_at_oom is not None
        self._reset_peaks, self._device = reset_peaks, device
        self._predicted = predicted_peak(predicted)
        self._loggers = [] if log is None else [writer_of(log)]
        self._place: Place | None = None
        self._writer: Writer | None = None
        self._phases: dict[str, TorchSample] = {}  # of the step that runs
        self._running = "load"
        self._step_began: float | None = None
        self._run: TorchRun | None = None
        self._model: Any = None
        self._optimizers: tuple[Any, ...] = ()
        self._handles: list[Any] = []
        self._snapshots = 0
        self._snapshot_step: int | None = None  # in which the last one was written
        self._stop_history = False
        self._told: BaseException | None = None

    def _own(self, path: Path) -> Path:
        """A file for this rank alone: ranks of several machines cannot share one."""
        return path if self.world_size == 1 else path.with_name(f"{path.stem}.rank{self.rank}{path.suffix}")

    def say(self, key: str, **values: Any) -> None:
        """One sentence on standard error, or where the program sends its log."""
        _log.warning(words_here()(key, **values))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.failed(error)
        self.close()

    @_harmless
    def start(self) -> None:
        """Begin to record; once is enough."""
        if self._writer is not None:
            return
        info = RunInfo(
            started_s=time.time(), host=socket.gethostname(), writer="hook",
            versions=counters.versions(), command=" ".join(sys.argv)[:512],
        )
        self._writer = Writer(self.path, info, self.say)
        atexit.register(self.close)
        writer.listen(self)
        if self._history:
            self._stop_history = writer.record_history()

    @_harmless
    def attach(self, model: Any = None, optimizer: Any = None, *, phases: bool = True, framework: str = "") -> None:
        """Follow a model and its optimizer: their bytes are counted, and each phase of a step has a sample of its own.

        Args:
            model: a torch.nn.Module; the one whose forward is called
            optimizer: a torch.optim.Optimizer, or several
            phases: whether to hook them; False where `mark` is called instead
            framework: that calls this
        """
        self.start()
        self._unhook()
        given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._model, self._optimizers = model, tuple(counters.plain_optimizer(one) for one in given if one is not None)
        optimizers = ", ".join(type(one).__name__ for one in self._optimizers)
        self._run = replace(self._unknown(), framework=framework, optimizer=optimizers)
        if phases:
            self._hook()

    def _hook(self) -> None:
        if self._model is not None:
            self._handles.append(self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._handles.append(self._model.register_forward_hook(self._after_forward))
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(lambda *_: self._before_optimizer()))
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self._after_optimizer()))

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_optimizer(self) -> None:
        """What ran since the forward was the backward; where no forward ran, a closure will run both inside."""
        if self._model is None or self._running == "backward":
            self.mark("backward")

    def _after_optimizer(self) -> None:
        self.mark("optimizer" if self._running == "optimizer" else CLOSURE)

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        if not counters.compiling() and module.training:
            self.begin_forward()
            self.note_batch({**counters.shapes(args), **counters.shapes(kwargs)})

    def _after_forward(self, module: Any, *_: Any) -> None:
        if not counters.compiling() and module.training:
            self.mark("forward")

    def begin_forward(self) -> None:
        """A forward in training begins: what ran since the last mark was loading, a backward that only added to the
        gradients, or, between two steps, an evaluation, which is no part of either."""
        self.mark("between" if self._running == "forward" else self._running)

    @_harmless
    def note_batch(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Remember the largest batch."""
        if self._run is not None and counters.elements(shapes) > counters.elements(self._run.batch):
            self._run = replace(self._run, batch=shapes)

    @_harmless
    def mark(self, phase: str) -> None:
        """What ran since the last mark was this phase: "load", "forward", "backward", "optimizer" or "between" steps.

        Of a phase that runs several times in a step (gradient accumulation) the highest peak is kept.
        """
        place = self._placed()
        if place is None or not self._reset_peaks:
            return
        sample = counters.read(place, time_s=time.time(), step=self.step_count + (phase != "load"), phase=phase)
        counters.forget_peaks(place)
        self._running = AFTER.get(phase, self._running)
        if phase == "load":
            self._step_began = time.perf_counter()
            self._put(sample)
            return
        self._phases[phase] = counters.higher(self._phases.get(phase), sample)
        is_counted = self.step_count < COUNTED_STEPS and phase == "backward"
        if is_counted and self._model is not None and self._run is not None:
            held = counters.held_bytes(counters.gradients(self._model), set())
            self._run = replace(self._run, gradient_bytes=held)

    @_harmless
    def step(self) -> None:
        """An optimizer step ends here."""
        self.start()
        place = self._placed()
        self.step_count += 1
        if place is None or self._writer is None:
            return
        now = time.perf_counter()
        sample = counters.read(place, time_s=time.time(), step=self.step_count, phase="step")
        for phase, part in self._phases.items():
            sample = sample if phase == "between" else counters.higher(sample, part)
            self._put(part)
        measured_s = None if self._step_began is None or place.simulated else now - self._step_began
        self._put(replace(sample, step_s=measured_s))
        self._log(sample)
        if self.step_count <= COUNTED_STEPS:
            self._count(place)
        if self._reset_peaks:
            counters.forget_peaks(place)
        self._phases, self._running = {}, "forward"
        self._step_began = time.perf_counter()

    def _log(self, sample: TorchSample) -> None:
        """Write the step beside its prediction; a logger that fails is left alone from then on."""
        try:
            for write in self._loggers if self.rank == 0 else ():
                write(figures(sample, self._predicted), sample.step)
        except Exception as error:  # of a server that is away, a disk that is full: training goes on
            self._loggers = []
            self.say("hook.no_log", why=f"{type(error).__name__}: {error}")

    def log_to(self, *loggers: Any) -> None:
        """Log to these as well where a prediction was given and nothing to log to."""
        if self._predicted is not None and not self._loggers:
            self._loggers = [writer_of(one) for one in loggers]

    def _count(self, place: Place) -> None:
        """What the run is, with what its tensors hold by now."""
        run = replace(
            self._run or self._unknown(), time_s=time.time(), gpu_uuid=place.gpu_uuid, gpu=place.gpu,
            device=place.device, simulated=place.simulated,
        )
        if self._model is not None:
            seen: set[int] = set()
            number, trainable, dtypes = counters.counts(self._model)
            run = replace(
                run, model=type(counters.plain_model(self._model)).__name__, num_parameters=number,
                num_trainable=trainable, dtypes=dtypes,
                weight_bytes=counters.held_bytes(counters.weights(self._model), seen),
            )
            if self._optimizers:
                run = replace(run, optimizer_bytes=counters.held_bytes(counters.states(self._optimizers), seen))
        self._run = run
        self._put(run)

    def _unknown(self) -> TorchRun:
        return TorchRun(
            time_s=time.time(), pid=os.getpid(), gpu_uuid="", gpu="", rank=self.rank, world_size=self.world_size
        )

    def _placed(self) -> Place | None:
        """Where this process computes, once it uses a card at all."""
        if self._place is None and counters.ready():
            device = self._device if self._device is not None else counters.device_of(self._model)
            self._place = counters.place_of(device, os.getpid(), (self.rank, self.local_rank, self.world_size))
        return self._place

    def _put(self, noun: TorchSample | TorchRun | Event) -> None:
        if self._writer is not None:
            self._writer.put(noun)

    @_harmless
    def ran_out(self) -> None:
        """The allocator is about to raise: write the snapshot while everything lives."""
        if self.snapshot_at_oom is None or self._snapshots >= MOST_SNAPSHOTS:
            return
        self._snapshots += 1
        self._snapshot_step = self.step_count
        writer.save_snapshot(self.snapshot_at_oom)

    @_harmless
    def failed(self, error: BaseException) -> None:
        """Training ends by this exception; of one that is about memory, say where and what tells why."""
        if error is self._told or not writer.is_out_of_memory(error):
            return
        self._told = error
        where = {"step": self.step_count + 1, "phase": self._running}
        self._event(EventKind.OUT_OF_MEMORY, str(error).partition("\n")[0], {"step": float(self.step_count + 1)})
        if self.snapshot_at_oom is None:
            self.say("hook.out_of_memory", **where)
            return
        try:
            if self._snapshot_step != self.step_count:
                writer.save_snapshot(self.snapshot_at_oom)
        except Exception as failure:  # whatever it is, the user's own error must come through
            self.say("hook.no_snapshot", path=self.snapshot_at_oom, why=failure, **where)
            return
        self._event(EventKind.SNAPSHOT, str(self.snapshot_at_oom), {})
        self.say("hook.snapshot", path=self.snapshot_at_oom, **where)

    def _event(self, kind: EventKind, text: str, numbers: dict[str, float]) -> None:
        place = self._placed()
        self._put(Event(
            time_s=time.time(), kind=kind, gpu_uuid=place.gpu_uuid if place else "", pid=os.getpid(), text=text,
            numbers=numbers,
        ))

    def flush(self) -> bool:
        """Whether all that was recorded is in the file, waited for no longer than some seconds."""
        return self._writer is not None and self._writer.flush(LAST_WORDS_S)

    def close(self) -> None:
        """Write what is left, take the hooks off; what was started again later goes on in the same file."""
        written_by, self._writer = self._writer, None
        if written_by is None:
            return
        self._unhook()
        writer.leave(self)
        atexit.unregister(self.close)
        if self._stop_history:
            self._stop_history = False
            with suppress(Exception):  # a card that is lost fails here, too
                writer.stop_history()
        if (self.step_count == 0 or self._place is None) and self._told is None:
            self.say("hook.no_steps" if self._place else "hook.no_card", path=self.path)
        written_by.close(LAST_WORDS_S)

    def transformers(self) -> Any:
        """A callback for the Trainer of transformers: `Trainer(callbacks=[recorder.transformers()])`."""
        from vramcast.watch.hook.loggers import transformers_callback

        return transformers_callback(self)

    def lightning(self) -> Any:
        """A callback for Lightning: `Trainer(callbacks=[recorder.lightning()])`."""
        from vramcast.watch.hook.loggers import lightning_callback

        return lightning_callback(self)


def record_memory(
    path: str | Path, *, snapshot_at_oom: str | Path | None = None, history: bool | None = None,
    reset_peaks: bool = True, device: int | None = None, predicted: Predicted | str | Path | None = None,
    log: Any = None,
) -> MemoryRecorder:
    """Record torch's own counters once a step, for `vramcast calibrate` and whoever reads the file.

        with vramcast.record_memory("run.sqlite", snapshot_at_oom="oom.pickle") as memory:
            memory.attach(model, optimizer)
            for batch in loader:
                ...
                optimizer.step()
                memory.step()

    Args:
        path: a SQLite file; several processes of torchrun write run.rank0.sqlite, run.rank1.sqlite ...
        snapshot_at_oom: where torch's memory snapshot goes when memory runs out
        history: let torch record every allocation with its stack, some 2 us each; by default with a snapshot
        reset_peaks: begin torch's peak counters anew at each phase, so that a peak belongs to its phase; False where
            the program reads them itself, and peaks are then since the start
        device: of torch; by default that of the model, or the current one
        predicted: an answer, as `vramcast.train` gives it, or the file that --json wrote; it is logged beside each step
        log: what each step is logged to: a SummaryWriter, wandb.run, mlflow, a logger of Lightning, or a function of
            figures and step; the Trainer of Lightning has its own

    Raises: InvalidSpec for a history without a snapshot to go to, and for what nothing can be logged to
    """
    if history and snapshot_at_oom is None:
        raise InvalidSpec("history=True records for a snapshot; give snapshot_at_oom, for example oom.pickle")
    return MemoryRecorder(
        path, snapshot_at_oom=snapshot_at_oom, history=history, reset_peaks=reset_peaks, device=device,
        predicted=predicted, log=log,
    )
