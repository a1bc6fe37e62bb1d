"""Rows of Liger-Kernel's operator benchmarks: `max_memory_allocated` of one operator in one mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from truth.contract import Prediction
from truth.rows.kernels.harness import case_of
from truth.rows.kernels.table import peak_bytes
from vramcast.units import MIB


def predict(row: dict[str, Any]) -> Iterable[Prediction]:
    """One row, one number.

    Raises: Refused for kernels, providers and GPUs that are not modelled.
    """
    return [Prediction("allocated", peak_bytes(case_of(row)), row["measured_mb_p50"] * MIB)]
