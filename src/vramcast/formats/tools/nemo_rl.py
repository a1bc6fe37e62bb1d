"""NeMo-RL: YAML of `examples/run_grpo.py --config FILE name=value ...`, with the files that it begins with.

[nemo] NVIDIA-NeMo/RL 7ea279a examples/configs/grpo_math_1B.yaml; nemo_rl/utils/config.py: inheritance, resolvers;
nemo_rl/models/policy/lm_policy.py, workers/dtensor_policy_worker.py, dtensor_policy_worker_v2.py, megatron/setup.py;
nemo_rl/models/generation/vllm/vllm_worker.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from vramcast.errors import Note, Unsupported
from vramcast.formats.reading import ELSEWHERE, Config, Reading, Unread, command_of
from vramcast.formats.table import Row, flat, read_options, resolved, value_of
from vramcast.formats.tools.rollout_engine import REPLAYED, Passed, passed_on
from vramcast.formats.tools.verl import ON_HOST, OVERRIDE
from vramcast.formats.watched import Known, Watched

MEGATRON: Final = "policy.megatron_cfg."
DTENSOR: Final = "policy.dtensor_cfg."
LORA: Final = f"{DTENSOR}lora_cfg."
GENERATION: Final = "policy.generation."
VLLM: Final = f"{GENERATION}vllm_cfg."
KWARGS: Final = f"{GENERATION}vllm_kwargs."
APART: Final = f"{GENERATION}colocated."

RECOMPUTES: Final = {"true": "full", "false": "none"}

ROWS: Final = (
    Row("prompts", "grpo.num_prompts_per_step"),
    Row("samples", "grpo.num_generations_per_prompt"),
    Row("rollout_tp", f"{VLLM}tensor_parallel_size"),
    Row("context", f"{VLLM}max_model_len"),
    Row("graphs", f"{VLLM}enforce_eager", words={"true": False, "false": True}),
    Row("memory_fraction", f"{VLLM}gpu_memory_utilization", 0.5),
)

SPLIT: Final = (
    Row("tp", f"{MEGATRON}tensor_model_parallel_size"),
    Row("pp", f"{MEGATRON}pipeline_model_parallel_size"),
    Row("cp", f"{MEGATRON}context_parallel_size"),
    Row("ep", f"{MEGATRON}expert_model_parallel_size"),
    Row("etp", f"{MEGATRON}expert_tensor_parallel_size"),
    Row("sequence_parallel", f"{MEGATRON}sequence_parallel", True),
    Row("first_stage_layers", f"{MEGATRON}num_layers_in_first_pipeline_stage"),
    Row("last_stage_layers", f"{MEGATRON}num_layers_in_last_pipeline_stage"),
    Row("recompute", f"{MEGATRON}activation_checkpointing", words=RECOMPUTES),
    Row("alloc_conf", f"{MEGATRON}env_vars.PYTORCH_CUDA_ALLOC_CONF", ""),
)

SHARDED: Final = (
    Row("tp", f"{DTENSOR}tensor_parallel_size"),
    Row("ulysses", f"{DTENSOR}context_parallel_size"),
    Row("recompute", f"{DTENSOR}activation_checkpointing", words=RECOMPUTES),
    Row("alloc_conf", f"{DTENSOR}env_vars.PYTORCH_CUDA_ALLOC_CONF", ""),
)

FREEZES: Final = f"{MEGATRON}freeze_config."
FROZEN: Final = {"freeze_vision_model": "towers", "freeze_vision_projection": "projectors"}
"""Switch -> parts that do not learn."""

WIDTHS: Final = {
    "accumulate_in_fp32": "distributed_data_parallel_config.grad_reduce_in_fp32",
    "precision_aware": "optimizer.use_precision_aware_optimizer",
}
"""Option of the trainer -> its name under Megatron."""

SAYS_NOTHING: Final = re.compile(
    r"(?:grpo\.(?!num_prompts_per|num_generations_per|async_grpo\.(?:enabled|max_trajectory)|adv_estimator\.name|batch_multiplier|seq_logprob_error)|"
    r"loss_fn\.(?!reference_policy_kl_penalty$|force_on_policy_ratio)|cluster\.(?!gpus_per_node$|num_nodes$)|"
    r"policy\.(?:tokenizer|scheduler|draft\.(?!enabled)|optimizer\.(?!name)|hf_config_overrides\.(?:.*aux_loss_coef|max_position|rope_scaling)|"
    r"generation_batch_size|logprob_chunk_size|make_sequence|max_grad_norm|offload_optimizer_for_logprob|"
    r"quant_(?!cfg)|refit_buffer_size_gb|router_replay\.(?!enabled)|disable_modelopt|"
    r"dtensor_cfg\.(?:_v2$|sequence_parallel|automodel_kwargs\.(?:force_hf|use_sdpa_patching)|clear_cache_every|"
    r"moe_parallelizer|lora_cfg\.(?:alpha|dropout|lora_A_init|use_triton)|env_vars\.(?!PYTORCH_CUDA_ALLOC))|"
    r"megatron_cfg\.(?:checkpoint\.|scheduler\.|converter_type|moe_(?!aux_loss_never)|apply_rope|bias_activation|"
    r"attention_backend|average_in|calculate_per|clear_memory|cp_normalize|cuda_graph_(?!impl)|defer_fp32|"
    r"distributed_data_parallel_config\.(?!use_custom|grad_reduce_in)|do_not_average|empty_unused|env_vars\.(?!PYTORCH_CUDA_ALLOC)|"
    r"force_reconvert|fp8_cfg\.(?!enabled)|freeze_moe|fused_linear_logprobs_chunk|gradient_accumulation|mtp_(?!num)|"
    r"offload_modules|optimizer\.(?!optimizer|use_(?:dist|prec)|exp_avg|main_|store_)|optimizer\.optimizer_offload|"
    r"overlap|peft\.(?!enabled)|pipeline_dtype|recompute_modules|scale_loss|track_moe|train_iters|use_gloo|"
    r"use_fused_weighted)|"
    r"(?:sequence_packing|dynamic_batching)\.(?!enabled|(?:train|logprob)_mb_tokens)|"
    r"generation\.(?:bad_words|port_range|real_quant|refit_|temperature|top_|stop_|ignore_eos|vllm_cfg\.(?:async_engine|"
    r"load_format|skip_tokenizer|expose_http|http_|enable_vllm_metrics|vllm_metrics|use_deep_gemm|"
    r"num_(?:first|last)_layers_in_bf16|quantization_ignored|use_(?:activation|weight)_pow2|"
    r"logprobs_mode|reset_encoder|use_tqdm|enable_prefix|reasoning_parser|cap_max_tokens|enforce_monotonicity|"
    r"enable_thinking|env_vars\.(?!PYTORCH_CUDA_ALLOC)|is_mx)|use_async_rollouts|(?:mcore_generation|sglang|trtllm|dynamo)\w*\.|"
    r"num_prompts|model_name|solver|val_)))|policy\.activation_checkpointing_enabled"
)
"""Names that change neither what is kept nor how long it takes by more than the figures here are sure of, or that
belong to an engine that is refused."""

MATTERS: Final = re.compile(r"(?:grpo|policy|cluster|loss_fn)\.")
"""Tables of a recipe beside which it has data, environments, logs and checkpoints."""

OTHERS: Final = {"dpo": "dpo", "sft": "pretrain", "rm": "rm", "distillation": "", "ppo": ""}
"""What else NeMo-RL runs, by its table -> the objective of `vramcast train`."""

SHORT_PROMPT: Final = 512
"""Longest prompt where nobody says how much of a sequence it is [tokens]."""

DEEPEST: Final = 8
"""Files that begin with one another."""

CONFIG: Final = re.compile(r"""--config[ =]+["']?([\w./-]+\.ya?ml)""")
PROGRAM: Final = re.compile(r"\brun_(\w+)\.py$")


