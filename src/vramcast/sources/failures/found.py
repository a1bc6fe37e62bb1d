"""What a text tells: statements, and facts beside them that help to explain them."""

from __future__ import annotations

from vramcast.domain.failure import Statement
from vramcast.domain.model import Noun


class Fact(Noun, frozen=True):
    """Something else that the text says."""

    name: str  # as in FACTS
    value: str | int | float | bool
    line: int  # from 1
    statement: int | None = None  # number of the statement whose traceback or line says so; None: the text at large


class Failures(Noun, frozen=True):
    """Everything that was read of a text."""

    statements: tuple[Statement, ...] = ()  # in the order of the text, repeats merged
    context: tuple[Fact, ...] = ()
    lines: int = 0  # of the whole text, where it was counted
    cut: bool = False  # the text is longer than what was read of it

    def facts(self, name: str, statement: int | None = None) -> tuple[str | int | float | bool, ...]:
        """Values of a fact, of one statement or of the text at large and all statements."""
        return tuple(
            fact.value
            for fact in self.context
            if fact.name == name and (statement is None or fact.statement in (None, statement))
        )
