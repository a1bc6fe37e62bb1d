"""Unmodified scripts: each runs in a process of its own, so the one that asks stays as it was.

The process runs this Python with this environment in this folder, see `child`. Its files, its network and its own
child processes are the script's: only `is_sandboxed` keeps files out, see `environment.overlay` for what that covers.
What a run left behind travels as bytes from that process to the one that asked.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from vramcast.domain.snapshot import Frame
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, OutOfMemory, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.tracing.origins import Assumption
from vramcast.tracing.result import Run
from vramcast.tracing.tape import Aside, Block, Mark, Origin, Tape

KeyT = TypeVar("KeyT")


class TapeRecord(Struct, frozen=True, kw_only=True):
    """A tape, a column a field; texts and origins once each."""

    texts: list[str]
    origins: list[Origin]
    sizes: bytes  # "q"
    streams: bytes  # "q"
    operators: bytes  # "q", index into texts
    kinds: bytes  # "q", index into texts
    names: bytes  # "q", index into texts
    asked: bytes  # "q", index into origins
    events: bytes  # "q"
    marks: list[Mark]
    asides: list[Aside]


class RunRecord(Struct, frozen=True, kw_only=True):
    """A finished run of a script."""

    tape: TapeRecord
    stacks: tuple[tuple[Frame, ...], ...]  # which the tape's origins point into
    unseen: dict[str, tuple[int, int]]
    device: int
    communicators: int
    num_parameters: int
    steps: int
    forwards: int  # on the card
    host_forwards: int
    assumptions: list[Assumption]
    stopped: str = ""  # why it ended before the script did, a sentence
    error: str = ""  # a sentence; "" where there is none
    error_kind: str = "InvalidSpec"  # name of its class
    exited: bool = False  # the error is that it exited, and what it printed last says why


class _Index(Generic[KeyT]):
    """Each different thing once, by the order in which it came."""

    def __init__(self) -> None:
        self.found: dict[KeyT, int] = {}

    def __call__(self, thing: KeyT) -> int:
        return self.found.setdefault(thing, len(self.found))


def pack_tape(tape: Tape) -> TapeRecord:
    """The tape as columns."""
    text, origin = _Index[str](), _Index[Origin]()
    blocks = tape.blocks

    def column(values: Iterable[int]) -> bytes:
        return array("q", values).tobytes()

    columns = {
        "sizes": column(block.num_bytes for block in blocks),
        "streams": column(block.stream for block in blocks),
        "operators": column(text(block.operator) for block in blocks),
        "kinds": column(text(str(block.kind)) for block in blocks),
        "names": column(text(block.name) for block in blocks),
        "asked": column(origin(block.origin) for block in blocks),
    }
    return TapeRecord(
        texts=list(text.found), asides=tape.asides,
        events=tape.events.tobytes(), **columns,
        origins=list(origin.found), marks=tape.marks,
    )


def unpack_tape(record: TapeRecord) -> Tape:
    """The tape of `pack_tape`."""
    tape = Tape()
    texts, origins = record.texts, record.origins
    columns = map(_column, (
        record.sizes, record.streams, record.operators, record.asked, record.kinds, record.names,
    ))
    for index, (size, stream, operator, asked, kind, name) in enumerate(zip(*columns, strict=True)):
        block = Block(index, size, stream, texts[operator], origins[asked])
        block.kind, block.name = texts[kind], texts[name]
        tape.blocks.append(block)
    tape.events = _column(record.events)
    for position, event in enumerate(tape.events):
        if event > 0:
            tape.blocks[event - 1].born = position
        else:
            tape.blocks[-event - 1].died = position
    tape.marks, tape.asides = record.marks, record.asides
    return tape


def read_record(raw: bytes) -> RunRecord:
    """The record in bytes that a process wrote.

    Raises: SourceError
    """
    try:
        return msgspec.msgpack.decode(raw, type=RunRecord)
    except msgspec.DecodeError as error:
        raise SourceError(f"what the script's process left behind cannot be read: {error}") from None


def _column(raw: bytes) -> array[int]:
    values = array("q")
    values.frombytes(raw)
    return values


ROOT: Final = Path(__file__).resolve().parents[2]
START: Final = "import sys; sys.path[0] = sys.argv[1]; from vramcast.tracing.child import start; start(sys.argv[2])"
JOB: Final = "job.msgpack"
RECORD: Final = "record.msgpack"
OUTPUT: Final = "output.txt"
ERRORS: Final[dict[str, type[VramcastError]]] = {
    kind.__name__: kind for kind in (InvalidSpec, Unsupported, UnknownName, SourceError, OutOfMemory)
}
GRACE_S: Final = 15  # for a process to end by itself once its time is up or its record is written
LONGEST_LINE: Final = 300  # of the last line that it printed, in a sentence [characters]
LONGEST_OUTPUT: Final = 4000  # of what the script printed that is kept, from its end [characters]


class ScriptRun(NamedTuple):
    """A script that ran, as far as it had to."""

    run: Run
    num_parameters: int
    steps: int  # optimizer steps
    forwards: int  # of outermost modules, on the card
    host_forwards: int  # on the CPU, which computes them
    assumptions: tuple[Assumption, ...]
    stopped: str  # why it was stopped before its end, a sentence; "" where it ended by itself
    output: str  # the end of what it printed


def run_script(job: ScriptJob) -> ScriptRun:
    """Run a script until its steps repeat.

    Raises: SourceError for a script that cannot be read; one sentence for one that fails: InvalidSpec for its own
        errors, OutOfMemory where it meets the capacity that is enforced, Unsupported for what is not simulated
    """
    script = Path(job.path)
    if not script.is_file():
        raise SourceError(f"there is no script {job.path!r}; give the path of a Python file")
    with tempfile.TemporaryDirectory(prefix="vramcast-") as name:
        folder = Path(name)
        (folder / JOB).write_bytes(msgspec.msgpack.encode(job))
        code = _wait(job, folder)
        output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")[-LONGEST_OUTPUT:]
        if not (folder / RECORD).is_file():
            raise _died(job, code, output)
        record = read_record((folder / RECORD).read_bytes())
    if record.error:
        said = f" after printing: {_last_line(output)}" if record.exited and output.strip() else ""
        raise ERRORS.get(record.error_kind, InvalidSpec)(record.error + said)
    return _script_run(job, record, output)


def _wait(job: ScriptJob, folder: Path) -> int | None:
    """Start the process and wait for its end; its exit code, None where it had to be ended."""
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(ROOT), str(folder)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(job.time_limit_s + 2 * GRACE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][:LONGEST_LINE]


def _died(job: ScriptJob, code: int | None, output: str) -> Unsupported:
    last = _last_line(output) or "nothing was printed"
    if code is None:
        return Unsupported(
            f"{job.path} was still running after {job.time_limit_s} s, in native code; raise --time-limit or give it "
            "arguments that make it shorter"
        )
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    return Unsupported(f"the process of {job.path} ended {how}: {last}")


def _script_run(job: ScriptJob, record: RunRecord, output: str) -> ScriptRun:
    run = Run(
        tape=unpack_tape(record.tape), stacks=record.stacks, unseen=record.unseen, gpu=job.gpu,
        capacity_bytes=job.capacity_bytes or job.gpu.visible_bytes, alloc_conf=job.alloc_conf, device=record.device,
        communicators=record.communicators,
    )
    return ScriptRun(
        run=run, num_parameters=record.num_parameters, steps=record.steps, forwards=record.forwards,
        host_forwards=record.host_forwards, assumptions=tuple(record.assumptions), stopped=record.stopped,
        output=output,
    )
