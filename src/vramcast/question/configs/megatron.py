"""Megatron-LM's arguments in a shell script or a text [Megatron-LM megatron/training/arguments.py]."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec.structs

from vramcast.catalogue.formats import load_format, problems
from vramcast.domain.job import Plan
from vramcast.engines.megatron.options import Options
from vramcast.errors import Unsupported
from vramcast.question.configs.environment import options_of_environment, ranks_of, unread_environment
from vramcast.question.configs.megatron_model import BY_TOKENIZER, engine_options_of, model_of, plan_of
from vramcast.question.configs.reading import Command, Config, Reading, Unread, arguments, command_of
from vramcast.question.configs.watched import Known, Watched
from vramcast.question.options import OPTIONS

ARGUMENTS: Final = Known("megatron", "arguments", (Known("torchrun", "arguments"),))

LISTS: Final = ("--recompute-modules", "--spec")

NAMED: Final = ("tensor_model_parallel_size", "num_layers", "micro_batch_size", "use_distributed_optimizer")

SCRIPTS: Final = {
    "pretrain_gpt.py": "gpt", "pretrain_mamba.py": "hybrid", "pretrain_hybrid.py": "hybrid", "pretrain_bert.py": "bert",
    "pretrain_t5.py": "t5",
}
"""Entry script -> family of its network; others build networks of their own."""

SIZES: Final = {"--seq-length": "seq-len", "--micro-batch-size": "micro-batch", "--global-batch-size": "global-batch"}

OF_ENCODERS: Final = {"--encoder-seq-length": "seq-len", "--decoder-seq-length": "decoder-seq-len"}
"""Sizes of networks with an encoder and a decoder."""

NEEDED: Final = ("--seq-length", "--micro-batch-size")
"""Sizes that Megatron-LM has no default for [arguments.py `validate_args`]."""

OF_EXPERTS: Final = ("dispatcher", "grouped_gemm", "permute_fusion", "router_fp32", "sinkhorn", "overlap_moe_comm")
"""Engine options that say nothing of a dense network."""

DESCRIBES: Final = ("--hidden-size", "--num-attention-heads", "--max-position-embeddings")
"""What a network needs, beside its layers."""

OF_NETWORK: Final = re.compile(
    r"--(?:experimental-attention|dsa-|linear-|softmax-type|window-|attention-output|qk-|mtp-|heterogeneous|enable-mhc|"
    r"mhc-|moe-(?:ffn|latent|layer-freq|shared-expert-(?:gate|inter|glu)|use-upcycling|mlp-glu)|num-|hybrid|mamba-|gdp-|"
    r"is-hybrid|multi|kv-|q-lora|v-head|img-|vision|encoder|decoder-num|ict|biencoder|spec|padded-vocab|vocab|"
    r"tokenizer-type|activation-func|quick-geglu|openai-gelu|onnx|squared|swiglu|normalization|no-rope-freq|"
    r"use-checkpoint-args|yaml-cfg|fp32-residual|apply-residual|add-qkv|disable-bias|untie|position|max-position|hidden)"
)
"""Arguments that say what the network is."""

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "--use-flash-attn": (True,), "--attention-softmax-in-fp32": (True,), "--cuda-graph-impl": ("none",),
    "--optimizer-offload-fraction": (1, 1.0), "--main-grads-dtype": ("fp32",), "--main-params-dtype": ("fp32",),
    "--activation-offload-fraction": (1, 1.0),
}
"""Arguments that change nothing with these values, where TransformerEngine's layers run."""

OF_LOCAL: Final = ("--use-flash-attn", "--attention-softmax-in-fp32")
"""Those of them that matter to Megatron's own layers."""


def is_megatron(config: Config) -> bool:
    """Whether a script or table has Megatron's names."""
    if config.table is not None:
        return sum(name in config.table for name in NAMED) >= 2
    return sum(f"--{name.replace('_', '-')}" in config.text for name in NAMED) >= 2


def _score(words: tuple[str, ...]) -> int:
    """Arguments of Megatron in a command; one alone may be anybody's."""
    known = load_format("megatron").sections["arguments"]
    found = sum(word.startswith("--") and word[2:].partition("=")[0].replace("_", "-") in known for word in words)
    return found if found > 1 else 0


def read(config: Config) -> Reading:
    """Model, plan and batch of the arguments."""
    command = Command(()) if config.table is not None else command_of(config, _score)
    words = arguments(command.words)
    plainly = dict(config.table) if config.table is not None else {  # "none" is a word of several arguments
        name: "none" if value is None else value for name, value in words.items()
    }
    typed = {f"--{name.replace('_', '-')}": value for name, value in plainly.items()}
    given = {name: _typed(name, value) for name, value in typed.items()}
    values = Watched(
        {name: value for name, value in given.items() if value is not False and value is not None}, ARGUMENTS,
        undecided=command.undecided,
    )
    unread = list(_mistaken(values))
    family, entry = _family(command)
    for name, usual in USUAL.items():
        local = name in OF_LOCAL and values.get("--transformer-impl") == "local"
        values.only(name, *(() if local else usual))
    values.only("--exp-avg-sq-dtype", _moments(values))
    options: dict[str, Any] = {"engine": "megatron", **plan_options(plan_of(values)), **_engine_options(values, family)}
    sizes = SIZES | OF_ENCODERS if family == "t5" else SIZES
    options |= {option: size for name, option in sizes.items() if (size := values.count(name)) is not None}
    for name in NEEDED:
        if SIZES[name] not in options:
            values.cannot(name, "is not given, and Megatron-LM has no default", option=SIZES[name])
    try:
        options |= _network(values, family, config.name)
    except Unsupported as reason:
        unread.append(Unread("the network", str(reason), "model", of_network=True))
    options |= options_of_environment(command.variables)
    gpus, machines = values.count("--nproc-per-node"), values.count("--nnodes")
    unread += [*entry, *command.unread, *unread_environment(command.variables), *values.unread()]
    return Reading(
        "megatron", options, unread=tuple(one._replace(of_network=bool(OF_NETWORK.match(one.name)) or one.of_network)
                                          for one in unread),
        notes=command.notes, ranks=ranks_of(gpus, machines, command.variables),
    )


