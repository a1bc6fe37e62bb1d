"""slime: `python3 train.py --name value ...`, Megatron-LM's arguments, its own, and SGLang's behind `--sglang-`.

[slime] THUDM/slime 624b824 (0.3.1) slime/utils/arguments.py, slime/utils/dp_schedule.py; scripts/run-*.sh
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.formats.reading import Config, Reading, arguments, command_of
from vramcast.formats.table import Row, read_options
from vramcast.formats.tools.megatron import OF_NETWORK
from vramcast.formats.tools.rollout_engine import Passed, passed_on
from vramcast.formats.unread import options_of_environment
from vramcast.formats.watched import Known, Watched, is_unset

PROGRAM: Final = re.compile(r"(?:^|/)train(?:_async)?\.py$")
ARRAY: Final = re.compile(r"\$\{[A-Z_]+_ARGS\}")
"""An array that the script itself does not set: that of the network, of its `source models/NAME.sh`, or none."""

ROWS: Final = (
    Row("prompts", "rollout_batch_size"),
    Row("samples", "n_samples_per_prompt", 1),
    Row("response_len", "rollout_max_response_len"),
    Row("rollout_tp", "rollout_num_gpus_per_engine", 1),
    Row("algorithm", "advantage_estimator", "grpo", words={
        "grpo": "grpo", "gspo": "gspo", "cispo": "grpo", "ppo": "ppo", "reinforce_plus_plus": "reinforce++",
        "reinforce_plus_plus_baseline": "reinforce++"}),
    Row("reuse_log_prob", "use_rollout_logprobs", False),
    Row("tp", "tensor_model_parallel_size"),
    Row("pp", "pipeline_model_parallel_size"),
    Row("cp", "context_parallel_size"),
    Row("ep", "expert_model_parallel_size"),
    Row("etp", "expert_tensor_parallel_size"),
    Row("sequence_parallel", "sequence_parallel", False),
    Row("first_stage_layers", "decoder_first_pipeline_num_layers"),
    Row("last_stage_layers", "decoder_last_pipeline_num_layers"),
    Row("recompute", "recompute_granularity", "none", words={"full": "full"}),
    Row("offload_optimizer", "optimizer_cpu_offload", "none", words={"true": "cpu", "false": "none"}),
)

SAYS_NOTHING: Final = re.compile(
    r"accumulate_allreduce|adam_|address|apply_chat|attention_(?:backend|softmax|dropout)|balance_|buffer_filter|"
    r"custom_(?!model)|data_(?:pad|source)|debug_rollout|decoupled|deterministic|disable_|dynamic_sampling|eps_clip|eval_|gamma|"
    r"grpo_|hidden_dropout|input_key|kl_loss_type|label_key|lambd|load|log_(?!probs_max)|loss_mask|metadata_key|model_name|moe_(?!en"
    r"able_mtp)|multimodal_keys|n_samples_per_eval|no_(?:gradient|rope|save|load)|normalize_|num_(?:rollout|epoch)|"
    r"overlap_cpu|prefill|prompt_data|ref_|reset_|reward_key|rm_|rollout_(?!num_gpus|max_|batch)|"
    r"runtime_env|save|seed|skip_eval|start_rollout|tis_|tool_key|train_env|use_(?:tis|wandb|tensorboard|fault|gated|"
    r"unbiased|kl_loss$|dynamic_batch|dynamic_global)|value_clip|wandb_|weight_decay|partial_"
)
"""What changes neither memory nor time, or is read beside."""

STEPS: Final = "num_steps_per_rollout"
"""No argument of a network, though it begins as some do."""

SOURCES: Final = re.compile(r"(?m)^\s*(?:source|\.)\s+(.*)$")
"""Lines that put another script in; those of `models/` hold the network's arguments, as its checkpoint does."""

BUDGET: Final = "max_tokens_per_gpu"

SIZE: Final = re.compile(r"\d+")

SHORT_PROMPT: Final = 1024
"""Longest prompt where nobody says it, of a script's --rollout-max-prompt-len [tokens]."""


