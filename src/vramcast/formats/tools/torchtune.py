"""torchtune: a recipe's YAML, and `tune run RECIPE --config FILE name=value`.

[torchtune] meta-pytorch/torchtune 0.1 to 0.7: recipes/*.py `cfg.get`, recipes/configs/**.yaml,
torchtune/models/*/_model_builders.py, torchtune/config/_parse.py, torchtune/_cli/run.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.errors import Note, Unsupported
from vramcast.formats.reading import (
    ELSEWHERE,
    NO_GPU,
    NOT_MODELLED,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    shown,
    together,
)
from vramcast.formats.table import Row, flat, nested, read_options, resolved, value_of
from vramcast.formats.unread import options_of_environment, ranks_of, unread_environment
from vramcast.formats.watched import Known, Watched

KNOWN: Final = Known("torchtune", "config")

ROWS: Final = (
    Row("micro_batch", "batch_size", why="samples per forward on one GPU"),
    Row("grad_accum", "gradient_accumulation_steps"),
    Row("tp", "tensor_parallel_dim", why="ranks that divide every layer"),
    Row("cp", "context_parallel_dim", why="ranks that divide every sequence"),
    Row("compile", "compile", False),
    Row("reshard_after_forward", "fsdp_reshard_after_forward", True),
    Row("offload_activations", "enable_activation_offloading", False),
    Row("precision", "dtype", why="of weights, gradients and states", words={"bf16": "bf16", "fp32": "fp32"}),
    Row("recompute", "enable_activation_checkpointing", words={"true": "full", "false": "none"}),
)
"""What one name says alone."""

ROW: Final = {row.field: row for row in ROWS}

OF_TORCHTUNE: Final = "is a file that torchtune brings: `tune cp` writes it out; give it with --from"

CHUNKED: Final = "CEWithChunkedOutputLoss"

PLAIN: Final = "CrossEntropyLoss"

LOSSES: Final[dict[str, dict[str, Any]]] = {
    "LinearCrossEntropyLoss": {}, CHUNKED: {"engine": "torchtune@0.6"}, PLAIN: {"loss": "eager"},
    "DPOLoss": {"objective": "dpo"}, "PPOLoss": {"objective": "ppo"},
    "GRPOLoss": {"objective": "grpo"}, "GRPOSimpleLoss": {"objective": "grpo"},
    "GRPOCompletionLoss": {"objective": "grpo"}, "LinearGRPOLoss": {"objective": "grpo"},
}
"""Class of the loss -> options. Which one a configuration names tells the release that it is of
[torchtune recipes/configs/*/*.yaml `loss` at every release]."""

BEFORE: Final = {"engine": "torchtune@0.2"}

OPTIMIZERS: Final = {
    "torch.optim.AdamW": "adamw", "torch.optim.Adam": "adam", "torch.optim.SGD": "sgd",
    "bitsandbytes.optim.AdamW8bit": "adamw-8bit", "bitsandbytes.optim.PagedAdamW8bit": "paged-adamw-8bit",
    "bitsandbytes.optim.PagedAdamW": "paged-adamw-fp32", "bitsandbytes.optim.AdamW": "adamw-fp32",
    "bitsandbytes.optim.Lion8bit": "lion-8bit", "bitsandbytes.optim.PagedLion8bit": "paged-lion-8bit",
    "torchao.optim.AdamW4bit": "adamw-4bit",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw-4bit",
}
"""Class of the optimizer -> ours. bitsandbytes keeps states of 32 bits for whatever weights."""

MODELS: Final[dict[str, str]] = networks_of("torchtune")["models"]
"""Builder -> our name."""

SIZES: Final = ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim",
                "attn_dropout")
SPELT: Final = {("torchtune.models.llama2.llama2", 32000, 22, 32, 4, 2048, None, 0.0): "tinyllama-1.1b"}
"""Builder of any size and what it is told -> our name."""

BUILDER: Final = re.compile(r"torchtune\.models\.(\w+)\.(q?lora_)?(\w+?)(?:_base|_instruct)?")

ATTENTION: Final = {"q_proj": "attention.q", "k_proj": "attention.k", "v_proj": "attention.v",
                    "output_proj": "attention.out"}
MLP: Final = ("mlp.gate", "mlp.up", "mlp.down")
HEAD: Final = "head"

RANK: Final = 8
"""lora_rank where nobody says it [torchtune models/*/_model_builders.py]."""

SINGLE: Final = re.compile(r"\A.*_single_device\.ya?ml$|\btune run .*_single_device\b", re.MULTILINE)
"""A file, or the command in its comments, of a recipe that runs on one GPU."""

DIVERGENCE: Final = "ForwardKLWithChunkedOutputLoss"
FAKE: Final = "Int8DynActInt4WeightQATQuantizer"
"""Inputs of 8 bits a token, weights of 4 a group [torchao qat/linear.py], of 256 where nobody says [torchtune]."""
SHARDED_ENDS: Final = frozenset(("tok_embeddings", "output"))


def read(config: Config) -> Reading:
    """Options of a recipe's YAML, or of a `tune run` line.

    Raises: Unsupported for configurations of generation, evaluation and quantisation
    """
    if config.table is not None:
        options, values, notes = _recipe(config.table, config.name)
        alone = SINGLE.search(f"{config.name}\n{config.text}") is not None
        return Reading("torchtune", {}, options, {}, tuple(values.unread()), notes, _left_open(options), alone=alone)
    return _command(config)


def _command(config: Config) -> Reading:
    """What words behind a recipe's name change; the rest stands in the file that --config names."""
    command = command_of(config, lambda words: "tune" in (word.rpartition("/")[2] for word in words) and "run" in words)
    words = list(command.words)
    own = next((place for place, word in enumerate(words) if word == "--config"), len(words))
    launch = arguments(words[:own])
    given: dict[str, Any] = {}
    unread = list(command.unread)
    for word in words[own + 2:]:
        name, equals, text = word.partition("=")
        if equals:
            given[name] = value_of(text)
        elif word.startswith("~"):
            unread.append(Unread(word, "takes a name out of the file, which is not read; take it out there"))
    options, values, notes = _recipe(nested(given), config.name, beside=True) if given else ({}, Watched({}), ())
    named = words[own + 1] if own + 1 < len(words) else ""
    unread += [*values.unread(), *unread_environment(command.variables), Unread(
        named or "--config", ELSEWHERE if not named or named.endswith((".yaml", ".yml")) else OF_TORCHTUNE,
        file="torchtune")]
    gpus = launch.get("nproc_per_node") or launch.get("nproc-per-node")
    nodes = launch.get("nnodes")
    return Reading(
        "tune run", options | options_of_environment(command.variables), unread=tuple(unread),
        notes=(*command.notes, *notes),
        ranks=ranks_of(gpus if isinstance(gpus, int) else None, nodes if isinstance(nodes, int) else None,
                       command.variables),
    )