def _moments(values: Watched) -> Any:
    """The dtype of both moments: one is modelled, that of the first [optimizer_config.py `exp_avg_dtype`]."""
    return values.get("--exp-avg-dtype", "fp32") if "--use-precision-aware-optimizer" in values else "fp32"


def _family(command: Command) -> tuple[str, list[Unread]]:
    """What the entry script builds."""
    script = next((word.rpartition("/")[2] for word in command.words if word.endswith(".py")), "pretrain_gpt.py")
    if script not in SCRIPTS:
        return "gpt", [Unread(script[:60], f"builds a network or a run of its own; {', '.join(SCRIPTS)} are modelled",
                              of_network=True)]
    return SCRIPTS[script], []


def _engine_options(values: Watched, family: str) -> dict[str, Any]:
    defaults = msgspec.structs.asdict(Options())
    pairs = engine_options_of(values, family)
    pairs["stage_layers"] = str(pairs["stage_layers"]).replace(",", "-")
    dense = "--num-experts" not in values
    changed = tuple(
        f"{name}={_text(value)}" for name, value in pairs.items()
        if value != defaults.get(name) and not (dense and name in OF_EXPERTS)
    )
    return {"engine-option": changed} if changed else {}


def _network(values: Watched, family: str, name: str) -> dict[str, Any]:
    """The network that the arguments describe; none where they only say how one is trained."""
    missing = [each for each in DESCRIBES if each not in values]
    layers = "--num-layers" in values or "--hybrid-layer-pattern" in values or "--encoder-num-layers" in values
    if len(missing) == len(DESCRIBES) and not layers:
        return {}
    if missing or not layers:
        what = ", ".join(missing) or "--num-layers"
        values.cannot("the network", f"{what} is missing; name the model beside --from", option="model")
        return {}
    if "--vocab-size" not in values and "--padded-vocab-size" not in values:
        tokenizer = str(values.get("--tokenizer-type", "a tokenizer"))
        if tokenizer not in BY_TOKENIZER and family == "gpt":
            why = f"is not given, and the vocabulary of {tokenizer[:40]} is not known here; add it, or name the model"
            values.cannot("--vocab-size", why)
    found = msgspec.structs.replace(model_of(values, family), name=name)
    for unused, instead in UNUSED.items():
        if instead in values:
            values.get(unused)
    return {"model": found}


UNUSED: Final = {
    "--ffn-hidden-size": "--moe-ffn-hidden-size", "--kv-channels": "--multi-latent-attention",
    "--qk-layernorm": "--multi-latent-attention", "--num-query-groups": "--multi-latent-attention",
    "--group-query-attention": "--multi-latent-attention",
    "--num-attention-heads": "--hybrid-layer-pattern", "--disable-bias-linear": "--hybrid-layer-pattern",
}
"""Argument -> the one that takes its place: latent attention has widths and norms of its own; a pattern without
attention has no heads and no linear layers with a bias."""


def _mistaken(values: Watched) -> Iterator[Unread]:
    """Names that take numbers, or one of few words, and have something else."""
    snapshot = load_format("megatron")
    for name in list(values):
        entry = ARGUMENTS.entry(name)
        value = dict.get(values, name)
        if entry is None or not (entry.choices or entry.kind in ("int", "number")) or values.is_open(name):
            continue
        spellings = (name[2:], name[2:].replace("-", "_"))
        plain = next((each for each in spellings if each in snapshot.sections["arguments"]), "")
        value = [value] if entry.kind == "list" and not isinstance(value, list) else value
        if plain and (text := next(problems(snapshot, "arguments", {plain: value}), None)):
            dict.pop(values, name)
            yield Unread(name, text.partition(": ")[2])


def _typed(name: str, value: Any) -> Any:
    """A value as its name takes it: a flag none, most one; what follows belongs to the script."""
    known = load_format("megatron").find("arguments", name[2:])
    if name in LISTS:
        return value if isinstance(value, list) else [value]
    if known is not None and known.kind == "flag":
        return value is not False
    several = known is not None and known.kind == "list"
    return value[0] if isinstance(value, list) and value and (not several or len(value) == 1) else value


def plan_options(plan: Plan) -> dict[str, Any]:
    """Where a plan is not the default one, as options."""
    default, found = Plan(), {}
    for name, option in OPTIONS.items():
        if option.section != "plan" or name == "zero":
            continue
        value = getattr(plan, option.field)
        if value != getattr(default, option.field) or name in ("shards", "precision", "sequence-parallel"):
            found[name] = ",".join(value) if isinstance(value, tuple) else value
    return {name: str(value) if not isinstance(value, (bool, int)) else value for name, value in found.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
