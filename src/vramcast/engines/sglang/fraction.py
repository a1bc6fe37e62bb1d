"""`--mem-fraction-static` where none is given: what is set aside for prefills, graphs and communication.

Read in the wheels 0.3.0 to 0.5.23; a table's version is the first release that has the value.
[0.3, 0.4] sgl-project/sglang python/sglang/srt/server_args.py `__post_init__`: by tensor parallelism alone; 0.4.6 and
0.4.7 have rules of their own for cards above 80 GiB
[0.4.8] the same, from pull request 7054: by the size of the card
[0.5.3] `_handle_gpu_memory_settings`, from pull request 10975: by prefill chunk and graphs
[0.5.20] python/sglang/srt/arg_groups/memory_hook.py `handle_gpu_memory_settings`, `reserve_for_graph_mb`
[vlm] `adjust_mem_fraction_for_vlm`, from pull request 6881
"""

from __future__ import annotations

from itertools import chain
from typing import Final, NamedTuple

from vramcast.domain.model import Model
from vramcast.domain.serving import Version
from vramcast.units import GIB, MIB


class Capture(NamedTuple):
    """What the reserve depends on."""

    chunk: int  # tokens of one prefill step over all ranks
    sequences: int  # largest batch with a graph; 0: no graphs
    ranks: int  # tensor- times pipeline-parallel
    data_parallel: int  # ranks that attend to sequences of their own within one group; 1: none
    latent: bool  # latent attention
    draft: str | None  # kind of a draft
    prefills: bool = True  # whether prefills have graphs


CARD_SINCE: Final[Version] = (0, 4, 8)
CHUNK_SINCE: Final[Version] = (0, 5, 3)
PREFILL_GRAPHS_SINCE: Final[Version] = (0, 5, 10)
"""Graphs of prefills became the default with pull request 16331."""
DRAFT_COUNTED_SINCE: Final[Version] = (0, 5, 14)
"""From then on a draft is there when the pools are sized, its layers are part of them, and nothing is set aside."""

BY_RANKS: Final[tuple[tuple[Version, tuple[tuple[int, float], ...]], ...]] = (
    ((0, 4), ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))),
    ((0, 0), ((16, 0.79), (8, 0.83), (4, 0.85), (2, 0.87), (1, 0.88))),
)
"""Since a version: tensor-parallel ranks -> fraction."""

BY_CARD: Final = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5), (1 << 30, 32.0, 0.0))
"""Cards below a size [GiB] -> set aside, and for each rank [GiB]."""

LARGE_CARD: Final = 60 * GIB
LARGE_RESERVE: Final = 10 * 1024  # [MiB]
"""Least that is set aside on large cards."""

LATENT_GRAPHS: Final = 1536  # [MiB] of prefill graphs with latent attention
PREFILL_GRAPH: Final = 8  # [MiB] of one prefill graph
SEQUENCE_GRAPHS: Final = 2  # [MiB] of decode graphs for each sequence of the largest
DRAFTS: Final[tuple[tuple[Version, int, int], ...]] = (
    (DRAFT_COUNTED_SINCE, 0, 0), ((0, 5, 10), 4096, 6144), ((0, 5, 2), 2048, 6144), ((0, 0), 2048, 2048),
)
"""Since a version: set aside for a draft before it was counted, and for one that is a model of its own [MiB]."""

PREFILL_SIZES: Final = tuple(
    chain(range(4, 33, 4), range(48, 257, 16), range(288, 513, 32), range(576, 1025, 64), range(1280, 4097, 256),
          range(4608, 65537, 512))
)
"""Tokens of captured prefills [arg_groups/cuda_graph_hook.py `generate_prefill_cuda_graph_batch_sizes`]."""

VISION_SINCE: Final[Version] = (0, 4, 9)
VISION_BEFORE: Final = 0.9
"""Older versions took a tenth off for every multimodal network, given or not [model_runner.py]."""
BASE_TOWER: Final = 24 * 1024**2
"""Layers times width squared of the tower that others are compared with: ViT-L/14."""


