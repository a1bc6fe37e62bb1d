"""A plain PyTorch training loop, alone, under DistributedDataParallel, or under FSDP.

Under DDP every rank keeps weights, gradients and optimizer states whole. torch.autocast where the precision says amp.
The loss takes logits in their own type, as `F.cross_entropy(logits, targets)` does; autocast makes it fp32.
[FSDP] MixedPrecision(param_dtype=...) of FSDP1, MixedPrecisionPolicy of FSDP2 where the precision says mixed: fp32
weights, gathered and computed in 16 bits, gradients reduced in 16 bits

One model over the cards of one process, which work in turn: what `device_map="auto"` makes of it.

[Accelerate] huggingface/accelerate big_modeling.py `dispatch_model`: every layer's input is copied to its card;
hooks.py `AlignDevicesHook(io_same_device=True)` around the whole model: what it returns is copied to the first card
[HF] transformers trainer.py `is_model_parallel`: no DataParallel over such cards, one optimizer for all
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parameters.targets import Place
from vramcast.domain.job import ANSWERS, Job, Phase, Precision, RankProgram, Shards
from vramcast.domain.model import Head
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor
from vramcast.domain.version import Version
from vramcast.engines.eager.checks import FMS, attention_sentences, refuse_shards, refuse_unsharded, text_sentences
from vramcast.engines.eager.fsdp import sharded_phases
from vramcast.engines.eager.phases import Stepping, all_phases, plain_phases
from vramcast.engines.eager.preference import Rated, compares
from vramcast.engines.eager.question import (
    WITHOUT_ADAPTER,
    loss_of,
    packing_sentences,
    recipe_of,
    sharded_stepping_of,
    stepping_of,
)
from vramcast.engines.eager.recipe import IN_MEMORY, Recipe, Sharding, weights
from vramcast.engines.eager.releases import CausalLoss, causal_loss, sharder, transformers_version, with_its_kernels
from vramcast.engines.eager.trl import reference_sentences
from vramcast.engines.serving.stages import Stage, stages
from vramcast.engines.training import Sharder
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import QUANTISED
from vramcast.parallel.layout import balanced, modules_of, require_layers
from vramcast.units import FP32, HALF

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
    known: list[tuple[Recipe, dict[Phase, Program]]] = []  # of cards that have equal layers
    for index, card in enumerate(cards):
        own = _part(recipe, card)
        inner = not card.first and not card.last
        alike = next((phases for part, phases in known if inner and part == own), None)
        if alike is not None:
            yield RankProgram(role=f"GPU {index}", count=1, phases=alike), said
            continue
        returned = _returned(recipe) if card.first else ()
        through: Program = (*map(Alloc, returned), *map(Free, returned))
        phases = dict(plain_phases(own, replace(stepping, between=stepping.between + through)))
        phases[Phase.EVALUATION] += through
        known += [(own, phases)] if inner else []
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
    base = replace(recipe, sizes=replace(recipe.sizes, adapter=None), learning=(), virtual_elements=0)
    found = ((weight.owner, weight.num_bytes, weight.repeats) for weight in weights(base))
    packed = base.sizes.stored in IN_MEMORY
    modules = modules_of(found, base.model.main.name)
    return stages(balanced(modules, gpus=cards, release=release, packed=packed))


def _part(recipe: Recipe, card: Stage) -> Recipe:
    """What one card has of a model and runs of it."""
    model = recipe.model
    main = replace(model.main, runs=tuple(card.runs(model)))
    again = recipe.recompute_layers
    found = replace(
        recipe, model=replace(model, stacks=(*(model.stacks[:-1] if card.first else ()), main)),
        towers=recipe.towers if card.first else (),
        adapted=tuple(_moved(recipe.adapted, main.name, card)),
        recompute_layers=None if again is None else max(0, again - card.start),
        outputs_fp32=recipe.outputs_fp32 and model.tied,  # else what is returned is made fp32 on the first card
        starts=card.first, ends=card.first if model.tied else card.last,
    )
    return found if found.ends else replace(found, kept_logits=0, second_loss=False)


def _moved(places: tuple[Place, ...], main: str, card: Stage) -> Iterator[Place]:
    """The places of the main stack as they are counted on one card."""
    for place in places:
        if place.stack != main:
            yield place
        elif place.first < card.stop and place.last >= card.start:
            last = min(place.last, card.stop - 1) - card.start
            yield replace(place, first=max(0, place.first - card.start), last=last)


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


MIXED: Final = (Precision.MIXED_BF16, Precision.MIXED_FP16)
FULL: Final = (Precision.FP64, Precision.FP32, Precision.TF32)
OWN_TYPE: Final = (
    "the loss takes logits in their own 16 bits; where transformers' model code computes it, it makes them fp32: "
    "--engine-option model_loss=true"
)


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "reentrant" checkpoints, "padded" batches, "shifted_loss" for model code that shifts its logits,
    "model_loss" computed by transformers' model code (bool), "gradient_as_bucket_view" (bool), "backward_prefetch"
    ("pre", "none"), "defers_sync" (bool), "reduce_dtype" of FSDP2 ("float32"), "frozen_towers" of FSDP2 ("root"),
    "float8_all_gather" (bool), "second_loss" (bool), "liger" (bool, or kernels).

    Raises: Unsupported for model parallelism, partial sharding and offload, with the engine that would work
    """
    mixed, who = job.plan.precision in MIXED, sharder(job)
    autocast = job.plan.precision in (Precision.AMP_BF16, Precision.AMP_FP16)
    models = job.engine_options.get("model_loss", False) or job.engine_options.get("shifted_loss", False)
    causal = causal_loss(job) if models else CausalLoss(returns_fp32=False, upcasts=False, copies=False)
    loss = loss_of(job, autocast=autocast, causal=causal)
    said = (*packing_sentences(job), *((OWN_TYPE,) if loss == "torch" and job.plan.precision not in FULL else ()))
    recipe = recipe_of(job, loss=loss, narrow=mixed)
    recipe = replace(with_its_kernels(recipe, job), returns_fp32=causal.returns_fp32 and loss is not None)
    if models:
        recipe = with_its_output(recipe)
    if who in ("fsdp1", "fsdp2"):
        sharding = replace(sharding_of(job, who), master=FP32, compute=HALF) if mixed else sharding_of(job, who)
        return (sharded_role(job, recipe, sharding, *said),)
    refuse_unsharded(job)
    refuse_shards(job, job.plan)
    if job.plan.pp > 1:
        return roles_in_turn(job, recipe, *said)
    return (one_role(job, all_phases(job, recipe, stepping_of(job)), *said),)


