"""The options of one plan over those that configuration files give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.checkpoint import Checkpoint
from vramcast.domain.model import Model
from vramcast.errors import SourceError
from vramcast.question.build import market_of
from vramcast.question.configs.paths import SCRIPTS, Configs
from vramcast.question.configs.readers import Given, left_open, read_files, solved
from vramcast.question.options import MARKET_OPTIONS, parse_count

SAME: Final = (("zero", "shards"), ("global-batch", "grad-accum"))
"""Options of which one says the other."""


def with_configs(
    options: Mapping[str, Any], paths: Sequence[str | Path], *, command: str, format_name: str | None = None
) -> tuple[dict[str, Any], Given]:
    """Options over those that configuration files of other tools give.

    Args:
        options: what was said by name, which wins
        paths: the files
        command: "train" or "serve"
        format_name: whose they are; None: recognised

    Returns: all options, and what the files said
    """
    given = read_files(paths, command=command, format_name=format_name)
    named = {name: value for name, value in options.items() if value is not None}
    merged = {name: value for name, value in given.options.items() if not _said_otherwise(name, named)} | named
    if given.batch and "gpus" in merged and not named.keys() & {"micro-batch", "grad-accum", "global-batch"}:
        market = market_of({name: merged[name] for name in MARKET_OPTIONS if name in merged})
        count = cluster_of(str(merged["gpus"]), market).count
        model_parallel = math.prod(parse_count(name, merged.get(name, 1)) for name in ("tp", "pp", "cp"))
        merged = solved(merged, given.batch, max(1, count // max(1, model_parallel)))
    open_ = left_open(given, merged) if command == "train" else ()
    model = options.get("model")
    if model is not None and given.options.get("model", model) != model:
        open_ = (*open_, f"the model of the file is left for {getattr(model, 'name', model)}")
    return merged, given._replace(assumptions=(*given.assumptions, *open_))


def _said_otherwise(name: str, named: Mapping[str, Any]) -> bool:
    """Whether another option that was named says what a file's option says."""
    return any(name in pair and named.keys() & set(pair) for pair in SAME)


def script_checkpoint(text: str) -> Checkpoint:
    """The network that the arguments of a launch script describe, where MODEL is the path of one."""
    model = read_files([Path(text)], command="train").options.get("model")
    if not isinstance(model, Model):
        raise SourceError(f"{text[:200]}: its arguments describe no network; name a model, and give it with --from")
    return Checkpoint(model=model)


def model_named(model: object, configs: Configs) -> dict[str, object]:
    """A network that files describe as a command line names it, by its script; one that only Python has stays one."""
    if not isinstance(model, Model):
        return {}
    paths = (Path(path) for path in configs.paths)
    return {"model": next((str(path) for path in paths if path.name == model.name and path.suffix in SCRIPTS), model)}
