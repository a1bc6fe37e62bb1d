"""ms-swift on Megatron: `megatron sft`, `megatron pt` and `megatron rlhf`, in Megatron-LM's arguments.

[swift] modelscope/ms-swift 4.6.0.dev0 (3602360a5) swift/megatron/arguments/{megatron,megatron_base,sft}_args.py, whose
defaults below are those of every release from 4.0 on; model/utils.py `get_mcore_model_config`, utils/utils.py
`prepare_adapter`, utils/megatron_lm_utils.py `wrap_model`, swift/cli/main.py
[former] the same at v3.12.6, swift/megatron/argument/megatron_args.py
[mcore] modelscope/mcore-bridge f020e479 src/mcore_bridge/{config/parser,model/gpt_model}.py

ms-swift's GRPO on Megatron, whose answers vLLM writes: the options of `vramcast rl`.

[swift] modelscope/ms-swift 3602360a5 swift/megatron/arguments/megatron_args.py `RLHFMegatronArgumentsMixin`,
megatron/trainers/rollout_mixin.py; swift/ray/megatron/pipeline.py: groups of cards
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from vramcast.catalogue.formats import load_format
from vramcast.catalogue.index import MODELS
from vramcast.errors import Note
from vramcast.formats.reading import (
    Command,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    lengths_of,
    listed,
    modules_of,
    shown,
    table,
    together,
    without_none,
)
from vramcast.formats.table import read_options
from vramcast.formats.tools import hf_command, megatron
from vramcast.formats.tools.megatron_bridge import OF_THE_HUB, placed
from vramcast.formats.tools.rollout_engine import REPLAYED
from vramcast.formats.tools.swift import (
    ROLLOUT,
    SWIFT,
    frozen,
    frozen_parts,
    learning_towers,
    processes,
    with_environment,
)
from vramcast.formats.tools.swift_former import BEHIND, of_a_file, texts_of, types_of
from vramcast.formats.watched import Known, Watched

KEPT: Final = (
    "engine", "model", "precision", "tp", "pp", "cp", "ep", "etp", "virtual-stages", "first-stage-layers",
    "last-stage-layers", "sequence-parallel", "optimizer", "recompute", "peft", "lora-rank", "lora-targets",
    "lora-dropout", "modules-to-save", "freeze", "offload-optimizer", "alloc-conf",
)
"""Options of the trainer that say the same of it beside an engine."""

GROUPS: Final = ("train", "rollout")
"""Tables of Ray's cards, whose arguments are those of the command otherwise."""

SERVER: Final = re.compile(r"CUDA_VISIBLE_DEVICES=([\d,]+)(?:\\\n|[^\n])*?\bswift rollout\b")
"""The engine that a script starts on cards of its own."""

ANSWERS: Final = 512
"""`max_completion_length` unasked."""


def of_ray(given: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int]:
    """Arguments of all groups of Ray's cards together, the trainer's cards and those of the engine alone."""
    own = {name: table(given.get(name)) for name in GROUPS}
    if not own["train"] or not own["rollout"]:
        return dict(given), None, 0
    flat = {name: value for name, value in given.items() if name not in (*GROUPS, "colocate_groups", "use_ray")}
    sets = [set(map(str, group)) for group in given.get("colocate_groups") or () if isinstance(group, list)]
    together = any(set(GROUPS) <= group for group in sets)
    cards = {name: int(one["gpus"]) for name, one in own.items() if isinstance(one.get("gpus"), int)}
    for one in own.values():
        flat |= {name: value for name, value in one.items() if name != "gpus"}
    flat["vllm_mode"] = "colocate" if together else "server"
    return flat, cards.get("train"), 0 if together else cards.get("rollout", 0)


