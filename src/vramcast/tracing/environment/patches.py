"""Attributes replaced for a while, and put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import getattr_static
from typing import Any, Final

from vramcast.tracing.simulation import running

_ABSENT: Final = object()
Answer = Callable[..., Any]
"""What a function of a library comes to while a simulation runs: given the simulation, the function, its arguments."""


def answered(function: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    """A function of a library that an answer takes the place of while a simulation runs."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        simulation = running()
        return function(*args, **kwargs) if simulation is None else answer(simulation, function, *args, **kwargs)

    return call


def answer_in(module: Any, answers: Mapping[str, Answer]) -> None:
    """Let a module's functions, and methods of its classes ("Class.method"), be answered."""
    for path, answer in answers.items():
        *owners, name = path.split(".")
        owner = getattr(module, owners[0]) if owners else module
        if isinstance(getattr_static(owner, name), classmethod):
            setattr(owner, name, classmethod(answered(getattr(owner, name).__func__, answer)))
        else:
            setattr(owner, name, answered(getattr(owner, name), answer))


class Patches(AbstractContextManager["Patches"]):
    """Puts everything back on exit, last replaced first."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._added: list[tuple[dict[Any, Any], Any]] = []
        self._callbacks: list[Callable[[], Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Add an entry that the table does not have."""
        table[key] = value
        self._added.append((table, key))

    def at_exit(self, callback: Callable[[], Any]) -> None:
        """Call it on exit, before anything is put back."""
        self._callbacks.append(callback)

    def original(self, owner: Any, name: str) -> Any:
        """What was there before the first replacement."""
        return next(value for one, named, value in self._replaced if one is owner and named == name)

    @contextmanager
    def lifted(
        self, which: Callable[[Any, str], bool], instead: Iterable[tuple[Any, str, Any]] = ()
    ) -> Iterator[None]:
        """Within: what was replaced is as it was.

        Args:
            which: of what was replaced, by owner and name
            instead: owner, name, value of what is replaced meanwhile
        """
        before: list[tuple[Any, str, Any]] = []
        originals = [each for each in reversed(self._replaced) if which(each[0], each[1])]
        for owner, name, value in (*originals, *instead):
            before.append((owner, name, vars(owner).get(name, _ABSENT)))
            _put(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                _put(owner, name, value)

    def __exit__(self, *_: object) -> None:
        while self._callbacks:
            self._callbacks.pop()()
        while self._added:
            table, key = self._added.pop()
            table.pop(key, None)
        while self._replaced:
            _put(*self._replaced.pop())


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


@contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Within: variables of the environment have these values, None those that they have; put back at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
