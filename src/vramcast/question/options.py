"""The one table of what can be asked: the command line, job files and Python arguments are all made from it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final, get_args

from msgspec.structs import replace

from vramcast import states
from vramcast.domain.job import WITHOUT_TARGETS, AttentionKernel, Loss, Precision, Recompute, Shards
from vramcast.engines.training import DIFFUSION, PURE, TRAINING, Sharder
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.lazy import lazy_pattern
from vramcast.operators.lora import ADAPTERS
from vramcast.question.option import Kind as Kind
from vramcast.question.option import Option as Option
from vramcast.question.option import choice_of

ZERO: Final = {"0": Shards.NOTHING, "1": Shards.OPTIMIZER, "2": Shards.OPTIMIZER_AND_GRADIENTS, "3": Shards.EVERYTHING}
SAME: Final = frozenset(("zero", "shards")), frozenset(("global-batch", "grad-accum")), frozenset(("used", "reserve")),
"""Options of which one says the other."""

SUFFIXES: Final = {"k": 1024, "m": 1024**2}
AMOUNT: Final = lazy_pattern(r"(\d{1,18})(?:\.(\d{1,9}))?([kmbt]?)", re.ASCII)
AMOUNTS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
LARGEST_AMOUNT: Final = 10**18
COMMAS: Final = lazy_pattern(r",(?![^({[]*[)}\]])")
"""Commas between names, not those inside brackets: of a regular expression, of a list."""


HEADROOM: Final = "share of each card that stays free: 5%; by default so much that the 90 % interval fits"

NO_SEARCH: Final = "--headroom says what a search leaves free; give --find with it, or leave it out"

MODEL_OPTIONS: Final[dict[str, Option]] = {
    "params": Option("model", "params", Kind.TEXT, "without MODEL: number of weights, 100B"),
    "layers": Option("model", "layers", Kind.COUNT, "without MODEL: layers; with MODEL: cut it to that many"),
    "hidden": Option("model", "hidden", Kind.COUNT, "without MODEL: hidden width"),
    "heads": Option("model", "heads", Kind.COUNT, "without MODEL: attention heads"),
    "kv-heads": Option("model", "kv_heads", Kind.COUNT, "without MODEL: key/value heads"),
    "ffn": Option("model", "ffn", Kind.COUNT, "without MODEL: feed-forward width"),
    "vocab": Option("model", "vocab", Kind.COUNT, "without MODEL: vocabulary"),
}
"""A model by numbers, or cut."""

MARKET_OPTIONS: Final[dict[str, Option]] = {
    "price": Option("market", "price", Kind.TEXT, "2.5usd per GPU and hour, 98.32usd/node per machine and hour"),
    "spot": Option("market", "spot", Kind.FLAG, "spot prices instead of on-demand ones"),
    "region": Option("market", "region", Kind.TEXT, "region of the price: us-east-1, cn-beijing"),
    "currency": Option("market", "currency", Kind.TEXT, "use prices in this currency only; none is converted"),
    "prices": Option("market", "prices", Kind.TEXT, "a file of your own prices (CSV, see vramcast prices --help)"),
    "used": Option("market", "used", Kind.TEXT, "memory of each card that the desktop and others hold: 2GiB"),
    "reserve": Option("market", "used", Kind.TEXT, "the same: memory of each card to leave alone"),
    "hardware": Option("market", "hardware", Kind.TEXT, "a file of your own clusters (TOML), named by --gpus"),
}
"""What machines cost, and which there are beside those of the catalogue."""

CONFIG_OPTIONS: Final[dict[str, Option]] = {
    "from": Option("config", "paths", Kind.NAMES, "a configuration of another tool: ds_config.json, accelerate.yaml, "
                   "Megatron or vLLM arguments (repeatable); options win over it"),
    "from-command": Option("config", "line", Kind.TEXT, "the command of another tool as one text; typed, it stands "
                           "behind --, at the end: -- vllm serve Qwen/Qwen3-32B -tp 2"),
    "args": Option("config", "arguments", Kind.TEXT, "what a script of --from is started with, as typed behind it: "
                   "\"7B 8 4096\""),
    "env": Option("config", "environment", Kind.NAMES, "NAME=VALUE of the environment in which what --from names is "
                  "started (repeatable)"),
    "from-format": Option("config", "format_name", Kind.TEXT, "whose --from is, where it is not recognised: vllm ..."),
    "ignore-unread": Option("config", "ignore_unread", Kind.FLAG, "leave out what of --from is not understood, and say "
                            "so, instead of refusing it"),
}
"""Files of other tools that a question starts from, and how they are read."""

OPTIONS: Final[dict[str, Option]] = {
    "engine": replace(choice_of(
        "job",
        "engine",
        "framework that runs the job, huggingface@4.57 (transformers' version); by default pytorch on one GPU, "
        "torchtitan (FSDP2) on several, huggingface for adapters and there for preferences, diffusers for pipelines",
        (*TRAINING, *DIFFUSION),
    ), versioned=True),
    "seq-len": Option("workload", "seq_len", Kind.COUNT, "positions per sample (8k = 8192)"),
    "min-seq-len": Option("workload", "min_seq_len", Kind.COUNT, "samples differ in length: positions of the shortest; "
                          "--seq-len is the longest"),
    "micro-batch": Option("workload", "micro_batch", Kind.COUNT, "samples per forward on one data-parallel rank"),
    "grad-accum": Option("workload", "grad_accum", Kind.COUNT, "micro-batches per optimizer step"),
    "global-batch": Option("job", "global_batch", Kind.COUNT, "samples per optimizer step; sets --grad-accum"),
    "decoder-seq-len": Option("workload", "decoder_seq_len", Kind.COUNT, "encoder-decoder: positions of the decoder"),
    "vision-tower": Option("job", "vision_tower", Kind.TEXT, "an image encoder and two linears before the model, as "
                           "LLaVA puts them: clip-vit-large-patch14-336"),
    "image-size": Option("workload", "image_size", Kind.COUNT, "vision: pixels per side"),
    "images": Option("workload", "images", Kind.COUNT, "vision: images per sample, 0 for text alone"),
    "objective": choice_of(
        "workload", "objective", "what is optimised; gkd: what a --teacher says; classification: a label for each "
        "sample, tagging: for each token",
        ("pretrain", "sft", "dpo", "kto", "gkd", "ppo", "grpo", "rloo", "reward", "classification", "tagging"),
    ),
    "teacher": Option("job", "teacher", Kind.TEXT, "gkd: the network whose logits are learned, named as a model is, "
                      "or itself"),
    "completion-len": Option("workload", "completion_len", Kind.COUNT,
                             "generated tokens per sample (ppo, grpo, rloo, gkd)"),
    "precision": choice_of("plan", "precision", "recipe of dtypes", (*Precision, *PURE)),
    "optimizer": Option("plan", "optimizer", Kind.TEXT, "adamw, sgd, adafactor, lion, muon, adamw-8bit ..."),
    "optimizer-kernel": choice_of(
        "plan", "optimizer_kernel", "implementation of the step", ("foreach", "fused", "loop")),
    "tp": Option("plan", "tp", Kind.COUNT, "tensor-parallel degree"),
    "pp": Option("plan", "pp", Kind.COUNT, "pipeline stages"),
    "cp": Option("plan", "cp", Kind.COUNT, "context-parallel degree"),
    "ep": Option("plan", "ep", Kind.COUNT, "expert-parallel degree"),
    "etp": Option("plan", "etp", Kind.COUNT, "tensor parallelism inside experts"),
    "virtual-stages": Option("plan", "virtual_stages", Kind.COUNT, "model chunks per pipeline rank"),
    "schedule": choice_of("plan", "schedule", "pipeline schedule", ("1f1b", "interleaved", "gpipe")),
    "first-stage-layers": Option("plan", "first_stage_layers", Kind.COUNT, "layers of the first pipeline stage"),
    "last-stage-layers": Option("plan", "last_stage_layers", Kind.COUNT, "layers of the last pipeline stage"),
    "sequence-parallel": Option("plan", "sequence_parallel", Kind.FLAG, "split norms and residuals over tp"),
    "cp-kind": choice_of("plan", "cp_kind", "how context parallelism exchanges", ("ring", "ulysses", "allgather")),
    "shards": choice_of("plan", "shards", "what the data-parallel group splits (also: zero = 0..3)", Shards),
    "zero": choice_of("plan", "shards", "ZeRO stage, the same as --shards", ZERO),
    "sharded-by": choice_of(
        "plan", "sharded_by", "what does the sharding, where the engine has a choice", get_args(Sharder),
    ),
    "shard-group": Option("plan", "shard_group", Kind.COUNT, "HSDP: ranks that share one copy"),
    "reshard-after-forward": Option("plan", "reshard_after_forward", Kind.FLAG, "FSDP: free gathered weights"),
    "recompute": choice_of("plan", "recompute", "activation checkpointing", Recompute),
    "recompute-layers": Option("plan", "recompute_layers", Kind.COUNT, "only that many layers of a stage"),
    "recompute-modules": Option("plan", "recompute_modules", Kind.NAMES, "what selective recomputation drops"),
    "attention": choice_of("plan", "attention", "attention kernel", AttentionKernel),
    "loss": choice_of("plan", "loss", "head and cross entropy", Loss),
    "compile": Option("plan", "compile", Kind.FLAG, "torch.compile"),
    "offload-optimizer": choice_of(
        "plan", "offload_optimizer", "optimizer states off the GPU", ("none", "cpu", "nvme")),
    "offload-parameters": choice_of("plan", "offload_parameters", "weights off the GPU", ("none", "cpu", "nvme")),
    "offload-activations": Option("plan", "offload_activations", Kind.FLAG, "saved activations off the GPU"),
    "freeze": Option(
        "plan", "freeze", Kind.NAMES, "parts that do not learn: vision, projector, decoder, encoder, embedding, head, "
        "layers (embedding and head learn), backbone (all but the head), towers and projectors (those that there are)",
    ),
    "peft": choice_of("peft", "method", "parameter-efficient fine-tuning", (*ADAPTERS, *WITHOUT_TARGETS)),
    "lora-rank": Option("peft", "rank", Kind.COUNT, "rank of the adapters"),
    "lora-targets": Option(
        "peft", "targets", Kind.NAMES, "adapted weights: all-linear, q_proj, attention.q ..., or a regular expression"
    ),
    "modules-to-save": Option(
        "peft", "modules_to_save", Kind.NAMES, "trained whole beside adapters: embedding, lm_head ..."
    ),
    "virtual-tokens": Option("peft", "virtual_tokens", Kind.COUNT, "prefix and prompt tuning"),
    "trainable-parameters": Option(
        "peft", "trainable_parameters", Kind.COUNT, "weights of the adapters, as PEFT prints them, where rank and "
        "targets do not say it"
    ),
    "lora-dropout": Option("peft", "dropout", Kind.NUMBER, "dropout before the adapters"),
    "base-weights": choice_of(
        "peft", "base", "storage of the frozen weights",
        ("full", "nf4", "nf4-dq", "int8", "gptq-int4", "gptq-int8", "awq-int4"),
    ),
    "adapter-dtype": choice_of("peft", "adapter_dtype", "dtype of the adapters", ("fp32", "bf16", "fp16")),
    "tokens": Option("job", "run_tokens", Kind.AMOUNT, "tokens of the whole run (1T = 10^12), for its cost"),
    "alloc-conf": Option("job", "alloc_conf", Kind.TEXT, "PYTORCH_CUDA_ALLOC_CONF"),
    "calibration": Option("job", "calibration", Kind.TEXT, "a file that `vramcast calibrate --save` wrote"),
    "engine-option": Option("job", "engine_options", Kind.NAMES, "key=value for the engine (repeatable)"),
    **CONFIG_OPTIONS,
    **MARKET_OPTIONS,
    **MODEL_OPTIONS,
}
"""Name as users write it -> where it goes. `gpus` and `model` are the two that are always there."""


def is_own(name: str, value: object, table: Mapping[str, Option]) -> bool:
    """Whether an option and its value are written as vramcast writes them, and not as another tool does."""
    if name in ("model", "gpus"):
        return True
    option = table.get(name)
    if option is None:
        return False
    if option.kind is Kind.CHOICE and isinstance(value, str):
        text = value.strip().lower()
        return (text.partition("@")[0] if option.versioned else text) in option.choices
    if name == "weights" and isinstance(value, str):
        return value.strip().lower() not in states.storage.SPOKEN
    if name == "optimizer" and option.kind is Kind.TEXT and isinstance(value, str):
        return states.optimizers.canonical(value).partition(":")[0].removeprefix("paged-") in (
            states.optimizers.OPTIMIZERS)
    return True


def over(named: Mapping[str, Any], beneath: Mapping[str, Any]) -> dict[str, Any]:
    """Options over others: each wins over itself, and over what says the same in another way.

    >>> over({"shards": "nothing"}, {"zero": 3, "tp": 2})
    {'tp': 2, 'shards': 'nothing'}
    >>> over({"engine-option": "a=1"}, {"engine-option": ("a=2", "b=3")})
    {'engine-option': ('b=3', 'a=1')}
    """
    said = {name for pair in SAME if pair & named.keys() for name in pair}
    found = {name: value for name, value in beneath.items() if name not in said} | dict(named)
    if "engine-option" in named and "engine-option" in beneath:  # each of them is an option of its own
        own, others = _pairs(named["engine-option"]), _pairs(beneath["engine-option"])
        keys = {pair.partition("=")[0] for pair in own}
        found["engine-option"] = (*(pair for pair in others if pair.partition("=")[0] not in keys), *own)
    return found


def _pairs(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)


def parse_count(name: str, value: object) -> int:
    """A whole number; '8k' is 8192, '1M' 1048576.

    >>> parse_count("seq-len", "8k")
    8192
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    factor = SUFFIXES.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise InvalidSpec("{}={!r} must be a whole number such as 4096 or 8k", name, value)
    return int(digits) * factor


