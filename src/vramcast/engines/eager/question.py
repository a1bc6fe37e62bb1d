"""From a job to a recipe: what the eager engines have in common.

Training that is aware of the quantisation to come: which layers round, and what is not modelled of it.

[QAT] pytorch/ao v0.17.0 torchao/quantization/qat/api.py `_qat_config_transform`: every `nn.Linear` of the network,
which the stacked experts of transformers 5 are not; operators/linear.py
"""

from __future__ import annotations

from math import gcd
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.lengths import image_positions, tiles_of
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import LAST, Place, has, matrices, places_of, runs_apart, within
from vramcast.blocks.parts import EXPERTS, Sizes, norm_variant
from vramcast.blocks.transformer import STEPS
from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import (
    GENERATES,
    WITHOUT_TARGETS,
    AttentionKernel,
    Job,
    Loss,
    Peft,
    Precision,
    Recompute,
    share,
)
from vramcast.domain.model import Attention, Model, MoE, Norm, Stack
from vramcast.domain.version import Version
from vramcast.engines.eager.checks import FMS, SAVES_ON_HOST, attention_of, refuse_splits
from vramcast.engines.eager.phases import Stepping, cache_width
from vramcast.engines.eager.recipe import HEAD, IN_MEMORY, Recipe, Tower
from vramcast.engines.eager.releases import (
    TWO_LISTS_UNTIL,
    CausalLoss,
    caches_products,
    optimizer_kernel,
    repeats_keys,
    software,
    transformers_version,
)
from vramcast.engines.eager.trl import loads_fp32, reentrant
from vramcast.engines.training import engine_of
from vramcast.engines.transformers.versions import behaviour, left_sentences, left_whole
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported
from vramcast.operators.linear import MX, NUMERICS, QUANTISED, Fake, Numerics
from vramcast.operators.lora import ADAPTERS, Adapter
from vramcast.states.optimizers import optimizer
from vramcast.units import DTYPE_BITS, FP32, HALF, ceil_div

GROUP: Final = 128
"""Elements of a weight with one scale, unasked [torchao `Int4WeightFakeQuantizeConfig`]."""

MX_BLOCK: Final = 32

ROUNDED_BASES: Final = {"torchtune": ("", "lora")}
"""Engines whose frozen weights beside adapters round, too [torchtune modules/peft/lora.py `QATLoRALinear`]."""


ROUNDED_HEAD: Final = "every chunk of torchtune's loss rounds the head's weight anew and keeps that until backward"


def fake_of(job: Job, numerics: Numerics) -> Fake | None:
    """What linear layers round what they read to; None: nothing.

    Raises: InvalidSpec for a group that widths are no multiples of; Unsupported for what is not modelled of it
    """
    kind = job.engine_options.get("qat")
    if kind is None:
        return None
    group = int(job.engine_options.get("qat_group", MX_BLOCK if kind == MX else GROUP))
    if numerics.weight != HALF or numerics.compute != HALF or numerics.residual != HALF:
        raise Unsupported("quantisation-aware training is modelled for weights and states of 16 bits; use "
                          "--precision bf16")
    method = job.plan.peft.method if job.plan.peft is not None else ""
    if method not in ROUNDED_BASES.get(job.engine, ("",)) or job.plan.compile or job.plan.tp > 1:
        raise Unsupported("quantisation-aware training is modelled where every weight learns, and of torchtune's LoRA, "
                          "without torch.compile and tensor parallelism")
    layers = job.model.main.layers
    if len(job.model.stacks) > 1 or any(isinstance(layer.channel, MoE) for layer in layers):
        raise Unsupported("quantisation-aware training is not modelled for {}, which has experts or towers",
                          job.model.name)
    if job.model.hidden % group:
        raise InvalidSpec("groups of {} elements do not divide rows of {}; use --engine-option qat_group=32", group,
                          job.model.hidden)
    return Fake(str(kind), group)


