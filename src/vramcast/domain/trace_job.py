"""What is traced: a module or a script, its inputs, what a step does, the card it is for, and what a traced run says.

That is the answer of `trace`, who held the peak, and what the tracer does not know.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vramcast.domain.answer import FIRST, LAST, Answer
from vramcast.domain.device import Gpu
from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Snapshot

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


PLACED: Final = (
    "the script computes on the CPU alone: traced as with its networks, and every tensor that meets them, moved to the "
    "card, model.to('cuda') and x.to('cuda')"
)
"""What is assumed of a script that does not ask for a card; told with the answer's first lines."""


class ScriptJob(Noun, frozen=True):
    """One traced run of an unmodified script."""

    path: str  # a file; of a module its name
    gpu: Gpu
    text: str | None = None  # what runs in place of the file: the cells of a notebook, standard input
    texts: dict[str, str] = {}  # of modules beside it: what is imported in place of the files
    is_module: bool = False  # as with `python -m`
    is_command: bool = False  # the file is a command in Python, which may launch others: torchrun
    arguments: tuple[str, ...] = ()
    capacity_bytes: int | None = None
    alloc_conf: str = ""
    steps: int | None = None  # None: until steps repeat
    is_training: bool = True  # False: the answer is of what runs, though an optimizer takes no step
    time_limit_s: int = DEFAULT_TIME_LIMIT_S
    spent_s: float = 0  # of that, by starts before this one
    is_sandboxed: bool = False  # files it would write are kept out
    memory_limit_bytes: int | None = None  # of main memory that the script may take; None: what is there
    enforces_capacity: bool = False  # it runs out of memory as on the card, so that scripts that try again can
    values: dict[str, str] = {}  # place in the code -> the value that data would have there
    data: dict[str, int] = {}  # "seq", "rows", "image" -> size of data that stand in for what is not there
    stand_ins: tuple[str, ...] = ()  # packages that are not installed, and without which it did not run
    folders: tuple[str, ...] = ()  # of the script's own project, which are to be on the path
    made: tuple[str, ...] = ()  # files and folders of data that are not there, and without which it did not run
    logs_calls: bool = False  # its tape has every call, from which other sizes follow
    is_launched: bool = False  # one rank alone has the variables that torchrun sets, too
    is_placed: bool = False  # it stays on the CPU by itself: its networks, and what meets them, are moved to the card
    world_size: int = 1
    rank: int = 0
    assumptions: tuple[str, ...] = ()


class Holding(Noun, frozen=True, rename={"num_bytes": "bytes", "count": "blocks"}):
    """Blocks alive at the peak that share something."""

    name: str  # a module "layers.3.mlp", a line "train.py:50 step", an operator "aten.mm"; "" where that is unknown
    num_bytes: int
    count: int


class Holdings(Noun, frozen=True, rename=lambda name: name.removeprefix("by_")):
    """The peak of allocated memory, cut three ways. Each adds up to it, without slack in blocks."""

    by_module: tuple[Holding, ...]  # largest first
    by_line: tuple[Holding, ...]
    by_operator: tuple[Holding, ...]


class UnknownOperator(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """An operator of which nobody has read what it allocates on CUDA beyond its outputs."""

    name: str  # "aten.foo", "mylib.bar"
    calls: int
    num_bytes: int  # of its outputs, all calls together
    peak_bytes: int  # of its outputs alive at the peak


class TraceFailure(Noun, frozen=True, kw_only=True, rename={"num_bytes": "bytes"}):
    """The first request that the card cannot serve."""

    num_bytes: int  # asked of the driver, as the message says: whole pages
    step: int  # from 1
    phase: str  # "setup", "forward", "backward", "optimizer"
    operator: str = ""
    module: str = ""  # "" outside modules
    line: str = ""  # of the user, "train.py:50 step"
    message: str  # what PyTorch would print
    stack: tuple[str, ...] = ()  # innermost first


class TracedTime(Noun, frozen=True, kw_only=True):
    """How long the last step takes on the card, and what the time goes to: an estimate, without an interval as too few
    steps were measured."""

    step_s: float
    flops: float  # of products, convolutions and attention, without what recomputation repeats
    mfu: float  # of the card's dense data-sheet rate in the dtype that most of them are computed in
    bound: str  # what the largest part is: "compute", "memory", "launch", "offload"
    seconds: dict[str, float]  # cause -> part of step_s that nothing else hides; they add up to step_s
    modules: dict[str, float]  # innermost module -> its part, longest first; the optimizer is one, "" outside of all
    samples_per_s: float | None = None  # of all ranks; None: nobody said how many a step has
    sources: tuple[str, ...]  # what the rates rest on
    left_out: tuple[str, ...]  # what a step takes beside it, sentences


class CoursePoint(NamedTuple):
    """The most in a stretch of the run [bytes]."""

    allocated_bytes: int
    reserved_bytes: int


class TraceAnswer(Answer, frozen=True, kw_only=True):
    """The answer to one traced run of one process."""

    KEYS = (
        *FIRST, *LAST, "steps", "events", "holdings", "unknown_operators", "course", "failure",
        ("time", "traced_time"), "timeline", "stopped",
    )
    SHOWN = (*Answer.SHOWN, "steps", "events", "unknown_operators", "course")

    steps: int = 0  # that were run
    events: int = 0  # allocations and frees
    holdings: Holdings
    unknown_operators: tuple[UnknownOperator, ...] = ()  # by bytes at the peak, largest first
    failure: TraceFailure | None = None
    traced_time: TracedTime | None = None  # None: no step was marked, or the card's data sheet is not known
    course: tuple[CoursePoint, ...] = ()  # of the whole run, in equal stretches of events
    timeline: str | None = None  # path of the snapshot written
    stopped: str = ""  # why the run ended before its steps were done, a sentence


class Traced(Noun, frozen=True):
    """An answer with the recording behind it."""

    answer: TraceAnswer
    snapshot: Snapshot
