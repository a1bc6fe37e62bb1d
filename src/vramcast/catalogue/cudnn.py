"""Workspaces of cuDNN convolutions on tensor cores, as shares of the tensors they move.

cuDNN does not publish what its plans need; `cudnn_workspaces.csv` holds shares that `truth/fit_cudnn.py` fitted to
measured training runs, by kind of kernel and by what is computed; low and high are the range that halves of the
networks give. Its kernels for TF32 and 16-bit numbers read channels last: tensors in torch's
default layout are converted within the workspace.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from vramcast.errors import SourceError

FILE: Final = Path(__file__).with_name("cudnn_workspaces.csv")
COLUMNS: Final = ("torch_since", "kernel", "phase", "low", "share", "high", "source", "checked", "confidence")

Kernel = Literal["pointwise", "dense", "strided", "grouped", "narrow"]
"""1x1; larger with stride 1; larger with stride; several groups; at most four channels in."""
Phase = Literal["forward", "data", "filter"]
"""Output, gradient of the input, gradient of the weight."""
Version = tuple[int, int]
Shares = Mapping[tuple[str, str], Mapping[Version, float]]


def workspace_share(kernel: Kernel, phase: Phase, version: Version) -> float:
    """Workspace over the bytes of input and weight (forward), or of input, weight and output (gradients).

    Args:
        kernel: kind of convolution
        phase: what is computed
        version: of torch, which brings its cuDNN

    Valid for: TF32 and 16-bit tensors in torch's default layout on tensor cores. Elsewhere nothing is converted.

    >>> workspace_share("dense", "data", (2, 13)), workspace_share("dense", "data", (1, 10))
    (2.0, 0.0)
    """
    by_version = _shares()[kernel, phase]
    known = [since for since in by_version if since <= version]
    return by_version[max(known, default=min(by_version))]


def read_shares(text: str, *, file: str) -> Shares:
    """The rows of the table.

    Raises: SourceError naming file and row
    """
    lines = list(csv.reader(text.splitlines()))
    if not lines or tuple(lines[0]) != COLUMNS:
        raise SourceError("{}: columns must be {}", file, ", ".join(COLUMNS))
    shares: dict[tuple[str, str], dict[Version, float]] = {}
    for cells in lines[1:]:
        where = f"{file}: row {' '.join(cells[:3])}"
        if len(cells) != len(COLUMNS) or not all(cells):
            raise SourceError("{}: every column must be filled", where)
        since, low, share, high = _version(cells[0], where), *(_number(cell, where) for cell in cells[3:6])
        if not 0 <= low <= share <= high:
            raise SourceError("{}: must hold 0 <= low <= share <= high", where)
        by_version = shares.setdefault((cells[1], cells[2]), {})
        if since in by_version:
            raise SourceError("{}: stands twice", where)
        by_version[since] = share
    return shares


def _version(cell: str, where: str) -> Version:
    major, _, minor = cell.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise SourceError("{}: torch_since must be a version such as 2.0", where)
    return int(major), int(minor)


def _number(cell: str, where: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise SourceError("{}: {!r} is not a number", where, cell) from None


@cache
def _shares() -> Shares:
    return read_shares(FILE.read_text(encoding="utf-8"), file=FILE.name)
