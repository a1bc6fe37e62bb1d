"""What is asked of an engine beside the plan: options of its own, and networks it does not serve."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

Value = int | float | bool | str


def refuse_encoders(job: ServeJob) -> None:
    """Raise Unsupported for networks whose every layer reads an encoder."""
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        raise Unsupported(f"{job.model.name} reads an encoder in every layer; use engine transformers")


def typed_options(job: ServeJob, known: Mapping[str, type[Value]]) -> dict[str, Value]:
    """The job's engine options, each known and of its type.

    Raises: UnknownName for another option, InvalidSpec for a value of another type
    """
    found: dict[str, Value] = {}
    for name, value in job.engine_options.items():
        if name not in known:
            raise UnknownName.of(f"{job.engine} option", name, known)
        found[name] = _typed(name, value, known[name])
    return found


def _typed(name: str, value: object, kind: type[Value]) -> Value:
    if kind is str:
        return str(value)
    wanted = {bool: "true or false", int: "a whole number", float: "a number above 0"}[kind]
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    fits = isinstance(value, bool) if kind is bool else number > 0 and (kind is float or number.is_integer())
    if not fits:
        raise InvalidSpec(f"engine-option {name}={str(value)[:40]} must be {wanted}")
    return kind(number) if kind is not bool else bool(value)
