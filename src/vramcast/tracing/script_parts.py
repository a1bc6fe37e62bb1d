"""What a script is made of, as far as a change of its source has to know: where it makes its optimizer and what it
calls the network there, where it calls the network and backward, and how much one step takes in.

Unmodified scripts: each runs in a process of its own, so the one that asks stays as it was.

The process runs this Python with this environment in this folder, see `child`. Its files, its network and its own
child processes are the script's: only `is_sandboxed` keeps files out, see `environment.overlay` for what that covers.
What a run left behind travels as bytes from that process to the one that asked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final

import msgspec
import torch
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
from vramcast.recordings.stacks import LIBRARY
from vramcast.tracing.origins import Assumption
from vramcast.tracing.packages import OWN
from vramcast.tracing.result import Run

FIRST_INPUTS: Final = ("input_ids", "inputs_embeds", "pixel_values")
"""Of a network that is called by keywords, the one whose first dimension counts samples."""
OFFERS: Final = ("gradient_checkpointing_enable", "set_grad_checkpointing")
"""Methods by which networks of transformers and timm recompute."""
BATCH_NORM: Final = torch.nn.modules.batchnorm._BatchNorm
DEEPEST: Final = 100  # frames that are looked through


class Site(Struct, frozen=True):
    """A line of the user's own that was under way."""

    filename: str
    line: int
    networks: tuple[str, ...] = ()  # names there of modules whose parameters the optimizer steps


class MadeOptimizer(Struct, frozen=True):
    """An optimizer, and the user's lines that led to it, innermost first."""

    class_name: str  # "torch.optim.adamw.AdamW"
    is_fused: bool
    sites: tuple[Site, ...]
    libraries: tuple[str, ...]  # packages between: "transformers", "lightning"


class ScriptParts(Struct, frozen=True):
    """Of one run. Figures are of the last whole step; 0 or "" where nothing was seen."""

    optimizers: tuple[MadeOptimizer, ...] = ()
    network: str = ""  # class of the first outermost module that is trained
    offers: tuple[str, ...] = ()  # of OFFERS
    forward: tuple[Site, ...] = ()  # where it is called, innermost first
    backward: tuple[Site, ...] = ()
    rows: int = 0  # samples of its last forward
    samples: int = 0  # of a step
    tokens: int = 0
    forwards: int = 0  # of a step
    has_autocast: bool = False
    is_compiled: bool = False
    has_batch_norm: bool = False  # whose statistics are those of a micro-batch
    dtypes: tuple[str, ...] = ()  # of its parameters: "float32"


def user_frames() -> Iterator[FrameType]:
    """Frames of files that no package installed, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            return
        if is_users_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def is_users_file(name: str) -> bool:
    """Whether a file is the user's own."""
    return name.endswith(".py") and not name.startswith((OWN, "<")) and LIBRARY.search(name) is None