def fake_sentences(job: Job) -> tuple[str, ...]:
    """What is said of it."""
    if (kind := job.engine_options.get("qat")) is None:
        return ()
    if job.engine == "torchtune":
        found = Note("linear layers round weights and inputs as {} and back, in plain operators of torchao", kind)
        whole = job.plan.peft is None and not job.model.tied
        return (found, ROUNDED_HEAD) if whole else (found,)
    return (Note("linear layers round weights and inputs as {} and back, in plain operators of torchao 0.17; the head "
                 "does where its layer is called, which fused losses do not", kind),)


LOSSES: Final[dict[Loss, str]] = {
    Loss.EAGER: "eager",
    Loss.COMPILED: "compiled",
    Loss.FUSED: "liger",
    Loss.FUSED_LINEAR: LINEAR + "liger",
}
"""Keys of the loss tables."""

WITHOUT_ADAPTER: Final = ("prefix", "prompt", "ln", "modules")
"""PEFT methods that add no correction to linear layers."""

COMPUTES_IN_BF16: Final = (Precision.AMP_BF16, Precision.MIXED_BF16, Precision.BF16)

SAVED_MODULES: Final[dict[str, str]] = {
    "embedding": "embedding.tokens", "head": "head.output", "classifier": "head.classifier",
}

NOT_PROJECTED: Final = "attention.position_", "compressor.", "hyper.", "indexer.", "mamba.x", "mamba.dt", "per_layer.",
"""Weights that the graphs of layers multiply inside a kernel, or not at all. A packed Jamba runs `dt_proj` instead of
reading its weight [transformers models/jamba/modeling_jamba.py `JambaMambaMixer.forward`]."""

NORM_WEIGHTS: Final = ("mixer_norm", "channel_norm", "final_norm")


def recipe_of(
    job: Job, *, loss: str | None = None, outputs_fp32: bool = False, variants: str = "eager", autocast: bool = False,
    narrow: bool = False,
) -> Recipe:
    """The model's forward and backward as the job asks for it.

    Args:
        loss: key of the loss tables; None: what the plan says
        outputs_fp32: the trainer converts returned logits to fp32
        variants: which forms of norm, activation and rotary embedding: "eager", "compiled", "liger"
        autocast: the trainer's own autocast, under which a frozen base has 16 bits, as a rule
        narrow: weights have 16 bits while they compute, whatever their masters have

    Raises: Unsupported for what eager engines cannot be asked
    """
    refuse_splits(job)
    plan, peft = job.plan, job.plan.peft
    chosen = plan.loss or (Loss.COMPILED if plan.compile else Loss.EAGER)
    if loss is None and job.engine == "torchtune":
        loss = LOSSES[Loss.EAGER]  # it names its losses itself: who names none asks for the weights
    if loss is None and chosen not in LOSSES:
        raise Unsupported("--loss {} is not modelled for --engine {}; use --loss fused_linear", chosen, job.engine)
    numerics = NUMERICS[plan.precision]
    halves = autocast and peft is not None and not loads_fp32(job)
    if narrow or halves:
        numerics = Numerics(2, 2, 2, 2)
    variants = "compiled" if plan.compile else variants
    adapted = () if peft is None or peft.method in WITHOUT_ADAPTER else places_of(job.model, peft.targets)
    model = replace(job.model, stacks=tuple(runs_apart(stack, adapted) for stack in job.model.stacks))
    sizes = _sizes(job, numerics, variants, autocast=autocast or numerics.autocast)
    found = (_tower(job, stack, sizes) for stack in model.stacks[:-1])
    towers = tuple(tower for tower in found if tower is not None)
    if towers and any(layer.cross_attention for layer in job.model.main.layers):
        decoder_len = job.workload.decoder_seq_len or sizes.seq_len
        sizes = replace(sizes, source_len=towers[-1].sizes.seq_len, seq_len=decoder_len)
    if halves:
        sizes = _under_autocast(sizes, job.model.main)
        if not job.engine_options.get("whole_towers"):
            towers = tuple(tower._replace(sizes=_under_autocast(tower.sizes, tower.stack)) for tower in towers)
    frozen_halves = bool(job.engine_options.get("frozen_halves")) and numerics.weight > HALF
    if frozen_halves:
        towers = tuple(_in_halves(tower) if tower.stack.name in plan.freeze else tower for tower in towers)
    return Recipe(
        model,
        sizes,
        towers,
        loss=loss or LOSSES[chosen],
        outputs_fp32=outputs_fp32,
        recompute=plan.recompute is Recompute.FULL,
        reentrant=reentrant(job),
        recompute_layers=plan.recompute_layers,
        learning=_learning(job),
        virtual_elements=_virtual_elements(job),
        copies_learning=peft is not None and bool(peft.modules_to_save) and peft.method != "modules",
        adapted=adapted,
        frozen=plan.freeze,
        frozen_width=HALF if frozen_halves else None,
        follows_inputs=follows_inputs(job),
        offloads=plan.offload_activations,
        whole_towers=bool(job.engine_options.get("whole_towers", False)),
        tower_rank=int(job.engine_options.get("tower_rank", 0)) or None,
        second_loss=bool(job.engine_options.get("second_loss", False)),
        offloads_in_flight=SAVES_ON_HOST.get(job.engine, 0),
        context_ranks=plan.cp // heads_ranks(job),
        heads_ranks=heads_ranks(job),
        samples=(int(job.engine_options.get("eval_batch", 0)) or job.workload.micro_batch, job.workload.micro_batch),
    )


