"""A run's choices as eager engines need them: implementations, what learns, how states are kept and sharded.

Symbols:  N ranks of the shard group

[FSDP1] pytorch torch/distributed/fsdp/fully_sharded_data_parallel.py: one flat weight per wrapped module, the root's
of all that no other unit holds; `use_orig_params` makes pieces of the flat weight parameters and leaves sizes as they
are
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard: every weight is sharded by its rows
[PEFT] peft utils/other.py `fsdp_auto_wrap_policy`: every leaf module that learns is a unit of its own
[bnb] bitsandbytes nn/modules.py `Params4bit`: with a quant_storage of a float type the packed weight is sharded like
any other; block constants are attributes of the weight, whole on every rank
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import Place, parts_of, within, word_of, word_outside
from vramcast.blocks.parts import EXPERTS, Sizes, corrected
from vramcast.blocks.towers import is_behind
from vramcast.domain.model import Model, Parameter, Split, Stack
from vramcast.operators.linear import QUANTISED, Numerics
from vramcast.operators.lora import ADAPTERS, Adapter
from vramcast.states.steps import Weight, kind_of
from vramcast.states.storage import BITSANDBYTES, bitsandbytes_converts, is_linear
from vramcast.units import FP32, ceil_div

IN_MEMORY: Final = BITSANDBYTES | {"int8"}
"""Storages that bitsandbytes makes of the network in memory; "int8" of a frozen base is its LLM.int8()."""

HEAD: Final = "head.output"

WEIGHTS_SOURCE: Final = "the model's configuration and its code in transformers"


class Tower(NamedTuple):
    """An encoder or vision tower beside the main stack."""

    stack: Stack
    sizes: Sizes


def _scaled(sizes: Sizes, evaluation: int, step: int) -> Sizes:
    return replace(sizes, batch=sizes.batch * evaluation // step)


class Recipe(Struct, frozen=True):
    """One model's forward and backward on one rank."""

    model: Model
    sizes: Sizes
    towers: tuple[Tower, ...] = ()
    loss: str = "eager"  # key of the loss tables
    returns_fp32: bool = False  # forward makes the logits fp32 and forgets the narrow ones
    outputs_fp32: bool = False  # returned logits are converted to fp32 (Accelerate's mixed precision)
    wide_ends: bool = False  # embedding and head are fp32 beside layers of 16 bits, with their gradients
    kept_logits: int = 0  # bytes per logit that the loop's variables hold until backward has ended
    kept_behind: int = 0  # the same, from behind what runs between forward and backward
    second_loss: bool = False  # the loop makes one of returned logits, the model's own is there until forward ends
    recompute: bool = False  # every layer keeps only its input
    reentrant: bool = True  # the checkpoint's recomputed output lives during its backward
    recompute_layers: int | None = None  # only that many layers
    learning: tuple[str, ...] = ()  # paths that learn although `sizes.frozen`: "embedding.tokens", "head.output"
    virtual_elements: int = 0  # trained prompts or prefixes
    copies_learning: bool = False  # they are trained in a copy (PEFT modules_to_save)
    adapted: tuple[Place, ...] = ()  # where adapters are
    frozen: tuple[str, ...] = ()  # parts that do not learn (see `part_of`)
    frozen_width: int | None = None  # of their elements; None: as those that learn have [bytes]
    follows_inputs: bool = False  # gradients flow through towers of which nothing learns
    packed_whole: bool = False  # packed weights are left out of sharding
    context_ranks: int = 1  # that divide the positions of a sample in attention, too
    heads_ranks: int = 1  # that divide them but in attention, where each has some of the heads
    keeps_router: bool = False  # what a router chose is kept where the rest of its layer runs again
    offloads: bool = False  # what the main stack's layers save waits on the host
    offloads_in_flight: int = 0  # saved tensors that copies may still hold
    whole_towers: bool = False  # in fp32, whatever the main stack is packed as
    tower_rank: int | None = None  # of adapters of towers, where it is another
    samples: tuple[int, int] = (1, 1)  # of an evaluation's forward and of a step's
    starts: bool = True  # embedding and towers are on this card
    ends: bool = True  # and so are the head and the loss

    def holds(self, owner: str) -> bool:
        """Whether weights of that owner are on this card: the layers are those of the model given."""
        if ".layers." in owner and owner.startswith(self.model.main.name):
            return True
        return self.ends if owner in ("head", self.model.main.name) else self.starts

    @property
    def evaluated(self) -> Recipe:
        """The same with the samples of an evaluation."""
        evaluation, step = self.samples
        if evaluation == step:
            return self
        towers = tuple(tower._replace(sizes=_scaled(tower.sizes, evaluation, step)) for tower in self.towers)
        return replace(self, sizes=_scaled(self.sizes, evaluation, step), towers=towers)

    def at(self, stack: Stack, sizes: Sizes, first: int, last: int) -> Sizes:
        """What some layers of a stack are like: their adapters among those of the model."""
        if sizes.adapter is None:
            return sizes
        rank = sizes.adapter.rank if stack.name == self.model.main.name else self.tower_rank or sizes.adapter.rank
        targets = within(self.adapted, stack.name, first, last)
        return replace(sizes, adapter=replace(sizes.adapter, targets=targets, rank=rank))

    def learns(self, path: str, part: str = "") -> bool:
        """Whether the weight called `path` has a gradient, which is of a part that may be frozen."""
        frozen = self.sizes.frozen or part in self.frozen
        return not frozen or any(path.startswith(name) for name in self.learning)

    @property
    def of_ends(self) -> Sizes:
        """The sizes of embedding and head."""
        if not self.wide_ends:
            return self.sizes
        return replace(self.sizes, numerics=Numerics(FP32, self.sizes.numerics.compute, FP32, FP32))

    def of(self, stack: Stack, sizes: Sizes) -> Sizes:
        """The sizes of a stack that may be frozen."""
        return replace(sizes, frozen=True) if stack.name in self.frozen else sizes


