"""What people write after `--gpus` about cards: how many, which, of what size.

4090   8xh100   8*H800   3090 x2   2x8xh100   h100:8   dual 3090   8卡A100   lines of `nvidia-smi -L`
4 nodes of 8 A100   2 machines, 8 GPUs each, H100   a single 4090   Colab T4   v5e-8
24gb   2x24gb   an unknown card of that size
a100-80gb-1g.10gb   a MIG instance
a10-vgpu-8000mib   l40s-vgpu-30%   what HAMi lets a process see of a card
rtx-4090+rtx-3090   2x4090+3090   unequal cards of one machine

Parts of a card with memory of their own: MIG instances, and what HAMi and Volcano let a process see.

[mig] https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html: a profile like 2g.20gb has 2
of the sevenths (A30, RTX PRO 6000: quarters) of the processors and so many eighths of the memory.
[seen] https://jbarrow.ai/field_notes/nvidia-mig/: `nvidia-smi mig -lgip` on an H100 says 9.75, 19.62 and 39.50 GiB of
1, 2 and 4 eighths; NVML on an A100 40GB 4864 and 9856 MiB.
[hami] Project-HAMi/HAMi-core src/multiprocess: a process is told that the card has so many MiB, its own context
counted among them; its processors are shared with whoever else is on the card
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.catalogue.contexts import context_bytes, nccl_bytes
from vramcast.catalogue.gpus import NODE_CARDS, NODE_CARDS_BY_GPU, derived_visible_bytes, found_gpu, is_name
from vramcast.domain.device import Cluster, Gpu
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported, VramcastError, joined
from vramcast.lazy import lazy_pattern
from vramcast.units import GB, GIB, MIB, format_bytes

LONGEST: Final = 2000
MOST_KNOWN: Final = 256
MOST_KINDS: Final = 16
"""Kinds of cards in one machine; more is a mistake."""

# what is rarely looked for is compiled when it is: ten patterns take as long as the cards themselves
TIMES: Final = r"\s*[x*×]\s*"
LEADING: Final = lazy_pattern(rf"(?:(\d+)\s*(?:nodes?|台)?{TIMES})?(?:(\d+){TIMES})?(\w.*)", re.IGNORECASE)
SPACED: Final = r"(\d{1,3})\s*(?:张|块|卡|个|gpus?\b|cards?\b|\s)\s*(\w.*)"
TRAILING: Final = r"(.*\S)\s*(?:[x*×]\s*(\d{1,4})|:(\d{1,4})|[(]\s*x?\s*(\d{1,4})\s*[)])"
WORDS: Final = {
    "single": 1, "one": 1, "a": 1, "an": 1, "a single": 1, "dual": 2, "two": 2, "a pair of": 2, "three": 3, "quad": 4,
    "four": 4, "eight": 8, "单": 1, "双": 2,
    **{
        number + of: value for of in "卡张块个片" for number, value in
        {"单": 1, "一": 1, "双": 2, "两": 2, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "八": 8, "十六": 16}.items()
    },
}
COUNTED: Final = rf"({'|'.join(sorted(WORDS, key=len, reverse=True))})(?:[\s-]+|(?<=[^a-z]))(\S.*)"
NUMBER: Final = r"(\d+|one|two|three|four|eight|[一两二三四八])"
NODES: Final = r"(?:nodes?|machines?|servers?|hosts?|boxes|台(?:机器|服务器)?)"
MACHINES: Final = (
    rf"{NUMBER}\s*{NODES}\s*(?:[x*×,]|of|with|每台|各)?\s*{NUMBER}\s*(?:[x*×]|(?:gpus?|cards?|[卡张块])(?:\s+each)?)?"
    r"\s*,?\s*(?:of\s+)?(\S.*?)(?:\s+(?:each|per node|gpus?|cards?))*"
)
"""Machines, cards of each, card."""
RENTER: Final = lazy_pattern(r"^(?:google\s+)?(?:colab|kaggle)(?:\s+pro\b\+?)?\s+(?=\S)", re.IGNORECASE)
"""Whose notebooks run on one machine with the card named behind."""
SLICE: Final = r"(?:tpu[\s-]*)?(v\d[ep]|v7x?)-(\d{1,4})"
CORES: Final = {"v5p": 2}
"""What a TPU slice counts in its name where it is no chips: cores, so many of a chip [Cloud TPU, "TPU v5p"]."""
LISTED: Final = lazy_pattern(r"gpu \d+:\s*(.+?)(?:\s*\(uuid:[^)]*\))?\s*", re.IGNORECASE)
"""A line of `nvidia-smi -L`."""
ELSEWHERE: Final = (
    r"hygon|\bdcu\b|\bk100|cambricon|\bmlu\d|kunlun|enflame|biren|metax|iluvatar|trainium|inferentia|\b(?:trn|inf)\d"
)
"""Vendors of whose cards there is no row."""
SIZE: Final = lazy_pattern(r"(\d{1,6}(?:\.\d{1,3})?)\s*(g|gb|gib|mib)(?:\s*(?:vram|gpu|card|显存))?", re.IGNORECASE)
UNITS: Final = {"g": GB, "gb": GB, "gib": GIB, "mib": MIB}
LEAST: Final = GIB // 2
MOST: Final = 1024 * GB
"""Sizes that a card can have [bytes]."""


class Cards(Struct, frozen=True):
    """Cards of one kind, as read."""

    gpu: Gpu
    number: int | None  # None: nobody says
    nodes: int = 1
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    said: str = ""  # which card a name that several have is taken for


def parse_gpus(text: str) -> Cluster:
    """Cards as the command line writes them: "h100", "8xh100", "2x8xh100" (two machines of eight).

    A number above one machine's worth is spread over machines of eight: "64xh100" is 8 x 8.

    Raises: InvalidSpec for text that is no such thing or that several cards answer to, UnknownName for a card that no
        row lists
    """
    parts = _parts(text)
    return _cluster(parts[0]) if len(parts) == 1 else _unequal(parts)


def taken(text: str) -> tuple[str, ...]:
    """Which cards the names in a text are taken for, where several are called so.

    Raises: as `parse_gpus`
    """
    return tuple(part.said for part in _parts(text) if part.said)


@lru_cache(maxsize=MOST_KNOWN)
def _parts(text: str) -> tuple[Cards, ...]:
    """The kinds of cards of a text."""
    if len(text) > LONGEST or not text.strip():
        raise InvalidSpec("GPUs {} must read like 'h100', '8xh100-sxm-80gb' or '2x8xh100-sxm-80gb'", _shown(text))
    listed = _listed(text)
    parts = listed or [part for part in re.split(r"\s*[+&,]\s*|\s+and\s+", text.strip()) if part]
    if not 1 <= len(parts) <= MOST_KINDS:
        raise InvalidSpec("GPUs {} must name 1 to {} kinds of cards of a machine", _shown(text), MOST_KINDS)
    try:
        return tuple(map(_cards, parts))
    except UnknownName:
        if len(parts) == 1 or listed:
            raise
        return (_cards(text),)  # a name with such a sign in it: Ryzen AI Max+ 395


def _listed(text: str) -> list[str]:
    """The names of `nvidia-smi -L`, each with how often it stands there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    names = [match[1] for line in lines if (match := LISTED.fullmatch(line))]
    if not names:
        return []
    return [f"{count}x{name}" for name, count in Counter(names).items()]