def heads_ranks(job: Job) -> int:
    """Ranks among which a trainer's `--cp-kind ulysses` divides heads, as far as keys have some; rings do the rest.

    Source: modelscope/ms-swift 3602360a5 swift/sequence_parallel/sequence_parallel.py `_init_device_mesh`
    """
    mixer = job.model.main.layers[0].mixer
    if job.engine != "huggingface" or job.plan.cp_kind != "ulysses":
        return 1
    return gcd(mixer.num_kv_heads if isinstance(mixer, Attention) else job.plan.cp, job.plan.cp)


def _sizes(job: Job, numerics: Numerics, variants: str, *, autocast: bool) -> Sizes:
    plan, workload, model = job.plan, job.workload, job.model
    peft = plan.peft
    virtual = peft.virtual_tokens if peft is not None and peft.method == "prompt" else 0
    prefix = peft.virtual_tokens if peft is not None and peft.method == "prefix" else 0
    batch = workload.micro_batch * (2 if workload.objective in ("dpo", "reward") else 1)
    seq_len = workload.seq_len + virtual + (workload.completion_len if workload.objective in (*GENERATES, "gkd") else 0)
    if job.engine == "huggingface":
        seq_len = ceil_div(seq_len, plan.cp)  # samples are padded [swift sequence_parallel.py `pad`, ax ring_attn]
    else:
        seq_len = share("cp", seq_len, plan.cp, what="seq_len")
    padded = bool(job.engine_options.get("padded", False))
    loops = bool(expert_counts(model)) and runs_experts_in_a_loop(job)
    return Sizes(
        batch=batch,
        seq_len=seq_len,
        hidden=model.hidden,
        tp=plan.tp,
        numerics=numerics,
        attention=attention_of(job),
        norm=(norm_variant(model) if variants == "eager" else variants),
        activation=variants,
        rope=variants,
        fp32_softmax=model.main.causal,
        copies_scores=plan.precision in COMPUTES_IN_BF16,
        masked=padded and attention_of(job) is not AttentionKernel.EAGER,
        grouped=not padded and not repeats_keys(job),
        keys=seq_len + prefix if prefix else None,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        frozen=peft is not None,
        trained=_learning(job) if peft is not None and (peft.method == "ln" or rest_learns(job)) else (),
        adapter=_adapter(job, compute=numerics.compute if autocast else None),
        stored=_stored(job),
        fake=fake_of(job, numerics),
        left_whole=_left_whole(job),
        stacked=bool(job.engine_options.get("pack_experts", False)),
        caches_products=caches_products(job),
        expert_loop=loops,
        every_expert=behaviour(model.family, transformers_version(job), flash=False).every_expert,
        experts_in_place=job.engine_options.get("experts") in ("scattermoe", FMS),
        expert_ranks=plan.ep,
        expert_turns=min(MOST_TURNS, max(expert_counts(model), default=1)) if loops else 1,
    )