def _recipe(table: Mapping[str, Any], name: str, *, beside: bool = False) -> tuple[
        dict[str, Any], Watched, tuple[str, ...]]:
    """Options of a recipe, what was looked at for them, and what is to be said.

    Args:
        table: the file's, or what a command changes of it
        name: of the file
        beside: it changes only some of a file
    """
    if "orchestration" in table:
        raise Unsupported("{}: torchtune's asynchronous GRPO, with inference beside training, is not modelled", name)
    if not beside and "optimizer" not in table:
        raise Unsupported(
            "{}: a configuration of torchtune without an optimizer trains nothing; give that of a fine-tuning recipe",
            name
        )
    values = Watched(resolved(dict(flat(table)), table), KNOWN)
    options = {"engine": "torchtune"} if not beside else {}
    options |= read_options(ROWS, values)
    if isinstance(values.get("compile"), Mapping):
        values.cannot("compile")
    options = together(options, _lengths(values), _sharding(values), _optimizer(values), _loss(values))
    options |= _model(values, beside=beside, precision=options.get("precision", "bf16"))
    if values.get("device") not in (None, "cuda"):
        values.cannot("device", NO_GPU)
    if values.flag("optimizer_in_bwd"):
        options = together(options, {"engine-option": ("optimizer_in_backward=true",)})
    options = together(options, _teacher(values))
    options = together(options, _rounding(values), _some_layers(values))
    values.section("fsdp", Known("torchtune", "fsdp"))
    if options.get("objective") in GENERATES:
        values.cannot("loss", "is of a recipe that generates its samples, which is not modelled")
    values.ignore(*(tuple(values) if "loss" in values.refused else SETTLED))
    adapted = (TEACHER_ADAPTERS,) if _is_adapted(values.get("teacher_model")) else ()
    return options, values, (*_notes(options), *adapted)


TEACHER_ADAPTERS: Final = "adapters of the teacher, of which nothing learns, are not counted"


