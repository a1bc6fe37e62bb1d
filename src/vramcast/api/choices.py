"""A question without cards: which ones hold it, the smallest first, with what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast import api, catalogue
from vramcast.api.jobs import question_of
from vramcast.catalogue.clusters import Market, cluster_of, price_lists, priced
from vramcast.domain.answer import Answer
from vramcast.domain.choices import Choice, Choices, Offered
from vramcast.errors import Unsupported, VramcastError
from vramcast.question.build import market_of
from vramcast.question.commands import table_of
from vramcast.question.options import parse

USUAL: Final = (
    "rtx-4060", "rtx-3060-12gb", "t4", "rtx-4060-ti-16gb", "a10", "l4", "rtx-4090", "rtx-5090", "a100-sxm4-40gb",
    "l40s", "rtx-a6000", "h100-sxm-80gb", "a100-sxm4-80gb", "h20-96gb", "rtx-pro-6000-bw-se", "h200-sxm-141gb",
    "b200-180gb", "mi300x",
)
"""Cards that many have or that are rented, one or two of each size of memory."""

COUNTS: Final = (1, 2, 4, 8)
LARGER: Final = (16, 32, 64, 128, 256, 512)
"""Cards that are looked at, the larger numbers only where no machine of eight holds the job."""


def asks_which(command: str, options: Mapping[str, Any], file: str | Path | None) -> bool:
    """Whether a question names no cards, and so asks which there should be."""
    if options.get("gpus") is not None or options.get("find") is not None:
        return False
    try:
        asked = question_of(options, file, command).options
    except Unsupported:  # what a command leaves to the cards: raised again where it is not that
        question_of(dict(options) | {"gpus": USUAL[-1]}, file, command)
        return True
    return asked.get("gpus") is None and asked.get("find") is None


def card_choices(command: str, options: Mapping[str, Any], *, file: str | Path | None = None) -> Choices:
    """One line per kind of card: the fewest that hold the job.

    Raises: what the question raises on every card
    """
    named = {name: value for name, value in options.items() if value is not None and name != "gpus"}
    market = _market(command, named)
    started = _started(command, named, file)
    fitting, nearest = _looked_at(command, named, file, USUAL, (started,) if started else COUNTS)
    if not fitting and not started:
        fitting, nearest = _looked_at(command, named, file, USUAL[-7:], LARGER)
    found = fitting or nearest
    lists = price_lists(market)
    machines = [machine for machine in catalogue.instances.instances() if machine.parts == 1]
    choices = []
    for gpus, answer in found:
        offers = [
            Offered(price=price, instance=machine.full_name)
            for machine in machines if f"{machine.gpus}x{machine.gpu}" == gpus
            if (price := priced(machine.cluster(), market, lists).price) is not None
        ]
        choices.append(Choice(answer=answer, gpus=gpus, offer=_cheapest(offers)))
    choices.sort(key=lambda choice: (choice.memory_bytes, choice.offer is None, choice.gpus))
    return Choices(model=str(found[0][1].question["model"]), choices=tuple(choices))


def _started(command: str, options: Mapping[str, Any], file: str | Path | None) -> int:
    """The cards that a file or a command says to start processes on; 0 where none says a number."""
    card = USUAL[-1]
    gpus = question_of(dict(options) | {"gpus": card}, file, command).options["gpus"]
    return 0 if gpus == card else cluster_of(str(gpus)).count


def _looked_at(
    command: str, options: Mapping[str, Any], file: str | Path | None, cards: tuple[str, ...], counts: tuple[int, ...]
) -> tuple[list[tuple[str, Answer]], list[tuple[str, Answer]]]:
    """The fewest of every card that fit, and where none do the one that comes nearest."""
    fitting: list[tuple[str, Answer]] = []
    others: list[tuple[str, Answer]] = []
    reason: VramcastError | None = None
    for card in cards:
        for count in counts:
            gpus = f"{count}x{card}"
            try:
                answer = api.answer_to(command, dict(options) | {"gpus": gpus}, file=file, with_changes=False)
            except VramcastError as error:
                reason = reason or error
                continue
            if answer.fits:
                fitting.append((gpus, answer))
                break
            others.append((gpus, answer))
    if not fitting and not others and reason is not None:
        raise reason
    nearest = min(others, key=lambda pair: pair[1].fullest.needed_bytes / pair[1].capacity_bytes, default=None)
    return fitting, [nearest] if nearest is not None else []


def _cheapest(offers: list[Offered]) -> Offered | None:
    """The cheapest in dollars, else in the currency of the first: none is converted."""
    currencies = [offer.price.currency for offer in offers]
    currency = "USD" if "USD" in currencies else next(iter(currencies), "")
    paid = (offer for offer in offers if offer.price.currency == currency)
    return min(paid, key=lambda offer: offer.price.per_hour, default=None)


def _market(command: str, options: Mapping[str, Any]) -> Market:
    table = table_of(command)
    return market_of({name: parse(name, value, table) for name, value in options.items()
                      if name in table and table[name].section == "market"}, table)

