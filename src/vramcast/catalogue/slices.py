"""Parts of a card with memory of their own: MIG instances, and what HAMi and Volcano let a process see.

[mig] https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html: a profile like 2g.20gb has 2
of the sevenths (A30, RTX PRO 6000: quarters) of the processors and so many eighths of the memory.
[seen] https://jbarrow.ai/field_notes/nvidia-mig/: `nvidia-smi mig -lgip` on an H100 says 9.75, 19.62 and 39.50 GiB of
1, 2 and 4 eighths; NVML on an A100 40GB 4864 and 9856 MiB.
[hami] Project-HAMi/HAMi-core src/multiprocess: a process is told that the card has so many MiB, its own context
counted among them; its processors are shared with whoever else is on the card
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.gpus import found_gpu
from vramcast.domain.device import Gpu
from vramcast.errors import InvalidSpec, Note
from vramcast.units import MIB, format_bytes

UNRATED: Final = dict.fromkeys(
    ("bandwidth_bytes_per_s", "fp64_flops", "fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops",
     "fp4_flops", "int8_flops")
)
"""A slice shares its card's engines in time; how much it gets at once is not published."""

PROFILE: Final = re.compile(
    r"(.*?)[\s:_-]*(?:\bmig[\s_-]*)?([1-7])g\.(\d{1,3})gb(?:\+(?:me|gfx)(?:\.all)?)?", re.IGNORECASE
)
EIGHTHS: Final = 8
USABLE: Final = {1: 0.95, 2: 0.9625, 3: 0.9625, 4: 0.975, 8: 0.99}
"""Eighths of the memory -> the share of them that a process can use [seen]."""
CAPABLE: Final = ("8.0", "9.0", "10.0", "10.3")
"""Compute capabilities of cards that can be divided, and of workstation cards the RTX PRO 6000."""


VGPU: Final = re.compile(r"(.*?)[\s:_-]*\bvgpu-(\d{1,6})(mib|%)", re.IGNORECASE)


class Slice(NamedTuple):
    """A part of a card."""

    gpu: Gpu
    cautions: tuple[str, ...]
    said: str  # which card a name that several have is taken for


def mig_instance(text: str) -> Slice | None:
    """The instance that a text like "a100-80gb-1g.10gb" names; None for a text that names none.

    Raises: InvalidSpec for a profile that the card does not have, UnknownName for the card
    """
    match = PROFILE.fullmatch(text.strip())
    if match is None:
        return None
    profile = f"{match[2]}g.{match[3]}gb"
    if not match[1].strip():
        raise InvalidSpec(
            "{} is a part of which card? name it before, for example --gpus a100-80gb-{}", profile, profile
        )
    card, said = found_gpu(match[1].removesuffix("mig").strip(" -_:"))
    size = float(card.memory_nameplate.split()[0])
    eighths = round(int(match[3]) / (size / EIGHTHS))
    exact = size * eighths / EIGHTHS
    able = card.compute_capability in CAPABLE or card.name.startswith("rtx-pro-6000-bw")
    if not able or eighths not in USABLE or abs(exact - int(match[3])) >= 1:
        why = "it cannot be divided" if not able else Note("an eighth of it is {:g} GB", size / EIGHTHS)
        raise InvalidSpec(
            "{} has no MIG instance {}: {}; `nvidia-smi mig -lgip` lists its own", card.name, profile, why
        )
    total = (card.smi_total_bytes or card.visible_bytes) * eighths // EIGHTHS
    gpu = replace(
        card, name=f"{card.name}-{profile}", visible_bytes=int(total * USABLE[eighths]), visible_is_measured=False,
        smi_total_bytes=None, link=None, link_bytes_per_s=None, link_topology=None, link_cards=(), link_source="",
        **UNRATED,
    )
    cautions = (Note("a MIG instance of {}: its share of the speed is not published, so no time is given", card.name),)
    return Slice(gpu, cautions, said)


def vgpu(text: str) -> Slice | None:
    """What a process sees of a card that HAMi shares, "a10-vgpu-8000mib" or "a10-vgpu-30%"; None for other texts.

    Raises: InvalidSpec for more than the card has, UnknownName for the card
    """
    match = VGPU.fullmatch(text.strip())
    if match is None:
        return None
    card, said = found_gpu(match[1])
    total = card.smi_total_bytes or card.visible_bytes
    seen = int(match[2]) * MIB if match[3].lower() == "mib" else total * int(match[2]) // 100
    if not 0 < seen <= total:
        raise InvalidSpec("{} has {}; a part of {} is none of it", card.name, format_bytes(total), format_bytes(seen))
    gpu = replace(card, name=f"{card.name}-vgpu-{seen // MIB}mib", visible_bytes=seen, visible_is_measured=False,
                  smi_total_bytes=None, **UNRATED)
    cautions = (Note("a part of {}, whose processors others share: no time is given", card.name),)
    return Slice(gpu, cautions, said)


def is_slice(gpu: Gpu) -> bool:
    """Whether it is a MIG instance."""
    return PROFILE.fullmatch(gpu.name) is not None


def is_part(gpu: Gpu) -> bool:
    """Whether it is a part of a card, of either kind."""
    return is_slice(gpu) or VGPU.fullmatch(gpu.name) is not None


__all__ = ["UNRATED", "Slice", "is_part", "is_slice", "mig_instance", "vgpu"]
