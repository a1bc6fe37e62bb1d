"""Values of a file that remember which of them were looked at: what nobody looked at is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import Name, conditions, format_names, harmless, load_format, modelled, problems
from vramcast.errors import Note
from vramcast.formats.expanding import UNSET
from vramcast.formats.reading import NOT_MODELLED, NUMBER, Unread, count, shown, table

FLAGS: Final = {"true": True, "yes": True, "t": True, "y": True, "false": False, "no": False, "f": False, "n": False}
"""Words of a command line that are true or false [transformers hf_argparser.py `string_to_bool`]."""

INTERPOLATED: Final = re.compile(r"\{\{.*\}\}|\{%.*%\}", re.DOTALL)
"""What a template engine would put in."""


class Known(NamedTuple):
    """Whose names a table holds: a section of a format's snapshot, and what of it says nothing."""

    format: str
    section: str
    more: tuple[Known, ...] = ()  # further sections whose names stand among them

    def entry(self, name: str) -> Name | None:
        """The name as the snapshot has it, dashes as underscores or the other way."""
        known = load_format(self.format) if self.format in format_names() else None
        section = known.sections.get(self.section, {}) if known is not None else {}
        plain = name.lstrip("-")
        for spelling in (plain, plain.replace("-", "_"), plain.replace("_", "-")):
            if known is not None and (
                spelling in section or any(spelling in entry.aliases for entry in section.values())
            ):
                return known.find(self.section, spelling)
        return next((found for other in self.more if (found := other.entry(name)) is not None), None)

    def names(self) -> set[str]:
        """All of the snapshot, those of further sections among them."""
        own = load_format(self.format).sections.get(self.section, {}) if self.format in format_names() else {}
        return {*own, *(name for other in self.more for name in other.names())}

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by whole names: argparse takes the beginning of one where it is that of no other."""
        names = self.names()
        begun = {name: [one for one in names if one.startswith(name)] for name in values if name not in names}
        return {begun[name][0] if len(begun.get(name, ())) == 1 else name: value for name, value in values.items()}

    def part(self, name: str) -> str:
        """The part of a network without which a name says nothing; "" where there is none."""
        return conditions(self.format, self.section).get(name.lstrip("-").replace("-", "_"), "")

    def is_harmless(self, name: str) -> bool:
        """Whether a name changes neither memory nor time, or a table "a.b" that it stands in does not."""
        parts, none = name.lstrip("-").replace("-", "_").split("."), harmless(self.format, self.section)
        tables = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        return any(table in none for table in tables) or any(one.is_harmless(name) for one in self.more)

    def modelled(self, name: str) -> list[Any] | None:
        """The values of a name that are modelled, where that is said of them alone."""
        values = modelled(self.format, self.section).get(name.lstrip("-").replace("-", "_"))
        return values if values is not None else next(
            (found for one in self.more if (found := one.modelled(name)) is not None), None)

    def says_nothing(self, name: str, value: Any) -> bool:
        """Whether a value is what the tool does anyway."""
        entry = self.entry(name)
        return value is None or (entry is not None and entry.default is not None and entry.default == value
                                 and isinstance(value, bool) == isinstance(entry.default, bool))

    def why_unread(self, name: str) -> str:
        """Why a name that nobody looked at is not read: modelled by nobody here, or known to nobody there."""
        if self.entry(name) is not None or self.part(name):
            return NOT_MODELLED
        if self.format not in format_names():
            return NOT_MODELLED
        snapshot, plain = load_format(self.format), name.lstrip("-")
        text = next(problems(snapshot, self.section, {plain: None})) if self.section in snapshot.sections else ""
        return text.partition(": ")[2] or NOT_MODELLED


class Watched(dict[str, Any]):
    """Values that remember which of them were looked at; what the file does not set is as if it were not there."""

    def __init__(
        self, values: Mapping[str, Any], known: Known | None = None, undecided: Mapping[str, str] = {}
    ) -> None:
        super().__init__(values)
        self.known = known
        self.undecided = {name.lstrip("-").replace("-", "_"): why for name, why in undecided.items()}
        self.asked: dict[str, None] = {}  # in order
        self.inner: dict[str, Watched] = {}
        self.auto: dict[str, None] = {}  # names left to the run
        self.refused: dict[str, Unread] = {}
        self.assumed: list[str] = []  # what is said beside the answer

    def get(self, name: str, default: Any = None) -> Any:
        self.asked[name] = None
        value = super().get(name, default)
        return default if value is None or self.is_open(name) else value

    def __getitem__(self, name: str) -> Any:
        self.asked[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) and not self.is_open(str(name))

    def section(self, name: str, known: Known | None = None) -> Watched:
        """The table of a name; empty where there is none."""
        value = self.get(name)
        self.inner[name] = Watched(table(value), known)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, "a table")
        return self.inner[name]

    def count(self, name: str) -> int | None:
        """A positive whole number, else None; what is neither that nor "auto" gets a sentence."""
        value = self.get(name)
        number = float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
        number = int(number) if isinstance(number, float) and number.is_integer() else number
        if count(number) is None and value is not None and not self._is_auto(name, value):
            self.refuse(name, "a whole number from 1 up")
        return count(number)

    def whole(self, name: str) -> int | None:
        """As `count`, 0 too."""
        return 0 if self.get(name) in (0, "0", 0.0) and not isinstance(self.get(name), bool) else self.count(name)

    def flag(self, name: str) -> bool | None:
        """True or false, else None; what is neither that nor "auto" gets a sentence."""
        value = self.get(name)
        value = FLAGS.get(value.lower(), value) if isinstance(value, str) else value
        if value is not None and not isinstance(value, bool) and not self._is_auto(name, value):
            self.refuse(name, "true or false")
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """A text, else None; other values get a sentence."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "a text")
        return value if isinstance(value, str) else None

    def number(self, name: str, usual: float | None = None) -> float | None:
        """A number from 0 up, the usual one where nobody says it; other values get a sentence."""
        value = self.get(name)
        found = float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
        usable = isinstance(found, (int, float)) and not isinstance(found, bool) and 0 <= found < 1e15
        if value is not None and not usable:
            self.refuse(name, "a number from 0 up")
        return float(found) if usable else usual

    def one_of(self, name: str, known: Mapping[str, Any], *, lower: bool = False, option: str = "") -> Any:
        """What a table has for a value, None for "auto"; other values get a sentence."""
        value = self.get(name)
        if value is None or ("auto" not in known and self._is_auto(name, value)):
            return None
        text = str(value).lower() if lower or isinstance(value, bool) else str(value)
        if text not in known:
            self.refuse(name, "one of {}", ", ".join(known), option=option)
        return known.get(text)

    def only(self, name: str, *usual: Any) -> None:
        """Refuse a value of a name that is none of those that are modelled."""
        value = self.get(name)
        if value is not None and value not in usual:
            self.cannot(name)

    def _is_auto(self, name: str, value: Any) -> bool:
        if value == "auto":
            self.auto[name] = None
        return bool(value == "auto")

    def ignore(self, *names: str) -> None:
        """Names that say nothing here, or that others have said already; one with * behind it: all that begin so."""
        for name in names:
            begins = [one for one in self if one.startswith(name[:-1])] if name.endswith("*") else [name]
            self.asked |= dict.fromkeys(begins)

    def must_be_off(self, name: str, why: str = NOT_MODELLED, *values: object, option: str = "") -> None:
        """Refuse a switch that is on."""
        if self.flag(name):
            self.cannot(name, why, *values, option=option)

    def must_be_unset(self, name: str, why: str = NOT_MODELLED, *values: object, option: str = "") -> None:
        """Refuse a name that has a value."""
        if self.get(name) is not None:
            self.cannot(name, why, *values, option=option)

    def must_be_empty(self, name: str, why: str = NOT_MODELLED, *values: object, option: str = "") -> None:
        """Refuse a name that has something, which an empty list, an empty text and 0 are not."""
        if self.get(name):
            self.cannot(name, why, *values, option=option)

    def refuse(self, name: str, wanted: str, *values: object, option: str = "") -> None:
        """Say that a value is not understood: what would be, with values in its gaps."""
        self.cannot(name, "{} is not {}", shown(dict.get(self, name)), Note(wanted, *values) if values else wanted,
                    option=option)

    def cannot(self, name: str, why: str = NOT_MODELLED, *values: object, option: str = "", file: str = "") -> None:
        """Say that a name is not understood: why, with values in its gaps."""
        self.asked[name] = None
        reason = Note(why, *values) if values else why
        self.refused.setdefault(name, Unread(name, reason, option, file, about=self._part(name)))

    def unread(self, prefix: str = "") -> Iterator[Unread]:
        """Everything that may change the answer and was not understood, in the tables inside too."""
        for name, value in self.items():
            if name in self.refused:
                yield self.refused[name]._replace(name=prefix + name)
            elif self.is_open(name) and not (self.known and self.known.is_harmless(name)):
                yield Unread(prefix + name, self.why_open(name))
            elif self.known and (usual := self.known.modelled(name)) is not None:
                if value is not None and value not in usual:
                    yield Unread(prefix + name, about=self._part(name))
            elif name not in self.asked and not self._is_nothing(name, value):
                why = self.known.why_unread(name) if self.known else NOT_MODELLED
                yield Unread(prefix + name, why, about=self._part(name))
            if name in self.inner:
                yield from self.inner[name].unread(f"{prefix}{name}.")
        yield from (one for name, one in self.refused.items() if not dict.__contains__(self, name))
        for name, inner in self.inner.items():
            if not dict.__contains__(self, name):  # what a table that is not there would have to say
                yield from inner.unread(f"{prefix}{name}.")

    def _part(self, name: str) -> str:
        return self.known.part(name) if self.known else ""

    def _is_nothing(self, name: str, value: Any) -> bool:
        if self.known is None:
            return value is None
        return self.known.is_harmless(name) or self.known.says_nothing(name, value)

    def is_open(self, name: str) -> bool:
        """Whether only a run knows what a name has, or whether it is there."""
        return name.lstrip("-").replace("-", "_") in self.undecided or is_unset(dict.get(self, name))

    def why_open(self, name: str) -> str:
        """What would say the value of a name that only a run knows."""
        variable = UNSET.search(str(dict.get(self, name)))
        if variable is not None:
            return self.undecided.get(variable[0]) or Note("{} is not set in the file", variable[0])
        if is_unset(dict.get(self, name)):
            return "is filled in by a template"
        return self.undecided.get(name.lstrip("-").replace("-", "_")) or (
            "stands in a branch of the script that only a run takes")

    def left_open(self) -> list[str]:
        """Names that say "auto"."""
        return [*self.auto, *(f"{name}.{inner}" for name, values in self.inner.items() for inner in values.left_open())]


def is_unset(value: Any) -> bool:
    """Whether a value is one that only a run of the script or a template engine knows."""
    if isinstance(value, (list, tuple)):
        return any(is_unset(item) for item in value)
    return isinstance(value, str) and bool(UNSET.search(value) or INTERPOLATED.search(value))
