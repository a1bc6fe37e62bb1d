"""A question about post-training as the script that starts it: verl's overrides, OpenRLHF's and slime's arguments.

What a framework's reader says of a name, said backwards. Every script is read back before it is written: it is the
question again, or nothing is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, Final

import msgspec.structs
from msgspec.structs import replace

from vramcast.domain.job import AttentionKernel, Shards
from vramcast.domain.model import Checkpoint
from vramcast.domain.post_training import WITH_CRITIC, PostTrainingJob
from vramcast.domain.version import version_text
from vramcast.engines.post_training.batches import usual_budget
from vramcast.engines.post_training.releases import FRAMEWORKS, release_of
from vramcast.engines.post_training.rollout import serve_job
from vramcast.engines.post_training.trainer import ON_HOST
from vramcast.engines.training import PURE
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import PLACEHOLDER, File, hub_id
from vramcast.formats.reading import Config
from vramcast.formats.table import Row
from vramcast.formats.tools import openrlhf, slime, verl, verl_roles
from vramcast.question.post_training import build_post_training
from vramcast.question.tables import POST_TRAINING_OPTIONS

SCRIPT: Final = "run.sh"

UNSAID: Final = ("assumed", "cluster", "model", "critic", "reward", "run_steps", "rollout_version", "trainer",
                 "version")
"""Fields of a question that no script says, or that are compared otherwise."""

STAGES: Final = {Shards.OPTIMIZER_AND_GRADIENTS: "2", Shards.EVERYTHING: "3"}

OF_DATA: Final = {"mean_prompt_len": None, "mean_response_len": None, "response_deviation": None, "image_size": None,
                  "images": None}


def script_of(job: PostTrainingJob) -> tuple[File, tuple[str, ...]]:
    """The script, and what it does not say.

    Raises: Unsupported for a framework whose scripts are not written, or a question that one cannot say
    """
    writers: Mapping[str, Callable[[PostTrainingJob], str]] = {"verl": _verl, "openrlhf": _openrlhf, "slime": _slime}
    if job.framework not in writers:
        raise Unsupported("no scripts are written for {}; use --framework {}", job.framework, ", ".join(writers))
    asked = _settled(job)
    text = writers[job.framework](asked)
    _read_back(asked, text)
    notes: list[str] = []
    release = release_of(job)
    if job.rollout_version != {"vllm": release.vllm, "sglang": release.sglang}.get(job.rollout_engine):
        notes.append(Note("{} {} stands in no script: install it", job.rollout_engine,
                          version_text(job.rollout_version)))
    if job.episodes.mean_response_len or job.episodes.mean_prompt_len:
        notes.append("mean lengths are those of the data, and stand in no script")
    if job.episodes.image_size or job.episodes.images is not None:
        notes.append("sizes and numbers of images are those of the data, and stand in no script")
    if hub_id(job.model) == PLACEHOLDER:
        notes.append(Note("no checkpoint is known for {}: replace {} by its path or hub id", job.model.name,
                          PLACEHOLDER))
    notes.append("data, rewards, rates of learning and checkpoints are yours to add")
    return File(SCRIPT, text, executable=True), tuple(notes)


def _settled(job: PostTrainingJob) -> PostTrainingJob:
    """What is left to a framework's defaults, which a script says."""
    updates = job.updates
    if updates.micro_batch is None and updates.micro_tokens is None:
        updates = replace(updates, micro_tokens=usual_budget(job))
    if not (updates.log_prob_micro_batch or updates.log_prob_tokens):
        updates = replace(updates, log_prob_micro_batch=updates.micro_batch if not updates.micro_tokens else None,
                          log_prob_tokens=updates.micro_tokens)
    if job.algorithm in WITH_CRITIC and not (updates.critic_micro_batch or updates.critic_micro_tokens):
        updates = replace(updates, critic_micro_batch=updates.micro_batch if not updates.micro_tokens else None,
                          critic_micro_tokens=updates.micro_tokens)
    share = job.rollout.memory_fraction or FRAMEWORKS[job.framework].memory_fraction
    plan, rollout = job.plan, replace(job.rollout, tp=serve_job(job).plan.tp, memory_fraction=share)
    if job.engine == "pytorch":
        plan = replace(plan, sharded_by=plan.sharded_by or "fsdp1")
    if job.framework == "openrlhf":
        plan = replace(plan, attention=plan.attention or AttentionKernel.FLASH)
        updates = replace(updates, offload_reference=bool(updates.offload_reference))
        rollout = replace(rollout, graphs=release_of(job).graphs if rollout.graphs is None else rollout.graphs)
    return replace(job, updates=updates, rollout=rollout, plan=plan, episodes=replace(job.episodes, **OF_DATA))


