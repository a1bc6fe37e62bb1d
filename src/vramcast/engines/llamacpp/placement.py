"""Which device holds which layer and which weight.

[load] ggml-org/llama.cpp src/llama-model.cpp `load_tensors`: layers go to cards from the last one back, divided in the
proportion of the cards' memory; the token embedding stays on the host, the head goes to a card when all layers do.
[ot] common/arg.cpp --override-tensor, --cpu-moe, --n-cpu-moe: the first pattern found in a tensor's name decides.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

from vramcast.domain.serving import ServeJob
from vramcast.engines.llamacpp.settings import Settings
from vramcast.engines.llamacpp.weights import BLOCK_START
from vramcast.errors import InvalidSpec

OUTPUT_COUNTS_SINCE: Final = 7467
"""Since this build the head is the first of the layers that -ngl counts (pull request 18148)."""

ALL_LAYERS_SINCE: Final = 6325
"""Since this build all layers go to cards unless -ngl says otherwise."""

INPUTS: Final = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Weights of the input, which stay on the host."""

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"

LONGEST_PATTERN: Final = 400


class Placement(NamedTuple):
    """Devices by number: cards from 0, the host behind them."""

    cards: int
    layers: tuple[int, ...]  # device of each layer
    output: int  # of the head
    overrides: tuple[tuple[re.Pattern[str], int], ...] = ()

    @property
    def host(self) -> int:
        """The number of the host."""
        return self.cards

    @property
    def whole(self) -> bool:
        """Whether every layer and the head are on cards."""
        return self.output != self.host

    def weight(self, name: str, layer: int | None) -> int:
        """The device of a weight, by its name as in the file."""
        for pattern, device in self.overrides:
            if pattern.search(name):
                return device
        if layer is not None and layer < len(self.layers):
            return self.layers[layer]
        return self.host if name.startswith(INPUTS) else self.output


def placement_of(job: ServeJob, settings: Settings, options: Mapping[str, Any]) -> Placement:
    """Where a job's layers and weights go.

    Raises: InvalidSpec for shares or patterns that cannot be read
    """
    layers = job.model.num_layers
    cards = 0 if str(options.get("device", "")) == "none" else job.cluster.count
    wanted = job.plan.gpu_layers
    if wanted is None:
        wanted = layers + 1
    if not cards:
        return Placement(0, (0,) * layers, 0)
    shares = _shares(str(options.get("tensor-split", "")), cards)
    if options.get("split-mode", "layer") == "none":
        shares = (1.0,) + (0.0,) * (cards - 1)
    counts_output = not settings.fork and settings.build >= OUTPUT_COUNTS_SINCE
    start = max(layers + 1 - wanted, 0) if counts_output else max(layers - wanted, 0)
    active = max(1, min(wanted, layers + 1))
    ends = tuple(accumulate(share / sum(shares) for share in shares))

    def device(index: int) -> int:
        if index < start or index - start >= min(wanted, layers + 1):
            return cards
        return min(cards - 1, bisect_right(ends, (index - start) / active))

    placed = tuple(device(index) for index in range(layers))
    output = device(layers) if counts_output or wanted > layers else cards
    return Placement(cards, placed, output, _overrides(options, cards, layers))


def _shares(text: str, cards: int) -> tuple[float, ...]:
    """Shares of the cards: "3,1" or "3/1"; equal cards have equal ones."""
    if not text:
        return (1.0,) * cards
    try:
        found = [float(part) for part in re.split(r"[,/]", text)]
    except ValueError:
        found = []
    if not found or len(found) > cards or min(found) < 0 or not 0 < sum(found) < 1e9:
        raise InvalidSpec(f"tensor-split={text[:40]!r} must be up to {cards} numbers such as 3,1")
    return (*found, *(0.0,) * (cards - len(found)))


def _overrides(options: Mapping[str, Any], cards: int, layers: int) -> tuple[tuple[re.Pattern[str], int], ...]:
    pairs: list[tuple[str, int]] = []
    for text in filter(None, str(options.get("override-tensor", "")).split(",")):
        pattern, equals, buffer = text.rpartition("=")
        if not equals or len(pattern) > LONGEST_PATTERN:
            raise InvalidSpec(f"override-tensor={text[:60]!r} must be written PATTERN=CPU or PATTERN=CUDA0")
        pairs.append((pattern, _device(buffer, cards)))
    if options.get("cpu-moe"):
        pairs.append((EXPERTS, cards))
    for layer in range(min(int(options.get("n-cpu-moe", 0)), layers)):
        pairs.append((rf"{re.escape(BLOCK_START)}{layer}{EXPERTS}", cards))
    try:
        return tuple((re.compile(pattern), device) for pattern, device in pairs)
    except re.error as error:
        raise InvalidSpec(f"override-tensor: {error}") from None


def _device(buffer: str, cards: int) -> int:
    name = buffer.strip().upper()
    if name == "CPU":
        return cards
    number = re.fullmatch(r"(?:CUDA|ROCM|VULKAN|GPU)(\d{1,4})", name)
    if number is None or int(number[1]) >= cards:
        raise InvalidSpec(f"override-tensor names buffer {buffer[:40]!r}; use CPU or CUDA0 to CUDA{max(cards - 1, 0)}")
    return int(number[1])
