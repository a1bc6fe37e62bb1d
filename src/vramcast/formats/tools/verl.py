"""verl: `python3 -m verl.trainer.main_ppo name=value ...`, or the same names as YAML.

[verl] volcengine/verl b178a3c (0.8.0.dev) verl/trainer/config/**.yaml, _generated_ppo_trainer.yaml; verl/workers/
fsdp_workers.py `ActorRolloutRefWorker.__init__` for sizes that are given for all ranks; names of 0.3 to 0.10
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.documents import NoDocument, parse_yaml
from vramcast.formats.reading import NO_GPU, Config, Reading, command_of
from vramcast.formats.table import Row, read_rows
from vramcast.formats.watched import Watched, is_unset

ROLE: Final = "actor_rollout_ref."
MAIN: Final = re.compile(r"\bmain_(?:ppo|dapo|spin|sppo)\b|\bfully_async_main\b")
AHEAD: Final = re.compile(r"one_step_off|fully_async")
"""Trainers whose engine generates on cards of its own, ahead."""

ALGORITHMS: Final = {
    "gae": "ppo", "grpo": "grpo", "grpo_passk": "grpo", "grpo_vectorized": "grpo", "rloo": "rloo",
    "rloo_vectorized": "rloo", "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++",
    "remax": "remax", "gpg": "gpg", "opo": "grpo",
}
"""`algorithm.adv_estimator` -> ours: those alike keep the same networks."""

ROWS: Final = (
    Row("prompts", "data.train_batch_size"),
    Row("samples", "rollout.n"),
    Row("prompt_len", "data.max_prompt_length"),
    Row("response_len", "data.max_response_length"),
    Row("mini_batch", "actor.ppo_mini_batch_size"),
    Row("epochs", "actor.ppo_epochs"),
    Row("ulysses", "actor.ulysses_sequence_parallel_size"),
    Row("fused_loss", "model.use_fused_kernels", False),
    Row("layered_summon", "rollout.layered_summon", False),
    Row("rollout_tp", "rollout.tensor_model_parallel_size"),
    Row("max_sequences", "rollout.max_num_seqs"),
    Row("batched_tokens", "rollout.max_num_batched_tokens"),
    Row("context", "rollout.max_model_len"),
    Row("sleep", "rollout.free_cache_engine", False),
    Row("critic_micro_batch", "critic.ppo_micro_batch_size_per_gpu"),
    Row("algorithm", "algorithm.adv_estimator", words=ALGORITHMS),
    Row("recompute", "model.enable_gradient_checkpointing", words={"true": "full", "false": "none"}),
)
"""What one name says alone."""

SHARDED: Final = (
    Row("reshard_after_forward", "actor.fsdp_config.reshard_after_forward", True),
    Row("precision", "actor.fsdp_config.model_dtype", words={
        "fp32": "mixed-bf16", "float32": "mixed-bf16", "bf16": "pure-bf16", "bfloat16": "pure-bf16"}),
)

SPLIT: Final = (
    Row("tp", "actor.megatron.tensor_model_parallel_size"),
    Row("pp", "actor.megatron.pipeline_model_parallel_size"),
    Row("virtual_stages", "actor.megatron.virtual_pipeline_model_parallel_size"),
    Row("cp", "actor.megatron.context_parallel_size"),
    Row("ep", "actor.megatron.expert_model_parallel_size"),
    Row("etp", "actor.megatron.expert_tensor_parallel_size"),
    Row("sequence_parallel", "actor.megatron.sequence_parallel", True),
    Row("first_stage_layers", "actor.megatron.override_transformer_config.num_layers_in_first_pipeline_stage"),
    Row("last_stage_layers", "actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage"),
)

HARMLESS: Final = re.compile(
    r"trainer\.(?!n_gpus_per_node|nnodes|device)|data\.(?!train_batch_size|max_)|(custom_)?reward(_manager|_kwargs)?\.|"
    r"reward_model\.(reward|use_reward_loop|num_workers|launch|sandbox|strategy)|global_profiler|ray_|transfer_queue\.|"
    r"algorithm\.(?!adv_estimator|use_kl_in_reward|rollout_correction\.bypass)|hydra\.|"
    r"(actor|critic|ref)\.(optim\.|clip_|kl_|grad_clip|loss_|tau_|policy_loss|shuffle|checkpoint\.|data_loader_seed|"
    r"profil|router_replay|use_prefix_grouper$|load_weight|cliprange|ppo_epochs$|warmup|rollout_n|nccl_timeout)|"
    r"critic\.(strategy$|ulysses|forward_|model\.(tokenizer|external|override|trust|use_shm|enable_grad|use_remove|lora_alpha)|"
    r"rollout_n|use_dynamic|megatron\.(?!param|optim|grad))|ref\.(strategy|ulysses|use_torch|megatron\.(?!param)|"
    r"fsdp_config\.(?!param_offload|model_dtype)|entropy)|"
    r"model\.(lora_alpha|trust_remote_code|external_lib|use_shm|custom_chat|override_config|exclude_modules$|tokenizer|"
    r"hf_config|fused_kernel_options)|rollout\.(temperature|top_|val_kwargs|mode$|dtype$|ignore_eos|do_sample|"
    r"calculate_log_probs|disable_log|enable_chunked|enable_prefix|load_format|multi_turn|agent|prompt_length|"
    r"response_length|seed|skip|trace|scheduling|logprobs_mode|limit_images|profil|use_fire|prometheus|custom|"
    r"over_sample|multi_stage|server|update_weights_bucket|checkpoint_engine|engine_kwargs\.\w+\.disable_mm|log_prob_use_dynamic_bsz$|stop)|"
    r"actor\.(strategy$|use_torch_compile$|use_kl_loss$|fsdp_config\.(wrap|forward_prefetch|use_orig|seed|full_det|"
    r"forward_only|dtype|strategy)|megatron\.(use_mbridge|use_dist|dist_ckpt|seed|vanilla|override_ddp|"
    r"override_transformer_config\.(moe_(?!shared)|gradient_accum|apply_rope|attention_backend|account|recompute_(?!gran)|"
    r"bias|persist|masked|use_arb|deallocate|moe_shared_expert_overlap)|dist_checkpointing_path))|overlong_buffer|async_training\.|"
    r"hybrid_engine$|nccl_timeout$|env\."
)
"""Names that change neither what a network keeps nor how sequences are cut; those of Megatron's kernels among them."""


