"""The table of what can be asked of a search for training plans: axes, goals, limits, techniques."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.planning import Goal
from vramcast.question.options import HEADROOM, OPTIONS, Kind, Option

FINDS: Final = (
    "largest-batch", "longest-sequence", "knee", "largest-model", "smallest-box", "cheapest-box", "fewest-gpus",
)
"""Inverse questions; `search.inverse` answers them."""

AXES: Final[dict[str, str]] = {
    "engine": "engines", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp",
    "virtual-stages": "virtual_stages", "micro-batch": "micro_batches", "shards": "shards", "zero": "shards",
    "recompute": "recompute", "offload-optimizer": "offload_optimizer", "offload-parameters": "offload_parameters",
    "precision": "precisions", "optimizer": "optimizers",
}
"""Option of `train` of which a search takes several values -> field of `Space`."""

NOT_ASKED: Final = ("calibration", "grad-accum", "recompute-layers", "recompute-modules", "schedule", "tokens")
"""Options of `train` that a search sets itself, that are read in another way here, or that hold for one plan alone."""


class Allowance(NamedTuple):
    """What forbidding or allowing a technique does to an axis of the space."""

    field: str  # of Space
    default: tuple[str | int, ...]  # the axis without any technique
    adds: tuple[str, ...]  # what comes beside it where the technique is allowed; empty: everything else, by itself
    help: str

    @property
    def allowed(self) -> bool:
        """Whether it is tried where nothing is said."""
        return not self.adds


TECHNIQUES: Final[dict[str, Allowance]] = {
    "sharding": Allowance("shards", ("nothing",), (), "ZeRO and FSDP"),
    "recompute": Allowance("recompute", ("none",), (), "activation checkpointing"),
    "tensor": Allowance("tp", (1,), (), "tensor parallelism"),
    "pipeline": Allowance("pp", (1,), (), "pipeline parallelism"),
    "context": Allowance("cp", (1,), (), "context parallelism"),
    "expert": Allowance("ep", (1,), (), "expert parallelism"),
    "offload": Allowance("offload_optimizer", ("none",), ("cpu",), "optimizer states in main memory"),
    "nvme": Allowance("offload_optimizer", ("none",), ("nvme",), "optimizer states on local disks"),
    "offload-parameters": Allowance("offload_parameters", ("none",), ("cpu",), "weights in main memory"),
    "fp8": Allowance("precisions", (), ("fp8",), "matrix products in fp8"),
    "pure-bf16": Allowance("precisions", (), ("bf16",), "no fp32 copy of the weights"),
    "8bit-optimizer": Allowance("optimizers", ("adamw",), ("adamw-8bit",), "AdamW with 8-bit states"),
}
"""What `--allow` and `--forbid` name. What slows down much or changes the result must be allowed by name."""


def _search(
    field: str, kind: Kind, help_: str, choices: tuple[str, ...] = (), *, also: tuple[str, ...] = ()
) -> Option:
    return Option("search", field, kind, help_, choices, also=also)


def _names(*, allowed: bool) -> str:
    """The techniques that are tried by themselves, or those that are not."""
    return ", ".join(name for name, row in TECHNIQUES.items() if row.allowed is allowed)


def _as_axis(option: Option) -> Option:
    """The same option with several values."""
    return Option("axis", option.field, Kind.NAMES, f"{option.help}; several: 1,2,4", option.choices)


PLAN_OPTIONS: Final[dict[str, Option]] = {
    "on": _search("on", Kind.NAMES, "what to look at: 8xh100-sxm-80gb, h100, aws:p5.48xlarge, aws, any (repeatable)",
                  also=("gpus",)),
    "goal": _search("goal", Kind.CHOICE, "what makes a plan better (fastest)", tuple(str(goal) for goal in Goal)),
    "find": _search("find", Kind.CHOICE, "the inverse question: what fits, instead of which plan is best", FINDS),
    "techniques": _search("techniques", Kind.FLAG, "no search: only the decision path and what each technique saves"),
    "budget": _search("budget", Kind.TEXT, "most money of the run, with currency: 100000usd; needs --tokens"),
    "deadline": _search("deadline", Kind.TEXT, "longest time of the run: 12h, 30d; needs --tokens"),
    "tokens": _search("tokens", Kind.AMOUNT, "length of the run: 300B, 1T"),
    "headroom": _search("headroom", Kind.TEXT, HEADROOM),
    "max-gpus": _search("max_gpus", Kind.COUNT, "most GPUs of a plan: several machines where --on names a kind"),
    "allow": _search("allow", Kind.NAMES, f"techniques to try too: {_names(allowed=False)}"),
    "forbid": _search("forbid", Kind.NAMES, f"techniques not to try: {_names(allowed=True)}"),
    "top": _search("top", Kind.COUNT, "plans in the table (10)"),
    **{
        name: _as_axis(option) if name in AXES else option
        for name, option in OPTIONS.items() if name not in NOT_ASKED
    },
}
"""Name as users write it -> where it goes. `model` is always there."""