def weights(recipe: Recipe) -> tuple[Weight, ...]:
    """Every weight tensor of the model as it is stored, adapters behind the layers they correct."""
    sizes = recipe.sizes
    found: list[Weight] = []
    behind, towers = _adapters(recipe), {stack.name for stack in recipe.model.stacks[:-1]}
    for owned in named_parameters(recipe.model):
        parameter, path = owned.parameter, owned.parameter.path
        if not recipe.holds(owned.owner):
            continue
        learns = recipe.learns(path, part_of(owned.owner, path)) and parameter.trainable
        in_layer = ".layers." in owned.owner
        ends = recipe.of_ends if owned.owner in ("embedding", "head") else sizes
        width = (sizes.norm_weights if parameter.kind == "norm" else None) or ends.numerics.weight
        whole = recipe.whole_towers and owned.owner.partition(".")[0] in towers
        width = FP32 if whole else width
        if recipe.frozen_width and part_of(owned.owner, path) in recipe.frozen:
            width = recipe.frozen_width
        weight = Weight(
            owned.owner, path, parameter.shape, owned.repeats, width, learns, source=WEIGHTS_SOURCE,
            kind=kind_of(parameter),
        )
        if not learns and not whole and sizes.packs(path) and _packed(parameter, sizes, in_layer=in_layer):
            found += _quantised(weight, sizes.stored)
        elif learns and sizes.frozen and recipe.copies_learning:
            # PEFT's modules_to_save trains a copy and keeps the original
            found += [replace(weight, learns=False), replace(weight, path=f"{path}.trained copy")]
        else:
            found.append(weight)
        found += behind.pop((owned.owner, path), ())
    found += (weight for (owner, _), some in behind.items() if recipe.holds(owner) for weight in some)
    if sizes.tp > 1:
        split = {(owned.owner, owned.parameter.path): owned.parameter.split for owned in named_parameters(recipe.model)}
        found = [_divided(weight, split.get((weight.owner, weight.path)), sizes.tp) for weight in found]
    if recipe.model.tied and HEAD in recipe.learning:
        shape = (recipe.model.vocab, recipe.model.hidden)
        found.append(Weight("head", f"{HEAD}.trained copy", shape, 1, sizes.numerics.weight, source=WEIGHTS_SOURCE))
    if recipe.virtual_elements:
        found.append(Weight("adapter", "virtual tokens", (recipe.virtual_elements,), source="peft src/peft/tuners"))
    return tuple(found)


def _divided(weight: Weight, split: Split | None, ranks: int) -> Weight:
    """A rank's share; both matrices of an adapter are divided, each by its rank or by the side of what it corrects.

    Source: NVIDIA-NeMo/Automodel at 36044ad3 nemo_automodel/components/distributed/parallel_styles.py
    """
    rows, *columns = weight.shape
    if split is Split.REPLICATED:
        return weight
    if split is Split.ROW:
        return replace(weight, shape=(rows, *(ceil_div(side, ranks) for side in columns)))
    return replace(weight, shape=(ceil_div(rows, ranks), *columns))


def part_of(owner: str, path: str) -> str:
    """The part of a network that a weight is of: its stack, "projector", "embedding" or "head".

    >>> part_of("vision.layers.0-31", "attention.q"), part_of("vision", "projector.0")
    ('vision', 'projector')
    """
    return "projector" if owner not in ("embedding", "head") and is_behind(path) else owner.partition(".")[0]


