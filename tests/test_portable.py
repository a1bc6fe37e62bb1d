"""Everything but tracing can be imported and swept where modules and functions of POSIX are missing, as on Windows."""

import os
import subprocess
import sys

import pytest

from vramcast.errors import SourceError
from vramcast.watch.tool import output_of

WITHOUT = """
import asyncio, concurrent.futures.process, os, pkgutil, subprocess, sys, tempfile, types  # with what they need
locked = []
for name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *given: locked.append(given[1:]))
for name in ("killpg", "sched_getaffinity", "sysconf", "pwrite", "pread", "getuid", "geteuid", "fork", "O_DIRECTORY"):
    vars(os).pop(name)
import vramcast
for found in pkgutil.walk_packages(vramcast.__path__, "vramcast."):
    if "tracing" not in found.name and not found.name.endswith("__main__"):
        try:
            __import__(found.name)
        except ImportError as error:  # a library that is not there
            assert isinstance(error, ModuleNotFoundError) and "halted" not in str(error), (found.name, error)
with tempfile.TemporaryDirectory() as folder:
    for _ in range(2):  # the second time from the journal
        out = os.path.join(folder, "out.csv")
        vramcast.sweep({"rows": [{"command": "train", "model": "llama-3.2-1b", "gpus": "h100"}]}, workers=1, out=out)
    assert b"true" in open(out, "rb").read()
assert locked == [(2, 1)] * 2, locked
"""


def test_nothing_but_tracing_needs_what_posix_has() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tool_that_hangs_is_ended_where_processes_have_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(SourceError, match="no answer within"):
        output_of([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.5)
