"""Everyday names of cards: "RTX 4090 laptop", "3060 Ti 8GB", "A100 80G PCIe", what nvidia-smi and torch print.

A name is a set of words and a size. A card answers to it where all its words are the card's, the card's model number
is among them and the size is the card's: words that no card has make a near miss, never another card's answer. Where
several cards are left, the plain one is taken and said so; where the words do not say which, they are asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final, NamedTuple

from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName

Rows = Mapping[str, Mapping[str, str]]

FILE: Final = "gpus.csv"
LONGEST: Final = 200
"""A longer text is no name [characters]."""
MOST_LISTED: Final = 8

VENDOR_WORDS: Final = re.compile(r"^(?:nvidia|amd|huawei|intel|geforce|tesla|instinct|radeon|apple|google)+(?=.)")
FILLERS: Final = frozenset(re.split(r"\s+", """
    nvidia geforce tesla amd radeon instinct intel apple huawei google cloud gpu gpus card cards graphics generation
    edition the design with vram memory hbm oc tensor core founders fe asus msi
    moore threads gigabyte evga zotac palit pny colorful galax
"""))
"""Words that tell no card from another."""
OPTIONAL: Final = frozenset(
    ["rtx", "gtx", "rx", "quadro", "ascend", "arc", "jetson", "agx", "cmp", "mtt", "tpu", "ws", "bw", "sxm"]
)
"""Of a card's own words, those that people leave out."""
MODELS: Final = frozenset(["ti", "super", "xt", "xtx", "gre", "pro", "max", "ultra", "nano", "nx", "d"])
"""Words that make a card another model."""
SYNONYMS: Final = {
    "mobile": "laptop", "notebook": "laptop", "sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "blackwell": "bw",
    "workstation": "ws", "server": "se",
}
SERIES: Final = re.compile(
    r"^(nvidia|geforce|rtx|gtx|rx|quadro|tesla|titan|radeon|instinct|jetson|ascend|apple|pro|cmp|arc|mtt|tpu)(?=\w*\d)"
)
VARIANT: Final = re.compile(
    r"(?<=\d)((?:ti)?(?:super|laptop|mobile|maxq|d)|ti|notebook|sxm\d?|pcie|nvl|ada|max|ultra|pro|xtx|xt|gre)$"
)
SIZE: Final = re.compile(r"(?<![\w.])(\d{1,6}(?:\.\d+)?)\s*(g|gb|gib|mb|mib)(?![\w.])", re.IGNORECASE)
NUMBERED: Final = re.compile(r".*\d.*")
COUNT: Final = re.compile(r"\d{1,2}")
"""No word of a name: how many there are."""
BARE_SIZE: Final = re.compile(r"[1-9]\d{1,2}")
"""A size without its unit."""
NO_MODEL: Final = re.compile(r"sxm\d|(?:gddr|hbm)\d\w*|v2")
MACS: Final = re.compile(r"\b(?:macbook(?:[\s_-]+(?:pro|air))?|mac[\s_-]+(?:studio|mini|pro)|imac)\b")
"""Machines that several chips are built into."""
NEAR: Final = 0.04
"""Sizes that a nameplate stands for: 24564 MiB is a card of 24 GB. A Mac tells its own size everywhere."""


class Found(NamedTuple):
    """A card of everyday words."""

    name: str  # in the catalogue
    said: str = ""  # what is taken where the words leave it open


class _Card(NamedTuple):
    """A row as words."""

    name: str
    words: frozenset[str]  # all it may be called
    model: frozenset[str]  # those that must be said
    own: frozenset[str]  # of its name: those not said make it a variant
    size: float  # nameplate [GB]
    near: float  # how far off a size may be that stands for it
    arch: str


