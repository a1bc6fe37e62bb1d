"""Another distribution registers a rule, as docs/trace-rules.md shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(?P<kind>py|toml)\n(?P<code>.*?)^```$", re.M | re.S)


@pytest.fixture
def blocks():
    page = (ROOT / "docs" / "trace-rules.md").read_text(encoding="utf-8")
    return [match["code"] for match in BLOCK.finditer(page)]


def run(code, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (path, ROOT / "src")))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout


def test_a_rule_of_an_installed_package_counts_and_without_it_only_the_output_does(blocks, tmp_path, capsys):
    rules, entry_point, example = blocks
    package, metadata = tmp_path / "my_kernels", tmp_path / "my_kernels-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "vramcast_rules.py").write_text(rules)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1.0\n")
    name = re.search(r'^my_kernels = "(.*)"$', entry_point, re.M)[1]
    (metadata / "entry_points.txt").write_text(f"[vramcast.rules]\nmy_kernels = {name}\n")
    assert run(example, tmp_path) == "16 MiB\n"
    exec(example, {})  # here, where it is not installed
    assert capsys.readouterr().out == "8 MiB\n"
