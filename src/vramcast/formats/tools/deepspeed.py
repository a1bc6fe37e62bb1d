"""DeepSpeed's JSON [deepspeed runtime/config.py, runtime/zero/config.py]."""


from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import presets
from vramcast.domain.job import Job, Shards
from vramcast.engines.deepspeed import settings as zero_settings
from vramcast.engines.eager.releases import ZERO_OPTIONS, runs_deepspeed
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import File, Order, Part
from vramcast.formats.lines import Line, Table, plain, reasons
from vramcast.formats.reading import Config, Reading, shown, together, written
from vramcast.formats.watched import Known, Watched
from vramcast.lazy import lazy_pattern
from vramcast.question.options import ZERO

CONFIG: Final = Known("deepspeed", "config")
ZERO_TABLE: Final = Known("deepspeed", "zero_optimization")

OPTIMIZERS: Final = {
    "AdamW": "adamw", "Adam": "adam", "FusedAdam": "adamw", "DeepSpeedCPUAdam": "adamw", "Lion": "lion",
    "Lamb": "lamb", "Adagrad": "adagrad", "Muon": "muon", "SGD": "sgd", "OneBitAdam": "onebit-adam",
    "ZeroOneAdam": "zero-one-adam", "OneBitLamb": "onebit-lamb",
}
"""`type` as DeepSpeed's documents write it -> ours; any case is taken. Its Adam is AdamW unless `adam_w_mode` is false
[deepspeed runtime/engine.py `_configure_basic_optimizer`]."""

BUFFERS: Final = (
    "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "sub_group_size",
    "stage3_max_reuse_distance",
)
"""Sizes of `zero_optimization` that matter for memory [elements]; "auto" leaves them to the Trainer."""

OF_STAGE_3: Final = ("stage3_", "sub_group_size", "memory_efficient_linear", "zero_hpz_", "zero_quantized_w",
                     "zero_quantized_n", "leaf_module")
"""How names of `zero_optimization` begin that say nothing below stage 3 [deepspeed runtime/zero/stage3.py]."""

SWITCHED: Final = (
    "autotuning", "data_efficiency", "flops_profiler", "hybrid_engine", "torch_autocast", "weight_quantization", "amp",
    "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "nebula", "progressive_layer_drop",
    "quantize_training", "sparse_attention", "zenflow", "compile",
)
"""Tables that say nothing where their "enabled" is false."""


PARAMS: Final = Known("deepspeed", "optimizer_params")

BATCH: Final = {
    "global": "train_batch_size", "micro": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}

PLACES: Final = {"cpu": "cpu", "nvme": "nvme", "none": None}

OFFLOADED: Final = {"offload_optimizer": "offload-optimizer", "offload_param": "offload-parameters"}
"""Table of `zero_optimization` -> the option of what waits off the GPU."""

WIDTHS: Final = {"bf16": "mixed-bf16", "fp16": "mixed-fp16"}
"""Table of a width of 16 bits -> the recipe, with an fp32 copy unless that is narrow too."""

FILLED_IN: Final = (
    (BATCH["micro"], "micro-batch", 8), ("bf16.enabled", "precision", "fp32"), ("fp16.enabled", "precision", "fp32"),
)
"""What is "auto", the option that it is, and what that is where the Trainer's arguments say nothing
[transformers training_args.py `per_device_train_batch_size`, `bf16`, `fp16`]."""

BUCKET: Final = 500_000_000
"""`reduce_bucket_size` where nobody says it [elements]."""


LLAMAFACTORY: Final = presets("llamafactory", "deepspeed")
OF_LLAMAFACTORY: Final = lazy_pattern(
    rf"(?:.*/)?(examples/deepspeed|(?:llamaboard_)?cache)/({'|'.join(map(re.escape, LLAMAFACTORY))})")
"""`zero_optimization` of the files that come with LLaMA-Factory, and where they lie there; its page writes them into a
cache, with overlapping exchanges [LLaMA-Factory src/llamafactory/webui/common.py `create_ds_config`]."""


