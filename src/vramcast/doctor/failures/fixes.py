"""What to change, by cause, with what the message's own arithmetic gives: the rows of `fixes.csv`.

[torch] docs/source/notes/cuda.rst, `PYTORCH_CUDA_ALLOC_CONF`; [vllm] docs/configuration/conserving_memory.md
[sglang] docs/advanced_features/hyperparameter_tuning.md; [trtllm] `KvCacheConfig.free_gpu_memory_fraction`
[llama.cpp] common/arg.cpp; [ollama] envconfig/config.go and api/types.go at fb3076099
[tf] `TF_FORCE_GPU_ALLOW_GROWTH`; [jax] docs/gpu_memory_allocation.rst
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from vramcast.doctor.failures.case import Case
from vramcast.doctor.failures.causes import Judged
from vramcast.doctor.failures.evidence import Holds, condition, is_server, table
from vramcast.doctor.failures.quantities import NEAR, higher_share, kv_missing
from vramcast.domain.failure import Cause, Fix, Remark
from vramcast.lazy import lazy_pattern
from vramcast.units import MIB, ceil_div

BLOCK_TOKENS: Final = 16
"""Tokens of a cache block of vLLM; lengths are cut to whole blocks."""

CONF_NAME: Final = lazy_pattern(r"PYTORCH_(?:[A-Z]{2,5}_)?ALLOC_CONF")

CONF_NAMES: Final[dict[str, str]] = {
    "torch-hip": "PYTORCH_HIP_ALLOC_CONF", "torch-npu": "PYTORCH_NPU_ALLOC_CONF",
    "torch-musa": "PYTORCH_MUSA_ALLOC_CONF", "torch-xpu": "PYTORCH_ALLOC_CONF",
}
"""Family -> the variable its allocator reads; others read PYTORCH_CUDA_ALLOC_CONF."""

SHARES: Final[dict[str, str]] = {
    "sglang": "--mem-fraction-static 0.9", "tensorrt-llm": "kv_cache_config.free_gpu_memory_fraction: 0.95",
    "lmdeploy": "--cache-max-entry-count 0.9",
}
"""Server -> the option that gives its cache more of the card; others: vLLM's."""

LOWER: Final = 0.85
"""A share of the card below what engines take by themselves, 0.9 or 0.92, where the text gives none."""

LISTING: Final[dict[str, str]] = {
    "torch-npu": "npu-smi info", "torch-hip": "rocm-smi --showpids", "torch-xpu": "xpu-smi ps",
}
"""Family -> what lists the processes of a card; others: nvidia-smi."""

VISIBLE: Final[dict[str, str]] = {
    "torch-npu": "ASCEND_RT_VISIBLE_DEVICES", "torch-hip": "HIP_VISIBLE_DEVICES", "torch-xpu": "ZE_AFFINITY_MASK",
}


def _conf_name(case: Case) -> str:
    """The variable with the allocator's options: as the message calls it, else as its version reads it."""
    named = CONF_NAME.search(case.statement.text)
    if named is not None:
        return named[0]
    newest = "PYTORCH_ALLOC_CONF" if case.facts.torch >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"
    return CONF_NAMES.get(case.family, newest)


def _max_split(case: Case) -> str:
    """Blocks of a quarter of the request and more stay whole, so that it finds one: in MiB, a power of two."""
    quarter = (case.figures.tried or 512 * MIB) // (4 * MIB)
    megabytes = min(512, max(32, 1 << max(0, quarter.bit_length() - 1)))
    return f"{_conf_name(case)}=max_split_size_mb:{megabytes}"


def _fitting_length(case: Case) -> int | None:
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


def _kv_half(case: Case) -> int | None:
    """What a cache of 8 bits saves [bytes]."""
    needed = case.number("kv_needed_bytes")
    return None if needed is None else int(needed) // 2


def _kv_half_enough(case: Case) -> bool | None:
    """Whether half a cache per token is enough."""
    length, tokens = case.number("max_model_len"), case.number("kv_tokens")
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    if needed is not None and available is not None:
        return needed / 2 <= available
    return length <= 2 * tokens if length is not None and tokens is not None else None


def _higher_fraction(case: Case) -> str:
    """More of the card for an engine, in the engine's own words."""
    own = f"--gpu-memory-utilization {higher_share(case) or 0.95:.2f}"
    return next((setting for name, setting in SHARES.items() if is_server(case, (name,))), own)


def _needed_fraction(case: Case) -> float | None:
    """The share of the card that what is held and the request take together, to the hundredth above."""
    figures = case.figures
    held = figures.reserved if figures.reserved is not None else figures.allocated
    if held is None or figures.tried is None or not figures.total:
        return None
    share = ceil_div(round(1e6 * (held + figures.tried) / figures.total), 10_000) / 100
    return share if share <= 1 else None


def _fraction(case: Case) -> str:
    share, device = _needed_fraction(case), case.number("device")
    number = "" if device is None else f", {int(device)}"
    return f"torch.cuda.set_per_process_memory_fraction({1.0 if share is None else share}{number})"


def _raised(case: Case) -> bool | None:
    """Whether the request fits once the limit is as high as that share: there must be that much free."""
    figures = case.figures
    if _needed_fraction(case) is None or figures.tried is None or figures.free is None:
        return None
    return figures.free >= figures.tried + NEAR


def _above_limit(case: Case) -> int | None:
    """What the raised limit gives this process beyond the one it had [bytes]."""
    figures, share = case.figures, _needed_fraction(case)
    if figures.allowed is None or figures.total is None or share is None:
        return None
    return max(0, int(share * figures.total) - figures.allowed)


