"""A question without cards: which ones hold it, the smallest first, with what they cost.

"My card, which models?": those of the catalogue that cards hold, in the most precise form that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vramcast import api, catalogue
from vramcast.api.jobs import question_of
from vramcast.catalogue.clusters import Market, cluster_of, price_lists, priced, taken
from vramcast.catalogue.index import PIPELINES, find_models, summary
from vramcast.domain.answer import Answer
from vramcast.domain.device import Cluster
from vramcast.domain.planning import Choice, Choices, Fitting, FittingModel, Offered
from vramcast.engines.serving.checks import is_ported, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import UnknownName, VramcastError
from vramcast.question.build import market_of
from vramcast.question.option import table_of
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


Form = tuple[str, float, Mapping[str, Any]]
"""What a form is called, the least bytes a weight that it takes, and the options that ask for it."""

SERVED: Final[tuple[Form, ...]] = (
    ("as stored", 0.5, {}), ("fp8", 1.0, {"weights": "fp8"}), ("int4", 0.5, {"weights": "awq-int4"}),
)
PACKED: Final[tuple[Form, ...]] = (
    ("as stored", 0.5, {}), ("q8_0", 1.0, {"weights": "q8_0"}), ("q4_k_m", 0.5, {"weights": "q4_k_m"}),
)
TRAINED: Final[tuple[Form, ...]] = (
    ("all weights", 10.0, {}), ("LoRA", 2.0, {"peft": "lora"}), ("QLoRA", 0.5, {"peft": "lora", "base-weights": "nf4"}),
)
"""Most precise first."""
PURPOSES: Final = ("serve", "train")
LENGTHS: Final = {"serve": 8192, "train": 2048}
"""Tokens of a sequence where nobody says."""


def fitting_models(gpus: str, *, purpose: str = "serve", text: str = "", length: int | None = None) -> Fitting:
    """The models of the catalogue that cards hold, one sequence at a time.

    Args:
        gpus: as `--gpus` takes it
        purpose: "serve", or "train" with all layers recomputed
        text: part of the models' names
        length: tokens of the sequence

    Raises: as `cluster_of`, UnknownName for text that no model's name holds, or for another purpose
    """
    if purpose not in PURPOSES:
        raise UnknownName.of("purpose", purpose, PURPOSES)
    cluster, names = cluster_of(gpus), find_models(text)
    if not names:
        raise UnknownName.of("model", text, find_models(""))
    tokens = length or LENGTHS[purpose]
    engine, forms, common = _asked(cluster, purpose, tokens)
    room = cluster.count * cluster.gpu.visible_bytes
    found, reason = [], None
    for name in names:
        if purpose == "train" and name in PIPELINES.summaries:
            continue
        try:
            fit = next(_fits(name, cluster.name, purpose, forms, common, room), None)
        except VramcastError as error:
            reason = reason or error
            continue
        found += [fit] if fit is not None else []
    if not found and reason is not None and len(names) == 1:
        raise reason
    found.sort(key=lambda fit: (-fit.parameters, fit.name))
    return Fitting(
        gpus=cluster.name, purpose=purpose, length=tokens, engine=engine, looked_at=len(names), fits=tuple(found),
        said=(*cluster.cautions, *taken(gpus)),
    )


def _asked(cluster: Cluster, purpose: str, tokens: int) -> tuple[str, tuple[Form, ...], dict[str, Any]]:
    """Engine, forms and the options of every model."""
    if purpose == "train":
        return "huggingface", TRAINED, {"engine": "huggingface", "seq-len": tokens, "recompute": "full"}
    vllm = SERVING["vllm"]
    if runs_on("vllm", vllm.default, cluster.gpu) or is_ported("vllm", vllm.default, cluster.gpu):
        return "vllm", SERVED, {"engine": "vllm", "context": tokens}
    return "llama.cpp", PACKED, {"engine": "llama.cpp", "context": tokens}


def _fits(
    name: str, gpus: str, purpose: str, forms: tuple[Form, ...], common: Mapping[str, Any], room: int
) -> Iterator[FittingModel]:
    """The forms that fit, the most precise first; those whose weights alone are too much are not worked out."""
    size = int(summary(name)["parameters"])
    if name in PIPELINES.summaries:
        forms, common = (("as stored", 0.5, {}),), {}
    reason: VramcastError | None = None
    for form, least, options in forms:
        if least * size > room:
            continue
        asked = {**common, **options, "model": name, "gpus": gpus}
        if "context" in asked:
            asked["context"] = min(asked["context"], summary(name).get("context") or asked["context"])
        try:
            answer: Answer = (
                api.serve_answer(asked, with_changes=False) if purpose == "serve"
                else api.train_answer(asked, with_changes=False)[1]
            )
        except VramcastError as error:
            reason = reason or error
            continue
        if answer.fits:
            yield FittingModel(name=name, parameters=size, form=form, answer=answer)
    if reason is not None:
        raise reason
