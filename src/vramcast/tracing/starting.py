"""How a script is started: a file, a module as with `python -m`, text of a notebook or of standard input, a launcher.

A launcher or another command that is written in Python runs here itself, and what it would start in processes of its
own, as torchrun and `accelerate launch` do, runs in this process: one rank of those of the simulation.
[run] torch.distributed.run `main`, launcher/api.py `elastic_launch`: where torchrun, and accelerate for several
processes, end
[acc] accelerate commands/launch.py `simple_launcher`: one process, by subprocess.Popen, its choices in the environment
"""

from __future__ import annotations

import linecache
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from vramcast.domain.trace_job import ScriptJob
from vramcast.tracing.distributed.groups import parse_world


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