def read(config: Config) -> Reading:
    """Options of a command of verl, or of its YAML."""
    if config.table is not None:
        return reading(dict(_flat(config.table)), config.text)
    command = command_of(config, lambda words: sum(MAIN.search(word) is not None for word in words))
    table: dict[str, Any] = {}
    for word in command.words:
        name, equals, text = word.lstrip("+~").partition("=")
        if equals and re.fullmatch(r"[\w.]+", name) and not word.startswith("-"):
            table[name] = value_of(text)
    if any("megatron" in word for word in command.words if word.startswith(("--config-name", "ppo_megatron"))):
        table.setdefault("actor.strategy", "megatron")
    found = reading(table, config.text)
    return found._replace(unread=(*found.unread, *command.unread), notes=(*found.notes, *command.notes))


def _cards(values: Watched) -> tuple[int, int, int, int | None]:
    """Machines of the trainer, cards of each, cards of an engine apart, and all of them; None: a run says them."""
    names = ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node")
    if any(values.is_open(name) for name in names):
        for name in names:
            values.asked[name] = None
            values.pop(name, None)
        return 1, 8, 0, None
    nodes, each, rented, own = (values.count(name) for name in names)
    apart = (rented or 1) * own if own else 0
    nodes, each = nodes or 1, each or 8
    return nodes, each, apart, nodes * each + apart


def value_of(text: Any) -> Any:
    """A word of a command line as YAML reads it; what is no text stays."""
    if not isinstance(text, str):
        return text
    try:
        return parse_yaml(text)
    except NoDocument:
        return text


