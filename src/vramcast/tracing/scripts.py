"""Unmodified scripts: each runs in a process of its own, so the one that asks stays as it was.

The process runs this Python with this environment in this folder, see `child`. Its files, its network and its own
child processes are the script's: only `is_sandboxed` keeps files out, see `environment.overlay` for what that covers.
What a run left behind travels as bytes from that process to the one that asked.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import (
    NOTHING,
    InvalidSpec,
    Note,
    OutOfMemory,
    SourceError,
    UnknownName,
    Unsupported,
    VramcastError,
    note_of,
    text_of,
)
from vramcast.tracing.origins import Assumption
from vramcast.tracing.result import Run
from vramcast.tracing.script_parts import ScriptParts

ROOT: Final = Path(__file__).resolve().parents[2]
START: Final = "import sys; sys.path[0] = sys.argv[1]; from vramcast.tracing.child import start; start(sys.argv[2])"
JOB: Final = "job.msgpack"
RECORD: Final = "record.msgpack"
OUTPUT: Final = "output.txt"
ERRORS: Final[dict[str, type[VramcastError]]] = {
    kind.__name__: kind for kind in (InvalidSpec, Unsupported, UnknownName, SourceError, OutOfMemory)
}
MOST_MADE: Final = 8  # files and folders that stand in, each after a start that ended for want of it
GRACE_S: Final = 15  # for a process to end by itself once its time is up or its record is written
LONGEST_LINE: Final = 300  # of the last line that it printed, in a sentence [characters]
LONGEST_OUTPUT: Final = 4000  # of what the script printed that is kept, from its end [characters]


class ScriptRun(Struct, frozen=True, kw_only=True):
    """A script that ran, as far as it had to; what its process leaves behind."""

    run: Run
    num_parameters: int
    steps: int  # optimizer steps
    forwards: int  # of outermost modules, on the card
    backwards: int  # calls of it
    is_training: bool  # it made an optimizer, or its text speaks of training
    host_forwards: int  # on the CPU, which computes them
    assumptions: tuple[Assumption, ...]
    stopped: Note = NOTHING  # why it was stopped before its end, a sentence; "" where it ended by itself
    error: Note = NOTHING  # a sentence; "" where there is none
    error_kind: str = "InvalidSpec"  # name of its class
    missing: str = ""  # a package that the error is for want of, and that has a stand-in
    nearby: str = ""  # folder beside the script with the module that it lacks
    lacking: str = ""  # a file or folder of data that the error is for want of, and that has a stand-in
    is_unlaunched: bool = False  # the line that failed reads what torchrun sets
    exited: bool = False  # the error is that it exited, and what it printed last says why
    output: str = ""  # the end of what it printed
    parts: ScriptParts = ScriptParts()


def run_script(job: ScriptJob) -> ScriptRun:
    """Run a script until its steps repeat.

    Raises: SourceError for a script that cannot be read; one sentence for one that fails: InvalidSpec for its own
        errors, OutOfMemory where it meets the capacity that is enforced, Unsupported for what is not simulated
    """
    if job.text is None and not job.is_module and not Path(job.path).is_file():
        raise SourceError("there is no script {!r}; give the path of a Python file", job.path)
    with tempfile.TemporaryDirectory(prefix="vramcast-") as name:
        folder, started = Path(name), monotonic()
        (folder / JOB).write_bytes(msgspec.msgpack.encode(job, enc_hook=text_of))
        code = _wait(job, folder)
        output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")[-LONGEST_OUTPUT:]
        if not (folder / RECORD).is_file():
            raise _died(job, code, output)
        try:
            ran = msgspec.msgpack.decode((folder / RECORD).read_bytes(), type=ScriptRun, dec_hook=note_of)
        except msgspec.DecodeError as error:
            raise SourceError("what the script's process left behind cannot be read: {}", error) from None
    spent = job.spent_s + monotonic() - started
    if ran.missing and ran.missing not in job.stand_ins and spent < job.time_limit_s:
        return run_script(replace(job, stand_ins=(*job.stand_ins, ran.missing), spent_s=spent))
    if ran.nearby and ran.nearby not in job.folders and spent < job.time_limit_s:
        return run_script(replace(job, folders=(*job.folders, ran.nearby), spent_s=spent))
    if ran.lacking and ran.lacking not in job.made and len(job.made) < MOST_MADE and spent < job.time_limit_s:
        return run_script(replace(job, made=(*job.made, ran.lacking), spent_s=spent))
    if ran.is_unlaunched and not job.is_launched and job.world_size == 1 and spent < job.time_limit_s:
        return run_script(replace(job, is_launched=True, spent_s=spent))
    if ran.error:
        kind = ERRORS.get(ran.error_kind, InvalidSpec)
        if ran.exited and output.strip():
            raise kind("{} after printing: {}", ran.error, last_line(output))
        raise kind(ran.error)
    return replace(ran, output=output)


def _wait(job: ScriptJob, folder: Path) -> int | None:
    """Start the process and wait for its end; its exit code, None where it had to be ended."""
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(ROOT), str(folder)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(job.time_limit_s - job.spent_s + 2 * GRACE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][:LONGEST_LINE]


def _died(job: ScriptJob, code: int | None, output: str) -> Unsupported:
    last = last_line(output) or "nothing was printed"
    if code is None:
        return Unsupported(
            "{} was still running after {} s, in native code; raise --time-limit or give it arguments that make it "
            "shorter", job.path, job.time_limit_s
        )
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    return Unsupported("the process of {} ended {}: {}", job.path, how, last)
