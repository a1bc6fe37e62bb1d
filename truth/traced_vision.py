"""Image networks, traced, against what nvidia-smi showed: `python -m truth.traced_vision FILE [--rows] [--jobs N]`.

Each row's network takes two steps of the training that explains its harness; the peak reserved plus what the process
holds outside the allocator is the device level. That part is not published: for each harness and card it is the
median of measured minus reserved over the rows of all other networks, so no row explains itself. FakeTensor's own
estimate stands beside ours where the row has it. The last column is the error with the catalogue's context instead.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from truth.calibrate import write
from truth.score import percentile
from vramcast.catalogue.gpus import load_gpu
from vramcast.estimate.interval import Case, measured_cases, traced_traits
from vramcast.units import MIB

if TYPE_CHECKING:
    from vramcast.tracing.session import Session

STEPS: Final = 2
"""The second has gradients and states of the first; a third changes nothing."""
FAR: Final = 0.10
PEER: Final = "faketensor_final"
KEPT: Final = 101
"""Ratios of a harness and card, of which a hundredth may be far off."""


class Harness(NamedTuple):
    """How the runs of a source were trained, as far as their figures tell."""

    momentum: float
    keeps_gradients: bool  # zeroed in place, as torch 1.x did by default
    version: tuple[int, int]  # of torch
    loading: Literal["lazy", "eager"] = "eager"  # of kernels: torch 1.10 knows no other, the other's driver is older


class Card(NamedTuple):
    """What a row's card is simulated as."""

    name: str  # in the catalogue; for Kepler, which it has not, another without tensor cores
    capacity_mib: int | None = None  # None: what the catalogue says
    is_named_wrong: bool = False  # rows of that name hold more than such a card has: its size is unknown


HARNESSES: Final = {
    "GPUMemNet": Harness(momentum=0.0, keeps_gradients=False, version=(2, 0)),
    "SchedTune": Harness(momentum=0.9, keeps_gradients=True, version=(1, 10)),
}
"""First word of a row's source -> training. Found on the rows: with SGD without momentum what is left of A100 rows does
not grow with the weights (Adam: -7 GB for 1e9 of them); VGG, whose weights weigh most, asks for momentum and kept
gradients in the other source."""

CARDS: Final = {
    "A100-40GB (DGX Station)": Card("a100-sxm4-40gb"),
    "Tesla V100": Card("v100-sxm2-16gb"),
    "Tesla K80 (one die)": Card("p100-pcie-16gb", capacity_mib=12_206),
    "RTX 3090": Card("rtx-3090"),
    "RTX 3070": Card("rtx-3090", is_named_wrong=True),
    "2560 cores/320 tensor cores/40 SM/448 GB/s (RTX 2070 SUPER class)": Card("t4", is_named_wrong=True),
}


class Question(NamedTuple):
    """One training run."""

    model: str
    batch: int
    harness: str
    card: str
    capacity_bytes: int | None = None


class Scored(NamedTuple):
    """One row beside its prediction."""

    number: int
    row: dict[str, Any]
    predicted_mib: float
    plain_mib: float  # with the catalogue's context

    @property
    def error(self) -> float:
        """As a fraction of the measured value."""
        return self.predicted_mib / self.row["measured_peak_mib"] - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.traced_vision")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row, worst first")
    parser.add_argument("--jobs", type=int, default=2, help="processes that trace")
    parser.add_argument("--only", help="networks whose name contains this")
    parser.add_argument("--calibrate", action="store_true", help="put how far they are off into the package")
    options = parser.parse_args(arguments)
    lines = options.file.read_text(encoding="utf-8").splitlines()
    rows = [(number, json.loads(line)) for number, line in enumerate(lines, start=1)]
    if options.only:
        rows = [(number, row) for number, row in rows if options.only in row["model"]]
    with ProcessPoolExecutor(options.jobs) as pool:
        scored, refused = score(rows, pool)
    print_table(scored, refused)
    if options.calibrate:
        write([*(case for case in measured_cases() if case.purpose != "tracing"), *cases_of(scored)])
    if options.rows:
        for item in sorted(scored, key=lambda item: -abs(item.error)):
            row = item.row
            print(
                f"{item.error:>+9.1%}  row {item.number:<4} {item.predicted_mib:>9,.0f} for "
                f"{row['measured_peak_mib']:>9,.0f} MiB  {row['model']} batch {row['batch']} {row['gpu'][:24]}"
                + ("  suspect" if "suspect" in row else "")
            )
    return 0


