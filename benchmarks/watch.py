"""What one reading of `vramcast watch` costs beside the driver: `python -m benchmarks.watch`.

Eight cards with eight processes each, a reading a second for twenty minutes: following (growth, alerts), recording,
metrics, the picture. Recordings are measured by their size, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from vramcast.domain.observation import Card, GpuSample, ProcessSample, Reading, RunInfo
from vramcast.report.messages import Words
from vramcast.units import GIB
from vramcast.watch.following import Following, Rules
from vramcast.watch.prometheus import families
from vramcast.watch.recording import Recorder
from vramcast.watch.view import View

READINGS = 1200


def reading(second: int) -> Reading:
    """One of many."""
    processes = tuple(
        ProcessSample(pid=1000 + number, memory_bytes=GIB + second * number * 4096, sm_share=0.1, name="python3",
                      command="python3 train.py --config job.toml", user="ada")
        for number in range(8)
    )
    cards = (Card(index=index, uuid=f"GPU-{index}", model="H100", memory_total_bytes=80 * GIB) for index in range(8))
    return Reading(time_s=float(second), gpus=tuple(
        GpuSample(time_s=float(second), card=card, memory_used_bytes=9 * GIB + second, memory_free_bytes=70 * GIB,
                  sm_share=0.9, memory_share=0.4, power_w=600.0, power_limit_w=700.0, processes=processes)
        for card in cards
    ))


def main() -> None:
    """Print a table."""
    readings = [reading(second) for second in range(READINGS)]
    following, view = Following(Rules()), View(["node"], Words("en"), {})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        recorder = Recorder.open(path, RunInfo(started_s=0.0, host="node"))
        parts: dict[str, Callable[[Reading], object]] = {
            "follow": following.follow, "record": recorder.write,
            "metrics": lambda one: list(families(one, following, {})),
            "picture": lambda one: view.console.render_lines(view.drawn(one, following, 50)),
        }
        spent = dict.fromkeys(parts, 0.0)
        for one in readings:
            for name, part in parts.items():
                begun = time.perf_counter()
                part(one)
                spent[name] += time.perf_counter() - begun
        recorder.close()
        size = path.stat().st_size
    for name, seconds in spent.items():
        print(f"{name:<8} {seconds / READINGS * 1e3:6.2f} ms a reading")
    print(f"recording {size / READINGS:,.0f} bytes a reading, {size / READINGS * 86_400 / GIB:.2f} GiB a day")


if __name__ == "__main__":
    main()
