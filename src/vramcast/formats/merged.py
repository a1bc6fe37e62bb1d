"""The options of one plan over those that configuration files give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.model import Model
from vramcast.errors import SourceError
from vramcast.formats.paths import Configs
from vramcast.formats.read import Given, about_network, as_options, left_open, read_files, settled, solved
from vramcast.question.build import market_of
from vramcast.question.options import MARKET_OPTIONS, over, parse_count

SERVERS: Final = ("vllm", "sglang")


def with_configs(
    options: Mapping[str, Any], configs: Configs, *, command: str, beneath: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Given]:
    """Options over those that configuration files of other tools give.

    Args:
        options: what was said by name, which wins
        configs: the files, and how they are read
        command: "train" or "serve"
        beneath: options of a job file, over which the files win

    Returns: all options, and what the files said
    Raises: Unsupported for what files say and nobody here understands
    """
    given = read_files(configs.paths, command=command, format_name=configs.format_name)
    named = {name: value for name, value in options.items() if value is not None}
    merged = over(named, over(given.options, beneath or {}))
    if "gpus" in merged:
        given, ranks = _on_cluster(given, merged)
        merged = solved(merged, given.batch, ranks, named)
    given = about_network(given, merged.get("model"))
    given = settled(given, {**(beneath or {}), **named}, ignore_unread=configs.ignore_unread)
    open_ = left_open(given, merged) if command == "train" else ()
    model = options.get("model")
    if model is not None and given.options.get("model", model) != model:
        open_ = (*open_, f"the model of the file is left for {getattr(model, 'name', model)}")
    return merged, given._replace(assumptions=(*given.assumptions, *open_))


def _on_cluster(given: Given, options: Mapping[str, Any]) -> tuple[Given, int]:
    """What the number of cards settles, and the data-parallel ranks."""
    market = market_of({name: options[name] for name in MARKET_OPTIONS if name in options})
    count = cluster_of(str(options["gpus"]), market).count
    model_parallel = math.prod(parse_count(name, options.get(name, 1)) for name in ("tp", "pp", "cp"))
    ranks = max(1, count // max(1, model_parallel))
    others = tuple(
        f"{file}: starts {processes} processes, the question has {count} GPUs; those are taken"
        for file, processes in given.ranks.items() if processes != count
    )
    taken = math.prod(parse_count(name, options.get(name, 1)) for name in ("tp", "pp", "dp"))
    if "tp" in given.options and taken < count and set(SERVERS) & {str(options.get("engine")).partition("@")[0]}:
        others = (*others, f"its command takes {taken} of the {count} GPUs")
    return given._replace(ignored=(*given.ignored, *others)), ranks


def script_network(path: Path, *, ignore_unread: bool) -> tuple[Model, tuple[str, ...]]:
    """The network that the arguments of a launch script describe, and what of the script is left.

    Raises: SourceError where they describe none, Unsupported where they do in words nobody here understands
    """
    given = read_files([path], command="train")
    model = given.options.get("model")
    if not isinstance(model, Model):
        raise SourceError(f"{path}: its arguments describe no network; name a model, and give it with --from")
    network = tuple((file, one) for file, one in given.unread if one.of_network)
    ignored = settled(given._replace(unread=network), (), ignore_unread=ignore_unread).ignored
    rest = {name: value for name, value in given.options.items() if name != "model"}
    left = f"{path.name}: only its network is taken; --from {path.name} takes the rest: {as_options(rest)}"
    return model, (*ignored, left)
