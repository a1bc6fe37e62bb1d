"""One failure with everything that rules, fixes and explanations look at."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from vramcast.doctor.failures.figures import Figures, figures_of
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Statement
from vramcast.units import format_bytes

LONGEST: Final = 2_000
"""Of a statement only its beginning is searched for words [characters]."""

TORCH: Final = (
    "torch-cuda", "torch-hip", "torch-xpu", "torch-npu", "torch-musa", "torch-mlu", "torch-gcu", "torch-hpu",
    "torch-device", "torch-snapshot",
)
"""Families whose figures are those of PyTorch's caching allocator, on the card's own memory."""

SERVERS: Final = ("vllm", "vllm-tpu", "sglang", "tensorrt-llm", "tgi", "lmdeploy")
AROUND: Final = ("vllm", "sglang")
"""Servers that the text around a failure of PyTorch shows (`facts.WORDS`)."""

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


class Facts(NamedTuple):
    """What the text around the statements says."""

    phases: frozenset[str] = frozenset()  # values of `facts.PHASES`
    alloc_conf: str = ""  # of the allocator, as far as the text shows it
    torch: tuple[int, ...] = ()  # version
    cards: tuple[str, ...] = ()
    frame: str = ""  # the last line of the traceback that is the user's own
    steps: tuple[int, ...] = ()  # at which training or serving was when it failed, in order
    nan: bool = False  # the loss is NaN or infinite somewhere
    overflow: bool = False  # a gradient scaler skips steps
    windows: bool = False
    words: frozenset[str] = frozenset()  # of `facts.WORDS` that the text mentions
    fraction: float | None = None  # of the card that an engine takes, where the text around says so
    trains: bool = False  # a recording of the process has gradients or optimizer states
    busy: float | None = None  # share of a card that a table beside the failure shows as used, from a half on


NO_FACTS: Final = Facts()


class Predicted(NamedTuple):
    """What `train` or `serve` says of the job, on its fullest card [bytes]."""

    verdict: Fit
    device: int
    allocated: int
    reserved: int
    capacity: int


class Case(NamedTuple):
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


def may_infer(case: Case) -> bool:
    """Nothing says that it trains."""
    return not (case.facts.trains or case.during("backward", "optimizer", "loss"))


def serving(case: Case) -> bool:
    """An inference server or a local runtime: nothing is trained."""
    around = case.family in TORCH and not case.facts.words.isdisjoint(AROUND)
    return case.family in (*SERVERS, *LLAMA) or (around and may_infer(case))


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
