"""The catalogue of machines for rent and of boxes to own: one row of `instances.csv` each.

Memory is that of the card's own row in `gpus.csv`; a machine's row says how many cards, which slice of each, and what
connects them. `network_gbit_per_s` is the network that cards of different machines talk over: where there is a fabric
of its own (InfiniBand, RoCE), that, without the adapters for storage. PAI sells cards under codes of its own;
`card_codes.csv` says which card a code stands for as far as that is public.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from vramcast.catalogue.gpu_texts import UNRATED
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.tables import Row, read_table
from vramcast.domain.device import Cluster, Gpu, Network
from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, joined
from vramcast.units import GB, GIB

FILE: Final = Path(__file__).with_name("instances.csv")
CODES_FILE: Final = Path(__file__).with_name("card_codes.csv")

PROVIDERS: Final = ("alibaba", "pai", "aws", "azure", "gcp", "lambda", "onprem")
"""Who rents it out; onprem are reference boxes that people own."""

COLUMNS: Final = (
    "provider", "name", "gpu", "gpus", "slice", "memory_gb", "vcpus", "host_gib", "nvme_gb", "network_gbit_per_s",
    "rdma", "link", "link_gb_per_s", "note", "source", "checked", "confidence",
)
CODE_COLUMNS: Final = ("code", "gpu", "memory_gb", "note", "source", "checked", "confidence")

RDMA: Final = ("", "EFA", "InfiniBand", "RoCE", "eRDMA", "GPUDirect-TCPX", "GPUDirect-TCPXO")
"""How cards of different machines reach each other's memory; empty: over TCP."""

CONFIDENCE: Final = ("high", "medium", "low")

PREFIXES: Final = re.compile(r"^(?:ecs\.|ml\.|standard_)")
"""What users leave out of a provider's names."""

CARD_CODE: Final = re.compile(r"(?:gu\d+[a-z]*|g[45]9e?|l20x)")
"""How PAI's card codes look."""


class Instance(Noun, frozen=True, kw_only=True):
    """One type of machine. What is not known is None."""

    provider: str
    name: str
    gpu: str  # name in gpus.csv
    gpus: int
    parts: int = 1  # the machine gets one of so many slices of each card
    memory_gb: float  # of one card or slice, as it is sold
    vcpus: int | None = None
    host_bytes: int | None = None
    nvme_bytes: int | None = None
    network: Network | None = None
    link: str | None = None  # between its cards: "NVLink4", "PCIe4"; None where there is one card
    link_bytes_per_s: int | None = None  # both directions together
    note: str = ""
    source: str = ""
    checked: str = ""  # ISO date
    confidence: str = ""

    @property
    def full_name(self) -> str:
        """With the provider: "aws:p5.48xlarge"."""
        return f"{self.provider}:{self.name}"

    @property
    def visible_bytes(self) -> int:
        """What a process can use of one card or slice."""
        return load_gpu(self.gpu).visible_bytes // self.parts

    def card(self) -> Gpu:
        """The card as it is built into this machine: its slice, and the link to its neighbours here."""
        gpu = load_gpu(self.gpu)
        if self.parts > 1:
            return replace(
                gpu, name=f"1/{self.parts} {gpu.name}", visible_bytes=self.visible_bytes, visible_is_measured=False,
                smi_total_bytes=None, **UNRATED,
            )
        return linked(gpu, self.link, self.link_bytes_per_s)

    def cluster(self, num_nodes: int = 1) -> Cluster:
        """So many of these machines, without a price."""
        notes = [self.note] if self.note and self.confidence != "high" else []
        if self.parts > 1:
            notes.append(Note(
                "{} has 1/{} of a card: its share of the speed is not published", self.full_name, self.parts
            ))
        return Cluster(
            gpu=self.card(), gpus_per_node=self.gpus, num_nodes=num_nodes, instance=self.full_name,
            network=self.network, host_bytes=self.host_bytes, nvme_bytes=self.nvme_bytes, notes=tuple(notes),
        )


def linked(
    gpu: Gpu, link: str | None, bytes_per_s: int | None, topology: str | None = None, cards: tuple[int, ...] = ()
) -> Gpu:
    """A card in a machine whose link is named: its bridges are fitted there.

    Args:
        gpu: as its data sheet says
        link: to its neighbours; None: as the data sheet says, bridges not known to be there
        bytes_per_s: of that link, both directions
        topology: key of `TOPOLOGIES` where it is not the card's usual one
        cards: that such a link joins
    """
    if link is None:
        return gpu
    if link.startswith("PCIe"):
        generation = int(link[4:])
        if gpu.link is None and gpu.pcie_generation == generation:
            return gpu
        return replace(
            gpu, link=None, link_bytes_per_s=None, link_topology=None, link_cards=(), link_source="",
            pcie_generation=generation,
        )
    if gpu.link_bytes_per_s != bytes_per_s:
        gpu = replace(gpu, link=link, link_bytes_per_s=bytes_per_s)
    if topology is not None:
        gpu = replace(gpu, link_topology=topology, link_cards=cards, link_source="")
    return replace(gpu, bridged=True) if gpu.link_topology == "bridge" else gpu


def instances() -> tuple[Instance, ...]:
    """All machines, in the order of the file."""
    return tuple(map(_built, _rows()))


