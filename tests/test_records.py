"""Records that are made quickly do what `typing.NamedTuple` does."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest

from vramcast import records


class Plain(typing.NamedTuple):
    size: int
    name: str = "x"

    def doubled(self) -> int:
        return 2 * self.size


class Quick(records.NamedTuple):
    size: int
    name: str = "x"

    def doubled(self) -> int:
        return 2 * self.size


class Heir(Quick):
    pass


def outcome(kind: Any, *values: Any, **named: Any) -> Any:
    try:
        made = kind(*values, **named)
        changed = made._replace(size=5)
        return (*made, repr(made).partition("(")[2], made._asdict(), made.doubled(), changed.size, hash(made))
    except TypeError as error:
        return str(error).partition(".")[2]


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, "y"), {}), ((), {"name": "z", "size": 2}), ((), {}), ((1, 2, 3), {}), ((1,), {"no": 1})],
)
def test_made_and_refused_alike(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert outcome(Quick, *values, **named) == outcome(Plain, *values, **named)


def test_the_rest_of_the_protocol() -> None:
    for name in ("_fields", "_field_defaults", "__match_args__"):
        assert getattr(Quick, name) == getattr(Plain, name)
    assert typing.get_type_hints(Quick) == typing.get_type_hints(Plain)
    assert pickle.loads(pickle.dumps(Quick(3))) == Quick(3) == (3, "x")
    assert type(Heir(3)) is Heir
    for kind in (Quick, Plain):
        with pytest.raises(TypeError, match="Expected 2 arguments, got 1"):
            kind._make([1])
        with pytest.raises(ValueError, match=r"Got unexpected field names: \['no'\]"):
            kind(1)._replace(no=1)


def test_a_field_without_a_default_behind_one_with_it_is_refused() -> None:
    with pytest.raises(TypeError, match="without a default"):
        records.NamedTuple.__class__("Wrong", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1})
