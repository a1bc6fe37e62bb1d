"""Runs as functions of their sizes: equal to running them at random settings, and how much faster.

    python -m benchmarks.varied [--points 200] [--only gpt network llama] [--json]

Each is read from few traces, then made for random settings of which nobody has traced any, and traced at each of them.
Equal is a tape of which every event, size, stream and mark is. Faster is by processor time of one setting, from sizes
to both peaks: a trace in a process that has torch loaded, beside the tape made and played through the allocator.
A script, which starts a process for each trace, takes some seconds more.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final

POINTS: Final = 200
CARD: Final = "rtx-4090"
SEED: Final = 7
RUNS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "gpt": (
        "benchmarks.varied:gpt", {"input": ("BxS:int64",), "loss": "own", "amp": "bf16"}, "batch=1..64,seq=64..2048"
    ),
    "network": (
        "torchvision.models:resnet50", {"input": ("Bx3xSxS",), "amp": "bf16"}, "batch=1..64,image=64..512/32",
    ),
    "llama": ("transformers:llama-3.2-1b", {"amp": "bf16"}, "batch=1..64,seq=64..2048"),
}
"""Name -> target, options, axes."""


def gpt(width: int = 256, depth: int = 4, words: int = 5000) -> Any:
    """A GPT as small repositories write it."""
    import torch
    from torch.nn import functional

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    class Gpt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(words, width)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(depth))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, words, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            for block in self.blocks:
                x = block(x)
            return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())

    return Gpt()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time [s], and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def measured(name: str, count: int) -> dict[str, Any]:
    """One of them."""
    from vramcast.question.tracing import build_trace
    from vramcast.question.varied import at_point, parse_axes
    from vramcast.tracing.result import traced
    from vramcast.tracing.run import ran_job
    from vramcast.tracing.varied.answers import Varied
    from vramcast.tracing.varied.programs import differences

    target, options, text = RUNS[name]
    axes = parse_axes([text])
    job = build_trace(target, {"gpu": CARD, "vary": (text,), **options})
    survey_s, found = timed(lambda: Varied(job, axes))
    chooser = random.Random(SEED)
    points = [tuple(chooser.choice(axis.values) for axis in axes) for _ in range(count)]
    known = set(found.survey.samples)
    found.needs(points[0])
    gc.collect()
    made_s, needs = timed(lambda: [found.needs(point) for point in points])
    tapes = [found.survey.tape(point) for point in points]
    found.close()
    equal, traces_s = 0, list[float]()
    for point, tape, one in zip(points, tapes, needs, strict=True):
        start = time.process_time()
        run, about = ran_job(at_point(job, axes, point))
        answer = traced(run, about).answer
        traces_s.append(time.process_time() - start)
        equal += not list(differences(tape, run.tape)) and one.rank.peak == answer.peak
    return {
        "name": name, "regions": len(found.survey.regions), "traces": len(known), "survey_s": survey_s,
        "points": count, "new_points": len(set(points) - known), "equal": equal, "made_s": made_s / count,
        "trace_s": sum(traces_s) / count, "times_faster": sum(traces_s) / made_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=RUNS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = [measured(name, asked.points) for name in asked.only]
    if asked.json:
        print(json.dumps(found))
    else:
        for one in found:
            print(
                f"{one['name']}: {one['equal']} of {one['points']} equal; {1000 * one['made_s']:.1f} ms beside "
                f"{1000 * one['trace_s']:.0f} ms a trace, {one['times_faster']:.0f} times; read from {one['traces']} "
                f"traces in {one['survey_s']:.1f} s, {one['regions']} regions"
            )
    return 0 if all(one["equal"] == one["points"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
