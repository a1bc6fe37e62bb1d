"""Options that several commands share, and how a language is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

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
