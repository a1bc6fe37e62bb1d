"""Ray Serve's configuration of language models: each is an engine of vLLM with its arguments.

[ray] ray-project/ray python/ray/llm/_internal/serve/core/configs/llm_config.py LLMConfig,
python/ray/util/accelerators/accelerators.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.formats.reading import ELSEWHERE, Unread, table
from vramcast.formats.wrapped import Inside, card, unknown_card, variables, whole

DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size")


def inside(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[Inside]:
    """The models of a configuration, one command each."""
    groups = [table(table(one).get("args")) for one in document.get("applications") or ()] or [document]
    for group in groups:
        listed = group.get("llm_configs") or ([group] if "model_loading_config" in group else [])
        for config in listed if isinstance(listed, list) else []:
            yield _path(config) if isinstance(config, str) else _model(table(config))


def _path(text: str) -> Inside:
    return Inside("Ray Serve", ("vllm", "serve"), name=text, unread=(Unread(text[:60], ELSEWHERE),))


OF_A_MODEL: Final = (
    "model_loading_config", "engine_kwargs", "accelerator_type", "deployment_config", "lora_config", "llm_engine",
    "runtime_env", "log_engine_metrics",
)
"""What of a model's configuration is read, or changes no card's memory."""


def _model(config: Mapping[str, Any]) -> Inside:
    loading, given = table(config.get("model_loading_config")), dict(table(config.get("engine_kwargs")))
    name = str(loading.get("model_id") or "model")
    source = loading.get("model_source") or name
    unread: tuple[Unread, ...] = ()
    if not isinstance(source, str):
        unread = (Unread("model_source", "names no model of a hub; give MODEL", "model"),)
    unread = (*unread, *(Unread(str(name)[:60]) for name in config if name not in OF_A_MODEL))
    if str(config.get("llm_engine") or "vLLM") != "vLLM":
        unread = (*unread, Unread(f"llm_engine {str(config['llm_engine'])[:40]}"))
    words = [str(source)] if isinstance(source, str) else []
    adapters = table(config.get("lora_config"))
    if adapters:
        given = {"enable_lora": True, "max_loras": adapters.get("max_num_adapters_per_replica", 16), **given}
    for option, value in given.items():
        words += _argument(str(option), value)
    place = card(str(config.get("accelerator_type"))) if config.get("accelerator_type") else ""
    if config.get("accelerator_type") and not place:
        unread = (*unread, unknown_card("accelerator_type", str(config["accelerator_type"])))
    return Inside(
        "Ray Serve", ("vllm", "serve", *words), environment=variables(table(config.get("runtime_env")).get("env_vars")),
        place=place, cards=math.prod(whole(given.get(degree)) or 1 for degree in DEGREES) if place else None,
        name=name, unread=unread, has_gpu=True,
    )


def _argument(option: str, value: Any) -> list[str]:
    """One argument as vLLM's command takes it.

    >>> _argument("enforce_eager", True), _argument("enable_prefix_caching", False), _argument("a", {"b": 1})
    (['--enforce-eager'], ['--no-enable-prefix-caching'], ['--a', '{"b": 1}'])
    """
    name = option.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if value is None:
        return []
    return [f"--{name}", json.dumps(value) if isinstance(value, (Mapping, list)) else str(value)]
