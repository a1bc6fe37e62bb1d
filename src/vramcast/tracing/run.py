"""A job traced: the session entered, the steps run, the answer read from the tape.

Also code that is at hand in Python: a block under `with`, a function called again and again, a module object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import torch
from msgspec.structs import replace

from vramcast.allocator import Settings
from vramcast.domain.answer import RankAnswer
from vramcast.domain.device import Gpu
from vramcast.domain.snapshot import Frame
from vramcast.domain.trace_job import Input, ScriptJob, Traced, TraceJob
from vramcast.errors import InvalidSpec, Note, Unsupported, VramcastError
from vramcast.recordings.stacks import base_name
from vramcast.tracing.changes import changes_of, changes_of_run
from vramcast.tracing.distributed.groups import parse_world
from vramcast.tracing.origins import Assumption
from vramcast.tracing.packages import OWN
from vramcast.tracing.result import About, Run, needs_of, traced
from vramcast.tracing.script_parts import ScriptRun, last_line, run_script
from vramcast.tracing.session import Session
from vramcast.tracing.targets import Target, find_before, find_target
from vramcast.tracing.workloads import Workload
from vramcast.units import format_bytes

TESTED: Final = (2, 13)
OLDEST: Final = (2, 11)
CATCHES: Final = "the script runs out of memory, catches that and goes on; with memory enough its peak would be {}"


UNTRAINED: Final = (
    "{} came to its end without a step of an optimizer, after {:,} forwards and {:,} backwards on the card; it printed "
    "last: {}; what training takes is not known, what ran takes {}: data that stand in may be too few (--data "
    "rows=COUNT), and where no step is meant --eval answers for what runs"
)


def check_torch() -> tuple[str, ...]:
    """What must be said of the torch that is installed.

    Raises: Unsupported where it is too old
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise Unsupported(
            "torch {} cannot be traced, 2.11 and newer can: pip install 'vramcast[trace]'", torch.__version__
        )
    if version != TESTED:
        return (Note("torch {}: tracing is tested with 2.13", torch.__version__),)
    return ()


def answered(job: TraceJob, target: Target | None = None) -> Traced:
    """The answer to a job, or of a module at hand; where it does not fit, with what would change that.

    Raises: VramcastError of one sentence
    """
    found = trace_job(job, target)
    if found.answer.fits:
        return found
    changes = changes_of(job, found.answer, lambda other: trace_job(other, target).answer)
    return Traced(answer=replace(found.answer, changes=changes), snapshot=found.snapshot)


def trace_job(job: TraceJob, target: Target | None = None) -> Traced:
    """The answer to a job alone.

    Raises: VramcastError of one sentence
    """
    return traced(*ran_job(job, target))


def ran_job(job: TraceJob, target: Target | None = None, *, logs_calls: bool = False) -> tuple[Run, About]:
    """A job run, and what is to be said of it; `logs_calls`: its tape has every call.

    Raises: VramcastError of one sentence
    """
    warnings = check_torch()
    target = target or find_before(job)
    session = Session(
        job.gpu, settings=Settings.parse(job.alloc_conf), world=parse_world(size=job.world_size, rank=job.rank)
    )
    if logs_calls:
        session.simulation.log_calls()
    with session.active():
        workload = Workload(job, target or find_target(job), session)
        workload.run()
    about = About(
        name=job.target, question=question_of(job, workload), num_parameters=workload.num_parameters,
        ranks=job.world_size, assumptions=(*workload.assumptions, *said(session.assumptions)), warnings=warnings,
        samples=workload.batch * job.accumulate * job.world_size,
    )
    found = run_of(session, capacity_bytes=job.capacity_bytes, alloc_conf=job.alloc_conf)
    del workload
    return found, about


def run_of(session: Session, *, capacity_bytes: int | None, alloc_conf: str = "") -> Run:
    """What a session left behind on its fullest device."""
    device = session.fullest
    if capacity_bytes is None:
        capacity_bytes = session.gpu.visible_bytes
    return Run(
        tape=device.tape, stacks=tuple(map(_users, session.origins.stacks.frames())), unseen=session.simulation.unseen,
        gpu=session.gpu, capacity_bytes=capacity_bytes, alloc_conf=alloc_conf,
        device=device.torch_device.index or 0, communicators=len(device.communicators),
    )


