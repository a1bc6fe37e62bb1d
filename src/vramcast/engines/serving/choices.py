"""What a question may choose of an engine: options of its own, cache dtypes, and choices that belong to another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.domain.serving import ServeJob, ServePlan
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    "v_dtype": ("v-dtype", "llama.cpp"),
    "micro_batch": ("micro-batch", "llama.cpp"),
    "gpu_layers": ("gpu-layers", "llama.cpp"),
    "offload": ("offload", "diffusers"),
    "tiling": ("tiling", "diffusers"),
    "slicing": ("slicing", "diffusers"),
}
"""Field of a plan -> its option, and the engine that knows it."""

Value = int | float | bool


def refuse_elsewhere(job: ServeJob) -> None:
    """Raise InvalidSpec for a choice that only another engine offers."""
    default = ServePlan()
    for field, (option, engine) in ELSEWHERE.items():
        if getattr(job.plan, field) != getattr(default, field):
            raise InvalidSpec(f"--{option} is an option of {engine}, not of {job.engine}; leave it out")


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
    wanted = {bool: "true or false", int: "a whole number", float: "a number above 0"}[kind]
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    fits = isinstance(value, bool) if kind is bool else number > 0 and (kind is float or number.is_integer())
    if not fits:
        raise InvalidSpec(f"engine-option {name}={str(value)[:40]} must be {wanted}")
    return kind(number) if kind is not bool else bool(value)


def cache_dtype(job: ServeJob, known: Mapping[str, str]) -> str:
    """The key of `states.cache.KV_BITS` that the engine's name of a cache dtype stands for.

    Raises: UnknownName for a dtype the engine does not keep
    """
    if job.plan.kv_dtype not in known:
        raise UnknownName.of(f"cache dtype of {job.engine}", job.plan.kv_dtype, known)
    return known[job.plan.kv_dtype]