def roles_in_turn(job: Job, recipe: Recipe, *assumptions: str) -> tuple[RankProgram, ...]:
    """Cards of one process that have some layers each."""
    found = ((program, one_role(job, program.phases, said, *assumptions))
             for program, said in staged(job, recipe, stepping_of(job)))
    return tuple(replace(role, role=program.role, count=program.count) for program, role in found)


def with_its_output(recipe: Recipe) -> Recipe:
    """The fp32 logits that older model code returns beside its loss are a variable of the loop: they outlive backward.

    Narrow ones of newer code do too, but runs of PEFT's comparison, which hold them, are 3 % below the answer without.

    Source: AnswerDotAI/fsdp_qlora 4cd6923 train.py, which drops `output` after the step; huggingface/peft
    method_comparison/MetaMathQA/run.py
    """
    made = not recipe.loss.startswith(LINEAR) and recipe.model.head in (Head.LM, Head.MLM)
    return replace(recipe, kept_logits=FP32 if made and recipe.returns_fp32 else 0)


def sharding_of(job: Job, by: Sharder) -> Sharding:
    """How FSDP shards a job whose weights are stored as they compute.

    Raises: InvalidSpec or Unsupported for what FSDP cannot shard so
    """
    plan = job.plan
    if plan.shards is Shards.OPTIMIZER:
        raise InvalidSpec("{} cannot shard optimizer states alone; use --shards everything, or --engine deepspeed", by)
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("FSDP offloads to the host only; use --offload-parameters cpu, or --engine deepspeed")
    if plan.offload_optimizer != "none" and plan.offload_parameters == "none":
        raise Unsupported("FSDP offloads weights and optimizer together; add --offload-parameters cpu")
    if plan.peft is not None and plan.peft.base == "int8":
        raise Unsupported("FSDP cannot shard bitsandbytes' 8-bit weights; use --base-weights nf4, or --shards nothing")
    if job.workload.objective in ANSWERS and not (compares(job) or job.engine == "torchtune"):
        raise Unsupported(
            "{} is not modelled with FSDP for --engine {} and this loss; leave --shards out, or use --engine "
            "huggingface --objective dpo and no --loss", job.workload.objective, job.engine
        )
    return Sharding(
        "fsdp1" if by == "fsdp1" else "fsdp2",
        min(plan.shard_group or job.replicas, job.replicas),
        expert_ranks=1 if job.engine_options.get("experts") == FMS else None,
        reshard=plan.reshard_after_forward and plan.shards is Shards.EVERYTHING,
        prefetch=job.engine_options.get("backward_prefetch", "pre") == "pre",
        offload=plan.offload_parameters == "cpu",
        defers=job.engine_options.get("defers_sync", True) is True,
        reduced=FP32 if by == "fsdp2" and job.engine_options.get("reduce_dtype") == "float32" else None,
        frozen_in_root=by == "fsdp2" and job.engine_options.get("frozen_towers") == "root",
        float8=_gathers_in_8_bits(job, by),
    )