def packages() -> Iterator[str]:
    """Installed packages under way, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "-packages/" in name:
            yield name.rpartition("-packages/")[2].partition("/")[0].removesuffix(".py")
        frame = frame.f_back


class Watched:
    """Records them."""

    def __init__(self) -> None:
        self._optimizers: list[MadeOptimizer] = []
        self._named: dict[tuple[str, int, str], int] = {}  # a name at a site -> id of its module
        self._first = 0  # id of the optimizer that ends steps
        self._network: torch.nn.Module | None = None
        self._forward: tuple[Site, ...] = ()
        self._backward: tuple[Site, ...] = ()
        self._rows = 0
        self._now = [0, 0, 0]  # samples, tokens, forwards since the last step
        self._last = [0, 0, 0]
        self._has_autocast = False

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is there."""
        parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
        sites = []
        for frame in user_frames():
            named = list(_networks(frame, parameters))
            self._named |= {(frame.f_code.co_filename, frame.f_lineno, name): id(one) for name, one in named}
            sites.append(Site(frame.f_code.co_filename, frame.f_lineno, tuple(name for name, _ in named)))
        kind = type(optimizer)
        self._optimizers.append(MadeOptimizer(
            f"{kind.__module__}.{kind.__qualname__}", bool(optimizer.defaults.get("fused")), tuple(sites),
            tuple(dict.fromkeys(packages())),
        ))

    def entered(self, module: torch.nn.Module, inputs: Any, depth: int) -> None:
        """A forward begins, so many modules deep."""
        if not torch.is_grad_enabled():
            return
        self._has_autocast = self._has_autocast or torch.is_autocast_enabled("cuda")
        if depth > 1:
            return
        if self._network is None and any(one.requires_grad for one in module.parameters()):
            self._network = module
            self._forward = _lines()
        if module is not self._network:
            return
        samples, tokens = _sizes(_first_input(inputs))
        self._rows = samples
        self._now = [self._now[0] + samples, self._now[1] + tokens, self._now[2] + 1]

    def came_back(self) -> None:
        """A backward pass has ended."""
        self._backward = self._backward or _lines()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has done a step."""
        self._first = self._first or id(optimizer)
        if self._first == id(optimizer):
            self._last, self._now = self._now, [0, 0, 0]

    def parts(self) -> ScriptParts:
        network = self._network
        if network is None:
            return ScriptParts(optimizers=tuple(self._optimizers))
        within = list(_unwrapped(network))
        inner = within[-1]
        compiled = any(
            hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in (*within, *network.modules())
        )
        return ScriptParts(
            optimizers=tuple(self._of_network(one, set(map(id, within))) for one in self._optimizers),
            network=type(inner).__name__,
            offers=tuple(name for name in OFFERS if callable(getattr(inner, name, None))), forward=self._forward,
            backward=self._backward, rows=self._rows, samples=self._last[0], tokens=self._last[1],
            forwards=self._last[2], has_autocast=self._has_autocast, is_compiled=compiled,
            has_batch_norm=any(isinstance(one, BATCH_NORM) for one in network.modules()),
            dtypes=tuple(sorted({str(one.dtype).removeprefix("torch.") for one in network.parameters()})),
        )

    def _of_network(self, made: MadeOptimizer, network: set[int]) -> MadeOptimizer:
        """Its sites with the names of that network alone, where any of them is one."""
        sites = []
        for site in made.sites:
            its = [name for name in site.networks if self._named[site.filename, site.line, name] in network]
            sites.append(replace(site, networks=tuple(its)))
        return replace(made, sites=tuple(sites))


def _unwrapped(network: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """A network within what compiles it or shares it among ranks, outermost first."""
    inner: Any = network
    while isinstance(inner, torch.nn.Module):
        yield inner
        inner = getattr(inner, "_orig_mod", None) or (
            getattr(inner, "module", None) if len(list(inner.children())) == 1 else None
        )


def _lines() -> tuple[Site, ...]:
    return tuple(Site(frame.f_code.co_filename, frame.f_lineno) for frame in user_frames())


def _networks(frame: FrameType, parameters: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Names of modules that have any of the parameters, those of an object's own attributes among them."""
    local = dict(frame.f_locals)
    this = local.get("self")
    if this is not None and not isinstance(this, torch.nn.Module):
        local |= {f"self.{name}": value for name, value in getattr(this, "__dict__", {}).items()}
    for name, value in local.items():
        if isinstance(value, torch.nn.Module) and any(id(one) in parameters for one in value.parameters()):
            yield name, value


def _first_input(inputs: Any) -> Any:
    """What the network is called with: by position, or by keyword, which hooks of all modules are not told."""
    if inputs:
        return inputs[0]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    given = frame.f_locals.get("kwargs") if frame is not None else None
    if not given:
        return None
    named = next((given[name] for name in FIRST_INPUTS if given.get(name) is not None), None)
    return next(iter(given.values())) if named is None else named


def _sizes(value: Any) -> tuple[int, int]:
    """Samples and tokens of an input; tokens are whole numbers in rows."""
    if isinstance(value, dict):
        value = next((value[name] for name in FIRST_INPUTS if name in value), next(iter(value.values()), None))
    if isinstance(value, (list, tuple)):
        return (len(value), 0) if value else (0, 0)
    if not isinstance(value, torch.Tensor) or not value.dim():
        return 0, 0
    is_text = value.dim() == 2 and not (value.is_floating_point() or value.is_complex())
    return int(value.shape[0]), int(value.numel()) if is_text else 0


ROOT: Final = Path(__file__).resolve().parents[2]
START: Final = "import sys; sys.path[0] = sys.argv[1]; from vramcast.tracing.child import start; start(sys.argv[2])"
JOB: Final = "job.msgpack"
RECORD: Final = "record.msgpack"
OUTPUT: Final = "output.txt"
ERRORS: Final[dict[str, type[VramcastError]]] = {
    kind.__name__: kind for kind in (InvalidSpec, Unsupported, UnknownName, SourceError, OutOfMemory)
}
MOST_MADE: Final = 8  # files and folders that stand in, each after a start that ended for want of it
ON_HOST: Final = re.compile(r"^(?:.*=|--?(?:use[-_])?)?cpu$|^--?(?:no|disable|without)[-_](?:cuda|gpu)", re.IGNORECASE)
"""Words of a command line that ask for the CPU."""
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
    if _stays_on_host(job, ran) and spent < job.time_limit_s:
        try:
            return run_script(replace(job, is_placed=True, spent_s=spent))
        except VramcastError:
            pass  # what it came to by itself is said
    if ran.error:
        kind = ERRORS.get(ran.error_kind, InvalidSpec)
        if ran.exited and output.strip():
            raise kind("{} after printing: {}", ran.error, last_line(output))
        raise kind(ran.error)
    return replace(ran, output=output)


def _stays_on_host(job: ScriptJob, ran: ScriptRun) -> bool:
    """Whether it calls networks on the CPU alone, and nobody asked for that."""
    is_asked = any(ON_HOST.search(word) for word in job.arguments)
    return not (job.is_placed or is_asked or ran.run.tape.events) and bool(ran.host_forwards)


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