def _packed(parameter: Parameter, sizes: Sizes, *, in_layer: bool) -> bool:
    """Whether the format is one for this weight: bitsandbytes takes all linear layers, a checkpoint the inner ones."""
    if sizes.stored in IN_MEMORY:
        return bitsandbytes_converts(parameter, sizes.left_whole)
    return in_layer and is_linear(parameter)


def _quantised(weight: Weight, stored: str) -> list[Weight]:
    parts = QUANTISED[stored].stored_bytes(weight.elements)
    return [replace(weight, path=f"{weight.path}.{name}", shape=(size,), width=1) for name, size in parts]


def _adapters(recipe: Recipe) -> dict[tuple[str, str], list[Weight]]:
    """Corrections, by the owner and the path of the weight that they stand behind."""
    adapter, model = recipe.sizes.adapter, recipe.model
    if adapter is None:
        return {}
    found: dict[tuple[str, str], list[Weight]] = {}
    for stack in model.stacks:
        first = 0
        for run in stack.runs:
            last = first + run.count - 1
            owner = f"{stack.name}.layers.{first}" + (f"-{last}" if last > first else "")
            shapes = {owned.path: owned.shape for owned in layer_parameters(run.layer, hidden=stack.hidden)}
            here = recipe.at(stack, recipe.sizes, first, last)
            for path, used in corrected(here, run.layer, stack.hidden):
                parts = [shapes[part] for part in parts_of(path)]
                shape = (*parts[0][:-2], sum(part[-2] for part in parts), parts[0][-1])
                found[owner, parts_of(path)[-1]] = _corrections(Weight(owner, path, shape, run.count), used)
            first = last + 1
    words = set(map(word_of, recipe.adapted))
    for owned in named_parameters(model):
        if ".layers." not in owned.owner and word_outside(model, owned) in words:
            path = owned.parameter.path
            found[owned.owner, path] = _corrections(Weight(owned.owner, path, owned.parameter.shape), adapter)
    if model.tied and HEAD in words:
        found["head", HEAD] = _corrections(Weight("head", HEAD, (model.vocab, model.hidden)), adapter)
    return found


def _corrections(weight: Weight, adapter: Adapter) -> list[Weight]:
    *copies, rows, columns = weight.shape
    return [
        Weight(
            weight.owner, f"{weight.path}.{adapter.method}.{one.name}", (*copies, *one.shape), weight.repeats,
            one.width, one.learns,
            source=f"peft src/peft/tuners, {adapter.method}",
        )
        for one in ADAPTERS[adapter.method].weights(rows, columns, adapter)
    ]


def elements(found: tuple[Weight, ...], *, learning_only: bool = False) -> int:
    """Sum of elements."""
    return sum(weight.elements * weight.repeats for weight in found if weight.learns or not learning_only)


ROOT: Final = "root"

ROUTED: Final = "moe."
"""How the paths of routers and of experts begin."""

STORAGE_WIDTH: Final = 2
"""Packed weights are kept as numbers of 16 bits (bnb_4bit_quant_storage) [bytes]."""


class Sharding(Struct, frozen=True):
    """Who shards, and how. Widths are bytes of an element."""

    by: Literal["fsdp1", "fsdp2"]
    ranks: int  # N
    expert_ranks: int | None = None  # that shard whole experts; FSDP1 with 1: they stand outside; None: N, all
    master: int | None = None  # of weights that learn; None: as they are loaded
    frozen_master: int | None = None  # of the others; None: as they are loaded
    compute: int | None = None  # gathered; None: as it is stored
    split_root: bool = False  # FSDP2: embedding and head are units of their own
    reshard: bool = True  # weights are freed behind forward
    prefetch: bool = True  # FSDP1: BACKWARD_PRE
    hooks_hold: bool = False  # FSDP1: checkpoints around frozen units leave their inputs to a hook
    loads_whole: bool = False  # every rank loads all of a packed base before it is sharded
    offload: bool = False  # shards, gradients and the optimizer's states are on the host
    defers: bool = True  # gradients of micro-batches before the last add up unsharded
    reduced: int | None = None  # gradients while they are reduced, of FSDP2 add up; None: as weights are gathered
    experts_alone: bool = False  # FSDP1: routers and experts are the units, all else is in the root
    frozen_in_root: bool = False  # FSDP2: towers of which nothing learns have no units of their own
    float8: bool = False  # FSDP2: matrices of layers are gathered in 8 bits, and stay so

    def ranks_of(self, weight: Weight) -> int:
        """That divide a weight."""
        return self.ranks if self.expert_ranks is None or not weight.path.startswith(EXPERTS) else self.expert_ranks

    def stored_width(self, weight: Weight) -> int:
        """Bytes of one element of a weight's shard; packed weights are bytes and stay so."""
        if weight.width == 1:
            return 1
        return (self.master if weight.learns else self.frozen_master) or weight.width

    def computed_width(self, weight: Weight) -> int:
        """Bytes of one element of a gathered weight."""
        if self.float8 and weight.kind == "matrix" and ".layers." in weight.owner:
            return 1
        return 1 if weight.width == 1 else self.compute or self.stored_width(weight)

    def reduced_width(self, weight: Weight) -> int:
        """Bytes of one element of a gradient while it is reduced."""
        return self.reduced or self.compute or self.stored_width(weight)


