"""The value of PYTORCH_CUDA_ALLOC_CONF from what a snapshot says about the allocator's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.units import MIB

_TEXTS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "last_allocator_settings")
_LONGEST: Final = 4096
_LARGEST_SPLIT_MB: Final = 2**40
_TABLE_ENTRIES: Final = 16
_EXPANDABLE: Final = "expandable_segments:{}"
_SAYS_EXPANDABLE: Final = re.compile(r"expandable_segments\s*:\s*(\w+)")


def alloc_conf(settings: object, *, is_expandable: bool = False) -> str:
    """The text itself where the snapshot has it, else one that says the same as the parsed fields.

    Whether segments are expandable is as the parsed field says: a text set later replaces the earlier without
    resetting it, and where the driver has no such segments the field says so [pytorch c10/cuda/CUDAAllocatorConfig.h,
    expandable_segments]. Versions that write no settings show it by their segments.

    >>> alloc_conf({"max_split_size": 134217728, "expandable_segments": True})
    'max_split_size_mb:128,expandable_segments:True'
    >>> alloc_conf({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False})
    'expandable_segments:False'

    Args:
        settings: `allocator_settings` of the snapshot
        is_expandable: whether every segment of the snapshot is expandable, and there is one
    """
    if not isinstance(settings, dict):
        return _EXPANDABLE.format(True) if is_expandable else ""
    for key in _TEXTS:
        value = settings.get(key)
        if isinstance(value, str) and value and len(value) <= _LONGEST and value.isprintable():
            return _corrected(value, settings.get("expandable_segments"))
    return ",".join(_parsed(settings))


def _corrected(text: str, is_expandable: object) -> str:
    """The text with what the parsed field says of expandable segments."""
    said = _SAYS_EXPANDABLE.search(text)
    if not isinstance(is_expandable, bool) or (said is not None and said[1] == "True") == is_expandable:
        return text
    now = _EXPANDABLE.format(is_expandable)
    return f"{text},{now}" if said is None else text[: said.start()] + now + text[said.end() :]


def _parsed(settings: Mapping[str, Any]) -> Iterator[str]:
    split = settings.get("max_split_size")
    if type(split) is int and MIB <= split < _LARGEST_SPLIT_MB * MIB:  # -1 or 2^64 - 1: no limit
        yield f"max_split_size_mb:{split // MIB}"
    threshold = settings.get("garbage_collection_threshold")
    if type(threshold) is float and 0 < threshold < 1:
        yield f"garbage_collection_threshold:{threshold:g}"
    if settings.get("expandable_segments") is True:
        yield _EXPANDABLE.format(True)
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, dict):
        yield from _divisions(divisions)


def _divisions(table: Mapping[Any, Any]) -> Iterator[str]:
    """One number where all 16 intervals have the same, else the list; keys are MB, powers of two from 1."""
    keys = [str(2**power) for power in range(_TABLE_ENTRIES)]
    values = [table.get(key) for key in keys]
    if not all(type(value) is int and 0 <= value < 2**32 for value in values) or not any(values):
        return
    if len(set(values)) == 1:
        yield f"roundup_power2_divisions:{values[0]}"
        return
    yield f"roundup_power2_divisions:[{','.join(f'{key}:{value}' for key, value in zip(keys, values, strict=True))}]"
