"""What is made when it is first asked for: modules (PEP 562, SPEC 1), regular expressions.

A command needs few of the modules that it may need: with `from vramcast import report` at its head,
`report.written.report_of` imports `vramcast.report.written` when a report is written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, cast


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


def defer(name: str) -> None:
    """Let `import name` load a module when an attribute of it is first asked for, where it has not been loaded yet.

    `importlib.util.LazyLoader` is no help: `import` asks every module for its `__spec__`, which loads it there.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is not None:
        sys.modules[name] = module = module_from_spec(spec)
        module.__class__ = _Deferred


class _Deferred(ModuleType):
    """A module that has not been loaded; other threads wait while one loads it."""

    def __getattr__(self, name: str) -> Any:
        with _LOADING:
            spec, own = self.__spec__, self.__dict__
            if self.__class__ is _Deferred and "__begun__" not in own and spec is not None and spec.loader is not None:
                own["__begun__"] = True  # what it imports may ask for a part of it that is not there yet
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
                del own["__begun__"]
        return ModuleType.__getattribute__(self, name)


_LOADING = RLock()


class _Pattern:
    """A regular expression that has not been compiled; each of its methods stands here from its first use on."""

    def __init__(self, text: str, flags: int) -> None:
        self.__text, self.__flags = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self.__text, self.__flags), name)
        setattr(self, name, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, when the expression is first used: one takes 0.1 ms, and a command uses few of those it loads."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
