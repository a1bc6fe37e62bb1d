"""What several commands share: options, how answers, reports and files are written, and how far a search is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from vramcast import api, catalogue, formats, question, report, sources
from vramcast.cli.options import plain_option
from vramcast.errors import InvalidSpec
from vramcast.lazy import lazy_pattern
from vramcast.question.option import Kind, Option
from vramcast.report.messages import LANGUAGES, Words, words_here

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.job import Job
    from vramcast.domain.pipeline import DiffusionJob
    from vramcast.domain.post_training import PostTrainingJob
    from vramcast.domain.serving import PipelineJob, ServeJob

Command = Callable[..., Any]
FILE: Final = click.Path(path_type=Path)
EVERY_S: Final = 0.2
"""How often the line about a search is written anew."""
COUNTS: Final = lazy_pattern(r"^(\d+x)+")
"""Before a card's name: 8x, 4x8x."""
HERE: Final = "here"
"""In place of cards: those of this machine."""
ERASE: Final = "\r\x1b[K"
PROMPT_LINES: Final = 2
"""Of a terminal: the command and the prompt behind the answer."""


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _models(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Models whose names begin so; where there is none, files."""
    from click.shell_completion import CompletionItem

    names = [name for name in catalogue.index.find_models("") if name.startswith(begun.lower())]
    return names or [CompletionItem(begun, type="file")]


def _cards(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Cards whose names begin so, behind their counts."""
    name = COUNTS.sub("", begun)
    known = (one for one in catalogue.gpus.gpu_names() if one.startswith(name.lower()))
    return [begun.removesuffix(name) + one for one in known]


language_option: Final = plain_option(
    "--lang", type=click.Choice(LANGUAGES), help="language; by default that of the locale"
)
model_argument: Final = click.argument("model", required=False, shell_complete=_models)
gpus_option: Final = partial(
    plain_option, "--gpus", metavar="[NODESx]COUNTxGPU|[COUNTx]INSTANCE", shell_complete=_cards
)
json_option: Final = plain_option("--json", "as_json", is_flag=True, help="the same answer as JSON")
file_option: Final = plain_option(
    "--file", "job_file", type=FILE, help="a job file (TOML or YAML); options win over it"
)
picture_option: Final = plain_option(
    "--picture", type=FILE, help="write cost against speed as a picture: FILE.svg or FILE.html"
)
answer_options: Final = together(
    file_option, plain_option("--save", type=FILE, help="write the question as a job file"),
    plain_option("--all-ranks", is_flag=True, help="the ledger of every rank role"),
    plain_option(
        "--explain", is_flag=True, help="formula with the numbers put in, basis and source of every entry"
    ),
)
write_options: Final = together(
    plain_option(
        "--write", "directory", type=FILE, metavar="DIR",
        help="write ready-to-run configuration files into a folder",
    ),
    plain_option(
        "--format", "formats", metavar="NAME", multiple=True,
        help="with --write: only this format (repeatable): deepspeed, accelerate, pai-dlc ...; see docs/formats.md",
    ),
    plain_option("--force", is_flag=True, help="with --write: overwrite files that are there"),
)
script_options: Final = together(
    plain_option(
        "--write", "directory", type=FILE, metavar="DIR",
        help="write run.sh, the framework's own command, into a folder (verl, OpenRLHF, slime)",
    ),
    plain_option("--force", is_flag=True, help="with --write: overwrite a script that is there"),
)
fix_option: Final = plain_option(
    "--fix", is_flag=True,
    help="write copies of the files of --from with the first change that makes it fit (--force overwrites them)",
)
report_option: Final = plain_option(
    "--report", "report_file", type=FILE, metavar="FILE",
    help="write the whole answer as one file to keep or send: FILE.html or FILE.md",
)


class Reporting(Struct, frozen=True):
    """Where a report goes, and what it reports on."""

    path: Path | None
    command: str

    def checked(self) -> Reporting:
        """The same; a file that could not be written after the work is refused before it."""
        if self.path is not None:
            report.written.check_report(self.path)
        return self

    def write(self, answer: object, words: Words, *, as_json: bool, asked: Mapping[str, Any], **files: Any) -> None:
        """Write the report with the command that asks for it, and say so; beside JSON on standard error."""
        if self.path is None:
            return

        command = question.whole_command.question_command(self.command, asked, **files)
        kind = self.path.suffix.removeprefix(".")
        text = report.written.report_of(self.command, answer, kind, words.language, asked=command)
        sources.files.write_whole(self.path, text)
        say_written(words, self.path, as_json=as_json)


class Writing(Struct, frozen=True):
    """Where files go, and which."""

    directory: Path | None
    formats: tuple[str, ...]
    force: bool
    fix: bool = False

    def checked(self) -> Writing:
        """The same; an option that needs --write and stands without it is refused."""
        if self.directory is None and (self.formats or (self.force and not self.fix)):
            raise InvalidSpec("--format and --force say what --write does; give --write DIR")
        if self.formats:
            formats.write.check_formats(self.formats)
        return self

    def possible(self, engines: Iterable[str]) -> None:
        """Refuse before a search what could not be written after it."""
        if self.directory is not None:
            formats.write.refuse_early(engines, self.directory, formats=self.formats, force=self.force)

    def fixed(self, command: str, asked: Mapping[str, Any], answer: Answer, words: Words, *, as_json: bool) -> None:
        """Write the user's own files with what makes the plan fit, and say so."""
        if self.fix:
            found = api.write_fixed(asked, answer, command=command, force=self.force)
            names = ", ".join(path.name for path in found.files)
            click.echo(words("fixed", names=names, change=found.change.change), err=as_json)

    def write(
        self, job: Job | ServeJob | PipelineJob | DiffusionJob, answer: Answer, words: Words, *, as_json: bool
    ) -> None:
        """Write the plan's files, and say which; beside JSON on standard error."""
        if self.directory is None:
            return

        written = formats.write.write_configs(
            job, self.directory, formats=self.formats, force=self.force, answer=answer
        )
        names = ", ".join(path.name for path in written.files)
        click.echo(words("written", directory=self.directory, names=names), err=as_json)
        for note in written.notes:
            click.echo(f"  {words.said(note)}", err=as_json)


def write_script(job: PostTrainingJob, directory: Path, words: Words, *, force: bool, as_json: bool) -> None:
    """Write the script that starts a post-training, and say what it leaves open; beside JSON on standard error."""
    script, notes = formats.post_training_write.script_of(job)
    formats.write.write_files(directory, (script,), force=force)
    click.echo(words("written", directory=directory, names=script.name), err=as_json)
    for note in notes:
        click.echo(f"  {words.said(note)}", err=as_json)


def question_options(table: Mapping[str, Option]) -> Callable[[Command], Command]:
    """One option of the command line per row of a table."""
    return together(*(_click_option(name, option) for name, option in table.items()))


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line gave, by the names of the table, what is asked about first; secrets of an environment are
    forgotten at once."""
    given = {name.replace("_", "-"): value for name, value in values.items() if value not in (None, ())}
    if "env" in given:
        given["env"] = formats.paths.without_secrets(given["env"])
    return {name: given[name] for name in ("model", "gpus") if name in given} | given


def with_cards_here(given: dict[str, Any], *, option: str = "gpus") -> dict[str, Any]:
    """Options in which `here` is what this machine has, less what others hold of it unless that is said, too.

    Raises: SourceError where this machine has no card that can be read
    """
    named = given.get(option)
    names = (named,) if isinstance(named, str) else tuple(named or ())
    if not any(str(name).strip().lower() == HERE for name in names):
        return given

    from vramcast.watch.here import cards_here

    found = cards_here(os.environ)
    for sentence in found.said:
        click.echo(words_here(None).said(sentence), err=True)
    given |= {option: found.gpus if isinstance(named, str) else tuple(found.gpus if n == HERE else n for n in names)}
    if found.used and not {"used", "reserve"} & given.keys():
        given["used"] = found.used
    return given


def which_cards(
    command: str, given: dict[str, Any], job_file: Path | None, *, lang: str | None, as_json: bool, files: bool
) -> int | None:
    """The exit code of a question without cards, answered by those that hold it; None where cards are named.

    Args:
        files: whether files of one plan are wanted, for which its cards must be named
    """
    if files or not api.asks_which(command, given, job_file):
        return None
    found = api.card_choices(command, given, file=job_file)
    if as_json:
        click.echo(report.catalogue.choices_json(found, today=date.today()))
    else:
        click.echo(report.catalogue.choices_table(found, words_here(lang)), nl=False)
    return 0 if found.choices[0].answer.fits else EXIT_DOES_NOT_FIT


def _click_option(name: str, option: Option) -> Callable[[Command], Command]:
    if option.kind is Kind.FLAG:
        return plain_option(f"--{name}/--no-{name}", default=None, help=option.help)
    multiple = option.kind is Kind.NAMES
    most = option.choices[:MOST_CHOICES] + (("...",) if len(option.choices) > MOST_CHOICES else ())
    metavar = f"[{'|'.join(most)}]" if most else option.kind.upper()
    names = (f"--{name}", *(f"--{other}" for other in option.also), name.replace("-", "_"))
    return plain_option(*names, metavar=metavar, multiple=multiple, default=None, help=option.help)


MOST_CHOICES: Final = 12
"""Choices of an option that its help shows; a wrong one is answered with all."""

COLOURS: Final = {"good": "green", "close": "yellow", "bad": "red"}
"""Tone of a verdict (`report.sentences`) -> its colour on a terminal."""
EXIT_DOES_NOT_FIT: Final = 1


def exit_of(answer: Answer) -> int:
    """The exit code of a verdict: 1 for what does not fit, 0 for the others, "may run out" among them."""
    return 0 if answer.fits else EXIT_DOES_NOT_FIT


def coloured(text: str, tone: str) -> str:
    """On a terminal the first line in the colour of a tone, the rest as it is."""
    if not sys.stdout.isatty() or tone not in COLOURS:
        return text
    first, newline, rest = text.partition("\n")
    return click.style(first, fg=COLOURS[tone], bold=True) + newline + rest


def answer_text(answer: Answer, *, as_json: bool, lang: str | None, **how: bool) -> str:
    """An answer as JSON, or as text, of which a terminal shows the first line in colour."""
    if as_json:
        return report.document.to_json(answer, today=date.today())

    height = None
    if sys.stdout.isatty() and not any(how.values()):
        from shutil import get_terminal_size

        height = get_terminal_size().lines - PROMPT_LINES
    text = report.text.render(answer, words_here(lang), today=date.today(), height=height, **how)
    return coloured(text, report.sentences.tone_of(answer))


def say_written(words: Words, *paths: Path | None, as_json: bool) -> None:
    """Which files there are now; beside JSON on standard error."""
    for path in filter(None, paths):
        click.echo(words("replay.written", path=path), err=as_json)


class Waiting:
    """A line with the number of plans looked at so far."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.begun = self.written = monotonic()

    def __call__(self, num_plans: int, _: object) -> None:
        now = monotonic()
        if now - self.written >= EVERY_S:
            self.written = now
            text = self.words("plan.looking", plans=f"{num_plans:,}", seconds=f"{now - self.begun:.0f}")
            sys.stderr.write(ERASE + text)
            sys.stderr.flush()


@contextmanager
def waiting(words: Words) -> Iterator[Waiting | None]:
    """A counter while a search runs, erased behind it; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield Waiting(words)
    finally:
        sys.stderr.write(ERASE)
        sys.stderr.flush()