def default_fraction(version: Version, size: int, capture: Capture) -> float:
    """The static fraction that SGLang chooses.

    Args:
        version: of SGLang
        size: what nvidia-smi shows of the card [bytes]
        capture: what the reserve depends on

    >>> default_fraction((0, 5, 6), 16376 * MIB, Capture(2048, 8, 1, 1, False, None))
    0.772
    """
    if version < CARD_SINCE:
        ranks = next(table for since, table in BY_RANKS if version >= since)
        found = next(fraction for least, fraction in ranks if capture.ranks >= least)
        return _before_cards(version, size / MIB, found, drafted=capture.draft is not None)
    reserve = _by_card(version, size, capture) if version < CHUNK_SINCE else _by_chunk(version, size, capture)
    return max(0.05, round((size / MIB - reserve) / (size / MIB), 3))


def _before_cards(version: Version, size: float, by_ranks: float, *, drafted: bool) -> float:
    """What 0.4.6 and 0.4.7 make of the fraction by ranks; older releases leave it [0.4].

    Args:
        version: of SGLang
        size: of the card [MiB]
        by_ranks: the fraction by ranks
        drafted: whether a draft proposes
    """
    if version < (0, 4, 6):
        return by_ranks
    if version < (0, 4, 7):
        return by_ranks if size <= 81_920 else 1 - 13 * 1024 / size
    fraction = by_ranks if size <= 81_920 else 0.88
    if size > 180_000:
        return 0.79
    if size > 96 * 1024:
        reserve = (20 if drafted else 18) * 1024
        return min(fraction + 48 * 1024 * (1 - fraction) / size, (size - reserve) / size)
    return fraction * (0.95 if drafted else 1)


def _by_card(version: Version, size: int, capture: Capture) -> float:
    """[MiB]"""
    gib, each = next((gib, each) for below, gib, each in BY_CARD if size < below * GIB)
    reserve = (gib + each * capture.ranks) * 1024
    return reserve + draft_mib(version, capture.draft) + (4096 if capture.data_parallel > 1 else 0)


def _by_chunk(version: Version, size: int, capture: Capture) -> float:
    """[MiB]"""
    sequences, copies = capture.sequences, capture.data_parallel
    reserve = 512 + 1.5 * max(capture.chunk, 2048) + capture.ranks / 8 * 1024 + SEQUENCE_GRAPHS * sequences
    if copies > 1:
        reserve += (4.5 if sequences > 300 else 3) * sequences * copies
    reserve += prefill_mib(version, capture.chunk, capture.latent) if sequences and capture.prefills else 0
    if size > LARGE_CARD:
        reserve = max(reserve, LARGE_RESERVE)
    return reserve + draft_mib(version, capture.draft)


def draft_mib(version: Version, draft: str | None) -> int:
    """What is set aside for a draft that is loaded after the pools are sized [MiB].

    >>> draft_mib((0, 5, 9), "eagle"), draft_mib((0, 5, 10), "eagle"), draft_mib((0, 5, 23), "eagle")
    (2048, 4096, 0)
    """
    if draft is None or draft == "ngram":
        return 0
    _, each, model = next(row for row in DRAFTS if version >= row[0])
    return model if draft == "model" else each


def prefill_mib(version: Version, chunk: int, latent: bool) -> int:
    """Graphs of prefill sizes up to a whole chunk [MiB].

    >>> prefill_mib((0, 5, 10), 8192, False), prefill_mib((0, 5, 9), 8192, False)
    (464, 0)
    """
    if version < PREFILL_GRAPHS_SINCE:
        return 0
    return LATENT_GRAPHS if latent else PREFILL_GRAPH * sum(size <= chunk for size in PREFILL_SIZES)


def vision_factor(model: Model, version: Version, *, given: bool) -> float:
    """What is left of the fraction for networks that read images, which need room for their tower [vlm].

    Args:
        model: the network
        version: of SGLang
        given: whether the fraction was asked for; then newer versions leave it alone
    """
    towers = [stack for stack in model.stacks[:-1] if stack.vision is not None]
    if not towers:
        return 1.0
    if version < VISION_SINCE:
        return VISION_BEFORE
    if given:
        return 1.0
    complexity = towers[0].num_layers * towers[0].hidden**2 / BASE_TOWER
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))
