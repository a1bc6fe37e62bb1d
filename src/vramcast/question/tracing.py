"""The table of what can be asked of a trace, and the job that a set of options asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.allocator import Settings
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.device import Gpu
from vramcast.domain.job import require_count
from vramcast.domain.trace_job import (
    BATCH,
    DEFAULT_STEPS,
    DEFAULT_TIME_LIMIT_S,
    SEQUENCE,
    Input,
    ScriptJob,
    TraceJob,
)
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported
from vramcast.question.amounts import parse_bytes
from vramcast.question.options import HEADROOM, NO_SEARCH, Kind, Option, parse

DEFAULT_GPU: Final = "h100-sxm-80gb"
DTYPES: Final = ("fp32", "bf16", "fp16", "fp64")
PARALLEL: Final = ("ddp", "fsdp", "fsdp2")
GOALS: Final = ("batch", "seq-len")
MOST_STEPS: Final = 100
LONGEST_RUN_S: Final = 86_400


def _choice(section: str, field: str, help_: str, choices: tuple[str, ...]) -> Option:
    return Option(section, field, Kind.CHOICE, help_, choices)


TRACE_OPTIONS: Final[dict[str, Option]] = {
    "gpu": Option("device", "gpu", Kind.TEXT, f"the card, see `vramcast gpus`; by default {DEFAULT_GPU}"),
    "device": _choice("device", "device", "cuda; the CPU is not simulated", ("cuda", "cpu")),
    "capacity": Option("device", "capacity", Kind.TEXT, "memory of the card instead of the catalogue's: 24GiB"),
    "alloc-conf": Option("device", "alloc_conf", Kind.TEXT, "PYTORCH_CUDA_ALLOC_CONF"),
    "world-size": Option("device", "world_size", Kind.COUNT, "ranks of the simulated process group"),
    "rank": Option("device", "rank", Kind.COUNT, "which of them runs"),
    "steps": Option("both", "steps", Kind.COUNT, "optimizer steps to run; by default 3, scripts until steps repeat"),
    "input": Option(
        "module", "inputs", Kind.NAMES, "shape:dtype of an input, in order or by name (repeatable): 32x3x224x224, "
        "BxS:int64, mask=8x128:bool; B is --batch, S --seq-len",
    ),
    "batch": Option("module", "batch", Kind.COUNT, "samples: the first dimension of every input"),
    "seq-len": Option("module", "seq_len", Kind.COUNT, "positions per sample (8k = 8192)"),
    "eval": Option("module", "eval", Kind.FLAG, "inference: no gradients, no optimizer"),
    "loss": Option("module", "loss", Kind.TEXT, "cross_entropy, mse, sum, mean, own (the model's), or module:function"),
    "optimizer": Option(
        "module", "optimizer", Kind.TEXT, "adamw (default), sgd, momentum, adam ..., adamw-fused, adamw-foreach, "
        "adamw-loop, adamw-8bit, or module:Class",
    ),
    "amp": _choice("module", "amp", "autocast, fp16 with GradScaler", ("bf16", "fp16")),
    "dtype": _choice("module", "dtype", "dtype of the weights", DTYPES),
    "accumulate": Option("module", "accumulate", Kind.COUNT, "micro-batches per optimizer step"),
    "checkpoint": Option(
        "module", "checkpoint", Kind.NAMES, "modules to recompute, by name or class: 'layers.*', Block; blocks: all "
        "that repeat",
    ),
    "zero-grad": _choice("module", "zero_grad", "what zero_grad does", ("none", "zero")),
    "clip-grad": Option("module", "clip_grad", Kind.FLAG, "clip the norm of the gradients"),
    "compile": Option("module", "compile", Kind.FLAG, "torch.compile, not modelled: the step runs eagerly here"),
    "parallel": _choice("module", "parallel", "how the ranks share the module", PARALLEL),
    "find": _choice("module", "find", "the largest that fits", GOALS),
    "headroom": Option("module", "headroom", Kind.TEXT, f"with --find: {HEADROOM}"),
    "sandbox": Option("script", "sandbox", Kind.FLAG, "keep out the files the script would write"),
    "enforce-capacity": Option(
        "script", "enforce_capacity", Kind.FLAG, "run out of memory as on the card, for scripts that then try again"
    ),
    "memory-limit": Option("script", "memory_limit", Kind.TEXT, "main memory that the script may take: 8GiB"),
    "value": Option(
        "script", "values", Kind.NAMES, "train.py:42=0.5: what data would be at that line, where a script needs it"
    ),
    "time-limit": Option("script", "time_limit", Kind.COUNT, "seconds the script may run; by default 300"),
}
"""Name as users write it -> where it goes. `target`, `arg` and the script's arguments stand beside it."""

