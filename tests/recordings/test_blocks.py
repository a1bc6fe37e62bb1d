"""Every block of a recording: what lives at the peak is what the peak's own count says, kind by kind."""

from collections import Counter
from pathlib import Path

import pytest

import vramcast
from vramcast.recordings.lives import CATEGORIES

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize("name", ["crash.pickle.gz", "fragmented.pickle"])
def test_blocks_that_live_at_the_peak_are_those_that_hold_it(name: str) -> None:
    [found] = vramcast.replay(EXAMPLES / name).devices
    blocks, event = found.blocks, found.replayed.peak_event
    live: Counter[str] = Counter()
    for start, end, number in zip(blocks.starts, blocks.ends, blocks.categories, strict=True):
        live[CATEGORIES[number]] += start <= event < end
    assert +live == Counter({group.name: group.num_blocks for group in found.held.by_category})
    assert len(blocks.starts) == len(blocks.sizes) == len(blocks.stacks)
    runs = [number for number, before in zip(blocks.categories, [None, *blocks.categories], strict=False)
            if number != before]
    assert len(runs) == len(set(runs))  # kind by kind
