"""From options to a job: names resolved, defaults filled in, every option used or refused.

Which parts of a network do not learn, in the words of trainers, as names of parts.

[LF] hiyouga/LLaMA-Factory src/llamafactory/model/model_utils/visual.py: a language model's head is frozen with it
[HF] transformers examples/pytorch/contrastive-image-text/run_clip.py `_freeze_params`: projections learn all the same
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import lcm
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from vramcast import families, question, sources
from vramcast.blocks.lengths import usual_lengths
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import Place, has, paths_within, places_of, word_of
from vramcast.catalogue.clusters import Market, cluster_of
from vramcast.catalogue.index import is_pipeline
from vramcast.domain.calibration import Calibration
from vramcast.domain.device import Cluster
from vramcast.domain.job import WITHOUT_TARGETS, Job, Peft, Plan, Shards, Workload, require_count
from vramcast.domain.model import Checkpoint, Head, Model, Run, classifier, scorer
from vramcast.domain.version import Version, check_version
from vramcast.engines import eager
from vramcast.engines.training import DIFFUSION, PURE, TRAINING, checkout
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported
from vramcast.question.option import parse_bytes
from vramcast.question.options import MODEL_OPTIONS, OPTIONS, Option, given_of, parse

NounT = TypeVar("NounT")

PEFT_ONLY: Final = tuple(name for name, option in OPTIONS.items() if option.section == "peft" and name != "peft")

REWARDING: Final = "a reward model: one score in the place of the vocabulary's head, as TRL's RewardTrainer loads it"

ONE_COPY: Final = (
    "engine megatron: the degrees leave one copy of the model, which torchtitan's FSDP could not divide; --engine says "
    "otherwise"
)

Resolve = Callable[[str], Checkpoint]


def trains_pipeline(options: Mapping[str, object]) -> bool:
    """Whether the question is about a pipeline: its model is one, or its engine trains them."""
    engine, model = str(options.get("engine") or "").partition("@")[0], options.get("model")
    if engine:
        return engine in DIFFUSION
    return isinstance(model, str) and is_pipeline(model)


def build_job(options: Mapping[str, object], *, resolve: Resolve) -> Job:
    """The job that a set of options asks for.

    Args:
        options: option names as in `OPTIONS`, plus `model` and `gpus`
        resolve: turns the text of `model` into a network and what its headers say

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = given_of(options, OPTIONS)
    _refuse_repeated(given)
    values = {name: parse(name, value) for name, value in given.items() if name not in ("model", "gpus")}
    if "gpus" not in given:
        raise InvalidSpec("which GPUs? give --gpus, for example --gpus 8xh100-sxm-80gb")
    cluster = cluster_of(str(given["gpus"]), market_of(values))
    engine, version = training_engine(values.get("engine") or default_engine(values, cluster.count))
    plan = _plan(values, engine, cluster)
    workload = _workload(values, plan, cluster.count)
    model = checkpoint_of(given.get("model"), values, resolve, OPTIONS, divisor=lcm(plan.tp, plan.etp or 1)).model
    if "vision-tower" in values:
        model = families.vision_language.behind_tower(model, resolve(str(values["vision-tower"])).model)
    workload, assumed = with_lengths(model, workload, values)
    beside = engine_options(values.get("engine-option", ())).get("value_head") is True
    if workload.objective == "reward" and model.head in (Head.LM, Head.MLM) and not beside:
        model = scorer(model)
        assumed = (*assumed, REWARDING)
    if workload.objective in ("classification", "tagging"):
        if any(stack.vision is None for stack in model.stacks[:-1]):
            raise Unsupported(
                "--objective {} needs one stack of text, and {} has {}; leave it out",
                workload.objective, model.name, len(model.stacks)
            )
        model = classifier(model, pooled=workload.objective == "classification")
    if "engine" not in values and engine == "megatron":
        assumed = (*assumed, ONE_COPY)
    peft, passed_over = peft_of(values, model, engine, version)
    peft, packed = _over_stored(peft, model, values)
    job = Job(
        model=model,
        workload=workload,
        plan=with_frozen_parts(model, replace(plan, peft=peft)),
        cluster=cluster,
        engine=engine,
        engine_version=version,
        engine_options=engine_options(values.get("engine-option", ())),
        alloc_conf=values.get("alloc-conf", ""),
        run_tokens=values.get("tokens"),
        global_batch=values.get("global-batch"),
        teacher=_teacher(values, resolve, model),
        calibration=calibration_of(values.get("calibration")),
        assumed=(*assumed, *passed_over, *packed),
    )
    return eager.trl.with_unasked(_as_its_engine_calls_it(job, values.get("precision")), values)