class CardNames:
    """The names of all cards of a catalogue."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.index = _index(rows)
        self.cards = tuple(map(_card, rows.values()))

    def find(self, text: str) -> Found:
        """The card that a text names, and what is taken where it leaves that open.

        Args:
            text: a name in the catalogue, an alias, or words in any order and spelling

        Raises: UnknownName with the nearest names, InvalidSpec for words that different cards answer to
        """
        if len(text) > LONGEST:
            raise UnknownName.of("GPU", text, ())
        key = _key(text)
        exact = next((self.index[name] for name in (key, "rtx" + key, "gtx" + key) if name in self.index), None)
        words, size = _said_words(text)
        fitting = _answering(words, size, self.cards) if words else []
        if not fitting and size is None and (bare := [word for word in words if BARE_SIZE.fullmatch(word)]):
            fitting = _answering(words - {bare[0]}, float(bare[0]), self.cards)  # "a100-80"
            words = words - {bare[0]} if fitting else words
        if exact is not None:
            whole = exact not in {card.name for card in fitting} or _is_whole(key, self.rows[exact])
            return Found(exact, "" if whole else self._taken(text, exact, fitting))
        if not fitting:
            raise self._unknown(text, words, size)
        least = min(len(_unsaid(card, words)) for card in fitting)
        plain = [card for card in fitting if len(_unsaid(card, words)) == least]
        if _differ(plain) or (len({card.arch for card in fitting}) > 1 and _differ(fitting)):
            raise _asked(text, fitting)
        chosen = min(plain, key=lambda card: _rate(self.rows[card.name]))
        return Found(chosen.name, self._taken(text, chosen.name, fitting))

    def _taken(self, text: str, name: str, cards: list[_Card]) -> str:
        """What is said where other cards are called so too, and differ."""
        own = _figures(self.rows[name])
        others = [card.name for card in cards if _figures(self.rows[card.name]) != own]
        if not others:
            return ""
        return Note("{} is taken as {}; there are also {}", text.strip()[:60], name, _listed(others))

    def _unknown(self, text: str, words: frozenset[str], size: float | None) -> InvalidSpec | UnknownName:
        """A near miss names the cards that may be meant."""
        shown = text.strip()[:60]
        others = _answering(words, None, self.cards) if size is not None and words else []
        if others and size:
            there = _listed([f"{card.name} ({card.size:g} GB)" for card in others])
            return InvalidSpec(
                "no {!r} is known; there is {}; for a card of another size give the size alone, for example --gpus "
                "{:g}gb", shown, there, size
            )
        if chips := [card.name for card in self.cards if MACS.search(text.lower()) and not words
                     and size is not None and self.rows[card.name]["vendor"] == "Apple" and card.size == size]:
            return UnknownName("unknown GPU {!r}; did you mean {}?", shown, _listed(chips))
        numbers = {word for word in words if NUMBERED.fullmatch(word)}
        near = [card.name for card in self.cards if card.model <= numbers]
        if near:
            return UnknownName("unknown GPU {!r}; did you mean {}?", shown, _listed(near))
        known = (*self.rows, *(alias.lower() for row in self.rows.values() for alias in _aliases(row)))
        return UnknownName.of("GPU", text.strip(), known)


def _answering(words: frozenset[str], size: float | None, cards: tuple[_Card, ...]) -> list[_Card]:
    """Those that are called so; another model of a series only where none is called so without its word."""
    found = [
        card for card in cards
        if words <= card.words and card.model <= words and (size is None or abs(size / card.size - 1) <= card.near)
    ]
    return [card for card in found if not _unsaid(card, words) & MODELS] or found


def _unsaid(card: _Card, words: frozenset[str]) -> frozenset[str]:
    return card.own - words - OPTIONAL


def _differ(cards: list[_Card]) -> bool:
    return len({card.size for card in cards}) > 1


def _rate(row: Mapping[str, str]) -> tuple[float, float]:
    """Of cards that only differ in speed the slowest is taken."""
    return float(row["bandwidth_gb_per_s"] or 0), float(row["fp16_tflops"] or 0)


def _figures(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in ("memory_nameplate", "bandwidth_gb_per_s", "fp16_tflops", "link_gb_per_s"))


def _asked(text: str, cards: list[_Card]) -> InvalidSpec:
    named = sorted(cards, key=lambda card: (card.size, card.name))
    listed = _listed([f"{card.name} ({card.size:g} GB)" for card in named])
    return InvalidSpec("GPU {!r} can be {}; name one of them", text.strip()[:60], listed)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "")


def _said_words(text: str) -> tuple[frozenset[str], float | None]:
    """Words of a text that tell cards apart, and the size in it [GB]."""
    plain = _plain(text)
    sizes = [float(match[1]) / (1024 if match[2].lower().startswith("m") else 1) for match in SIZE.finditer(plain)]
    found: list[str] = []
    for word in re.split(r"[\W_]+", SIZE.sub(" ", plain)):
        found += _taken_apart(word)
    named = [SYNONYMS.get(word, word) for word in found if word and word not in FILLERS]
    words = frozenset(named)
    if len(set(sizes)) > 1 or len(words) < len(named):  # two cards in one text are none
        return frozenset(), None
    return words, sizes[0] if sizes else None


def _taken_apart(word: str) -> list[str]:
    """Words that are written as one.

    >>> _taken_apart("rtx4070tisuper"), _taken_apart("a100"), _taken_apart("m3max")
    (['rtx', '4070', 'ti', 'super'], ['a100'], ['m3', 'max'])
    """
    before: list[str] = []
    while match := SERIES.match(word):
        before.append(match[1])
        word = word[match.end() :]
    match = VARIANT.search(word)
    if match is None:
        return [*before, word]
    variant = [match[1]] if match[1] == "ti" or not match[1].startswith("ti") else ["ti", match[1][2:]]
    return [*before, word[: match.start()], *variant]


def _plain(text: str) -> str:
    """Small letters of one width, without trademarks."""
    bare = re.sub(r"(?i)\(r\)|\(tm\)|®|™|显卡|英伟达|_", " ", text)
    return re.sub(r"max[- ]*q\b", "maxq", MACS.sub(" ", unicodedata.normalize("NFKC", bare).lower()))


def _key(text: str) -> str:
    """Letters and digits only, without the vendor: "NVIDIA A100-SXM4-80GB" and "a100_sxm4_80gb" are one."""
    return re.sub(r"(?:gpu)+$", "", VENDOR_WORDS.sub("", re.sub(r"[\W_]", "", _plain(text))))


def _is_whole(key: str, row: Mapping[str, str]) -> bool:
    """Whether it is the row's own name, or the product as the vendor writes it."""
    return key in (_key(row["name"]), _key(row["product"])) or any(
        key == _key(alias) and alias != alias.lower() for alias in _aliases(row)
    )


