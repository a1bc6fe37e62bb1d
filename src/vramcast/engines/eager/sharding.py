"""Which weights of a model are sharded together, and how each lies in its shard.

Symbols:  N ranks of the shard group
[FSDP1] pytorch torch/distributed/fsdp/fully_sharded_data_parallel.py: one flat weight per wrapped module, the root's of
all that no other unit holds; `use_orig_params` makes pieces of the flat weight parameters and leaves sizes as they are
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard: every weight is sharded by its rows
[PEFT] peft utils/other.py `fsdp_auto_wrap_policy`: every leaf module that learns is a unit of its own
[bnb] bitsandbytes nn/modules.py `Params4bit`: with a quant_storage of a float type the packed weight is sharded like
any other; block constants are attributes of the weight, whole on every rank
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.operators.quantised import QUANTISED
from vramcast.states.steps import Weight

ROOT: Final = "root"
STORAGE_WIDTH: Final = 2
"""Packed weights are kept as numbers of 16 bits (bnb_4bit_quant_storage) [bytes]."""


class Sharding(NamedTuple):
    """Who shards, and how. Widths are bytes of an element."""

    by: Literal["fsdp1", "fsdp2"]
    ranks: int  # N
    master: int | None = None  # of weights that learn; None: as they are loaded
    frozen_master: int | None = None  # of the others; None: as they are loaded
    compute: int | None = None  # gathered; None: as it is stored
    reduce: int | None = None  # while gradients are reduced; None: as it is computed
    leaves: bool = True  # FSDP1: adapters are units of their own
    split_root: bool = False  # FSDP2: embedding and head are units of their own
    reshard: bool = True  # weights are freed behind forward
    prefetch: bool = True  # FSDP1: BACKWARD_PRE
    hooks_hold: bool = False  # FSDP1: checkpoints around frozen units leave their inputs to a hook
    offload: bool = False  # shards, gradients and the optimizer's states are on the host

    def stored_width(self, weight: Weight) -> int:
        """Bytes of one element of a weight's shard; packed weights are bytes and stay so."""
        if weight.width == 1:
            return 1
        return (self.master if weight.learns else self.frozen_master) or weight.width

    def computed_width(self, weight: Weight) -> int:
        """Bytes of one element of a gathered weight."""
        return 1 if weight.width == 1 else self.compute or self.stored_width(weight)

    def reduced_width(self, weight: Weight) -> int:
        """Bytes of one element of a gradient while it is reduced."""
        return self.reduce or self.computed_width(weight)


class Part(NamedTuple):
    """Weights of one module, as they are wrapped."""

    own: tuple[Weight, ...]  # sharded with it
    leaves: tuple[Weight, ...]  # learn in a frozen module
    whole: tuple[Weight, ...]  # on every rank

    @property
    def learns(self) -> bool:
        """Whether any weight of its own does."""
        return any(weight.learns for weight in self.own)

    @property
    def repeats(self) -> int:
        """How many such modules there are."""
        return max((weight.repeats for weight in (*self.own, *self.leaves)), default=1)


def parts(recipe: Recipe, *, leaves: bool) -> Mapping[str, Part]:
    """Weights by what owns them: each run of layers, and the root for all others.

    Args:
        recipe: the model
        leaves: what learns in a frozen module is apart
    """
    grouped: dict[str, list[Weight]] = {}
    for weight in weights(recipe):
        grouped.setdefault(weight.owner if ".layers." in weight.owner else ROOT, []).append(weight)
    apart, stored = recipe.sizes.frozen and leaves, recipe.sizes.stored
    return {owner: _part(found, apart=apart, stored=stored) for owner, found in grouped.items()}


def _part(found: Iterable[Weight], *, apart: bool, stored: str) -> Part:
    packed = tuple(name for name, _, _ in QUANTISED[stored].parts) if stored in QUANTISED else ()
    kinds: dict[str, list[Weight]] = {"own": [], "leaves": [], "whole": []}
    for weight in found:
        constants = weight.path.rpartition(".")[2] in packed[1:]
        kinds["whole" if constants else "leaves" if apart and weight.learns else "own"].append(weight)
    return Part(*map(tuple, kinds.values()))


def owner_of(found: Mapping[str, Part], stack: str, run: int) -> str:
    """The part that a run of layers of a stack is."""
    return [owner for owner in found if owner.startswith(f"{stack}.layers.")][run]


def sharded(found: Mapping[str, Part]) -> Iterator[Weight]:
    """Every weight of which a rank has a share."""
    for part in found.values():
        yield from part.own
        yield from part.leaves


def whole(found: Mapping[str, Part]) -> Iterator[Weight]:
    """Every weight that a rank has whole."""
    for part in found.values():
        yield from part.whole
