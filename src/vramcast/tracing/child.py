"""The process of a script: it runs the job in a folder and leaves a record there.

A launcher or another command that is written in Python runs here itself, and what it would start in processes of its
own, as torchrun and `accelerate launch` do, runs in this process: one rank of those of the simulation.
[run] torch.distributed.run `main`, launcher/api.py `elastic_launch`: where torchrun, and accelerate for several
processes, end
[acc] accelerate commands/launch.py `simple_launcher`: one process, by subprocess.Popen, its choices in the environment
"""

from __future__ import annotations

import linecache
import os
import platform
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import torch

from vramcast.allocator import Settings
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, Note, OutOfMemory, Unsupported, VramcastError
from vramcast.question.tracing import read_value
from vramcast.tracing.distributed.groups import parse_world
from vramcast.tracing.environment.made_up import LISTING, lacking, make
from vramcast.tracing.environment.placing import placed
from vramcast.tracing.environment.rows import stood_in
from vramcast.tracing.environment.saving import Absent
from vramcast.tracing.extensions import ASKING
from vramcast.tracing.packages import (
    OWN,
    PROJECT_NEARBY,
    UNREACHED,
    advice,
    built_by,
    folder_nearby,
    named_missing,
    stand_in_for,
)
from vramcast.tracing.script_parts import JOB, LONGEST_LINE, OUTPUT, ROOT
from vramcast.tracing.script_watch import Enough, Watch
from vramcast.tracing.session import Session
from vramcast.tracing.targets import words_of

OF_SIMULATION: Final = re.compile(
    r"cannot be called on meta tensors|convert meta device|not linked with support for|CUDA is not available|NVRTC|"
    r"No CUDA GPUs|not compiled with CUDA|NVIDIA driver|access accelerator device|CUDA_HOME|on device meta\b|"
    r"but got meta\b|SparseMeta|'Meta' backend|NotInstalled"
)
"""What C++ says of tensors without data, or of a build without CUDA, that a script would not hear on the card."""
FETCHES: Final = (
    "it fetches something that does not answer; put it where the script looks first, or trace where the network is: {}"
)
NEVER_TORCHS: Final = (AssertionError, AttributeError, KeyError, NameError)
"""What no kernel raises: out of the simulation itself they say that it cannot run the script."""
RANKS: Final = re.compile(r"\b(?:LOCAL_)?RANK\b|\b(?:LOCAL_)?WORLD_SIZE\b|\bMASTER_(?:ADDR|PORT)\b")
"""What a line says that reads variables which only torchrun sets."""
LAUNCHED: Final = "the script reads what torchrun sets, so it runs as its only rank; -- torchrun ... says how many"
UNKNOWN_MODEL: Final = re.compile(r"Unrecognized model in (\S+?)\. ")
NOT_KNOWN: Final = (
    "it fetches something that does not answer; the catalogue does not have {} either: give the script a folder with "
    "its config.json, or trace where the network is"
)
NO_ENVIRONMENT: Final = (
    "it asks for an environment which this Python does not have ({}); install the package that has it, as "
    "gymnasium[atari] or gymnasium[mujoco]"
)
LONGEST_FETCH: Final = 200  # of what a library says of it [characters]
QUIET: Final = {
    "WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # its threads take a checkpoint's tensors in another order each time
}
"""Loggers that are installed log nothing of a run that did not happen; transformers loads in one order."""
DEEPSPEED: Final = "deepspeed"
NOT_THERE: Final = (
    "it needs {!r}, which is not there; put there what the project's instructions prepare, a few samples of data are "
    "enough"
)
MADE_BY: Final = "it needs {!r}, which is not there, and which {} beside it writes: run that first"
OTHER_VERSION: Final = "{} {} is installed, and the script wants another version of it: {}"
NEEDS_PACKAGE: Final = "it asks for a package which this Python does not have: {}"
STOOD_IN: Final = (
    "data are not there, and what stands in for them ({}) is not as the script reads them ({}); put there what the "
    "project's instructions prepare, a few samples of data are enough"
)
UNBUILT: Final = "it imports {}, which {} compiles: build that first, as the project's instructions say"
OF_MODULE: Final = re.compile(r"module '(?!torch\._C)(\w+)[\w.]*' has no attribute")
"""What Python says of a name that another version of a package has."""
UNPACKED: Final = "values to unpack"  # of a file of tensors that is not there, and whose number nobody knows
INSTALLS: Final = re.compile(
    r"\bpip3? install\b|\b(?:is|are) not (?:currently )?installed\b|\bplease install\b|^'?\w+'? requires (?:either )?'",
    re.IGNORECASE,
)
"""What says that a package is missing, whoever checks that."""
OF_DATA: Final = (AssertionError, IndexError, KeyError, StopIteration, UnicodeError, ValueError, ZeroDivisionError)
"""What comes of data that are not as a script reads them."""
NONE_THERE: Final = "it needs files that are not there: {}"
ITS_PYTHON: Final = "put {} on the path, its Python alone is enough, as compiled modules stand in: {}"
NO_DEEPSPEED: Final = (
    "the script needs DeepSpeed, which cannot be simulated; trace it with FSDP or DDP, or ask `vramcast train "
    "MODEL --engine deepspeed`"
)
DEEPSPEED_MISSING: Final = NO_DEEPSPEED.replace("which ", "which is not installed and ")
NO_MAIN_MEMORY: Final = (
    "this machine's main memory, not the card's, is too small: what the script keeps on the CPU is real here ({}); "
    "--memory-limit says how much it may take"
)
NO_NEIGHBOURS: Final = (
    "stages of a pipeline ask each other which tensors they send, and one simulated rank has nobody to ask; give "
    "PipelineStage input_args and output_args of one micro-batch, torch.empty(..., device='meta', requires_grad=True)"
)


