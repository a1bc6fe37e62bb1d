"""slime: `python3 train.py --name value ...`, Megatron-LM's arguments, its own, and SGLang's behind `--sglang-`.

[slime] THUDM/slime 624b824 (0.3.1) slime/utils/arguments.py, slime/utils/dp_schedule.py; scripts/run-*.sh
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.environment import options_of_environment
from vramcast.formats.reading import Config, Reading, Unread, arguments, command_of
from vramcast.formats.table import Row, read_options
from vramcast.formats.tools import sglang
from vramcast.formats.tools.megatron import OF_NETWORK
from vramcast.formats.watched import Known, Watched

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
    model = values.text("hf_checkpoint")
    options |= {} if model is None else {"model": model.rstrip("/").rpartition("/")[2] if model[0] == "/" else model}
    sizes, notes = _sizes(values, given, int(options.get("samples", 1)))
    trainer, engine = _cards(values)
    apart = {} if engine is None else {"rollout-gpus": engine, "ahead": bool(ahead)}
    options |= {**sizes, **apart, "entropy": bool(values.number("entropy_coef"))}
    options["reference"] = any((given.get("use_kl_loss"), values.number("kl_coef")))
    values.number("kl_loss_coef")
    values.get("offload")
    if values.flag("use_precision_aware_optimizer") and options.get("offload-optimizer", "none") == "none":
        options["trainer-option"] = ("precision_aware=true",)
    if (values.count("over_sampling_batch_size") or 0) > int(options.get("prompts", 0)):
        notes.append("prompts that are generated and filtered out again are not timed")
    buffer = values.count("update_weight_buffer_size")
    options |= {"bucket-mib": max(1, buffer >> 20)} if buffer else {}
    own, refused, more = _of_engine(given, int(options.get("rollout-tp", 1)))
    each = values.count("actor_num_gpus_per_node") or 8
    return Reading("slime", options | own, unread=(*values.unread(), *refused), notes=(*notes, *more),
                   ranks=trainer + (engine or 0), nodes=max(1, (trainer + (engine or 0)) // max(each, 1)))


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


OF_ENGINE: Final = ("memory-fraction", "max-sequences", "batched-tokens", "graphs", "engine-option", "context")
"""What SGLang's arguments may say of it beside a trainer."""


def _of_engine(given: Mapping[str, Any], tp: int) -> tuple[dict[str, Any], list[Unread], list[str]]:
    """Arguments of SGLang as its own reader has them, those that are not modelled beside a trainer, and notes."""
    own = {name.removeprefix("sglang_"): value for name, value in given.items() if name.startswith("sglang_")}
    own.pop("server_concurrency", None)
    notes = []
    if sizes := SIZE.findall(str(own.pop("cuda_graph_bs", ""))):
        own["cuda_graph_max_bs"] = max(map(int, sizes))
        notes.append("--sglang-cuda-graph-bs: SGLang's own sizes up to the largest one are counted")
    ep = own.get("ep_size", own.get("expert_parallel_size", 1))
    if ep == tp > 1 and not own.get("enable_dp_attention"):
        own.pop("ep_size", None), own.pop("expert_parallel_size", None)
        notes.append(Note(
            "--sglang-ep-size {}: experts take as much of a card as over {} ranks of tensor parallelism", tp, tp
        ))
    words = ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp-size", str(tp)]
    for name, value in own.items():
        listed = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, listed)]
    found = sglang.read(Config("", shlex.join(words), None))
    options = {name: value for name, value in found.options.items() if name in OF_ENGINE}
    others = [Unread(f"--sglang ({name})") for name, value in found.options.items()
              if name not in (*OF_ENGINE, "engine", "model", "tp") and (name, value) != ("dp", 1)]
    return options, [*(one._replace(name=f"--sglang-{one.name.lstrip('-')}") for one in found.unread), *others], notes
