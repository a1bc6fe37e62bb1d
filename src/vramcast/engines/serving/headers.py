"""Exact bytes from a checkpoint's headers: each part of the network weighs what its tensors say.

The headers tell bytes, the network tells how they are divided: a part's tensors on one rank are the formula's share of
what the headers hold of that part. On one rank without pipeline stages the sum is the headers' own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from vramcast.domain.model import Model, StoredTensor, StoredWeights


class Part(StrEnum):
    """Parts of a network whose weights are stored and divided alike."""

    EMBEDDING = "embedding"
    HEAD = "head"
    EXPERTS = "experts"
    TOWERS = "towers"
    LAYERS = "layers"
    NONE = "none"  # stored, but no engine loads it


PATTERNS: Final[tuple[tuple[Part, re.Pattern[str]], ...]] = (
    (Part.NONE, re.compile(r"rotary_emb|inv_freq|rope_freqs|masked_bias|attn\.bias$|position_ids|(?:^|\.)mtp\.")),
    (Part.TOWERS, re.compile(r"visual|vision|image|audio|multi_modal|mm_projector|^v\.|^mm\.|^a\.|encoder\.block")),
    (Part.HEAD, re.compile(r"(?:^|\.)lm_head\.|^output\.weight|embed_out|(?:^|\.)score\.|classifier")),
    (Part.EMBEDDING, re.compile(r"embed_tokens|word_embeddings|(?:^|\.)wte\.|token_embd|tok_embeddings|^shared\.")),
    (Part.EXPERTS, re.compile(r"experts?\.|_exps\b|experts_")),
)
"""Part -> names of its tensors, of safetensors and GGUF; the first that fits, else the layers."""

SHARED_EXPERTS: Final = re.compile(r"shared_expert|_shexp\b")
LAYER: Final = re.compile(r"(?:layers|blk|h)\.(\d+)\.")


def part_of_stored(tensor: StoredTensor, model: Model) -> Part:
    """The part a stored tensor belongs to; modules beyond the last layer predict further tokens and are left out."""
    layer = LAYER.search(tensor.name)
    part = next((part for part, pattern in PATTERNS if pattern.search(tensor.name)), Part.LAYERS)
    if layer is not None and part in (Part.LAYERS, Part.EXPERTS) and int(layer[1]) >= model.num_layers:
        return Part.NONE
    if part is Part.EXPERTS and SHARED_EXPERTS.search(tensor.name):
        return Part.LAYERS
    return Part.NONE if part is Part.HEAD and model.tied else part


def part_of_owner(owner: str, path: str, model: Model) -> Part:
    """The part a weight of the network belongs to."""
    if any(owner.startswith(stack.name) for stack in model.stacks[:-1]):
        return Part.TOWERS
    if owner in ("embedding", "head"):
        return Part(owner)
    return Part.EXPERTS if path.startswith("moe.experts") else Part.LAYERS


Ratio = tuple[int, int]
"""Numerator and denominator."""


def factors(model: Model, weights: StoredWeights, formula: Iterable[tuple[Part, int]]) -> Mapping[Part, Ratio]:
    """What the headers hold of each part over what the formula gives the whole network.

    Args:
        weights: its headers
        formula: part and bytes of every weight of the whole network
    """
    expected: dict[Part, int] = defaultdict(int)
    for part, num_bytes in formula:
        expected[part] += num_bytes
    if not weights.tensors:
        whole = max(1, sum(expected.values()))
        return dict.fromkeys(expected, (weights.listed_bytes or whole, whole))
    stored: dict[Part, int] = defaultdict(int)
    for tensor in weights.tensors:
        stored[part_of_stored(tensor, model)] += tensor.num_bytes
    return {part: (stored[part] or size, size) for part, size in expected.items() if size}
