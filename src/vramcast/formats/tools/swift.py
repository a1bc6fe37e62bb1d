"""ms-swift: `swift sft`, `swift pt` and `swift rlhf` as commands, and the YAML of their `--config`.

[swift] modelscope/ms-swift 4.6.0.dev0 (3602360a5) swift/arguments, swift/trainers/{arguments,mixin}.py,
swift/pipelines/train/tuner.py, swift/config/*.json
[swift 1.5] modelscope/ms-swift 97e4d198b swift/llm/utils/argument.py `SftArguments`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from vramcast.catalogue.formats import presets
from vramcast.errors import Note
from vramcast.formats.reading import (
    ELSEWHERE,
    Command,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    engine_options,
    lengths_of,
    listed,
    modules_of,
    shown,
    together,
    under_the_trainer,
    without_none,
)
from vramcast.formats.table import Row, read_options
from vramcast.formats.tools import deepspeed, hf_command
from vramcast.formats.tools.llamafactory import QUANTISED, STORED, liger_of_stage
from vramcast.formats.tools.swift_former import (
    BEHIND,
    DTYPES,
    HEADLESS,
    OWN_HEAD,
    RATED,
    TASKS,
    is_former,
    of_a_file,
    read_former,
    taught,
    texts_of,
    types_of,
)
from vramcast.formats.tools.transformers import ARGUMENTS, LISA, arguments_of, liger_of
from vramcast.formats.tools.trl import generation_of
from vramcast.formats.unread import options_of_environment, ranks_of, unread_environment
from vramcast.formats.watched import Known, Watched
from vramcast.units import ceil_div

SWIFT: Final = Known("swift", "arguments", (ARGUMENTS,))

ENGINE: Final = "huggingface@5.16"
"""The newest transformers that this release allows [swift requirements/framework.txt]."""

COMMANDS: Final = ("sft", "pt", "rlhf")

OBJECTIVES: Final = {"dpo": "dpo", "grpo": "grpo", "rm": "reward", "kto": "kto", "gkd": "gkd", **dict.fromkeys(
    ("orpo", "cpo", "simpo"), "dpo")}
"""`rlhf_type` -> what is optimised; the last three ask no reference."""

ALONE: Final = ("precompute_ref_log_probs=true", "log_probs=rows+nll")
"""What they do instead: a cross entropy of the chosen answers beside the log-probabilities of both [swift
rlhf_trainers/{cpo,orpo}_trainer.py, which are TRL's]."""

PREFERENCES: Final = {"dpo": ("log_probs=rows",), "kto": ("log_probs=rows",), **dict.fromkeys(
    ("orpo", "cpo", "simpo"), ALONE)}
"""`rlhf_type` -> how its trainer makes the loss [swift rlhf_trainers/{dpo,kto}_trainer.py, rlhf_mixin.py]."""

TRL: Final = "trl=0.29"
"""The newest that this release allows [swift requirements/framework.txt]."""

USUAL: Final = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
"""Of Transformers' arguments, where ms-swift has others than that [swift trainers/arguments.py]."""

SAMPLES: Final = 16
"""Samples of a step that gradient_accumulation_steps is made from where nobody says it."""

KERNELS: Final = {
    "flash_attn": "flash", "flash_attention_2": "flash", "flash_attention_3": "flash", "flash_attention_4": "flash",
    "sdpa": None, "flex_attention": "flash", "eager": "eager",
}
"""`attn_impl` -> kernel; None: as PyTorch chooses."""

DEEPSPEED: Final = presets("swift", "deepspeed")
"""`zero_optimization` of the files that come with ms-swift, by the names that stand for them."""

FROZEN: Final = {"freeze_vit": ("towers", True), "freeze_aligner": ("projectors", True),
                 "freeze_llm": ("language_model", False)}
"""Switch -> the part that does not learn where all weights are trained, and whether it is on unasked [swift
arguments/tuner_args.py, model/model_arch.py]."""
UNPACKED: Final = "quant_bits: nothing is packed without quant_method"

IN_PIECES: Final = ("CELOSS_PARALLEL_SIZE: the loss is counted in one piece; in pieces it keeps less: that is an "
                    "upper bound")
"""Of samples that ranks share alone [swift trainers/utils.py `per_token_loss_func_sp`]."""

LEARNING_TOWERS: Final = Unread("freeze_vit", "false adapts towers that see or hear; give --lora-targets",
                                option="lora-targets", of_towers=True)


def read(config: Config) -> Reading:
    """What a command trains."""
    command = Command(()) if config.table is not None else command_of(config, _score)
    kind, words = _of_command(command.words)
    asked = of_a_file(words, "swift")
    table = dict(config.table) if config.table is not None else {} if asked else arguments(words)
    if is_former(table):
        former = read_former(table)
        spread = processes(command, None) is None and not _sees_one(command) and "deepspeed" not in table
        return with_environment(former._replace(device_map=spread), command)
    values = Watched(USUAL | table | dict(config.beside), SWIFT, undecided=command.undecided)
    values.get("config")
    launch = hf_command.taken_apart(command.words)
    started = hf_command.launching(launch, command) if launch.launcher else None
    of_ray = _of_ray(values)
    several = processes(command, started) or of_ray
    if asked and not config.beside:
        spread = several is None and not _sees_one(command)
        objective = {"objective": "pretrain"} if kind == "pt" else {}
        return with_environment(Reading("swift", objective, unread=asked, device_map=spread), command, started)
    sharded, wide = _sharding(values, config.name)
    options = together(
        {"engine": ENGINE}, _task(values, kind), _network(values), _adapters(values), _attention(values),
        _precision(values, sharded=bool(sharded)), _recompute(values, several=several, sharded=bool(sharded)),
        _kernels(values), _optimizer(values),
    )
    batch, rest, notes = _batch(values, config.name, several)
    texts, said = texts_of(str(values.get("task_type")), command.variables)
    batch = {name: count * (1 if name == "accumulation" else texts) for name, count in batch.items()}
    options = together(options, rest, sharded, frozen(values, options))
    if values.get("tuner_backend") == "unsloth":
        pairs = tuple(pair for pair in options.get("engine-option", ()) if pair.startswith("reentrant="))
        options |= {"engine": "unsloth", "engine-option": pairs}
    auto = {} if "seq-len" in options else {"seq-len": "says no length of the samples"}
    rollout = _rollout(values) if options.get("objective") == "grpo" else {}
    left = (*learning_towers(values, options), *((OWN_HEAD,) if values.get("task_type") in HEADLESS else ()))
    behind = (one for one in asked if one.why is BEHIND)
    if values.get("tuner_type") == "full" and values.whole("lisa_activated_layers"):
        notes.append(Note(LISA, "lisa_activated_layers"))
    values.ignore("lisa_step_interval")
    if values.get("quant_bits") is not None and "base-weights" not in options and "peft" in options:
        notes.append(UNPACKED)
    unread = (*values.unread(), *behind, *wide, *left, *(started.unread if started else ()))
    if "cp" in options and command.variables.get("CELOSS_PARALLEL_SIZE", "0") != "0":
        notes.append(IN_PIECES)
    alone = several is None and (options["engine"] == "unsloth" or _sees_one(command))
    spread = several is None and not alone and not sharded  # [swift llm/utils/model.py `get_default_device_map`]
    found = with_environment(Reading("swift", options, {}, batch, unread, (*command.notes, *notes, *said), auto,
                                     alone=alone, device_map=spread, rollout=rollout), command, started)
    return found if of_ray is None else found._replace(ranks=of_ray)


def _of_ray(values: Watched) -> int | None:
    """Processes that Ray starts, of one group [swift ray_utils/base.py]; a table, or its text in a command."""
    if not values.flag("use_ray"):
        return None
    groups = values.section("device_groups")
    groups.ignore("*")
    return groups.count("nproc_per_node")


def files_of(config: Config) -> list[str]:
    """The file that a command's arguments stand in."""
    return [one.name for one in of_a_file(_of_command(command_of(config, _score).words)[1], "swift")[:1]]


def _score(words: tuple[str, ...]) -> int:
    """How much of a command is ms-swift's: the first that trains."""
    return int(_of_command(words)[0] != "")


def _of_command(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """`sft`, `pt` or `rlhf`, and what stands behind it."""
    for place, (program, kind) in enumerate(pairwise(words)):
        name = program.rpartition("/")[2]
        if name == "swift" and kind in COMMANDS:
            return kind, words[place + 2 :]
        if name in ("sft.py", "pt.py", "rlhf.py") and "swift/cli" in program:
            return name.removesuffix(".py"), words[place + 1 :]
    return "", ()


def with_environment(found: Reading, command: Command, started: Reading | None = None) -> Reading:
    """The reading with what variables before the command say, and a launcher that starts it."""
    variables = command.variables
    cards = [card for card in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]
    several, alone = processes(command, started), 1 if cards and started is None else None
    if several is None and found.device_map and cards:
        alone = len(cards)
    unread = (*found.unread, *command.unread, *unread_environment(variables))
    options = found.options | options_of_environment(variables)
    nodes = started.nodes if started is not None else _count(variables, "NNODES") or 1
    return found._replace(options=options, unread=unread, ranks=several or alone, nodes=nodes)


def processes(command: Command, started: Reading | None) -> int | None:
    """As many as a launcher starts, or NPROC_PER_NODE says [swift cli/main.py `get_torchrun_args`]."""
    if started is not None and started.ranks:
        return started.ranks
    each = _count(command.variables, "NPROC_PER_NODE")
    return None if each is None else ranks_of(each, _count(command.variables, "NNODES"), {})


def _sees_one(command: Command) -> bool:
    """Whether the command runs on one card, whatever the machine has."""
    return len([card for card in command.variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]) == 1


def _count(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None


def _task(values: Watched, kind: str) -> dict[str, Any]:
    if values.one_of("task_type", TASKS, option="objective") == "classification":
        values.ignore("num_labels", "problem_type")
        if values.get("loss_type") not in (None, *RATED):
            values.cannot("loss_type")
        return {"objective": "classification"} | lengths_of(packed=False)
    if kind != "rlhf" and "rlhf_type" not in values:
        return {"objective": "pretrain" if kind == "pt" else "sft"} | lengths_of(packed=values.flag("packing"))
    given = values.get("rlhf_type", "dpo")
    if given not in OBJECTIVES:
        values.cannot("rlhf_type", "{} is not one of {}", shown(given), ", ".join(OBJECTIVES), option="objective")
        return {}
    if given in ("cpo", "simpo") and values.number("cpo_alpha") == 0:
        values.cannot("cpo_alpha", "0 leaves out the cross entropy of the chosen answers, which is not modelled")
    if given in ("grpo", "gkd"):
        return {"objective": given} | (_generation(values) if given == "grpo" else taught(values))
    return {"objective": OBJECTIVES[given], "engine-option": (TRL, *PREFERENCES.get(given, ()))}


def _generation(values: Watched) -> dict[str, Any]:
    """Completions, and whose server makes them."""
    for name in ("offload_optimizer", "offload_model"):
        values.flag(name)  # while samples are made
    colocated = values.get("vllm_mode") == "colocate"
    in_all = values.get("completion_length_limit_scope") == "total"
    if values.get("multi_turn_scheduler") and not (colocated and in_all):
        # [swift rollout_mixin.py `multi_turn_completion_length_context`]
        length = "response-len" if colocated else "completion-len"
        values.cannot("multi_turn_scheduler", "answers in turns of max_completion_length tokens each; --{} says how "
                      "many come together", length, option=length)
    if values.flag("async_generate") and values.get("vllm_mode") != "server":  # [swift rlhf_args.py]
        values.cannot("async_generate", "is refused by ms-swift but with vllm_mode server")
    found: dict[str, Any] = {"completion-len": values.count("max_completion_length") or 512}
    return together(found, engine_options(beta=values.number("beta", 0.04)), generation_of(values, answered=True))


ROLLOUT: Final = (
    Row("samples", "num_generations", 8),
    Row("memory_fraction", "vllm_gpu_memory_utilization", 0.9),
    Row("rollout_tp", "vllm_tensor_parallel_size"),
    Row("context", "vllm_max_model_len"),
    Row("max_sequences", "vllm_max_num_seqs"),
    Row("graphs", "vllm_enforce_eager", words={"true": False, "false": True}),
    Row("epochs", "num_iterations"),
    Row("steps_per_generation", "steps_per_generation"),
    Row("generation_batch_size", "generation_batch_size"),
    Row("trainer_sleep", "offload_optimizer", False),
    Row("trainer_leaves", "offload_model", False),
    Row("handover_parts", "move_model_batches"),
)
"""What is said of an engine on the trainer's cards, and of what leaves while it works [swift rlhf_trainers/
args_mixin.py]."""


def _rollout(values: Watched) -> dict[str, Any]:
    """The options of `vramcast rl` beside those of the trainer; none where no engine is on its cards."""
    if values.flag("use_vllm") is not True or dict.get(values, "vllm_mode") != "colocate":
        return {}
    said = read_options(ROLLOUT, values, unasked=True)
    level = values.whole("sleep_level") or 0
    values.must_be_off("vllm_enable_lora", "adapters that the engine keeps apart are not modelled")
    sleep = {"sleep": level > 0} | ({"sleep-level": level} if level else {})
    return {"framework": "ms-swift", "rollout": "vllm", **sleep, **said}


def _network(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if model := values.text("model"):
        found["model"] = model
    if length := values.count("max_length"):
        found["seq-len"] = length
    values.get("max_pixels")
    degree = values.count("sequence_parallel_size")
    if degree is not None and degree > 1:
        found |= {"cp": degree, "cp-kind": "ulysses"}  # [swift sequence_parallel/ulysses.py]
    return found


def _adapters(values: Watched) -> dict[str, Any]:
    """LoRA by PEFT, over what the checkpoint has or over a packed base [swift pipelines/train/tuner.py]."""
    kind = values.get("tuner_type", values.get("train_type", "lora"))
    if kind == "full":
        for name in dict.keys(values):
            if name.startswith("lora_") or name in ("target_modules", "modules_to_save", "use_rslora"):
                values.get(name)
        return {"engine-option": (_loaded(values),)} if "rlhf_type" in values else {}  # of the reference
    if kind in RANKED:
        found = {"peft": kind, "lora-rank": values.count(RANKED[kind]) or 4, "lora-targets": _targets(values)}
        return together(found, _stored(values))
    if kind not in ("lora", "adalora"):
        values.cannot("tuner_type", "{} is not modelled; lora, adalora, {} and full are", shown(kind),
                      ", ".join(RANKED), option="peft")
        return {}
    rank = values.count("lora_rank") or 8
    if kind == "adalora":
        rank = values.count("adalora_init_r") or 12
        values.get("adalora_target_r")
    found = without_none({
        "peft": "dora" if values.flag("use_dora") else str(kind), "lora-rank": rank,
        "lora-dropout": values.number("lora_dropout", 0.05), "lora-targets": _targets(values),
        "modules-to-save": modules_of(values.get("modules_to_save")),
        "adapter-dtype": DTYPES.get(str(values.get("lora_dtype")), "fp32"),
    })
    values.must_be_empty("adapters", "hold adapters whose own file says how large they are; give --lora-rank",
                         option="lora-rank")
    return together(found, _stored(values))


RANKED: Final = {"bone": "reft_rank", "boft": "boft_block_size"}
"""Tuners of PEFT -> the number that says how wide they are, 4 unasked [swift arguments/tuner_args.py]."""


def _targets(values: Watched) -> str:
    """Modules by their names; all-linear is those of the language model."""
    given = values.get("target_regex") or values.get("target_modules") or "all-linear"
    named = listed(given) + listed(values.get("target_parameters"))
    return ",".join(ALL_OF_IT.get(word, word) for word in named)


ALL_OF_IT: Final = {"all-linear": "all"}
"""Linear layers but the head, outside of towers; the word of `families.module_names`."""


def _loaded(values: Watched) -> str:
    """The type of weights that do not learn."""
    dtype = values.get("torch_dtype")
    return f"dtype={dtype if dtype in ('float16', 'float32') else 'bfloat16'}"


def _stored(values: Watched) -> dict[str, Any]:
    """How frozen weights lie; ms-swift leaves what is not packed as it is."""
    method, bits = values.get("quant_method"), values.get("quant_bits")
    named = QUANTISED.search(str(values.get("model", "")))
    if named is not None:
        eight = "8" in str(values.get("model")).lower().rpartition("int")[2][:2]
        kind = "gptq-int8" if eight and named[0].lower() == "gptq" else STORED.get(named[0].lower())
        if kind is None:
            values.cannot("model", "{} weights are not modelled", named[0], option="base-weights")
            return {}
        values.get("quant_bits")
        return {"base-weights": kind}
    if method is None:  # nothing is packed, whatever is said of bitsandbytes [swift base_args/quant_args.py]
        values.ignore("bnb_4bit_*")
        return {"engine-option": (_loaded(values),)}
    if method != "bnb" or str(bits) not in ("4", "8"):
        values.cannot("quant_method", "{} of {} bits is not modelled; bnb of 4 and 8 is", shown(method), shown(bits),
                      option="base-weights")
        return {}
    pairs = {"engine-option": (_loaded(values), "prepare_kbit=none")}
    values.only("bnb_4bit_quant_type", "nf4")
    values.get("bnb_4bit_compute_dtype")
    double = values.flag("bnb_4bit_use_double_quant") is not False
    return pairs | {"base-weights": "int8" if str(bits) == "8" else "nf4-dq" if double else "nf4"}


def _attention(values: Watched) -> dict[str, Any]:
    kernel = values.one_of("attn_impl", KERNELS, option="attention")
    return {"attention": kernel} if kernel else {}


def _precision(values: Watched, *, sharded: bool) -> dict[str, Any]:
    """Weights in `torch_dtype` under autocast."""
    dtype, half, wide = types_of(values)
    values.get("tf32")
    if not wide and not half:
        return {"precision": dtype}
    if values.get("tuner_type") != "full" or sharded or dtype == "fp32":
        return {"precision": "amp-bf16" if wide else "amp-fp16"}
    if dtype == "fp16":
        values.cannot("torch_dtype", "float16 stops at the scaler of gradients; use bfloat16", option="precision")
    return {"precision": dtype, "engine-option": ("autocast=true",)}


def _recompute(values: Watched, *, several: int | None, sharded: bool) -> dict[str, Any]:
    """On unless it is said; of which kind, the processes decide [swift trainers/mixin.py
    `_fix_gradient_checkpointing`]."""
    given = values.get("gradient_checkpointing_kwargs")
    text = str(given).lower().replace("'", '"').replace(" ", "")
    said = '"use_reentrant":' in text
    reentrant = '"use_reentrant":true' in text if said else sharded or (several or 1) == 1
    values.get("vit_gradient_checkpointing")
    if values.flag("gradient_checkpointing") is False:
        return {"recompute": "none"}
    return {"recompute": "full"} | engine_options(reentrant=reentrant)


def _kernels(values: Watched) -> dict[str, Any]:
    """Liger's, which make the loss too; else all logits."""
    found = liger_of(values)
    if values.get("rlhf_type") in PREFERENCES and found.get("engine-option") == ("liger=true",):
        found["engine-option"] = (f"liger={'+'.join(liger_of_stage('dpo'))}",)  # no labels, so all logits are made
    for name in ("enable_dft_loss", "enable_channel_loss"):  # of all logits in fp32, as Transformers' own loss is
        if values.flag(name) and found:  # [swift trainers/utils.py `per_token_loss_func`]
            values.cannot(name, "puts its own loss in the place of Liger's, which is not modelled", option="loss")
    loss = values.get("loss_type")
    if loss not in (None, "cross_entropy", *RATED) and "rlhf_type" not in values:
        values.cannot("loss_type")
    return found if found or values.flag("torch_compile") or "rlhf_type" in values else {"loss": "eager"}


def _optimizer(values: Watched) -> dict[str, Any]:
    """Plugins of optimizers go before `optim`."""
    named = values.get("optimizer")
    if values.flag("use_galore"):
        values.only("galore_quantization", False)
        values.only("galore_proj_type", "std")
        return {"optimizer": f"galore:{values.count('galore_rank') or 128}"}
    if named is None:
        return {}
    if named != "muon":
        values.cannot("optimizer", "{} is not modelled", shown(named), option="optimizer")
        return {}
    return {"optimizer": "muon"}


def _batch(values: Watched, file: str, several: int | None) -> tuple[dict[str, int], dict[str, Any], list[str]]:
    """Batch, and what else TrainingArguments say."""
    said = "gradient_accumulation_steps" in values
    chosen = {name: value for name, value in values.items() if name in ("deepspeed", "fsdp", "fsdp_config")}
    for name in chosen:
        del values[name]  # read here already
    read = arguments_of(values, file)
    values.update(chosen)
    batch = dict(read.batch)
    if said:
        return batch, read.options, []
    steps = {"global": SAMPLES} if several is None else {"accumulation": ceil_div(SAMPLES, several * batch["micro"])}
    del batch["accumulation"]
    return batch | steps, read.options, [
        Note("gradient_accumulation_steps is not given: {} samples a step, as ms-swift has it", SAMPLES)]


def _sharding(values: Watched, file: str) -> tuple[dict[str, Any], tuple[Unread, ...]]:
    """DeepSpeed's or FSDP's file by the name that stands for it."""
    given, whole = values.get("deepspeed"), values.get("fsdp")
    if given is not None:
        table = {"zero_optimization": DEEPSPEED[given]} if given in DEEPSPEED else given
        if not isinstance(table, Mapping):
            values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
            return {"sharded-by": "deepspeed"}, ()
        filled = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
        found = deepspeed.read(Config(file, "", filled | dict(table)))
        unread = tuple(one._replace(name=f"deepspeed.{one.name}") for one in found.unread
                       if one.option not in ("micro-batch", "precision", "grad-accum"))
        inside = under_the_trainer(found.options)
        return {key: value for key, value in inside.items() if key not in ("engine", "precision")}, unread
    if whole is None:
        return {}, ()
    if whole == "fsdp2":
        return {"sharded-by": "fsdp2", "shards": "everything", "recompute": "full"}, ()
    if isinstance(whole, str) and whole.endswith(".json"):
        values.cannot("fsdp", ELSEWHERE, file="accelerate")
        return {"sharded-by": "fsdp2"}, ()
    inner = Watched({"fsdp": whole, "fsdp_config": values.get("fsdp_config")}, ARGUMENTS)
    options = arguments_of(inner, file).options
    return {name: value for name, value in options.items() if name != "engine"}, tuple(inner.unread())


def learning_towers(values: Watched, options: Mapping[str, Any]) -> Iterable[Unread]:
    """What adapters of networks that see or hear are not read with: all but the language model stays frozen."""
    frozen = all(values.flag(name) is not False for name in ("freeze_vit", "freeze_aligner"))
    if "peft" in options and (not frozen or values.flag("freeze_llm")):
        yield LEARNING_TOWERS


def frozen(values: Watched, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that do not learn where all weights are trained."""
    return {} if "peft" in options else frozen_parts(values)


def frozen_parts(values: Watched) -> dict[str, Any]:
    """The parts that do not learn, nor have adapters."""
    flags = {name: values.flag(name) for name in FROZEN}
    parts = ",".join(part for name, (part, usual) in FROZEN.items() if (usual if flags[name] is None else flags[name]))
    return {"freeze": parts} if parts else {}
