"""The process of a script: it runs the job in a folder and leaves a record there."""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vramcast.allocator import Settings
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES
from vramcast.domain.trace_job import DEFAULT_STEPS, ScriptJob
from vramcast.errors import InvalidSpec, OutOfMemory, Unsupported, VramcastError
from vramcast.question.tracing import read_value
from vramcast.tracing.distributed.world import parse_world
from vramcast.tracing.extensions import ASKING
from vramcast.tracing.failures import words_of
from vramcast.tracing.origins import without_start
from vramcast.tracing.record import RunRecord, pack_tape
from vramcast.tracing.repetition import MOST_STEPS, Repetition, Step
from vramcast.tracing.scripts import JOB, RECORD, ROOT
from vramcast.tracing.session import Session
from vramcast.tracing.tape import BACKWARD

PACKAGE: Final = Path(__file__).parent.parent
MOST_UNEQUAL: Final = 10
"""An optimizer that has done so many times the steps wanted does not wait for the others of the script."""
OUTSIDE: Final = {
    "subprocess.Popen": "a child process of the script is not traced",
    "os.fork": "a child process of the script is not traced",
    "socket.connect": "the script uses the network",
}
"""Audit event -> what is said of it."""
REPEATS: Final = 32
"""Forwards, or replays of graphs, without a new peak after which a script that does not train is thought to repeat."""
LEAST_KEPT_BYTES: Final = 1 << 16
"""So much more after half of these forwards is a cache that grows or outputs that are kept; losses are less [bytes]."""
TRAINS: Final = re.compile(r"\bbackward\(|\boptim\b|optimizer|\.fit\(|Trainer\b")
"""What scripts that will train say somewhere: they may evaluate as long as they like before."""
DUMPS: Final = re.compile(r"_dump_snapshot|memory\._snapshot|memory_snapshot\(")
"""What scripts say that write their memory history; they may take up to MOST_STEPS steps to come to it."""
NOT_DUMPED: Final = (
    "the script records its memory history and was stopped before it writes that; --steps runs further, and --snapshot "
    "writes the history of what was run"
)
NOT_RUN: Final = "what comes after these steps, as an evaluation, is not part of the answer; --steps runs further"
BY_BACKWARD: Final = "no optimizer of torch.optim: a call of backward ends a step"

NEVER_TORCHS: Final = (AssertionError, AttributeError, KeyError, NameError)
"""What no kernel raises: out of the simulation itself they say that it cannot run the script."""
DEEPSPEED: Final = "deepspeed"
ITS_PYTHON: Final = "; put {} on the path, its Python alone is enough: compiled modules stand in"
NO_DEEPSPEED: Final = (
    "the script needs DeepSpeed, which {why}cannot be simulated; trace it with FSDP or DDP, or ask `vramcast train "
    "MODEL --engine deepspeed`"
)
NO_NEIGHBOURS: Final = (
    "stages of a pipeline ask each other which tensors they send, and one simulated rank has nobody to ask; give "
    "PipelineStage input_args and output_args of one micro-batch, torch.empty(..., device='meta', requires_grad=True)"
)


class Enough(BaseException):
    """The run has shown what it needs."""