SHAPE: Final = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<dims>(?:\d+|[BS])(?:[x*×](?:\d+|[BS]))*|scalar)(?::(?P<dtype>[a-z]\w*))?"
)
SHORT_DTYPES: Final = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "long": "int64", "int": "int32",
    "half": "float16", "float": "float32", "double": "float64",
}
INPUT_DTYPES: Final = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2",
)
LARGEST_DIMENSION: Final = 1 << 40

Value = bool | int | float


def is_script(target: str) -> bool:
    """Whether a target is a file of Python."""
    return target.endswith(".py")


def build_trace(
    target: str, options: Mapping[str, Any], *, arguments: Iterable[str] | Mapping[str, Any] = ()
) -> TraceJob:
    """The job that options ask for, of a target that is no script.

    Args:
        target: as the user writes it
        options: by the names of `TRACE_OPTIONS`
        arguments: of the factory: name=value texts, or the values

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    values = _parsed(options, wrong="script", hint="it is for scripts")
    (gpu, assumptions), (world_size, rank) = _gpu(values), _ranks(values)
    batch, seq_len = (_count(values, name) for name in ("batch", "seq-len"))
    inputs = tuple(parse_input(text) for text in values.get("input", ()))
    _check_inputs(inputs, values)
    if "headroom" in values and "find" not in values:
        raise InvalidSpec(NO_SEARCH)
    is_training = not values.get("eval", False)
    _check_training(values, is_training)
    return TraceJob(
        target=target,
        arguments=dict(arguments) if isinstance(arguments, Mapping) else parse_arguments(arguments),
        inputs=inputs, batch=batch, seq_len=seq_len, loss=values.get("loss", ""),
        optimizer=values.get("optimizer", "adamw"), amp=values.get("amp", ""), dtype=values.get("dtype", ""),
        accumulate=_count(values, "accumulate") or 1, checkpoint=values.get("checkpoint", ()),
        is_training=is_training, steps=_steps(values) or DEFAULT_STEPS, zero_grad=values.get("zero-grad", "none"),
        clips=values.get("clip-grad", False), compiles=values.get("compile", False), gpu=gpu,
        capacity_bytes=_bytes(values, "capacity"), alloc_conf=values.get("alloc-conf", ""), assumptions=assumptions,
        parallel=values.get("parallel", ""), world_size=world_size, rank=rank,
    )


def build_script(path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = ()) -> ScriptJob:
    """The same for a script.

    Raises: SourceError where there is none, InvalidSpec or UnknownName with one sentence.
    """
    if not Path(path).is_file():
        raise SourceError(f"{path}: no such script; check the name and the folder")
    values = _parsed(options, wrong="module", hint="a script says that itself")
    (gpu, assumptions), (world_size, rank) = _gpu(values), _ranks(values)
    limit = _count(values, "time-limit") or DEFAULT_TIME_LIMIT_S
    if limit > LONGEST_RUN_S:
        raise InvalidSpec(f"time-limit={limit} is more than a day; use at most {LONGEST_RUN_S}")
    return ScriptJob(
        path=path, arguments=tuple(arguments), gpu=gpu, capacity_bytes=_bytes(values, "capacity"),
        alloc_conf=values.get("alloc-conf", ""), steps=_steps(values), time_limit_s=limit,
        is_sandboxed=values.get("sandbox", False), values=_given_values(values.get("value", ())),
        assumptions=assumptions, world_size=world_size, rank=rank,
        enforces_capacity=values.get("enforce-capacity", False), memory_limit_bytes=_bytes(values, "memory-limit"),
    )


def parse_input(text: str) -> Input:
    """An input as users write it.

    >>> parse_input("mask=BxS:bool")
    Input(dims=('B', 'S'), dtype='bool', name='mask')

    Raises: InvalidSpec that says how to write it
    """
    match = SHAPE.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec(
            f"input={text[:60]!r} must be sizes with x between them, a dtype behind and a name before where they "
            "matter: 32x3x224x224, 8x1024:int64, mask=BxS:bool"
        )
    sizes = [] if match["dims"] == "scalar" else re.split("[x*×]", match["dims"])
    dims = tuple(size if size in (BATCH, SEQUENCE) else int(size) for size in sizes)
    if any(isinstance(size, int) and not 0 < size <= LARGEST_DIMENSION for size in dims):
        raise InvalidSpec(f"input={text[:60]!r} has a dimension of 0 or beyond 2^40; use 1 or more")
    dtype = SHORT_DTYPES.get(match["dtype"] or "", match["dtype"] or "")
    if dtype and dtype not in INPUT_DTYPES:
        raise UnknownName.of("dtype of an input", dtype, INPUT_DTYPES)
    return Input(dims=dims, dtype=dtype, name=match["name"] or "")


def parse_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """name=value texts; a value that reads as a literal of Python is one, any other is a text.

    >>> parse_arguments(["depth=12", "name=vit"])
    {'depth': 12, 'name': 'vit'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name.isidentifier():
            raise InvalidSpec(f"arg={text[:60]!r} must be name=value, for example --arg depth=12")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found[name] = value
    return found


def _parsed(options: Mapping[str, Any], *, wrong: str, hint: str) -> dict[str, Any]:
    """The values given; options of the other kind of target are refused."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in given:
        if name not in TRACE_OPTIONS:
            raise UnknownName.of("option", name, TRACE_OPTIONS)
        if TRACE_OPTIONS[name].section == wrong:
            raise InvalidSpec(f"--{name} has no meaning here: {hint}; leave it out")
    values = {name: parse(name, value, TRACE_OPTIONS) for name, value in given.items()}
    Settings.parse(values.get("alloc-conf", ""))  # what torch refuses is refused before any work
    return values


def _gpu(values: Mapping[str, Any]) -> tuple[Gpu, tuple[str, ...]]:
    """The card, and what was assumed where none is named."""
    if values.get("device") == "cpu":
        raise Unsupported("--device cpu is no longer simulated: traces are of cards; leave it out")
    if "gpu" in values:
        return load_gpu(values["gpu"]), ()
    return load_gpu(DEFAULT_GPU), (f"no --gpu given: {DEFAULT_GPU}",)


def _ranks(values: Mapping[str, Any]) -> tuple[int, int]:
    """Ranks in all, and which of them runs."""
    world = _count(values, "world-size") or 1
    rank: int = values.get("rank", 0)
    if not 0 <= rank < world:
        raise InvalidSpec(f"rank={rank} is not among the {world} ranks of --world-size; use 0 to {world - 1}")
    if values.get("parallel") and world == 1:
        raise InvalidSpec(f"--parallel {values['parallel']} needs ranks; give --world-size")
    return world, rank


def _count(values: Mapping[str, Any], name: str) -> int | None:
    return require_count(name, values[name]) if name in values else None


def _steps(values: Mapping[str, Any]) -> int | None:
    steps = _count(values, "steps")
    if steps is not None and steps > MOST_STEPS:
        raise InvalidSpec(f"steps={steps} is more than memory needs to repeat; use at most {MOST_STEPS}")
    return steps


def _bytes(values: Mapping[str, Any], name: str) -> int | None:
    return parse_bytes(name, values[name]) if name in values else None


def _check_inputs(inputs: tuple[Input, ...], values: Mapping[str, Any]) -> None:
    names = [one.name for one in inputs if one.name]
    if len(set(names)) < len(names):
        raise InvalidSpec(f"--input names {max(names, key=names.count)} twice; give every name once")
    for letter, option in ((BATCH, "batch"), (SEQUENCE, "seq-len")):
        if any(letter in one.dims for one in inputs) and option not in values and values.get("find") != option:
            raise InvalidSpec(f"an --input has the letter {letter}, which stands for --{option}; give it")


def _check_training(values: Mapping[str, Any], is_training: bool) -> None:
    if is_training:
        return
    for name in ("optimizer", "loss", "accumulate", "checkpoint", "clip-grad", "zero-grad"):
        if name in values:
            raise InvalidSpec(f"--eval computes no gradients, so --{name} has no meaning; leave one of them out")


def _given_values(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        place, _ = read_value(text)
        found[place] = text.rpartition("=")[2]
    return found


def read_value(text: str) -> tuple[str, Value]:
    """Place and value of `train.py:33=0.25`.

    Raises: InvalidSpec

    >>> read_value("train.py:33=0.25"), read_value("a/b.py:7=true")
    (('train.py:33', 0.25), ('a/b.py:7', True))
    """
    place, equals, value = text.rpartition("=")
    name, _, line = place.rpartition(":")
    if not equals or not name or not line.isdecimal():
        raise InvalidSpec(f"value {text!r} names no place; write FILE:LINE=VALUE, as train.py:33=0.25")
    words = {"true": True, "false": False}
    if value.lower() in words:
        return place, words[value.lower()]
    for kind in (int, float):
        try:
            return place, kind(value)
        except ValueError:
            continue
    raise InvalidSpec(f"value {text!r} is no number; write FILE:LINE=VALUE, as train.py:33=0.25 or train.py:40=true")