def parse_amount(name: str, value: object) -> int:
    """A whole number in decimal units, as runs are measured: '1T' is 10^12, '1.5B' 1500000000.

    >>> parse_amount("tokens", "1.5B")
    1500000000
    """
    match = AMOUNT.fullmatch(str(value).strip().lower().replace("_", "").replace(",", ""))
    if match is None or isinstance(value, bool):
        raise InvalidSpec("{}={!r} must be a number such as 300M, 15B or 1.5T", name, str(value)[:40])
    fraction = match[2] or ""
    amount: int = int(match[1] + fraction) * AMOUNTS[match[3]] // 10 ** len(fraction)
    if not 1 <= amount <= LARGEST_AMOUNT:
        raise InvalidSpec("{}={!r} must be from 1 to 10^18", name, str(value)[:40])
    return amount


def given_of(
    options: Mapping[str, object], table: Mapping[str, Option], beside: tuple[str, ...] = ("model", "gpus")
) -> dict[str, Any]:
    """What options say at all; `beside`: those that no table has.

    Raises: UnknownName for one that neither has
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in table and name not in beside:
            raise UnknownName.of("option", name, (*beside, *table))
    return given


def parse(name: str, value: object, table: Mapping[str, Option] | None = None) -> Any:
    """A value as its option wants it; the options of `train` where no other table is given.

    Raises: InvalidSpec that names the option, what was given and what would work.
    """
    option = (table or OPTIONS)[name]
    match option.kind:
        case Kind.COUNT:
            return parse_count(name, value)
        case Kind.CHOICE:
            text = str(value).strip().lower()
            if (text.partition("@")[0] if option.versioned else text) not in option.choices:
                raise InvalidSpec("{}={!r} is not known; use {}", name, str(value)[:80], ", ".join(option.choices))
            return str(ZERO[text]) if name == "zero" else text
        case Kind.FLAG:
            if not isinstance(value, bool):
                raise InvalidSpec("{}={!r} must be true or false", name, value)
            return value
        case Kind.NAMES:
            items = value.split(",") if isinstance(value, str) else value
            if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
                raise InvalidSpec("{} must be a list of names", name)
            return tuple(part.strip() for item in items for part in COMMAS.split(item) if part.strip())
        case Kind.NUMBER:
            return _parse_number(name, value)
        case Kind.AMOUNT:
            return parse_amount(name, value)
    if not isinstance(value, str) or len(value) > 1000:
        raise InvalidSpec("{} must be a text of at most 1000 characters", name)
    if option.field == "optimizer" and option.section == "plan":
        states.optimizers.optimizer(value)  # a name that no engine knows is refused where it is said
    return value


def _parse_number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e12:
        raise InvalidSpec("{}={!r} must be a number from 0 to 1e12", name, value)
    return number


__all__ = [
    "CONFIG_OPTIONS", "HEADROOM", "MARKET_OPTIONS", "MODEL_OPTIONS", "NO_SEARCH", "OPTIONS", "Kind",
    "Option", "is_own", "over", "parse", "parse_amount", "parse_count",
]


ALWAYS: Final = ("model", "gpus")

RIVALS: Final[dict[str, tuple[str, ...]]] = {
    "zero": ("shards",), "shards": ("zero",), "grad-accum": ("global-batch",), "global-batch": ("grad-accum",),
    "engine": ("engine-option", "sharded-by", "precision"),
}
"""Option -> others that a question cannot keep where a change says it: they say the same, or were another engine's."""


