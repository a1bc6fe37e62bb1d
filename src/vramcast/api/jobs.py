"""A question, by whatever way its parts were given: options, job files, files of other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from vramcast import formats, question
from vramcast.catalogue.clusters import taken
from vramcast.domain.model import Checkpoint, Model
from vramcast.errors import Unsupported
from vramcast.formats.paths import OPTIONS as ABOUT_FILES
from vramcast.formats.paths import Configs, as_started, configs_in, is_script
from vramcast.question.option import table_of
from vramcast.question.options import is_own, over
from vramcast.sources.resolve import resolve_checkpoint

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.planning import PlanAnswer
    from vramcast.formats.merged import ForSearch
    from vramcast.formats.reading import Given
    from vramcast.question.build import Resolve


def by_option(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the tables of options name them."""
    return {name.replace("_", "-"): value for name, value in keywords.items()}


def paths(given: str | Path | Sequence[str | Path]) -> tuple[str | Path, ...] | None:
    """One file or several, as the option `from` has them; None where there are none."""
    return ((given,) if isinstance(given, (str, Path)) else tuple(given)) or None


ANY_CARD: Final = "mi300x"
"""Where a question is looked at that names no card."""

NotedT = TypeVar("NotedT", bound="Answer | PlanAnswer")


class Asked(Struct, frozen=True):
    """A question, whatever way its parts were given."""

    options: dict[str, Any]  # all of them; what says how files are read is done with
    resolve: Resolve
    model: str | Model | None = None  # as a command line names it; a Model: only Python has it
    assumptions: tuple[str, ...] = ()  # what files of other tools said
    ignored: tuple[str, ...] = ()  # what of them the answer is without

    def noted(self, answer: NotedT) -> NotedT:
        """An answer with what files said, and which card a name that several have is taken for."""
        cards = taken(self.options.get("gpus"))
        return replace(
            answer, assumptions=(*self.assumptions, *answer.assumptions, *cards),
            ignored=(*self.ignored, *answer.ignored),
        )


def question_of(options: Mapping[str, Any], file: str | Path | None, asks: str) -> Asked:
    """The options over those of files of other tools, and those over a job file's.

    Args:
        options: as given by name
        file: a job file
        asks: a command of `question.option`; of a search files of other tools say what is trained or served
    """
    table, command = table_of(asks), asks.removeprefix("plan ")
    merged: dict[str, Any] = {}
    if file is not None:
        merged |= question.files.read_job(Path(file), table)
    named = {name: value for name, value in options.items() if value is not None}
    words: tuple[str, ...] = ()
    if not all(is_own(name, value, table) for name, value in named.items()):
        named, words = formats.field_names.in_own_words(named, table, command=command)
    if command == "serve":
        named = question.serving.as_stored(named)
    named = as_started(named, command)
    configs = configs_in(merged | named)
    beneath = {name: value for name, value in merged.items() if name not in ABOUT_FILES}
    named = {name: value for name, value in named.items() if name not in ABOUT_FILES}
    said: Given | ForSearch | None = None
    if configs and command != asks:
        given = formats.read.read_files(
            configs.paths, command=command, format_name=configs.format_name, line=configs.line, started=configs.given
        )
        said = formats.merged.for_search(given, beneath | named, command, ignore_unread=configs.ignore_unread)
        merged = said.options
    elif configs:
        merged, said = formats.merged.with_configs(named, configs, command=command, beneath=beneath)
    else:
        merged = over(named, beneath)
    assumptions, ignored = (said.assumptions, said.ignored) if said is not None else ((), ())
    assumptions = (*words, *assumptions)
    return _with_network(merged, configs, assumptions, ignored)


def asks_which(command: str, options: Mapping[str, Any], file: str | Path | None) -> bool:
    """Whether a question names no cards, and so asks which there should be."""
    if options.get("gpus") is not None or options.get("find") is not None:
        return False
    try:
        asked = question_of(options, file, command).options
    except Unsupported:  # what a command leaves to the cards: raised again where it is not that
        question_of(dict(options) | {"gpus": ANY_CARD}, file, command)
        return True
    return asked.get("gpus") is None and asked.get("find") is None


def _with_network(
    merged: dict[str, Any], configs: Configs, assumptions: tuple[str, ...], ignored: tuple[str, ...]
) -> Asked:
    """The question with its model: a network that the caller has, one that a script describes, or a name."""
    named = model = merged.get("model")
    if is_script(model):
        model, left = formats.merged.script_network(
            Path(str(model)), ignore_unread=configs.ignore_unread, started=configs.given
        )
        ignored = (*ignored, *left)
    if not isinstance(model, Model):
        return Asked(merged, resolve_checkpoint, named, assumptions, ignored)
    own = model
    if isinstance(named, Model):  # read from a file, whose path names it as well
        named = next((str(path) for path in configs.paths if Path(path).name == own.name and is_script(path)), own)

    def resolve(text: str) -> Checkpoint:
        return Checkpoint(model=own) if text == own.name else resolve_checkpoint(text)

    return Asked(merged | {"model": own.name}, resolve, named, assumptions, ignored)
