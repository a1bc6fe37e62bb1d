"""The compiled loop is loaded where many questions are asked, and nowhere else."""

import importlib.util
import subprocess
import sys

import pytest

from vramcast.estimate import timeline
from vramcast.estimate.timeline import PATIENCE, Loop

HAS_NUMBA = importlib.util.find_spec("numba") is not None


def test_many_events_without_it_load_it() -> None:
    one = Loop()
    one.waited(PATIENCE - 1)
    assert one.marks is None
    one.waited(1)
    assert (one.marks is not None) is HAS_NUMBA


def test_without_numba_all_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "find_spec", lambda name: None)
    one = Loop()
    assert not one.load()
    one.waited(2 * PATIENCE)
    assert one.marks is None


def test_one_question_never_imports_numba() -> None:
    script = (
        "import sys, vramcast\n"
        "vramcast.train(model='llama-3.2-1b', gpus='2xt4', engine='deepspeed', zero=3)\n"
        "print('numba' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
