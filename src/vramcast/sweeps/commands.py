"""What a sweep can ask: one line per command, and what the words of a question mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramcast.api import serve_answer, train_answer
from vramcast.errors import InvalidSpec
from vramcast.question.options import OPTIONS, Kind, Option, parse
from vramcast.question.serving_options import SERVE_OPTIONS

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.question.build import Resolve

Question = dict[str, Any]
"""Options by name as a user wrote them, with `command`, `model` and `gpus` among them."""


class Command(NamedTuple):
    """A kind of question: its options, and what answers it."""

    options: Mapping[str, Option]
    answer: Callable[[Mapping[str, Any], Resolve], Answer]


def _train(options: Mapping[str, Any], resolve: Resolve) -> Answer:
    return train_answer(options, resolve=resolve, with_changes=False)[1]


def _serve(options: Mapping[str, Any], resolve: Resolve) -> Answer:
    return serve_answer(options, resolve=resolve, with_changes=False)


COMMANDS: Final[dict[str, Command]] = {
    "train": Command(OPTIONS, _train),
    "serve": Command(SERVE_OPTIONS, _serve),
}
"""Their answers are those of the commands of the same name, without the changes that would make a plan fit."""

ALWAYS: Final = ("command", "model", "gpus")
"""What every question has, beside the options of its command."""

KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(ALWAYS, Kind.TEXT),
    **{name: option.kind for command in COMMANDS.values() for name, option in command.options.items()},
}
"""How the values of a name are written, over all commands; in this order they are columns."""


def spelled(values: Mapping[str, Any], where: str) -> Question:
    """Names as options have them: `seq_len`, as Python writes it, is `seq-len`.

    Raises: InvalidSpec where a name stands in both spellings
    """
    found: Question = {}
    for name, value in values.items():
        dashed = name.replace("_", "-")
        known = dashed if dashed in KINDS else name
        if known in found:
            raise InvalidSpec(f"{where}: {known} and {name} are one option; give one of them")
        found[known] = value
    return found


def known_names(commands: set[str]) -> list[str]:
    """What questions of these commands can say."""
    return [*ALWAYS, *{name: None for command in sorted(commands) for name in COMMANDS[command].options}]


def normalised(question: Mapping[str, Any]) -> Question:
    """The question with every value as its option understands it: "8k" and 8192 are one; what cannot be read stays."""
    command = question.get("command")
    return {name: normal_value(command, name, value) for name, value in sorted(question.items())}


def normal_value(command: object, name: str, value: object) -> object:
    """One value as the option of a command understands it, or as it is written where it cannot be read."""
    known = COMMANDS.get(command) if isinstance(command, str) else None
    if known is None or name not in known.options:
        return value.strip() if isinstance(value, str) else value
    try:
        return parse(name, value, known.options)
    except InvalidSpec:
        return value
