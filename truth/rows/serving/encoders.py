"""Rows of speech and translation engines that are no vramcast engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from truth.contract import Prediction, Refused


def predict(row: dict[str, Any]) -> Iterable[Prediction]:
    """Refuses: whisper.cpp, CTranslate2, FasterTransformer and Marian have kernels and pools of their own."""
    raise Refused(f"{str(row.get('engine'))[:40]} is not modelled: its pools and workspaces are its own")
