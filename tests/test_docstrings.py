"""Examples in docstrings answer what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import vramcast

ROOT = Path(vramcast.__file__).parent
MODULES = sorted(
    ".".join(("vramcast", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_hold(name: str) -> None:
    if name.startswith("vramcast.tracing."):
        pytest.importorskip("torch")
    assert doctest.testmod(import_module(name)).failed == 0
