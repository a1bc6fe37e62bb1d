"""The report on a recording: text, JSON and page."""

import json
import re
from importlib.resources import files

import pytest
from msgspec.structs import replace

from tests.recordings import _made as made
from tests.recordings._made import Run, train
from vramcast.domain.snapshot import PREDICTED, Frame
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.recordings.lives import CATEGORIES
from vramcast.report.messages import LANGUAGES, Words, rare_messages
from vramcast.report.replay import render
from vramcast.report.replay_document import replay_document
from vramcast.report.replay_page import page, page_data
from vramcast.units import MIB

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J<!--"


def looked_at(run: Run, asked: Asked | None = None) -> Examined:
    snapshot = run.dump()
    return examine(snapshot, snapshot.devices[0], asked or Asked(leaks=True, confs=("max_split_size_mb:64",)))


@pytest.fixture(scope="module")
def trained() -> Examined:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    return looked_at(run)


@pytest.fixture(scope="module")
def hostile() -> Examined:
    run = Run()
    run.make(MIB, (Frame("forward", f"/tmp/{HOSTILE}.py", 1), Frame(HOSTILE, "/tmp/a.py", 2)))
    run.drop(run.make(5 * MIB, (Frame(HOSTILE, "??", 0),)))
    run.make(30 * MIB)
    return looked_at(run)


def test_events_are_no_ages(trained: Examined) -> None:
    predicted = examine(replace(trained.snapshot, format=PREDICTED), trained.snapshot.devices[0], Asked())
    timed, counted = (render([found], Words("en"), top=5) for found in (trained, predicted))
    assert " old\n" in timed
    assert " old\n" not in counted and "since event" in counted


def test_every_category_has_a_name() -> None:
    assert all(f"replay.category.{category}" in rare_messages() for category in CATEGORIES)


def test_a_hostile_recording_moves_no_cursor_and_ends_no_script(hostile: Examined) -> None:
    assert "\x1b" not in render([hostile], Words("en"), top=5)
    text = page([hostile], Words("en"), top=5)
    assert text.count("</script>") == 2  # of the data and of the program
    assert "<img" not in text and "\x1b" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    frames = json.loads(data[1])["stacks"].values()
    assert any(HOSTILE.replace("\x1b", "?")[:20] in name for stack in frames for name, _ in stack)


def test_the_page_stays_small_whatever_the_recording(trained: Examined) -> None:
    run = Run()
    for size in range(4000):
        run.make(512 * (1 + size % 7), (made.python("f", line=size), made.MAIN))
    assert len(page([looked_at(run, Asked())], Words("en"), top=10)) < 2_000_000


def test_the_document_is_json_with_whole_bytes(trained: Examined) -> None:
    plain = json.loads(json.dumps(replay_document([trained], top=3)))
    assert plain["schema"] == 1
    (device,) = plain["devices"]
    assert device["addresses_matched"] == device["allocations"] > 0
    assert device["segments_matched"] == device["segment_events"]
    assert device["final_blocks_matched"] is True
    assert device["peak"]["allocated_bytes"] == trained.replayed.peak_allocated_bytes
    assert device["fragmentation"] == pytest.approx(
        1 - device["peak"]["allocated_bytes"] / device["peak"]["reserved_bytes"]
    )
    assert sum(group["bytes"] for group in device["peak"]["categories"]) == device["peak"]["allocated_bytes"]
    assert device["leaks"]["bytes_per_step"] == MIB
    assert [variant["conf"] for variant in device["variants"]] == ["", "max_split_size_mb:64"]
    assert device["advice"]["kind"] == "none"
    assert None not in _values(plain)


def _values(plain: object) -> list[object]:
    if isinstance(plain, dict):
        return [value for item in plain.values() for value in _values(item)]
    if isinstance(plain, list):
        return [value for item in plain for value in _values(item)]
    return [plain]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_word_that_the_page_shows_is_in_it(trained: Examined, language: str) -> None:
    script = (files("vramcast.report") / "page" / "page.js").read_text(encoding="utf-8")
    used = set(re.findall(r"\bW\.(\w+)", script))
    assert len(used) > 20
    assert used <= set(page_data([trained], Words(language), top=3)["words"])
