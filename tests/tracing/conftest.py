"""Tests of tracing need torch; without it none is collected. Scripts of tests run in forks of one process."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*"]

FORKS = """
import os, sys
import torch
from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing import child
with child.Session(load_gpu("t4")).active():  # which loads the rest
    pass
for line in sys.stdin:
    folder, place, paths = line.rstrip("\\n").split("\\t")
    process = os.fork()
    if not process:
        output = os.open(os.path.join(folder, "output.txt"), os.O_WRONLY | os.O_CREAT)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(file, number)
        os.chdir(place)
        os.environ["PYTHONPATH"] = paths
        sys.path[1:1] = filter(None, paths.split(os.pathsep))
        torch.set_num_threads(1)  # the others did not come along
        child.start(folder)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def forks():
    """A process that has loaded torch and starts scripts as its forks: to load takes longer than most of them."""
    command, pipe = [sys.executable, "-c", FORKS], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def start(_job, folder: Path) -> int:
            process.stdin.write(f"{folder}\t{Path.cwd()}\t{os.environ.get('PYTHONPATH', '')}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield start
        process.stdin.close()


@pytest.fixture
def forked(monkeypatch, forks):
    """Scripts run in forks."""
    monkeypatch.setattr("vramcast.tracing.script_parts._wait", forks)


@pytest.fixture
def one_thread():
    """Some kernels of the CPU take memory a thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def session():
    """A simulated card, unlimited so that what is needed can be learned."""
    from vramcast.catalogue.gpus import load_gpu
    from vramcast.tracing.session import Session

    return Session(load_gpu("a100-sxm4-80gb"))


@pytest.fixture
def running(session):
    """The simulated card, which torch runs on."""
    with session.active():
        yield session


@pytest.fixture
def taken(running):
    """Gives a function: the blocks that a piece of work takes, as (bytes, name); all its operators have been read."""

    def blocks_of(work):
        start = len(running.device.tape.blocks)
        kept = work()
        blocks = running.device.tape.blocks[start:]
        del kept
        assert not running.simulation.unseen
        return [(block.num_bytes, block.name) for block in blocks]

    return blocks_of