def _read_back(job: PostTrainingJob, text: str) -> None:
    """Raise Unsupported where the script is another question than the one it was written for."""
    reader = import_module(f"vramcast.formats.tools.{job.framework}")
    found = reader.read(Config(SCRIPT, text, None))
    others = {hub_id(model): model for model in (job.model, job.critic, job.reward) if model is not None}

    def resolve(name: str) -> Checkpoint:
        return Checkpoint(model=others.get(name) or others.get(name.rpartition("/")[2]) or job.model)

    if found.unread:
        raise Unsupported("{} has no word for this: {}", job.framework, ", ".join(one.name for one in found.unread))
    options = {**found.weak, **found.options, "framework": f"{job.framework}@{version_text(job.version)}"}
    options["rollout"] = f"{options.get('rollout', 'vllm')}@{version_text(job.rollout_version)}"
    back = _settled(build_post_training({**options, "gpus": job.cluster.name}, resolve=resolve))
    differs = [*_differences(job, back), *(f"--{name}-model" for name in ("critic", "reward")
                                           if (getattr(job, name) is None) is not (getattr(back, name) is None))]
    if differs:
        raise Unsupported("{} has no word for {}", job.framework, ", ".join(differs))


def _differences(job: PostTrainingJob, back: PostTrainingJob) -> Iterator[str]:
    """Options whose values are others."""
    named = {option.field: name for name, option in POST_TRAINING_OPTIONS.items()}
    for field in msgspec.structs.fields(PostTrainingJob):
        mine, its = getattr(job, field.name), getattr(back, field.name)
        if field.name in UNSAID or mine == its:
            continue
        if not isinstance(mine, msgspec.Struct):
            yield f"--{named.get(field.name, field.name)} {mine}"
            continue
        for part in msgspec.structs.fields(type(mine)):
            one, other = getattr(mine, part.name), getattr(its, part.name)
            if one != other:
                yield f"--{named.get(part.name, part.name)} {one}"


def _fields(job: PostTrainingJob) -> dict[str, Any]:
    """Values by the names that rows of readers have for them."""
    pure = {value: name for name, value in PURE.items()}
    nouns = {**msgspec.structs.asdict(job.episodes), **msgspec.structs.asdict(job.updates),
             **msgspec.structs.asdict(job.plan)}
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in nouns.items()}
    rollout = msgspec.structs.asdict(job.rollout)
    return {
        **plain, **{name: rollout[name] for name in (
            "memory_fraction", "max_sequences", "batched_tokens", "context", "graphs", "bucket_mib", "layered_summon")},
        "rollout": job.rollout_engine, "rollout_tp": rollout["tp"], "sleep": rollout["sleeps"],
        "algorithm": job.algorithm, "reuse_log_prob": job.updates.reuses_log_prob,
        "trainer_sleep": job.updates.sleeps, "sharded_by": job.plan.sharded_by or "fsdp1",
        "precision": pure.get(job.plan.precision, job.plan.precision.value),
        "zero": STAGES.get(job.plan.shards, ""),
    }


def _said(rows: Iterable[Row], job: PostTrainingJob, always: Iterable[str]) -> dict[str, Any]:
    """Name -> value of rows that say something else than where nobody says anything, or always stand there."""
    values, plain = _fields(job), _fields(_unasked(job))
    found: dict[str, Any] = {}
    for row in rows:
        value = values.get(row.field)
        if value is not None and (row.field in always or value != plain.get(row.field)):
            line = row.line(value)
            found[line.name] = line.value
    return found


def _unasked(job: PostTrainingJob) -> PostTrainingJob:
    """The same release and engine with nothing else said."""
    options = {"framework": f"{job.framework}@{version_text(job.version)}", "model": "m", "gpus": job.cluster.name,
               "engine": job.engine}
    return build_post_training(options, resolve=lambda _: Checkpoint(model=job.model))


ALWAYS: Final = ("prompts", "samples", "prompt_len", "response_len", "mini_batch", "rollout", "rollout_tp", "recompute",
                 "memory_fraction", "algorithm", "sharded_by", "padded", "zero", "sequence_parallel")


def _word(value: Any) -> str:
    return str(value).capitalize() if value in ("true", "false") else str(value)


def _is_off(value: Any) -> bool:
    """Whether an argument without a value is left out for it."""
    return value is None or value is False or value in ("false", "none")


