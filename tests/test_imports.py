"""Imports name modules that are there: a package that loads its modules when asked hides a missing one from mypy."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"^ *from (vramcast(?:\.\w+)*) import", re.M)


def test_every_import_of_the_package_names_a_module() -> None:
    folders = ("src", "tests", "tools", "truth", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    modules = {
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / "src" / "vramcast").rglob("*.py")
    }
    missing = {
        f"{file.relative_to(ROOT)}: {module}" for file in files
        for module in NAMED.findall(file.read_text(encoding="utf-8")) if module not in modules
    }
    assert not missing
