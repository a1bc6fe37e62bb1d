"""Attributes replaced for a while, and put back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

_ABSENT: Final = object()


class Patches(AbstractContextManager["Patches"]):
    """Puts everything back on exit, last replaced first."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            owner, name, value = self._replaced.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
