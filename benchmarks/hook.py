"""What the hook for training loops costs a step beside torch's own counters: `python -m benchmarks.hook`.

Three marks and a step, as `attach` makes them, over a torch that answers at once: what is left is the hook itself. The
counters of torch come on top, four times a step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

STEPS = 4000
PAUSE_S = 0.002
"""Between two steps: no training takes 500 of them a second."""


def main() -> None:
    """Print microseconds a step and bytes of the recording."""
    from tests.watch.hook.conftest import FakeTorch

    sys.modules["torch"] = FakeTorch()
    import vramcast

    taken = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        with vramcast.record_memory(path) as memory:
            memory.mark("load")
            for _ in range(STEPS):
                time.sleep(PAUSE_S)
                begun = time.perf_counter()
                for phase in ("forward", "backward", "optimizer"):
                    memory.mark(phase)
                memory.step()
                taken.append(time.perf_counter() - begun)
        size = path.stat().st_size
    print(f"{median(taken) * 1e6:.0f} us a step (99 %: {quantiles(taken, n=100)[98] * 1e6:.0f} us)")
    print(f"{size / STEPS:,.0f} bytes a step")


if __name__ == "__main__":
    main()
