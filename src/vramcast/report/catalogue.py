"""The catalogue as tables, side by side, and as JSON: cards, machines and their prices, models.

The models that cards hold, as a table and as JSON.

The answer to a question without cards, as a table and as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from vramcast.domain.device import RATED_DTYPES, Gpu, Price
from vramcast.domain.planning import Choice, Choices, Fitting
from vramcast.report.columns import table, table_lines
from vramcast.report.document import noun_json, plain
from vramcast.report.messages import Words
from vramcast.report.sentences import age_days, money, word_of
from vramcast.units import GB, format_bytes

if TYPE_CHECKING:
    from vramcast.catalogue.machines import Machine
    from vramcast.sources.prices.update import Outcome


def choices_table(found: Choices, words: Words) -> str:
    """One line per kind of card, the least memory first."""
    first = found.choices[0]
    key = "choices.fit" if found.fits else "choices.none"
    lines = [words(key, model=found.model, gpus=first.gpus), ""]
    titles = ("choices.needs", "choices.usable", "choices.speed", "choices.price")
    head = ("--gpus", "", *map(words, titles), "")
    rows = [head, *(_row(choice, words) for choice in found.choices)]
    lines += table_lines(rows, right=frozenset({2, 3, 4, 5}), folded=len(rows[0]) - 1)
    lines += ["", words("choices.more", gpus=first.gpus)]
    return "\n".join(lines) + "\n"


def _row(choice: Choice, words: Words) -> tuple[str, ...]:
    answer, offer = choice.answer, choice.offer
    rate = answer.tokens_per_s
    return (
        choice.gpus, word_of(answer.verdict, words), format_bytes(answer.fullest.needed_bytes),
        format_bytes(answer.capacity_bytes), "" if rate is None else words("plan.speed", rate=f"{rate:,.0f}"),
        "" if offer is None else money(offer.price.per_hour, offer.price.currency),
        "" if offer is None else f"{offer.instance} {offer.price.date}",
    )


def choices_json(found: Choices, *, today: date) -> str:
    """The same as a document: what is not known is absent."""
    choices = tuple(
        replace(one, offer=one.offer and replace(one.offer, age_days=age_days(one.offer.price, today)))
        for one in found.choices
    )
    return noun_json(replace(found, choices=choices))


def fitting_table(found: Fitting, words: Words) -> str:
    """One line per model, the largest first."""
    lines = [
        words(
            f"fitting.{found.purpose}", count=len(found.fits), all=found.looked_at, gpus=found.gpus,
            engine=found.engine, tokens=f"{found.length:,}",
        ),
        *(f"  {words.said(text)}" for text in found.said),
    ]
    rows = [
        (
            fit.name, f"{fit.parameters:,}", words(f"form.{fit.form}") if " " in fit.form else fit.form,
            word_of(fit.answer.verdict, words), format_bytes(fit.answer.fullest.needed_bytes),
            "" if fit.answer.tokens_per_s is None else words("plan.speed", rate=f"{fit.answer.tokens_per_s:,.0f}"),
        )
        for fit in found.fits
    ]
    if rows:
        head = ("model", words("parameters"), "", "", words("choices.needs"), words("choices.speed"))
        lines += ["", *table_lines([head, *rows], right=frozenset({1, 4, 5}))]
    return "\n".join(lines) + "\n"


OLD_DAYS: Final = 365
NOTE_WIDTH: Final = 60

COLUMNS: Final = ("gpus", "usable_each", "network", "host_memory", "per_hour", "per_gpu_hour", "region", "age")
"""Facts of machines that stand side by side."""


def machine_table(machines: Sequence[Machine], words: Words, today: date) -> str:
    """One row per machine, with the region and the age of its price."""
    rows = [tuple(map(words, ("instance", *COLUMNS)))]
    for machine in machines:
        facts = _facts(machine, words, today) | {"usable_each": format_bytes(machine.cluster.gpu.visible_bytes)}
        rows.append((machine.name, *(facts[key] for key in COLUMNS)))
    text = table(rows, right=frozenset({2, 4, 5, 6, 8}))
    currencies = sorted({machine.cluster.price.currency for machine in machines if machine.cluster.price})
    if len(currencies) > 1:
        text += words("several_currencies", currencies=", ".join(currencies)) + "\n"
    return text


def compared_machines(machines: Sequence[Machine], words: Words, today: date) -> str:
    facts = [_facts(machine, words, today) for machine in machines]
    rows = ((words(key), *(one[key] for one in facts)) for key in facts[0])
    return table([(words("instance"), *(machine.name for machine in machines)), *rows])


def _facts(machine: Machine, words: Words, today: date) -> dict[str, str]:
    """By the keys of their names."""
    cluster, row = machine.cluster, machine.row
    gpu, price, network = cluster.gpu, cluster.price, cluster.network
    per_hour, per_gpu = words("no_such_price", kind=machine.wanted) if machine.wanted else words("not_public"), ""
    if price is not None:
        per_hour = money(price.per_hour, price.currency)
        per_gpu = money(price.per_hour / cluster.gpus_per_node, price.currency)
    days = None if price is None else age_days(price, today)
    note = words.said(row.note) if row else ""
    return {
        "gpus": f"{cluster.gpus_per_node} x {gpu.name}",
        "usable_each": f"{format_bytes(gpu.visible_bytes)} ({gpu.memory_nameplate})",
        "link": f"{gpu.link} {rate(gpu.link_bytes_per_s)}" if gpu.link else f"PCIe{gpu.pcie_generation or ''}",
        "network": f"{8 * network.bytes_per_s / 1e9:g} Gbit/s {network.rdma or ''}".rstrip() if network else "",
        "host_memory": "" if cluster.host_bytes is None else format_bytes(cluster.host_bytes),
        "local_disks": f"{cluster.nvme_bytes // GB:,} GB" if cluster.nvme_bytes else "",
        "vcpus": str(row.vcpus or "") if row else "",
        "per_hour": per_hour,
        "per_gpu_hour": per_gpu,
        "region": price.region if price else "",
        "tariff": words(f"tariff.{price.tariff}") if price else "",
        "price_date": price.date if price else "",
        "age": "" if days is None else str(days),
        "checked": row.checked if row else "",
        "confidence": row.confidence if row else "",
        "note": note if len(note) <= NOTE_WIDTH else note[: NOTE_WIDTH - 1] + "…",
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
    return [{"instance": name, **plain(price), "age_days": age_days(price, today)} for name, price in rows]


def update_report(outcomes: Sequence[Outcome], words: Words, *, path: str) -> str:
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


def rate(bytes_per_s: int | None) -> str:
    return "" if bytes_per_s is None else f"{bytes_per_s / GB:,g} GB/s"


def gpu_table(cards: Sequence[Gpu], words: Words) -> str:
    header = (words("gpu"), words("generation"), words("nameplate"), words("usable"), "GB/s", words("link"))
    rows = [
        (
            card.name,
            card.arch,
            card.memory_nameplate,
            format_bytes(card.visible_bytes),
            f"{card.bandwidth_bytes_per_s // GB:,}" if card.bandwidth_bytes_per_s else "",
            card.link or "PCIe",
        )
        for card in cards
    ]
    return table([header, *rows], right=frozenset({2, 3, 4}))


def compared_gpus(cards: Sequence[Gpu], words: Words) -> str:
    """One column per card: memory on the box and usable, bandwidth, dense rates, link."""
    rows = [
        (words("gpu"), *(card.name for card in cards)),
        (words("vendor"), *(card.vendor for card in cards)),
        (words("generation"), *(card.arch for card in cards)),
        (words("nameplate"), *(card.memory_nameplate for card in cards)),
        (words("usable"), *(format_bytes(card.visible_bytes) for card in cards)),
        (words("bandwidth"), *(rate(card.bandwidth_bytes_per_s) for card in cards)),
    ]
    for dtype in RATED_DTYPES:
        rates, unit = [card.flops_per_s(dtype) for card in cards], "TOPS" if dtype.startswith("int") else "TFLOPS"
        if any(rates):
            values = ("" if value is None else f"{value / 1e12:,g} {unit}" for value in rates)
            rows.append((words("dense_rate", dtype=dtype), *values))
    return table([
        *rows,
        (words("link"), *(_link(card) for card in cards)),
        (words("watts"), *(f"{card.tdp_w} W" if card.tdp_w else "" for card in cards)),
        (words("confidence"), *(card.confidence for card in cards)),
    ])


def gpu_details(card: Gpu) -> str:
    facts = to_builtins(card).items()
    return table([(name, _fact(name, value)) for name, value in facts if value is not None])


def _link(card: Gpu) -> str:
    if card.link is None:
        return f"PCIe{card.pcie_generation or ''}"
    return f"{card.link} {rate(card.link_bytes_per_s)}".rstrip()


def _fact(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,} ({format_bytes(value)})"
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