def _cards(text: str) -> Cards:
    """How many of what: the first reading of the text whose rest is a card.

    Raises: the error of the reading that comes nearest
    """
    first: VramcastError | None = None
    for nodes, count, name in _readings(text.strip()):
        for number in filter(None, (nodes, count)):
            if len(number) > 9:
                raise InvalidSpec("GPUs {!r} ask for more cards than there are; use at most 1000000", text[:60])
        try:
            found = _card(name)
        except UnknownName as unknown:
            first = first or unknown  # of the surest reading
            continue
        return replace(found, nodes=int(nodes or 1), number=None if count is None else int(count))
    if re.search(ELSEWHERE, text, re.IGNORECASE):
        raise Unsupported(
            "no public figures of {!r} were found, and no engine here is modelled on it; what an unknown NVIDIA card "
            "of its size would take is --gpus 64gb", text[:60]
        )
    raise first or InvalidSpec("GPUs {} must read like 'h100', '8xh100-sxm-80gb' or '2x8xh100-sxm-80gb'", _shown(text))


def _readings(text: str) -> Iterator[tuple[str | None, str | None, str]]:
    """Machines, cards of each, and the rest; the surest reading first."""
    text = re.sub(r"^gpus?:(?=\D)", "", RENTER.sub("", text), flags=re.IGNORECASE)  # Slurm's gpu:a100:4
    leading = LEADING.fullmatch(text)
    if leading is not None and leading[1] is not None:
        first, second, name = leading.groups()
        yield (first, second, name) if second is not None else (None, first, name)
    yield None, None, text
    if (spaced := re.fullmatch(SPACED, text, re.IGNORECASE)) is not None:
        yield None, spaced[1], spaced[2]
    if (trailing := re.fullmatch(TRAILING, text, re.IGNORECASE)) is not None:
        yield None, trailing[2] or trailing[3] or trailing[4], trailing[1]
    if (counted := re.fullmatch(COUNTED, text, re.IGNORECASE)) is not None:
        yield None, str(WORDS[counted[1].lower()]), counted[2]
    if (machines := re.fullmatch(MACHINES, text, re.IGNORECASE)) is not None:
        nodes, count = (str(WORDS.get(number.lower(), WORDS.get(f"{number}卡")) or number)
                        for number in machines.group(1, 2))
        yield nodes, count, machines[3]
    if (part := re.fullmatch(SLICE, text, re.IGNORECASE)) is not None:
        yield None, str(int(part[2]) // CORES.get(part[1].lower(), 1) or 1), f"tpu-{part[1]}"
    if re.search(r"[a-z0-9]s$", text, re.IGNORECASE):  # "2x 3090s"
        yield from ((nodes, count, name.removesuffix("s")) for nodes, count, name in _readings(text[:-1]))


def _card(name: str) -> Cards:
    """A card of the catalogue, a slice of one, or an unknown one of a size.

    Raises: UnknownName, InvalidSpec
    """
    size = SIZE.fullmatch(name.strip())
    if size is not None:
        return _sized(float(size[1]), size[2].lower())
    if not is_name(name):
        found = mig_instance(name) or vgpu(name)
        if found is not None:
            return Cards(found.gpu, None, cautions=found.cautions, said=found.said)
    gpu, said = found_gpu(name)
    return Cards(gpu, None, notes=(gpu.limit,) if gpu.limit else (), said=said)


def _sized(size: float, unit: str) -> Cards:
    """A card of which only the memory is known: one of NVIDIA's with bf16 and without fp8."""
    total = round(size * UNITS[unit])
    if not LEAST <= total <= MOST:
        raise InvalidSpec("GPUs of {:g}{} are none that there are; a card has 0.5gb to 1024gb", size, unit)
    visible = derived_visible_bytes(smi_total_bytes=total)
    name = f"{size:g}{unit if unit != 'g' else 'gb'}"
    gpu = Gpu(
        name=name, vendor="NVIDIA", arch="Ampere", compute_capability="8.6", memory_nameplate=f"{total / GB:g} GB",
        visible_bytes=visible, context_bytes=context_bytes("Ampere", "8.6").typical,
        nccl_bytes=nccl_bytes("pcie").typical, source="given by the user",
    )
    return Cards(gpu, None, cautions=(
        Note(
            "{} is taken as an unknown NVIDIA card with bf16 and without fp8, of which {} can be used; time and price "
            "need the card's name", name, format_bytes(visible)
        ),
    ))


def _cluster(cards: Cards) -> Cluster:
    gpu, count, nodes = cards.gpu, cards.number, cards.nodes
    if is_slice(gpu) and (count or 1) * nodes > 1:
        raise InvalidSpec(
            "{} x {}: one process sees one MIG instance, and instances have no link that NCCL could use; ask about "
            "one of them", (count or 1) * nodes, gpu.name
        )
    if gpu.stands_alone and (count or 1) * nodes > 1:
        raise InvalidSpec("a Mac has one GPU, {} x {} are asked for; name one", (count or 1) * nodes, gpu.name)
    if nodes == 1 and count is not None:
        per_node = NODE_CARDS_BY_GPU.get(gpu.name, NODE_CARDS)
        if count > per_node and count % per_node == 0:
            nodes, count = count // per_node, per_node
    return Cluster(
        gpu=gpu, num_nodes=nodes, gpus_per_node=1 if count is None else count, notes=cards.notes,
        cautions=cards.cautions,
    )


def _unequal(parts: tuple[Cards, ...]) -> Cluster:
    """Cards of one machine that differ: every rank does the same, so the least of them decide.

    Raises: InvalidSpec for several machines, vendors or instances of a card
    """
    kinds: dict[str, Cards] = {}
    for part in parts:
        if part.nodes > 1:
            raise InvalidSpec("unequal cards are those of one machine; leave out the number of machines")
        before = kinds.get(part.gpu.name)
        kinds[part.gpu.name] = replace(part, number=(part.number or 1) + (before.number or 0 if before else 0))
    if len(kinds) == 1:
        return _cluster(next(iter(kinds.values())))
    gpus = [kind.gpu for kind in kinds.values()]
    if len({gpu.vendor for gpu in gpus}) > 1 or any(map(is_slice, gpus)):
        raise InvalidSpec(
            "{} cannot work on one job: they need different software; name cards of one vendor",
            joined(" and ", (gpu.name for gpu in gpus))
        )
    cards = tuple(kind.gpu for kind in kinds.values() for _ in range(kind.number or 1))
    least = _least(gpus)
    small = min(gpus, key=lambda gpu: gpu.visible_bytes)
    said = Note("unequal cards: every one is given as much as {}, the smallest, can hold", small.name)
    cautions = (said, *(text for kind in kinds.values() for text in kind.cautions))
    return Cluster(
        gpu=least, gpus_per_node=len(cards), cards=cards, cautions=cautions,
        notes=tuple(note for kind in kinds.values() for note in kind.notes),
    )


def _least(gpus: list[Gpu]) -> Gpu:
    """What all of several cards have: the least of every figure, unknown where it is of one of them."""
    small = min(gpus, key=lambda gpu: gpu.visible_bytes)
    oldest = min(gpus, key=lambda gpu: gpu.sm or 0)
    figures = {
        field: None if any(getattr(gpu, field) is None for gpu in gpus) else min(getattr(gpu, field) for gpu in gpus)
        for field in (*UNRATED, "smi_total_bytes", "pcie_generation")
    }
    return replace(
        small, arch=oldest.arch, compute_capability=oldest.compute_capability, link=None, link_bytes_per_s=None,
        link_topology=None, link_cards=(), link_source="",
        context_bytes=max(gpu.context_bytes or 0 for gpu in gpus) or None,
        **figures,
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


UNRATED: Final = dict.fromkeys(
    ("bandwidth_bytes_per_s", "fp64_flops", "fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops",
     "fp4_flops", "int8_flops")
)
"""A slice shares its card's engines in time; how much it gets at once is not published."""

PROFILE: Final = lazy_pattern(
    r"(.*?)[\s:_-]*(?:\bmig[\s_-]*)?([1-7])g\.(\d{1,3})gb(?:\+(?:me|gfx)(?:\.all)?)?", re.IGNORECASE
)
EIGHTHS: Final = 8
USABLE: Final = {1: 0.95, 2: 0.9625, 3: 0.9625, 4: 0.975, 8: 0.99}
"""Eighths of the memory -> the share of them that a process can use [seen]."""
CAPABLE: Final = ("8.0", "9.0", "10.0", "10.3")
"""Compute capabilities of cards that can be divided, and of workstation cards the RTX PRO 6000."""


VGPU: Final = lazy_pattern(r"(.*?)[\s:_-]*\bvgpu-(\d{1,6})(mib|%)", re.IGNORECASE)


class Slice(Struct, frozen=True):
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