def _verl(job: PostTrainingJob) -> str:
    """[verl] `python3 -m verl.trainer.main_ppo`."""
    megatron, updates, plan, version = job.engine == "megatron", job.updates, job.plan, job.version
    rows = (*verl.ROWS, *(verl.SPLIT if megatron else verl.SHARDED))
    if megatron:
        rows = tuple(row for row in rows if row.field not in ("recompute", "padded"))
    found = _said(rows, job, ALWAYS)
    old = "rollout.checkpoint_engine.update_weights_bucket_megabytes"
    if old in found and version < (0, 8):
        found["rollout.update_weights_bucket_megabytes"] = found.pop(old)
    if version < (0, 6) and "actor.fsdp_config.model_dtype" in found:  # its files do not name it yet
        found["+actor.fsdp_config.model_dtype"] = found.pop("actor.fsdp_config.model_dtype")
    found["model.path"] = hub_id(job.model)
    if not megatron or version >= (0, 6):
        found["model.use_remove_padding"] = not updates.padded
    if megatron:
        found |= {"actor.strategy": "megatron"}
        for part in ("granularity", "method", "num_layers") if plan.recompute.value == "full" else ():
            found[f"+{verl.TRANSFORMER}recompute_{part}"] = {"granularity": "full", "method": "uniform",
                                                             "num_layers": 1}[part]
    else:
        found |= {"actor.fsdp_config.fsdp_size": plan.shard_group} if plan.shard_group else {}
        found |= {"actor.fsdp_config.offload_policy": True} if job.trainer_options.get(ON_HOST) else {}
    found |= _verl_losses(job) | _verl_sizes(job) | _verl_networks(job, found)
    per = job.cluster.gpus_per_node
    program, cards = "verl.trainer.main_ppo", {"trainer.n_gpus_per_node": per, "trainer.nnodes": job.cluster.num_nodes}
    if job.rollout.gpus is not None:
        if not job.rollout.ahead:
            raise Unsupported("verl gives an engine cards of its own only where it works ahead; add --ahead")
        program = f"{'recipe' if version < (0, 7) else 'verl.experimental'}.one_step_off_policy.main_ppo"
        for where, gpus in (("trainer", job.trainer_gpus), ("rollout", job.rollout.gpus)):
            nodes = max(1, gpus // per)
            cards |= {f"{where}.nnodes": nodes, f"{where}.n_gpus_per_node": gpus // nodes}
    words = [f"{_prefixed(name)}={_word(value)}" for name, value in {**found, **cards}.items()]
    head = (["--config-name=ppo_megatron_trainer.yaml"] if megatron and program.endswith("trainer.main_ppo") else [])
    return _script(job, ["python3", "-m", program, *head, *words], f"verl=={version_text(version)}")


def _prefixed(name: str) -> str:
    plus, plain = ("+", name[1:]) if name.startswith("+") else ("", name)
    own = plain.partition(".")[0] in ("model", "actor", "rollout", "ref")
    of_cards = plain in ("rollout.nnodes", "rollout.n_gpus_per_node")
    return f"{plus}{verl.ROLE if own and not of_cards else ''}{plain}"


def _verl_losses(job: PostTrainingJob) -> dict[str, Any]:
    updates = job.updates
    found: dict[str, Any] = {"actor.use_kl_loss": updates.reference,
                             "actor.entropy_coeff": 0.001 if updates.entropy else 0}
    if updates.entropy_kernel == "chunked":
        found["actor.entropy_from_logits_with_chunking"] = True
    elif updates.entropy_kernel == "eager":
        found["actor.use_torch_compile"] = False
    return found


def _verl_sizes(job: PostTrainingJob) -> dict[str, Any]:
    updates = job.updates
    found: dict[str, Any] = {"actor.use_dynamic_bsz": updates.micro_tokens is not None}
    if updates.micro_tokens is not None:
        found["actor.ppo_max_token_len_per_gpu"] = updates.micro_tokens
    else:
        found["actor.ppo_micro_batch_size_per_gpu"] = updates.micro_batch
    for who in ("rollout", *(("ref",) if updates.reference else ())):
        found[f"{who}.log_prob_use_dynamic_bsz"] = updates.log_prob_tokens is not None
        if updates.log_prob_tokens is not None:
            found[f"{who}.log_prob_max_token_len_per_gpu"] = updates.log_prob_tokens
        else:
            found[f"{who}.log_prob_micro_batch_size_per_gpu"] = updates.log_prob_micro_batch
    if job.algorithm in WITH_CRITIC and updates.critic_micro_tokens is not None:
        found["critic.ppo_max_token_len_per_gpu"] = updates.critic_micro_tokens
    elif job.algorithm in WITH_CRITIC:
        found["critic.ppo_micro_batch_size_per_gpu"] = updates.critic_micro_batch
    return found


def _verl_networks(job: PostTrainingJob, found: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters, a critic that is like the actor, and a reward network of FSDP's worker."""
    own: dict[str, Any] = {}
    peft, updates = job.plan.peft, job.updates
    if peft is not None:
        own |= {"model.lora_rank": peft.rank, "model.target_modules": "[" + ",".join(peft.targets) + "]"}
    if job.algorithm in WITH_CRITIC:
        if job.critic is not None:
            raise Unsupported("verl's critic is written as the network that learns alone; leave out --critic-model")
        own |= {"critic.model.path": hub_id(job.model)}
        rows = verl_roles.OF_SHARDED_CRITIC if job.engine == "pytorch" else verl_roles.OF_SPLIT_CRITIC
        shard = "critic.fsdp." if job.version >= verl.CRITIC_UNPADDED_SINCE else "critic.model.fsdp_config."
        own |= {f"{plus}{one.name.replace('critic.fsdp.', shard)}": found[plus + one.of]
                for one in rows for plus in ("", "+")  # "+" adds a name
                if plus + one.of in found and not one.inherits}
        if job.engine == "pytorch":
            own["critic.model.use_remove_padding"] = found["model.use_remove_padding"]
    if job.reward is not None and release_of(job).serves_reward:
        named = {"enable": True, "model_path": hub_id(job.reward), "rollout.name": job.rollout_engine,
                 "rollout.tensor_model_parallel_size": job.rollout.reward_tp,
                 "rollout.gpu_memory_utilization": job.rollout.reward_fraction}
        own |= {f"reward.reward_model.{name}": value for name, value in named.items() if value is not None}
    elif job.reward is not None:
        own |= {"reward_model.enable": True, "reward_model.model.path": hub_id(job.reward),
                "reward_model.model.use_remove_padding": found["model.use_remove_padding"],
                "reward_model.strategy": found.get("actor.strategy", "fsdp")}
        own |= {"reward_model.use_reward_loop": False} if job.version >= verl_roles.ENGINE_RATES_SINCE else {}
        dynamic = updates.reward_micro_tokens is not None
        own |= {"reward_model.use_dynamic_bsz": dynamic}
        name = "forward_max_token_len_per_gpu" if dynamic else "micro_batch_size_per_gpu"
        if (size := updates.reward_micro_tokens or updates.reward_micro_batch) is not None:
            own[f"reward_model.{name}"] = size
    return own


def _slime(job: PostTrainingJob) -> str:
    """[slime] `python3 train.py`."""
    updates, rollout = job.updates, job.rollout
    found = _said(slime.ROWS, job, (*ALWAYS, "tp"))
    found |= {"hf_checkpoint": hub_id(job.model), "rollout_max_prompt_len": job.episodes.prompt_len,
              "global_batch_size": updates.mini_batch * job.episodes.samples}
    found |= {"kl_loss_coef": 0.001, "use_kl_loss": True} if updates.reference else {}
    found |= {"entropy_coef": 0.001} if updates.entropy else {}
    if updates.micro_tokens is not None:
        found |= {"use_dynamic_batch_size": True, "max_tokens_per_gpu": updates.micro_tokens,
                  "log_probs_max_tokens_per_gpu": updates.log_prob_tokens}
    else:
        found["micro_batch_size"] = updates.micro_batch
    if not _is_off(found.get("recompute_granularity")):
        found |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    found |= {"sglang_mem_fraction_static": rollout.memory_fraction, "sglang_max_running_requests":
              rollout.max_sequences, "sglang_chunked_prefill_size": rollout.batched_tokens}
    found |= {"rollout_max_context_len": rollout.context} if rollout.context else {}
    found |= {"use_precision_aware_optimizer": True} if job.trainer_options.get("precision_aware") else {}
    found |= {"update_weight_buffer_size": rollout.bucket_mib << 20} if rollout.bucket_mib else {}
    found |= {f"sglang_{name.replace('-', '_')}": value for name, value in rollout.engine_options.items()}
    nodes = max(1, job.trainer_gpus // job.cluster.gpus_per_node)
    found |= {"actor_num_nodes": nodes, "actor_num_gpus_per_node": job.trainer_gpus // nodes}
    found |= {"colocate": True} if rollout.gpus is None else {"rollout_num_gpus": rollout.gpus}
    program = "train_async.py" if rollout.ahead else "train.py"
    return _script(job, ["python3", program, *_flags(found, dashes=True)], f"slime=={version_text(job.version)}")


def _openrlhf(job: PostTrainingJob) -> str:
    """[openrlhf] `python3 -m openrlhf.cli.train_ppo_ray`, in the names of 0.10.2 and later."""
    if job.version < (0, 10, 2) and job.version != (0, 11):
        raise Unsupported("OpenRLHF's scripts are written in the names of 0.11; use --framework openrlhf@0.11")
    updates, rollout, cluster = job.updates, job.rollout, job.cluster
    found = _said(openrlhf.ROWS, job, ALWAYS)
    found |= {"actor.model_name_or_path": hub_id(job.model), "data.max_len": job.episodes.longest,
              "rollout.max_new_tokens": job.episodes.response_len,
              "train.batch_size": updates.mini_batch * job.episodes.samples,
              "algo.kl.init_coef": 0.01 if updates.reference else 0}
    found |= {"actor.entropy_coef": 0.001} if updates.entropy else {}
    found |= {"reward.model_name_or_path": hub_id(job.reward)} if job.reward is not None else {
        "reward.remote_url": "reward.py"}
    if job.algorithm in WITH_CRITIC:
        found["critic.model_name_or_path"] = hub_id(job.critic or job.model)
    if updates.micro_tokens is not None:
        found |= {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": updates.micro_tokens,
                  "rollout.max_tokens_per_gpu": updates.log_prob_tokens}
    else:
        found |= {"train.micro_batch_size": updates.micro_batch,
                  "rollout.micro_batch_size": updates.log_prob_micro_batch}
    found |= {"ds.packing_samples": True} if not updates.padded else {}
    found |= {f"ds.{name}": value for name, value in job.trainer_options.items()}
    engines = (rollout.gpus or cluster.count) // (rollout.tp or 1)
    found |= {"vllm.num_engines": engines}
    found |= {"vllm.enable_sleep": True} if rollout.sleeps and rollout.gpus is None else {}
    if rollout.gpus is None:
        found["train.colocate_all"] = True
    if rollout.ahead:
        found["train.async_enable"] = True
    found |= _openrlhf_cards(job)
    program = ["python3", "-m", "openrlhf.cli.train_ppo_ray"]
    return _script(job, [*program, *_flags(found, dashes=False)], f"openrlhf=={version_text(job.version)}")


def _openrlhf_cards(job: PostTrainingJob) -> dict[str, Any]:
    """Machines and cards of every network's process."""
    found: dict[str, Any] = {}
    own = {role: gpus for roles, gpus in job.own_gpus.items() for role in roles.split("+")}
    per = job.cluster.gpus_per_node
    for role, name in (("actor", "actor"), ("reference", "ref"), ("critic", "critic"), ("reward", "reward")):
        gpus = own.get(role, job.trainer_gpus)
        nodes = max(1, gpus // per)
        found |= {f"{name}.num_nodes": nodes, f"{name}.num_gpus_per_node": gpus // nodes}
    if job.own_gpus and "reference" not in own:
        found["train.colocate_actor_ref"] = True
    if any({"critic", "reward"} <= set(roles.split("+")) for roles in job.own_gpus):
        found["train.colocate_critic_reward"] = True
    return found


def _flags(found: Mapping[str, Any], *, dashes: bool) -> list[str]:
    """`--name value`, a name alone where it is true."""
    words: list[str] = []
    for name, value in found.items():
        if not _is_off(value):
            words.append(f"--{name.replace('_', '-') if dashes else name}")
            words += [] if value is True or value == "true" else [str(value)]
    return words


def _script(job: PostTrainingJob, words: list[str], pin: str) -> str:
    """A script of one command, a name on each line."""
    lines = [f"#!/bin/bash\n# {job.model.name} on {job.cluster.name}, planned by vramcast: pip install {pin}"]
    if job.alloc_conf:
        lines.append(f"export PYTORCH_CUDA_ALLOC_CONF={job.alloc_conf}")
    start = next((place for place, word in enumerate(words) if word.startswith("--") or "=" in word), len(words))
    parts = [" ".join(words[:start])]
    for word in words[start:]:
        if parts[1:] and not word.startswith("--") and "=" not in word:
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    return "\n".join([*lines, " \\\n    ".join([*parts, '"$@"'])]) + "\n"