def score(
    rows: list[tuple[int, dict[str, Any]]], pool: ProcessPoolExecutor
) -> tuple[list[Scored], dict[str, int]]:
    """Every row; what cannot be traced is counted with its reason."""
    asked = [(number, row, question_of(row)) for number, row in rows]
    reserved = traced([question for _, _, question in asked], pool)
    refused = Counter(found for _, _, question in asked if isinstance(found := reserved[question], str))
    rest: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for _, row, question in asked:
        found = reserved[question]
        if isinstance(found, float) and "suspect" not in row:
            rest[question.harness, row["gpu"]].append((question.model, row["measured_peak_mib"] - found))
    limited: list[tuple[int, dict[str, Any], Question, float]] = []
    for number, row, question in asked:
        if isinstance(reserved[question], float):
            others = [left for model, left in rest[question.harness, row["gpu"]] if model != question.model]
            outside = statistics.median(others) if others else context_mib(question)
            limited.append((number, row, within_card(question, row["gpu"], reserved[question], outside), outside))
    reserved |= traced([question for _, _, question, _ in limited if question.capacity_bytes], pool)
    all_scored = [
        scored(number, row, reserved[question], outside, question) for number, row, question, outside in limited
    ]
    return all_scored, refused


def traced(questions: Iterable[Question], pool: ProcessPoolExecutor) -> dict[Question, float | str]:
    """Each question once, by all processes."""
    distinct = sorted(set(questions), key=lambda question: question[:4])  # a network is built once for its batches
    return dict(zip(distinct, pool.map(reserved_mib, distinct, chunksize=8), strict=True))


def within_card(question: Question, gpu: str, reserved: Any, outside: float) -> Question:
    """Where the card is too small for the cache, the question of what the allocator does within it."""
    visible = visible_mib(gpu)
    if visible is None or reserved + outside <= visible:
        return question
    return question._replace(capacity_bytes=int((visible - outside) * MIB))


def scored(
    number: int, row: dict[str, Any], reserved: float | str, outside: float, question: Question
) -> Scored:
    """A row's prediction; a run that fails even so shows the full card."""
    if isinstance(reserved, str):
        full = visible_mib(row["gpu"]) or outside
        return Scored(number, row, full, full)
    return Scored(number, row, reserved + outside, reserved + context_mib(question))


def question_of(row: dict[str, Any]) -> Question:
    """What a row asks."""
    harness = row["source"].split()[0]
    return Question(row["model"], row["batch"], harness, CARDS[row["gpu"]].name)


def reserved_mib(question: Question) -> float | str:
    """Peak reserved of the training [MiB]; a sentence where it cannot be traced."""
    try:
        session = trained(question)
    except Exception as error:  # one network's failure must not hide the others; it is counted and named
        return f"{question.model}: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return session.device.allocator.peak_reserved_bytes / MIB


def trained(question: Question) -> Session:
    """The simulated process after the training."""
    from vramcast.allocator import Settings
    from vramcast.tracing.session import Session

    harness = HARNESSES[question.harness]
    session = Session(
        load_gpu(question.card), settings=Settings(version=harness.version), capacity_bytes=question.capacity_bytes
    )
    model, size = build(question.model)
    with session.active():
        train(copy.deepcopy(model).to_empty(device="cuda"), (question.batch, *size), harness)
    return session