def _teacher(values: Mapping[str, Any], resolve: Resolve, student: Model) -> Model | None:
    """The network that a student learns from, which may be itself as it was.

    Raises: InvalidSpec where there is a teacher and nobody who learns from it, or the other way round
    """
    if (values.get("objective") == "gkd") is not ("teacher" in values):
        raise InvalidSpec("--objective gkd learns from the logits of --teacher MODEL; give both, or neither")
    if values.get("teacher") == ITSELF:
        return student
    return resolve(str(values["teacher"])).model if "teacher" in values else None


def _as_its_engine_calls_it(job: Job, name: str | None) -> Job:
    """The job in the recipe that its engine calls by that name."""
    meant = eager.releases.recipe_names(job).get(name or "")
    if meant is None:
        return job
    who = eager.releases.of_recipe(job)
    said = Note("--precision {} keeps an fp32 copy of what learns, as {} does; pure-{} keeps none", name, who, name)
    return replace(job, plan=replace(job.plan, precision=meant), assumed=(*job.assumed, said))


def with_lengths(
    model: Model, workload: Workload, values: Mapping[str, Any], table: Mapping[str, Option] = OPTIONS
) -> tuple[Workload, tuple[str, ...]]:
    """The workload with the lengths that the question leaves open as the model has them, and what is said of them.

    Raises: InvalidSpec where the shortest sample is longer than the longest
    """
    found = usual_lengths(model, workload, named=frozenset(section(values, "workload", table)))
    if (workload.min_seq_len or 0) > found.seq_len:
        raise InvalidSpec(
            "min-seq-len={} is longer than seq-len={}, which is the longest sample's; use a smaller one",
            workload.min_seq_len, found.seq_len
        )
    return replace(workload, seq_len=found.seq_len, decoder_seq_len=found.decoder_seq_len), found.said


def default_engine(values: Mapping[str, Any], num_gpus: int) -> str:
    """The framework where none is named: the Trainer for adapters, PyTorch on one card; on several the Trainer for
    preferences too, Megatron where degrees leave FSDP nothing to divide, else FSDP2 of torchtitan.

    >>> default_engine({}, 1), default_engine({}, 8), default_engine({"peft": "lora"}, 1), default_engine({"tp": 8}, 8)
    ('pytorch', 'torchtitan', 'huggingface', 'megatron')
    """
    if "peft" in values:  # which nobody trains over fp32 weights, as a plain autocast loop would
        return "huggingface"
    if num_gpus == 1 and values.get("objective") not in ("kto", "rloo", "gkd"):
        return "pytorch"
    if values.get("objective", "pretrain") not in ("pretrain", "sft"):
        return "huggingface"
    split = values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1)
    return "megatron" if split == num_gpus and values.get("cp", 1) == 1 else "torchtitan"


def training_engine(text: str) -> tuple[str, Version | None]:
    """Engine and version of "huggingface@4.57"; None where it names no version.

    Raises: UnknownName for an engine, InvalidSpec for a version that is none, or older than those covered
    """
    name, at, version = text.partition("@")
    if name not in TRAINING:
        raise UnknownName.of("engine", name, TRAINING)
    known = TRAINING[name]
    if not at:
        return name, None
    return name, checkout(name, version) or check_version(name, version, oldest=known.oldest, newest=known.newest)


def calibration_of(path: str | None) -> Calibration | None:
    """The calibration of a file that the question names."""
    if path is None:
        return None
    from pathlib import Path

    return question.files.read_calibration(Path(path))