def _lower_share(case: Case) -> float | None:
    """A share of the card that leaves what was missing, to the hundredth below."""
    fraction, short, total = case.number("memory_fraction"), case.figures.short, case.figures.total
    if fraction is None or fraction > 1 or short is None or not total:
        return None
    lower = int(100 * (fraction - short / total) - 1e-9) / 100
    return lower if lower > 0 else None


def _lower_fraction(case: Case) -> str:
    option = "--mem-fraction-static" if is_server(case, ("sglang",)) else "--gpu-memory-utilization"
    return f"{option} {_lower_share(case) or LOWER:.2f}"


def _lower_saves(case: Case) -> int | None:
    lower, fraction, total = _lower_share(case), case.number("memory_fraction"), case.figures.total
    return None if lower is None or fraction is None or total is None else int((fraction - lower) * total)


def _what_is_free(case: Case) -> str:
    """The share of the card that was free when the engine began, to the hundredth below."""
    total, free = case.figures.total, case.figures.free
    return "" if not total or free is None else f"--gpu-memory-utilization {int(100 * free / total) / 100:.2f}"


def _freed(name: str) -> Callable[[Case], bool | None]:
    """Whether the request would have been served had what this figure holds been free; None where that is not known."""

    def enough(case: Case) -> bool | None:
        figures, held = case.figures, getattr(case.figures, name)
        if held is None or figures.tried is None or figures.free is None:
            return None
        return bool(held + figures.free >= figures.tried)

    return enough


def _joined(case: Case) -> bool | None:
    """False where even all pieces and free memory joined would not do; that they would join wholly, nobody knows."""
    return None if _freed("unallocated")(case) is not False else False


SETTINGS: Final[dict[str, Callable[[Case], str]]] = {
    "{expandable}": lambda case: f"{_conf_name(case)}=expandable_segments:True",
    "{fraction}": _fraction,
    "{higher_fraction}": _higher_fraction,
    "{length}": lambda case: f"--max-model-len {_fitting_length(case) or 'N'}",
    "{listing}": lambda case: LISTING.get(
        case.family, "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"
    ),
    "{lower_fraction}": _lower_fraction,
    "{max_split}": _max_split,
    "{visible}": lambda case: (
        f"{VISIBLE.get(case.family, 'CUDA_VISIBLE_DEVICES')}={1 if not case.number('device') else 0}"
    ),
    "{what_is_free}": _what_is_free,
}
SAVES: Final[dict[str, Callable[[Case], int | None]]] = {
    "above_limit": _above_limit, "kv_half": _kv_half, "kv_missing": kv_missing, "lower_share": _lower_saves,
}
"""What is no figure of the message itself."""

ENOUGH: Final[dict[str, Callable[[Case], bool | None]]] = {
    "fitting_length": lambda case: True if _fitting_length(case) else None,
    "freed:others": _freed("others"),
    "freed:pools": _freed("pools"),
    "higher_share": lambda case: True if higher_share(case) else None,
    "joined": _joined,
    "kv_half": _kv_half_enough,
    "lower_share": lambda case: True if _lower_share(case) else None,
    "raised": _raised,
}


class Remedy(Struct, frozen=True):
    """Something to change, for which causes, and what it brings: names in the tables above."""

    key: str  # of the sentence
    causes: frozenset[Cause]
    setting: str  # ready to paste, or a name of `SETTINGS`
    applies: Holds
    saves: str
    enough: str
    details: list[str]  # only for these kinds of the cause, "-" for none; empty: for all

    def fix(self, case: Case) -> Fix:
        """As it is for one failure."""
        saves = None
        if self.saves:
            saves = SAVES[self.saves](case) if self.saves in SAVES else getattr(case.figures, self.saves)
        made = SETTINGS.get(self.setting)
        return Fix(
            action=Remark(key=self.key), setting=self.setting if made is None else made(case), saves_bytes=saves,
            shown_by="" if saves is None else "arithmetic", enough=ENOUGH[self.enough](case) if self.enough else None,
        )


REMEDIES: Final = tuple(
    Remedy(key, frozenset(map(Cause, causes.split())), setting, condition(when, says), saves, enough, details.split())
    for key, causes, setting, when, says, saves, enough, details in table("fixes.csv")
)
"""All of them; of one cause in the order in which they should be tried."""

OFFERED: Final = 8
"""The most fixes that are shown of one failure."""

ALSO: Final = 0.25
"""A cause this likely is treated as well, where it is not the likeliest."""


def fixes_of(case: Case, judged: Judged) -> tuple[Fix, ...]:
    """The fixes of one failure: those of its cause, then those of another that is likely too; enough ones first."""
    also = (name for name in judged.likely if judged.likely[name] >= ALSO)
    causes = sorted(also, key=lambda name: -judged.likely[name])
    rank = {True: 0, None: 1, False: 2}
    found: dict[tuple[str, str], Fix] = {}
    for cause in dict.fromkeys((judged.cause, *causes)):
        for fix in sorted(_of_cause(case, cause, judged.detail), key=lambda fix: rank[fix.enough]):
            found.setdefault((fix.action.key, fix.setting), fix)
    return tuple(found.values())[:OFFERED]


def _of_cause(case: Case, cause: Cause, detail: str) -> Iterator[Fix]:
    for remedy in REMEDIES:
        meant = not remedy.details or (detail or "-") in remedy.details
        if cause in remedy.causes and meant and remedy.applies(case):
            yield remedy.fix(case)
