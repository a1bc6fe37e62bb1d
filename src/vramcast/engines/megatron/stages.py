"""Which layers, embedding and head each pipeline stage owns.

Source: Megatron-LM megatron/core/transformer/transformer_block.py, get_num_layers_to_build.
"""

from __future__ import annotations

from itertools import groupby

from vramcast.domain.model import Layer, Noun, Run
from vramcast.engines.megatron.context import Context
from vramcast.errors import InvalidSpec


class Chunk(Noun, frozen=True):
    """One model chunk: a contiguous piece of the network on one (virtual) stage."""

    runs: tuple[Run, ...]
    embedding: bool = False
    head: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of the chunk."""
        return sum(run.count for run in self.runs)


def stage_layers(context: Context) -> list[int]:
    """Number of layers of every virtual stage, in the order the data meets them."""
    plan, total = context.job.plan, context.model.num_layers
    if context.options.stage_layers:
        counts = placed_layers(context.options.stage_layers)
        if len(counts) != plan.pp * plan.virtual_stages or sum(counts) != total:
            raise InvalidSpec(f"stage_layers={context.options.stage_layers} does not place {total} layers on "
                              f"pp={plan.pp} x virtual_stages={plan.virtual_stages} stages")
        return counts
    first, last = plan.first_stage_layers, plan.last_stage_layers
    if first is None and last is None:
        return _even(total, plan.pp * plan.virtual_stages, plan.pp)
    middle = plan.pp - (first is not None) - (last is not None)
    rest = total - (first or 0) - (last or 0)
    inner = _even(rest, middle, plan.pp) if middle else []
    counts = ([first] if first is not None else []) + inner + ([last] if last is not None else [])
    return [count // plan.virtual_stages for _ in range(plan.virtual_stages) for count in counts]


def placed_layers(text: str) -> list[int]:
    """Layers of every virtual stage as the option `stage_layers` writes them.

    >>> placed_layers("3-4-4-3"), placed_layers("3,4,4,3")
    ([3, 4, 4, 3], [3, 4, 4, 3])
    """
    parts = text.replace(",", "-").split("-")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise InvalidSpec(f"stage_layers={text[:60]!r} must be the layers of every stage, such as 3-4-4-3")
    return [int(part) for part in parts]


def _even(total: int, stages: int, pp: int) -> list[int]:
    if total % stages:
        fits = [n for n in range(1, min(total, 64) + 1) if total % n == 0]
        raise InvalidSpec(f"{stages} pipeline stages (pp={pp}) do not divide {total} layers; use "
                          f"{', '.join(map(str, fits))} stages, or first_stage_layers and last_stage_layers")
    return [total // stages] * stages


def chunks_of(context: Context) -> list[list[Chunk]]:
    """For every pipeline rank its model chunks, first chunk first."""
    pp = context.job.plan.pp
    layers = context.model.main.layers
    counts = stage_layers(context)
    ranks: list[list[Chunk]] = [[] for _ in range(pp)]
    start = 0
    for index, count in enumerate(counts):
        chunk = Chunk(
            runs=runs_of(layers[start : start + count]), embedding=index == 0, head=index == len(counts) - 1
        )
        ranks[index % pp].append(chunk)
        start += count
    return ranks


def runs_of(layers: tuple[Layer, ...]) -> tuple[Run, ...]:
    """Equal layers in a row as one run."""
    return tuple(Run(count=len(list(group)), layer=layer) for layer, group in groupby(layers))
