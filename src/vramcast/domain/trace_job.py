"""What is traced: a module or a script, its inputs, what a step does, and the card it is for."""

from __future__ import annotations

from typing import Any, Final

from vramcast.domain.device import Gpu
from vramcast.domain.model import Noun

BATCH: Final = "B"
SEQUENCE: Final = "S"
"""Letters that stand for --batch and --seq-len in the shape of an input."""
DEFAULT_STEPS: Final = 3
"""The first makes the optimizer's states, the second is steady, the third shows whether reserved memory still grows."""
DEFAULT_TIME_LIMIT_S: Final = 300


class Input(Noun, frozen=True):
    """One tensor a forward takes."""

    dims: tuple[int | str, ...]  # BATCH and SEQUENCE stand for numbers that are given apart
    dtype: str = ""  # of torch, "int64"; "" that of the weights
    name: str = ""  # keyword of forward; "" by position


class TraceJob(Noun, frozen=True):
    """One traced run. What is None the target decides."""

    target: str
    gpu: Gpu
    arguments: dict[str, Any] = {}  # of the factory
    inputs: tuple[Input, ...] = ()
    batch: int | None = None  # samples
    seq_len: int | None = None  # positions
    loss: str = ""  # name or module:function; "" what the target's output calls for
    optimizer: str = "adamw"  # name or module:Class
    amp: str = ""  # dtype of autocast; "" off
    dtype: str = ""  # of the weights; "" as the target has them
    accumulate: int = 1  # micro-batches per optimizer step
    checkpoint: tuple[str, ...] = ()  # modules that are recomputed, patterns of names or classes
    is_training: bool = True
    steps: int = DEFAULT_STEPS
    zero_grad: str = "none"  # "none" frees gradients, "zero" keeps and fills them
    clips: bool = False  # the norm of the gradients before the optimizer's step
    compiles: bool = False
    capacity_bytes: int | None = None  # None: as the card has
    alloc_conf: str = ""
    world_size: int = 1
    rank: int = 0
    parallel: str = ""  # "ddp", "fsdp", "fsdp2"
    assumptions: tuple[str, ...] = ()  # made where nothing was said


class ScriptJob(Noun, frozen=True):
    """One traced run of an unmodified script."""

    path: str  # a file; of a module its name
    gpu: Gpu
    text: str | None = None  # what runs in place of the file: the cells of a notebook, standard input
    is_module: bool = False  # as with `python -m`
    is_command: bool = False  # the file is a command in Python, which may launch others: torchrun
    arguments: tuple[str, ...] = ()
    capacity_bytes: int | None = None
    alloc_conf: str = ""
    steps: int | None = None  # None: until steps repeat
    time_limit_s: int = DEFAULT_TIME_LIMIT_S
    is_sandboxed: bool = False  # files it would write are kept out
    memory_limit_bytes: int | None = None  # of main memory that the script may take; None: what is there
    enforces_capacity: bool = False  # it runs out of memory as on the card, so that scripts that try again can
    values: dict[str, str] = {}  # place in the code -> the value that data would have there
    data: dict[str, int] = {}  # "seq", "rows", "image" -> size of data that stand in for what is not there
    stand_ins: tuple[str, ...] = ()  # packages that are not installed, and without which it did not run
    world_size: int = 1
    rank: int = 0
    assumptions: tuple[str, ...] = ()
