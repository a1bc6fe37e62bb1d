"""Memory of a process beside the caching allocator: CUDA context with library images, NCCL buffers.

Data in `contexts.csv`: the smallest, typical and largest figure seen, and where. Keys are the generation (with the
compute capability where generations differ inside), or the link that NCCL uses.

Workspaces of cuDNN convolutions on tensor cores, as shares of the tensors they move.

cuDNN does not publish what its plans need; `cudnn_workspaces.csv` holds shares that `truth/fit_cudnn.py` fitted to
measured training runs, by kind of kernel and by what is computed; low and high are the range that halves of the
networks give. Its kernels for TF32 and 16-bit numbers read channels last: tensors in torch's
default layout are converted within the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from vramcast.catalogue.tables import read_table
from vramcast.domain.model import Noun
from vramcast.errors import SourceError, UnknownName
from vramcast.units import MIB

FILE: Final = Path(__file__).with_name("contexts.csv")
COLUMNS: Final = (
    "kind", "name", "compute_capability", "low_mib", "typical_mib", "high_mib", "source", "checked", "confidence",
)
Key = tuple[str, str, str]
KINDS: Final = {"lazy": "context", "eager": "eager"}
"""How kernels are loaded -> the rows of such processes."""


class Range(Noun, frozen=True):
    """The smallest, typical and largest value seen [bytes]."""

    low: int
    typical: int
    high: int
    source: str
    confidence: str


def context_bytes(
    arch: str, compute_capability: str | None = None, *, loading: Literal["lazy", "eager"] = "lazy"
) -> Range:
    """CUDA context and library images of one PyTorch process. Leaves out NCCL.

    Args:
        arch: generation as in gpus.csv, "Hopper"
        compute_capability: "8.6"; None where a generation has several: its largest
        loading: of kernels: "lazy" each when it is first used (torch from 1.13 on, with CUDA 11.7 and a driver from
            R515 on: pytorch/pytorch#86509), "eager" all of torch, cuDNN and cuBLAS at once, as before

    Returns: range over the reports of the row [bytes]
    Raises: UnknownName for a generation no row lists

    >>> context_bytes("Ampere", "8.6").typical // MIB
    315
    """
    kind = KINDS[loading]
    ranges = {key: value for key, value in _ranges().items() if key[:2] == (kind, arch)}
    if not ranges:
        raise UnknownName.of("GPU generation", arch, {key[1] for key in _ranges() if key[0] == kind})
    exact = ranges.get((kind, arch, compute_capability or ""))
    return exact or max(ranges.values(), key=lambda value: value.typical)


def nccl_bytes(link: Literal["nvlink", "pcie"]) -> Range:
    """Buffers of one NCCL communicator with default settings, per rank.

    Leaves out all-to-all, which connects every pair of ranks: 3.3 GB on 8 x H100 (NVIDIA/nccl#1685).
    """
    return _ranges()["nccl", link, ""]


def read_ranges(text: str, *, file: str) -> dict[Key, Range]:
    """The rows of a table of ranges.

    Raises: SourceError naming file and row
    """
    ranges: dict[Key, Range] = {}
    for row in read_table(text, file=file, columns=COLUMNS, key=COLUMNS[:3]):
        low, typical, high = (row.number(f"{name}_mib") or 0.0 for name in ("low", "typical", "high"))
        if not 0 < low <= typical <= high or any(size % 1 for size in (low, typical, high)):
            raise SourceError("{}: must hold 0 < low <= typical <= high, in whole MiB", row.where)
        row.date("checked")
        ranges[row.text("kind"), row.text("name"), row["compute_capability"]] = Range(
            low=int(low) * MIB, typical=int(typical) * MIB, high=int(high) * MIB, source=row.text("source"),
            confidence=row.text("confidence"))
    return ranges


@cache
def _ranges() -> dict[Key, Range]:
    return read_ranges(FILE.read_text(encoding="utf-8"), file=FILE.name)


WORKSPACES: Final = Path(__file__).with_name("cudnn_workspaces.csv")
WORKSPACE_COLUMNS: Final = ("torch_since", "kernel", "phase", "low", "share", "high", "source", "checked", "confidence")

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
    shares: dict[tuple[str, str], dict[Version, float]] = {}
    for row in read_table(text, file=file, columns=WORKSPACE_COLUMNS, key=WORKSPACE_COLUMNS[:3]):
        major, _, minor = row["torch_since"].partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise SourceError("{}: torch_since must be a version such as 2.0", row.where)
        low, share, high = (0.0 if row[name] == "0" else row.number(name) for name in ("low", "share", "high"))
        if low is None or share is None or high is None or not low <= share <= high:
            raise SourceError("{}: must hold 0 <= low <= share <= high", row.where)
        for name in ("kernel", "phase", "source", "confidence"):
            row.text(name)
        row.date("checked")
        shares.setdefault((row["kernel"], row["phase"]), {})[int(major), int(minor)] = share
    return shares


@cache
def _shares() -> Shares:
    return read_shares(WORKSPACES.read_text(encoding="utf-8"), file=WORKSPACES.name)
