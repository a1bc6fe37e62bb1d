"""When a script has shown what it needs: its steps and forwards counted, the run ended once they repeat."""

from __future__ import annotations

import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec
import torch
from msgspec.structs import replace
from torch.optim.optimizer import register_optimizer_step_post_hook

from vramcast.domain.trace_job import DEFAULT_STEPS, ScriptJob
from vramcast.errors import NOTHING, InvalidSpec, Note, Unsupported, VramcastError, parts_of
from vramcast.tracing.origins import without_start
from vramcast.tracing.packages import own_files
from vramcast.tracing.result import Run
from vramcast.tracing.script_parts import RECORD, ScriptRun, Watched
from vramcast.tracing.session import Session
from vramcast.tracing.tape import BACKWARD, LATER
from vramcast.tracing.workloads import BATCHES, CUT, FAILED, NOT_CUT, STEPS, Loaders
from vramcast.units import format_bytes

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
LEAST_LATER_S: Final = 20  # that what comes after the steps may take, where they took less
BY_BACKWARD: Final = "no optimizer of torch.optim: a call of backward ends a step"


EQUAL: Final = 0.01
"""Steps whose allocations differ by less are the same: one prints its loss, the other does not [share]."""
QUIET_STEPS: Final = 8  # where steps differ, as with batches of any length, so many without a new high are enough
MOST_STEPS: Final = 48  # after so many steps a run ends, whatever they do: it is told
LEAST_GROWTH_BYTES: Final = 1 << 20  # what stays after a step and is no more is not told: losses kept for a log [bytes]


class Step(NamedTuple):
    """One step, seen from its end."""

    requested_bytes: int  # by all allocations since the end of the step before
    held_bytes: int  # allocated at its end
    peak_bytes: int  # highest so far, of the run


