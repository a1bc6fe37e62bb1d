"""The catalogue of cards: one row of `gpus.csv` each, with its source and the day it was checked.

Three figures differ for one card: the nameplate ("80 GB"), what nvidia-smi calls the total (81559 MiB) and what a
process can use (81090 MiB). `visible_mib` is the last, as torch prints it; where nobody published it, it follows from
the total by `derived_visible_bytes`, on the safe side.
Kernels split their work over streaming multiprocessors, whose threads follow from the compute capability.

[cuda] NVIDIA CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast import catalogue
from vramcast.catalogue.contexts import context_bytes, nccl_bytes
from vramcast.catalogue.tables import read_table
from vramcast.domain.device import TOPOLOGIES, UNBOUNDED, Cluster, Gpu
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.units import GB, GIB, MIB

if TYPE_CHECKING:
    from vramcast.catalogue.card_names import CardNames, Found


FILE: Final = Path(__file__).with_name("gpus.csv")

TEXT: Final = ("name", "product", "vendor", "arch", "memory_nameplate", "segment", "source", "checked", "confidence")
OPTIONAL_TEXT: Final = ("compute_capability", "link", "link_topology")
NUMBERS: Final[dict[str, tuple[str, float]]] = {
    "smi_total_mib": ("smi_total_bytes", MIB),
    "bandwidth_gb_per_s": ("bandwidth_bytes_per_s", GB),
    "link_gb_per_s": ("link_bytes_per_s", GB),
    "pcie_generation": ("pcie_generation", 1),
    "tdp_w": ("tdp_w", 1),
}
RATES: Final[dict[str, str]] = {
    "fp64_tflops": "fp64_flops",
    "fp32_tflops": "fp32_flops",
    "tf32_tflops": "tf32_flops",
    "fp16_tflops": "fp16_flops",
    "bf16_tflops": "bf16_flops",
    "fp8_tflops": "fp8_flops",
    "fp4_tflops": "fp4_flops",
    "int8_tops": "int8_flops",
}
LINKS: Final = ("link_cards", "link_source")
NOT_IN_GPU: Final = ("memory_type", "multiprocessors", "visible_mib", "visible_source", "aliases")
COLUMNS: Final = frozenset((*TEXT, *OPTIONAL_TEXT, *NUMBERS, *RATES, *LINKS, *NOT_IN_GPU))

RESERVED_BY_VENDOR: Final[dict[str, tuple[int, float]]] = {"Huawei": (0, 1 - 62420 / 65536)}
"""Ascend 910B: 62420 of 65536 MiB are usable (vllm-ascend#19)."""

RESERVED: Final = (400 * MIB, 0.006)
"""Checked against every NVIDIA row with a published visible figure: 13 to 1120 MiB on the safe side."""

LONGEST_NAME: Final = 200
"""A longer text is no name [characters]."""

GDDR_LEAVES: Final = {("NVIDIA", False): 0.995, ("NVIDIA", True): 0.936, ("AMD", False): 0.999}
"""Vendor, and whether for data centres -> the least share of GDDR's powers of two in rows with a published total."""

NODE_CARDS: Final = 8
"""Cards of one machine when a larger number is asked for without saying how they are spread."""

NODE_CARDS_BY_GPU: Final[dict[str, int]] = {"gb200-186gb": 72, "gb300-288gb": 72}
"""NVL72: one NVLink domain of 72."""


LIMITS: Final = {
    "Apple": "macOS lets a GPU use two thirds of a unified memory of up to 36 GB, three quarters of a larger one; sudo "
             "sysctl iogpu.wired_limit_mb raises it",
    "strix-halo": "Linux lets this GPU use half of the unified memory; ttm.pages_limit raises it",
    "jetson": "the operating system and all programs share this memory; --used says what they hold",
    "gb10": "the operating system and all programs share this memory; --used says what they hold",
}
"""Part of a vendor or name -> what limits a unified memory. Sources: `visible_source` of their rows."""


def derived_visible_bytes(*, smi_total_bytes: int, vendor: str = "NVIDIA") -> int:
    """What a process can use of a card whose visible memory nobody published.

    Leaves out the CUDA context, which is charged per process.

    Args:
        smi_total_bytes: memory.total of nvidia-smi [bytes]
        vendor: Ascend cards keep back more

    Returns: usable bytes, rounded down [bytes]
    Source: fitted from below on all rows of gpus.csv that have both figures; an A10 shows 22517 MiB (21.99 GiB):

    >>> derived_visible_bytes(smi_total_bytes=23028 * MIB) // MIB
    22489
    """
    fixed, share = RESERVED_BY_VENDOR.get(vendor, RESERVED)
    return int(smi_total_bytes * (1 - share)) - fixed


def load_gpu(name: str) -> Gpu:
    """The card of a catalogue name, alias or nvidia-smi name, in any case and spelling of its separators.

    Raises: as `resolve_gpu`
    """
    return _built(resolve_gpu(name))


def found_gpu(text: str) -> tuple[Gpu, str]:
    """The card of everyday words, and what is taken where they leave it open ("": nothing).

    Raises: as `resolve_gpu`
    """
    if text in _lines():
        return _built(text), ""
    found = _find(text)
    return _built(found.name), found.said


def is_name(text: str) -> bool:
    """Whether it is a card's name as the catalogue writes it."""
    return bool(text) and text in _lines()


def gpu_names() -> tuple[str, ...]:
    """The names of all cards, in the order of the file."""
    return tuple(_rows())


def multiprocessors(name: str) -> int | None:
    """Streaming multiprocessors of the card of that name; None where no row says.

    >>> multiprocessors("a100-sxm4-80gb")
    108
    """
    cell = _row(name)["multiprocessors"] if name in _lines() else ""
    return int(cell) if cell else None


def resolve_gpu(text: str) -> str:
    """The catalogue's own name for a name, alias or everyday spelling of either.

    Raises: UnknownName with the nearest names, InvalidSpec for words that several cards answer to
    """
    return text if text in _lines() else _find(text).name


def search_gpus(text: str) -> tuple[Gpu, ...]:
    """The cards whose name, product, vendor, architecture or alias holds every word of the text."""
    words = text.lower().split()
    fields = ("name", "product", "vendor", "arch", "aliases", "memory_nameplate", "segment")
    return tuple(
        _built(name)
        for name, row in _rows().items()
        if all(word in " ".join(row[field] for field in fields).lower() for word in words)
    )


def named_gpus(names: Iterable[str]) -> tuple[Gpu, ...]:
    """The cards of several whole names or aliases, or of one whole name; none where one is only part of a name."""
    names = tuple(names)
    if len(names) == 1 and names[0] not in _rows():
        return ()
    try:
        return tuple(load_gpu(name) for name in names)
    except (UnknownName, InvalidSpec):
        return ()


ORDERS: Final[dict[str, Callable[[Gpu], Any]]] = {
    "memory": lambda gpu: -gpu.visible_bytes,
    "bandwidth": lambda gpu: -(gpu.bandwidth_bytes_per_s or 0),
    "bf16": lambda gpu: -(gpu.bf16_flops or 0),
    "name": lambda gpu: gpu.name,
}


def filter_gpus(
    cards: Iterable[Gpu], *, vendor: str | None = None, generation: str | None = None,
    min_memory_gb: float | None = None, sort: str | None = None,
) -> tuple[Gpu, ...]:
    """Cards of a vendor and generation with at least so much usable memory, sorted.

    Raises: UnknownName for a vendor, a generation or an order that no card has
    """
    cards = tuple(cards)
    for kind, text, field in (("vendor", vendor, "vendor"), ("generation", generation, "arch")):
        if text is None:
            continue
        known = sorted({row[field] for row in _rows().values()})
        if not any(text.lower() in name.lower() for name in known):
            raise UnknownName.of(kind, text, [name.lower() for name in known])
        cards = tuple(card for card in cards if text.lower() in getattr(card, field).lower())
    cards = tuple(card for card in cards if card.visible_bytes >= (min_memory_gb or 0) * GB)
    if sort is None:
        return cards
    if sort not in ORDERS:
        raise UnknownName.of("order", sort, ORDERS)
    return tuple(sorted(cards, key=ORDERS[sort]))


def parse_gpus(text: str) -> Cluster:
    """Cards as the command line writes them.

    Raises: as `gpu_texts.parse_gpus`
    """
    return catalogue.gpu_texts.parse_gpus(text)


def read_rows(text: str, *, file: str) -> dict[str, dict[str, str]]:
    """The rows of a table of cards by name, as text.

    Raises: SourceError naming file and line, for unknown, missing or duplicate columns, cells and names
    """
    return {row["name"]: row.cells for row in read_table(text, file=file, columns=COLUMNS, key=("name",))}


def gpu_from_row(row: dict[str, str], *, file: str) -> Gpu:
    """The card of one row, checked against the rules every card obeys.

    Raises: SourceError naming file and row
    """
    where = f"{file}: row {row['name']}"
    for column in TEXT:
        if not row[column].strip():
            raise SourceError("{}: {} is empty", where, column)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", row["checked"]):
        raise SourceError("{}: checked={!r} must be a date like 2026-11-20", where, row["checked"])
    values: dict[str, Any] = {column: row[column] for column in TEXT}
    values |= {column: row[column] or None for column in OPTIONAL_TEXT}
    for column, (field, unit) in NUMBERS.items():
        number = _number(row, column, where)
        values[field] = None if number is None else round(number * unit)
    for column, field in RATES.items():
        number = _number(row, column, where)
        values[field] = None if number is None else float(round(number * 1e12))
    values |= _memory(row, values["smi_total_bytes"], where)
    values |= _link(row, where)
    values["limit"] = next((said for word, said in LIMITS.items() if word in f"{row['vendor']} {row['name']}"), "")
    if row["vendor"] == "NVIDIA":
        values["context_bytes"] = context_bytes(row["arch"], row["compute_capability"]).typical
        values["nccl_bytes"] = nccl_bytes("nvlink" if "NVLink" in row["link"] else "pcie").typical
    return Gpu(**values)


def _memory(row: dict[str, str], total: int | None, where: str) -> dict[str, Any]:
    """Visible memory, published or derived. Vendors print GB and mean something between GB and GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GB", row["memory_nameplate"])
    if match is None:
        raise SourceError("{}: memory_nameplate={!r} must read like '80 GB'", where, row["memory_nameplate"])
    nameplate = float(match[1])
    if total is not None and not nameplate * GB <= total <= nameplate * GIB:
        raise SourceError("{}: smi_total_mib is not between the nameplate read as GB and as GiB", where)
    published = _number(row, "visible_mib", where)
    if (published is None) != (not row["visible_source"]):
        raise SourceError("{}: visible_mib and visible_source must both be given or both be empty", where)
    if published is None:
        visible = derived_visible_bytes(
            smi_total_bytes=total or int(nameplate * _nameplate_unit(row)), vendor=row["vendor"]
        )
    else:
        visible = round(published * MIB)
    if not 0 < visible <= (total or int(nameplate * GIB)):
        raise SourceError("{}: visible_mib is not between 0 and smi_total_mib", where)
    return {"visible_bytes": visible, "visible_is_measured": published is not None}


def _nameplate_unit(row: dict[str, str]) -> float:
    """Bytes that nvidia-smi shows at least for each "GB" of a card whose total nobody published.

    GDDR comes in powers of two; the error correction of data-centre cards, which is on by default, takes a sixteenth
    (A10: 23028 of 24576 MiB), newer drivers keep some more (RTX 5080: 16303 of 16384).
    """
    kind = (row["vendor"], row["segment"] == "datacentre")
    return GIB * GDDR_LEAVES[kind] if row["memory_type"].startswith("GDDR") and kind in GDDR_LEAVES else GB


def _link(row: dict[str, str], where: str) -> dict[str, Any]:
    """How many cards a link joins: of a switch, where it reaches beyond a machine; of anything else, always."""
    topology, cards = row["link_topology"], row["link_cards"]
    if topology and topology not in TOPOLOGIES:
        raise SourceError(
            "{}: link_topology={!r} must be one of {} or empty", where, topology[:40], ", ".join(TOPOLOGIES)
        )
    if bool(topology) != bool(row["link_source"]) or (topology and not (row["link"] and row["link_gb_per_s"])):
        raise SourceError("{}: link_topology and link_source must both be given, for a link with its rate", where)
    if cards and (not topology or not re.fullmatch(r"([2-9]|[1-9]\d+)( ([2-9]|[1-9]\d+))*", cards)):
        raise SourceError("{}: link_cards={!r} must read like 8 or '2 4', beside a link_topology", where, cards[:40])
    if topology and topology not in UNBOUNDED and not cards:
        raise SourceError("{}: link_topology={} without link_cards", where, topology)
    return {"link_cards": tuple(sorted(map(int, cards.split()))), "link_source": row["link_source"]}


def _number(row: dict[str, str], column: str, where: str) -> float | None:
    cell = row[column]
    if not cell:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", cell) or float(cell) <= 0:
        raise SourceError("{}: {}={!r} must be a positive number or empty", where, column, cell)
    return float(cell)


@cache
def _lines() -> dict[str, str]:
    """Name -> line. A question is about one card: the others are not taken apart."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {line.partition(",")[0]: line for line in lines[1:]} | {"": lines[0]}


@cache
def _rows() -> dict[str, dict[str, str]]:
    return read_rows("\n".join((_lines()[""], *(line for name, line in _lines().items() if name))), file=FILE.name)


def _find(text: str) -> Found:
    """Among the cards that have a number of the text in their names, which are few; else among all."""
    numbers = re.findall(r"\d{3,}", text) or re.findall(r"\d+", text)
    near = [name for name, line in _lines().items() if any(map(",".join(line.split(",", 2)[:2]).__contains__, numbers))]
    if near and len(text) <= LONGEST_NAME:
        try:
            return catalogue.card_names.CardNames({name: _row(name) for name in near if name}).find(text)
        except UnknownName:
            pass
    return _names().find(text)


@cache
def _names() -> CardNames:
    return catalogue.card_names.CardNames(_rows())


def _row(name: str) -> dict[str, str]:
    return read_rows(f"{_lines()['']}\n{_lines()[name]}", file=FILE.name)[name]


@cache
def _built(name: str) -> Gpu:
    return gpu_from_row(_row(name), file=FILE.name)


THREADS: Final = {
    "7.5": 1024, "8.6": 1536, "8.7": 1536, "8.9": 1536, "11.0": 1536, "12.0": 1536, "12.1": 1536,
}
"""Resident threads of a multiprocessor, where they are not 2,048 [cuda]."""
MOST_THREADS: Final = 2048


def threads(compute_capability: str | None) -> int:
    """Resident threads of one multiprocessor [cuda].

    >>> threads("8.9")
    1536
    """
    return THREADS.get(compute_capability or "", MOST_THREADS)

