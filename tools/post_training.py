"""The table of docs/rl.md: what holds in which release of verl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramcast.domain.version import version_text
from vramcast.engines.post_training.releases import VERL, Release

ROWS: Final[dict[str, Callable[[Release], str]]] = {
    "vLLM that goes with it": lambda one: version_text(one.vllm),
    "vLLM lives in": lambda one: "the trainer's process" if one.in_process else "its own process",
    "asleep, its weights": lambda one: "wait on the host" if one.sleep_level == 1 else "are dropped",
    "back while weights are handed over": lambda one: "weights and cache" if one.wakes_both else "weights",
    "batches": lambda one: "are padded" if one.pads else "have no padding",
    "a reference has": lambda one: f"{8 * one.reference_width} bits",
    "micro-batches before the last": lambda one: "stay unsharded" if one.defers_sync else "are reduced",
    "the temperature divides": lambda one: "a copy of the logits" if one.divides == "copy" else "logits in place",
    "the longest sequence of the engine": lambda one: "the model's" if one.context_of_model else "prompt and answer",
    "CUDA graphs": lambda one: "yes" if one.graphs else "no",
}
"""What is said of a release, unasked -> how it is read."""


def releases_table() -> str:
    """A column for each release from which on something else holds, oldest first."""
    releases = VERL[::-1]
    head = " | ".join(version_text(one.since) for one in releases)
    rows = [f"| {said} | {' | '.join(map(read, releases))} |" for said, read in ROWS.items()]
    return "\n".join([f"| verl since | {head} |", "|---" * (len(releases) + 1) + "|", *rows, ""])
