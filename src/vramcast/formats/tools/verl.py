"""verl: `python3 -m verl.trainer.main_ppo name=value ...`, or the same names as YAML.

[verl] volcengine/verl 1dda039b (0.10.0.dev) verl/trainer/config/**.yaml, _generated_ppo_trainer.yaml; verl/workers/
config/*.py for what is required; b178a3c verl/workers/fsdp_workers.py, megatron_workers.py `__init__` for sizes that
are given for all ranks; names of 0.3 to 0.10
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import load_format, renamed
from vramcast.domain.version import read_version, version_text
from vramcast.engines.post_training.releases import FRAMEWORKS
from vramcast.errors import Note
from vramcast.formats.reading import ELSEWHERE, NO_GPU, NOT_MODELLED, Config, Reading, Unread, command_of
from vramcast.formats.table import DEEPEST, Row, flat, read_options, value_of
from vramcast.formats.tools.rollout_engine import REPLAYED
from vramcast.formats.tools.verl_roles import (
    MCORE,
    MEGATRON,
    OF_CRITIC,
    OF_REFERENCE,
    OF_SHARDED_CRITIC,
    OF_SPLIT_CRITIC,
    TRAINS_WITH,
    as_fsdp,
    check_experts,
    engine_of,
    network,
    rewards,
    version_of,
)
from vramcast.formats.unread import options_of_environment, unread_by_engines
from vramcast.formats.watched import Known, Watched

ROLE: Final = "actor_rollout_ref."
NAMES: Final = Known("verl", "config")
MAIN: Final = re.compile(r"\bmain_(?:ppo(?:_sync)?|dapo)\b|\bfully_async_main\b")
PROGRAM: Final = re.compile(r"\bmain_\w+|\bfully_async_main\b|\b\w*sft_trainer\w*")
"""Programs of verl and of its recipes."""

CHECKED: Final = re.compile(r"verl\.trainer\.main_ppo$")
"""The program whose names are all in the snapshot; others add some of their own."""

AHEAD: Final = re.compile(r"one_step_off|fully_async")
"""Trainers whose engine generates on cards of its own, ahead."""

UNCUT: Final = "is set nowhere, nor is use_dynamic_bsz, where verl stops"

OVERRIDE: Final = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
CONFIG_NAME: Final = re.compile(r"--?(?:config-name|cn)=?'?([\w./-]*)'?")
TRAINERS: Final = {"ppo_trainer": "fsdp", "ppo_megatron_trainer": "megatron", "one_step_off_ppo_trainer": "fsdp",
                   "one_step_off_ppo_megatron_trainer": "megatron", "fully_async_ppo_trainer": "fsdp",
                   "fully_async_ppo_megatron_trainer": "megatron", "dapo_trainer": "fsdp",
                   "dapo_megatron_trainer": "megatron"}
"""Configurations that are verl's own -> what they train with; any other is a file of its own."""

RELEASE: Final = re.compile(r"\bverl(?:==|~=|>=|@v?|[-:]v?)?(0\.\d+)")
"""In an image's tag or a pin of the package."""

INTERPOLATED: Final = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*(.*))?\}")

OF_OTHER_ENGINES: Final = re.compile(r"(actor|ref|critic)\.(veomni|torchtitan|engine)\.")
"""Names that say nothing to those."""

MODES: Final = {"sync": False, "colocate_async": False, "separate_async": True}
"""`trainer.v1.trainer_mode` -> whether the engine generates ahead, on cards of its own."""

ALGORITHMS: Final = {
    "gae": "ppo", "grpo": "grpo", "grpo_passk": "grpo", "grpo_vectorized": "grpo", "rloo": "rloo",
    "rloo_vectorized": "rloo", "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++",
    "remax": "remax", "gpg": "gpg", "opo": "grpo", "gdpo": "grpo", "optimal_token_baseline": "grpo",
    "tir_optimal_token_baseline": "grpo",
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
    Row("rollout", "rollout.name", words={"vllm": "vllm", "sglang": "sglang", "sglang_rollout": "sglang"}),
    Row("rollout_tp", "rollout.tensor_model_parallel_size"),
    Row("rollout_dp", "rollout.data_parallel_size", 1),
    Row("memory_fraction", "rollout.gpu_memory_utilization", 0.5),
    Row("max_sequences", "rollout.max_num_seqs"),
    Row("batched_tokens", "rollout.max_num_batched_tokens"),
    Row("context", "rollout.max_model_len"),
    Row("graphs", "rollout.enforce_eager", words={"true": False, "false": True}),
    Row("sleep", "rollout.free_cache_engine", False),
    Row("bucket_mib", "rollout.checkpoint_engine.update_weights_bucket_megabytes"),
    Row("algorithm", "algorithm.adv_estimator", words=ALGORITHMS),
    Row("recompute", "model.enable_gradient_checkpointing", words={"true": "full", "false": "none"}),
    Row("reuse_log_prob", "algorithm.rollout_correction.bypass_mode", False),
    Row("padded", "model.use_remove_padding", words={"true": False, "false": True}),
)
"""What one name says alone."""