def _is_adapted(network: Any) -> bool:
    return isinstance(network, Mapping) and ".lora_" in str(network.get("_component_"))


GENERATES: Final = ("ppo", "grpo")

SETTLED: Final = ("dataset", "dataset_val", "tensor_parallel_plan", "fp8_recipe_name")
"""Looked at with another name, or whatever they say."""


def _lengths(values: Watched) -> dict[str, Any]:
    """The longest sample: of the tokenizer, and before 0.3 of the data set."""
    tokenizer = values.section("tokenizer", Known("torchtune", "tokenizer"))
    length = tokenizer.count("max_seq_len")
    data = values.get("dataset")
    before = data.get("max_seq_len") if isinstance(data, Mapping) else None
    if length is None and before is not None:
        length = Watched({"max_seq_len": before}).count("max_seq_len")
    return {} if length is None else {"seq-len": length}


def _left_open(options: Mapping[str, Any]) -> dict[str, str]:
    return {} if "seq-len" in options else {"seq-len": "says no tokenizer.max_seq_len"}


def _sharding(values: Watched) -> dict[str, Any]:
    """Copies, what shares one, and whether its parts wait on the host."""
    found: dict[str, Any] = {}
    copies, shard = values.count("data_parallel_replicate_dim") or 1, values.get("data_parallel_shard_dim")
    if copies > 1:
        if (group := values.count("data_parallel_shard_dim") if shard != -1 else None) is None:
            values.cannot("data_parallel_shard_dim", "is left to the run beside {} copies; give --shard-group", copies,
                          option="shard-group")
        else:
            found["shard-group"] = group * (values.count("context_parallel_dim") or 1)
    if values.flag("fsdp_cpu_offload"):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    apart = values.get("custom_sharded_layers") or []
    names = {str(name).rpartition(".")[2] for name in apart} if isinstance(apart, list) else {"?"}
    if values.flag("memory_efficient_fsdp_wrap"):  # until 0.3 [torchtune recipes/full_finetune_distributed.py]
        names |= SHARDED_ENDS
    if names == SHARDED_ENDS:
        found["engine-option"] = ("split_root=true",)
    elif names:
        values.cannot("custom_sharded_layers", "other than tok_embeddings and output together {}", NOT_MODELLED)
    return found


def _optimizer(values: Watched) -> dict[str, Any]:
    given = values.section("optimizer", Known("torchtune", "optimizer"))
    name = given.one_of("_component_", OPTIMIZERS, option="optimizer")
    fused, foreach = given.flag("fused"), given.flag("foreach")
    if name is None:
        return {}
    found: dict[str, Any] = {"optimizer": name}
    if given.number("momentum") and name == "sgd":
        found["optimizer"] = "sgd-momentum"
    if str(given.get("_component_")).startswith("torch.") and not fused:
        # torch makes lists of temporaries unless one of the two is named [torch optim/adamw.py `adamw`]
        found["optimizer-kernel"] = "foreach" if foreach or (fused is None and foreach is None) else "loop"
    return found


def _loss(values: Watched) -> dict[str, Any]:
    given = values.section("loss", Known("torchtune", "loss"))
    component = given.text("_component_")
    kind = (component or "").rpartition(".")[2]
    if component is None or kind not in LOSSES:
        if component is not None:
            given.refuse("_component_", "one of {}", ", ".join(LOSSES), option="loss")
        return {}
    return BEFORE if kind == PLAIN and _is_old(values) else LOSSES[kind]


def _teacher(values: Watched) -> dict[str, Any]:
    """A frozen network whose logits are learned from [torchtune recipes/knowledge_distillation_*.py]."""
    if not values.get("teacher_model"):
        return {}
    given = values.section("teacher_model", Known("torchtune", "model"))
    match = BUILDER.fullmatch(given.text("_component_") or "")
    if match is None or match[2] == "qlora_" or match[3] not in MODELS:
        given.refuse("_component_", "a builder of an unpacked model known here; give --teacher for the network",
                     option="teacher")
        return {}
    loss = values.section("kd_loss", Known("torchtune", "loss"))
    if (kind := (loss.text("_component_") or "").rpartition(".")[2]) != DIVERGENCE:
        loss.cannot("_component_", "{} is not modelled; {} is", kind, DIVERGENCE)
    values.get("kd_ratio"), values.get("teacher_checkpointer")
    given.ignore(*(key for key in given if match[2] and key.startswith(("lora_", "apply_lora_"))))
    return {"objective": "gkd", "teacher": MODELS[match[3]]}


