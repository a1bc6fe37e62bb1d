"""llama.cpp: `llama-server`."""

from __future__ import annotations

from typing import Final

from vramcast.domain.serving import ServeJob
from vramcast.engines.llamacpp.settings import settings_of as llamacpp_settings
from vramcast.formats.files import File, Order, Part
from vramcast.formats.launch import one_of_several
from vramcast.formats.lines import Line
from vramcast.formats.servers import (
    PORT,
    SERVE,
    script_text,
)


def write(order: Order) -> tuple[File, ...]:
    """`llama-server` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, llamacpp_settings(order.job)
    ask.also("tp", "kv_dtype", "v_dtype", "max_sequences", "micro_batch", "attention")
    layers = ask("gpu_layers")
    lines = [
        Line("model", f"{job.model.name}-{ask('weights') or 'f16'}.gguf", "the file to serve"),
        Line("ctx-size", settings.context, "cells of the cache over all slots"),
        Line("parallel", settings.slots, "slots"),
        Line("ubatch-size", settings.micro_batch, "tokens of one graph"),
        Line("gpu-layers", job.model.num_layers + 1 if layers is None else layers, "layers on the cards"),
        Line("flash-attn", "on" if settings.flash else "off"),
        Line("cache-type-k", settings.k_type), Line("cache-type-v", settings.v_type),
    ]
    ask.also("context", "concurrency", "input_len", "output_len", "images")
    lines += [*_option_lines(order), Line("host", "0.0.0.0"), Line("port", PORT)]
    text = script_text(order, "llama-server", tuple(lines))
    return (order.file(SERVE, text, (Part("llamacpp", "arguments"),), one_of_several(order, SERVE), executable=True),)

VALUES: Final = {"batch": "batch-size", "n-cpu-moe": "n-cpu-moe", "override-tensor": "override-tensor",
                          "tensor-split": "tensor-split", "split-mode": "split-mode", "device": "device",
                          "threads": "threads"}

SWITCHES: Final = {"kv-unified": ("kv-unified", True), "swa-full": ("swa-full", True),
                            "cpu-moe": ("cpu-moe", True), "op-offload": ("no-op-offload", False),
                            "kv-offload": ("no-kv-offload", False)}


def _option_lines(order: Order) -> list[Line]:
    ask, lines = order.ask, []
    for option, name in VALUES.items():
        if ask(f"option.{option}") is not None:
            lines.append(Line(name, ask(f"option.{option}"), "as planned"))
    for option, (name, when) in SWITCHES.items():
        if ask(f"option.{option}") is when:
            lines.append(Line(name, True, "as planned"))
    return lines