def _stored(job: Job) -> str:
    """How the frozen weights are kept, and by whose kernel unpacked."""
    base = job.plan.peft.base if job.plan.peft is not None else "full"
    triton = base == "gptq-int4" and job.engine_options.get("gptq_kernel") == "tritonv2"
    return f"{base}-triton" if triton else base


MOST_TURNS: Final = 16
"""Turns of a loop over experts that are told apart: more experts take their turns together [count]."""


def expert_counts(model: Model) -> tuple[int, ...]:
    """Routed experts of every kind of layer that has some."""
    channels = (layer.channel for layer in model.main.layers)
    return tuple(channel.num_experts for channel in channels if isinstance(channel, MoE))


def runs_experts_in_a_loop(job: Job) -> bool:
    """Whether the model code of the job's release of transformers does."""
    return behaviour(job.model.family, transformers_version(job), flash=False).expert_loop


STACKED: Final = "moe.experts."
"""How the paths of stacked experts begin: no linear layers, which bitsandbytes leaves unless it is asked to pack them
[axolotl monkeypatch/moe_quant.py]."""


def _left_whole(job: Job) -> tuple[str, ...]:
    """How the paths of those matrices begin that stay as they are where bitsandbytes packs the base."""
    packed = job.plan.peft is not None and job.plan.peft.base in IN_MEMORY
    left = left_whole(job.model.family, transformers_version(job)) if packed else ()
    packs = job.engine_options.get("pack_experts") or job.engine_options.get("linear_experts")
    return tuple(path for path in left if path != STACKED) if packs else left


def packing_sentences(job: Job) -> tuple[str, ...]:
    """What stays in 16 bits of a packed base, and which weights are rounded to few bits and back."""
    return (*left_sentences(job.model, _left_whole(job), transformers_version(job)), *fake_sentences(job))


def _under_autocast(sizes: Sizes, stack: Stack) -> Sizes:
    """A frozen 16-bit base: LayerNorm runs in fp32, and a packed layer answers in the type that it was asked in.

    The residual stream is fp32 where a LayerNorm writes it (BERT, OPT-350m, BLOOM), not where it is only read (GPT-2);
    a loop over experts adds to zeros of the type that it was asked in, which is the LayerNorm's (Phi-3.5-MoE).

    Source: [transformers] models/phimoe/modeling_phimoe.py `PhimoeSparseMoeBlock.forward`; pytorch
    aten/src/ATen/autocast_mode.h, list of fp32 operators; [bnb] in operators/linear.py
    """
    if not stack.runs or (layer := stack.runs[0].layer).norm is Norm.RMS:
        return sizes
    written = layer.norm_placement != "pre" or layer.post_norms or stack.embedding_norm not in (None, Norm.RMS)
    written = written or (stack.vision is not None and stack.vision.pre_norm)
    written = written or (sizes.expert_loop and isinstance(layer.channel, MoE))
    wide = written or (sizes.packs("") and QUANTISED[sizes.stored].follows_input)
    numerics = replace(sizes.numerics, residual=FP32) if wide else sizes.numerics
    return replace(sizes, wide_layer_norms=True, numerics=numerics)


def _in_halves(tower: Tower) -> Tower:
    """A frozen tower whose weights autocast does not narrow: they have 16 bits."""
    narrow = replace(tower.sizes, numerics=Numerics(HALF, HALF, HALF, HALF))
    return tower._replace(sizes=_under_autocast(narrow, tower.stack))


def _tower(job: Job, stack: Stack, sizes: Sizes) -> Tower | None:
    """A text encoder reads the workload's positions; an image or audio encoder as many as its patches.

    None where images may have any size and none is given: batches of text only.
    """
    if stack.vision is None:
        return Tower(stack, replace(sizes, hidden=stack.hidden))
    patches = image_positions(stack, job.workload.image_size)
    if not patches or not job.workload.images:
        return None
    variant = replace(
        sizes, hidden=stack.hidden, seq_len=patches, batch=sizes.batch * job.workload.images * tiles_of(stack),
        masked=False, keys=None,
    )
    if job.engine_options.get("whole_towers"):
        variant = replace(variant, stored="full", left_whole=(), numerics=NUMERICS[job.plan.precision])
    return Tower(stack, variant)


