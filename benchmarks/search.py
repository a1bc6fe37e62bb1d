"""Plans per second on one core, beside the searches of peers: `python -m benchmarks.search [--peers DIR]`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.api import job_of
from vramcast.domain.job import Precision
from vramcast.domain.planning import Goal, Limits, Space
from vramcast.estimate.step_time import step_time
from vramcast.estimate.training import needed_bytes
from vramcast.search.training.megatron import blocks
from vramcast.search.training.search import search

HERE: Final = Path(__file__).resolve().parent

PEERS: Final = {"calculon": "search_calculon.py", "SimuMax": "search_simumax.py"}

DIRECT: Final = 60
"""Plans that the direct path is timed on."""


class Row(NamedTuple):
    """One search timed."""

    name: str
    plans: int
    seconds: float
    note: str

    @property
    def rate(self) -> float:
        """Plans per second."""
        return self.plans / self.seconds


def space_of(model: str, gpus: str, batch: int, seq_len: str, *, wide: bool) -> Space:
    """Every plan of Megatron-Core; `wide`: offload and fp8 too."""
    job = job_of({"model": model, "gpus": gpus, "engine": "megatron", "seq-len": seq_len})
    return Space(
        model=job.model, workload=job.workload, global_batch=batch, clusters=(job.cluster,),
        offload_optimizer=("none", "cpu") if wide else ("none",),
        precisions=(Precision.MIXED_BF16, Precision.FP8) if wide else (Precision.MIXED_BF16,),
    )


def compiled(name: str, space: Space) -> Row:
    """Live memory and step time of every plan."""
    start = time.perf_counter()
    plans = sum(
        int(block.possible.sum()) * len(block.variants) * len(block.recomputations)
        for block in blocks(space, space.clusters[:1])
    )
    return Row(f"vramcast, {name}, compiled", plans, time.perf_counter() - start, "memory and step time of every plan")


def whole(name: str, space: Space) -> Row:
    """The whole search: the same, then full answers for the best."""
    start = time.perf_counter()
    found = search(space, Limits(), Goal.FASTEST)
    note = f"with full answers of the best {len(found.plans)}; first: {found.labels[0] if found.labels else 'none'}"
    return Row(f"vramcast, {name}, search", found.num_plans, time.perf_counter() - start, note)


def direct(name: str, space: Space) -> Row:
    """Plan after plan as `vramcast train` answers them."""
    jobs = []
    for block in blocks(space, space.clusters[:1]):
        degrees, batch = (int(found[0]) for found in block.possible.nonzero())
        jobs.append(block.job_at(0, 0, degrees, batch))
        if len(jobs) == DIRECT:
            break
    start = time.perf_counter()
    for job in jobs:
        needed_bytes(job)
        step_time(job)
    return Row(f"vramcast, {name}, one by one", len(jobs), time.perf_counter() - start, "allocator included")


def peer(name: str, script: str, python: str, root: Path, seconds: float) -> Row | str:
    """A peer's own search for so many seconds, or why it did not run."""
    command = [python, str(HERE / "peers" / script), str(root), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{name}: {done.stderr.strip().splitlines()[-1][:100] if done.stderr.strip() else 'failed'}"
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Row(name, found["plans"], found["seconds"], f"GPT-3 175B on 64 cards, {found['share']:.1%} of its space")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--peers", type=Path, help="the peers' checkouts, see peers/README.md")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers' packages")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest time of a peer's search")
    options = parser.parse_args()
    case = space_of("opt-175b", "8x8xa100-sxm4-80gb", 512, "2k", wide=False)
    trillion = space_of("kimi-k2", "2048x8xh100-sxm-80gb", 16384, "4k", wide=True)
    rows: list[Row | str] = [
        compiled("1T MoE on 16,384 GPUs", trillion), whole("1T MoE on 16,384 GPUs", trillion),
        whole("GPT-3 175B on 64", case), direct("GPT-3 175B on 64", case),
    ]
    if options.peers is not None:
        rows += [peer(name, script, options.python, options.peers, options.seconds) for name, script in PEERS.items()]
    reference = next(row for row in rows if isinstance(row, Row))
    print(f"{'search':44} {'plans':>12} {'seconds':>8} {'plans/s':>12} {'ratio':>9}")
    for row in rows:
        if isinstance(row, str):
            print(row)
        else:
            ratio = row.rate / reference.rate
            print(f"{row.name:44} {row.plans:12,} {row.seconds:8.2f} {row.rate:12,.1f} {ratio:9.1e}  {row.note}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