SHARDED: Final = (
    Row("sharded_by", "actor.strategy", words={"fsdp": "fsdp1", "fsdp2": "fsdp2"}),
    Row("reshard_after_forward", "actor.fsdp_config.reshard_after_forward", True),
    Row("offload_parameters", "actor.fsdp_config.param_offload", words={"true": "cpu", "false": "none"}),
    Row("offload_optimizer", "actor.fsdp_config.optimizer_offload", words={"true": "cpu", "false": "none"}),
    Row("offload_reference", "ref.fsdp_config.param_offload", False),
    Row("precision", "actor.fsdp_config.model_dtype", words={
        "fp32": "mixed-bf16", "float32": "mixed-bf16", "bf16": "pure-bf16", "bfloat16": "pure-bf16"}),
)

TRANSFORMER: Final = f"{MEGATRON}override_transformer_config."

SPLIT: Final = (
    Row("tp", f"{MEGATRON}tensor_model_parallel_size"),
    Row("pp", f"{MEGATRON}pipeline_model_parallel_size"),
    Row("virtual_stages", f"{MEGATRON}virtual_pipeline_model_parallel_size"),
    Row("cp", f"{MEGATRON}context_parallel_size"),
    Row("ep", f"{MEGATRON}expert_model_parallel_size"),
    Row("etp", f"{MEGATRON}expert_tensor_parallel_size"),
    Row("sequence_parallel", f"{MEGATRON}sequence_parallel", True),
    Row("offload_parameters", f"{MEGATRON}param_offload", words={"true": "cpu", "false": "none"}),
    Row("offload_optimizer", f"{MEGATRON}optimizer_offload", words={"true": "cpu", "false": "none"}),
    Row("offload_reference", "ref.megatron.param_offload", False),
    Row("first_stage_layers", f"{TRANSFORMER}num_layers_in_first_pipeline_stage"),
    Row("last_stage_layers", f"{TRANSFORMER}num_layers_in_last_pipeline_stage"),
)

RENAMED: Final = renamed("verl", "config")
"""A second place of a setting, or its place in former releases -> where it is read."""


REFUSED: Final = {
    "reward_model.enable_resource_pool": "cards of the reward network's own are not modelled",
    "model.enable_activation_offload": NOT_MODELLED,
    "model.tiled_mlp.enabled": NOT_MODELLED,
    "model.use_liger": NOT_MODELLED,
    "actor.calculate_sum_pi_squared": NOT_MODELLED,
    "actor.use_prefix_grouper": "prompts that answers share in one pass are not modelled",
    f"{TRANSFORMER}account_for_embedding_in_pipeline_split": NOT_MODELLED,
    f"{TRANSFORMER}account_for_loss_in_pipeline_split": NOT_MODELLED,
}
"""Flags that must be off."""

OF_MCORE: Final = dict.fromkeys((f"{MCORE}optimizer_cpu_offload", f"{MCORE}use_precision_aware_optimizer",
                                "actor.optim.use_precision_aware_optimizer"), "is Megatron's own, and FSDP trains")


