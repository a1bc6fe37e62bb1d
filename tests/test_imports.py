"""Imports name modules that are there: a package that loads its modules when asked hides a missing one from mypy."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_import_of_the_package_names_a_module() -> None:
    folders = ("src", "tests", "tools", "truth", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    modules = {
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / "src" / "vramcast").rglob("*.py")
    }
    missing = {
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.module}" for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vramcast"
        and node.module not in modules
    }
    assert not missing