def _adapter(job: Job, *, compute: int | None) -> Adapter | None:
    """What corrects the linear layers; `compute` is autocast's width [bytes]."""
    peft = job.plan.peft
    if peft is None or peft.method in WITHOUT_ADAPTER:
        return None
    if peft.method in WITHOUT_TARGETS:
        raise Unsupported(
            "--peft {} is LLaMA-Adapter as litgpt has it; use --engine litgpt, or --peft lora", peft.method
        )
    if peft.method not in ADAPTERS:
        raise UnknownName.of("PEFT method", peft.method, (*ADAPTERS, *WITHOUT_ADAPTER))
    width, main = DTYPE_BITS[peft.adapter_dtype] // 8, job.model.main
    places = places_of(job.model, peft.targets)
    if not places:
        raise InvalidSpec(
            "--peft {} adapts no weight of {}; name some with --lora-targets", peft.method, job.model.name
        )
    whole = STACKED in left_whole(job.model.family, transformers_version(job)) and job.engine != "torchtitan"
    stacked = whole and job.engine != "unsloth" and peft.method == "lora"
    _refuse_unmodelled(job, peft, places, whole=whole)
    paths = within((replace(place, first=0, last=LAST) for place in places), main.name, 0, LAST)
    options: tuple[tuple[str, float], ...] = ()
    if peft.trainable_parameters is not None:
        options = (("elements", peft.trainable_parameters / max(1, _adapted_layers(job.model, places))),)
    return Adapter(peft.method, peft.rank, paths, width, compute or width, peft.dropout, options, stacked)


def _adapted_layers(model: Model, places: tuple[Place, ...]) -> int:
    """Products that are corrected, layer by layer [count]."""
    return sum(
        has(matrices(layer, stack.hidden), path)
        for stack in model.stacks for index, layer in enumerate(stack.layers)
        for path in within(places, stack.name, index, index)
    )


def _refuse_unmodelled(job: Job, peft: Peft, places: tuple[Place, ...], *, whole: bool) -> None:
    """Raise Unsupported for weights whose adapters are not in the program, InvalidSpec for what PEFT cannot adapt."""
    for place in places:
        path = place.path
        inside = any(path.startswith(name) for name in NOT_PROJECTED)
        if path == "embedding.tokens" or (inside and not (path in STEPS and _runs_steps(job))):
            raise Unsupported(
                "adapters on {} are not modelled for --engine {}; leave it out of --lora-targets", path, job.engine
            )
        if path == HEAD and job.plan.loss is Loss.FUSED_LINEAR:
            raise Unsupported(
                "--loss {} never runs the head that --lora-targets names; use --loss eager", job.plan.loss
            )
        if not path.startswith(EXPERTS):
            continue
        if whole and job.engine != "unsloth" and peft.method != "lora":
            raise InvalidSpec("PEFT adapts stacked experts by lora alone, not by {}; leave {} out", peft.method, path)
        if whole and job.engine != "unsloth" and peft.dropout and not job.engine_options.get("experts_without_dropout"):
            raise InvalidSpec(
                "PEFT adapts stacked experts without dropout; leave out {}, or use --lora-dropout 0", path
            )


def _runs_steps(job: Job) -> bool:
    """Whether the linear layers before a scan are run one by one."""
    return job.model.family == "jamba" and job.plan.peft is not None and job.plan.peft.base in IN_MEMORY


FOLLOWS_TOWERS_SINCE: Final[Version] = (5,)
"""Since then `enable_input_require_grads` makes what every tower's embedding puts out need gradients, too, and not the
text's alone [transformers modeling_utils.py `PreTrainedModel.enable_input_require_grads`; pull request 41993]."""


def follows_inputs(job: Job) -> bool:
    """Whether gradients flow through towers of which nothing learns: PEFT asks for that where layers are recomputed
    [peft peft_model.py `_prepare_model_for_gradient_checkpointing`]; Unsloth asks for the text's alone."""
    asks = job.plan.peft is not None and job.plan.recompute is Recompute.FULL and engine_of(job).runs_transformers
    if job.engine_options.get("follows_inputs") is True:
        return True
    return asks and job.engine != "unsloth" and transformers_version(job) >= FOLLOWS_TOWERS_SINCE


