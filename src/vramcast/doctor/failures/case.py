"""One failure with all that rules, fixes and explanations look at: figures, what follows from them, what is around.

[message] pytorch c10/cuda/CUDACachingAllocator.cpp, `OutOfMemoryError`: "free" is asked of the driver after everything
the allocator can give back was given back, so what is reserved and not allocated lies in split segments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vramcast.domain.failure import Statement
from vramcast.domain.verdict import Fit
from vramcast.lazy import lazy_pattern
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from vramcast.sources.failures import Failures


ROUNDING: Final = (1 << 30) // 100
"""Messages print GiB with two decimals: sums of such figures differ by as much [bytes]."""

CONTEXT_LEAST: Final = 100 << 20
"""A process whose request a card refuses holds a context there: at least so much [bytes]."""

WIDTHS: Final[dict[str, int]] = {
    "bool": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "int16": 2, "float": 4, "float32": 4,
    "int32": 4, "double": 8, "float64": 8, "int64": 8, "complex64": 8, "complex128": 16,
}
"""Bytes of an element by the names of TensorFlow and NumPy."""

Numbers = Mapping[str, int | float | str]


class Figures(Struct, frozen=True):
    """Sizes of one statement [bytes]. None: the text does not say, and it does not follow."""

    tried: int | None = None  # the request that failed
    total: int | None = None  # of the card
    free: int | None = None  # as the driver says
    allocated: int | None = None  # live tensors, pools of captured graphs included
    reserved: int | None = None  # held by the framework's allocator
    unallocated: int | None = None  # reserved, in pieces between live tensors
    pools: int | None = None  # free blocks that captured graphs keep
    allowed: int | None = None  # what a fraction lets this process take
    process: int | None = None  # this process on the card, context and libraries included
    others: int | None = None  # other processes, stated or what is left of the card
    beside: int | None = None  # this process outside the allocator: context, libraries, other allocators
    outside: int | None = None  # on the card outside the allocator, whoever holds it
    own: bool = False  # the process that the text lists as another is this one

    @property
    def short(self) -> int | None:
        """What was missing at least: the request less what the driver had free."""
        if self.tried is None or self.free is None:
            return None
        return max(0, self.tried - self.free)

    @property
    def limit(self) -> int | None:
        """The most this process could take: a fraction of the card, or the card."""
        return self.total if self.allowed is None else self.allowed

    @property
    def scattered(self) -> float | None:
        """Share of what is reserved that is not allocated."""
        if not self.reserved or self.unallocated is None:
            return None
        return min(1.0, self.unallocated / self.reserved)


def figures_of(numbers: Numbers) -> Figures:
    """The figures of a statement and what follows from them; impossible ones are left out.

    >>> gib = 1 << 30
    >>> figures_of({"total_bytes": 12 * gib, "allocated_bytes": 9 * gib, "reserved_bytes": 11 * gib}).unallocated // gib
    2
    """
    tried, total, free = (_size(numbers, name) for name in ("tried_bytes", "total_bytes", "free_bytes"))
    tried = _size(numbers, "buffer_bytes") if tried is None else tried
    tried = _tensor_bytes(numbers) if tried is None else tried
    free = _left(total, _size(numbers, "used_bytes")) if free is None else free
    allocated, reserved = _size(numbers, "allocated_bytes"), _size(numbers, "reserved_bytes")
    unallocated = _size(numbers, "unallocated_bytes")
    if unallocated is None and reserved is not None and allocated is not None and reserved >= allocated:
        unallocated = reserved - allocated
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    process = _size(numbers, "process_bytes")
    others = _size(numbers, "other_processes_bytes")
    held = reserved if reserved is not None else allocated
    own = False
    used = None if total is None or free is None else _left(total, free)
    if others is None:
        others = _left(used, process)
        others = 0 if others is not None and others < ROUNDING else others
    elif process is None and used is not None and used - others < (least := CONTEXT_LEAST if held is None else held):
        # what the listed processes leave cannot hold this one's memory: it is one of them (containers)
        own = numbers.get("other_processes", 1) == 1 and least <= others <= used + ROUNDING
        process, others = (others, None) if own else (None, None)
    return Figures(
        tried=tried, total=total, free=free, allocated=allocated, reserved=reserved, unallocated=unallocated,
        pools=_size(numbers, "private_pools_bytes"), allowed=_size(numbers, "allowed_bytes"), process=process,
        others=others,
        beside=_size(numbers, "other_allocations_bytes") if process is None else _left(process, held),
        outside=_left(used, held), own=own,
    )


def _tensor_bytes(numbers: Numbers) -> int | None:
    """Bytes of a tensor of which the text gives shape and type.

    >>> _tensor_bytes({"shape": "[8192,50257]", "dtype": "half"})
    823410688
    """
    width = WIDTHS.get(str(numbers.get("dtype", "")))
    sides = re.findall(r"[0-9]{1,12}", str(numbers.get("shape", "")))
    return prod(map(int, sides)) * width if width and sides else None


def _left(whole: int | None, part: int | None) -> int | None:
    """What a part leaves of the whole; None where either is unknown or the part is larger by more than rounding."""
    if whole is None or part is None or part > whole + ROUNDING:
        return None
    return max(0, whole - part)


def _size(numbers: Numbers, name: str) -> int | None:
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 63:
        return None
    return int(value)


LONGEST: Final = 2_000
"""Of a statement only its beginning is searched for words [characters]."""

TORCH: Final = (
    "torch-cuda", "torch-hip", "torch-xpu", "torch-npu", "torch-musa", "torch-mlu", "torch-gcu", "torch-hpu",
    "torch-device", "torch-snapshot",
)
"""Families whose figures are those of PyTorch's caching allocator, on the card's own memory."""

SERVERS: Final = ("vllm", "vllm-tpu", "sglang", "tensorrt-llm", "tgi", "lmdeploy")
AROUND: Final = ("vllm", "sglang")
"""Servers that the text around a failure of PyTorch shows (`WORDS`)."""

RL: Final = ("verl", "openrlhf", "trl-rl", "nemo-rl", "slime")
"""Frameworks of post-training that the text around a failure shows (`WORDS`): a step has stages, and a card several
processes."""

LLAMA: Final = ("llama.cpp", "ollama")
LIBRARIES: Final = ("cublas", "cudnn", "nccl", "cuda-libraries")
HOST: Final = (
    "host", "linux", "process-killed", "slurm", "ray", "python", "windows", "torch-cpu", "torch-dataloader",
)
"""Families that speak of main memory."""

TABLES: Final = ("memory-summary", "nvidia-smi", "rocm-smi", "npu-smi")
"""Families of tables that people paste beside a failure."""

NOT_MEMORY: Final = ("not-memory", "triton")
"""Families of errors that look like it: misaligned addresses, a kernel that asks for more than a block has."""


class Facts(Struct, frozen=True):
    """What the text around the statements says."""

    phases: frozenset[str] = frozenset()  # values of `PHASES`
    alloc_conf: str = ""  # of the allocator, as far as the text shows it
    torch: tuple[int, ...] = ()  # version
    cards: tuple[str, ...] = ()
    frame: str = ""  # the last line of the traceback that is the user's own
    steps: tuple[int, ...] = ()  # at which training or serving was when it failed, in order
    nan: bool = False  # the loss is NaN or infinite somewhere
    overflow: bool = False  # a gradient scaler skips steps
    windows: bool = False
    words: frozenset[str] = frozenset()  # of `WORDS` that the text mentions
    fraction: float | None = None  # of the card that an engine takes, where the text around says so
    trains: bool = False  # a recording of the process has gradients or optimizer states
    busy: float | None = None  # share of a card that a table beside the failure shows as used, from a half on


NO_FACTS: Final = Facts()


class Predicted(Struct, frozen=True):
    """What `train` or `serve` says of the job, on its fullest card [bytes]."""

    verdict: Fit
    device: int
    allocated: int
    reserved: int
    capacity: int


class Case(Struct, frozen=True):
    """A statement, its arithmetic and what surrounds it."""

    statement: Statement
    figures: Figures
    facts: Facts
    grew_bytes: int | None = None  # live memory, from the first failure of the text to the last, where it only grew
    job: Predicted | None = None  # where the user gave it
    replay_avoids: str = ""  # an allocator setting under which the recording of this process does not run out

    @property
    def family(self) -> str:
        """Who speaks."""
        return self.statement.family

    def says(self, pattern: str) -> bool:
        """Whether the statement's own words match, letter case aside."""
        return re.search(pattern, self.statement.text[:LONGEST], re.I) is not None

    def during(self, *phases: str) -> bool:
        """Whether the text shows one of these going on."""
        return not self.facts.phases.isdisjoint(phases)

    def number(self, name: str) -> float | None:
        """A number of the statement that is no size of the card, such as tokens."""
        value = self.statement.numbers.get(name)
        if value is None and name == "memory_fraction":
            value = self.facts.fraction
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 63
        return value if known else None  # type: ignore[return-value]


