"""Rows that carry their question in a user's own options (`ask`): asked as the command line would ask it.

Nothing is added to the options: a row is what somebody gets who says what the row says. Counters of the harnesses are
not reset between phases, so a level is the highest of all phases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from truth.contract import VERDICT, Prediction, Refused
from vramcast.api.jobs import job_of, serve_answer
from vramcast.domain.answer import Answer, Peak
from vramcast.domain.job import Phase
from vramcast.estimate.training import answer
from vramcast.units import GB, GIB, MIB

Row = dict[str, Any]

LEVELS: Final = {"max_allocated": "allocated", "max_reserved": "reserved", "device": "device"}
"""What a harness prints -> the level of memory it is."""

AFTER_LOADING: Final = "reserved_after_load"

VERDICTS: Final = {"oom": False, "fits": True}
"""Rows without a figure: whether the run came through."""

UNITS: Final = {"B": 1, "MiB": MIB, "GiB": GIB, "GB": GB, "GB?": GB}

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
    found = _answered(row["task"], _options(ask, folder))
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
    return [Prediction(LEVELS[quantity], _highest(found, LEVELS[quantity]), value)]


def _options(ask: Row, folder: Path) -> dict[str, Any]:
    model = ask["model"]
    return {"model": str(folder / model) if model.startswith(FOLDER) else model, "gpus": ask["gpus"], **ask["options"]}


def _answered(task: str, options: dict[str, Any]) -> Answer:
    return serve_answer(options, with_changes=False) if task == "serve" else answer(job_of(options), with_changes=False)


def _highest(found: Answer, level: str) -> int:
    """The level's highest mark over all phases and roles [bytes]."""
    def mark(peak: Peak) -> int:
        return int(getattr(peak, f"{level}_bytes"))

    return max(mark(peak) for rank in found.ranks for peak in rank.phases.values())