def _virtual_elements(job: Job) -> int:
    """A prompt is one embedding per virtual token, a prefix its keys and values in every layer."""
    peft = job.plan.peft
    if peft is None or peft.method not in ("prompt", "prefix"):
        return 0
    if peft.method == "prompt":
        return peft.virtual_tokens * job.model.hidden
    return peft.virtual_tokens * sum(run.count * cache_width(run.layer.mixer) for run in job.model.main.runs)


def _learning(job: Job) -> tuple[str, ...]:
    """Weights that learn beside adapters; all that these do not stand beside where a job says "rest_learns"."""
    peft = job.plan.peft
    if peft is None:
        return ()
    if peft.method == "ln":
        return NORM_WEIGHTS
    if rest_learns(job):
        adapted = {place.path for place in places_of(job.model, peft.targets)}
        paths = dict.fromkeys(owned.parameter.path for owned in named_parameters(job.model))
        return tuple(path for path in paths if path not in adapted)
    unknown = [name for name in peft.modules_to_save if name not in SAVED_MODULES]
    if unknown:
        raise UnknownName.of("module to save", unknown[0], SAVED_MODULES)
    beside = str(job.engine_options.get("learns_beside", ""))
    if peft.method == "modules" and not (beside or peft.modules_to_save):
        raise InvalidSpec("--peft modules adapts nothing: what --modules-to-save names learns; add that")
    return (*(SAVED_MODULES[name] for name in peft.modules_to_save), *((beside,) if beside else ()))


def rest_learns(job: Job) -> bool:
    """Whether weights learn that adapters do not stand beside, as in DeepSpeed-Chat without --only_optimize_lora."""
    return bool(job.engine_options.get("rest_learns", False))


def stepping_of(job: Job) -> Stepping:
    """Optimizer, accumulation and replicas of a job whose ranks keep everything."""
    plan = job.plan
    if plan.precision in (Precision.MIXED_BF16, Precision.MIXED_FP16):
        raise Unsupported(
            "precision {} keeps an fp32 copy in the optimizer, which --engine {} does not; use amp-bf16, bf16, or "
            "--engine deepspeed", plan.precision, job.engine
        )
    if plan.offload_optimizer != "none" or plan.offload_parameters != "none":
        raise Unsupported("offload is not modelled for --engine {}; use --engine deepspeed", job.engine)
    bucket_views = bool(job.engine_options.get("gradient_as_bucket_view", False))
    return replace(sharded_stepping_of(job), replicas=job.replicas, bucket_views=bucket_views)


def sharded_stepping_of(job: Job) -> Stepping:
    """Optimizer and accumulation, whoever holds what is stepped."""
    rule, torch = optimizer(job.plan.optimizer), software(job).torch
    if torch < TWO_LISTS_UNTIL and job.plan.optimizer in ("adam", "adamw"):
        rule = replace(rule, foreach_temporaries=2)
    if engine_of(job).is_trainer and rule.in_fp32:  # [transformers trainer.py `create_optimizer`]: embeddings apart
        rule = replace(rule, wide_embeddings=True)
    return Stepping(
        rule, kernel=optimizer_kernel(job), grad_accum=job.workload.grad_accum,
        workspaces=blas_workspaces(job, torch=torch),
    )


def loss_of(job: Job, *, autocast: bool, causal: CausalLoss) -> str | None:
    """Key of the loss tables where the loss is one of logits that model code has prepared; None: what the plan says.

    One sample's logits are contiguous without their last position, and not copied.

    Args:
        autocast: cross_entropy runs in fp32
        causal: what is between logits and loss
    """
    if job.plan.loss not in (None, Loss.EAGER, Loss.FUSED) or (job.plan.compile and job.plan.loss is None):
        return None
    copies = causal.copies and (job.workload.micro_batch > 1 or job.workload.objective in ("dpo", "reward"))
    if job.plan.loss is Loss.FUSED:
        return "liger" + "_upcast" * causal.upcasts + "_shifted" * copies
    if causal.upcasts:
        return "huggingface_shifted" if copies else "eager"
    if autocast:
        return "shifted_autocast" if copies else "eager"
    return "shifted" if copies else "torch"