def _rounding(values: Watched) -> dict[str, Any]:
    """Training that is aware of a later quantisation [torchtune recipes/qat_*.py]."""
    if not values.get("quantizer"):
        return {}
    given = values.section("quantizer", Known("torchtune", "quantizer"))
    kind = (given.text("_component_") or "").rpartition(".")[2].removesuffix("ModuleSwap")
    values.ignore("fake_quant_after_n_steps")  # the steps after it
    if kind != FAKE:
        given.cannot("_component_", "{} is not modelled; {} is", kind, FAKE)
        return {}
    return {"engine-option": ("qat=int8-int4-affine", f"qat_group={given.count('groupsize') or 256}")}


def _some_layers(values: Watched) -> dict[str, Any]:
    """`ac_mode`, which counts where activation checkpointing is off, and switches it off where it is on
    [torchtune recipes/full_finetune_distributed.py `_setup_model`]."""
    mode, option = values.one_of("ac_mode", {"full": "full", "selective": "selective"}), values.get("ac_option")
    if mode is None:
        return {}
    if values.flag("enable_activation_checkpointing"):
        return {"recompute": "none"}
    every = int(option) if mode == "selective" and str(option).isdecimal() else 0
    if mode == "selective" and not str(option).isdecimal():
        values.cannot("ac_option", "is no number of layers; {} is modelled as one", shown(option))
    return {"recompute": "full"} | ({"engine-option": (f"recompute_every={every}",)} if every > 1 else {})


def _is_old(values: Watched) -> bool:
    """Whether a file is of a release before 0.3, when checkpoints and logs moved to torchtune.training."""
    parts = (part for part in values.values() if isinstance(part, Mapping))
    return any(str(part.get("_component_")).startswith("torchtune.utils.") for part in parts)


def _model(values: Watched, *, beside: bool, precision: str) -> dict[str, Any]:
    """Network and adapters by the builder that makes both."""
    name = "policy_model" if "policy_model" in values else "model"
    given = values.section(name, Known("torchtune", "model"))
    component = given.text("_component_")
    if beside:
        for key in given:
            if key != "lora_rank" and not given.known.is_harmless(key):  # type: ignore[union-attr]
                given.cannot(key, "is changed by the command; change it in the file")
        rank = given.count("lora_rank")
        return {} if rank is None else {"lora-rank": rank}
    match = BUILDER.fullmatch(component or "")
    if spelt := SPELT.get((component, *(given.get(size) for size in SIZES))):
        given.ignore("max_seq_len", "norm_eps")
        return {"model": spelt}
    if match is None or match[3] not in MODELS:
        given.refuse("_component_", "a builder of a model known here; give --model for the network", option="model")
        return {}
    if not match[2]:
        for key in given:
            if key.startswith(("lora_", "apply_lora_")):
                given.cannot(key, "{} makes no adapters; lora_{} does", match[3], match[3])
        return {"model": MODELS[match[3]]}
    return {"model": MODELS[match[3]]} | _adapters(given, match[2], precision)


def _adapters(given: Watched, prefix: str, precision: str) -> dict[str, Any]:
    """LoRA's arguments of a builder; its base is packed by torchao's NF4, constants too."""
    found: dict[str, Any] = {"peft": "dora" if given.flag("use_dora") else "lora", "adapter-dtype": precision}
    found["lora-rank"] = given.count("lora_rank") or RANK
    modules = given.get("lora_attn_modules")
    unknown = [name for name in modules if name not in ATTENTION] if isinstance(modules, list) else [modules]
    if unknown:
        given.cannot("lora_attn_modules", "{} is none of {}", shown(unknown[0]), ", ".join(ATTENTION))
        return found
    words = [ATTENTION[name] for name in modules]
    words += MLP if given.flag("apply_lora_to_mlp") else ()
    words += (HEAD,) if given.flag("apply_lora_to_output") else ()
    found["lora-targets"] = ",".join(words)
    if dropout := given.number("lora_dropout"):
        found["lora-dropout"] = dropout
    if prefix == "qlora_" or given.flag("quantize_base"):
        found["base-weights"] = "nf4-dq"
    return found


def _notes(options: Mapping[str, Any]) -> tuple[str, ...]:
    version = str(options.get("engine", "")).partition("@")[2]
    return () if not version else (
        Note(
            "its loss is that of torchtune before {}: {} is assumed; --engine torchtune@VERSION says another",
            "0.7" if version == "0.6" else "0.3", version
        ),)