def market_of(values: Mapping[str, Any], table: Mapping[str, Option] = OPTIONS) -> Market:
    """How a question prices machines."""
    fields = section(values, "market", table)
    if "used" in values and "reserve" in values:
        raise InvalidSpec("--used and --reserve say the same; give one of them")
    if "used" in fields:
        fields["used"] = parse_bytes("used", fields["used"])
    if "currency" in fields:
        fields["currency"] = fields["currency"].upper()
    return Market(**fields)


def _refuse_repeated(given: Mapping[str, object]) -> None:
    if "zero" in given and "shards" in given:
        raise InvalidSpec("--zero and --shards say the same; give one of them")
    if "global-batch" in given and "grad-accum" in given:
        raise InvalidSpec("--global-batch sets the gradient accumulation; give it or --grad-accum")
    refuse_peft_details(given)


def refuse_peft_details(given: Mapping[str, object]) -> None:
    """Raise InvalidSpec for an option about adapters where there are none."""
    for name in PEFT_ONLY:
        if name in given and "peft" not in given:
            raise InvalidSpec("--{} needs --peft, for example --peft lora", name)


def section(values: Mapping[str, Any], name: str, table: Mapping[str, Option] = OPTIONS) -> dict[str, Any]:
    """The values that go to one noun, by its fields."""
    return {table[option].field: value for option, value in values.items() if table[option].section == name}


def peft_of(
    values: Mapping[str, Any], model: Model, engine: str, version: Version | None = None,
    table: Mapping[str, Option] = OPTIONS,
) -> tuple[Peft | None, tuple[str, ...]]:
    """What trains beside frozen weights, the user's words for weights as our paths, and what is said of those words.

    Raises: UnknownName for a word that names no weight
    """
    if "peft" not in values:
        return None, ()

    said: tuple[str, ...] = ()
    fields = section(values, "peft", table)
    if fields["method"] in WITHOUT_TARGETS:
        if "targets" in fields:
            raise InvalidSpec("--peft {} adapts no weights that exist; leave out --lora-targets", fields["method"])
    else:
        words, names = fields.get("targets"), families.module_names
        words = words if words is not None else names.usual_words(model, fields["method"], engine=engine)
        former = eager.releases.linear_experts(model.family, engine, version)
        fields["targets"], lacking = names.read_targets(
            model, words, engine=engine, version=version, former=former)
        if lacking:
            said = (Note(
                "no module of {} is called {}: PEFT passes over names that it lacks", model.name, ", ".join(lacking)
            ),)
    if fields.get("modules_to_save"):
        fields["modules_to_save"] = families.module_names.saved_modules(model, fields["modules_to_save"])
    return converted(Peft, fields), said


def _over_stored(
    peft: Peft | None, model: Model, values: Mapping[str, Any]
) -> tuple[Peft | None, tuple[str, ...]]:
    """The adapters over weights as the checkpoint has them packed, and what is said of that.

    Raises: Unsupported where all weights would learn that are packed, InvalidSpec where it is not known how
    """
    packed = model.quantisation
    if packed not in ("nf4", "int4") or "base-weights" in values:
        return peft, ()
    if peft is not None and packed == "int4":
        raise InvalidSpec(
            "{} stores its weights in int4: give --base-weights gptq-int4 or awq-int4, or full where they are loaded "
            "in 16 bits", model.name
        )
    if packed == "int4":
        return peft, ()
    if peft is None:
        raise Unsupported(
            "{} stores its weights in nf4, beside which adapters alone learn; give --peft lora, or name the network "
            "that it is a copy of", model.name
        )
    return replace(peft, base="nf4"), (Note("the frozen weights are in nf4, as {} stores them", model.name),)


def _plan(values: Mapping[str, Any], engine: str, cluster: Cluster) -> Plan:
    usual = TRAINING[engine]
    fields: dict[str, Any] = {"precision": usual.precision, "shards": usual.shards, **section(values, "plan")}
    fields["precision"] = PURE.get(fields["precision"], fields["precision"])
    if "precision" not in values and not cluster.gpu.has_bf16 and usual.in_fp16 is not None:
        fields["precision"] = usual.in_fp16
    plan = converted(Plan, fields)
    if plan.data_parallel(cluster.count) * plan.cp == 1 and not {"shards", "zero"} & set(values):
        plan = converted(Plan, {**fields, "shards": Shards.NOTHING})  # nobody to split with
    return plan


