"""What is known of a folder of entries without reading them: whose file a name or alias means, what a list shows of it.

`python -m vramcast.catalogue.models` and `python -m vramcast.catalogue.pipelines` write both anew; a test fails while
one of them is stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast.errors import SourceError, UnknownName

JOINTS: Final = re.compile(r"[\s_-]+")
"""What stands between the words of a name."""
NEEDLESS: Final = re.compile(r"(?<!\d)-|-(?!\d)")
"""Of those what is left out as well; between two numbers it tells gemma 3 1b from gemma 31b."""


def joined(name: str) -> str:
    """A name with its words joined: people write phi4, qwen3 32b, llama3_8b.

    >>> joined("Phi 4"), joined("gemma_3 1B"), joined("gemma 31b")
    ('phi4', 'gemma3-1b', 'gemma31b')
    """
    return NEEDLESS.sub("", JOINTS.sub("-", name.strip().lower()))


class Index:
    """The names, aliases and summaries of the files of a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Every name and alias in lower case -> the entry's own name."""
        found: dict[str, str] = msgspec.json.decode((self.folder / "index.json").read_bytes())
        return found

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Name -> what a list shows of the entry: counting the weights of all takes a third of a second."""
        lines = (self.folder / "summaries.jsonl").read_bytes().splitlines()
        return {row["name"]: row for row in map(msgspec.json.decode, lines)}

    @cached_property
    def _joined(self) -> dict[str, str]:
        """The same by names whose words are joined."""
        return {joined(alias): name for alias, name in self.aliases.items()}

    def names(self) -> tuple[str, ...]:
        """The names of all entries, sorted."""
        return tuple(sorted(set(self.aliases.values())))

    def entry(self, text: str) -> str | None:
        """The entry's own name for a name or alias, in any case, its words apart or joined; None where there is none.
        """
        return self.aliases.get(text.strip().lower()) or self._joined.get(joined(text))

    def resolve(self, text: str) -> str:
        """The entry's own name for a name or alias, in any case, its words apart or joined, with or without the active
        parameters that it ends with ("Qwen3 Next 80B").

        Raises: UnknownName with the nearest names
        """
        name = self.entry(text)
        if name is None:
            words = JOINTS.sub("-", text.strip().lower())
            active = re.compile(re.escape(words[:200]) + r"-a[\d.]+b")
            longer = {entry for alias, entry in self.aliases.items() if active.fullmatch(alias)}
            if len(longer) != 1:
                raise UnknownName.of(self.kind, text, self.aliases)
            return longer.pop()
        return name

    def search(self, text: str) -> tuple[str, ...]:
        """Names of the entries whose name or alias holds every word of the text."""
        words = text.lower().split()
        return tuple(sorted({name for alias, name in self.aliases.items() if all(word in alias for word in words)}))

    def built(self, aliases_of: Callable[[str], Iterable[str]]) -> dict[str, str]:
        """What `aliases` must be, by the files themselves.

        Raises: SourceError when two files claim one name
        """
        found: dict[str, str] = {}
        for file in sorted(self.folder.glob("*.toml")):
            for alias in (file.stem, *aliases_of(file.stem)):
                if found.setdefault(alias.lower(), file.stem) != file.stem:
                    raise SourceError("{}: alias {!r} belongs to {}.toml", file.name, alias, found[alias.lower()])
        return dict(sorted(found.items()))

    def write(self, aliases: dict[str, str], summary_of: Callable[[str], dict[str, Any]]) -> None:
        """Bring both files up to date."""
        self.aliases = aliases  # summaries are asked for by name, new ones too
        lines = [json.dumps(summary_of(name)) + "\n" for name in sorted(set(aliases.values()))]
        (self.folder / "index.json").write_text(json.dumps(aliases, indent=1) + "\n", encoding="utf-8")
        (self.folder / "summaries.jsonl").write_text("".join(lines), encoding="utf-8")


MODELS: Final = Index("model", Path(__file__).with_name("models"))
PIPELINES: Final = Index("pipeline", Path(__file__).with_name("pipelines"))


def is_pipeline(model: object) -> bool:
    """Whether a name is one of the catalogue of pipelines and of no model."""
    return isinstance(model, str) and PIPELINES.entry(model) is not None and MODELS.entry(model) is None


def find_models(text: str) -> tuple[str, ...]:
    """Names of models, then of pipelines: the one whose whole name the text is, else all that hold its words."""
    if text in MODELS.aliases.values() or text in PIPELINES.aliases.values():
        return (text,)
    return (*MODELS.search(text), *PIPELINES.search(text))


def summary(name: str) -> dict[str, Any]:
    """What a list shows of a model or a pipeline."""
    return (MODELS if name in MODELS.summaries else PIPELINES).summaries[name]
