"""`/api/options/...`: the tables of options as what forms are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from vramcast.domain.job import Peft, Workload
from vramcast.domain.serving import Requests
from vramcast.question.options import MARKET_OPTIONS, MODEL_OPTIONS, OPTIONS, Kind, Option
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.report.messages import LANGUAGES
from vramcast.report.option_messages import help_of
from vramcast.web.exchange import Asked, choice_field
from vramcast.web.visitor import may_be_asked

MODEL: Final = Option("job", "model", Kind.TEXT, "a model of the catalogue, by name; without one, numbers")
GPUS: Final = Option("job", "gpus", Kind.TEXT, "[NODESx]COUNTxGPU, [COUNTx]INSTANCE: 8xh100-sxm-80gb, aws:p5.48xlarge")

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "model": ("model", *MODEL_OPTIONS),
    "cluster": ("gpus", "on", "max-gpus"),
    "search": (
        "goal", "find", "techniques", "ttft", "per-user", "headroom", "budget", "deadline", "top", "allow", "forbid",
    ),
    "workload": (
        "context", "concurrency", "input-len", "output-len", "seq-len", "min-seq-len", "micro-batch", "global-batch",
        "grad-accum", "objective", "completion-len", "decoder-seq-len", "images", "image-size", "height", "width",
        "frames", "tokens",
    ),
    "engine": ("engine", "engine-option", "alloc-conf"),
    "precision": ("precision", "weights", "dtype", "kv-dtype", "v-dtype", "optimizer", "optimizer-kernel"),
    "parallelism": (
        "shards", "zero", "sharded-by", "tp", "pp", "dp", "cp", "ep", "etp", "dcp", "expert-parallel",
        "sequence-parallel", "virtual-stages", "schedule", "cp-kind", "shard-group", "reshard-after-forward",
        "first-stage-layers", "last-stage-layers",
    ),
    "memory": (
        "recompute", "recompute-layers", "recompute-modules", "attention", "loss", "compile", "offload-optimizer",
        "offload-parameters", "offload-activations", "memory-fraction", "cache-bytes", "max-sequences",
        "batched-tokens", "block-tokens", "prefix-caching", "graphs", "gpu-layers", "offload", "tiling", "slicing",
    ),
    "adapters": (
        "peft", "lora-rank", "lora-targets", "modules-to-save", "lora-dropout", "virtual-tokens", "base-weights",
        "adapter-dtype", "lora-slots", "draft", "draft-tokens",
    ),
    "price": tuple(MARKET_OPTIONS),
}
"""Group of a form -> its options in order. What stands in none comes last, as "advanced"."""

REST: Final = "advanced"


class Form(NamedTuple):
    """What one command may be asked."""

    always: tuple[tuple[str, Option], ...]  # beside the table
    table: Mapping[str, Option]
    nouns: Mapping[str, type[msgspec.Struct]]  # section -> noun whose defaults hold whatever the engine


FORMS: Final[dict[str, Form]] = {
    "train": Form((("model", MODEL), ("gpus", GPUS)), OPTIONS, {"workload": Workload, "peft": Peft}),
    "serve": Form((("model", MODEL), ("gpus", GPUS)), SERVE_OPTIONS, {"requests": Requests}),
    "plan-train": Form((("model", MODEL),), PLAN_OPTIONS, {"workload": Workload, "peft": Peft}),
    "plan-serve": Form((("model", MODEL),), PLAN_SERVE_OPTIONS, {"requests": Requests}),
}
"""Last part of the address -> its form."""


def options(name: str, language: str = "en") -> list[dict[str, Any]]:
    """The options that a visitor may give, group by group."""
    form = FORMS[name]
    rows = dict(form.always) | {key: option for key, option in form.table.items() if may_be_asked(key, form.table)}
    groups = {key: group for group, names in GROUPS.items() for key in names}
    ordered = [key for names in GROUPS.values() for key in names if key in rows]
    ordered += [key for key in rows if key not in groups]
    found = [_row(key, rows[key], groups.get(key, REST), form) for key in ordered]
    return [row | {"help": help_of(row["help"], language)} for row in found]


def _answered(name: str, asked: Asked) -> dict[str, Any]:
    return {"schema": 1, "options": options(name, choice_field(asked.query, "lang", LANGUAGES, "en"))}


def train_options(asked: Asked) -> dict[str, Any]:
    """The options of `vramcast train` that a visitor may give, in the order of a form."""
    return _answered("train", asked)


def serve_options(asked: Asked) -> dict[str, Any]:
    """The options of `vramcast serve` that a visitor may give, in the order of a form."""
    return _answered("serve", asked)


def plan_train_options(asked: Asked) -> dict[str, Any]:
    """The options of `vramcast plan train` that a visitor may give, in the order of a form."""
    return _answered("plan-train", asked)


def plan_serve_options(asked: Asked) -> dict[str, Any]:
    """The options of `vramcast plan serve` that a visitor may give, in the order of a form."""
    return _answered("plan-serve", asked)


def _row(name: str, option: Option, group: str, form: Form) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name, "kind": str(option.kind), "choices": list(option.choices), "help": option.help, "group": group,
    }
    default = _default(option, form)
    return row if default is None else row | {"default": default}


def _default(option: Option, form: Form) -> Any:
    """What holds where nothing is said; None where that depends on the rest of the question."""
    noun = form.nouns.get(option.section)
    if noun is None:
        return None
    field = next(field for field in msgspec.structs.fields(noun) if field.name == option.field)
    value = None if field.default is msgspec.NODEFAULT else field.default
    return list(value) if isinstance(value, tuple) else value