def _users(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(takewhile(lambda frame: not frame.filename.startswith(OWN), stack))


def answered_script(job: ScriptJob) -> Traced:
    """The answer to a script; where it does not fit, with what would change that.

    Raises: VramcastError of one sentence; InvalidSpec where nothing ran on the card; Unsupported where it was to train
        and took no step: its peak would be taken for that of training
    """
    ran, about = _ran_script(job)
    found = traced(ran.run, about)
    if found.answer.fits:
        _check_trained(job, ran, found.answer.fullest)
        return found
    again = _tried_again(job, ran)
    if again is not None:
        note = Note(CATCHES, format_bytes(found.answer.peak.device_bytes))
        return traced(again.run, about._replace(
            num_parameters=again.num_parameters, stopped=again.stopped,
            assumptions=(*job.assumptions, note, *_said_of_script(again)),
        ))
    changes = changes_of_run(ran.run, found.answer)
    return Traced(answer=replace(found.answer, changes=changes), snapshot=found.snapshot)


def traced_script(job: ScriptJob) -> tuple[Traced, ScriptRun]:
    """The answer to a script as it runs on memory without end, and what its run left behind.

    Raises: VramcastError of one sentence; see `answered_script`
    """
    ran, about = _ran_script(job)
    found = traced(ran.run, about)
    _check_trained(job, ran, found.answer.fullest)
    return found, ran


def ran_script(job: ScriptJob) -> tuple[Run, About]:
    """A script run, and what is to be said of it.

    Raises: VramcastError of one sentence; see `answered_script`
    """
    ran, about = _ran_script(job)
    _check_trained(job, ran, needs_of(ran.run, about).rank)
    return ran.run, about


def _ran_script(job: ScriptJob) -> tuple[ScriptRun, About]:
    warnings = check_torch()
    ran = run_script(job)
    _check_used(job, ran)
    asked: dict[str, Any] = {
        "target": Path(job.path).name if job.is_command else job.path, "gpu": job.gpu.name,
        "arguments": list(job.arguments) or None,
        "alloc_conf": job.alloc_conf or None,
    }
    if job.world_size > 1:
        asked |= {"world_size": job.world_size, "rank": job.rank}
    about = About(
        name=Path(job.path).name, question={name: value for name, value in asked.items() if value is not None},
        num_parameters=ran.num_parameters, ranks=job.world_size,
        assumptions=(*job.assumptions, *_said_of_script(ran)), warnings=warnings, stopped=ran.stopped,
    )
    return ran, about


def _check_trained(job: ScriptJob, ran: ScriptRun, fullest: RankAnswer) -> None:
    """Refuse what was to train and took no step."""
    if job.is_training and ran.is_training and not (ran.steps or ran.stopped):
        raise Unsupported(
            UNTRAINED, job.path, ran.forwards, ran.backwards, last_line(ran.output) or "nothing",
            format_bytes(fullest.needed_bytes)
        )


def _check_used(job: ScriptJob, ran: ScriptRun) -> None:
    """Refuse what took nothing of the card: a file that only defines a model, a script that stays on the CPU."""
    if ran.run.tape.events:
        return
    path = Path(job.path.replace(".", "/") if job.is_module else job.path)
    parts = (path.stem,) if path.is_absolute() or ".." in path.parts else path.with_suffix("").parts
    module = ".".join(parts)
    if ran.host_forwards or ran.steps:
        raise InvalidSpec(
            "{} computes on the CPU alone and takes nothing of the card; move its model and data to the card, or name "
            "what builds the model, as {}:build", job.path, module
        )
    raise InvalidSpec(
        "nothing of {} ran on the card; if it defines a model, name what builds it, as {}:build, and give --input; if "
        "it is a script, it must call its training itself", job.path, module
    )


def _tried_again(job: ScriptJob, ran: ScriptRun) -> ScriptRun | None:
    """The run of a script that catches that memory runs out and then gets as far; None of any other.

    What it writes was written by the first run.
    """
    if job.enforces_capacity:
        return None
    try:
        again = run_script(replace(job, enforces_capacity=True, is_sandboxed=True))
    except VramcastError:
        return None
    if again.steps < ran.steps or again.forwards < min(1, ran.forwards):
        return None
    return again


def said(assumptions: Iterable[Assumption]) -> Iterator[str]:
    """What a run assumed where tensors have no data, a line each."""
    for one in assumptions:
        times = Note("{}, {:,} times", one.what, one.count) if one.count > 1 else one.what
        yield Note("{} ({})", times, base_name(one.place)) if one.place else times


def _said_of_script(ran: ScriptRun) -> Iterator[str]:
    """The same of a script, and how to give it what data would be."""
    yield from said(ran.assumptions)
    place = next((base_name(one.place) for one in ran.assumptions if one.can_be_given), "")
    if place:
        yield (
            Note(
                "what data decides above can be given by its line: --value {}=..., a value, or of elements their "
                "share (0.5) or number", place
            )
        )


def question_of(job: TraceJob, workload: Workload) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "target": job.target, "gpu": job.gpu.name,
        "inputs": [written(one) for one in workload.described.inputs], "batch": workload.batch,
        "seq_len": workload.seq_len if job.seq_len or workload.seq_len > 1 else None,
        "mode": "train" if job.is_training else "eval", "steps": job.steps, "arguments": job.arguments or None,
        "amp": job.amp or None, "dtype": job.dtype or None, "alloc_conf": job.alloc_conf or None,
        "checkpoint": list(job.checkpoint) or None, "parallel": job.parallel or None,
    }
    if job.is_training:
        asked |= {"optimizer": job.optimizer, "accumulate": job.accumulate, "zero_grad": job.zero_grad}
        asked["loss"] = job.loss or None
    if job.world_size > 1:
        asked |= {"world_size": job.world_size, "rank": job.rank}
    return {name: value for name, value in asked.items() if value is not None}


