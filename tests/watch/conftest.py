"""`vramcast watch` on a machine that has GPUs: NVML's library is replaced by one that a file of text drives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src"
SOON_S = 300.0  # on a machine that is busy with other tests


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the fake libnvidia-ml.so.1."""
    pytest.importorskip("pynvml")
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", HERE / "fake_nvml.c"], check=True, timeout=60
    )
    return folder


class Machine:
    """A machine with the cards of a scenario, and what is run on it."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.scenario = folder / "scenario"
        self.tools = folder / "bin"  # all that PATH holds: no tool of another vendor is found by chance
        self.tools.mkdir()
        self.environment = os.environ | {
            "FAKE_NVML": str(self.scenario), "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(SOURCES),
            "PATH": str(self.tools), "LANG": "C.UTF-8", "PYTHONUTF8": "1",
        }
        self.environment.pop("LC_ALL", None)
        self.running: list[subprocess.Popen[str]] = []

    def has(self, *lines: str) -> Machine:
        """The scenario: see fake_nvml.c."""
        self.scenario.write_text("\n".join(lines) + "\n")
        return self

    def start(self, *arguments: str, **how: Any) -> subprocess.Popen[str]:
        """`vramcast watch` in the background."""
        process = subprocess.Popen(
            [sys.executable, "-m", "vramcast", "watch", *arguments], env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
        )
        self.running.append(process)
        return process

    def start_on(self, terminal: int, *arguments: str) -> subprocess.Popen[str]:
        """`vramcast watch` on a terminal."""
        process = subprocess.Popen(
            [sys.executable, "-m", "vramcast", "watch", *arguments], env=self.environment | {"TERM": "xterm-256color"},
            cwd=self.folder, text=True, stdin=terminal, stdout=terminal, stderr=terminal,
        )
        self.running.append(process)
        return process

    def watch(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """`vramcast watch` to its end."""
        process = self.start(*arguments, **how)
        out, err = process.communicate(timeout=SOON_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "vramcast", *arguments], env=self.environment, cwd=self.folder, text=True,
            capture_output=True, timeout=SOON_S, check=False,
        )

    def documents(self, *arguments: str) -> list[dict[str, Any]]:
        """What `--json` prints."""
        ended = self.watch("--json", *arguments)
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def holder(self) -> int:
        """The PID of a process that has a card's device open."""
        device = self.folder / "nvidia0"
        device.touch()
        program = "import sys, time; device = open(sys.argv[1]); print(flush=True); time.sleep(300)"
        process = subprocess.Popen([sys.executable, "-c", program, device], stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine without cards yet."""
    made = Machine(library, tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def dead_pid() -> int:
    """A PID that was used and is free again."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail where it does not come true soon."""
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)