def _gathers_in_8_bits(job: Job, by: Sharder) -> bool:
    """torchao's linear layers, whose weights are cast before they are gathered; inductor casts what they read.

    Source: pytorch/ao torchao/float8/fsdp_utils.py `WeightWithDynamicFloat8CastTensor`

    Raises: Unsupported without FSDP2 and torch.compile
    """
    asked = job.engine_options.get("float8_all_gather", False) is True
    if asked and (by != "fsdp2" or not job.plan.compile):
        raise Unsupported("float8_all_gather is modelled for FSDP2 with --compile; add both")
    return asked


def sharded_role(
    job: Job, recipe: Recipe, sharding: Sharding, *assumptions: str, compared: Rated | None = None
) -> RankProgram:
    """All ranks do the same, each with its share."""
    said = [*assumptions, *(() if sharding.experts_alone else (UNITS[sharding.by],))]
    if sharding.by == "fsdp1" and sharding.ranks == 1:
        said.append("FSDP1 over one GPU shards nothing, whatever was asked: PyTorch makes it NO_SHARD")
    if recipe.sizes.adapter is not None and sharding.by == "fsdp1":
        said.append("every adapter is a unit of its own, as PEFT's fsdp_auto_wrap_policy wraps them")
    constants = recipe.sizes.packs("") and not QUANTISED[recipe.sizes.stored].shards_constants
    if job.plan.peft is not None and constants and not recipe.packed_whole:
        said.append("packed weights are stored as 16-bit numbers, so that they can be sharded; block constants are not")
    if sharding.loads_whole:
        said.append("every rank loads all of the packed base before it is sharded, as transformers does since 5.0")
    if job.workload.grad_accum > 1 and sharding.defers:
        said.append("gradients of the micro-batches before the last add up unsharded (no_sync)")
    if sharding.by == "fsdp1" and sharding.expert_ranks is not None:
        said.append(Note("experts stand outside of FSDP, of {} ranks each has its own with their gradients and "
                         "states, as fms-acceleration keeps them", job.plan.ep) if job.plan.ep > 1 else
                    "experts stand outside of FSDP, whole on every rank, as fms-acceleration keeps them")
    if job.plan.tp > 1:
        said.append("tensor parallelism by PyTorch's plans: norms and hidden states are whole on every rank, and so "
                    "are the logits that the loss reads")
    if compared is not None:
        said.append(compared.said)
    if compared is not None and sharding.by == "fsdp2" and compared.own and compared.reference and compared.one_unit:
        said.append("TRL hands the reference to fully_shard as one unit: all of it is gathered while it answers")
    phases = sharded_phases(recipe, sharded_stepping_of(job), sharding, compared)
    found = one_role(job, phases, *said)
    kept = tuple(text for text in found.assumptions if not text.startswith("gradients of later micro-batches"))
    return RankProgram(role=found.role, count=found.count, phases=phases, assumptions=kept)


UNITS: Final = {
    "fsdp1": "FullyShardedDataParallel (FSDP1): a flat weight for every layer, one for all the rest",
    "fsdp2": "fully_shard (FSDP2): a unit for every layer",
}


def one_role(job: Job, phases: Mapping[Phase, Program], *assumptions: str) -> RankProgram:
    """All ranks do the same."""
    found = [*assumptions, *reference_sentences(job)]
    if job.plan.compile:
        found.append("torch.compile fuses norms, activations, rotary embedding and the loss; the rest as in eager mode")
    if job.workload.grad_accum > 1:
        found.append("gradients of later micro-batches are added to those of the first and freed")
    if job.plan.offload_activations:
        found.append("what layers save for backward waits on the host, and is taken back one layer at a time; towers "
                     "and head keep theirs on the card")
    found += attention_sentences(job)
    found += text_sentences(job)
    return RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=tuple(found))