def read(config: Config) -> Reading:
    """Options of a run script."""
    command = command_of(config, lambda words: sum(PROGRAM.search(word) is not None for word in words))
    place = next((place for place, word in enumerate(command.words) if PROGRAM.search(word)), 0)
    given = arguments(word for word in command.words[place + 1 :] if not ARRAY.fullmatch(word))
    given = {name: value for name, value in given.items() if value != "${MODEL_ARGS}"}
    found = reading(given, ahead=command.words[place : place + 1] and "async" in command.words[place],
                    undecided=command.undecided)
    of_network = all("models/" in line for line in SOURCES.findall(config.text)) and "model" in found.options
    sourced = [one for one in command.unread if not (of_network and one.name.startswith("source "))]
    options = found.options | options_of_environment(command.variables)
    return found._replace(options=options, unread=(*found.unread, *sourced), notes=(*found.notes, *command.notes))


def reading(given: Mapping[str, Any], *, ahead: object = False, undecided: Mapping[str, str] = {}) -> Reading:
    """What names with underscores say.

    Args:
        given: the names
        ahead: whether the engine generates the next answers meanwhile (`train_async.py`)
        undecided: names that only a run knows, and what would say them
    """
    megatron = Known("megatron", "arguments")
    values = Watched({name: value for name, value in given.items()
                      if value is not None and not SAYS_NOTHING.match(name) and not name.startswith("sglang_")
                      and (name == STEPS or not OF_NETWORK.match(f"--{name.replace('_', '-')}"))
                      and not megatron.is_harmless(f"--{name}")}, Known("slime", "arguments"), undecided)
    options = read_options(ROWS, values)
    options |= {"framework": "slime", "engine": "megatron", "rollout": "sglang"}
    options.setdefault("recompute", "none")
    model = _network(values)
    options |= {} if given.get("multimodal_keys") else {"images": 0}
    options |= {} if model is None else {"model": model}
    sizes, notes = _sizes(values, given, int(options.get("samples", 1)))
    trainer, apart_gpus = _cards(values)
    apart = {} if apart_gpus is None else {"rollout-gpus": apart_gpus, "ahead": bool(ahead)}
    options |= {**sizes, **apart, "entropy": bool(values.number("entropy_coef"))}
    options["reference"] = any((given.get("use_kl_loss"), values.number("kl_coef"), _teacher(values, notes)))
    if (values.get("fp8_format"), values.get("fp8_recipe")) != (None, None):
        notes.append("fp8: counted and timed as bf16")
    values.number("kl_loss_coef")
    values.get("offload")
    if values.flag("use_precision_aware_optimizer") and options.get("offload-optimizer", "none") == "none":
        options["trainer-option"] = ("precision_aware=true",)
    if values.flag("enable_mtp_training"):
        options["trainer-option"] = (*options.get("trainer-option", ()), "mtp=true")
    if (values.count("over_sampling_batch_size") or 0) > int(options.get("prompts", 0)):
        notes.append("prompts that are generated and filtered out again are not timed")
    buffer = values.count("update_weight_buffer_size")
    options |= {"bucket-mib": max(1, buffer >> 20)} if buffer else {}
    engine = _of_engine(given, int(options.get("rollout-tp", 1)))
    each, every = values.count("actor_num_gpus_per_node") or 8, trainer + (apart_gpus or 0)
    return Reading("slime", options | engine.options, unread=(*values.unread(), *engine.unread),
                   notes=(*notes, *engine.notes), ranks=every, nodes=max(1, every // max(each, 1)))


def _network(values: Watched) -> str | None:
    """A hub's id, or the last part of a folder, whatever variable stands before it."""
    path = dict.get(values, "hf_checkpoint")
    last = path.rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""
    if isinstance(path, str) and path[:1] in ("/", "$", "~") and last and not is_unset(last):
        values["hf_checkpoint"] = last
    return values.text("hf_checkpoint")


def _teacher(values: Watched, notes: list[str]) -> bool:
    """Whether a teacher's weights take turns with those that learn, as a reference's do; else it is a server elsewhere
    [slime utils/arguments.py `--opd-type`, backends/megatron_utils/actor.py]."""
    asked, kind = values.flag("use_opd"), values.one_of("opd_type", {"sglang": "sglang", "megatron": "megatron"})
    for name in ("opd_kl_coef", "opd_teacher_load", "opd_teacher_ckpt_step"):
        values.get(name)
    if asked and kind is None:
        values.cannot("use_opd", "is set without --opd-type, where slime stops")
    elif asked:
        notes.append("the teacher's weights wait on the host and take turns with those that learn, of which it is "
                     "taken to have as many" if kind == "megatron" else
                     "the teacher is a server of its own, which stands beside this answer")
    return bool(asked) and kind == "megatron"


def _sizes(values: Watched, given: Mapping[str, Any], samples: int) -> tuple[dict[str, Any], list[str]]:
    """Sequences of a step, of an optimizer step and of a micro-batch."""
    options: dict[str, Any] = {}
    notes: list[str] = []
    whole, steps = values.count("global_batch_size"), values.count(STEPS)
    prompts = values.count("rollout_batch_size")
    if steps and prompts and not whole:
        whole = prompts * samples // steps
    elif steps and prompts and whole != (each := prompts * samples // steps):  # [slime utils/arguments.py] asserts it
        values.cannot(STEPS, "{} of {} prompts x {} answers are {} sequences each, and global_batch_size is {}; leave "
                      "one out", steps, prompts, samples, each, whole)
    if whole is not None and whole % samples:
        values.cannot("global_batch_size", "{} sequences are no whole prompts of {} answers", whole, samples,
                      option="mini-batch")
    elif whole is not None:
        options["mini-batch"] = whole // samples
    context, prompt = values.count("rollout_max_context_len"), values.count("rollout_max_prompt_len")
    response = values.count("rollout_max_response_len")
    if prompt is None:
        prompt = SHORT_PROMPT
        notes.append("--rollout-max-prompt-len is not set: prompts are taken to have 1,024 tokens at most")
    if context is not None:
        options["context"] = context
        prompt = max(1, min(prompt, context - min(response or context // 2, context - 1)))
        options["response-len"] = min(response or context, context - prompt)
    options["prompt-len"] = prompt
    learned, rated = values.count(BUDGET), values.count(f"log_probs_{BUDGET}")
    if given.get("use_dynamic_batch_size"):
        options |= {"micro-tokens": learned or 0, "log-prob-tokens": rated or learned or 0}
        if learned is None:
            values.cannot(BUDGET, "is set nowhere beside --use-dynamic-batch-size, where slime stops",
                          option="micro-tokens")
    size = values.count("micro_batch_size")
    options |= {} if "micro-tokens" in options else {"micro-batch": size or 1}
    return options, notes


def _cards(values: Watched) -> tuple[int, int | None]:
    """Cards of the trainer, and those of an engine that has its own."""
    trainer = (values.count("actor_num_nodes") or 1) * (values.count("actor_num_gpus_per_node") or 8)
    engine, together = values.count("rollout_num_gpus"), values.flag("colocate")
    values.get("num_gpus_per_node")
    for name in ("offload_train", "offload_rollout", "no_offload_train", "no_offload_rollout"):
        if values.get(name) is not None and (together or name in ("offload_train", "offload_rollout")):
            values.cannot(name)
        values.get(name)
    if together:
        return trainer, None
    if engine is None:
        values.cannot("rollout_num_gpus", "is set nowhere, nor is --colocate, where slime stops", option="rollout-gpus")
    return trainer, engine or 1


def _of_engine(given: Mapping[str, Any], tp: int) -> Passed:
    """Arguments of SGLang."""
    own = {name.removeprefix("sglang_"): value for name, value in given.items() if name.startswith("sglang_")}
    notes = []
    if sizes := SIZE.findall(str(own.pop("cuda_graph_bs", ""))):
        own["cuda_graph_max_bs"] = max(map(int, sizes))
        notes.append("--sglang-cuda-graph-bs: SGLang's own sizes up to the largest one are counted")
    passed = passed_on("sglang", own, "--sglang-", tp=tp)
    return passed._replace(notes=[*notes, *passed.notes])
