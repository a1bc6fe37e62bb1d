"""The pages of the site that are made when it is built, as a hook of MkDocs: nothing is written a second time for them.

README, CHANGELOG, CONTRIBUTING and the account of the measured runs become pages from where they lie in the repository;
catalogues and options are what the commands print, functions what their docstrings say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).resolve().parent.parent

MOVED: Final = {
    "README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md",
    "truth/README.md": "accuracy.md",
}
"""File of the repository -> its page."""

CATALOGUES: Final = {"models": "Models known by name", "gpus": "GPUs"}
"""Command that prints a catalogue -> the title of its page."""

PYTHON: Final = """# Python

What the command line prints, as values.

::: vramcast
    options: {members: [train, serve, plan, diagnose, replay, reconcile, trace, simulate, assert_fits, sweep,
        record_memory, calibrate], show_root_heading: false, show_root_toc_entry: false}
"""

LINK: Final = re.compile(r"(?<=\]\()(?P<path>[\w./-]+)(?=[)#])")

LINES: Final = re.compile(r"(?<=^```console) lines=\d+$", re.M)
"""How much of an output is shown; `tools.docs` reads it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    from mkdocs.structure.files import File

    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in MOVED.items()}
    pages |= {f"reference/{name}.md": f"# {title}\n\n{_printed(name)}" for name, title in CATALOGUES.items()}
    pages |= {"reference/commands.md": _commands(), "reference/python.md": PYTHON}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links as the repository has them, turned to the pages that the files have become.

    >>> class Page: file = type("File", (), {"src_uri": "index.md"})
    >>> on_page_markdown("[memory](docs/levels.md#the-interval)", page=Page)
    '[memory](levels.md#the-interval)'
    """
    sources = {made: source for source, made in MOVED.items()}
    here = page.file.src_uri
    folder = (ROOT / sources.get(here, f"docs/{here}")).parent

    def turned(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        if not target.exists():
            return match["path"]
        inside = target.relative_to(ROOT).as_posix()
        place = MOVED.get(inside, inside.removeprefix("docs/"))
        return "../" * here.count("/") + place

    return LINES.sub("", LINK.sub(turned, markdown))


def _commands() -> str:
    """The help of every command."""
    import click

    from vramcast.cli.main import group

    names = group.list_commands(click.Context(group))
    parts = [_printed("--help"), *(f"## vramcast {name}\n\n{_printed(name, _help_of(name))}" for name in names)]
    return "\n".join(["# Commands", "", *parts])


def _help_of(name: str) -> str:
    """The option that prints all of a command's help."""
    return "--help-all" if name in ("train", "serve") else "--help"


def _printed(*words: str) -> str:
    """What a command prints, as a block."""
    environment = os.environ | {"COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    command = [Path(sys.executable).with_name("vramcast"), *words]
    asked = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return f"```console\n$ vramcast {' '.join(words)}\n{asked.stdout}```\n"