def filled(zero_optimization: Mapping[str, Any]) -> dict[str, Any]:
    """A file whose batch and precision the Trainer fills in, as those are that come with other tools."""
    return {"zero_optimization": dict(zero_optimization), "bf16": {"enabled": "auto"},
            "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


def of_llamafactory(path: str) -> tuple[dict[str, Any], str] | None:
    """A file that comes with LLaMA-Factory or that its page wrote, and a line that says so; None for others."""
    match = OF_LLAMAFACTORY.fullmatch(path)
    if match is None:
        return None
    overlaps = {} if match[1].startswith("examples") else {"overlap_comm": True}
    return filled(LLAMAFACTORY[match[2]] | overlaps), Note("deepspeed: {} as it comes with LLaMA-Factory", match[2])



def read(config: Config) -> Reading:
    """The options of the file."""
    values = Watched(_by_full_names(config.table or {}), CONFIG)
    zero = values.section("zero_optimization", ZERO_TABLE)
    precision = _precision(values)
    options: dict[str, Any] = {"engine": "deepspeed"} | _stage(zero)
    options |= _offload(zero) if options.get("zero") != "0" else {}
    open_precision = not {"bf16", "fp16", "bfloat16"} & set(config.table or {})
    options |= {} if open_precision else precision
    options = together(options, _optimizer(values), _buffers(values, zero, whole=options.get("zero") == "0"))
    batch = {kind: size for kind, name in BATCH.items() if (size := values.count(name)) is not None}
    options = together(options, _autocast(values, str(precision.get("precision", ""))))
    notes = [*_of_other_models(values), *_contiguous(zero, options)]
    switched(values)
    if not batch and not values.left_open():
        values.cannot(BATCH["micro"], "is not given, nor is train_batch_size; add one, or --micro-batch",
                      option="micro-batch")
    filled, said = _auto(values, precision)
    weak = {"grad-accum": 1} if BATCH["accumulation"] in values.left_open() else {}  # as Transformers has it
    weak |= precision if open_precision else {}  # Accelerate puts in what its own file or the Trainer's says
    return Reading("deepspeed", options, filled | weak, batch, tuple(values.unread()), tuple(notes), filled=said)


def _by_full_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Names of stage 3 with what stands before them, which DeepSpeed takes either way."""
    zero = given.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return dict(given)
    full = {name: f"stage3_{name}" for name in zero
            if ZERO_TABLE.entry(name) is None and ZERO_TABLE.entry(f"stage3_{name}") is not None}
    return {**given, "zero_optimization": {full.get(name, name): value for name, value in zero.items()}}


def _stage(zero: Watched) -> dict[str, Any]:
    stage = zero.get("stage", 0)
    if str(stage) not in ("0", "1", "2", "3"):
        zero.refuse("stage", "0, 1, 2 or 3", option="zero")
        return {}
    if int(stage) < 3:
        for name in zero:
            if name.startswith(OF_STAGE_3):
                zero.get(name)
    if int(stage) == 0:
        zero.ignore("*")  # buckets and offloading are ZeRO's
    return {"zero": str(stage)}


def _optimizer(values: Watched) -> dict[str, Any]:
    section = values.section("optimizer", Known("deepspeed", "optimizer"))
    known = {name.lower(): optimizer for name, optimizer in OPTIMIZERS.items()}
    named = section.one_of("type", known, lower=True, option="optimizer")
    params = section.section("params", PARAMS)
    if named == "adam" and params.flag("adam_w_mode") is not False:
        named = "adamw"
    # PyTorch's own step takes a list of tensors beside the states
    own = {"engine-option": ("torch_adam=true",)} if params.flag("torch_adam") else {}
    return ({"optimizer": named} if named else {}) | own


def _buffers(values: Watched, zero: Watched, *, whole: bool) -> dict[str, Any]:
    """Sizes and switches that the engine takes; those of ZeRO say nothing of a run without it."""
    if whole:
        zero = Watched({})
    sizes = ["zero=false"] if whole else []
    sizes += [f"{name}={size}" for name in BUFFERS if (size := zero.whole(name)) is not None]
    sizes += [f"{name}=auto" for name in BUFFERS if name in zero.auto]
    if (overlaps := zero.flag("overlap_comm")) is not None:
        sizes.append(f"overlap_comm={str(overlaps).lower()}")
    widths = values.section("data_types")
    if widths.get("grad_accum_dtype") == "fp32":
        sizes.append("grad_accum_dtype=fp32")
    elif "grad_accum_dtype" in widths and widths.get("grad_accum_dtype") != "auto":
        widths.refuse("grad_accum_dtype", "fp32")
    return {"engine-option": tuple(sizes)} if sizes else {}


def switched(values: Watched) -> None:
    """Tables that are switched off say nothing."""
    for name in SWITCHED:
        inner = dict.get(values, name)
        if isinstance(inner, Mapping) and inner.get("enabled", None) is False:
            values.get(name)


def _auto(values: Watched, precision: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the Trainer fills in where its arguments are not given beside, and a sentence for each."""
    left = values.left_open()
    found = {option: (name, value) for name, option, value in FILLED_IN if name in left and option not in precision}
    said: dict[str, str] = {
        option: Note(
            "{} is auto, which the Trainer fills in: --{} {} where its arguments are not read beside",
            name, option, value
        ) for option, (name, value) in found.items()
    }
    return {option: value for option, (_, value) in found.items()}, said


def _of_other_models(values: Watched) -> Iterator[str]:
    """What only code reads that calls deepspeed.checkpointing, which Transformers' networks do not."""
    section = values.section("activation_checkpointing")
    asked = [name for name in section if section.get(name)]
    if asked:
        yield "activation_checkpointing is passed over: Transformers' networks do not call deepspeed.checkpointing"


def _contiguous(zero: Watched, options: dict[str, Any]) -> Iterator[str]:
    """Without a buffer gradients wait for their bucket to fill, and are laid end to end beside it
    [deepspeed runtime/zero/stage_1_and_2.py `reduce_independent_p_g_buckets_and_remove_grads`, stage3.py
    `__add_grad_to_ipg_bucket`]."""
    if zero.flag("contiguous_gradients") is False and options.get("zero") != "0":
        size = zero.whole("reduce_bucket_size") or BUCKET
        doubled = "overlap_comm=true" if options["zero"] != "3" else f"reduce_bucket_size={2 * size}"
        options["engine-option"] = (*options.get("engine-option", ()), doubled)
        yield "contiguous_gradients is false: a bucket of gradients is counted twice, as they come and end to end"


def _offload(zero: Watched) -> dict[str, Any]:
    found = {}
    for name, option in OFFLOADED.items():
        section = zero.section(name, Known("deepspeed", name))
        device = section.one_of("device", PLACES, option=option)
        if device is None:
            section.ignore("*")  # of a device that is none
        else:
            found[option] = device
    if zero.flag("cpu_offload"):
        found["offload-optimizer"] = "cpu"
    return found


def _precision(values: Watched) -> dict[str, Any]:
    """bf16 and fp16 keep an fp32 copy, unless masters are narrow, too; with neither DeepSpeed runs in fp32; "auto" is
    the Trainer's."""
    open_, found = False, ""
    values |= {"bf16": values.get("bfloat16")} if "bfloat16" in values and "bf16" not in values else {}
    for name, precision in WIDTHS.items():
        section = values.section(name, Known("deepspeed", name))
        if section.flag("enabled"):
            found = found or (f"pure-{name}" if _narrow(section, name) else precision)
        elif not section.auto:
            section.ignore("*")  # switched off
        open_ = open_ or bool(section.auto)
    return {"precision": found} if found else {} if open_ else {"precision": "fp32"}


def _autocast(values: Watched, precision: str) -> dict[str, Any]:
    """torch.autocast over weights of the same 16 bits [deepspeed runtime/torch_autocast.py]."""
    section = values.section("torch_autocast")
    if not section.flag("enabled"):
        return {}
    dtype = str(section.get("dtype", "bfloat16")).removeprefix("torch.")
    if not precision.endswith({"bfloat16": "-bf16", "float16": "-fp16"}.get(dtype, " ")):
        why = Note("to {} is not modelled but over weights of that type", shown(dtype))
        values.cannot("torch_autocast", why, option="precision")
    return {"engine-option": ("torch_autocast=true",)}


def _narrow(section: Watched, name: str) -> bool:
    """Whether masters, gradients and states have 16 bits [deepspeed runtime/precision_config.py]."""
    if not section.flag(f"{name}_master_weights_and_grads"):
        section.get("bf16_optimizer_states")
        return False
    if name == "bf16" and not section.flag("bf16_optimizer_states"):
        section.cannot("bf16_master_weights_and_grads", "without bf16_optimizer_states is not modelled",
                       option="precision")
    return True


NAME: Final = "ds_config.json"

STAGES: Final = {shards: max(1, int(stage)) for stage, shards in ZERO.items()}
"""The engine computes stage 1 where the plan splits nothing: with one rank it is the same."""

OWN_OPTIMIZERS: Final = {ours: name for ours, name in written(OPTIMIZERS).items() if name != "SGD"}
"""DeepSpeed's own; others come from the training script, PyTorch's too."""

LEARNING_RATE: Final = 1e-5
"""Not part of a memory plan; stands in every file so that they agree [1]."""

SIXTEEN_BITS: Final = {
    recipe: width for width, mixed in WIDTHS.items() for recipe in (f"amp-{width}", mixed, width)
}

NVME: Final = "/local_nvme"


def write(order: Order) -> tuple[File, ...]:
    """The one file; none where the plan runs without DeepSpeed.

    Raises: Unsupported for what DeepSpeed's ZeRO does not have
    """
    if not runs_deepspeed(order.job):
        return ()
    if order.job.plan.shards is Shards.NOTHING and order.job.data_parallel > 1:
        raise Unsupported("DeepSpeed's file is written for --zero 1, 2 and 3, not for --zero 0 on several cards")
    table = (*_batch(order), *_precision_lines(order), _zero(order), *_optimizer_lines(order), *_rest(order))
    text = json.dumps(plain(table), indent=2) + "\n"
    order.ask.also("optimizer_kernel", "sharded_by")  # DeepSpeed's own fused step, whatever is asked
    notes = _notes(order)
    return (order.file(NAME, text, (Part("deepspeed", "config"),), notes, reasons=tuple(reasons(table))),)


def _batch(order: Order) -> Table:
    ask, ranks = order.ask, order.job.data_parallel
    micro, steps = ask("micro_batch"), ask("grad_accum")
    return (
        Line(BATCH["global"], micro * steps * ranks, f"{micro} samples x {steps} micro-batches x {ranks} ranks"),
        Line(BATCH["micro"], micro, "samples per forward on one GPU"),
        Line(BATCH["accumulation"], steps, "micro-batches per optimizer step"),
    )


def _precision_lines(order: Order) -> Table:
    precision = order.job.plan.precision
    if precision in ("fp64", "fp8"):
        raise Unsupported("DeepSpeed has no precision {}; use mixed-bf16", precision)
    width = SIXTEEN_BITS.get(precision)
    if precision != "tf32":  # which is PyTorch's own switch
        order.ask("precision")
    if width is None:
        return ()
    why = Note("{}: {} weights and activations, an fp32 copy in the optimizer", precision, width)
    if precision != width:
        return (Line(width, (Line("enabled", True, why),)),)
    lines = [Line("enabled", True, f"{width} weights and activations"),
             Line(f"{width}_master_weights_and_grads", True, f"{precision}: no fp32 copy")]
    if width == "bf16":
        lines.append(Line("bf16_optimizer_states", True, "moments in bf16, too"))
    return (Line(width, tuple(lines)),)


def _zero(order: Order) -> Line:
    job: Job = order.job
    ask = order.ask
    stage = STAGES[Shards(ask("shards"))]
    if job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1:
        raise Unsupported("a DeepSpeed configuration splits over data-parallel ranks only; use tp=pp=cp=ep=1")
    options = {name.removeprefix("option.") for name in ask.settings if name.startswith("option.")}
    for name in options & {*ZERO_OPTIONS, "deepspeed"}:
        ask(f"option.{name}")
    zero = zero_settings(job, 2)
    if zero.shards is Shards.NOTHING:
        return Line("zero_optimization", (Line("stage", 0, "nothing is split"),))
    lines = [
        Line("stage", stage, _stage_reason(stage, job)),
        Line("overlap_comm", zero.overlap, "gradients travel while backward runs; two buckets instead of one"),
        Line("contiguous_gradients", True, "gradients are copied into one buffer as they come"),
        Line("reduce_bucket_size", zero.reduce_bucket, "elements reduced at once: a buffer of that size"),
    ]
    if stage == 3:
        lines += _stage3(zero)
    lines += _offload_lines(order, stage)
    return Line("zero_optimization", tuple(lines))


def _stage_reason(stage: int, job: Job) -> str:
    split = {1: "optimizer states", 2: "optimizer states and gradients", 3: "states, gradients and weights"}[stage]
    return f"{split} are split over {job.data_parallel} ranks"


def _stage3(zero: Any) -> list[Line]:
    return [
        Line("stage3_prefetch_bucket_size", zero.prefetch_bucket, "elements gathered ahead of their use"),
        Line("stage3_param_persistence_threshold", zero.persistence, "smaller weights stay whole on every GPU"),
        Line("stage3_max_live_parameters", 1_000_000_000, "elements gathered at most"),
        Line("stage3_max_reuse_distance", zero.reuse_distance, "what is used again so soon stays gathered"),
        Line("sub_group_size", zero.sub_group, "elements stepped at once"),
        Line("stage3_gather_16bit_weights_on_model_save", True, "a checkpoint that other tools can load"),
    ]


def _offload_lines(order: Order, stage: int) -> list[Line]:
    ask, found = order.ask, []
    for name, option in OFFLOADED.items():
        device = ask(option.replace("-", "_"))
        if device == "none":
            continue
        if name == "offload_param" and stage != 3:
            raise Unsupported("DeepSpeed offloads parameters with ZeRO 3 only; add --zero 3")
        if device == "nvme" and stage != 3:
            raise Unsupported("DeepSpeed offloads to disks with ZeRO 3 only; add --zero 3, or offload to cpu")
        lines = [Line("device", device, f"the plan keeps them on the {'host' if device == 'cpu' else 'local disks'}")]
        if device == "nvme":
            lines.append(Line("nvme_path", NVME, "where the local disks are mounted"))
        lines.append(Line("pin_memory", True, "copies run beside the kernels"))
        found.append(Line(name, tuple(lines)))
    return found


def _optimizer_lines(order: Order) -> Table:
    name = order.job.plan.optimizer
    if name not in OWN_OPTIMIZERS:
        why = f"{name} is built by the training script, not by DeepSpeed"
        return (
            Line("zero_allow_untested_optimizer", True, why),
            Line("zero_force_ds_cpu_optimizer", False, why),
        )
    order.ask("optimizer")
    params: Table = (Line("lr", LEARNING_RATE, "not part of the plan: set your own, also in training_args.yaml"),)
    if name == "adam":
        params = (*params, Line("adam_w_mode", False, "without it DeepSpeed's Adam is AdamW"))
    return (Line("optimizer", (Line("type", OWN_OPTIMIZERS[name], "as planned"), Line("params", params))),)


def _rest(order: Order) -> Table:
    if order.ask.settings.get("option.grad_accum_dtype") != "fp32":
        return ()
    return (Line("data_types", (Line("grad_accum_dtype", "fp32", "gradients add up in fp32"),)),)


def _notes(order: Order) -> tuple[str, ...]:
    precision = order.job.plan.precision
    if precision not in ("amp-bf16", "amp-fp16"):
        return ()
    return (Note(
        "{}: with --precision {} DeepSpeed keeps an fp32 copy too; so the plan was computed", NAME, precision
    ),)