def read(config: Config) -> Reading:
    """Options of a command of verl, or of its YAML."""
    if config.table is not None:
        return reading(_tree(config.table), config.text)
    command = command_of(config, lambda words: sum(PROGRAM.search(word) is not None for word in words))
    programs = [match[0] for word in command.words if (match := PROGRAM.search(word))]
    if programs and not any(map(MAIN.search, command.words)):
        why = "is a program of verl that is not modelled; main_ppo is"
        return Reading("verl", {}, unread=(Unread(programs[0], why),))
    table = _tree(config.beside)
    added = {name.removeprefix(ROLE) for name in table}
    for word in command.words:
        if override := OVERRIDE.fullmatch(word):
            plus, name, text = override.groups()
            table[f"{ROLE}{name}" if f"{ROLE}{name}" in table else name] = value_of(text)
            added |= {name.removeprefix(ROLE)} if plus else set()
    unread = [*command.unread, *unread_by_engines(command.variables)]
    for name in _configurations(command.words):
        trainer = TRAINERS.get(name.removesuffix(".yaml").rpartition("/")[2])
        if trainer is None and not config.beside:
            unread.append(Unread(f"--config-name {name}", ELSEWHERE, file="verl"))
        elif trainer == "megatron":
            table.setdefault("actor.strategy", trainer)
    checked = any(CHECKED.search(word) for word in command.words)
    found = reading(table, config.text, added=added, checked=checked)
    options = options_of_environment(command.variables) | found.options
    return found._replace(options=options, unread=(*found.unread, *unread), notes=(*found.notes, *command.notes))


def _configurations(words: tuple[str, ...]) -> Iterator[str]:
    for place, word in enumerate(words):
        if named := CONFIG_NAME.fullmatch(word):
            yield named[1] or "".join(words[place + 1 : place + 2]).strip("'\"")


