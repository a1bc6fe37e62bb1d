"""Reading a config that anybody may have written: other spellings, sizes left out, every value checked.

Sizes that a config of a family may leave out, by `model_type`: those of its configuration class in transformers.

- GPT-2's, OPT's, T5's and Bloom's own names (n_embd, ffn_dim, d_model, n_layer ...)
- reduced records keyed by "architecture" (context_length, active_experts; dense widths under moe_intermediate_size)
- the records of llm-analysis (hidden_dim, n_head, max_seq_len, ffn_embed_dim)

Families without a class there have none: their configs must say everything.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from vramcast.errors import InvalidSpec
from vramcast.operators.activation import ACTIVATIONS


def _spellings() -> dict[str, str]:
    _, *rows = csv.reader(Path(__file__).with_name("spellings.csv").read_text(encoding="utf-8").splitlines())
    return dict(rows)


SPELLINGS: Final[dict[str, str]] = _spellings()
"""Another name -> the name used here. The name used here wins when both are present."""

OTHER_MEANINGS: Final[dict[str, dict[str, str]]] = {
    "mamba2": {"num_heads": "num_heads"},
    "distilbert": {"hidden_dim": "intermediate_size"},
}
"""Families in which a spelling means something else."""


def hugging_face_names(config: Mapping[str, object]) -> dict[str, object]:
    """The config under the names this package reads."""
    renamed = dict(config)
    family = renamed.get("model_type")
    spellings = SPELLINGS | OTHER_MEANINGS.get(family, {}) if isinstance(family, str) else SPELLINGS
    for spelling, name in spellings.items():
        if renamed.get(spelling) is not None and renamed.get(name) is None:
            renamed[name] = renamed[spelling]
    if renamed.get("model_type") is None and isinstance(renamed.get("architecture"), str):
        renamed["model_type"] = renamed["architecture"]
        if "num_experts" not in renamed and "moe_intermediate_size" in renamed:
            renamed.setdefault("intermediate_size", renamed["moe_intermediate_size"])
    return renamed


FILE: Final = Path(__file__).with_name("defaults.json")


class Defaults(msgspec.Struct, frozen=True):
    """The table, where it comes from, and what it leaves out on purpose."""

    source: str
    left_out: str
    families: dict[str, dict[str, object]]


@cache
def all_defaults() -> Mapping[str, Mapping[str, object]]:
    return msgspec.json.decode(FILE.read_bytes(), type=Defaults).families


def defaults_of(family: str) -> Mapping[str, object]:
    """The defaults of a family; nothing when it has none."""
    return all_defaults().get(family, {})


LARGEST: Final = 2**31
"""No size of a real network reaches it; larger numbers are typing errors or attacks."""

MOST_LAYERS: Final = 4096
"""Layers are listed one by one in places, so their number is bounded too."""


def shown(value: object) -> str:
    """The value as an error message prints it, shortened."""
    try:
        text = repr(value)
    except ValueError:  # integers beyond the limit of int-to-str conversion
        text = "an enormous integer"
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """The values of one config section, with the defaults of its family behind them. None counts as missing."""

    __slots__ = ("_defaults", "_values", "name")

    def __init__(
        self, values: Mapping[str, object], *, name: str, defaults: Mapping[str, object] | None = None
    ) -> None:
        self._values = values
        self._defaults: Mapping[str, object] = defaults or {}
        self.name = name

    def behind(self, defaults: Mapping[str, object]) -> Fields:
        """The same section with other defaults behind it; those of before win."""
        return Fields(self._values, name=self.name, defaults={**defaults, **self._defaults})

    def over(self, values: Mapping[str, object]) -> Fields:
        """The same section with these values in front of its own."""
        return Fields({**self._values, **values}, name=self.name, defaults=self._defaults)

    def renamed(self) -> Fields:
        """The same section under the names this package reads."""
        return Fields(hugging_face_names(self._values), name=self.name, defaults=self._defaults)

    def get(self, key: str) -> object | None:
        """The value, or the family's default, or None."""
        value = self._values.get(key)
        return self._defaults.get(key) if value is None else value

    def has(self, key: str) -> bool:
        """Whether the config or its family says anything about the key."""
        return self.get(key) is not None

    def states(self, key: str) -> bool:
        """Whether the config itself, not its family, has the key."""
        return self._values.get(key) is not None

    def wrong(self, key: str, rule: str, *values: object) -> InvalidSpec:
        """The error for a value that breaks a rule, which is the end of a template."""
        return InvalidSpec("{}={} of {} " + rule, key, shown(self.get(key)), self.name, *values)

    def _given(self, key: str, fallback: object) -> object:
        """The value, or the fallback where there is one."""
        value = self.get(key)
        if value is None and fallback is None:
            raise InvalidSpec("config of {} lacks {}", self.name, key)
        return fallback if value is None else value

    def natural(self, key: str, fallback: int | None = None) -> int:
        """An integer from 0 up."""
        value = self._given(key, fallback)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "must be an integer")
        if not 0 <= value <= LARGEST:
            raise self.wrong(key, "must be between 0 and {}", LARGEST)
        return value

    def count(self, key: str, fallback: int | None = None) -> int:
        """An integer from 1 up."""
        value = self.natural(key, fallback)
        if value == 0:
            raise self.wrong(key, "must be at least 1")
        return value

    def maybe(self, key: str) -> int | None:
        """A positive integer, or None when null, missing or zero (configs write all three for 'off')."""
        if key in self._values and self._values[key] is None:
            return None
        return self.natural(key, 0) or None

    def layers(self, key: str = "num_hidden_layers", fallback: int | None = None) -> int:
        value = self.count(key, fallback)
        if value > MOST_LAYERS:
            raise self.wrong(key, "is more than {} layers", MOST_LAYERS)
        return value

    def flag(self, key: str, *, fallback: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return fallback
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def fraction(self, key: str, fallback: float) -> float:
        """A number from 0 to 1."""
        return self.number(key, fallback, most=1)

    def number(self, key: str, fallback: float, *, most: float = 1e6) -> float:
        """A number from 0 to `most`."""
        value = self.get(key)
        if value is None:
            return fallback
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "must be a number")
        if not 0 <= value <= most:
            raise self.wrong(key, "must be between 0 and {:g}", most)
        return float(value)

    def multiple(self, key: str, fallback: float, *, of: int) -> int:
        """A positive factor, applied to `of` and cut to an integer."""
        value = self.get(key)
        value = fallback if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "must be a number")
        if not 0 < value <= LARGEST or not 1 <= int(value * of) <= LARGEST:
            raise self.wrong(key, "times {} must be between 1 and {}", of, LARGEST)
        return int(value * of)

    def word(self, key: str, fallback: str | None = None) -> str:
        value = self._given(key, fallback)
        if not isinstance(value, str):
            raise self.wrong(key, "must be a text")
        return value

    def activation(self, *keys: str, fallback: str) -> str:
        """The first of these keys that is given, a name of transformers' activation functions."""
        key = next((key for key in keys if self.has(key)), keys[-1])
        name = self.word(key, fallback)
        if name not in ACTIVATIONS:
            close = next((known for known in ACTIVATIONS if known == name.lower()), "")
            raise self.wrong(
                key, "is no activation function of transformers, whose names are lower-case; use {}" if close
                else "is no activation function of transformers, whose names are lower-case; use one of {}",
                close or ", ".join(ACTIVATIONS)
            )
        return name

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "must be a list of texts")
        return tuple(value)

    def naturals(self, key: str) -> tuple[int, ...] | None:
        """A list of integers from 0 up; None when missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS:
            raise self.wrong(key, "must be a list of integers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= LARGEST:
                raise self.wrong(key, "must hold integers between 0 and {}", LARGEST)
        return tuple(value)

    def sections(self, key: str) -> tuple[Fields, ...]:
        """A list of nested configs; empty when missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS:
            raise self.wrong(key, "must be a list of tables")
        return tuple(self._section(item, f"{key}[{index}]") for index, item in enumerate(value))

    def section(self, key: str) -> Fields | None:
        """A nested config; None when missing."""
        value = self.get(key)
        return None if value is None else self._section(value, key)

    def _section(self, value: object, key: str) -> Fields:
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value):
            raise InvalidSpec("{}={} of {} must be a table", key, shown(value), self.name)
        return Fields(value, name=f"{self.name}.{key}")

    def share(self, total_key: str, total: int, parts_key: str, parts: int) -> int:
        """`total / parts` when it divides."""
        if parts < 1 or total % parts:
            raise InvalidSpec("{}={} of {} does not divide {}={}", parts_key, parts, self.name, total_key, total)
        return total // parts

    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)