def written(one: Input) -> str:
    name, dtype = f"{one.name}=" if one.name else "", f":{one.dtype}" if one.dtype else ""
    return f"{name}{'x'.join(map(str, one.dims)) or 'scalar'}{dtype}"


class Simulated:
    """A simulated card for as long as it is entered."""

    def __init__(self, gpu: Gpu, *, capacity_bytes: int | None, alloc_conf: str, what: str) -> None:
        self._warnings = check_torch()
        self._session = Session(gpu, settings=Settings.parse(alloc_conf))
        self._capacity_bytes, self._alloc_conf, self._what = capacity_bytes, alloc_conf, what
        self._stack = ExitStack()

    def start(self) -> None:
        """torch runs on the card from now on."""
        self._stack.enter_context(self._session.active())

    def stop(self) -> None:
        """torch is as it was."""
        self._stack.close()

    def mark_step(self) -> None:
        """A step ends here; the steps of optimizers mark themselves."""
        self._session.memory.mark_step()

    @property
    def num_events(self) -> int:
        return len(self._session.device.tape.events)

    def traced(self) -> Traced:
        session = self._session
        asked: dict[str, Any] = {"target": self._what, "gpu": session.gpu.name}
        if self._alloc_conf:
            asked["alloc_conf"] = self._alloc_conf
        about = About(
            name=self._what, question=asked, num_parameters=0, assumptions=tuple(said(session.assumptions)),
            warnings=self._warnings,
        )
        return traced(run_of(session, capacity_bytes=self._capacity_bytes, alloc_conf=self._alloc_conf), about)


def run_steps(step: Callable[[], Any], card: Simulated, *, steps: int) -> Traced:
    """A function called so often, on a card not entered yet; it builds its module when first called or has one."""
    card.start()
    try:
        for _ in range(steps):
            step()
            card.mark_step()
    finally:
        card.stop()
    return card.traced()


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy without the data of its large tensors, so that the user's own stays where it is; within a session."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        blank = torch.empty_like(parameter, device="cpu", requires_grad=False)
        memo[id(parameter)] = torch.nn.Parameter(blank, requires_grad=parameter.requires_grad)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InvalidSpec(
            "{} cannot be copied ({}: {}); give a function that builds it",
            type(module).__name__, type(error).__name__, str(error)[:120]
        ) from error