def files_of(config: Config) -> list[str]:
    """The files that a recipe begins with, or that a command starts with."""
    if config.table is None:
        return CONFIG.findall(config.text)
    begins = config.table.get("defaults")
    named = [begins] if isinstance(begins, str) else begins if isinstance(begins, list) else []
    return [name for name in named if isinstance(name, str) and name.endswith((".yaml", ".yml"))]


def read(config: Config) -> Reading:
    """Options of a recipe, or of the command that starts it.

    Raises: Unsupported for what NeMo-RL trains otherwise
    """
    unread: list[Unread] = []
    notes: tuple[str, ...] = ()
    if config.table is not None:
        table = _inherited(config.table, config, unread)
        given = dict(flat(table))
    else:
        command = command_of(config, lambda words: sum(PROGRAM.search(word) is not None for word in words))
        if not (files := CONFIG.findall(config.text)):
            raise Unsupported("{}: names no --config: name the file that the script takes by itself, and give it with "
                              "another --from", config.name)
        table = _inherited({"defaults": files}, config, unread)
        given = dict(flat(table))
        for word in command.words:
            if override := OVERRIDE.fullmatch(word):
                given[override[2]] = value_of(override[3])
        unread += command.unread
        notes = command.notes
    for name, objective in OTHERS.items():
        if "grpo" not in table and any(key == name or key.startswith(f"{name}.") for key in given):
            if objective:
                raise Unsupported(
                    "{} is a recipe of NeMo-RL's {}, of which only GRPO is read; vramcast train --objective {} takes "
                    "its sizes as options", config.name, name, objective
                )
            raise Unsupported("{} is a recipe of NeMo-RL's {}, of which only GRPO is read", config.name, name)
    found = reading(given, sees=any("vlm" in str(value) for name, value in given.items() if name.endswith("processor")))
    return found._replace(unread=(*found.unread, *unread), notes=(*found.notes, *notes))