def _aliases(row: Mapping[str, str]) -> list[str]:
    return [alias for alias in row["aliases"].split(",") if alias]


def _index(rows: Rows) -> dict[str, str]:
    """Key of every name, product and alias -> name.

    Raises: SourceError for a key of two cards
    """
    index: dict[str, str] = {}
    for name, row in rows.items():
        for alias in (name, row["product"], *_aliases(row)):
            key = _key(alias)
            if index.setdefault(key, name) != name:
                raise SourceError("{}: row {}: alias {!r} belongs to {}", FILE, name, alias, index[key])
    return index


def _card(row: Mapping[str, str]) -> _Card:
    own, _ = _said_words(re.sub(r"-\d+gb$", "", row["name"]))
    product = re.sub(r"\([^)]*\)", "", row["product"])  # what stands in brackets is about the card
    called = own.union(*(_said_words(text)[0] for text in (product, *_aliases(row))))
    called = frozenset(word for word in called if not COUNT.fullmatch(word))
    called = called.union(row["memory_type"].lower().split()[:1])
    model = frozenset(word for word in own if NUMBERED.fullmatch(word) and not NO_MODEL.fullmatch(word))
    size = float(row["memory_nameplate"].split()[0])
    near = 0 if row["vendor"] == "Apple" else NEAR
    return _Card(row["name"], called, model or own - OPTIONAL, own, size, near, row["arch"])


__all__ = ["CardNames", "Found"]