def start(folder: str) -> None:
    main(Path(folder))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the script have nothing left to add


def main(folder: Path) -> None:
    job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=ScriptJob)
    if job.memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory_limit_bytes, job.memory_limit_bytes))
    world = parse_world(size=job.world_size, rank=job.rank)._replace(is_launched=job.is_launched)
    session = Session(
        job.gpu, world=world, settings=Settings.parse(job.alloc_conf),
        sandbox=job.is_sandboxed, values=dict(
            read_value(f"{place}={value}") for place, value in job.values.items()
        ),
        capacity_bytes=_room(job),
    )
    session.simulation.data = job.data
    if job.logs_calls:
        session.simulation.log_calls()
    watch = Watch(job, session, folder)
    _answer_programs(folder, job.gpu.product or job.gpu.name)
    os.environ |= QUIET
    for said in stand_in_for(job.stand_ins, folder):
        session.assumptions.note(said)
    if job.is_launched:
        session.assumptions.note(LAUNCHED)
    for nearby in job.folders:
        session.assumptions.note(Note(PROJECT_NEARBY, nearby))
    with ExitStack() as stack:
        stack.enter_context(session.active(folder))
        for path in job.made:
            make(path, session.overlay, session.simulation, job.path)
        if job.is_placed:
            stack.enter_context(placed(session.simulation))
        watch.start()
        _run(job, watch, lambda error: lacking(session.overlay, error, job.path, _printed(folder)))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _printed(folder: Path) -> str:
    """The last lines so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = folder / OUTPUT
    return output.read_text(encoding="utf-8", errors="replace")[-LONGEST_LINE:] if output.is_file() else ""


def _answer_programs(folder: Path, card: str) -> None:
    """Programs whose output scripts print or read: nvidia-smi where the machine has none, and the size of a terminal
    [kuangliu/pytorch-cifar utils.py], as standard input is none here."""
    place = folder / "programs"
    place.mkdir()
    answers = {"stty": "24 80"} | ({} if shutil.which("nvidia-smi") else {"nvidia-smi": f"a simulated {card}"})
    for name, answer in answers.items():
        program = place / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        program.chmod(0o700)
    os.environ["PATH"] = f"{place}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _room(job: ScriptJob) -> int | None:
    """What the allocator may take, beside the context; None where the script should run on whatever it takes."""
    if not job.enforces_capacity:
        return None
    context = job.gpu.context_bytes or FALLBACK_CONTEXT_BYTES
    return max(0, (job.capacity_bytes or job.gpu.visible_bytes) - context)


def _run(job: ScriptJob, watch: Watch, lacks_data: Callable[[BaseException], str] = lambda _error: "") -> None:
    sys.path += (str(ROOT), *job.folders)  # behind all that the script finds by itself
    try:
        start_script(job)
    except Enough:
        pass
    except SystemExit as error:
        if not watch.goes_on_after(error) and error.code not in (None, 0):
            said = Note("{} exited with {!r}", job.path, error.code)
            watch.write(error=said, exited=True, lacking=lacks_data(error))
    except VramcastError as error:
        if not watch.goes_on_after(error):
            watch.write(error=error.__str__(), kind=type(error))
    except BaseException as error:
        traceback.print_exc()
        if not watch.goes_on_after(error):
            kind, said = _failed(error, job)
            (file, line), lacks = _place(error, job), _missing(error)
            watch.write(
                error=Note("{}{}: {}", file, line, said), kind=kind, missing=named_missing(error),
                nearby=folder_nearby(lacks, Path(file)) if lacks else "",
                lacking=lacks_data(error),
                is_unlaunched=bool(RANKS.search(linecache.getline(file, int(line[1:] or 0)))),
            )
    watch.finish()


def _failed(error: BaseException, job: ScriptJob) -> tuple[type[VramcastError], Note]:
    frames = traceback.extract_tb(error.__traceback__)
    is_missing = isinstance(error, ImportError) and "deepspeed" in str(error).lower()
    if is_missing or any(DEEPSPEED in Path(frame.filename).parts for frame in frames):
        return Unsupported, Note(DEEPSPEED_MISSING if is_missing else NO_DEEPSPEED)
    if type(error).__name__ == "PipeliningMetadataError":  # of torch.distributed.pipelining, which few scripts import
        return Unsupported, Note(NO_NEIGHBOURS)
    if isinstance(error, ValueError) and UNPACKED in str(error) and Absent.last is not None:
        error = Absent.last
    missing = _missing(error)
    if missing in ASKING:
        return InvalidSpec, Note(ITS_PYTHON, missing, str(error))
    if builder := built_by(error):
        return InvalidSpec, Note(UNBUILT, getattr(error, "name", ""), builder)
    if missing and (advised := advice(missing)):
        return InvalidSpec, advised
    if _asks_for_package(error):
        return InvalidSpec, Note(NEEDS_PACKAGE, str(error))
    if isinstance(error, FileNotFoundError):
        missed, writer = str(error.filename or ""), _writer(str(error.filename or ""), job)
        known = Note(MADE_BY, missed, writer) if writer else Note(NOT_THERE, missed)
        return InvalidSpec, known if missed else Note(NONE_THERE, words_of(error))
    if installed := _installed(error):
        return InvalidSpec, Note(OTHER_VERSION, *installed, str(error))
    return _failed_itself(error, frames, job)


def _failed_itself(
    error: BaseException, frames: traceback.StackSummary, job: ScriptJob
) -> tuple[type[VramcastError], Note]:
    """Of an error that is not for want of a package or a file."""
    words = words_of(error) if str(error) or not frames else frames[-1].line or words_of(error)  # of a bare assertion
    said = Note("{}: {}", type(error).__name__, words)
    if isinstance(error, NEVER_TORCHS) and frames and frames[-1].filename.startswith(OWN):
        return Unsupported, said
    if isinstance(error, MemoryError) or re.search("can't allocate memory|Cannot allocate memory", str(error)):
        return Unsupported, Note(NO_MAIN_MEMORY, type(error).__name__)
    if UNREACHED.search(str(error)):
        return InvalidSpec, Note(FETCHES, said[:LONGEST_FETCH])
    if OF_SIMULATION.search(str(error)):
        return Unsupported, Note("the simulated card, not the script, stops here: {}", said)
    if unknown := UNKNOWN_MODEL.search(str(error)):
        return InvalidSpec, Note(NOT_KNOWN, unknown[1])
    if type(error).__name__ in ("NameNotFound", "NamespaceNotFound") and type(error).__module__.startswith("gym"):
        return InvalidSpec, Note(NO_ENVIRONMENT, str(error))
    rows = stood_in()
    stand_ins = [*(Path(path.removeprefix(LISTING)).name for path in job.made), *rows]
    if stand_ins and isinstance(error, (*OF_DATA, AttributeError) if rows else OF_DATA):
        return InvalidSpec, Note(STOOD_IN, ", ".join(dict.fromkeys(stand_ins)), said[:LONGEST_FETCH])
    kind = OutOfMemory if isinstance(error, torch.OutOfMemoryError) else InvalidSpec
    return kind, Note("the script itself failed with {}", said)


def _asks_for_package(error: BaseException) -> bool:
    """Whether it is of who checks what a script requires: it names a package without a module of it being imported."""
    if isinstance(error, ModuleNotFoundError) and not error.name:
        return True
    is_unnamed = isinstance(error, ImportError) and not error.name
    return (is_unnamed or "NotInstalled" in type(error).__name__) and INSTALLS.search(str(error)) is not None


def _writer(missed: str, job: ScriptJob) -> str:
    """The script beside the one that runs which writes a file of that name."""
    named = re.compile(rf"(?:save|dump|open|to_\w+|write\w*)\(.*[\"'/]{re.escape(Path(missed).name)}[\"']")
    script = Path(job.path).resolve()
    for path in sorted(script.parent.glob("*.py")) if missed else ():
        if path != script and named.search(path.read_text(encoding="utf-8", errors="replace")):
            return path.name
    return ""


def _missing(error: BaseException) -> str:
    """The package that an error says nobody has, or that it repeats from the one that caused it."""
    cause: BaseException | None = error
    while cause is not None and str(cause) in str(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return cause.name.partition(".")[0]
        cause = cause.__cause__
    return ""


def _installed(error: BaseException) -> tuple[str, str] | None:
    """Name and version of the package, or of Python, that has no part of the name that was imported or asked for."""
    asked = OF_MODULE.match(str(error)) if isinstance(error, AttributeError) else None
    root = asked[1] if asked else (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if root in sys.stdlib_module_names:
        return "Python", platform.python_version()
    found = packages_distributions().get(root) if root else None
    return (found[0], version(found[0])) if found else None


def _place(error: BaseException, job: ScriptJob) -> tuple[str, str]:
    """File and ":line", the innermost of the user's own that led to an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = (OWN, "<", sys.prefix, sys.base_prefix, str(Path(torch.__file__).parent))
    users = [frame for frame in frames if not frame.filename.startswith(foreign)]
    return (users[-1].filename, f":{users[-1].lineno}") if users else (job.path, "")


