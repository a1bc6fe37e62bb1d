"""Lists of layers, run-length encoded."""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.domain.model import Layer, Run
from vramcast.errors import InvalidSpec
from vramcast.families.fields import Fields


def runs_of(layers: Iterable[Layer]) -> tuple[Run, ...]:
    """Equal neighbours become one run."""
    runs: list[Run] = []
    for layer in layers:
        if runs and (runs[-1].layer is layer or runs[-1].layer == layer):
            runs[-1] = Run(count=runs[-1].count + 1, layer=runs[-1].layer)
        else:
            runs.append(Run(count=1, layer=layer))
    return tuple(runs)


def layer_words(fields: Fields, key: str, count: int) -> tuple[str, ...]:
    """A list that names the kind of every layer; empty when missing.

    A list cut for printing ("... 48 total" at its end) continues with its own period, and must then agree with
    `<key>_counts` when that is given.
    """
    words = fields.words(key)
    if words and words[-1].startswith("... "):
        words = _continued(fields, key, words[:-1], count)
    if words and len(words) != count:
        raise InvalidSpec(f"{key} of {fields.name} lists {len(words)} layers, not num_hidden_layers={count}")
    return words


def _continued(fields: Fields, key: str, visible: tuple[str, ...], count: int) -> tuple[str, ...]:
    counts = fields.section(f"{key}_counts")
    for period in range(1, len(visible) + 1):
        if any(word != visible[index % period] for index, word in enumerate(visible)):
            continue
        words = tuple(visible[index % period] for index in range(count))
        if counts is None or all(words.count(kind) == counts.natural(kind) for kind in counts.keys()):  # noqa: SIM118
            return words
    raise InvalidSpec(f"{key} of {fields.name} is cut short and cannot be continued; list all {count} layers")
