"""Modules of a package that are imported when they are first asked for (PEP 562, SPEC 1).

A command needs few of the modules that it may need: with `from vramcast import report` at its head,
`report.written.report_of` imports `vramcast.report.written` when a report is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package: a module of it by its name. Afterwards Python finds it as an attribute."""

    def load(name: str) -> ModuleType:
        full = f"{package}.{name}"
        try:
            if not name.startswith("_"):
                return import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


def names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that offers names of its modules: `modules` says where each of them stands."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
