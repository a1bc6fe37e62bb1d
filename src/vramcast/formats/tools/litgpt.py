"""litgpt: the YAML of a fine-tuning script, `litgpt finetune_... CHECKPOINT --name value`, and the YAML written.

[litgpt] Lightning-AI/litgpt 0.5.13 litgpt/finetune/{lora,full,adapter,adapter_v2}.py `setup`, args.py, config_hub,
__main__.py `PARSER_DATA`, utils.py `get_default_supported_precision`, `instantiate_bnb_optimizer`
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.domain.job import Job, Precision, Shards
from vramcast.errors import Note, Unsupported, VramcastError
from vramcast.formats.files import File, Order, hub_id
from vramcast.formats.launch import head_of
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.reading import ELSEWHERE, Config, Reading, Unread, arguments, command_of, together, written
from vramcast.formats.table import Refusal, Row, nested, read_options, refuse, value_of
from vramcast.formats.tools.deepspeed import LEARNING_RATE
from vramcast.formats.unread import options_of_environment, unread_environment
from vramcast.formats.watched import Known, Watched

KNOWN: Final = Known("litgpt", "config")

ROWS: Final = (
    Row("precision", "precision", words={
        "bf16-true": "bf16", "bf16-mixed": "amp-bf16", "32-true": "fp32", "16-mixed": "amp-fp16"}),
    Row("seq_len", "train.max_seq_length", why="samples are cut there"),
)
BATCH: Final = {"global": "global_batch_size", "micro": "micro_batch_size"}

DEFAULTS: Final = {"global_batch_size": 16, "micro_batch_size": 1}
"""Of the fine-tuning scripts [litgpt finetune/*.py `setup`]."""

BASES: Final = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq", "bnb.int8-training": "int8"}

SWITCHES: Final = {
    "lora_query": ("attention.q",), "lora_key": ("attention.k",), "lora_value": ("attention.v",),
    "lora_projection": ("attention.out",), "lora_mlp": ("mlp.gate", "mlp.up", "mlp.down"), "lora_head": ("head",),
}
"""Name -> what it adapts."""

ON: Final = ("lora_query", "lora_value")
"""Where nobody says."""

GATE: Final = "mlp.gate"

OPTIMIZERS: Final = {"torch.optim.AdamW": "adamw", "AdamW": "adamw", "torch.optim.SGD": "sgd", "SGD": "sgd"}
"""Class -> ours; over packed weights bitsandbytes' PagedAdamW takes the place of AdamW, which the engine knows."""

SCRIPTS: Final = {
    "finetune": "lora", "finetune_lora": "lora", "finetune_full": "", "finetune_adapter": "adapter",
    "finetune_adapter_v2": "adapter",
}
"""Command -> method."""

NAME: Final = "litgpt.yaml"


def read(config: Config) -> Reading:
    """Options of a YAML, or of a command.

    Raises: Unsupported for commands that do not fine-tune
    """
    if config.table is None:
        return _command(config)
    values = Watched(config.table, KNOWN)
    if values.get("model_name") is not None:
        raise Unsupported(
            "{}: litgpt's pretraining compiles the model and shards in groups, which is not modelled; give a "
            "fine-tuning configuration", config.name
        )
    lora = any(name.startswith("lora_") or name == "quantize" for name in config.table)
    note = () if lora else (Note("{} says nothing of LoRA: litgpt finetune_full is assumed", config.name),)
    options, batch = _options(values, "lora" if lora else "", whole=True)
    auto = {} if "seq-len" in options else {"seq-len": "says no train.max_seq_length"}
    ranks = _ranks(values)
    return Reading("litgpt", {}, options, batch, tuple(values.unread()), note, auto, ranks, alone=ranks == 1)


def _command(config: Config) -> Reading:
    command = command_of(config, lambda words: sum(word in SCRIPTS or word == "pretrain" for word in words))
    words = list(command.words)
    place = next((at for at, word in enumerate(words) if word in SCRIPTS), None)
    if place is None:
        raise Unsupported("{}: of litgpt's commands {} are read", config.name, ", ".join(SCRIPTS))
    given = {name: value_of(value) for name, value in arguments(words[place + 1:]).items()}
    if place + 1 < len(words) and not words[place + 1].startswith("-"):
        given["checkpoint_dir"] = words[place + 1]
    file = given.pop("config", None)
    values = Watched(nested(given), KNOWN, undecided=command.undecided)
    options, batch = _options(values, SCRIPTS[words[place]], whole=file is None)
    if words[place].endswith("_v2"):
        options["engine-option"] = (*options.get("engine-option", ()), "adapter_version=2")
    ranks = _ranks(values)
    unread = [*command.unread, *values.unread(), *unread_environment(command.variables)]
    if file is not None:
        unread.append(Unread(str(file)[:60], ELSEWHERE, file="litgpt"))
    auto = {} if "seq-len" in options or file else {"seq-len": "says no train.max_seq_length"}
    return Reading("litgpt's command", options | options_of_environment(command.variables), {}, batch, tuple(unread),
                   command.notes, auto, ranks, alone=ranks == 1)


def _ranks(values: Watched) -> int | None:
    devices = values.get("devices")
    if devices == "auto" or devices is None:
        return None
    count = values.count("devices")
    return count and count * (values.count("num_nodes") or 1)


def _options(values: Watched, method: str, *, whole: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """Options, and the batch.

    Args:
        method: of the command
        whole: what is not said has its default
    """
    options: dict[str, Any] = {"engine": "litgpt", "shards": "everything"}  # over several GPUs; one holds it all
    train = values.section("train", Known("litgpt", "train"))
    values.section("data", Known("litgpt", "data"))
    options |= read_options(ROWS, values)
    if whole and "precision" not in options:
        options["precision"] = "amp-bf16"
    if (name := values.text("checkpoint_dir")) is not None:
        options["model"] = name.removeprefix("checkpoints/")
    if train.flag("tie_embeddings"):
        options["engine-option"] = ("tie_embeddings=true",)
    batch = {kind: train.count(name) or (DEFAULTS[name] if whole else None) for kind, name in BATCH.items()}
    options |= _adapters(values, method, options.get("model"), whole=whole)
    options = together(options, _optimizer(values))
    return options, {kind: size for kind, size in batch.items() if size}


def _adapters(values: Watched, method: str, model: str | None, *, whole: bool) -> dict[str, Any]:
    if not method:
        return {}
    base = values.one_of("quantize", BASES, option="base-weights")
    found: dict[str, Any] = {"peft": method} | ({"base-weights": base} if base else {})
    if method == "adapter":
        return found
    said = {name: values.flag(name) for name in SWITCHES}
    if whole or any(flag is not None for flag in said.values()):
        if not whole and None in said.values():
            values.cannot("lora_query", "and its kin are said in part; say all of them", option="lora-targets")
        chosen = [name for name, flag in said.items() if (name in ON if flag is None else flag)]
        words = [word for name in chosen for word in SWITCHES[name] if word != GATE or _is_gated(model)]
        found["lora-targets"] = ",".join(words)
    if (rank := values.count("lora_r") or (8 if whole else None)) is not None:
        found["lora-rank"] = rank
    dropout = values.number("lora_dropout")
    if (dropout := 0.05 if dropout is None and whole else dropout) is not None:
        found["lora-dropout"] = dropout
    return found


def _is_gated(name: str | None) -> bool:
    """Whether the network's MLP has a gate; one that is not known is refused where it is looked for."""
    from vramcast.sources.resolve import resolve_model  # most files need no network to be read

    try:
        layer = resolve_model(name).main.runs[0].layer if name else None
    except VramcastError:
        return True
    return bool(getattr(layer.channel, "gated", True)) if layer is not None else True


def _optimizer(values: Watched) -> dict[str, Any]:
    given = values.get("optimizer")
    if isinstance(given, dict):
        table = values.section("optimizer")
        name, init = table.text("class_path"), table.section("init_args", Known("litgpt", "init_args"))
    else:
        name, init = values.text("optimizer"), Watched({})
    if name is None:
        return {}
    if name not in OPTIMIZERS:
        values.refuse("optimizer", "one of {}", ", ".join(OPTIMIZERS), option="optimizer")
        return {}
    found = {"optimizer": OPTIMIZERS[name]}
    if init.flag("fused"):
        found["optimizer-kernel"] = "fused"
    elif init.flag("foreach") is False:
        found["optimizer-kernel"] = "loop"
    return found


REFUSALS: Final = (
    Refusal(lambda job: job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1,
            "litgpt's fine-tuning scripts divide nothing but data; use tp=pp=cp=ep=1"),
    Refusal(lambda job: job.data_parallel > 1 and job.plan.shards is not Shards.EVERYTHING,
            "litgpt shards everything over several GPUs; use --shards everything"),
    Refusal(lambda job: job.workload.objective not in ("pretrain", "sft"),
            "litgpt's file is written for sft, not for {workload.objective}"),
    Refusal(lambda job: job.plan.peft is not None and job.plan.peft.method != "lora",
            "litgpt's file is written for LoRA and for all weights, not for {plan.peft.method}"),
)

PRECISIONS: Final = {"bf16": "bf16-true", "amp-bf16": "bf16-mixed", "fp32": "32-true", "amp-fp16": "16-mixed"}


def write(order: Order) -> tuple[File, ...]:
    """The one file; `litgpt finetune_lora` or `finetune_full` reads it.

    Raises: Unsupported for what litgpt does not do
    """
    job: Job = order.job
    refuse(REFUSALS, job)
    ask = order.ask
    precision = Precision(ask("precision")).value
    if precision not in PRECISIONS:
        raise Unsupported("litgpt has no precision {}; use {}", precision, ", ".join(PRECISIONS))
    script = "finetune_lora" if job.plan.peft else "finetune_full"
    cluster, model = job.cluster, hub_id(job.model)
    table = (
        Line("checkpoint_dir", f"checkpoints/{model}", f"litgpt download {model}"),
        Line("precision", PRECISIONS[precision], f"precision: {precision}"),
        Line("devices", cluster.gpus_per_node), Line("num_nodes", cluster.num_nodes),
        *_adapter_lines(order), _train(order), _optimizer_line(order),
    )
    ask.also("shards", "attention", "objective", "option.adapter_version")
    text = yaml_text(table, head=head_of(order, f"litgpt {script} --config {NAME}"))
    return (order.file(NAME, text),)


def _train(order: Order) -> Line:
    ask, job = order.ask, order.job
    micro, accumulation = ask("micro_batch"), ask("grad_accum")
    lines = [
        Line("micro_batch_size", micro, "samples per forward on one GPU"),
        Line("global_batch_size", micro * accumulation * job.data_parallel),
        Line("max_seq_length", ask("seq_len"), "samples are cut there"),
        Line("epochs", 1, "not part of the plan"),
    ]
    if ask("option.tie_embeddings"):
        lines.append(Line("tie_embeddings", True))
    return Line("train", tuple(lines))


def _adapter_lines(order: Order) -> Table:
    ask, peft = order.ask, order.job.plan.peft
    if peft is None:
        return ()
    ask.also("peft.method", "peft.adapter_dtype")
    words = set(ask("peft.targets"))
    chosen = {name: bool(words & set(adapted)) for name, adapted in SWITCHES.items()}
    known = {word for adapted in SWITCHES.values() for word in adapted} | {"head.output"}
    if words - known:
        raise Unsupported("litgpt cannot adapt {}; use {}", sorted(words - known)[0], ", ".join(sorted(known)))
    chosen["lora_head"] |= "head.output" in words
    lines = [Line("lora_r", ask("peft.rank")), Line("lora_alpha", 2 * peft.rank, "not part of the plan"),
             Line("lora_dropout", ask("peft.dropout")), *(Line(name, flag) for name, flag in chosen.items())]
    if ask("peft.base") != "full":
        bases = written(BASES)
        if peft.base not in bases:
            raise Unsupported("litgpt packs no frozen weights as {}; use {}", peft.base, ", ".join(bases))
        lines.append(Line("quantize", bases[peft.base], f"frozen weights: {peft.base}"))
    return tuple(lines)


def _optimizer_line(order: Order) -> Line:
    kernel, name = order.ask("optimizer_kernel"), order.ask("optimizer")
    classes = written({text: own for text, own in OPTIMIZERS.items() if "." in text})
    if name not in classes:
        raise Unsupported("litgpt's file is not written with {}; use {}", name, ", ".join(classes))
    flags = {"fused": [Line("fused", True)], "loop": [Line("foreach", False)]}.get(kernel or "", [])
    init = (Line("lr", LEARNING_RATE, "not part of the plan"), *flags)
    return Line("optimizer", (Line("class_path", classes[name]), Line("init_args", init)))
