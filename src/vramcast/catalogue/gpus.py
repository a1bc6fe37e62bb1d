"""The catalogue of cards: one row of `gpus.csv` each, with its source and the day it was checked.

Three figures differ for one card: the nameplate ("80 GB"), what nvidia-smi calls the total (81559 MiB) and what a
process can use (81090 MiB). `visible_mib` is the last, as torch prints it; where nobody published it, it follows from
the total by `derived_visible_bytes`, on the safe side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from vramcast.catalogue.contexts import context_bytes, nccl_bytes
from vramcast.catalogue.tables import read_table
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.topology import TOPOLOGIES, UNBOUNDED
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.units import GB, GIB, MIB

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
NOT_IN_GPU: Final = ("memory_type", "visible_mib", "visible_source", "aliases")
COLUMNS: Final = frozenset((*TEXT, *OPTIONAL_TEXT, *NUMBERS, *RATES, *LINKS, *NOT_IN_GPU))

RESERVED_BY_VENDOR: Final[dict[str, tuple[int, float]]] = {"Huawei": (0, 1 - 62420 / 65536)}
"""Ascend 910B: 62420 of 65536 MiB are usable (vllm-ascend#19)."""

RESERVED: Final = (400 * MIB, 0.006)
"""Checked against every NVIDIA row with a published visible figure: 13 to 1120 MiB on the safe side."""

NODE_CARDS: Final = 8
"""Cards of one machine when a larger number is asked for without saying how they are spread."""

NODE_CARDS_BY_GPU: Final[dict[str, int]] = {"gb200-186gb": 72, "gb300-288gb": 72}
"""NVL72: one NVLink domain of 72."""

VENDOR_WORDS: Final = re.compile(r"^(?:nvidia|amd|huawei|intel|geforce|tesla|quadro|instinct|radeon)+(?=.)")
CLUSTER: Final = re.compile(r"(?:(\d+)\s*[x*×]\s*)?(?:(\d+)\s*[x*×]\s*)?([a-z].*|\d{4}\D.*|\d{4})", re.IGNORECASE)


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

    Raises: UnknownName with the nearest names
    """
    return _built(resolve_gpu(name))


def gpu_names() -> tuple[str, ...]:
    """The names of all cards, in the order of the file."""
    return tuple(_rows())


def resolve_gpu(text: str) -> str:
    """The catalogue's own name for a name or alias.

    Raises: UnknownName with the nearest names
    """
    key, index = _key(text), _index()
    found = index.get(key) or index.get("rtx" + key)
    if found is None:
        known = (*_rows(), *(alias.lower() for row in _rows().values() for alias in _aliases(row)))
        raise UnknownName.of("GPU", text.strip(), known)
    return found


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
    except UnknownName:
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
    """Cards as the command line writes them: "h100", "8xh100", "2x8xh100" (two machines of eight).

    A number above one machine's worth is spread over machines of eight: "64xh100" is 8 x 8.

    Raises: InvalidSpec for text that is no such thing, UnknownName for a card no row lists
    """
    match = CLUSTER.fullmatch(text.strip())
    if match is None or len(text) > 200:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise InvalidSpec(f"GPUs {shown!r} must read like 'h100', '8xh100-sxm-80gb' or '2x8xh100-sxm-80gb'")
    first, second, name = match.groups()
    if any(number is not None and len(number) > 9 for number in (first, second)):
        raise InvalidSpec(f"GPUs {text[:60]!r} ask for more cards than there are; use at most 1000000")
    gpu = load_gpu(name)
    if second is not None:
        return Cluster(gpu=gpu, num_nodes=int(first), gpus_per_node=int(second))
    count = 1 if first is None else int(first)
    per_node = NODE_CARDS_BY_GPU.get(gpu.name, NODE_CARDS)
    if count > per_node and count % per_node == 0:
        return Cluster(gpu=gpu, num_nodes=count // per_node, gpus_per_node=per_node)
    return Cluster(gpu=gpu, gpus_per_node=count)


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
            raise SourceError(f"{where}: {column} is empty")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", row["checked"]):
        raise SourceError(f"{where}: checked={row['checked']!r} must be a date like 2026-11-20")
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
    if row["vendor"] == "NVIDIA":
        values["context_bytes"] = context_bytes(row["arch"], row["compute_capability"]).typical
        values["nccl_bytes"] = nccl_bytes("nvlink" if "NVLink" in row["link"] else "pcie").typical
    return Gpu(**values)


def _memory(row: dict[str, str], total: int | None, where: str) -> dict[str, Any]:
    """Visible memory, published or derived. Vendors print GB and mean something between GB and GiB."""
    nameplate = _nameplate_gb(row, where)
    if total is not None and not nameplate * GB <= total <= nameplate * GIB:
        raise SourceError(f"{where}: smi_total_mib is not between the nameplate read as GB and as GiB")
    published = _number(row, "visible_mib", where)
    if (published is None) != (not row["visible_source"]):
        raise SourceError(f"{where}: visible_mib and visible_source must both be given or both be empty")
    if published is None:
        visible = derived_visible_bytes(smi_total_bytes=total or int(nameplate * GB), vendor=row["vendor"])
    else:
        visible = round(published * MIB)
    if not 0 < visible <= (total or int(nameplate * GIB)):
        raise SourceError(f"{where}: visible_mib is not between 0 and smi_total_mib")
    return {"visible_bytes": visible, "visible_is_measured": published is not None}


def _link(row: dict[str, str], where: str) -> dict[str, Any]:
    """How many cards a link joins: of a switch, where it reaches beyond a machine; of anything else, always."""
    topology, cards = row["link_topology"], row["link_cards"]
    if topology and topology not in TOPOLOGIES:
        raise SourceError(f"{where}: link_topology={topology[:40]!r} must be one of {', '.join(TOPOLOGIES)} or empty")
    if bool(topology) != bool(row["link_source"]) or (topology and not (row["link"] and row["link_gb_per_s"])):
        raise SourceError(f"{where}: link_topology and link_source must both be given, for a link with its rate")
    if cards and (not topology or not re.fullmatch(r"([2-9]|[1-9]\d+)( ([2-9]|[1-9]\d+))*", cards)):
        raise SourceError(f"{where}: link_cards={cards[:40]!r} must read like 8 or '2 4', beside a link_topology")
    if topology and topology not in UNBOUNDED and not cards:
        raise SourceError(f"{where}: link_topology={topology} without link_cards")
    return {"link_cards": tuple(sorted(map(int, cards.split()))), "link_source": row["link_source"]}


def _nameplate_gb(row: dict[str, str], where: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GB", row["memory_nameplate"])
    if match is None:
        raise SourceError(f"{where}: memory_nameplate={row['memory_nameplate']!r} must read like '80 GB'")
    return float(match[1])


def _number(row: dict[str, str], column: str, where: str) -> float | None:
    cell = row[column]
    if not cell:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", cell) or float(cell) <= 0:
        raise SourceError(f"{where}: {column}={cell!r} must be a positive number or empty")
    return float(cell)


def _aliases(row: dict[str, str]) -> list[str]:
    return [alias for alias in row["aliases"].split(",") if alias]


def _key(text: str) -> str:
    """Letters and digits only, without the vendor: "NVIDIA A100-SXM4-80GB" and "a100_sxm4_80gb" are one."""
    return VENDOR_WORDS.sub("", re.sub(r"[^a-z0-9]", "", text.lower()))


@cache
def _rows() -> dict[str, dict[str, str]]:
    return read_rows(FILE.read_text(encoding="utf-8"), file=FILE.name)


@cache
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for name, row in _rows().items():
        for alias in (name, row["product"], *_aliases(row)):
            key = _key(alias)
            if index.setdefault(key, name) != name:
                raise SourceError(f"{FILE.name}: row {name}: alias {alias!r} belongs to {index[key]}")
    return index


@cache
def _built(name: str) -> Gpu:
    return gpu_from_row(_rows()[name], file=FILE.name)