def start_script(job: ScriptJob) -> None:
    """Run it as `__main__`, to its end."""
    if job.texts:
        _replace_modules(job.texts)
    if job.is_command:
        _follow_launches(parse_world(size=job.world_size, rank=job.rank).environment())
    if job.text is None:
        run_python(["-m", job.path, *job.arguments] if job.is_module else [job.path, *job.arguments])
        return
    sys.argv = [job.path, *job.arguments]
    sys.path[0] = str(Path(job.path).resolve().parent)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = job.path
    linecache.cache[job.path] = len(job.text), None, job.text.splitlines(keepends=True), job.path
    exec(compile(job.text, job.path, "exec", dont_inherit=True), vars(main))


def _replace_modules(texts: Mapping[str, str]) -> None:
    """Files of modules -> what is imported in their place."""
    loader: Any = SourceFileLoader
    read = loader.get_code

    def get_code(self: Any, name: str) -> Any:
        text = texts.get(str(Path(self.path).resolve()))
        if text is None:
            return read(self, name)
        linecache.cache[self.path] = len(text), None, text.splitlines(keepends=True), self.path
        return compile(text, self.path, "exec", dont_inherit=True)

    loader.get_code = get_code


def run_python(words: Sequence[str]) -> None:
    """What `python WORDS` runs: a file or, behind -m, a module."""
    rest = [*words]
    while rest[0] in ("-u", "-O", "-B"):
        rest.pop(0)
    is_module = rest[0] == "-m"
    sys.argv = rest[is_module:]
    sys.path[0] = str(Path.cwd() if is_module else Path(rest[0]).resolve().parent)
    if is_module:
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(rest[0], run_name="__main__")


