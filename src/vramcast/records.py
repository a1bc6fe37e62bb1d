"""`NamedTuple` as `typing` has it, made several times faster: hundreds of such classes stand between a command and its
answer.

`typing.NamedTuple` compiles every annotation and evaluates a constructor while a class is made. Here annotations stay
the strings they are until somebody asks for them, and the constructor is evaluated when the first record is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter as getter_of
    from sys import intern

    def first_record(cls: type, *values: Any, **named: Any) -> Any:
        """Make the first record of a class, and give it the constructor that makes the others."""
        owner = next(base for base in cls.__mro__ if "_field_defaults" in vars(base))
        fields = "".join(f"{field}, " for field in owner._fields)
        made = eval(f"lambda _cls, {fields}: _new(_cls, ({fields}))", {"_new": tuple.__new__, "__builtins__": {}})
        made.__name__, made.__qualname__ = "__new__", f"{owner.__qualname__}.__new__"
        made.__defaults__ = tuple(owner._field_defaults.values())
        owner.__new__ = staticmethod(made)
        return made(cls, *values, **named)

    class Methods:
        """What every record can do."""

        @classmethod
        def _make(cls: type, values: Any) -> Any:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self: Any, /, **changes: Any) -> Any:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self: Any) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self: Any) -> str:
            values = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self: Any) -> tuple[Any, ...]:
            return tuple(self)

    METHODS = {name: vars(Methods)[name] for name in ("_make", "_replace", "_asdict", "__repr__", "__getnewargs__")}

    class RecordMeta(type):
        """Makes a subclass of `tuple` of a class body with annotated fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = tuple(map(intern, body.get("__annotations__", ())))
            defaults = {field: body[field] for field in fields if field in body}
            if tuple(defaults) != fields[len(fields) - len(defaults):]:
                raise TypeError(f"{name}: a field without a default follows one that has it")
            getters = {field: getter_of(index, None) for index, field in enumerate(fields)}
            made = METHODS | {"__slots__": (), "__match_args__": fields, "__new__": first_record} | body | getters
            made |= {"_fields": fields, "_field_defaults": defaults}
            return type(name, (tuple, *(base for base in bases if base is not NamedTuple)), made)

    NamedTuple = type.__new__(RecordMeta, "NamedTuple", (), {})
