"""Machines and prices as tables, side by side, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from vramcast.domain.price import Price
from vramcast.report.messages import Words
from vramcast.report.price import age_days, money
from vramcast.report.text import table
from vramcast.units import GB, format_bytes

if TYPE_CHECKING:
    from vramcast.catalogue.machines import Machine
    from vramcast.sources.prices.update import Outcome

OLD_DAYS: Final = 365
NOTE_WIDTH: Final = 60


def machine_table(machines: Sequence[Machine], words: Words, today: date) -> str:
    """One row per machine, with the region and the age of its price."""
    header = tuple(
        words(key) for key in (
            "instance", "gpus", "usable_each", "network", "host_memory", "per_hour", "per_gpu_hour", "region", "age",
        )
    )
    rows = [
        (
            machine.name,
            f"{machine.cluster.gpus_per_node} x {machine.cluster.gpu.name}",
            format_bytes(machine.cluster.gpu.visible_bytes),
            _network(machine),
            _bytes(machine.cluster.host_bytes),
            *_hourly(machine, words),
            *_when(machine.cluster.price, today),
        )
        for machine in machines
    ]
    text = table([header, *rows], right=frozenset({2, 4, 5, 6, 8}))
    currencies = sorted({machine.cluster.price.currency for machine in machines if machine.cluster.price})
    if len(currencies) > 1:
        text += words("several_currencies", currencies=", ".join(currencies)) + "\n"
    return text


def comparison(machines: Sequence[Machine], words: Words, today: date) -> str:
    """One column per machine."""
    lines: dict[str, list[str]] = {}
    for machine in machines:
        for key, value in _facts(machine, words, today).items():
            lines.setdefault(key, []).append(value)
    return table([(words("instance"), *(machine.name for machine in machines)), *((k, *v) for k, v in lines.items())])


def _facts(machine: Machine, words: Words, today: date) -> dict[str, str]:
    cluster, row = machine.cluster, machine.row
    gpu, price = cluster.gpu, cluster.price
    per_hour, per_gpu = _hourly(machine, words)
    return {
        words("gpus"): f"{cluster.gpus_per_node} x {gpu.name}",
        words("usable_each"): f"{format_bytes(gpu.visible_bytes)} ({gpu.memory_nameplate})",
        words("link"): f"{gpu.link} {rate(gpu.link_bytes_per_s)}" if gpu.link else f"PCIe{gpu.pcie_generation or ''}",
        words("network"): _network(machine),
        words("host_memory"): _bytes(cluster.host_bytes),
        words("local_disks"): f"{cluster.nvme_bytes // GB:,} GB" if cluster.nvme_bytes else "",
        words("vcpus"): str(row.vcpus or "") if row else "",
        words("per_hour"): per_hour,
        words("per_gpu_hour"): per_gpu,
        words("region"): price.region if price else "",
        words("tariff"): words(f"tariff.{price.tariff}") if price else "",
        words("price_date"): price.date if price else "",
        words("age"): _when(price, today)[1],
        words("checked"): row.checked if row else "",
        words("confidence"): row.confidence if row else "",
        words("note"): _shortened(words.said(row.note)) if row else "",
    }


def machine_documents(machines: Sequence[Machine]) -> list[dict[str, Any]]:
    """Plain data of each machine; what is not known is absent."""
    return [_known(_machine_document(machine)) for machine in machines]


def _machine_document(machine: Machine) -> dict[str, Any]:
    cluster, row, price = machine.cluster, machine.row, machine.cluster.price
    network = cluster.network
    return {
        "name": machine.name,
        "gpu": row.gpu if row else cluster.gpu.name,
        "gpus": cluster.gpus_per_node,
        "machines": cluster.num_nodes if row is None else None,
        "slices_of_a_card": row.parts if row and row.parts > 1 else None,
        "visible_bytes": cluster.gpu.visible_bytes,
        "link": cluster.gpu.link or "PCIe",
        "link_bytes_per_s": cluster.gpu.link_bytes_per_s,
        "network_bytes_per_s": network.bytes_per_s if network else None,
        "rdma": network.rdma if network else None,
        "host_bytes": cluster.host_bytes,
        "nvme_bytes": cluster.nvme_bytes,
        "vcpus": row.vcpus if row else None,
        "price": _price_document(price) if price else None,
        "note": row.note if row else None,
        "source": row.source if row else None,
        "checked": row.checked if row else None,
        "confidence": row.confidence if row else None,
    }


def price_table(rows: Sequence[tuple[str, Price]], words: Words, today: date) -> str:
    """One row per price, with its age; those older than a year are counted below."""
    if not rows:
        return ""
    header = tuple(words(key) for key in ("instance", "region", "tariff", "per_hour", "price_date", "age"))
    body = [
        (name, price.region, words(f"tariff.{price.tariff}"), money(price.per_hour, price.currency), price.date,
         str(age_days(price, today)))
        for name, price in rows
    ]
    old = sum((age_days(price, today) or 0) > OLD_DAYS for _, price in rows)
    return table([header, *body], right=frozenset({3, 5})) + (words("old_prices", count=old) + "\n" if old else "")


def price_documents(rows: Sequence[tuple[str, Price]], today: date) -> list[dict[str, Any]]:
    """Plain data of each price."""
    return [{"instance": name} | _price_document(price) | {"age_days": age_days(price, today)} for name, price in rows]


def update_report(outcomes: Sequence[Outcome], words: Words, *, path: str) -> str:
    """What became of every provider."""
    lines: list[str] = []
    for outcome in outcomes:
        if outcome.failure:
            lines.append(words("not_updated", provider=outcome.provider, reason=outcome.failure))
            continue
        lines.append(
            words("updated", provider=outcome.provider, count=outcome.prices, regions=outcome.regions,
                  source=outcome.source)
        )
        lines += [words("left_out", reason=reason) for reason in outcome.left_out]
    if any(outcome.prices for outcome in outcomes):
        lines.append(words("written_to", path=path))
    return "\n".join(lines) + "\n"


def _price_document(price: Price) -> dict[str, Any]:
    fields = ("per_hour", "currency", "tariff", "region", "date", "source")
    return _known({name: getattr(price, name) for name in fields})


def _known(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if value not in (None, "")}


def _hourly(machine: Machine, words: Words) -> tuple[str, str]:
    price = machine.cluster.price
    if price is None:
        return words("no_such_price", kind=machine.wanted) if machine.wanted else words("not_public"), ""
    return money(price.per_hour, price.currency), money(
        price.per_hour / machine.cluster.gpus_per_node, price.currency
    )


def _when(price: Price | None, today: date) -> tuple[str, str]:
    """Region and age of a price."""
    days = None if price is None else age_days(price, today)
    return price.region if price else "", "" if days is None else str(days)


def _network(machine: Machine) -> str:
    network = machine.cluster.network
    if network is None:
        return ""
    return f"{8 * network.bytes_per_s / 1e9:g} Gbit/s {network.rdma or ''}".rstrip()


def rate(bytes_per_s: int | None) -> str:
    """A rate in the unit data sheets use."""
    return "" if bytes_per_s is None else f"{bytes_per_s / GB:,g} GB/s"


def _bytes(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _shortened(text: str) -> str:
    return text if len(text) <= NOTE_WIDTH else text[: NOTE_WIDTH - 1] + "…"