def _follow_launches(environment: Mapping[str, str]) -> None:
    """Run what a launcher starts in this process, for as long as it lives; a rank has those variables."""
    launcher: Any = import_module("torch.distributed.launcher.api").elastic_launch
    macros: Any = import_module("torch.distributed.elastic.utils").macros

    def launched(self: Any, *words: Any) -> dict[int, Any]:
        os.environ.update(environment)
        words = tuple(macros.substitute(words, environment["LOCAL_RANK"]))
        if callable(self._entrypoint):
            return {0: self._entrypoint(*words)}
        run_python(words if _is_python(self._entrypoint) else [self._entrypoint, *words])
        return {}

    launcher.__call__ = launched

    popen: Any = subprocess.Popen

    class Process(popen):
        """Of the command line of a Python script: that script, run before this returns."""

        def __init__(self, args: Any, *rest: Any, env: Any = None, **named: Any) -> None:
            self._is_here = isinstance(args, list) and len(args) > 1 and _is_python(args[0]) and _is_script(args[1:])
            if not self._is_here:
                super().__init__(args, *rest, env=env, **named)
                return
            os.environ.update(env or {})
            self.returncode = 0
            run_python(args[1:])

        def wait(self, timeout: float | None = None) -> int:
            return 0 if self._is_here else int(super().wait(timeout))

        def poll(self) -> int | None:
            return 0 if self._is_here else super().poll()

        def __del__(self) -> None:
            if not self._is_here:
                super().__del__()

    subprocess.Popen = Process  # type: ignore[misc]


def _is_python(program: str) -> bool:
    return Path(program).name.startswith("python")


def _is_script(words: Sequence[str]) -> bool:
    program = next((word for word in words if word not in ("-u", "-O", "-B")), "")
    return program == "-m" or program.endswith(".py")