def case_of(statement: Statement, facts: Facts = NO_FACTS, grew_bytes: int | None = None) -> Case:
    """The case of one statement."""
    return Case(statement, figures_of(statement.numbers), facts, grew_bytes)


def size(num_bytes: float | None) -> str:
    """A size as reports show it.

    >>> size(1 << 30)
    '1.00 GiB'
    """
    return "?" if num_bytes is None else format_bytes(int(num_bytes))


def percent(share: float | None) -> str:
    """A share in whole per cent.

    >>> percent(0.246)
    '25 %'
    """
    return "" if share is None else f"{100 * share:.0f} %"


PHASES: Final[dict[str, str]] = {
    "backward": "backward", "optimizer_step": "optimizer", "optimizer_state": "optimizer", "model_to_device": "load",
    "loading": "load", "generate": "generate", "data_loader": "loader", "pin_memory": "loader",
    "attention": "attention", "attention_eager": "attention", "cross_entropy": "loss", "graph_capture": "capture",
    "checkpointing": "checkpoint", "profile_run": "profile", "kv_cache": "cache", "validation": "evaluate",
    "compiled": "compile", "context": "context",
    **{f"rl_{stage}": f"rl_{stage}" for stage in (
        "update", "critic", "reference", "log_prob", "values", "wake", "handover", "generate", "save")},
}
"""What a traceback passes through -> the phase that rules ask for."""

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "leak": (
        "memory leak", "leaks memory", "leaking memory", "memory keeps growing", "memory keeps increasing",
        "memory usage keeps", "memory grows", "显存泄漏", "内存泄漏", "显存不断增", "显存一直增",
    ),
    "context": ("cuctxcreate", "cudeviceprimaryctxretain"),
    "vllm": ("/vllm/", "vllm/v1/", "vllm/worker/", "vllmworker", "enginecore", "vllm.entrypoints", "vllm serve"),
    "sglang": ("/sglang/", "sglang.launch_server", "--mem-fraction-static", "sgl-project/sglang", "sgl_kernel"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "gpu-memory-utilization"),
    "gradient_checkpointing": ("gradient_checkpointing", "use_reentrant", "checkpointerror", "torch.utils.checkpoint"),
    "deepspeed": (
        "reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "deepspeedengine", "deepspeed/runtime",
    ),
    "fsdp": ("fullyshardeddataparallel", "fully_shard", "flat_param", "torch/distributed/fsdp"),
    "offload_optimizer": ("offload_optimizer", "deepspeedcpuadam", "offload_param"),
    "verl": ("verl/trainer", "verl/workers", "verl.trainer", "verl/single_controller", "workerdict"),
    "openrlhf": ("openrlhf/", "openrlhf.cli"),
    "trl-rl": ("grpo_trainer.py", "rloo_trainer.py", "online_dpo_trainer.py"),
    "nemo-rl": ("nemo_rl/",),
    "slime": ("slime/backends", "slime/ray", "slime/rollout", "slime/utils"),
}
"""A word of the rules -> what stands for it in a text, in lower case."""