def _workload(values: Mapping[str, Any], plan: Plan, num_gpus: int) -> Workload:
    fields = section(values, "workload")
    workload = converted(Workload, fields)
    if "global-batch" not in values:
        return workload
    per_step = plan.data_parallel(num_gpus) * workload.micro_batch
    batch = require_count("global-batch", values["global-batch"])
    if batch % per_step:
        raise InvalidSpec(
            "global-batch={} is not a multiple of {} = data-parallel ranks x micro-batch; use {}",
            batch, per_step, max(per_step, batch // per_step * per_step)
        )
    return converted(Workload, {**fields, "grad_accum": batch // per_step})


def converted(noun: type[NounT], fields: dict[str, Any]) -> NounT:
    """The noun with text turned into its enumerations."""
    try:
        return msgspec.convert(fields, noun, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSpec(str(error)) from None


def engine_options(pairs: tuple[str, ...]) -> dict[str, str | int | float | bool]:
    """`key=value` pairs with numbers and truth values read as such.

    Pairs stand behind commas, too, and so may the parts of a value.

    >>> engine_options(("tensor-split=3", "1", "kv-unified=true"))
    {'tensor-split': '3,1', 'kv-unified': True}
    """
    texts: dict[str, str] = {}
    key = ""
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name if equals else not key:
            raise InvalidSpec("engine-option={!r} must be written key=value", pair[:80])
        key = name if equals else key
        texts[key] = text if equals else f"{texts[key]},{pair}"
    return {name: _plain(text) for name, text in texts.items()}


def _plain(text: str) -> str | int | bool:
    words = {"true": True, "false": False}
    return words[text] if text in words else int(text) if text.isdecimal() and len(text) < 18 else text


def checkpoint_of(
    name: object, values: Mapping[str, Any], resolve: Resolve, table: Mapping[str, Option], *, divisor: int = 1
) -> Checkpoint:
    """The network that a question names, or describes by numbers; cut to fewer layers its headers say nothing.

    Args:
        divisor: ranks that share a layer, of the widths that the numbers leave open
    """
    numbers = section(values, "model", table)
    if name is None:
        if "params" not in numbers:
            raise InvalidSpec("which model? name one, or give --params, --layers and --hidden")

        return Checkpoint(model=sources.numbers.model_from_numbers(**numbers, divisor=divisor))
    layers = numbers.pop("layers", None)
    if numbers:
        other = next(option for option in MODEL_OPTIONS if table[option].field in numbers)
        raise InvalidSpec(
            "--{} describes a model by numbers; leave out the model {!r} or --{}", other, str(name)[:60], other
        )
    checkpoint = resolve(str(name))
    if layers is None:
        return checkpoint
    return Checkpoint(model=cut_to_layers(checkpoint.model, require_count("layers", layers)))


def cut_to_layers(model: Model, layers: int) -> Model:
    """The model with only the first `layers` layers of its main stack."""
    if layers > model.num_layers:
        raise InvalidSpec("layers={}: {} has {}; use at most that many", layers, model.name, model.num_layers)
    runs: list[Run] = []
    left = layers
    for run in model.main.runs:
        if left:
            runs.append(Run(count=min(run.count, left), layer=run.layer))
            left -= runs[-1].count
    stacks = (*model.stacks[:-1], replace(model.main, runs=tuple(runs)))
    return replace(model, stacks=stacks, name=f"{model.name} cut to {layers} layers")


ITSELF: Final = "itself"

PROJECTOR, EMBEDDING, HEAD, BACKBONE = "projector", "embedding", "head", "backbone"
TOWERS, PROJECTORS, LAYERS = "towers", "projectors", "layers"

WORDS: Final[dict[str, str]] = {
    **dict.fromkeys(("vision_tower", "vision_model", "vision_encoder", "visual", "vit", "image_encoder"), "vision"),
    **dict.fromkeys(("multi_modal_projector", "mm_projector", "aligner", "merger", "connector"), PROJECTOR),
    **dict.fromkeys(("language_model", "llm", "text_model", "lm"), "main"),
    **dict.fromkeys(("feature_encoder", "audio_tower", "audio_encoder"), "encoder"),
    **dict.fromkeys(("base_model", "body", "feature_extractor"), BACKBONE),
    **dict.fromkeys(("classifier", "lm_head", "score"), HEAD), "embed_tokens": EMBEDDING,
}
"""Words of trainers and of model code -> ours; "main" is the stack that reads the tokens."""


def with_frozen_parts(model: Model, plan: Plan) -> Plan:
    """The plan with the parts that its words mean: beside adapters all else is frozen anyway.

    Raises: as `frozen_parts` and `adapted_elsewhere`
    """
    if not plan.freeze:
        return plan
    parts, peft = frozen_parts(model, plan.freeze), plan.peft
    if peft is None:
        return replace(plan, freeze=parts)
    if parts and peft.method not in WITHOUT_TARGETS:
        peft = adapted_elsewhere(model, peft, parts)
    return replace(plan, freeze=(), peft=peft)


def frozen_parts(model: Model, words: Iterable[str]) -> tuple[str, ...]:
    """The parts that words mean: stacks with what goes with them, "projector", "embedding", "head".

    Raises: UnknownName for a word that names no part of the model, InvalidSpec where nothing would learn
    """
    stacks, found = [stack.name for stack in model.stacks], dict[str, None]()
    every = list(dict.fromkeys(eager.recipe.part_of(owned.owner, owned.parameter.path)
                               for owned in named_parameters(model)))
    writes = model.head in (Head.LM, Head.MLM)
    towers = [stack.name for stack in model.stacks[:-1] if stack.vision is not None]
    for word in words:
        if word in (TOWERS, PROJECTORS):  # what a trainer freezes of any network, if it is there
            found |= dict.fromkeys(part for part in every if part in (towers if word == TOWERS else (PROJECTOR,)))
            continue
        if word == LAYERS:  # those that read the tokens, with the norm behind them: embedding and head learn
            found[model.main.name] = None
            continue
        name = WORDS.get(word.lower().replace("-", "_").rpartition(".")[2], word.lower().replace("-", "_"))
        name = model.main.name if name == "main" else name
        if name == BACKBONE:
            found |= dict.fromkeys(part for part in every if part != HEAD)
        elif name not in every:
            raise UnknownName.of(Note("part of {}", model.name), word, (*every, BACKBONE))
        elif name == model.main.name:
            found |= dict.fromkeys((name, *(part for part in (EMBEDDING, HEAD) if part in every and (
                part == EMBEDDING or writes))))
        else:
            found[name] = None
    if stacks and set(every) <= set(found):
        raise InvalidSpec("freeze={} leaves nothing of {} that learns; leave a part out", ",".join(found), model.name)
    return tuple(part for part in every if part in found)


def adapted_elsewhere(model: Model, peft: Peft, frozen: Iterable[str]) -> Peft:
    """The adapters outside of frozen parts: beside adapters all else is frozen anyway.

    Raises: InvalidSpec where none is left
    """
    without = set(frozen)
    kept: list[str] = []
    for place in places_of(model, peft.targets):
        kept += map(word_of, _outside(model, place, without))
    if not kept:
        raise InvalidSpec(
            "freeze={} leaves no weight that --peft {} adapts; leave a part out", ",".join(without), peft.method
        )
    return replace(peft, targets=tuple(dict.fromkeys(kept)))


def _outside(model: Model, place: Place, without: set[str]) -> Iterable[Place]:
    if place.stack:
        return () if eager.recipe.part_of(place.stack, place.path) in without else (place,)
    there = [stack.name for stack in model.stacks if has(tuple(paths_within(stack)), place.path)]
    if not there or without.isdisjoint(there):
        return (place,)
    return tuple(replace(place, stack=name) for name in there if name not in without)