def _inherited(table: Mapping[str, Any], config: Config, unread: list[Unread], depth: int = 0) -> dict[str, Any]:
    """A table over those that it begins with [nemo] `load_config_with_inheritance`."""
    whole: dict[str, Any] = {}
    for name in files_of(config._replace(table=table)):
        below = config.beside.get(PurePosixPath(name).name)
        if below is None or depth > DEEPEST:
            unread.append(Unread(name, ELSEWHERE, file="nemo-rl"))
        else:
            whole = _merged(whole, _inherited(below, config, unread, depth + 1))
    return _merged(whole, {name: value for name, value in table.items() if name != "defaults"})


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        under = found.get(name)
        joins = isinstance(value, Mapping) and isinstance(under, Mapping) and not value.get("_override_")
        found[name] = _merged(under, value) if joins and isinstance(under, Mapping) else value
    return found


def reading(given: Mapping[str, Any], *, sees: bool = False) -> Reading:
    """What dotted names say.

    Args:
        sees: whether prompts have images, which data of a network that reads them need not have
    """
    values = Watched({name: resolved(given, value) for name, value in given.items()
                      if value is not None and MATTERS.match(name) and not SAYS_NOTHING.match(name)})
    megatron = values.flag(f"{MEGATRON}enabled") is True
    if not megatron and values.flag(f"{DTENSOR}enabled") is False:
        values.cannot(f"{DTENSOR}enabled", "is false beside policy.megatron_cfg.enabled=false, which NeMo-RL refuses")
    options = read_options((*ROWS, *(SPLIT if megatron else SHARDED)), values)
    options |= {"framework": "nemo-rl", "engine": "megatron" if megatron else "pytorch", "algorithm": "grpo"}
    each, nodes = values.count("cluster.gpus_per_node") or 8, values.count("cluster.num_nodes") or 1
    options |= _of_megatron(values) if megatron else _of_dtensor(values, each * nodes)
    options |= {} if (model := values.text("policy.model_name")) is None else {"model": model}
    options |= _lengths(values) | ({} if sees else {"images": 0})
    samples, batch = int(options.get("samples", 16)), values.count("policy.train_global_batch_size")
    if batch is not None and batch % samples:
        values.cannot("policy.train_global_batch_size", "{} sequences are no whole prompts of {} answers", batch,
                      samples, option="mini-batch")
    elif batch is not None:
        options["mini-batch"] = batch // samples
    options["reference"] = values.number("loss_fn.reference_policy_kl_penalty") != 0
    options |= _apart(values, each, nodes)
    engine = _of_engine(values)
    _settle(values, megatron=megatron)
    notes: list[str] = ["prompts are taken to be a quarter of a sequence, 512 tokens at most", *engine.notes]
    if values.get(f"{VLLM}precision") == "fp8":  # [nemo] models/generation/vllm/quantization/fp8.py: blocks of 128
        options["rollout-weights"] = "fp8-block"
    if megatron and values.flag(name := f"{MEGATRON}fp8_cfg.enabled"):
        notes.append(Note("{}: counted and timed as bf16", name))
    compares = values.get("grpo.seq_logprob_error_threshold") is not None
    if values.flag("loss_fn.force_on_policy_ratio") and not compares:  # [nemo] `_skip_prev_logprobs`
        notes.append("loss_fn.force_on_policy_ratio: NeMo-RL 0.7 computes no old log-probabilities, 0.6 does; "
                     "--reuse-log-prob leaves them out")
    if (drawn := values.number("grpo.batch_multiplier") or 1) > 1:
        notes.append(Note("grpo.batch_multiplier {:g}: prompts that dynamic sampling drops are not timed", drawn))
    if not megatron and int(options.get("ulysses") or 1) > 1:
        notes.append("ring attention is counted as Ulysses: the keys and values that ranks hand round a ring are left "
                     "out")
    if values.flag("policy.router_replay.enabled"):
        notes.append(REPLAYED)
    return Reading("nemo-rl", options | engine.options, unread=(*values.unread(), *engine.unread), notes=tuple(notes),
                   ranks=each * nodes, nodes=nodes, parts=engine.parts)


