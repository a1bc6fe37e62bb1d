"""Commands and files that a tool's documents show: of Markdown, notebooks and the docstrings of scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

FENCED: Final = re.compile(r"(?ms)^[ \t]*(`{3,})[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*\1")
"""A block of code, its language and its text."""
OF_SHELLS: Final = ("", "bash", "sh", "shell", "console")

NAMED: Final = re.compile(r"\s*#[ \t]*([\w-]+\.(?:py|ya?ml|json|toml|sh))[ \t]*\n")
"""The first line of a block that shows a file."""

ASSIGNED: Final = re.compile(r"(?:export )?\w+=(?:[^ \"']*|\"[^\"]*\"|'[^']*')")
FOLLOWED: Final = re.compile(r"[ \t]*(?:\\[ \t]*\n|\n(?=[ \t]+-))[ \t]*")
"""Where a command goes on: behind a backslash, or on indented lines of options."""

DOCSTRING: Final = re.compile(r'(?ms)^"""(.*?)^"""')


class Shown(NamedTuple):
    """A command, with the files that the document shows above it: name -> text."""

    command: str
    variables: str  # that are set above it, as a shell sets them
    files: Mapping[str, str]


def commands_of(document: Path, wanted: str) -> Iterator[Shown]:
    """Those that an expression finds."""
    text = document.read_text(errors="replace")
    if document.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    if document.suffix == ".py":
        text = "".join(f"```\n{one}\n```\n" for one in DOCSTRING.findall(text)[:1])
    return commands_in(text, wanted)


def commands_in(text: str, wanted: str) -> Iterator[Shown]:
    """Commands of the blocks of code, each with its continued lines and what stands above it."""
    files, variables = dict[str, str](), ""
    for _, language, block in FENCED.findall(text):
        if (named := NAMED.match(block)) is not None:
            files[named[1]] = block[named.end() :].rstrip("\n")
        if language not in OF_SHELLS:
            continue
        bare = re.sub(r"(?m)(?:^|(?<=\s))#.*$", "", block)
        for line in FOLLOWED.sub(" ", bare).splitlines():
            command = " ".join(line.split()).removeprefix("$ ")
            if ASSIGNED.fullmatch(command):
                variables += f"{command.removeprefix('export ')}; "
            elif re.search(wanted, command):
                yield Shown(command, variables, dict(files))


def laid(files: Mapping[str, str], checkout: Path, folder: Path) -> Path:
    """Where a command is asked: the checkout, or with files that a document shows a folder of these beside its own."""
    if not files:
        return checkout
    folder.mkdir(parents=True)
    for one in checkout.iterdir():
        (folder / one.name).symlink_to(one)
    for name, text in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text)
    return folder


def scripted(command: str, folder: Path) -> tuple[str, ...]:
    """`sh FILE WORD ...` of a script that lies beside the document, as our options; () for other commands."""
    found = re.fullmatch(r"(?:bash|sh) (?:\./)?([\w./-]+\.sh)((?: [\w.,:/+-]+)*)", command)
    if found is None or not (folder / found[1]).is_file():
        return ()
    return ("--from", found[1], "--args", found[2].strip())