class Watch:
    """Counts steps and forwards, and ends the run."""

    def __init__(self, job: ScriptJob, session: Session, folder: Path) -> None:
        self._job, self._session, self._folder = job, session, folder
        self._steps: dict[int, int] = {}  # id of an optimizer -> its steps
        self._forwards = self._host_forwards = self._backwards = self._replays = self._num_parameters = 0
        self._since_peak = self._peak = 0  # forwards and backwards since the peak last rose
        self._held: deque[int] = deque(maxlen=REPEATS)  # what was in use after each of the last forwards
        self._repetition = Repetition()
        self._counted_blocks = [0] * len(session.memory.devices)
        self._has_optimizer = self._is_written = self._counts_forward = False

    @property
    def steps(self) -> int:
        """Of the optimizer that did most; calls of backward where there is none."""
        return max(self._steps.values(), default=0 if self._has_optimizer else self._backwards)

    def start(self) -> None:
        """Hook into modules and optimizers, and set the clock."""
        torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        torch.nn.modules.module.register_module_forward_hook(self._after_forward)
        register_optimizer_step_post_hook(self._after_step)
        initialise = torch.optim.Optimizer.__init__

        def noted(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._has_optimizer = True
            initialise(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = noted
        torch.autograd.backward = self._followed(torch.autograd.backward, self._after_backward)
        graph: Any = torch.cuda.CUDAGraph
        graph.replay = self._followed(graph.replay, self._after_replay)
        sys.addaudithook(self._leave)
        signal.signal(signal.SIGALRM, self._out_of_time)
        signal.setitimer(signal.ITIMER_REAL, self._job.time_limit_s)

    def write(
        self, *, stopped: str = "", error: str = "", kind: type[VramcastError] = InvalidSpec, exited: bool = False
    ) -> None:
        """Leave the record of what ran so far; the first one stays."""
        if self._is_written:
            return
        self._is_written = True
        session = self._session
        device = max(session.memory.devices, key=lambda each: each.allocator.peak_allocated_bytes)
        record = RunRecord(
            tape=pack_tape(device.tape), stacks=[
                [(frame.name, frame.filename, frame.line) for frame in without_start(stack)]
                for stack in session.origins.stacks.frames()
            ],
            unseen={name: (each.calls, each.num_bytes) for name, each in session.simulation.unseen.items()},
            device=device.torch_device.index,
            communicators=len(device.communicators), num_parameters=self._num_parameters, steps=self.steps,
            forwards=self._forwards, host_forwards=self._host_forwards, stopped=stopped, error=error,
            error_kind=kind.__name__, exited=exited, assumptions=list(session.assumptions),
        )
        draft = self._folder / (RECORD + ".part")
        draft.write_bytes(msgspec.msgpack.encode(record))
        draft.rename(self._folder / RECORD)

    def _leave(self, event: str, _args: Any) -> None:
        said = OUTSIDE.get(event)
        if said is not None:
            self._session.assumptions.note(said, self._session.origins.place())

    def _followed(self, function: Any, after: Callable[[], None]) -> Any:
        """A function, and what comes after its outermost calls."""
        depth = 0

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                found = function(*args, **kwargs)
            finally:
                depth -= 1
            if not depth:
                after()
            return found

        return call

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if len(self._session.origins.modules) == 1:  # the session's own hook came first
            self._counts_forward = self._session.holders.is_on_device(module, inputs)
            if self._counts_forward:
                self._num_parameters = max(self._num_parameters, count_parameters(module))

    def _after_forward(self, module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._session.origins.modules:
            return
        if not self._counts_forward:
            self._host_forwards += 1
            return
        self._forwards += 1
        self._compare_peak()
        self._held.append(sum(device.allocator.requested_bytes for device in self._session.memory.devices))
        if self._job.steps is None and self._keeps_more:
            return
        if self._waits_for_dump(self._since_peak, REPEATS * MOST_UNEQUAL):
            return
        if self._since_peak >= (self._job.steps or REPEATS) and not (self._has_optimizer or self._will_train):
            self._end(f"stopped after {self._forwards} forwards: the last {self._since_peak} brought no new peak")

    def _after_backward(self) -> None:
        if self._has_optimizer:
            return
        self._backwards += 1
        self._compare_peak()
        for device in self._session.memory.devices:
            device.tape.mark(BACKWARD)
            device.reach()
        wanted = self._job.steps or DEFAULT_STEPS
        if self._waits_for_dump(self._backwards, MOST_STEPS):
            return
        if self._backwards >= wanted and (self._since_peak or self._backwards >= wanted * MOST_UNEQUAL):
            self._session.assumptions.note(BY_BACKWARD)
            self._end(f"stopped after {self._backwards} calls of backward")

    def _after_replay(self) -> None:
        self._replays += 1
        if self._replays >= (self._job.steps or REPEATS):
            self._end(f"stopped after {self._replays} replays of CUDA graphs")

    def _compare_peak(self) -> None:
        peak = sum(device.allocator.peak_allocated_bytes for device in self._session.memory.devices)
        self._since_peak = self._since_peak + 1 if peak <= self._peak else 0
        self._peak = max(peak, self._peak)

    @property
    def _keeps_more(self) -> bool:
        """Whether what stays between forwards still grows: a peak of the first one may be passed later."""
        held = list(self._held)
        older, newer = held[:len(held) // 2], held[len(held) // 2:]
        return bool(older) and max(newer) >= max(older) + LEAST_KEPT_BYTES

    def _step(self) -> Step:
        """What the step that ends now took."""
        requested = 0
        for index, device in enumerate(self._session.memory.devices):
            blocks = device.tape.blocks
            requested += sum(block.num_bytes for block in blocks[self._counted_blocks[index]:])
            self._counted_blocks[index] = len(blocks)
        self._compare_peak()
        held = sum(device.allocator.allocated_bytes for device in self._session.memory.devices)
        return Step(requested, held, self._peak)

    @cached_property
    def _will_train(self) -> bool:
        """Whether the script, or a module beside it, speaks of training."""
        return self._speaks_of(TRAINS)

    @cached_property
    def _dumps(self) -> bool:
        """Whether the script, or a module beside it, writes its memory history somewhere."""
        return self._speaks_of(DUMPS)

    def _waits_for_dump(self, steps: int, most: int) -> bool:
        """Whether the run goes on until the script writes the history that it records."""
        return self._job.steps is None and steps < most and self._session.memory.history.is_awaited and self._dumps

    def _speaks_of(self, words: re.Pattern[str]) -> bool:
        folder = Path(self._job.path).resolve().parent
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        beside = {Path(name) for name in loaded if name and Path(name).parent == folder}
        files = {path for path in (Path(self._job.path), *beside) if path.suffix == ".py" and path.is_file()}
        return any(words.search(path.read_text(encoding="utf-8", errors="replace")) for path in files)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        key = id(optimizer)
        self._steps[key] = self._steps.get(key, 0) + 1
        wanted = self._job.steps or DEFAULT_STEPS
        if self._session.device.stream:
            return  # warms up for a capture, which comes after
        self._repetition.add(key, self._step())
        if min(self._steps.values()) < wanted and self._steps[key] < wanted * MOST_UNEQUAL:
            return
        if self._waits_for_dump(self.steps, MOST_STEPS):
            return
        if self._job.steps or self._repetition.is_steady:
            self._session.assumptions.note(NOT_RUN)
            self._end(self._repetition.end_after(self.steps))

    def _end(self, why: str) -> None:
        if self._session.memory.history.is_awaited and self._dumps:
            self._session.assumptions.note(NOT_DUMPED)
        self.write(stopped=why)
        raise Enough

    def _out_of_time(self, _signal: int, frame: FrameType | None) -> None:
        limit, steps, forwards = self._job.time_limit_s, self.steps, self._forwards
        place = self._session.origins.place()
        far = f"{steps} optimizer steps and {forwards} forwards, at {place}"
        if steps or (forwards and not self._has_optimizer):
            self._end(f"stopped at the time limit of {limit} s after {far}")
        self.write(kind=Unsupported, error=(
            f"{self._job.path} was still running after {limit} s: {far}; raise --time-limit or give it arguments that "
            "make it shorter"
        ))
        raise Enough


def count_parameters(module: torch.nn.Module) -> int:
    """Of the whole module, also where FSDP keeps a rank's share of it only."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrappers = FullyShardedDataParallel.fsdp_modules(module)
    flat = [wrapper._handle.flat_param for wrapper in wrappers if wrapper._handle is not None]
    counted = sum(sum(each._numels) for each in flat)
    within = {id(part) for each in flat for part in (each, *(each._params or ()))}  # what is left of them here
    return counted + sum(each.numel() for each in module.parameters() if id(each) not in within)


def start(folder: str) -> None:
    """All that the process does."""
    main(Path(folder))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the script have nothing left to add


def main(folder: Path) -> None:
    """Run the job."""
    job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=ScriptJob)
    if job.memory_limit_bytes is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (job.memory_limit_bytes, job.memory_limit_bytes))
    session = Session(
        job.gpu, world=parse_world(size=job.world_size, rank=job.rank), settings=Settings.parse(job.alloc_conf),
        sandbox=job.is_sandboxed, values=dict(
            read_value(f"{place}={value}") for place, value in job.values.items()
        ),
        capacity_bytes=_room(job),
    )
    watch = Watch(job, session, folder)
    with ExitStack() as stack:
        stack.enter_context(session.active(folder))
        watch.start()
        _run(job, watch)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _room(job: ScriptJob) -> int | None:
    """What the allocator may take, beside the context; None where the script should run on whatever it takes."""
    if not job.enforces_capacity or job.gpu is None:
        return None
    context = job.gpu.context_bytes or FALLBACK_CONTEXT_BYTES
    return max(0, (job.capacity_bytes or job.gpu.visible_bytes) - context)


def _run(job: ScriptJob, watch: Watch) -> None:
    script = Path(job.path)
    sys.argv = [job.path, *job.arguments]
    sys.path[0] = str(script.resolve().parent)
    sys.path.append(str(ROOT))  # behind all that the script finds by itself
    try:
        runpy.run_path(job.path, run_name="__main__")
    except Enough:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            watch.write(error=f"{job.path} exited with {error.code!r}", exited=True)
    except VramcastError as error:
        watch.write(error=str(error), kind=type(error))
    except BaseException as error:
        traceback.print_exc()
        kind, said = _failed(error)
        watch.write(error=f"{_place(error, job)}: {said}", kind=kind)
    watch.write()


def _failed(error: BaseException) -> tuple[type[VramcastError], str]:
    """Whose failure an exception is, and what went wrong, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    is_missing = isinstance(error, ImportError) and "deepspeed" in str(error).lower()
    if is_missing or any(DEEPSPEED in Path(frame.filename).parts for frame in frames):
        return Unsupported, NO_DEEPSPEED.format(why="is not installed and " if is_missing else "")
    if type(error).__name__ == "PipeliningMetadataError":  # of torch.distributed.pipelining, which few scripts import
        return Unsupported, NO_NEIGHBOURS
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    hint = ITS_PYTHON.format(missing) if missing in ASKING else ""
    said = f"{type(error).__name__}: {words_of(error)}{hint}"
    if isinstance(error, NEVER_TORCHS) and frames and frames[-1].filename.startswith(str(PACKAGE)):
        return Unsupported, said
    kind = OutOfMemory if isinstance(error, torch.OutOfMemoryError) else InvalidSpec
    return kind, f"the script itself failed with {said}"


def _place(error: BaseException, job: ScriptJob) -> str:
    """The innermost line of the user's own files that led to an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = (str(PACKAGE), "<", sys.prefix, sys.base_prefix, str(Path(torch.__file__).parent))
    users = [frame for frame in frames if not frame.filename.startswith(foreign)]
    return f"{users[-1].filename}:{users[-1].lineno}" if users else job.path


