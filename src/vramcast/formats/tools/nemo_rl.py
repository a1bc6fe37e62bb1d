"""NeMo-RL: YAML of `examples/run_grpo.py --config FILE name=value ...`, over the defaults of its examples.

[nemo] NVIDIA-NeMo/RL 7ea279a examples/configs/grpo_math_1B.yaml, grpo_math_1B_megatron.yaml; nemo_rl/models/policy
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.formats.reading import Config, Reading
from vramcast.formats.table import Row, read_rows
from vramcast.formats.watched import Watched

MEGATRON: Final = "policy.megatron_cfg."
VLLM: Final = "policy.generation.vllm_cfg."

ROWS: Final = (
    Row("prompts", "grpo.num_prompts_per_step"),
    Row("samples", "grpo.num_generations_per_prompt"),
    Row("rollout_tp", f"{VLLM}tensor_parallel_size"),
    Row("context", f"{VLLM}max_model_len"),
    Row("graphs", f"{VLLM}enforce_eager", words={"true": False, "false": True}),
)

SPLIT: Final = (
    Row("tp", f"{MEGATRON}tensor_model_parallel_size"),
    Row("pp", f"{MEGATRON}pipeline_model_parallel_size"),
    Row("cp", f"{MEGATRON}context_parallel_size"),
    Row("ep", f"{MEGATRON}expert_model_parallel_size"),
    Row("etp", f"{MEGATRON}expert_tensor_parallel_size"),
    Row("first_stage_layers", f"{MEGATRON}num_layers_in_first_pipeline_stage"),
    Row("last_stage_layers", f"{MEGATRON}num_layers_in_last_pipeline_stage"),
    Row("recompute", f"{MEGATRON}activation_checkpointing", words={"true": "full", "false": "none"}),
)

SHARDED: Final = (
    Row("recompute", "policy.dtensor_cfg.activation_checkpointing", words={"true": "full", "false": "none"}),
)

MATTERS: Final = re.compile(
    r"grpo\.num_(?:prompts|generations)_per|policy\.(?:model_name|train_|logprob_batch|max_total|precision$|"
    r"megatron_cfg\.(?:enabled|\w*parallel_size|activation_checkpointing|num_layers_in|fp8_cfg\.enabled|"
    r"optimizer\.optimizer_cpu_offload)|dtensor_cfg\.(?:enabled|\w*parallel_size|cpu_offload|activation)|"
    r"(?:sequence_packing|dynamic_batching)\.(?:enabled|train_mb_tokens)|generation\.(?:backend|colocated|"
    r"max_new_tokens|vllm_cfg\.(?:\w*parallel_size|gpu_memory|max_model_len|enforce_eager|precision)))|"
    r"cluster\.|loss_fn\.reference_policy_kl"
)
"""Names that change what is kept or how long it takes."""

SHORT_PROMPT: Final = 512
"""Longest prompt where nobody says how much of a sequence it is [tokens]."""


def read(config: Config) -> Reading:
    """Options of a recipe."""
    return reading(dict(_flat(config.table or {})))


def _flat(table: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and depth < 20:
            yield from _flat(value, f"{prefix}{name}.", depth + 1)
        else:
            yield prefix + name, value


def reading(given: Mapping[str, Any]) -> Reading:
    """What dotted names say."""
    values = Watched({name: value for name, value in given.items() if value is not None and MATTERS.match(name)})
    megatron = values.flag(f"{MEGATRON}enabled") is True
    said = read_rows((*ROWS, *(SPLIT if megatron else SHARDED)), values)
    options: dict[str, Any] = {field.replace("_", "-"): value for field, value in said.items()}
    options |= {"framework": "nemo-rl", "engine": "megatron" if megatron else "pytorch", "algorithm": "grpo"}
    options |= {} if megatron else {"sharded-by": "fsdp2"}
    model = values.text("policy.model_name")
    options |= {} if model is None else {"model": model}
    each, nodes = values.count("cluster.gpus_per_node") or 8, values.count("cluster.num_nodes") or 1
    length = values.count("policy.max_total_sequence_length")
    values.count("policy.generation.max_new_tokens")
    if length is not None:
        prompt = min(SHORT_PROMPT, length // 4)
        options |= {"prompt-len": prompt, "response-len": length - prompt,
                    "micro-tokens": length * (values.count("policy.train_micro_batch_size") or 1)}
    samples, batch = int(options.get("samples", 16)), values.count("policy.train_global_batch_size")
    if batch is not None:
        options["mini-batch"] = max(1, batch // samples)
    values.count("policy.logprob_batch_size")
    share = values.number(f"{VLLM}gpu_memory_utilization")
    options |= {} if share is None else {"memory-fraction": share}
    options["reference"] = values.number("loss_fn.reference_policy_kl_penalty") != 0
    options |= _apart(values, each, nodes)
    _settle(values, megatron=megatron)
    return Reading("nemo-rl", options, unread=tuple(values.unread()), ranks=each * nodes, nodes=nodes,
                   notes=("prompts are taken to be a quarter of a sequence, 512 tokens at most",))


def _apart(values: Watched, each: int, nodes: int) -> dict[str, Any]:
    """An engine with cards of its own."""
    own, machines = (values.count(f"policy.generation.colocated.resources.{name}")
                     for name in ("gpus_per_node", "num_nodes"))
    if values.flag("policy.generation.colocated.enabled") is not False:
        return {}
    apart = (own or each) * (machines or 1) if own or machines else each * nodes // 2
    return {"rollout-gpus": apart, "ahead": True}


def _settle(values: Watched, *, megatron: bool) -> None:
    """What is modelled at one value only, and what belongs to the backend that is off."""
    for name in list(values):
        if name.startswith("policy.dtensor_cfg." if megatron else MEGATRON):
            values.get(name)
    for name in (f"{VLLM}pipeline_parallel_size", "policy.dtensor_cfg.tensor_parallel_size",
                 "policy.dtensor_cfg.context_parallel_size", f"{VLLM}expert_parallel_size"):
        if not (megatron and "dtensor" in name) and not name.endswith("expert_parallel_size"):
            values.only(name, 1)
        values.get(name)
    values.only("policy.precision", "bfloat16")
    values.only("policy.generation.backend", "vllm")
    for name in ("policy.train_", "policy.sequence_packing.", "policy.dynamic_batching.", "cluster.", VLLM,
                 "policy.generation.colocated.", f"{MEGATRON}fp8_cfg.", f"{MEGATRON}optimizer."):
        for other in list(values):
            if other.startswith(name):
                values.get(other)
    if not megatron and values.flag("policy.dtensor_cfg.cpu_offload"):
        values.cannot("policy.dtensor_cfg.cpu_offload")
    if megatron and values.flag(f"{MEGATRON}optimizer.optimizer_cpu_offload"):
        values.cannot(f"{MEGATRON}optimizer.optimizer_cpu_offload")
