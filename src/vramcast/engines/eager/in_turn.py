"""One model over the cards of one process, which work in turn: what `device_map="auto"` makes of it.

[Accelerate] huggingface/accelerate big_modeling.py `dispatch_model`: every layer's input is copied to its card;
hooks.py `AlignDevicesHook(io_same_device=True)` around the whole model: what it returns is copied to the first card
[HF] transformers trainer.py `is_model_parallel`: no DataParallel over such cards, one optimizer for all
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parameters.targets import Place
from vramcast.domain.job import Job, Phase, RankProgram, Shards
from vramcast.domain.model import Head
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor
from vramcast.domain.version import Version
from vramcast.engines.eager.phases import Stepping, plain_phases
from vramcast.engines.eager.question import WITHOUT_ADAPTER
from vramcast.engines.eager.recipe import IN_MEMORY, Recipe, weights
from vramcast.engines.eager.releases import transformers_version
from vramcast.engines.serving.stages import Stage, stages
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import FP32
from vramcast.parallel.device_map import balanced, modules_of, require_layers

SAID: Final = 'device_map="auto" divides the layers over the {} cards of one process, which work in turn: {} layers'
WITH_HEAD: Final = SAID + "; the head is on the first, with the embedding that it shares its weight with"


def staged(job: Job, recipe: Recipe, stepping: Stepping) -> Iterator[tuple[RankProgram, Note]]:
    """The program of each card, and what is to be said of them.

    Args:
        recipe: of the whole model
        stepping: of its one optimizer

    Raises: InvalidSpec, Unsupported for what is not one dense decoder or encoder under a plain loss
    """
    _refuse(job)
    cards = _stages(recipe, job.plan.pp, transformers_version(job))
    template = WITH_HEAD if recipe.model.tied else SAID
    said = Note(template, len(cards), " + ".join(str(card.stop - card.start) for card in cards))
    for index, card in enumerate(cards):
        own = _part(recipe, card)
        returned = _returned(recipe) if card.first else ()
        through: Program = (*map(Alloc, returned), *map(Free, returned))
        phases = dict(plain_phases(own, stepping._replace(between=stepping.between + through)))
        phases[Phase.EVALUATION] += through
        yield RankProgram(role=f"GPU {index}", count=1, phases=phases), said


def _refuse(job: Job) -> None:
    plan, model = job.plan, job.model
    if job.cluster.num_nodes > 1:
        raise InvalidSpec("--pp of --engine {} is device_map: one process, which has the cards of one machine; leave "
                          "--pp out, or give one machine", job.engine)
    if plan.pp != job.cluster.count:
        raise InvalidSpec("--pp of --engine {} is device_map: one process and all {} cards of one machine; use --pp {}",
                          job.engine, job.cluster.count, job.cluster.count)
    if (plan.schedule, plan.first_stage_layers, plan.last_stage_layers) != ("1f1b", None, None):
        raise InvalidSpec("device_map (--pp) has no schedule and divides the layers itself; leave --schedule, "
                          "--first-stage-layers and --last-stage-layers out")
    if plan.shards is not Shards.NOTHING:
        raise InvalidSpec("device_map (--pp) divides one copy of the model, and --shards has none to divide; leave "
                          "--shards out, or --pp")
    if any(layer.cross_attention for layer in model.main.layers):
        raise Unsupported("device_map (--pp) is not modelled for {}, whose layers all read an encoder; use "
                          "--shards everything", model.name)
    if job.workload.objective not in ("pretrain", "sft", "classification", "tagging"):
        raise Unsupported("objective={} is not modelled with device_map (--pp); use --shards everything",
                          job.workload.objective)
    if plan.peft is not None and plan.peft.method in WITHOUT_ADAPTER:
        raise Unsupported("{} is not modelled with device_map (--pp); use --peft lora", plan.peft.method)


def _stages(recipe: Recipe, cards: int, release: Version) -> tuple[Stage, ...]:
    """Layers of each card, as the base is loaded: adapters come later."""
    require_layers(recipe.model.num_layers, cards)
    base = recipe._replace(sizes=recipe.sizes._replace(adapter=None), learning=(), virtual_elements=0)
    found = ((weight.owner, weight.num_bytes, weight.repeats) for weight in weights(base))
    packed = base.sizes.stored in IN_MEMORY
    modules = modules_of(found, base.model.main.name)
    return stages(balanced(modules, gpus=cards, release=release, packed=packed))


def _part(recipe: Recipe, card: Stage) -> Recipe:
    """What one card has of a model and runs of it."""
    model = recipe.model
    main = replace(model.main, runs=tuple(card.runs(model)))
    again = recipe.recompute_layers
    found = recipe._replace(
        model=replace(model, stacks=(*(model.stacks[:-1] if card.first else ()), main)),
        towers=recipe.towers if card.first else (),
        adapted=tuple(_moved(recipe.adapted, main.name, card)),
        recompute_layers=None if again is None else max(0, again - card.start),
        outputs_fp32=recipe.outputs_fp32 and model.tied,  # else what is returned is made fp32 on the first card
        starts=card.first, ends=card.first if model.tied else card.last,
    )
    return found if found.ends else found._replace(kept_logits=0, second_loss=False)


def _moved(places: tuple[Place, ...], main: str, card: Stage) -> Iterator[Place]:
    """The places of the main stack as they are counted on one card."""
    for place in places:
        if place.stack != main:
            yield place
        elif place.first < card.stop and place.last >= card.start:
            yield place._replace(first=max(0, place.first - card.start), last=place.last - card.start)


def _returned(recipe: Recipe) -> tuple[Tensor, ...]:
    """Logits that the model hands out, copied to the card of its input, where Accelerate may make them fp32."""
    if recipe.model.tied or recipe.loss.startswith(LINEAR) or recipe.model.head not in (Head.LM, Head.MLM):
        return ()
    width = FP32 if recipe.returns_fp32 else recipe.sizes.numerics.compute
    widths = (width, FP32) if recipe.outputs_fp32 and width < FP32 else (width,)
    count = recipe.sizes.tokens * recipe.model.vocab
    return tuple(Tensor(name="logits from the last card", num_bytes=count * size, category=Category.ACTIVATIONS,
                        owner="head", formula=f"{recipe.sizes.tokens:,} x {recipe.model.vocab:,} x {size} B",
                        source="accelerate hooks.py `AlignDevicesHook.post_forward`") for size in widths)