def _lengths(values: Watched) -> dict[str, Any]:
    """Sequences, and how they are cut: packed or by their length up to a budget, or padded to the longest."""
    length, micro = values.count("policy.max_total_sequence_length"), values.count("policy.train_micro_batch_size")
    rated, most = values.count("policy.logprob_batch_size"), values.count(f"{GENERATION}max_new_tokens")
    packs, sorts = values.flag("policy.sequence_packing.enabled"), values.flag("policy.dynamic_batching.enabled")
    cut = {by: tuple(values.count(f"policy.{by}.{part}_mb_tokens") for part in ("train", "logprob"))
           for by in ("dynamic_batching", "sequence_packing")}
    learned, rated_at = cut["dynamic_batching" if sorts else "sequence_packing"]
    if length is None:
        return {}
    prompt = min(SHORT_PROMPT, length // 4)
    options: dict[str, Any] = {"prompt-len": prompt, "response-len": min(most or length, length - prompt)}
    if packs is False and not sorts:
        return {**options, "padded": True, "micro-batch": micro or 1, "log-prob-micro-batch": rated or micro or 1}
    return {**options, "micro-tokens": learned or length * (micro or 1),
            "log-prob-tokens": rated_at or length * (rated or micro or 1)}


def _of_megatron(values: Watched) -> dict[str, Any]:
    """Widths of gradients and of fp32 weights, where a recipe says them."""
    said = {option: values.flag(f"{MEGATRON}{name}") for option, name in WIDTHS.items()}
    words = tuple(f"{option}={str(flag).lower()}" for option, flag in said.items() if flag is not None)
    values.must_be_off(f"{FREEZES}freeze_language_model", "leaves towers alone to learn, which is not modelled")
    still = tuple(part for name, part in FROZEN.items() if values.flag(f"{FREEZES}{name}"))
    return ({"trainer-option": words} if words else {}) | ({"freeze": ",".join(still)} if still else {})


def _of_dtensor(values: Watched, ranks: int) -> dict[str, Any]:
    """FSDP2 over all ranks, or over those that are no copies of others; adapters on every linear layer."""
    options: dict[str, Any] = {"sharded-by": "fsdp2"}
    copies, adapted = values.count(f"{DTENSOR}dp_replicate_size") or 1, values.flag(f"{LORA}enabled")
    split = values.count(f"{DTENSOR}tensor_parallel_size") or 1
    options |= {"shard-group": ranks // copies // split} if copies > 1 else {}
    options |= ON_HOST if values.flag(f"{DTENSOR}cpu_offload") else {}
    rank = values.count(f"{LORA}dim")
    return options | ({"peft": "lora", "lora-rank": rank or 8} if adapted else {})


def _apart(values: Watched, each: int, nodes: int) -> dict[str, Any]:
    """An engine with cards of its own."""
    own, machines = (values.count(f"{APART}resources.{name}") for name in ("gpus_per_node", "num_nodes"))
    ahead, lag = values.flag("grpo.async_grpo.enabled"), values.count("grpo.async_grpo.max_trajectory_age_steps") or 1
    if values.flag(f"{APART}enabled") is not False:
        return {}
    apart = (own or each) * (machines or 1) if own or machines else each * nodes // 2
    late = {"lag": lag} if lag > 1 and ahead is not False else {}
    return {"rollout-gpus": apart, "ahead": ahead is not False, **late}


def _of_engine(values: Watched) -> Passed:
    """Experts of vLLM, its copies where there are more ranks of experts than of tensors [nemo vllm_generation.py], and
    arguments that are passed on to it."""
    experts, tp = values.count(f"{VLLM}expert_parallel_size") or 1, values.count(f"{VLLM}tensor_parallel_size") or 1
    found: dict[str, Any] = {"rollout-expert-parallel": True} if experts > 1 else {}
    values.get(f"{VLLM}enable_expert_parallel")  # which NeMo-RL does not read
    if experts > tp and experts % tp == 0:
        found["rollout-dp"] = experts // tp
    elif experts not in (1, tp):
        values.cannot(f"{VLLM}expert_parallel_size", "{} is no multiple of tensor_parallel_size={}, where NeMo-RL "
                      "stops", experts, tp)
    if (cache := values.text(f"{VLLM}kv_cache_dtype")) not in (None, "auto"):
        found["rollout-kv-dtype"] = cache
    own = {name.removeprefix(KWARGS): values.get(name) for name in values if name.startswith(KWARGS)}
    passed = passed_on("vllm", own, KWARGS, context=values.count(f"{VLLM}max_model_len"))
    return passed._replace(options=found | passed.options)


def _settle(values: Watched, *, megatron: bool) -> None:
    """What belongs to the backend that is off says nothing."""
    off = (DTENSOR, "policy.optimizer.", APART) if megatron else (MEGATRON, APART)
    off = off if values.flag(f"{LORA}enabled") else (*off, LORA)
    for name in [name for name in values if name.startswith(off) and not values.is_open(name)
                 and name not in values.refused]:
        del values[name]
    values.known = Known("nemo-rl", "megatron" if megatron else "dtensor", (Known("nemo-rl", "config"),))