def generated(found: Reading, values: Watched, config: Config, apart: int) -> Reading:
    """The reading of a trainer as a question about it beside its engine.

    Args:
        apart: cards of the engine's own that Ray gives it; 0: none, or a script says them
    """
    options = {name: value for name, value in found.options.items() if name in KEPT}
    options.setdefault("recompute", "none")
    if found.options.get("shards") == "nothing":
        name = "optimizer" if values.get("optimizer") == "muon" else "use_distributed_optimizer"
        values.cannot(name, "keeps whole optimizer states on every rank, which is not modelled beside an engine")
    if values.count("mtp_num_layers"):
        values.cannot("mtp_num_layers", "its modules are loaded and compute nothing, which is not modelled")
    pairs = tuple(one for one in found.options.get("engine-option", ()) if not one.startswith("cross_entropy="))
    if options.get("offload-optimizer", "none") != "none":
        pairs = (*pairs, "steps_on_host=true")
    for name in ("recompute-layers", "recompute-modules"):
        if name in found.options and tuple(found.options[name]) != ("core_attn",):
            values.cannot(name.replace("-", "_"), "is not modelled beside an engine")
    said = read_options(ROLLOUT, values, unasked=True)
    whole, samples = int(found.options["global-batch"]), int(said["samples"])
    steps, at_once = said.pop("steps-per-generation", None), said.pop("generation-batch-size", None)
    generation = int(at_once or whole * int(steps or 1))
    if generation % samples or whole % samples:
        values.cannot("global_batch_size", "{} sequences, and {} of a generation, are no whole prompts of {} answers",
                      whole, generation, samples, option="mini-batch")
    apart = _apart(values, config, apart)
    if apart:
        said |= {"rollout-gpus": apart, "sleep": False}
        for name in ("trainer-sleep", "trainer-leaves"):
            said.pop(name, None)
    else:
        level = values.whole("sleep_level") or 0
        said |= {"sleep": level > 0} | ({"sleep-level": level} if level else {})
    values.must_be_off("vllm_enable_lora", "adapters that the engine keeps apart are not modelled")
    for name in ("teacher_model", "teacher_model_server"):
        values.must_be_unset(name, "a teacher beside GRPO is not modelled for megatron")
    lengths, notes = _lengths(values, said)
    if values.get("router_replay_mode") not in (None, "disabled"):
        notes.append(REPLAYED)
    asked = values.number("beta", 0.04) != 0
    if not asked and "peft" not in options:
        notes.append("beta 0: ms-swift loads a reference nevertheless, which is counted and not asked")
    options |= {
        **said, **lengths, "framework": "ms-swift", "rollout": "vllm", "algorithm": "grpo", "trainer-option": pairs,
        "prompts": max(1, generation // samples), "mini-batch": max(1, whole // samples),
        "micro-batch": found.options.get("micro-batch", 1), "reference": asked,
    }
    ranks = None if found.ranks is None else found.ranks + apart
    return found._replace(options=options, notes=(*found.notes, *notes), auto={}, ranks=ranks)


def _apart(values: Watched, config: Config, apart: int) -> int:
    """Cards of the engine's own: as the script that starts it, or Ray's groups, say."""
    mode = values.get("vllm_mode")
    if mode == "colocate":
        return 0
    text = "\n".join(line for line in config.text.splitlines() if not line.lstrip().startswith("#"))
    if not apart and (started := SERVER.search(text)):
        apart = len([card for card in started[1].split(",") if card])
    if not apart:
        values.refused["vllm_mode"] = Unread("vllm_mode", Note(
            "{} generates on a server's own cards, which the file does not count; --rollout-gpus does", mode or "server"
        ), option="rollout-gpus")
    return apart


def _lengths(values: Watched, said: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Prompts, which `max_length` cuts, and answers; turns fill what the engine takes."""
    prompt, answer = values.count("max_length"), values.count("max_completion_length") or ANSWERS
    context, notes = said.get("context"), list[str]()
    if values.get("multi_turn_scheduler") and values.get("completion_length_limit_scope") != "total":
        if context is None or prompt is None or context <= prompt:
            values.cannot("multi_turn_scheduler", "answers in turns of max_completion_length tokens each; --{} says "
                          "how many come together", "response-len", option="response-len")
        else:
            answer = context - prompt
            notes.append("turns are taken to fill what vllm_max_model_len leaves of a sequence")
    if prompt is None:
        notes.append("max_length is not set: prompts are taken to have 512 tokens at most")
    elif context is not None and answer < context:
        prompt = min(prompt, context - answer)
    return {"response-len": answer} | ({} if prompt is None else {"prompt-len": prompt}), notes


ARGUMENTS: Final = Known("swift", "megatron", (SWIFT,))

COMMANDS: Final = ("sft", "pt", "rlhf")

STAGES: Final = {"dpo": "dpo", "kto": "kto", "rm": "reward", "grpo": "grpo"}
"""`rlhf_type` -> what is optimised."""

TASKS: Final = {None: "", "causal_lm": "", "seq_cls": "classification", "embedding": "classification"}
"""`task_type` -> the same: labels, or the last position as it is [mcore model/gpt_model.py]."""

ELSEWHERE_COUNTED: Final = (
    "its degrees need several cards, so NPROC_PER_NODE is taken to be set elsewhere, to all of the question")

AS_THEY_ARE: Final = Unread("freeze_llm", "leaves towers alone to learn, which is not modelled", of_towers=True)

DEFAULTS: Final[dict[str, Any]] = {
    "micro_batch_size": 1, "global_batch_size": 16, "recompute_granularity": "selective",
    "cross_entropy_loss_fusion": True, "attention_backend": "flash", "use_distributed_optimizer": True,
    "expert_tensor_parallel_size": 1, "moe_router_dtype": "fp32", "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True, "data_parallel_sharding_strategy": "optim_grads_params", "fp8_recipe": "delayed",
}
"""What it has otherwise than Megatron-LM where nobody says it."""

UNDER: Final = {"fp8_recipe": "fp8_format", "fp8_param_gather": "fp8_format",
                "data_parallel_sharding_strategy": "use_megatron_fsdp"}
"""What says nothing -> where this is not given."""

PASSED: Final = (
    *DEFAULTS, "recompute_method", "recompute_num_layers", "recompute_modules", "cross_entropy_fusion_impl",
    "optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction", "use_precision_aware_optimizer",
    "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "clip_grad", "use_megatron_fsdp",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "sequence_parallel", "context_parallel_size", "cp_comm_type",
    "tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather", "overlap_param_gather_with_optimizer_step",
    "virtual_pipeline_model_parallel_size", "microbatch_group_size_per_vp_stage", "pipeline_model_parallel_layout",
    "expert_model_parallel_size", "fp8_format", "fp8_param_gather", "moe_enable_deepep", "moe_permute_fusion",
    "moe_shared_expert_overlap", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity",
    "moe_layer_recompute", "moe_router_load_balancing_type", "accumulate_allreduce_grads_in_fp32",
)
"""Arguments that Megatron-LM has by the same name, or by the one below."""

RENAMED: Final = {
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}

NEGATED: Final = {
    "masked_softmax_fusion": ("no-masked-softmax-fusion", True),
    "bias_dropout_fusion": ("no-bias-dropout-fusion", True),
    "bias_activation_fusion": ("no-bias-swiglu-fusion", True), "apply_rope_fusion": ("no-rope-fusion", False),
    "gradient_accumulation_fusion": ("no-gradient-accumulation-fusion", True),
    "padding_free": ("no-create-attention-mask-in-dataloader", None),
}
"""Switch -> the argument that says its opposite, and whether it is on unasked; samples without padding need no mask."""

FORMER: Final = {
    "train_type": "tuner_type", "adapter_load": "mcore_adapter", "max_epochs": "num_train_epochs",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "num_workers": "dataloader_num_workers", "save": "output_dir", "save_interval": "save_steps",
    "eval_interval": "eval_steps", "load": "mcore_model", "no_masked_softmax_fusion": "masked_softmax_fusion",
    "no_bias_dropout_fusion": "bias_dropout_fusion", "no_bias_swiglu_fusion": "bias_activation_fusion",
    "no_rope_fusion": "apply_rope_fusion", "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
}
"""Names of release 3 -> those of 4; "no_" says the opposite [former]."""

FORMER_SILENT: Final = ("load_safetensors", "no_initialization", "log_throughput", "log_params_norm",
                        "distributed_timeout_minutes", "exit_on_missing_checkpoint", "auto_detect_ckpt_format")
"""Arguments of release 3 that change nothing here; 4 has them no more [former]."""

FORMER_DEFAULTS: Final = {"cross_entropy_loss_fusion": False, "apply_rope_fusion": True}
"""What release 3 has otherwise where nobody says it [former]."""

CONVERTED: Final = re.compile(r"-mcore/?$")
"""What `swift export --to_mcore` puts behind the name of a network, unasked."""

ALL_LINEAR: Final = (
    "linear_qkv", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
    "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj",
)
"""TransformerEngine's linears of Megatron's layers; the router and the head are none [swift `find_all_linears`]."""

OLD: Final = "arguments of release 3 of ms-swift: its defaults hold, without fusion of the loss"
FUSED: Final = "cross_entropy_loss_fusion: on, as since release 4 of ms-swift; say it is off for one before"
APEX: Final = "gradient_accumulation_fusion: on, as where apex is installed; without it the fusion is switched off"


def read(config: Config) -> Reading:
    """What a command trains."""
    command = Command(()) if config.table is not None else command_of(config, _score)
    kind, words = _of_command(command.words)
    asked = of_a_file(words, "swift-megatron")
    table = dict(config.beside) if asked else dict(config.table) if config.table is not None else arguments(words)
    command = command._replace(variables={**table.pop("ENV", {}), **command.variables})
    table, trains, apart = of_ray(table)
    table, former = _of_today(_meant(table))
    values = Watched(DEFAULTS | (FORMER_DEFAULTS if former else {}) | table, ARGUMENTS, undecided=command.undecided)
    launch = hf_command.taken_apart(command.words)
    started = hf_command.launching(launch, command) if launch.launcher else None
    alone = config.table is None and processes(command, started) is None and "NNODES" not in command.variables
    alone = alone and trains is None
    stage = values.get("rlhf_type", "dpo" if kind == "rlhf" else None)
    if stage not in (None, *STAGES):
        why = Note("{} is not modelled for megatron; {} are, and sft and pt", shown(stage), ", ".join(STAGES))
        return Reading("swift-megatron", {"engine": "megatron"}, unread=(Unread("rlhf_type", why, "objective"),))
    task, texts, told = _task(values)
    if asked and not config.beside:
        return with_environment(Reading("swift-megatron", {}, unread=asked, alone=alone), command, started)
    known = load_format("swift").sections["megatron"]
    for name in values:
        if name not in known:
            values.cannot(name, Known("swift", "megatron").why_unread(name))
    given = placed(_arguments(values), MODELS.aliases.get(str(values.get("model")).lower()))
    inner = megatron.read(Config(config.name, "", {"MODEL_ARGS": given}))
    objective = STAGES[stage] if stage else task or ("pretrain" if kind == "pt" else "sft")
    compared = stage not in (None, "grpo")
    options = together(inner.options, {"objective": objective}, _sizes(values, inner.options, texts, compared),
                       _adapters(values), _predictions(values))
    whole = "all-linear" in listed(values.get("target_modules") or "all-linear")
    options |= frozen_parts(values) if whole else frozen(values, options)
    left = (*(one for one in asked if one.why is BEHIND), *learning_towers(values, options),
            *((AS_THEY_ARE,) if values.flag("freeze_llm") else ()))
    auto = {} if "seq-len" in options else {"seq-len": "says no length of the samples"}
    unread = (*values.unread(), *left, *(started.unread if started else ()), *(
        one for one in inner.unread if not (one.of_network and one.name.startswith(OF_THE_HUB))
        and one.name != "--seq-length"))
    unsaid = ((APEX, "gradient_accumulation_fusion"), *(() if stage == "grpo" else (
        (OLD if former else FUSED, "cross_entropy_loss_fusion"),)))
    notes = (*inner.notes, *told, *(said for said, name in unsaid if name not in table))
    if alone and any(options.get(degree, 1) > 1 for degree in ("tp", "pp", "cp", "ep")):
        alone, notes = False, (*notes, ELSEWHERE_COUNTED)
    found = inner._replace(format="swift-megatron", options=options, unread=unread, notes=(*command.notes, *notes),
                           auto=auto, alone=alone)
    found = with_environment(found, command, started)
    found = found if trains is None else found._replace(ranks=trains)
    if stage != "grpo":
        return found
    made = generated(found._replace(unread=()), values, config, apart)
    return made._replace(unread=(*values.unread(), *(one for one in found.unread if one.name not in values)))


def _sizes(values: Watched, said: Mapping[str, Any], texts: int, compared: bool) -> dict[str, Any]:
    """The network, and what one step of it takes.

    Args:
        said: what Megatron-LM's arguments say
        texts: of a sample
        compared: answers are, which a pack holds together [swift template/base.py `_rlhf_encode`]
    """
    length, packed = values.count("packing_length") or values.count("max_length"), bool(values.flag("packing"))
    lengths = {"seq-len": length // 2 if packed and compared else length} if length else {}
    named = {"model": values.get("model")} if "model" in values else {}
    batch = {name: texts * said[name] for name in ("micro-batch", "global-batch") if name in said}
    return named | lengths_of(packed=packed) | lengths | batch


def files_of(config: Config) -> list[str]:
    """The file that a command's arguments stand in."""
    return [one.name for one in of_a_file(_of_command(command_of(config, _score).words)[1], "swift-megatron")[:1]]


def _task(values: Watched) -> tuple[str, int, tuple[str, ...]]:
    """What is optimised where it is no language model, texts of a sample, and what is said of them."""
    values.ignore("num_labels", "problem_type", "loss_type")
    given = values.get("task_type")
    if given not in TASKS:
        values.cannot("task_type", "{} is not modelled for megatron", shown(given), option="objective")
    return TASKS.get(given, ""), *texts_of(str(given), {})


def _predictions(values: Watched) -> dict[str, Any]:
    """Modules that predict further tokens, each with weights of its own."""
    values.must_be_off("mtp_shared_weights", "modules that share their weights are not modelled")
    values.ignore("mtp_decoder_input_detach")
    count = values.count("mtp_num_layers")
    return {"engine-option": (f"mtp_layers={count}",)} if count else {}


def _meant(table: dict[str, Any]) -> dict[str, Any]:
    """Values as its parser takes them: words of a command line."""
    words = {"true": True, "false": False, "none": None}
    return {name: words.get(value.lower(), value) if isinstance(value, str) else value
            for name, value in table.items()}


def _of_today(table: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Arguments of release 3 in the names of today, and whether there were any.

    >>> _of_today({"train_type": "lora", "load": "Qwen2.5-7B-mcore", "no_rope_fusion": True, "load_safetensors": True})
    ({'tuner_type': 'lora', 'apply_rope_fusion': False, 'model': 'Qwen2.5-7B'}, True)
    """
    if not any(name in (*FORMER, *FORMER_SILENT) for name in table):
        return table, False
    found = {FORMER.get(name, name): not value if name in FORMER and name.startswith("no_") else value
             for name, value in table.items() if name not in FORMER_SILENT}
    if "model" not in found and CONVERTED.search(str(found.get("mcore_model", ""))):
        found["model"] = CONVERTED.sub("", str(found.pop("mcore_model")))
    return found, True


def _score(words: tuple[str, ...]) -> int:
    return int(_of_command(words)[0] != "")


def _of_command(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """`sft`, `pt` or `rlhf`, and what stands behind it."""
    for place, (program, kind) in enumerate(pairwise(words)):
        if program.rpartition("/")[2] == "megatron" and kind in COMMANDS:
            return kind, words[place + 2 :]
        name = program.rpartition("/")[2].removesuffix(".py")
        if "swift/cli/_megatron" in program and name in COMMANDS:
            return name, words[place + 1 :]
    return "", ()


def _arguments(values: Watched) -> dict[str, Any]:
    """Megatron-LM's arguments; the vocabulary is the checkpoint's, up to a multiple of tp [mcore gpt_model.py]."""
    found: dict[str, Any] = {"--make-vocab-size-divisible-by": 1, **_precision(values)}
    for name in PASSED:
        value = values.get(name)
        needed = UNDER.get(name)
        if value is None or (needed and not values.get(needed)):
            continue
        found[f"--{RENAMED.get(name, name.replace('_', '-'))}"] = value
    for name, (opposite, usual) in NEGATED.items():
        on = values.flag(name)
        if name == "padding_free":  # true unasked; packed samples are none that are padded
            found[f"--{opposite}"] = on is not False or bool(values.flag("packing"))
        else:
            found[f"--{opposite}"] = not (usual if on is None else on)
    if str(found["--attention-backend"]).startswith("flash_"):  # a release of FlashAttention
        found["--attention-backend"] = "flash"
    if "--recompute-granularity" not in found:  # "none" of a command line is no value
        found = {name: value for name, value in found.items() if not name.startswith("--recompute-")}
    if found.get("--main-grads-dtype") == "bf16":
        found["--grad-reduce-in-bf16"] = True
    if (muon := str(found.get("--optimizer"))).endswith("muon"):  # [swift `_check_muon`]
        divided = muon == "dist_muon"  # by whole matrices, which ranks send each other in lists
        found |= {"--optimizer": "muon", "--use-distributed-optimizer": divided,
                  "--no-use-layer-wise-param-layout": divided}
    one = found.get("--moe-router-load-balancing-type")
    if isinstance(one, list) and len(one) == 1:
        found["--moe-router-load-balancing-type"] = one[0]
    return found


def _precision(values: Watched) -> dict[str, Any]:
    """16 bits, as the checkpoint's, which is taken to be bf16.

    What is trained in fp32 is not: fp16 is switched on for it.
    """
    _, half, wide = types_of(values)
    return {"--fp16": True} if half else {"--bf16": True} if wide else {}


def _adapters(values: Watched) -> dict[str, Any]:
    """LoRA by PEFT whose layers are mcore-bridge's; whatever their dtype, they are cast to the model's."""
    kind = values.get("tuner_type", "full")
    names = ("lora_rank", "lora_dropout", "lora_dtype", "target_modules", "target_regex", "modules_to_save")
    if kind == "full":
        values.ignore(*names)
        return {}
    if kind != "lora":
        values.cannot("tuner_type", "{} is not modelled for megatron; lora and full are", shown(kind), option="peft")
        return {}
    values.must_be_empty("adapters", "hold adapters whose own file says how large they are; give --lora-rank",
                         option="lora-rank")
    values.ignore("lora_dtype")
    named = listed(values.get("target_modules") or "all-linear")
    targets = [word for one in named for word in (ALL_LINEAR if one == "all-linear" else (one,))]
    return without_none({
        "peft": "lora", "lora-rank": values.count("lora_rank") or 8, "lora-targets": tuple(targets),
        "lora-dropout": values.number("lora_dropout", 0.05), "engine-option": ("adapters=mcore-bridge",),
        "modules-to-save": modules_of(values.get("modules_to_save")),
    })
