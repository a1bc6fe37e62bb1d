"""One step of an 8-billion LLaMA (forward, backward, AdamW), traced, beside PyTorch's own tracker.

    python -m benchmarks.trace [--repeats 3] [--layers 32] [--json]

Both run the same module of transformers, each in a process of its own, imports not counted. Printed are wall and
processor time; the bars are held by wall time, the fastest of the repeats of either: other load only adds. The peer is
torch.distributed._tools.mem_tracker.MemTracker under FakeTensorMode on fake CPU tensors: fake CUDA tensors need a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

CARD: Final = "h200-sxm-141gb"
BATCH, LENGTH = 1, 4096
MOST_SECONDS: Final = 1.0
TIMES_FASTER: Final = 20.0
LLAMA_8B: Final = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "use_cache": False,
}


def build(layers: int, device: str) -> Any:
    """The model, its optimizer and a batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**LLAMA_8B, num_hidden_layers=layers))
    finally:
        torch.set_default_dtype(previous)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device=device)
    return model, torch.optim.AdamW(model.parameters()), ids


def step(model: Any, optimizer: Any, ids: Any) -> None:
    """One step."""
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


class Seconds(NamedTuple):
    """How long something took [s]."""

    wall: float
    processor: float  # of all threads


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    """How long it took, and the result."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return Seconds(time.perf_counter() - wall, time.process_time() - processor), result


def load_transformers() -> None:
    """Import it, also beside a torchvision whose compiled part does not fit torch."""
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    prepare_torchvision()
    import transformers.models.llama.modeling_llama  # noqa: F401


def ours(layers: int) -> dict[str, Any]:
    """Seconds of building, of the first and of the second step, in a simulation."""
    load_transformers()
    from vramcast.catalogue.gpus import load_gpu
    from vramcast.tracing.session import Session

    session = Session(load_gpu(CARD))
    with session.active():
        building, parts = timed(lambda: build(layers, "cuda"))
        first, _ = timed(lambda: step(*parts))
        second, _ = timed(lambda: step(*parts))
    peak = session.device.allocator.peak_allocated_bytes
    return {"build": building, "first": first, "second": second, "peak_gib": peak / 2**30}


def peer(layers: int) -> dict[str, Any]:
    """The same under MemTracker. One step: the second is as long."""
    load_transformers()
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        building, parts = timed(lambda: build(layers, "cpu"))
        tracker = MemTracker()
        tracker.track_external(parts[0], parts[1])
        with tracker:
            first, _ = timed(lambda: step(*parts))
        peaks = tracker.get_tracker_snapshot("peak")
    peak = max(kinds["Total"] for kinds in peaks.values())
    return {"build": building, "first": first, "peak_gib": peak / 2**30}


WORKERS: Final = {"vramcast": ours, "MemTracker": peer}


def measured(worker: str, layers: int) -> dict[str, Any]:
    """One worker in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.trace", "--worker", worker, "--layers", str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {key: Seconds(*value) if isinstance(value, list) else value for key, value in result.items()}


def fastest(worker: str, layers: int, repeats: int) -> dict[str, Any]:
    """The run with the shortest first step."""
    return min((measured(worker, layers) for _ in range(repeats)), key=lambda run: run["first"].wall)


def line(name: str, run: dict[str, Any]) -> str:
    """One side for a reader."""
    steps = {"build": "build", "first": "step", "second": "second step"}
    times = [
        f"{steps[key]} {run[key].wall:.2f} s (processor {run[key].processor:.2f} s)" for key in steps if key in run
    ]
    return f"{name:<12} {', '.join(times)}, peak {run['peak_gib']:.2f} GiB"


def main() -> int:
    """Print both, and whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(WORKERS[asked.worker](asked.layers)))
        return 0
    best, other = (fastest(name, asked.layers, asked.repeats) for name in WORKERS)
    ratios = Seconds(*(theirs / mine for theirs, mine in zip(other["first"], best["first"], strict=True)))
    holds = best["first"].wall <= MOST_SECONDS and ratios.wall >= TIMES_FASTER
    if asked.json:
        sides = {"vramcast": best, "MemTracker": other}
        shown = {name: {key: _plain(value) for key, value in run.items()} for name, run in sides.items()}
        print(json.dumps({**shown, "ratio": ratios._asdict(), "holds": holds}))
    else:
        print(line("vramcast", best), line("MemTracker", other), sep="\n")
        verdict = "ok" if holds else "MISSED"
        print(
            f"{ratios.wall:.1f} times faster by wall time, {ratios.processor:.1f} by processor time "
            f"(bar {TIMES_FASTER:.0f}), step at most {MOST_SECONDS:.0f} s: {verdict}"
        )
    return int(not holds)


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Seconds) else value


if __name__ == "__main__":
    sys.exit(main())