def _flat(table: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names with points between, and their values."""
    for name, value in table.items():
        if isinstance(value, Mapping) and depth < 20:
            yield from _flat(value, f"{prefix}{name}.", depth + 1)
        elif name not in ("_target_", "defaults"):
            yield prefix + name, value


def reading(given: Mapping[str, Any], text: str) -> Reading:
    """What dotted names say; `text` is that of the whole file, which may name a release."""
    named = {name.removeprefix(ROLE): value for name, value in given.items()}
    named = {name: value for name, value in named.items() if not (isinstance(value, str) and value.startswith("${oc."))}
    values = Watched({name: value for name, value in named.items() if value is not None and _matters(name, value)})
    megatron = named.get("actor.strategy") == "megatron"
    nodes, each, apart, all_gpus = _cards(values)
    said = read_rows((*ROWS, *(SPLIT if megatron else SHARDED)), values)
    options: dict[str, Any] = {field.replace("_", "-"): value for field, value in said.items()}
    options |= {"engine": "megatron"} if megatron else _strategy(named)
    options |= _model(values) | _rollout(values) | _offload(values, megatron=megatron) | _losses(named, values)
    options |= _micro(values, nodes * each // (options.get("ulysses") or 1))
    if apart:
        options |= {"rollout-gpus": apart} | ({"ahead": True} if AHEAD.search(text) else {})
    if megatron and str(values.get("actor.megatron.override_transformer_config.recompute_granularity")) != "full":
        options["recompute"] = "none"
    version = re.search(r"\bverl[=@ ]*[=@v](\d+\.\d+)", text)
    if version:
        options["framework"] = f"verl@{version[1]}"
    if values.get("trainer.device", "cuda") != "cuda":
        values.cannot("trainer.device", NO_GPU)
    for name in ("reward_model.enable", "reward_model.enable_resource_pool", "actor.fsdp_config.offload_policy",
                 "model.enable_activation_offload", "model.tiled_mlp.enabled", "model.use_liger", "model.mtp.enable",
                 "actor.calculate_sum_pi_squared", "algorithm.rollout_correction.bypass_mode"):
        if values.flag(name):
            values.cannot(name)
    if values.flag("actor.entropy_checkpointing") and options.get("entropy-kernel"):
        values.cannot("actor.entropy_checkpointing")  # where it is compiled, only the logits are kept as it is
    for name in ("rollout.data_parallel_size", "rollout.pipeline_model_parallel_size", "rollout.expert_parallel_size"):
        values.only(name, 1)
    return Reading("verl", {"framework": "verl"} | options, unread=tuple(values.unread()), ranks=all_gpus,
                   nodes=nodes)


def _matters(name: str, value: Any) -> bool:
    """Whether a name may change the answer: not what is printed, learned from or rewarded."""
    return HARMLESS.match(name) is None and not (name.startswith("reward_model.") and name != "reward_model.enable"
                                                 and "enable" not in name) and not name.startswith("data.custom")


def _strategy(named: Mapping[str, Any]) -> dict[str, Any]:
    found = str(named.get("actor.strategy", "fsdp"))
    return {"sharded-by": "fsdp2" if found == "fsdp2" else "fsdp1"}


def _model(values: Watched) -> dict[str, Any]:
    """Network and adapters."""
    path, critic = (_network(values, name) for name in ("model.path", "critic.model.path"))
    found: dict[str, Any] = {} if path is None else {"model": path}
    if critic is not None and path is not None and critic.rpartition("/")[2] != path.rpartition("/")[2]:
        values.cannot("critic.model.path", "is another network than the actor's, which is not modelled")
    rank = values.whole("model.lora_rank")
    if rank:
        found |= {"peft": "lora", "lora-rank": rank}
        targets = values.get("model.target_modules")
        if isinstance(targets, list):
            found["lora-targets"] = tuple(map(str, targets))
        elif targets is not None:
            found["lora-targets"] = (str(targets),)
    else:
        values.get("model.target_modules")
    return found


def _network(values: Watched, name: str) -> str | None:
    """A hub's id, or the last part of a folder, whatever stands before it."""
    path = dict.get(values, name)
    if not isinstance(path, str):
        return values.text(name)
    last = path.rstrip("/").rpartition("/")[2]
    if is_unset(last):
        return values.text(name)
    values[name] = path if path.count("/") == 1 and path[0] not in "/~.$" else last
    return values.text(name)


def _rollout(values: Watched) -> dict[str, Any]:
    """The engine that generates."""
    found: dict[str, Any] = {}
    name = values.one_of("rollout.name", {"vllm": "vllm", "sglang": "sglang", "sglang_rollout": "sglang"})
    if name is not None:
        found["rollout"] = name
    share = values.number("rollout.gpu_memory_utilization")
    if share is not None:
        found["memory-fraction"] = share
    eager = values.flag("rollout.enforce_eager")
    if eager is not None:
        found["graphs"] = not eager
    return found


def _offload(values: Watched, *, megatron: bool) -> dict[str, Any]:
    """What waits on the host; a critic's as the actor's."""
    place = "actor.megatron." if megatron else "actor.fsdp_config."
    weights, moments = values.flag(f"{place}param_offload"), values.flag(f"{place}optimizer_offload")
    gradients = values.flag(f"{place}grad_offload")
    if gradients is not None and bool(gradients) != bool(weights):
        values.cannot(f"{place}grad_offload", "other than param_offload is not modelled")
    of_critic = "critic.megatron." if megatron else "critic.model.fsdp_config."
    for name, own in (("param_offload", weights), ("optimizer_offload", moments), ("grad_offload", gradients)):
        other = values.flag(f"{of_critic}{name}")
        if other is not None and bool(other) != bool(own):
            values.cannot(f"{of_critic}{name}", "other than the actor's is not modelled")
    reference = values.flag("ref.megatron.param_offload" if megatron else "ref.fsdp_config.param_offload")
    found: dict[str, Any] = {}
    if weights is not None:
        found["offload-parameters"] = "cpu" if weights else "none"
    if moments is not None:
        found["offload-optimizer"] = "cpu" if moments else "none"
    if reference is not None:
        found["offload-reference"] = reference
    group = values.get("actor.fsdp_config.fsdp_size")
    if isinstance(group, int) and group > 0:
        found["shard-group"] = group
    return found


def _losses(named: Mapping[str, Any], values: Watched) -> dict[str, Any]:
    """Terms of the loss and how they are computed."""
    found: dict[str, Any] = {}
    entropy = values.number("actor.entropy_coeff")
    if entropy is not None or values.flag("actor.calculate_entropy"):
        found["entropy"] = bool(entropy) or bool(values.flag("actor.calculate_entropy"))
    kinds = (named.get("actor.use_kl_loss"), values.flag("algorithm.use_kl_in_reward"))
    if any(kind is not None for kind in kinds):
        found["reference"] = any(kind is True for kind in kinds)
    removed = values.flag("model.use_remove_padding")
    values.flag("actor.use_remove_padding")
    if removed is not None:
        found["padded"] = not removed
    if any(values.flag(name) for name in (
            "actor.entropy_from_logits_with_chunking", "actor.fsdp_config.entropy_from_logits_with_chunking")):
        found["entropy-kernel"] = "chunked"
    elif named.get("actor.use_torch_compile") is False:
        found["entropy-kernel"] = "eager"
    return found


def _micro(values: Watched, replicas: int) -> dict[str, Any]:
    """Micro-batches: sequences on one card, or for all ranks together; or tokens on one card."""
    found: dict[str, Any] = {}
    dynamic = values.flag("actor.use_dynamic_bsz")
    tokens = values.count("actor.ppo_max_token_len_per_gpu")
    each, every = (values.count(f"actor.ppo_micro_batch_size{end}") for end in ("_per_gpu", ""))
    if dynamic:
        found["micro-tokens"] = tokens or 16384
    elif each or every:
        found["micro-batch"] = each or max(1, (every or 1) // max(1, replicas))
    asked = [values.count(f"{who}.log_prob_micro_batch_size_per_gpu") for who in ("rollout", "ref")]
    together = [values.count(f"{who}.log_prob_micro_batch_size") for who in ("rollout", "ref")]
    budgets = [values.count(f"{who}.log_prob_max_token_len_per_gpu") for who in ("rollout", "ref")]
    sizes = [size for size in (*asked, *(max(1, one // max(1, replicas)) if one else None for one in together)) if size]
    own = values.flag("ref.log_prob_use_dynamic_bsz")
    if dynamic if own is None else own:
        if any(budgets):
            found["log-prob-tokens"] = max(budget for budget in budgets if budget)
    elif sizes:
        found["log-prob-micro-batch"] = max(sizes)
    values.count("critic.ppo_max_token_len_per_gpu")
    values.count("critic.ppo_mini_batch_size")
    for name in ("critic.forward_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size"):
        values.count(name)
    return found

