"""`--vary batch,seq`: which sizes of a run are varied, how far, and where a script has them.

    batch                       the target's own batch; of a script the argument or constant that is called so
    batch=1..64                 how far
    seq=256..4096/256           in steps
    batch:--train-bs=1..64      the script's argument of that name
    seq:BLOCK_SIZE              the script's constant, or what it gives to a call by that name
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import require_count
from vramcast.domain.trace_job import ScriptJob, TraceJob
from vramcast.domain.varied import Axis
from vramcast.errors import InvalidSpec
from vramcast.question.options import parse_count

AXIS: Final = re.compile(
    r"(?P<name>[A-Za-z][\w-]*)(?::(?P<where>[^=]+))?(?:=(?P<low>\w+)(?:\.\.(?P<high>\w+)(?:/(?P<step>\w+))?))?"
)
SPANS: Final = {"batch": (1, 64, 1), "seq": (128, 2048, 128), "image": (64, 512, 32)}
"""Axis -> from where to where in which steps, where nobody says so."""
ALSO: Final = {"seq-len": "seq", "seq_len": "seq", "sequence": "seq", "batch-size": "batch", "batch_size": "batch"}
FIELDS: Final = {"batch": "batch", "seq": "seq_len", "image": "seq_len"}
"""Axis -> field of a module's job: the letters of --input are B and S."""
DATA: Final = {"seq": "seq", "image": "image"}
"""Axis -> what of data that stand in for it says."""
CALLED: Final = {
    "batch": (
        "batch_size", "per_device_train_batch_size", "train_batch_size", "micro_batch_size", "device_batch_size",
        "local_batch_size", "batchsize", "batch", "bs",
    ),
    "seq": (
        "seq_len", "block_size", "max_length", "max_seq_length", "max_seq_len", "seq_length", "sequence_length",
        "context_length", "model_max_length", "bptt", "ctx",
    ),
    "image": ("image_size", "img_size", "imgsz", "resolution", "input_size", "crop_size", "train_crop_size"),
}
"""Axis -> what scripts call it, first the likeliest."""
LOADER: Final = "DataLoader"
"""Whose second argument is a batch [torch utils/data/dataloader.py]."""
MOST_AXES: Final = 3
NOT_FOUND: Final = (
    "vary={}: no argument or constant of {} is called so; say where it stands: --vary {}:--option, or {}:NAME of a "
    "number in it"
)
WRONG: Final = (
    "vary={!r} must be a name, with a range where it matters: batch, seq=256..4096/256, batch:--train-bs=1..64"
)


def parse_axes(texts: Iterable[str]) -> tuple[Axis, ...]:
    """The axes as users write them, several with commas between them.

    >>> [(axis.name, axis.high, axis.step) for axis in parse_axes(["batch,seq=256..1k/256"])]
    [('batch', 64, 1), ('seq', 1024, 256)]

    Raises: InvalidSpec
    """
    found = [_axis(text.strip()) for text in ",".join(texts).split(",")]
    if len({axis.name for axis in found}) < len(found) or len(found) > MOST_AXES:
        raise InvalidSpec("--vary takes up to {} axes, each once: batch,seq", MOST_AXES)
    return tuple(found)


def _axis(text: str) -> Axis:
    match = AXIS.fullmatch(text)
    if match is None:
        raise InvalidSpec(WRONG, text[:60])
    name = ALSO.get(match["name"], match["name"])
    if match["low"] is None and name not in SPANS:
        raise InvalidSpec("vary={!r} needs a range: {}=LOW..HIGH/STEP", text[:60], name)
    span = SPANS.get(name, (1, 1, 1))
    if match["low"] is not None:
        low, high = (_count(match[each]) for each in ("low", "high"))
        span = low, high, _count(match["step"]) if match["step"] else 1
    low, high, step = span
    if high < low:
        raise InvalidSpec("vary={!r}: the range ends before it begins", text[:60])
    return Axis(
        name=name, where=match["where"] or "", low=low, high=low + (high - low) // step * step, step=step,
        is_given=match["low"] is not None,
    )


def _count(text: str) -> int:
    return require_count("vary", parse_count("vary", text))


def placed(axes: Iterable[Axis], job: TraceJob | ScriptJob) -> tuple[Axis, ...]:
    """The axes with where the job has them.

    Raises: InvalidSpec where it has none of that name
    """
    return tuple(_of_module(axis) if isinstance(job, TraceJob) else _of_script(axis, job) for axis in axes)


