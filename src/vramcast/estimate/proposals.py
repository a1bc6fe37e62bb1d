"""Asking what a change of a plan comes to: one that fails costs only itself.

An engine refuses many changes with one sentence. One that fails for any other reason shows a bug of that engine, which
is no reason to take the answer away from somebody who asked for another plan: it is left out. Where bugs are looked
for (tests, VRAMCAST_DEBUG) it is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from vramcast.errors import VramcastError

OutcomeT = TypeVar("OutcomeT")


class Bugs:
    """What becomes of a bug that a proposal shows."""

    def __init__(self) -> None:
        """Left out."""
        self.are_raised = False


BUGS: Final = Bugs()
"""Of this process."""


def attempted(ask: Callable[[], OutcomeT]) -> OutcomeT | None:
    """What a proposal comes to; None where nothing can be proposed."""
    try:
        return ask()
    except VramcastError:
        return None  # the engine has no such plan
    except Exception:
        if BUGS.are_raised:
            raise
        return None
