"""What a visitor's question may name: the catalogue, plain numbers, hubs that were switched on.

This is the one place that decides it. Texts that no row below lists are refused, so that an option which begins to
read a file tomorrow is refused until somebody says here that it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.models import load_model
from vramcast.domain.model import Checkpoint
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.build import Resolve
from vramcast.question.option import Kind, Option, table_of
from vramcast.sources.resolve import HUB_ID
from vramcast.web.exchange import LONGEST_VALUE, Sources

HUBS: Final[dict[str, tuple[str, ...]]] = {
    "huggingface": ("", "hf:", "huggingface:"),
    "modelscope": ("modelscope:",),
}
"""Hub that a server may be started with -> what stands before its ids."""

TEXTS: Final = frozenset((
    "model", "gpus", "teacher", "vision-tower",
    "params", "optimizer", "alloc-conf", "engine", "weights", "kv-dtype", "v-dtype", "draft",
    "price", "region", "currency", "used", "reserve",
    "budget", "deadline", "headroom", "ttft", "slo",
))
"""Options of free text that name no file: they are numbers, names of tables, or a model (`model`, `teacher`,
`vision-tower`, `draft`)."""

LISTS: Final = frozenset((
    "recompute-modules", "lora-targets", "modules-to-save", "freeze", "engine-option", "on", "allow", "forbid",
))
"""Options of several names, none of them a file's; axes of a search are lists of what the option itself takes."""

FILES: Final[dict[str, str]] = {
    "calibration": "a calibration file",
    "arrivals": "a file of recorded requests; give rate instead",
    "prices": "a file of prices; give price instead",
    "hardware": "a file of own clusters; give gpus instead",
    "from": "a configuration of another tool",
    "from-command": "a command, which may name files",
    "args": "what a configuration of another tool is started with",
    "env": "the environment of a configuration of another tool",
    "from-format": "whose a configuration of another tool is",
    "ignore-unread": "how a configuration of another tool is read",
}
"""Options that name files of the machine that answers."""

ALWAYS: Final = ("model", "gpus")
FILE_ENDINGS: Final = (".json", ".gguf", ".safetensors", ".sh")


def always_of(command: str) -> tuple[str, ...]:
    """The names that stand beside the table of a command: a search looks for cards itself."""
    return ("model",) if command.startswith("plan ") else ALWAYS


def options_of(fields: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The options of a question as a visitor may ask it.

    Args:
        fields: as the visitor sent them
        command: of `question.option`

    Raises: InvalidSpec or UnknownName of one sentence
    """
    given = {name: value for name, value in fields.items() if value is not None}
    table, always = table_of(command), always_of(command)
    for name, value in given.items():
        if name in FILES:
            raise InvalidSpec("{} names {}: a question from the web names no file", name, FILES[name])
        if name not in always and name not in table:
            raise UnknownName.of("option", name, (*always, *(one for one in table if may_be_asked(one, table))))
        if not may_be_asked(name, table):
            raise InvalidSpec("{} cannot be asked from the web; use the command line", name)
        _check_value(name, value, table)
    return given


def may_be_asked(name: str, table: Mapping[str, Option]) -> bool:
    """Whether an option cannot name a file: it is listed, or its kind allows no free text."""
    if name in FILES:
        return False
    option = table.get(name)
    if option is None or option.kind is Kind.TEXT:
        return name in TEXTS
    if option.kind is Kind.NAMES and option.section != "axis":
        return name in LISTS
    return True


def _check_value(name: str, value: object, table: Mapping[str, Option]) -> None:
    """Raise InvalidSpec for what no option is: objects, lists of anything but texts, endless texts."""
    is_list = isinstance(value, list)
    items = value if isinstance(value, list) else [value]
    if is_list and (name not in table or table[name].kind is not Kind.NAMES):
        raise InvalidSpec("{} must be one value, not a list", name)
    if name in ALWAYS and not isinstance(value, str):
        raise InvalidSpec("{} must be a text", name)
    if len(items) > LONGEST_VALUE:
        raise InvalidSpec("{} lists {} values; give at most {}", name, len(items), LONGEST_VALUE)
    for item in items:
        if not isinstance(item, (str, bool, int, float)) or (is_list and not isinstance(item, str)):
            raise InvalidSpec("{} must be a text, a number, true or false, or a list of texts", name)
        if len(str(item)) > LONGEST_VALUE:
            raise InvalidSpec("{} has more than {} characters", name, LONGEST_VALUE)


def resolver(sources: Sources) -> Resolve:
    """What turns the name of a model into the model: the catalogue, then hubs where there are any."""

    def resolve(text: str) -> Checkpoint:
        try:
            return Checkpoint(model=load_model(text))
        except UnknownName as unknown:
            hub = hub_of(text)
            if hub is None and (any(mark in text for mark in "/\\\0") or text.endswith(FILE_ENDINGS)):
                raise InvalidSpec(
                    "{!r} looks like a path or an address: a question from the web names no file and no address; name "
                    "a model of the catalogue, or give params, layers and hidden", text[:80]
                ) from None
            if hub is None:
                raise unknown from None
        if hub not in sources.hubs:
            raise InvalidSpec(
                "{} is in no catalogue, and no hub is asked here; name a model of the catalogue, or give params, "
                "layers and hidden (vramcast web --hub {} answers for ids of that hub)", text[:120], hub
            )
        from vramcast.sources.hub import checkpoint_from_hub

        return checkpoint_from_hub(text)

    return resolve


def hub_of(text: str) -> str | None:
    """The hub that a text is an id of; None where it is none."""
    if not HUB_ID.fullmatch(text) or text.partition("@")[2].startswith("."):
        return None
    scheme, colon, _ = text.rpartition(":")
    return next(hub for hub, before in HUBS.items() if scheme + colon in before)