def _of_module(axis: Axis) -> Axis:
    if axis.where or axis.name not in FIELDS:
        raise InvalidSpec("vary={}: of a module are varied batch and seq, the letters B and S of --input", axis.name)
    return axis


def _of_script(axis: Axis, job: ScriptJob) -> Axis:
    if axis.where:
        return axis
    names = {plain_name(name): name for name in reversed(list(_names(job)))}
    called = CALLED.get(axis.name, (axis.name,))
    found = next((names[name] for name in called if name in names), None)
    if found is not None:
        return replace(axis, where=found)
    if axis.name in DATA:
        return replace(axis, where=f"data {DATA[axis.name]}")
    raise InvalidSpec(NOT_FOUND, axis.name, job.path, axis.name, axis.name)


def plain_name(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _names(job: ScriptJob) -> Iterator[str]:
    """What a script may be told: arguments given, arguments it declares, numbers that it names itself."""
    for text in job.arguments:
        if text.startswith("--"):
            yield text.partition("=")[0]
    try:
        tree = ast.parse(_text(job))
    except SyntaxError:
        return
    yield from (option for option, _ in declared(tree))
    yield from (name for name, _, _ in named_numbers(tree))


def declared(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Options that a script declares, with the call that does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "option"):
            for part in node.args:
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.startswith("--"):
                    yield part.value, node


def named_numbers(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    """Whole numbers that have a name: assigned, among the fields of a class, given to a call, in a dictionary."""
    for node in ast.walk(tree):
        pairs: Iterable[tuple[ast.expr, ast.expr | None]] = ()
        if isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and value is not None and (number := whole_number(value)) is not None:
                yield target.id, value, number
        for name, value in _given(node):
            if (number := whole_number(value)) is not None:
                yield name, value, number


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Call):
        yield from ((word.arg, word.value) for word in node.keywords if word.arg)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == LOADER and len(node.args) > 1:
            yield "batch_size", node.args[1]
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def whole_number(node: ast.expr) -> int | None:
    """The number that an expression is written as: 64, or a product as 5 * 8."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = whole_number(node.left), whole_number(node.right)
        return None if left is None or right is None else left * right
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _text(job: ScriptJob) -> str:
    path = Path(job.path)
    return job.text if job.text is not None else path.read_text(encoding="utf-8") if path.is_file() else ""


def at_point(job: TraceJob | ScriptJob, axes: Iterable[Axis], point: Iterable[int]) -> TraceJob | ScriptJob:
    """The job with its sizes set.

    Raises: InvalidSpec where a constant is not assigned a number
    """
    for axis, value in zip(axes, point, strict=True):
        job = replace(job, **{FIELDS[axis.name]: value}) if isinstance(job, TraceJob) else _set(job, axis, value)
    return job


def _set(job: ScriptJob, axis: Axis, value: int) -> ScriptJob:
    if axis.where.startswith("data "):
        return replace(job, data={**job.data, axis.where.removeprefix("data "): value})
    if axis.where.startswith("-"):
        return replace(job, arguments=argued(job.arguments, axis.where, value))
    text = _text(job)
    try:
        found = [(node, number) for name, node, number in named_numbers(ast.parse(text)) if name == axis.where]
    except SyntaxError:
        found = []
    if not found:
        raise InvalidSpec(NOT_FOUND, axis.name, job.path, axis.name, axis.name)
    same = [node for node, number in found if number == found[0][1]]  # others are those of a test, of a second model
    lines = text.encode().splitlines(keepends=True)  # columns of a tree count bytes
    for node in sorted(same, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        rest = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset:]
        lines[node.lineno - 1:node.end_lineno] = [line[:node.col_offset] + str(value).encode() + rest]
    return replace(job, text=b"".join(lines).decode())


def argued(arguments: tuple[str, ...], name: str, value: object) -> tuple[str, ...]:
    """A script's arguments with one of them set, where it stands or at the end.

    >>> argued(("--bs", "4", "--lr=1"), "--bs", 8)
    ('--lr=1', '--bs=8')
    """
    kept: list[str] = []
    skips = False
    for index, text in enumerate(arguments):
        if skips:
            skips = False
        elif text == name:
            skips = index + 1 < len(arguments) and not arguments[index + 1].startswith("--")
        elif not text.startswith(f"{name}="):
            kept.append(text)
    return (*kept, f"{name}={value}")
