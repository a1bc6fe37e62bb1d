"""What one option is: where its value goes and how that is written. The tables of options are beside it.

Which options the questions of a command have; a table is loaded when its command is asked for.

What an option is about: the sections of a command's help, and the groups of a form of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from vramcast import question


class Kind(StrEnum):
    """How a value is written."""

    COUNT = "count"  # whole number, "8k" and "1M" allowed
    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    NAMES = "names"  # comma-separated
    NUMBER = "number"
    AMOUNT = "amount"  # whole number in decimal units, "1T" and "15B"


class Option(Struct, frozen=True):
    """One thing a user can say."""

    section: str  # which noun it goes to: workload, plan, peft, model, job
    field: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    versioned: bool = False  # "@" and a version may stand behind a choice
    also: tuple[str, ...] = ()  # other names of it on the command line


def choice_of(section: str, field: str, help_: str, choices: Iterable[str]) -> Option:
    """An option with a few values, which may be members of an enumeration."""
    return Option(section, field, Kind.CHOICE, help_, tuple(map(str, choices)))


TABLES: Final[Mapping[str, Callable[[], Mapping[str, Option]]]] = {
    "train": lambda: question.options.OPTIONS,
    "serve": lambda: question.tables.SERVE_OPTIONS,
    "rl": lambda: question.tables.POST_TRAINING_OPTIONS,
    "plan train": lambda: question.tables.PLAN_OPTIONS,
    "plan serve": lambda: question.plan_serving.PLAN_SERVE_OPTIONS,
}


def table_of(command: str) -> Mapping[str, Option]:
    """The options of a command by name; `model` and `gpus` stand beside them."""
    return TABLES[command]()


SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "model": ("model", "params", "layers", "hidden", "heads", "kv-heads", "ffn", "vocab"),
    "cluster": ("gpus", "on", "max-gpus"),
    "search": (
        "goal", "find", "techniques", "ttft", "per-user", "headroom", "budget", "deadline", "top", "allow", "forbid",
    ),
    "workload": (
        "context", "concurrency", "input-len", "output-len", "seq-len", "min-seq-len", "micro-batch", "global-batch",
        "grad-accum", "objective", "teacher", "completion-len", "decoder-seq-len", "images", "vision-tower",
        "image-size",        "height", "width", "frames", "tokens",
    ),
    "arrivals": ("rate", "slo", "burstiness", "shared-prefix", "replicas", "router", "num-requests", "seed"),
    "engine": ("engine", "engine-option", "alloc-conf"),
    "precision": ("precision", "weights", "dtype", "kv-dtype", "v-dtype", "optimizer", "optimizer-kernel"),
    "parallelism": (
        "shards", "zero", "sharded-by", "tp", "pp", "dp", "cp", "ep", "etp", "dcp", "attention-dp", "expert-parallel",
        "sequence-parallel", "virtual-stages", "schedule", "cp-kind", "shard-group", "reshard-after-forward",
        "first-stage-layers", "last-stage-layers",
    ),
    "memory": (
        "recompute", "recompute-layers", "recompute-modules", "attention", "loss", "compile", "offload-optimizer",
        "offload-parameters", "offload-activations", "memory-fraction", "cache-bytes", "max-sequences",
        "batched-tokens", "block-tokens", "prefix-caching", "graphs", "gpu-layers", "offload", "tiling", "slicing",
    ),
    "adapters": (
        "peft", "lora-rank", "lora-targets", "modules-to-save", "lora-dropout", "virtual-tokens",
        "trainable-parameters", "freeze", "base-weights", "adapter-dtype", "lora-slots", "draft", "draft-tokens",
    ),
    "price": ("price", "spot", "region", "currency", "prices", "used", "reserve", "hardware"),
    "files": (
        "from", "from-command", "args", "env", "from-format", "ignore-unread", "arrivals", "calibration", "file",
        "save", "write", "format", "force", "fix", "report", "snapshot", "picture", "reconcile", "save-calibration",
    ),
}
"""Subject -> its options in order."""
