"""Attributes replaced for a while, and put back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

_ABSENT: Final = object()


class Patches(AbstractContextManager["Patches"]):
    """Puts everything back on exit, last replaced first."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._added: list[tuple[dict[Any, Any], Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Add an entry that the table does not have."""
        table[key] = value
        self._added.append((table, key))

    def __exit__(self, *_: object) -> None:
        while self._added:
            table, key = self._added.pop()
            table.pop(key, None)
        while self._replaced:
            owner, name, value = self._replaced.pop()
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