@lru_cache(maxsize=1)
def build(name: str) -> tuple[Any, tuple[int, ...]]:
    """A network without data and the shape of one image."""
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    prepare_torchvision()
    import timm
    import torch
    import torchvision

    with torch.device("meta"):
        if not name.startswith("timm/"):
            return torchvision.models.get_model(name), (3, 224, 224)
        model = timm.create_model(name.removeprefix("timm/"))
    return model, tuple(model.pretrained_cfg["input_size"])


def train(model: Any, size: tuple[int, ...], harness: Harness) -> None:
    """The steps."""
    import torch

    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=harness.momentum)
    for _ in range(STEPS):
        images = torch.empty(size, device="cuda")
        labels = torch.empty(size[:1], dtype=torch.long, device="cuda")
        out = model(images)
        loss = torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple) else out, labels)
        optimizer.zero_grad(set_to_none=not harness.keeps_gradients)
        loss.backward()
        optimizer.step()


def context_mib(question: Question) -> float:
    """What the catalogue says of a process on such a card, as `vramcast trace --module-loading` does [MiB]."""
    from vramcast.catalogue.contexts import context_bytes

    gpu = load_gpu(question.card)
    loading = HARNESSES[question.harness].loading
    return context_bytes(gpu.arch, gpu.compute_capability, loading=loading).typical / MIB


def visible_mib(gpu: str) -> float | None:
    """What a process can use of a row's card; None where its size is unknown [MiB]."""

    card = CARDS[gpu]
    if card.is_named_wrong:
        return None
    return card.capacity_mib or load_gpu(card.name).visible_bytes / MIB


def cases_of(scored: Iterable[Scored]) -> list[Case]:
    """Measured / predicted with the catalogue's context, as the command line predicts; of cards that are simulated as
    themselves."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in scored:
        card = CARDS[item.row["gpu"]]
        if "suspect" not in item.row and card == Card(card.name):
            ratios[item.row["source"].split()[0], card.name].append(item.row["measured_peak_mib"] / item.plain_mib)
    return [Case("tracing", harness.lower(), traced_traits(load_gpu(card)), spread(found), len(found))
            for (harness, card), found in sorted(ratios.items())]


def spread(ratios: list[float]) -> tuple[float, ...]:
    """The middles of as many equal parts as are kept; all of fewer."""
    parts = min(KEPT, len(ratios))
    return tuple(round(percentile(ratios, (part + 0.5) / parts), 4) for part in range(parts))


def print_table(scored: list[Scored], refused: dict[str, int]) -> None:
    """The summary by harness and card, and over all rows that have a bar."""
    head = f"{'rows of':<46}{'rows':>5}{'median':>9}{'p95':>9}{'< -10 %':>9}{'FakeTensor':>12}{'catalogue':>11}"
    print(head)
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in scored:
        mark = " [suspect]" if "suspect" in item.row else ""
        groups[f"{item.row['source'].split()[0]} {item.row['gpu'][:24]}{mark}"].append(item)
    for name, items in sorted(groups.items()):
        _print_line(name, items)
    _print_line("all without suspect", [item for item in scored if "suspect" not in item.row])
    for reason, count in refused.items():
        print(f"    refused {count}: {reason}")


def _print_line(name: str, items: Iterable[Scored]) -> None:
    errors, peers, plain = [], [], []
    for item in items:
        measured = item.row["measured_peak_mib"]
        errors.append(item.error)
        plain.append(abs(item.plain_mib / measured - 1))
        if item.row.get("estimates_mib"):
            peers.append(abs(item.row["estimates_mib"][PEER] / measured - 1))
    if not errors:
        return
    peer = f"{statistics.median(peers):>12.1%}" if peers else f"{'-':>12}"
    far = sum(error < -FAR for error in errors) / len(errors)
    absolute = [abs(error) for error in errors]
    print(
        f"{name:<46}{len(errors):>5}{statistics.median(absolute):>9.1%}{percentile(absolute, 0.95):>9.1%}{far:>9.1%}"
        f"{peer}{statistics.median(plain):>11.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
