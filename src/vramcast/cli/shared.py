"""Options that several commands share, and how a language is chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from vramcast.question.options import Kind, Option
from vramcast.report.messages import LANGUAGES, Words, language_of

Command = Callable[..., Any]


def language_option(command: Command) -> Command:
    """`--lang`, by default that of the locale."""
    return click.option("--lang", type=click.Choice(LANGUAGES), help="language; by default that of the locale")(command)


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="the same answer as JSON")(command)


def words_of(language: str | None) -> Words:
    """The messages of the chosen language or of the locale."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return Words(language or language_of(locale))


def question_options(table: Mapping[str, Option]) -> Callable[[Command], Command]:
    """One option of the command line per row of a table."""

    def decorate(command: Command) -> Command:
        for name, option in reversed(list(table.items())):
            command = _click_option(name, option)(command)
        return command

    return decorate


def _click_option(name: str, option: Option) -> Callable[[Command], Command]:
    if option.kind is Kind.FLAG:
        return click.option(f"--{name}/--no-{name}", default=None, help=option.help)
    multiple = option.kind is Kind.NAMES
    metavar = f"[{'|'.join(option.choices)}]" if option.choices else option.kind.upper()
    return click.option(f"--{name}", metavar=metavar, multiple=multiple, default=None, help=option.help)


def coloured(text: str, *, fits: bool) -> str:
    """On a terminal the verdict in green or red, the rest as it is."""
    if not sys.stdout.isatty():
        return text
    first, newline, rest = text.partition("\n")
    return click.style(first, fg="green" if fits else "red", bold=True) + newline + rest