USED: Final = ("used_bytes", "total_bytes")
BUSY: Final = 0.5
"""Share of a card from which on it counts as taken."""

VERSION: Final = lazy_pattern(r"(\d{1,3})\.(\d{1,3})")


def facts_of(found: Failures, words: frozenset[str], number: int | None = None) -> Facts:
    """The facts of one statement, or of the whole text.

    Args:
        words: of the rules that stand in the text: `words_of`
        number: of the statement; None: the text at large and all statements
    """
    versions = [VERSION.match(str(value)) for value in found.facts("torch", number)]
    version = next((match for match in versions if match), None)
    fractions = [_share(value) for value in found.facts("memory_utilization", number)]
    return Facts(
        phases=frozenset(phase for name, phase in PHASES.items() if found.facts(name, number)),
        alloc_conf=str(next(iter(found.facts("alloc_conf", number)), "")),
        torch=(int(version[1]), int(version[2])) if version else (),
        cards=tuple(str(value) for value in found.facts("gpu", number)),
        frame=str(next(iter(found.facts("user_frame", number)), "")),
        steps=tuple(value for value in found.facts("step", number) if isinstance(value, int)),
        nan=bool(found.facts("loss_not_finite", number)),
        overflow=bool(found.facts("loss_scale", number)),
        windows=bool(found.facts("windows", number) or found.facts("wsl", number)),
        words=words,
        fraction=next((value for value in fractions if value is not None), None),
        busy=_busy(found.statements, found.statements[number].numbers.get("device", 0) if number is not None else 0),
    )


def _busy(statements: Sequence[Statement], device: int | float | str) -> float | None:
    """What a table beside a failure shows as used of its card, or of the first card it lists."""
    tables = [item.numbers for item in statements if item.family in TABLES and {*USED} <= set(item.numbers)]
    numbers = next((item for item in tables if item.get("device") == device), tables[0] if tables else None)
    used, total = (numbers.get(name) for name in USED) if numbers else (None, None)
    if not isinstance(used, int) or not isinstance(total, int) or not BUSY * total <= used <= total or not total:
        return None
    return used / total


def words_of(text: str) -> frozenset[str]:
    """The words of the rules that stand in a text."""
    lowered = text.lower()
    return frozenset(word for word, phrases in WORDS.items() if any(phrase in lowered for phrase in phrases))


def _share(value: object) -> float | None:
    try:
        share = float(str(value))
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
