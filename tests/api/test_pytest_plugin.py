"""The plugin of pytest, in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest" / "test_step.py"


def test_a_step_fits_its_peak_is_kept_and_a_larger_one_is_told(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    files = {  # in this order, and of one name, by which a peak is kept
        "test_1_first.py": text,
        "test_2_larger.py": text.replace("1024", "2048"),
        "test_3_too_large.py": text.replace("1024", "90_000").replace("(simulated_gpu, peak_snapshot)", "()").replace(
            "    peak_snapshot(simulated_gpu)\n", ""),
    }
    for name, lines in files.items():
        (tmp_path / name).write_text(lines)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "vramcast.pytest_plugin", *files]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # installed, it is found by itself
    told = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
    assert "1 failed, 2 passed, 1 error" in told and (tmp_path / "peaks.json").is_file(), told
    failures = told.partition("short test summary info")[0]  # where CI is set, the summary repeats them whole
    assert failures.count("the peak moved by more than 2%") == 1 and "weights" in failures, told
    assert "does not fit" in told and "ERROR test_3_too_large.py" in told, told