class Repetition:
    """The steps of a run, in the order in which they end."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Step] = {}  # by who ends them, as several optimizers do
        self._most = Step(0, 0, 0)
        self._growth: list[int] = []  # of what is held, in a row, without a step that held no more [bytes]
        self._steps = self._quiet = 0
        self._is_same = self._differs = False

    def add(self, who: Hashable, step: Step) -> None:
        before = self._last.get(who)
        self._last[who] = step
        self._steps += 1
        highs = [new > old * (1 + EQUAL) for new, old in zip(step, self._most, strict=True)]
        self._quiet = 0 if any(highs) else self._quiet + 1
        self._most = Step(*map(max, step, self._most))
        if before is None:
            return
        self._is_same = abs(step.requested_bytes - before.requested_bytes) <= EQUAL * before.requested_bytes
        growth = step.held_bytes - before.held_bytes
        self._growth = [*self._growth, growth] if growth >= LEAST_GROWTH_BYTES else []
        # The first step differs by the states that the optimizer makes, the second by the buckets that DDP makes anew.
        self._differs = self._differs or (not self._is_same and self._steps > len(self._last) * 3)

    @property
    def is_steady(self) -> bool:
        """Whether another step would show nothing new."""
        if self._steps >= MOST_STEPS or self._quiet >= QUIET_STEPS or len(self._growth) >= QUIET_STEPS:
            return True
        return self._is_same and not self._differs and not self._growth

    def end_after(self, steps: int) -> Note:
        """Why the run ended there, and what a reader has to know of steps that were not all the same."""
        if len(self._growth) >= QUIET_STEPS:
            growth = format_bytes(max(self._growth))
            return Note(
                "stopped after {} optimizer steps, each of which leaves {} more allocated: a longer run takes more",
                steps, growth
            )
        if self._differs and self._quiet < QUIET_STEPS:
            return Note(
                "stopped after {} optimizer steps, which differ, and the last ones still rose: a longer run may take "
                "more", steps
            )
        if self._differs:
            return Note(
                "stopped after {} optimizer steps, which differ: the last {} brought no new peak", steps, self._quiet
            )
        return Note("stopped after {} optimizer steps", steps)


class Enough(BaseException):
    """The run has shown what it needs."""


class Watch:
    """Counts steps and forwards, and ends the run."""

    def __init__(self, job: ScriptJob, session: Session, folder: Path) -> None:
        self._job, self._session, self._folder = job, session, folder
        self._limit_s = job.time_limit_s - job.spent_s
        self._steps: dict[int, int] = {}  # id of an optimizer -> its steps
        self._forwards = self._host_forwards = self._backwards = self._replays = self._num_parameters = 0
        self._since_peak = self._peak = 0  # forwards and backwards since the peak last rose
        self._held: deque[int] = deque(maxlen=REPEATS)  # what was in use after each of the last forwards
        self._repetition = Repetition()
        self._counted_blocks = [0] * len(session.memory.devices)
        self._has_optimizer = self._is_written = self._counts_forward = False
        self._loaders = Loaders()
        self._watched = Watched()
        self._end_of_steps = NOTHING  # why the steps were enough, once what comes after them runs
        self._later_steps = self._later_forwards = 0

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
            self._watched.made(optimizer)

        torch.optim.Optimizer.__init__ = noted
        torch.autograd.backward = self._followed(torch.autograd.backward, self._after_backward)
        self._loaders.start()
        graph: Any = torch.cuda.CUDAGraph
        graph.replay = self._followed(graph.replay, self._after_replay)
        sys.addaudithook(self._leave)
        signal.signal(signal.SIGALRM, self._out_of_time)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    def write(
        self, *, stopped: Note = NOTHING, error: Note = NOTHING, kind: type[VramcastError] = InvalidSpec,
        exited: bool = False, missing: str = "", nearby: str = "", lacking: str = "", is_unlaunched: bool = False,
    ) -> None:
        """Leave the record of what ran so far; the first one stays."""
        if self._is_written:
            return
        self._is_written = True
        signal.setitimer(signal.ITIMER_REAL, 0)  # which would end this halfway
        stopped = stopped or self._end_of_steps
        session, job = self._session, self._job
        device = session.fullest
        run = Run(
            tape=replace(device.tape, freed_at={}),  # which are of the script's own history
            stacks=tuple(map(without_start, session.origins.stacks.frames())), unseen=session.simulation.unseen,
            gpu=job.gpu, capacity_bytes=job.capacity_bytes or job.gpu.visible_bytes, alloc_conf=job.alloc_conf,
            device=device.torch_device.index, communicators=len(device.communicators),
        )
        ran = ScriptRun(
            run=run, num_parameters=self._num_parameters, steps=self.steps, forwards=self._forwards,
            backwards=self._loaders.backwards, is_training=self._has_optimizer or self._started_to_train,
            host_forwards=self._host_forwards, assumptions=tuple(session.assumptions), stopped=stopped, error=error,
            error_kind=kind.__name__, exited=exited, missing=missing, nearby=nearby, lacking=lacking,
            is_unlaunched=is_unlaunched, parts=self._watched.parts(),
        )
        draft = self._folder / (RECORD + ".part")
        draft.write_bytes(msgspec.msgpack.encode(ran, enc_hook=parts_of))
        draft.rename(self._folder / RECORD)

    def finish(self) -> None:
        """The script came to its end."""
        if self._end_of_steps and not self._is_written:
            self._note_later()
        self.write()

    def _leave(self, event: str, _args: Any) -> None:
        said = OUTSIDE.get(event)
        if said is not None and not self._session.simulation.compiles_for:
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
        if not self._end_of_steps:
            self._watched.entered(module, inputs, len(self._session.origins.modules))
        if len(self._session.origins.modules) == 1:  # the session's own hook came first
            self._counts_forward = self._session.holders.is_on_device(module, inputs)
            if self._counts_forward:
                self._num_parameters = max(self._num_parameters, int(count_parameters(module)))

    def _after_forward(self, module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._session.origins.modules:
            return
        if not self._counts_forward:
            self._host_forwards += 1
            return
        self._forwards += 1
        self._later_forwards += bool(self._end_of_steps) and not torch.is_grad_enabled()
        self._compare_peak()
        self._held.append(sum(device.allocator.requested_bytes for device in self._session.memory.devices))
        if self._job.steps is None and self._keeps_more:
            return
        if self._waits_for_dump(self._since_peak, REPEATS * MOST_UNEQUAL):
            return
        if self._end_of_steps and self._later_forwards and self._since_peak >= REPEATS:
            self._end(self._end_of_steps)
        if self._since_peak >= (self._job.steps or REPEATS) and not (self._has_optimizer or self._will_train):
            self._end(Note(
                "stopped after {} forwards: the last {} brought no new peak", self._forwards, self._since_peak
            ))

    def _after_backward(self) -> None:
        self._loaders.backwards += 1
        self._watched.came_back()
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
            self._end(Note("stopped after {} calls of backward", self._backwards))

    def _after_replay(self) -> None:
        self._replays += 1
        if self._replays >= (self._job.steps or REPEATS):
            self._end(Note("stopped after {} replays of CUDA graphs", self._replays))

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

    @property
    def _started_to_train(self) -> bool:
        """Whether the script alone, as it was started, speaks of training."""
        path = Path(sys.argv[0])
        text = self._job.text or (path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")
        return TRAINS.search(text) is not None

    @cached_property
    def _dumps(self) -> bool:
        """Whether the script, or a module beside it, writes its memory history somewhere."""
        return self._speaks_of(DUMPS)

    def _waits_for_dump(self, steps: int, most: int) -> bool:
        """Whether the run goes on until the script writes the history that it records."""
        return self._job.steps is None and steps < most and self._session.memory.history.is_awaited and self._dumps

    def _speaks_of(self, words: re.Pattern[str]) -> bool:
        if self._job.text is not None and words.search(self._job.text):
            return True
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in own_files(self._job.path))
        return any(map(words.search, texts))

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._end_of_steps:
            self._after_later_step()
            return
        self._watched.stepped(optimizer)
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
            self._go_on(self._repetition.end_after(self.steps))

    def _go_on(self, why: Note) -> None:
        """The steps are enough: end the loops that feed them, so that what comes behind runs, or the run."""
        if not self._loaders.cut():
            self._session.assumptions.note(NOT_CUT)
            self._end(why)
        self._end_of_steps, self._since_peak = why, 0
        self._session.keep_files_out()
        for device in self._session.memory.devices:
            device.tape.mark(LATER)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, min(left, max(LEAST_LATER_S, self._limit_s - left)))

    def _after_later_step(self) -> None:
        """A step of the next epoch is the last; in a loop that none of its loaders ends, some are."""
        self._later_steps += 1
        if self._loaders.has_restarted or self._later_steps >= STEPS:
            self._end(self._end_of_steps)

    def goes_on_after(self, error: BaseException) -> bool:
        """Whether what was asked for had run before a script failed: then the answer stands, and says so."""
        if not self._end_of_steps or isinstance(error, torch.OutOfMemoryError):
            return False
        if not isinstance(error, SystemExit):
            self._session.assumptions.note(Note(FAILED, type(error).__name__, " ".join(str(error).split())[:120]))
        return True

    def _note_later(self) -> None:
        self._session.assumptions.note(Note(CUT, BATCHES) if self._later_forwards else NOT_CUT)

    def _end(self, why: Note) -> None:
        if self._session.memory.history.is_awaited and self._dumps:
            self._session.assumptions.note(NOT_DUMPED)
        if self._end_of_steps:
            self._note_later()
        self.write(stopped=why)
        raise Enough

    def _out_of_time(self, _signal: int, frame: FrameType | None) -> None:
        if self._end_of_steps:
            self._end(self._end_of_steps)
        limit, steps, forwards = self._job.time_limit_s, self.steps, self._forwards
        place = self._session.origins.place()
        far = Note("{} optimizer steps and {} forwards, at {}", steps, forwards, place)
        if steps or (forwards and not (self._has_optimizer or self._started_to_train)):
            self._end(Note("stopped at the time limit of {} s after {}", limit, far))
        self.write(kind=Unsupported, error=(
            Note(
                "{} was still running after {} s: {}; raise --time-limit or give it arguments that make it shorter",
                self._job.path, limit, far
            )
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