def _tree(table: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a configuration, and what the one that it begins with trains with."""
    begins = table.get("defaults")
    named = {TRAINERS.get(str(one)) for one in begins} if isinstance(begins, list) else set()
    names = {name: value for name, value in flat(table) if name.rpartition(".")[2] not in ("_target_", "defaults")}
    return ({"actor.strategy": "megatron"} if "megatron" in named else {}) | names


def reading(given: Mapping[str, Any], text: str, *, added: Iterable[str] = (), checked: bool = False) -> Reading:
    """What dotted names say.

    Args:
        given: the names; those of the actor, the engine and the reference with or without `actor_rollout_ref`
        text: of the whole file, which may name a release
        added: names that are put there by "+", whether verl has them or not
        checked: whether any other must be one of verl's
    """
    plain = ((name.removeprefix(ROLE), value) for name, value in given.items() if value is not None)
    named = {place: value for name, value in plain if not _is_itself(place := RENAMED.get(name, name), value)}
    values = Watched(_resolved(as_fsdp(named)), NAMES)
    check_experts(values)
    trains = values.one_of("model_engine", TRAINS_WITH)
    for name in values:
        if OF_OTHER_ENGINES.match(name) and "model_engine" in values.refused:
            values.get(name)
        elif checked and name not in added and not _is_known(name):
            values.cannot(name, NAMES.why_unread(name))
    megatron = "megatron" in (trains, values.get("actor.strategy"))
    release = _release(given, text, added)
    nodes, each, apart, all_gpus = _cards(values)
    options = read_options((*ROWS, *(SPLIT if megatron else SHARDED)), values)
    options |= rewards(values, release)
    options |= _model(values) | _losses(values) | (_of_megatron(values) if megatron else _of_fsdp(values, nodes * each))
    split = math.prod(options.get(name) or 1 for name in ("ulysses", "tp", "pp", "cp"))
    trained = options.get("algorithm", "ppo")
    options |= _micro(values, 0 if all_gpus is None else max(1, nodes * each // split),
                      reference=bool(options.get("reference")), critic=trained == "ppo")
    ahead = values.one_of("trainer.v1.trainer_mode", MODES) or bool(AHEAD.search(text))
    if apart:
        options |= {"rollout-gpus": apart} | ({"ahead": True} if ahead else {})
    if release:
        options["framework"] = f"verl@{release}"
    if checked and not {"micro-batch", "micro-tokens"} & options.keys():
        values.cannot("actor.ppo_micro_batch_size_per_gpu", UNCUT, option="micro-batch")
    _refuse(values, release, critic=trained == "ppo", megatron=megatron)
    engine = engine_of(values)
    options |= engine.options
    for name in added:
        if name in values and name not in values.asked and not NAMES.is_harmless(name) and not NAMES.modelled(name):
            values.cannot(name)
    weak = {"framework": "verl", "algorithm": "ppo", **({} if megatron else {"sharded-by": "fsdp1"})}
    return Reading("verl", options, weak, unread=tuple(values.unread()), notes=(*_notes(values), *engine.notes),
                   ranks=all_gpus, nodes=nodes, parts=engine.parts)


def _release(given: Mapping[str, Any], text: str, added: Iterable[str]) -> str:
    """What the file names; else, where its default release lacks a name, the newest that has all of them."""
    if named := RELEASE.search(text):
        return named[1]
    known = load_format("verl")
    own = {name.removeprefix(ROLE) for name in given} - set(added)
    names, gone = known.sections["config"], known.removed["config"]
    since = [read_version(names[name].since) or () for name in own if name in names]
    until = [read_version(gone[name].removeprefix("last in ")) or () for name in own if name in gone]
    usual = FRAMEWORKS["verl"].default
    found = min(until) if until else max(since, default=())
    return version_text(found[:2]) if until or found[:2] > usual else ""


def _resolved(named: Mapping[str, Any]) -> dict[str, Any]:
    """Values that name another one: that, or the default beside its name; where neither is there, verl's own."""
    def value(text: Any, depth: int = 0) -> Any:
        match = INTERPOLATED.fullmatch(text) if isinstance(text, str) else None
        if match is None or depth > DEEPEST or match[1].isupper():
            return text
        name = match[1].removeprefix(ROLE)
        return value(named[name], depth + 1) if name in named else value(value_of(match[2]), depth + 1)

    found = {name: value(text) for name, text in named.items()}
    # "None" is a text in its files of 0.4 and 0.5
    return {name: one for name, one in found.items() if one is not None and one != "None"}


def _is_itself(name: str, value: Any) -> bool:
    """Whether the second place of a setting only points at the first, as defaults do."""
    match = INTERPOLATED.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match[1].removeprefix(ROLE) == name


def _is_known(name: str) -> bool:
    """Whether verl has a name, today or in a release before, or a table that it may stand in."""
    known = load_format("verl")
    names, gone = known.sections["config"], known.removed["config"]
    parts = name.split(".")
    return any(".".join(parts[:n]) in one for n in range(1, len(parts) + 1) for one in (names, gone)) or any(
        one.startswith(f"{name}.") for one in names)


def _cards(values: Watched) -> tuple[int, int, int, int | None]:
    """Machines of the trainer, cards of each, cards of an engine apart, and all of them; None: a run says them."""
    names = ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node")
    if any(values.is_open(name) for name in names):
        for name in names:
            values.pop(name, None)
        return 1, 8, 0, None
    nodes, each, rented, own = (values.whole(name) for name in names)
    apart = (rented or 1) * own if own else 0
    nodes, each = nodes or 1, each or 8
    return nodes, each, apart, nodes * each + apart


def _model(values: Watched) -> dict[str, Any]:
    """Network and adapters."""
    path, critic = (network(values, name) for name in ("model.path", "critic.model.path"))
    found: dict[str, Any] = {} if path is None else {"model": path}
    if critic is not None and path is not None and critic.rpartition("/")[2] != path.rpartition("/")[2]:
        values.cannot("critic.model.path", "is another network than the actor's, which is not modelled")
    rank, targets = values.whole("model.lora_rank"), values.get("model.target_modules")
    if rank:
        found |= {"peft": "lora", "lora-rank": rank}
        if targets is not None:
            found["lora-targets"] = tuple(map(str, targets)) if isinstance(targets, list) else (str(targets),)
    return found


CRITIC_UNPADDED_SINCE: Final = (0, 8)
"""First release whose critic has no padding unasked: its network is configured as any [config/model/hf_model.yaml]."""

ON_HOST: Final = {"offload-parameters": "cpu", "offload-optimizer": "cpu", "trainer-option": ("steps_on_host=true",)}
"""CPUOffloadPolicy, beside which `param_offload` and `optimizer_offload` say nothing."""


def _of_fsdp(values: Watched, gpus: int) -> dict[str, Any]:
    """Groups that shard among themselves; as many ranks or more are one group [verl/workers/fsdp_workers.py
    `create_device_mesh`]."""
    group, there = values.get("actor.fsdp_config.fsdp_size"), values.flag("actor.fsdp_config.offload_policy")
    two = values.get("actor.strategy") == "fsdp2"  # it says nothing to FSDP1
    return ({"shard-group": group} if isinstance(group, int) and 0 < group < gpus else {}) | (
        ON_HOST if there and two else {})


def _of_megatron(values: Watched) -> dict[str, Any]:
    """What Megatron keeps: nothing is run again unasked, whatever the model's flag says; its own flag pads batches."""
    values.get("actor.strategy")
    gradients, weights = values.flag(f"{MEGATRON}grad_offload"), values.flag(f"{MEGATRON}param_offload")
    if gradients is not None and bool(gradients) != bool(weights):
        values.cannot(f"{MEGATRON}grad_offload", "other than param_offload is not modelled")
    granularity = values.one_of(f"{TRANSFORMER}recompute_granularity", {"full": "full", "selective": "selective"},
                                option="recompute")
    padded = values.flag(f"{MEGATRON}use_remove_padding") is False
    found = {"engine": "megatron", "recompute": granularity or "none", "padded": padded, **_of_optimizer(values)}
    return found | _predictions(values, found.get("trainer-option", ()))


PREDICTED: Final = "model.mtp."

PROPOSED: Final = {"vllm": ("num_speculative_tokens", 1), "sglang": ("speculative_num_draft_tokens", 4)}
"""Engine -> name and default of how many tokens its drafts have [config/model/hf_model.yaml `mtp`]."""


def _predictions(values: Watched, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Modules that predict further tokens: they learn beside the network, and propose tokens to the engine."""
    flags = {name: values.flag(f"{PREDICTED}{name}") for name in ("enable", "enable_train", "enable_rollout")}
    for name in [name for name in values if name.startswith(PREDICTED)]:
        values.get(name)
    if not flags["enable"]:
        return {}
    if not flags["enable_train"]:
        values.cannot(f"{PREDICTED}enable_train", "is off: modules that are loaded and compute nothing are not "
                      "modelled")
    found: dict[str, Any] = {"trainer-option": (*pairs, "mtp=true")}
    if flags["enable_rollout"]:
        engine = str(values.get("rollout.name", "vllm")).partition("_")[0]
        name, usual = PROPOSED.get(engine, PROPOSED["vllm"])
        found |= {"rollout-draft": "mtp", "rollout-draft-tokens": values.count(f"{PREDICTED}{name}") or usual}
    return found


def _of_optimizer(values: Watched) -> dict[str, Any]:
    """Megatron's optimizer: on the host it keeps its states and steps there, whatever their precision."""
    aware = values.flag(f"{MCORE}use_precision_aware_optimizer")
    aware = values.flag("actor.optim.use_precision_aware_optimizer") or aware
    if values.flag(f"{MCORE}optimizer_cpu_offload"):
        if values.number(f"{MCORE}optimizer_offload_fraction") != 1:
            values.cannot(f"{MCORE}optimizer_offload_fraction", "other than 1 is not modelled")
        return {"offload-optimizer": "cpu", "trainer-option": ("steps_on_host=true",)}
    return {"trainer-option": ("precision_aware=true",)} if aware else {}


def _losses(values: Watched) -> dict[str, Any]:
    """Terms of the loss and how they are computed."""
    found: dict[str, Any] = {}
    entropy, compiled = values.number("actor.entropy_coeff"), values.flag("actor.use_torch_compile")
    asked = values.flag("actor.calculate_entropy")
    if entropy is not None or asked:
        found["entropy"] = bool(entropy) or bool(asked)
    kinds = [values.flag("actor.use_kl_loss"), values.flag("algorithm.use_kl_in_reward")]
    if any(kind is not None for kind in kinds):
        found["reference"] = any(kinds)
    whole = not values.flag("model.use_fused_kernels")
    if values.flag("actor.entropy_from_logits_with_chunking") and whole:
        found["entropy-kernel"] = "chunked"
    elif compiled is False and whole:
        found["entropy-kernel"] = "eager"
    if values.flag("actor.entropy_checkpointing") and "entropy-kernel" in found and found.get("entropy"):
        values.cannot("actor.entropy_checkpointing")  # where it is compiled, only the logits are kept as it is
    return found


def _micro(values: Watched, replicas: int, *, reference: bool, critic: bool) -> dict[str, Any]:
    """Micro-batches: sequences on one card, or for all ranks together; or tokens on one card.

    Args:
        replicas: data-parallel ranks; 0: the file does not say them
        reference: whether one is asked
        critic: whether there is one
    """
    def sequences(name: str) -> int | None:
        each, every = values.count(f"{name}_per_gpu"), values.count(name)
        if each is None and every is not None and not replicas:
            values.cannot(name, "is divided by ranks that the file does not count; say what one card takes",
                          option="log-prob-micro-batch" if "log_prob" in name else "micro-batch")
        return each or (max(1, every // max(1, replicas)) if every else None)

    found: dict[str, Any] = {}
    dynamic, tokens = values.flag("actor.use_dynamic_bsz"), values.count("actor.ppo_max_token_len_per_gpu") or 16384
    size = sequences("actor.ppo_micro_batch_size")
    if dynamic:
        found["micro-tokens"] = tokens
    elif size:
        found["micro-batch"] = size
    passes = {who: (values.flag(f"{who}.log_prob_use_dynamic_bsz"), sequences(f"{who}.log_prob_micro_batch_size"),
                    values.count(f"{who}.log_prob_max_token_len_per_gpu")) for who in ("rollout", "ref")}
    if not reference:
        del passes["ref"]
    if any(dynamic if own is None else own for own, _, _ in passes.values()):
        found["log-prob-tokens"] = max(budget or tokens for _, _, budget in passes.values())
    elif sizes := [size for _, size, _ in passes.values() if size]:
        found["log-prob-micro-batch"] = max(sizes)
    own, budget = sequences("critic.ppo_micro_batch_size"), values.count("critic.ppo_max_token_len_per_gpu")
    for name in ("forward_micro_batch_size", "forward_micro_batch_size_per_gpu", "forward_max_token_len_per_gpu"):
        values.get(f"critic.{name}")  # of a pass without gradients, which holds less
    if critic and dynamic:
        found["critic-micro-tokens"] = budget or 32768
    elif critic and own:
        found["critic-micro-batch"] = own
    return found


def _refuse(values: Watched, release: str, *, critic: bool, megatron: bool) -> None:
    """What is not modelled, by name."""
    for name in [name for name in values if name.startswith("distillation.")]:
        values.get(name)  # of a teacher on cards of its own, or of none
    if values.flag("distillation.enabled") and not values.whole("distillation.nnodes"):
        values.cannot("distillation.nnodes", "is not above 0: the teacher needs cards of its own, or verl stops")
    for name in REPLAYS:
        values.get(name)
    if values.get("model.lora_rank"):  # the reference is the network without its adapter
        values.pop("ref.fsdp_config.model_dtype", None)
    if not megatron:
        values.must_be_off(f"{PREDICTED}enable", "modules that predict further tokens are modelled under Megatron")
    for name, why in (REFUSED if megatron else REFUSED | OF_MCORE).items():
        values.must_be_off(name, why)
    if values.get("trainer.device", "cuda") != "cuda":
        values.cannot("trainer.device", NO_GPU)
    of_critic = (*OF_CRITIC, *(OF_SPLIT_CRITIC if megatron else OF_SHARDED_CRITIC)) if critic else ()
    for one in (*OF_REFERENCE, *of_critic):
        actors = values.get(one.of, one.usual)
        if values.get(one.name, actors if one.inherits else one.usual) != actors:
            values.cannot(one.name, "other than {} is not modelled", one.of)
    pads = values.get("model.use_remove_padding")
    its = values.get("critic.model.use_remove_padding", version_of(release) >= CRITIC_UNPADDED_SINCE)
    if critic and not megatron and pads is not None and pads != its:
        values.cannot("critic.model.use_remove_padding", "other than the actor's is not modelled")
    for name in list(values):
        if (name.startswith("critic.") and not critic) or (
                megatron and name.startswith("critic.model.") and name != "critic.model.path") or (
                name.startswith("reward_model.") and name not in REFUSED) or (
                name.startswith("model.lora.") and not values.get("model.lora.rank")):
            values.get(name)


REPLAYS: Final = ("rollout.enable_rollout_routing_replay", "actor.megatron.router_replay.mode")


def _notes(values: Watched) -> Iterator[str]:
    """What is left out of an answer and does not change its memory."""
    if values.flag("distillation.enabled"):
        yield Note("the teacher answers on {} cards of its own, which stand beside --gpus; `vramcast serve` sizes it",
                   (values.count("distillation.nnodes") or 1) * (values.count("distillation.n_gpus_per_node") or 8))
    if any(values.get(name) not in (None, False, "disabled") for name in REPLAYS):
        yield REPLAYED
    generated, kept = values.count("data.gen_batch_size"), values.count("data.train_batch_size")
    if generated and generated != kept:
        yield Note(
            "data.gen_batch_size={}: the time to generate is that of the {} prompts that learn", generated, kept or 1024
        )
    if values.get("rollout.multi_turn.tool_config_path") or values.get("rollout.agent.agent_loop_config_path"):
        yield "what tools answer counts as tokens of the answer, and waiting for them is not timed"


__all__ = ["Unread", "read", "reading", "value_of"]
