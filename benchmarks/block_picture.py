"""Frames of the picture of a recording's blocks: milliseconds each, in Chromium without a graphics card.

    python -m benchmarks.block_picture [--events 1000000]

A run of steps of training: weights and states that stay, activations that come and go. The picture is moved and zoomed
as a hand does, a frame a move.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from array import array
from pathlib import Path
from typing import Any

from tests.web.page.conftest import ALONE, browser_path
from vramcast.recordings.lives import CATEGORIES, Category
from vramcast.report.replay_document import PAGE, packed

MODULE = Path(__file__).parents[1] / "src/vramcast/web/page/parts/blocks.js"
MOVES = 120
STAYING = 4000

DRAWN = """({ data, moves }) => {
  const blocks = new Blocks(data);
  const picture = new BlockPicture(blocks, { marks: [], colour: () => "#4c78a8", name: (kind) => kind, words: {},
    ink: () => "#000000", bytes: String, count: String, seconds: String, moved: String, picked: () => {} });
  document.body.append(picture.node);
  picture.canvas.style.cssText = "display: block; width: 1180px; height: 400px";
  const took = [];
  for (let move = 0; move < moves; move += 1) {
    const begin = performance.now();
    if (move % 2) picture.zoom(move < moves / 2 ? 0.9 : 1.1);
    else picture.look(picture.range.map((event) => event + 0.01 * (picture.range[1] - picture.range[0])));
    took.push(performance.now() - begin);
  }
  const begin = performance.now();
  picture.blockAt(blocks.peak, 1);
  return { took, pointed: performance.now() - begin };
}"""


def recording(events: int) -> dict[str, Any]:
    """Columns of a run, as `report.replay_document` has them."""
    dice = random.Random(0)
    starts, ends, sizes, kinds = array("i"), array("I"), array("d"), array("B")
    for _ in range(STAYING):
        starts.append(-1)
        ends.append(events)
        sizes.append(512 * dice.randrange(1, 2**14))
        kinds.append(CATEGORIES.index(Category.WEIGHTS))
    event, alive = 0, list[int]()
    allocated, total = array("I"), sum(sizes)
    while event < events:
        if alive and (len(alive) > 600 or dice.random() < 0.45 or event > events - len(alive) - 2):
            block = alive.pop()
            ends[block] = event
            total -= sizes[block]
        else:
            alive.append(len(starts))
            starts.append(event)
            ends.append(events)
            sizes.append(512 * dice.randrange(1, 2**12))
            kinds.append(CATEGORIES.index(Category.ACTIVATIONS))
            total += sizes[-1]
        allocated.append(int(total) // PAGE)
        event += 1
    return {
        "events": events, "starts": packed(starts), "ends": packed(ends), "sizes": packed(sizes),
        "categories": packed(kinds), "stacks": packed(array("I", bytes(4 * len(starts)))),
        "names": [one.value for one in CATEGORIES], "stack_frames": [[0]], "frames": ["train.py:1 step"],
        "allocated": packed(allocated), "reserved": packed(allocated),
    }


def main() -> None:
    """The command line."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_picture")
    parser.add_argument("--events", type=int, default=1_000_000)
    asked = parser.parse_args()
    data = recording(asked.events)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_path(), args=ALONE)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_content("<!doctype html><body></body>")
        page.add_script_tag(content=MODULE.read_text(encoding="utf-8").replace("export ", ""))
        found = page.evaluate(DRAWN, {"data": data, "moves": MOVES})
        browser.close()
    took = sorted(found["took"])
    print(f"{asked.events:,} events, {len(json.dumps(data)) / 1e6:.1f} MB in the page: "
          f"a frame {statistics.median(took):.1f} ms, 95 % {took[int(0.95 * len(took))]:.1f} ms, most {took[-1]:.1f}; "
          f"what is pointed at {found['pointed']:.1f} ms")


if __name__ == "__main__":
    main()