class Part(Struct, frozen=True):
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
        leaves: what learns in a frozen module is apart
    """
    grouped: dict[str, list[Weight]] = {}
    for weight in weights(recipe):
        grouped.setdefault(weight.owner if ".layers." in weight.owner else ROOT, []).append(weight)
    apart, stored = recipe.sizes.frozen and leaves, recipe.sizes.stored
    packed = tuple(name for name, _, _ in QUANTISED[stored].parts) if stored in QUANTISED else ()
    shared = stored in QUANTISED and QUANTISED[stored].shards_constants
    constants = packed if recipe.packed_whole else () if shared else packed[1:]
    return {owner: _part(found, apart=apart, constants=constants) for owner, found in grouped.items()}


def _part(found: Iterable[Weight], *, apart: bool, constants: tuple[str, ...]) -> Part:
    kinds: dict[str, list[Weight]] = {"own": [], "leaves": [], "whole": []}
    for weight in found:
        on_all = weight.path.rpartition(".")[2] in constants
        kinds["whole" if on_all else "leaves" if apart and weight.learns else "own"].append(weight)
    return Part(*map(tuple, kinds.values()))


def with_local_experts(found: Mapping[str, Part], ep: int) -> Mapping[str, Part]:
    """The same, a rank's experts alone."""
    def local(weight: Weight) -> Weight:
        experts, *rest = weight.shape
        return replace(weight, shape=(ceil_div(experts, ep), *rest)) if weight.path.startswith(EXPERTS) else weight

    return {owner: replace(part, own=tuple(map(local, part.own))) for owner, part in found.items()}


def with_experts_outside(found: Mapping[str, Part], ep: int) -> Mapping[str, Part]:
    """The same, a rank's experts alone, and those apart from what FSDP1 shards."""
    return {
        owner: replace(
            part, own=tuple(weight for weight in part.own if not weight.path.startswith(EXPERTS)),
            leaves=tuple(weight for weight in part.own if weight.path.startswith(EXPERTS)),
        )
        for owner, part in with_local_experts(found, ep).items()
    }


def owner_of(found: Mapping[str, Part], stack: str, run: int) -> str:
    """The part that a run of layers of a stack is; the root where the stack has none of its own."""
    owners = [owner for owner in found if owner.startswith(f"{stack}.layers.")]
    return owners[run] if owners else ROOT


def with_frozen_in_root(found: Mapping[str, Part], towers: Iterable[str]) -> Mapping[str, Part]:
    """The same, towers of which nothing learns owned by the root."""
    owned = {tower: [owner for owner in found if owner.startswith(f"{tower}.layers.")] for tower in towers}
    still = {owner for owners in owned.values() if not any(found[owner].learns for owner in owners) for owner in owners}
    moved = (replace(w, shape=(w.repeats * w.shape[0], *w.shape[1:]), repeats=1)
             for owner in sorted(still) for w in found[owner].own)
    root = replace(found[ROOT], own=(*found[ROOT].own, *moved))
    return {owner: part for owner, part in found.items() if owner not in still} | {ROOT: root}


def with_rest_in_root(found: Mapping[str, Part]) -> Mapping[str, Part]:
    """The same, of layers with experts all but these and their routers owned by the root; adapters stay apart."""
    rest = [weight for owner, part in found.items() if owner != ROOT for weight in part.own
            if not weight.path.startswith(ROUTED)]
    moved = (replace(w, shape=(w.repeats * w.shape[0], *w.shape[1:]), repeats=1) for w in rest)
    left = {owner: replace(part, own=tuple(weight for weight in part.own if weight.path.startswith(ROUTED)))
            for owner, part in found.items() if owner != ROOT}
    return {**left, ROOT: replace(found[ROOT], own=(*found[ROOT].own, *moved))}


def sharded(found: Mapping[str, Part]) -> Iterator[Weight]:
    """Every weight of which a rank has a share."""
    for part in found.values():
        yield from part.own
        yield from part.leaves


def whole(found: Mapping[str, Part]) -> Iterator[Weight]:
    """Every weight that a rank has whole."""
    for part in found.values():
        yield from part.whole
