"""The plugin of pytest, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest" / "test_step.py"


def ran(folder: Path, text: str) -> str:
    (folder / "test_step.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "vramcast.pytest_plugin", str(folder)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # installed, it is found by itself
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_step_fits_its_peak_is_kept_and_a_larger_one_is_told(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert "1 passed" in ran(tmp_path, text) and (tmp_path / "peaks.json").is_file()
    told = ran(tmp_path, text.replace("1024", "2048"))
    assert "the peak moved by more than 2%" in told and "weights" in told, told
    told = ran(tmp_path, text.replace("1024", "90_000").replace("(simulated_gpu, peak_snapshot)", "()").replace(
        "    peak_snapshot(simulated_gpu)\n", ""))
    assert "does not fit" in told and "peak moved" not in told, told
