"""The table of what can be asked of a trace, and the job that a set of options asks for.

The table of what can be asked of `vramcast tune`, and what a set of options asks for.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from vramcast.allocator import Settings
from vramcast.catalogue.contexts import context_bytes
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
from vramcast.domain.varied import ALLOWED, CHANGES, TuneJob
from vramcast.domain.varied import GOALS as TUNING_GOALS
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, Unsupported
from vramcast.question.option import Kind, Option, choice_of, headroom_of, parse_bytes
from vramcast.question.options import HEADROOM, NO_SEARCH, parse, parse_count
from vramcast.question.varied import FIELDS, parse_axes

DEFAULT_GPU: Final = "h100-sxm-80gb"
DTYPES: Final = ("fp32", "bf16", "fp16", "fp64")
PARALLEL: Final = ("ddp", "fsdp", "fsdp2")
GOALS: Final = ("batch", "seq-len")
DATA: Final = ("seq", "rows", "image", "vocab")
LOADINGS: Final = ("lazy", "eager")
MOST_STEPS: Final = 100
LONGEST_RUN_S: Final = 86_400


TRACE_OPTIONS: Final[dict[str, Option]] = {
    "gpu": Option(
        "device", "gpu", Kind.TEXT, f"the card, see `vramcast gpus`; by default {DEFAULT_GPU}", also=("gpus",)
    ),
    "device": choice_of("device", "device", "cuda; the CPU is not simulated", ("cuda", "cpu")),
    "capacity": Option("device", "capacity", Kind.TEXT, "memory of the card instead of the catalogue's: 24GiB"),
    "module-loading": choice_of(
        "device", "module_loading", "of kernels, as CUDA_MODULE_LOADING: by default lazy; eager as before torch 1.13, "
        "CUDA 11.7 or driver R515", LOADINGS,
    ),
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
    "eval": Option(
        "both", "eval", Kind.FLAG, "inference: no gradients, no optimizer; of a script: it need not take a step"
    ),
    "loss": Option("module", "loss", Kind.TEXT, "cross_entropy, mse, sum, mean, own (the model's), or module:function"),
    "optimizer": Option(
        "module", "optimizer", Kind.TEXT, "adamw (default), sgd, momentum, adam ..., adamw-fused, adamw-foreach, "
        "adamw-loop, adamw-8bit, or module:Class",
    ),
    "amp": choice_of("module", "amp", "autocast, fp16 with GradScaler", ("bf16", "fp16")),
    "dtype": choice_of("module", "dtype", "dtype of the weights", DTYPES),
    "accumulate": Option("module", "accumulate", Kind.COUNT, "micro-batches per optimizer step"),
    "checkpoint": Option(
        "module", "checkpoint", Kind.NAMES, "modules to recompute, by name or class: 'layers.*', Block; blocks: all "
        "that repeat",
    ),
    "zero-grad": choice_of("module", "zero_grad", "what zero_grad does", ("none", "zero")),
    "clip-grad": Option("module", "clip_grad", Kind.FLAG, "clip the norm of the gradients"),
    "compile": Option("module", "compile", Kind.FLAG, "torch.compile: the plan of buffers that Inductor makes"),
    "parallel": choice_of("module", "parallel", "how the ranks share the module", PARALLEL),
    "find": choice_of("module", "find", "the largest that fits", GOALS),
    "vary": Option(
        "both", "vary", Kind.NAMES, "batch,seq: the peak as a formula of them, the largest of each that fits, a map; "
        "with a range batch=1..64, seq=256..4096/256, of a script with its argument or constant seq:BLOCK_SIZE",
    ),
    "headroom": Option("both", "headroom", Kind.TEXT, f"with --find and --vary: {HEADROOM}"),
    "sandbox": Option("script", "sandbox", Kind.FLAG, "keep out the files the script would write"),
    "enforce-capacity": Option(
        "script", "enforce_capacity", Kind.FLAG, "run out of memory as on the card, for scripts that then try again"
    ),
    "memory-limit": Option("script", "memory_limit", Kind.TEXT, "main memory that the script may take: 8GiB"),
    "value": Option(
        "script", "values", Kind.NAMES, "train.py:42=0.5: what data would be at that line, where a script needs it"
    ),
    "data": Option(
        "script", "data", Kind.NAMES, "seq=2048, rows=512, image=512 or vocab=10000 (repeatable): tokens of a text, "
        "rows, pixels a side, words of a corpus, of data that are not there and stood in for; by default seq=1024"
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

NOTEBOOK: Final = ".ipynb"
FUTURE: Final = "from __future__ import "
STANDARD_INPUT: Final = "-"
PYTHON: Final = re.compile(r"python[\d.]*")
COMMANDS: Final = os.pathsep.join((str(Path(sys.executable).parent), "{}"))  # those of this environment first
MAGIC: Final = re.compile(r"^(\s*)[%!].*")
INSTEAD_OF_MAGIC: Final = r"\1pass"
LAUNCHERS: Final = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""Command -> its module, for where an environment that is not activated hides the command."""
DEEPSPEED: Final = "deepspeed"
"""A launcher of which only the words are read: each rank is Python with its place [deepspeed launcher/launch.py]."""
LAUNCHING: Final = (*LAUNCHERS.values(), "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start scripts."""


def is_script(target: str) -> bool:
    """Whether a target is a file of Python, a notebook, standard input, or a command that starts one."""
    return target.endswith((".py", NOTEBOOK)) or target == STANDARD_INPUT or is_command(target)


def is_command(target: str) -> bool:
    """Whether a target is Python itself or a command that is written in it: torchrun, accelerate, litgpt."""
    return target in (*LAUNCHERS, DEEPSPEED) or PYTHON.fullmatch(target) is not None or command_file(target) is not None


def command_file(name: str) -> str | None:
    """Where a command is, if it is a script of Python."""
    found = None if re.search("[:./]", name) else shutil.which(name, path=COMMANDS.format(os.environ.get("PATH", "")))
    if found is None:
        return None
    with Path(found).open("rb") as file:
        return found if re.match(rb"#!.*python", file.readline()) else None


def notebook_code(text: str, path: str) -> str:
    """What the cells of a notebook run, without what is not Python: magics and commands of the shell.

    Raises: SourceError where it is none
    """
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        raise SourceError("{} is no notebook of Jupyter; give one, or a script", path) from None
    kept = [source for source in sources if not source.lstrip().startswith("%%") or source.lstrip()[2:6] == "time"]
    lines = "\n".join(kept).splitlines()
    lines.sort(key=lambda line: not line.startswith(FUTURE))  # any cell may have them, and of a file only the top
    return "".join(f"{MAGIC.sub(INSTEAD_OF_MAGIC, line)}\n" for line in lines)


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
    _check_search(values)
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


def build_script(
    path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = (), is_module: bool = False
) -> ScriptJob:
    """The same for a script, a module as with `python -m`, or the command line that starts one.

    Raises: SourceError where there is none, InvalidSpec or UnknownName with one sentence.
    """
    given = list(arguments)
    if PYTHON.fullmatch(path):
        while given[:1] and given[0] in ("-u", "-O", "-B"):
            given.pop(0)
        is_module = given[:1] == ["-m"]
        del given[:is_module]
        if not given or (given[0].startswith("-") and given[0] != STANDARD_INPUT):
            said = " ".join(given[:2]) or "nothing"
            raise InvalidSpec("{} of {} is not read; name a script, or a module by -m", path, said)
        path = given.pop(0)
    if path in LAUNCHERS and not is_module:
        path, is_module = LAUNCHERS[path], True
    text, command = None, None if is_module else command_file(path)
    if path == STANDARD_INPUT:
        text, path = sys.stdin.read(), "<stdin>"
    elif command is not None:
        path = command
    elif not is_module and not Path(path).is_file():
        raise SourceError("{}: no such script; check the name and the folder", path)
    elif path.endswith(NOTEBOOK):
        text = notebook_code(Path(path).read_text(encoding="utf-8"), path)
    values = _parsed(options, wrong="module", hint="a script says that itself")
    _check_search(values)
    (gpu, assumptions), (world_size, rank) = _gpu(values), _ranks(values)
    limit = _count(values, "time-limit") or DEFAULT_TIME_LIMIT_S
    if limit > LONGEST_RUN_S:
        raise InvalidSpec("time-limit={} is more than a day; use at most {}", limit, LONGEST_RUN_S)
    return ScriptJob(
        path=path, text=text, is_module=is_module,
        is_command=command is not None or (is_module and path in LAUNCHING), arguments=tuple(given), gpu=gpu,
        capacity_bytes=_bytes(values, "capacity"),
        alloc_conf=values.get("alloc-conf", ""), steps=_steps(values), time_limit_s=limit,
        is_training=not values.get("eval", False),
        is_sandboxed=values.get("sandbox", False), data=_data(values.get("data", ())),
        values=_given_values(values.get("value", ())),
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
            "input={!r} must be sizes with x between them, a dtype behind and a name before where they matter: "
            "32x3x224x224, 8x1024:int64, mask=BxS:bool", text[:60]
        )
    sizes = [] if match["dims"] == "scalar" else re.split("[x*×]", match["dims"])
    dims = tuple(size if size in (BATCH, SEQUENCE) else int(size) for size in sizes)
    if any(isinstance(size, int) and not 0 < size <= LARGEST_DIMENSION for size in dims):
        raise InvalidSpec("input={!r} has a dimension of 0 or beyond 2^40; use 1 or more", text[:60])
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
            raise InvalidSpec("arg={!r} must be name=value, for example --arg depth=12", text[:60])
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
            raise InvalidSpec("--{} has no meaning here: {}; leave it out", name, hint)
    values = {name: parse(name, value, TRACE_OPTIONS) for name, value in given.items()}
    Settings.parse(values.get("alloc-conf", ""))  # what torch refuses is refused before any work
    return values


def _gpu(values: Mapping[str, Any]) -> tuple[Gpu, tuple[str, ...]]:
    """The card, and what was assumed where none is named."""
    if values.get("device") == "cpu":
        raise Unsupported("--device cpu is no longer simulated: traces are of cards; leave it out")
    gpu = load_gpu(values.get("gpu", DEFAULT_GPU))
    if "module-loading" in values:
        context = context_bytes(gpu.arch, gpu.compute_capability, loading=values["module-loading"])
        gpu = replace(gpu, context_bytes=context.typical)
    return gpu, () if "gpu" in values else (Note("no --gpu given: {}", DEFAULT_GPU),)


def _ranks(values: Mapping[str, Any]) -> tuple[int, int]:
    """Ranks in all, and which of them runs."""
    world = _count(values, "world-size") or 1
    rank: int = values.get("rank", 0)
    if not 0 <= rank < world:
        raise InvalidSpec("rank={} is not among the {} ranks of --world-size; use 0 to {}", rank, world, world - 1)
    if values.get("parallel") and world == 1:
        raise InvalidSpec("--parallel {} needs ranks; give --world-size", values["parallel"])
    return world, rank


def _data(texts: Iterable[str]) -> dict[str, int]:
    """Sizes of data that stand in for what is not there.

    >>> _data(["seq=2048,rows=64"])
    {'seq': 2048, 'rows': 64}
    """
    found: dict[str, int] = {}
    for text in ",".join(texts).replace(" ", "").split(",") if texts else ():
        name, _, value = text.partition("=")
        if name not in DATA:
            raise InvalidSpec("data={!r} must be {}", text[:60], ", ".join(f"{each}=COUNT" for each in DATA))
        found[name] = require_count(name, parse_count(name, value))
    return found


def _count(values: Mapping[str, Any], name: str) -> int | None:
    return require_count(name, values[name]) if name in values else None


def _steps(values: Mapping[str, Any]) -> int | None:
    steps = _count(values, "steps")
    if steps is not None and steps > MOST_STEPS:
        raise InvalidSpec("steps={} is more than memory needs to repeat; use at most {}", steps, MOST_STEPS)
    return steps


def _bytes(values: Mapping[str, Any], name: str) -> int | None:
    return parse_bytes(name, values[name]) if name in values else None


def _check_search(values: Mapping[str, Any]) -> None:
    if "headroom" in values and not values.keys() & {"find", "vary"}:
        raise InvalidSpec(NO_SEARCH)
    parse_axes(values.get("vary", ("batch",)))  # what is none is refused before any work
    if "find" in values and "vary" in values:
        raise InvalidSpec("--vary says the largest of each as well; leave out --find")


def _check_inputs(inputs: tuple[Input, ...], values: Mapping[str, Any]) -> None:
    names = [one.name for one in inputs if one.name]
    if len(set(names)) < len(names):
        raise InvalidSpec("--input names {} twice; give every name once", max(names, key=names.count))
    varied = {FIELDS.get(axis.name) for axis in parse_axes(values["vary"])} if "vary" in values else set()
    for letter, option in ((BATCH, "batch"), (SEQUENCE, "seq-len")):
        is_open = values.get("find") == option or option.replace("-", "_") in varied
        if any(letter in one.dims for one in inputs) and option not in values and not is_open:
            raise InvalidSpec("an --input has the letter {}, which stands for --{}; give it", letter, option)


def _check_training(values: Mapping[str, Any], is_training: bool) -> None:
    if is_training:
        return
    for name in ("optimizer", "loss", "accumulate", "checkpoint", "clip-grad", "zero-grad"):
        if name in values:
            raise InvalidSpec("--eval computes no gradients, so --{} has no meaning; leave one of them out", name)


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
        raise InvalidSpec("value {!r} names no place; write FILE:LINE=VALUE, as train.py:33=0.25", text)
    words = {"true": True, "false": False}
    if value.lower() in words:
        return place, words[value.lower()]
    for kind in (int, float):
        try:
            return place, kind(value)
        except ValueError:
            continue
    raise InvalidSpec("value {!r} is no number; write FILE:LINE=VALUE, as train.py:33=0.25 or train.py:40=true", text)


OF_TRACE: Final = (
    "gpu", "capacity", "module-loading", "alloc-conf", "steps", "memory-limit", "value", "data", "time-limit",
)
TUNE_OPTIONS: Final[dict[str, Option]] = {
    "goal": Option(
        "tune", "goal", Kind.CHOICE, "what is made best: tokens/s, samples/s, or memory for the smallest need; by "
        "default tokens/s of a text, else samples/s", TUNING_GOALS,
    ),
    "allow": Option(
        "tune", "allow", Kind.NAMES, "changes of what is computed that may be tried: bf16 (autocast), tf32, 8bit "
        "(optimizer states of bitsandbytes)",
    ),
    "forbid": Option("tune", "forbid", Kind.NAMES, f"changes that are not tried: {', '.join(CHANGES)}"),
    "any-batch": Option("tune", "any_batch", Kind.FLAG, "micro-batch times accumulation may change, too"),
    **{name: TRACE_OPTIONS[name] for name in OF_TRACE},
    "headroom": Option("tune", "headroom", Kind.TEXT, HEADROOM),
}
"""Name as users write it -> where it goes. The script and its arguments stand beside it."""
SEVERAL: Final = re.compile(r"(\d+x)+")


def build_tune(
    path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = ()
) -> tuple[ScriptJob, TuneJob]:
    """The script's run and how it is tuned.

    Raises: SourceError where there is no such script, InvalidSpec or UnknownName with one sentence
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in given:
        if name not in TUNE_OPTIONS:
            raise UnknownName.of("option", name, TUNE_OPTIONS)
    if path == STANDARD_INPUT or path.endswith(NOTEBOOK) or is_command(path) or not path.endswith(".py"):
        raise InvalidSpec("{} is no file that a patch can be of; name the script itself, as train.py", path)
    if SEVERAL.match(str(given.get("gpu", ""))):
        raise InvalidSpec(
            "gpu={}: a script is tuned for one GPU; name it alone, and ask `vramcast plan train` how to share a model "
            "among several", given["gpu"]
        )
    own = [name for name in TUNE_OPTIONS if name not in (*OF_TRACE, "headroom")]
    values = {name: parse(name, given[name], TUNE_OPTIONS) for name in own if name in given}
    for name in values.get("allow", ()):
        if name not in ALLOWED:
            raise UnknownName.of("change of what is computed", name, ALLOWED)
    for name in values.get("forbid", ()):
        if name not in CHANGES:
            raise UnknownName.of("change of a script", name, CHANGES)
    job = build_script(
        path, {name: value for name, value in given.items() if name in OF_TRACE} | {"sandbox": True},
        arguments=arguments,
    )
    asked = TuneJob(
        goal=values.get("goal"), allow=tuple(values.get("allow", ())), forbid=tuple(values.get("forbid", ())),
        any_batch=values.get("any-batch", False),
        headroom=headroom_of(given),
    )
    return job, asked
