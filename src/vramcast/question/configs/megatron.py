"""Megatron-LM's arguments in a shell script or a text [Megatron-LM megatron/training/arguments.py]."""

from __future__ import annotations

from typing import Any, Final

import msgspec.structs

from vramcast.catalogue.formats import load_format
from vramcast.domain.job import Plan
from vramcast.engines.megatron.options import Options
from vramcast.question.configs.megatron_model import engine_options_of, model_of, plan_of
from vramcast.question.configs.reading import (
    Command,
    Config,
    Reading,
    Watched,
    arguments,
    command_of,
    mistaken,
    not_read,
    unknown,
)
from vramcast.question.options import OPTIONS

LISTS: Final = ("--recompute-modules", "--spec")

NAMED: Final = ("tensor_model_parallel_size", "num_layers", "micro_batch_size", "use_distributed_optimizer")

HARMLESS: Final = frozenset({
    "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend", "rdzv-id",
    "nproc_per_node", "standalone", "role", "tee", "log-dir",
})
"""Options of torchrun, which stand on the same command line."""


SIZES: Final = {"--seq-length": "seq-len", "--micro-batch-size": "micro-batch", "--global-batch-size": "global-batch"}

OF_EXPERTS: Final = ("dispatcher", "grouped_gemm", "permute_fusion", "router_fp32", "sinkhorn", "overlap_moe_comm")
"""Engine options that say nothing of a dense network."""

DESCRIBES: Final = ("--hidden-size", "--num-attention-heads", "--max-position-embeddings")
"""What a network needs, beside its layers."""


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
    command = Command((), ()) if config.table is not None else command_of(config, _score)
    plainly = dict(config.table) if config.table is not None else arguments(command.words)
    typed = {name.replace("_", "-"): _typed(f"--{name.replace('_', '-')}", value) for name, value in plainly.items()}
    given = {name: value for name, value in typed.items() if value is not False and value is not None}
    wrong = mistaken("megatron", "arguments", given)
    values = Watched({f"--{name}": value for name, value in given.items() if name not in wrong})
    options: dict[str, Any] = {"engine": "megatron", **plan_options(plan_of(values))}
    defaults = msgspec.structs.asdict(Options())
    pairs = engine_options_of(values, "gpt")
    pairs["stage_layers"] = str(pairs["stage_layers"]).replace(",", "-")
    dense = "--num-experts" not in values
    changed = [
        f"{name}={_text(value)}" for name, value in pairs.items()
        if value != defaults.get(name) and not (dense and name in OF_EXPERTS)
    ]
    if changed:
        options["engine-option"] = tuple(changed)
    options |= {option: size for name, option in SIZES.items() if (size := values.count(name)) is not None}
    missing = [name for name in DESCRIBES if name not in values]
    if not missing and ("--num-layers" in values or "--hybrid-layer-pattern" in values):
        options["model"] = msgspec.structs.replace(model_of(values, "gpt"), name=config.name)
    elif len(missing) < len(DESCRIBES):
        values.warnings.append(
            f"no model is read: {', '.join(missing) or '--num-layers'} is missing; name the model beside --from"
        )
    auto = {option: f"has no {name}" for name, option in SIZES.items() if option not in options}
    names = {name: value for name, value in given.items() if name not in HARMLESS}
    warnings = (*wrong.values(), *values.said(), *unknown("megatron", "arguments", names))
    aside = not_read(name for name in values.unread() if name[2:] not in HARMLESS)
    return Reading("megatron", options, {}, tuple(names), warnings, (*command.notes, *aside), auto)


def _typed(name: str, value: Any) -> Any:
    """A value as its name takes it: a flag none, most one; what follows belongs to the script."""
    known = load_format("megatron").find("arguments", name[2:])
    if name in LISTS:
        return value if isinstance(value, list) else [value]
    if known is not None and known.kind == "flag":
        return True
    return value[0] if isinstance(value, list) and value and (known is None or known.kind != "list") else value


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