def load_instance(text: str) -> Instance:
    """The machine of a name, in any case, with or without its provider and its provider's usual prefix.

    Raises: UnknownName with the nearest names, InvalidSpec where several providers have that name
    """
    provider, colon, name = re.sub(r"\s+", "-", text.strip().lower()).rpartition(":")
    if colon and provider not in PROVIDERS:
        raise UnknownName.of("provider", provider, PROVIDERS)
    start = provider + colon
    found = [full for full in _index().get(PREFIXES.sub("", name), ()) if full.startswith(start)]
    if not found:
        raise UnknownName.of("instance", text.strip(), [*_rows(), *_index()])
    if len(found) > 1:
        raise InvalidSpec("instance {!r} is rented by several providers; use {}",
                          text.strip()[:80], joined(" or ", found))
    return _built(found[0])


def card_of_code(text: str) -> tuple[str, str] | None:
    """Card and caveat of a PAI card code; None for a text that is no such code.

    Raises: InvalidSpec for a code whose card is not public
    """
    code = text.strip().upper()
    row = _codes().get(code)
    if row is None and not CARD_CODE.fullmatch(text.strip().lower()):
        return None
    if row is None or not row["gpu"]:
        known = ", ".join(name for name, row in _codes().items() if row["gpu"])
        raise InvalidSpec(
            "{} reads like a card code of PAI, and which card it is has not been published; name the card itself, for "
            "example h20-96gb (codes with a known card: {})", code[:40], known
        )
    return row["gpu"], Note("PAI card code {} is taken as {}: {}", code, row["gpu"], row["note"])


def read_instances(text: str, *, file: str) -> dict[str, Instance]:
    """The machines of a table by full name.

    Raises: SourceError naming file and line
    """
    return {name: _instance(row) for name, row in _by_name(text, file).items()}


def _by_name(text: str, file: str) -> dict[str, Row]:
    rows = read_table(text, file=file, columns=COLUMNS, key=("provider", "name"))
    return {f"{row['provider']}:{row['name']}": row for row in rows}


def _instance(row: Row) -> Instance:
    gpus = row.number("gpus")
    memory_gb = row.number("memory_gb")
    if gpus is None or gpus != int(gpus) or memory_gb is None:
        raise SourceError("{}: gpus and memory_gb must be given, gpus as a whole number", row.where)
    vcpus, host, nvme = row.number("vcpus"), row.number("host_gib"), row.number("nvme_gb")
    rate = row.number("link_gb_per_s")
    if (rate is None) != (not row["link"]) or (int(gpus) == 1 and row["link"]):
        raise SourceError("{}: link and link_gb_per_s must both be given for several cards, else be empty", row.where)
    if row["link"].startswith("PCIe") and not re.fullmatch(r"PCIe[3-6]", row["link"]):
        raise SourceError("{}: link={!r} must name its generation, for example PCIe4", row.where, row["link"][:20])
    link, link_rate = row["link"] or None, None if rate is None else round(rate * GB)
    return Instance(
        provider=row.choice("provider", PROVIDERS),
        name=row.text("name"),
        gpu=_card(row),
        gpus=int(gpus),
        parts=_parts(row),
        memory_gb=memory_gb,
        vcpus=None if vcpus is None else int(vcpus),
        host_bytes=None if host is None else round(host * GIB),
        nvme_bytes=None if nvme is None else round(nvme * GB),
        network=_network(row),
        link=link,
        link_bytes_per_s=link_rate,
        note=row["note"],
        source=row.text("source"),
        checked=row.date("checked"),
        confidence=row.choice("confidence", CONFIDENCE),
    )


def _card(row: Row) -> str:
    try:
        return load_gpu(row.text("gpu")).name
    except UnknownName as error:
        raise SourceError("{}: {}", row.where, error) from None


def _parts(row: Row) -> int:
    match = re.fullmatch(r"1/([1-9]\d?)", row["slice"])
    if row["slice"] and match is None:
        raise SourceError("{}: slice={!r} must be written like 1/4, or be empty", row.where, row["slice"][:20])
    return int(match[1]) if match else 1


def _network(row: Row) -> Network | None:
    rate, rdma = row.number("network_gbit_per_s"), row.choice("rdma", RDMA)
    if rate is None:
        if rdma:
            raise SourceError("{}: rdma={!r} without network_gbit_per_s", row.where, rdma)
        return None
    return Network(bytes_per_s=round(rate * GB / 8), rdma=rdma or None, source=row.text("source"))


@cache
def _rows() -> dict[str, Row]:
    return _by_name(FILE.read_text(encoding="utf-8"), FILE.name)


@cache
def _built(full_name: str) -> Instance:
    return _instance(_rows()[full_name])


@cache
def _index() -> dict[str, tuple[str, ...]]:
    """Names as users write them, in lower case -> full names."""
    index: dict[str, tuple[str, ...]] = {}
    for full_name in _rows():
        key = PREFIXES.sub("", full_name.partition(":")[2].lower())
        index[key] = (*index.get(key, ()), full_name)
    return index


@cache
def _codes() -> dict[str, Row]:
    text = CODES_FILE.read_text(encoding="utf-8")
    return {row["code"]: row for row in read_table(text, file=CODES_FILE.name, columns=CODE_COLUMNS, key=("code",))}
