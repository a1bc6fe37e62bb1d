"""Layers that Vidur profiled: `python -m benchmarks.peers.serving.vidur CHECKOUT`.

Its repository [vidur] holds what the products, norms and rotations of one layer took on A100 and H100, from 1 to 4,096
tokens on 1 to 8 cards: what its simulator adds up. Ours is the same layer under vLLM, attention itself and sums over
cards left out of both. Printed per card, model and cards: rows, median error and its sign, of few tokens and of many.
The runs that its paper compares with servers (arXiv:2405.05465, figures 3 and 4) are pictures: none can be asked.

[vidur] microsoft/vidur @7d47513 (MIT) data/profiling/compute/CARD/OWNER/MODEL/mlp.csv, medians in ms
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.errors import VramcastError
from vramcast.timing.forward import layer_work
from vramcast.timing.roofline import machine_of, step_time
from vramcast.timing.work import VLLM_AHEAD, Placement, Setting, Step

CARDS: Final = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm-80gb"}

ALONE: Final = replace(VLLM_AHEAD, step_s=0.0)
"""Kernels without the scheduler."""

PARTS: Final = (
    "attn_pre_proj", "attn_rope", "attn_post_proj", "input_layernorm", "post_attention_layernorm", "mlp_up_proj",
    "mlp_act", "mlp_down_proj", "add",
)
"""What a layer does beside attention; models without one of them have no such column."""

FEW: Final = 256
"""Tokens up to which steps generate rather than take prompts."""


class Case(NamedTuple):
    """One layer with so many tokens [s]."""

    group: str
    tokens: int
    ours: float
    theirs: float

    @property
    def error(self) -> float:
        return self.ours / self.theirs - 1


def cases(path: Path) -> Iterator[Case]:
    """Every row of a file."""
    card, owner, name = path.parts[-4:-1]
    model, gpu = load_model(f"{owner}/{name}"), load_gpu(CARDS[card])
    machine = machine_of(gpu, "vllm", ALONE, whole="bf16", node_cards=8)
    assert machine is not None
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            tp, tokens = int(row["num_tensor_parallel_workers"]), int(row["num_tokens"])
            layer = next(iter(model.main.runs)).layer
            setting = Setting(Step(1, tokens), Placement(tp=tp), ALONE)
            works = [(work, 1) for work in layer_work(layer, setting, hidden=model.hidden)
                     if not work.pattern and not work.name.startswith(("attention.scores", "attention.cache"))]
            measured = sum(float(row.get(f"time_stats.{part}.median") or 0) for part in PARTS) / 1000
            found = step_time(works, machine, Placement(tp=tp), replayed=True)
            yield Case(f"{card} {name} tp={tp}", tokens, found.seconds, measured)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.serving.vidur", description=__doc__)
    parser.add_argument("checkout", type=Path)
    groups: dict[str, list[Case]] = defaultdict(list)
    for path in sorted((parser.parse_args().checkout / "data/profiling/compute").glob("*/*/*/mlp.csv")):
        if path.parts[-4] not in CARDS:
            continue
        try:
            for case in cases(path):
                groups[case.group].append(case)
                groups[f"{path.parts[-4]}, all"].append(case)
        except VramcastError as reason:
            print(f"{path.parts[-2]}: {reason}")
    print(f"{'card, model, cards':<48}{'rows':>6}{'median':>8}{'few':>8}{'many':>8}")
    for name, members in groups.items():
        print(f"{name:<48}{len(members):>6}{statistics.median(abs(case.error) for case in members):>8.1%}"
              f"{_signed(members, few=True):>+8.1%}{_signed(members, few=False):>+8.1%}")
    return 0


def _signed(members: list[Case], *, few: bool) -> float:
    return statistics.median(case.error for case in members if (case.tokens <= FEW) is few)


if __name__ == "__main__":
    sys.exit(main())