def applied_in(text: str, table: Mapping[str, Option]) -> dict[str, Any] | None:
    """What a change makes of a question's options, None for those that it takes out; None where it is none.

    >>> from vramcast.question.options import OPTIONS
    >>> applied_in("--shards everything", OPTIONS)
    {'zero': None, 'shards': 'everything'}
    """
    found = options_in(text, table)
    if found is None:
        return None
    rivals = (rival for name in found for rival in RIVALS.get(name, ()) if rival in table)
    return dict.fromkeys(rivals) | found


def options_in(text: str, table: Mapping[str, Option]) -> dict[str, Any] | None:
    """The options that a text writes, as a question takes them; None where it says anything else.

    >>> from vramcast.question.options import OPTIONS
    >>> options_in("--gpus 2xh100 --tp 2 --no-compile", OPTIONS)
    {'gpus': '2xh100', 'tp': '2', 'compile': False}
    >>> options_in("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", OPTIONS)
    """
    found: dict[str, Any] = {}
    words = iter(shlex.split(text))
    for word in words:
        name = word.removeprefix("--")
        positive = name.removeprefix("no-")
        if name == word or name in found:
            return None
        if positive in table and table[positive].kind is Kind.FLAG:
            found[positive] = positive == name
            continue
        value = next(words, None)
        if value is None or (name not in table and name not in ALWAYS):
            return None
        found[name] = value
    return found or None
