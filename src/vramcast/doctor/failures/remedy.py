"""One row of the table of fixes, and what settings of its own a message asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from vramcast.doctor.failures.case import TORCH, Case, serving
from vramcast.domain.failure import Cause
from vramcast.units import MIB

Text: TypeAlias = Callable[[Case], str]
Size: TypeAlias = Callable[[Case], int | None]
Enough: TypeAlias = Callable[[Case], bool | None]
Applies: TypeAlias = Callable[[Case], bool]

BLOCK_TOKENS: Final = 16
"""Tokens of a cache block of vLLM; lengths are cut to whole blocks."""

CONF_NAME: Final = re.compile(r"PYTORCH_(?:[A-Z]{2,5}_)?ALLOC_CONF")

CONF_NAMES: Final[dict[str, str]] = {
    "torch-hip": "PYTORCH_HIP_ALLOC_CONF", "torch-npu": "PYTORCH_NPU_ALLOC_CONF",
    "torch-musa": "PYTORCH_MUSA_ALLOC_CONF", "torch-xpu": "PYTORCH_ALLOC_CONF",
}
"""Family -> the variable its allocator reads; others read PYTORCH_CUDA_ALLOC_CONF."""

OLD_WORDING: Final = re.compile(r"already allocated")
"""PyTorch up to 2.0, which has no expandable segments."""


class Remedy(NamedTuple):
    """Something to change, for which causes, and what it brings."""

    key: str  # of the sentence
    causes: tuple[Cause, ...]
    setting: Text | str = ""
    applies: Applies = lambda case: True
    saves: Size = lambda case: None
    enough: Enough = lambda case: None
    details: tuple[str, ...] = ()  # only for these kinds of the cause

    def setting_for(self, case: Case) -> str:
        """Ready to paste."""
        return self.setting if isinstance(self.setting, str) else self.setting(case)


def is_torch(case: Case) -> bool:
    """PyTorch's allocator on a card, Metal aside; or the table it prints."""
    return (case.family.startswith("torch-") and case.family != "torch-mps") or case.family == "memory-summary"


def is_server(*names: str) -> Applies:
    """One of these servers speaks, or its settings are mentioned."""
    words = {"vllm": r"vllm|gpu_memory_utilization", "sglang": r"sglang|mem[-_]fraction[-_]static"}

    def speaks(case: Case) -> bool:
        if case.family in names or any(case.says(words.get(name, rf"\b{name}\b")) for name in names):
            return True
        return case.family in TORCH and serving(case) and not case.facts.words.isdisjoint(names)

    return speaks


def may_train(case: Case) -> bool:
    """Nothing says that it only runs a model."""
    return not serving(case) and not case.during("generate") and case.family not in ("diffusers",)


def conf_name(case: Case) -> str:
    """The variable with the allocator's options: as the message calls it, else as its version reads it."""
    named = CONF_NAME.search(case.statement.text)
    if named is not None:
        return named[0]
    if case.family in CONF_NAMES:
        return CONF_NAMES[case.family]
    return "PYTORCH_ALLOC_CONF" if case.facts.torch >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"


def has_expandable(case: Case) -> bool:
    """Whether this PyTorch knows expandable segments (2.1); by its version, else by its wording."""
    if case.facts.torch:
        return case.facts.torch >= (2, 1)
    return case.family == "torch-npu" or OLD_WORDING.search(case.statement.text) is None


def expandable(case: Case) -> str:
    """Expandable segments on."""
    return f"{conf_name(case)}=expandable_segments:True"


def max_split(case: Case) -> str:
    """Blocks of a quarter of the request and more stay whole, so that it finds one: in MiB, a power of two."""
    quarter = (case.figures.tried or 512 * MIB) // (4 * MIB)
    megabytes = min(512, max(32, 1 << max(0, quarter.bit_length() - 1)))
    return f"{conf_name(case)}=max_split_size_mb:{megabytes}"


def joined_enough(case: Case) -> bool | None:
    """False where even all pieces and free memory joined would not do; that they would join wholly, nobody knows."""
    figures = case.figures
    if figures.tried is None or figures.free is None or figures.unallocated is None:
        return None
    return None if figures.unallocated + figures.free >= figures.tried else False


def freed_enough(name: str) -> Enough:
    """Whether the request would have been served had what this figure holds been free."""

    def enough(case: Case) -> bool | None:
        figures, held = case.figures, getattr(case.figures, name)
        if held is None or figures.tried is None or figures.free is None:
            return None
        return bool(held + figures.free >= figures.tried)

    return enough


def figure(name: str) -> Size:
    """A figure of the message as the saving."""
    return lambda case: getattr(case.figures, name)


def fitting_length(case: Case) -> int | None:
    """The longest sequence that the cache holds, by the message's own arithmetic [tokens]."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    estimated = case.number("estimated_max_len")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    if estimated:
        return int(estimated)
    if tokens:
        return int(tokens) // BLOCK_TOKENS * BLOCK_TOKENS or None
    if length and needed and available is not None and available < needed:
        return int(length * available / needed) // BLOCK_TOKENS * BLOCK_TOKENS or None
    return None


def kv_missing(case: Case) -> int | None:
    """What the cache lacks for one sequence [bytes]."""
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    return int(needed - available) if needed is not None and available is not None and needed > available else None


def kv_half(case: Case) -> int | None:
    """What a cache of 8 bits saves [bytes]."""
    needed = case.number("kv_needed_bytes")
    return None if needed is None else int(needed) // 2


def kv_half_enough(case: Case) -> bool | None:
    """Whether half a cache per token is enough."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    if needed is not None and available is not None:
        return needed / 2 <= available
    return length <= 2 * tokens if length is not None and tokens is not None else None
