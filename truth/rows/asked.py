"""Rows that carry their question in a user's own options (`ask`): asked as the command line would ask it.

What a row says beside its options is said too, where there is an option for it: the release of the framework, and what
`unexpressed` could not say when the row was written. Nothing else is added: a row is what somebody gets who says what
the row says. Counters of the harnesses are not reset between phases, so a level is the highest of all phases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from truth.contract import VERDICT, Prediction, Refused, traits_at
from vramcast.api.jobs import job_of, serve_answer, serve_job_of
from vramcast.domain.answer import Answer, Peak
from vramcast.domain.job import Phase
from vramcast.estimate.training import answer
from vramcast.estimate.traits import Traits, serving_traits
from vramcast.units import GB, GIB, MIB

Row = dict[str, Any]

LEVELS: Final = {"max_allocated": "allocated", "max_reserved": "reserved", "device": "device"}
"""What a harness prints -> the level of memory it is."""

AFTER_LOADING: Final = "reserved_after_load"

VERDICTS: Final = {"oom": False, "fits": True}
"""Rows without a figure: whether the run came through."""

UNITS: Final = {"B": 1, "MiB": MIB, "GiB": GIB, "GB": GB, "GB?": GB}

RELEASES: Final = {
    "unsloth": re.compile(r"unsloth (?:unknown, )?(\d+(?:\.\d+)*)"),
    "huggingface": re.compile(r"transformers ~?(\d+\.\d+(?:\.\d+)?)(?![\dx])"),
    "pytorch": re.compile(r"torch (\d+\.\d+)"),
}
"""Engine -> where a row's `framework` names the release that its versions are of."""

COMMITTED: Final = {
    "986f6800f": "2025-03-20", "db52d57ca": "2025-07-14", "8a749c618": "2025-08-22", "d48445865": "2025-08-29",
    "c4e229115": "2025-09-05", "72f89d206": "2026-03-13", "af35cfb15": "2026-07-20",
}
"""Commit that a row of torchtitan's history ran -> its date, as that engine's versions are named; of c4e229115 the day
before, for the row is what was measured before it."""

COMMIT: Final = re.compile(r"pytorch/torchtitan commit ([0-9a-f]{9})")

FIRST_STEP: Final = "first step"
"""The line of `unexpressed` of a row that was read after one step: before the optimizer had states at its peak."""

EXPRESSED: Final[dict[str, dict[str, str]]] = {
    "FSDP1 by Accelerate": {"sharded-by": "fsdp1"},
    "FSDP1 with flat parameters": {"sharded-by": "fsdp1"},
    "bf16 weights under autocast": {"engine-option": "autocast=true"},
    "fused kernels (LoRA": {"engine-option": "liger=rope+rms_norm"},
    "samples have varying lengths": {"min-seq-len": "1"},
    "varying lengths up to": {"min-seq-len": "1"},
}
"""How a line of `unexpressed` begins -> what says it today."""

SETTINGS: Final[tuple[tuple[str, str, dict[str, str | None]], ...]] = (
    ("framework_config", "accelerated-peft", {"engine-option": "prepare_kbit=none"}),
    ("framework_config", "accelerated-peft-autogptq", {"engine-option": "gptq_kernel=tritonv2"}),
    ("framework_config", "accelerated-peft-bnb", {"base-weights": "nf4-dq"}),
    ("framework_config", "baseline-peft-bnb", {"base-weights": "nf4-dq"}),
    ("tuner_params", "packing=True", {"min-seq-len": None}),
)
"""A setting of a row's own tool, what its value holds, and what that means; None: nothing is said. fms-acceleration
quantises constants too, and prepares packed models its own way [plugins/accelerated-peft framework_plugin_bnb.py]; what
is packed has one length. Its GPTQ runs Backend.TRITON [framework_plugin_autogptq.py]."""

FOLDER: Final = "recipe_configs/"
"""Where a row's model is a file of its own beside the rows."""


def predict(row: Row, *, folder: Path) -> list[Prediction]:
    """The row's one figure.

    Args:
        row: with `ask` (model, gpus, options) and `measured` (quantity, value, unit)
        folder: where the rows' file lies

    Raises: Refused where a row asks nothing, or something else than a level of memory
    """
    ask, measured = row["ask"], row["measured"]
    if ask.get("ask_with") == "none":
        raise Refused(f"not a question of train or serve: {ask['reason']}")
    found, traits = _answered(row["task"], said(row) | _model(ask, folder))
    quantity = measured["quantity"]
    if quantity in VERDICTS:
        return [Prediction(VERDICT, float(found.fits), float(VERDICTS[quantity]))]
    value = measured["value"] * UNITS[measured["unit"]]
    if quantity == AFTER_LOADING:
        return [Prediction("reserved after loading", found.fullest.phases[Phase.LOAD].reserved_bytes, value)]
    if quantity == "weights":
        weights = sum(
            rank.count * entry.num_bytes for rank in found.ranks for entry in rank.ledger if entry.category == "weights"
        )
        return [Prediction("weights", weights, value, measured["value"] * GIB)]
    if quantity not in LEVELS:
        raise Refused(f"measures {quantity!r}, which no answer has")
    level = LEVELS[quantity]
    phases = (Phase.LOAD, Phase.FIRST_STEP) if FIRST_STEP in ask.get("unexpressed", ()) else tuple(Phase)
    return [Prediction(level, _highest(found, level, phases), value, traits=traits(level))]


def said(row: Row) -> dict[str, Any]:
    """The options of a row, with what it says in words."""
    ask = row["ask"]
    options = dict(ask["options"])
    engine = options.get("engine")
    release = _release(row, engine)
    if release is not None:
        options["engine"] = f"{engine}@{release}"
    unsaid, values = ask.get("unexpressed", ()), row.get("config", {}).get("values", {})
    words: list[Any] = [EXPRESSED[key] for text in unsaid for key in EXPRESSED if text.startswith(key)]
    words += [meant for name, value, meant in SETTINGS if value in str(values.get(name) or "")]
    for meant in words:
        for name, value in meant.items():
            options[name] = [*options.get(name, ()), value] if name == "engine-option" else value
    return options


def _release(row: Row, engine: str | None) -> str | None:
    """The release that a row names, as its engine's versions are named."""
    if engine == "torchtitan":
        commit = COMMIT.match(row.get("source", ""))
        return COMMITTED.get(commit[1]) if commit else None
    named = RELEASES[engine].search(row.get("framework", "")) if engine in RELEASES else None
    return named[1] if named else None


def _model(ask: Row, folder: Path) -> dict[str, Any]:
    model = ask["model"]
    return {"model": str(folder / model) if model.startswith(FOLDER) else model, "gpus": ask["gpus"]}


def _answered(task: str, options: dict[str, Any]) -> tuple[Answer, Callable[[str], Traits]]:
    """The answer, and the traits of its number at a level."""
    if task == "serve":
        traits = serving_traits(serve_job_of(options))
        return serve_answer(options, with_changes=False), lambda _: traits
    job = job_of(options)
    found = answer(job, with_changes=False)
    return found, lambda level: traits_at(level, job, found.fullest.peak)


def _highest(found: Answer, level: str, phases: tuple[Phase, ...]) -> int:
    """The level's highest mark over those phases and all roles [bytes]."""
    def mark(peak: Peak) -> int:
        return int(getattr(peak, f"{level}_bytes"))

    return max(mark(peak) for rank in found.ranks for phase, peak in rank.phases.items() if phase in phases)
