"""The picture of a reading, at every width and height."""

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from tests.watch.samples import CARD, LIVING, SAMPLE
from vramcast.domain.observation import Event, EventKind, Reading
from vramcast.report.messages import LANGUAGES, Words
from vramcast.units import GIB
from vramcast.watch import outputs
from vramcast.watch.following import Expected, Following, Rules
from vramcast.watch.view import View

EXPECTED = Expected(
    gpu_uuid=CARD.uuid, role="all", steady_bytes=60 * GIB, capacity_bytes=79 * GIB, first_step_bytes=62 * GIB
)


def drawn(
    monkeypatch: pytest.MonkeyPatch, width: int, *, language: str = "en", cards: int = 3, rows: int | None = None,
    processes: int = 2,
) -> list[str]:
    """The lines of a picture."""
    monkeypatch.setenv("COLUMNS", str(width))
    held = tuple(
        replace(LIVING, pid=1000 + number, memory_bytes=(processes - number) * GIB) for number in range(processes)
    )
    samples = tuple(
        replace(
            SAMPLE, card=replace(CARD, index=index, uuid=f"{CARD.uuid}{index or ''}"),
            memory_used_bytes=(40 + index) * GIB, processes=held if processes != 2 else SAMPLE.processes,
        )
        for index in range(cards)
    )
    following = Following(Rules())
    view = View(["node-1", "driver 550"], Words(language), {CARD.uuid: EXPECTED})
    lost = Event(time_s=2.0, kind=EventKind.GPU_LOST, text="GPU 9 cannot be read: GPU is lost")
    for moment in (1.0, 2.0):
        reading = following.follow(Reading(
            time_s=moment, gpus=tuple(replace(sample, time_s=moment) for sample in samples), events=(lost,)
        ))
        view.note(reading, following)
    with view.console.capture() as captured:
        view.console.print(view.drawn(reading, following, rows))
    return captured.get().splitlines()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", [30, 45, 60, 80, 100, 120, 160, 220])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int, language: str) -> None:
    lines = drawn(monkeypatch, width, language=language)
    assert max(map(cell_len, lines)) <= width
    assert any("40.00" in line for line in lines) or width < 40


@pytest.mark.parametrize("rows", [12, 24, 50])
def test_no_picture_is_higher_than_the_terminal(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    lines = drawn(monkeypatch, 100, cards=1, rows=rows, processes=60)
    assert len(lines) <= rows
    assert any("more processes" in line for line in lines)


def test_the_fullest_card_and_the_largest_process_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 120)
    cards = [line.split()[0] for line in lines if "H100" in line]
    assert cards == ["2", "1", "0"]
    pids = [line.split()[1] for line in lines if line.split()[1:2] and line.split()[1] in ("4242", "3111")]
    assert pids == ["4242", "3111"] * 3


def test_the_prediction_is_drawn_beside_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "██████████░░░░░|░░░░ 40.00 of 80.00 GiB" in text
    assert "predicted 60.00 GiB (50% of it used)" in text and "first step 62.00 GiB" in text
    assert "no such process is alive: memory nobody gives back" in text
    assert "GPU 9 cannot be read: GPU is lost" in text


def test_memory_of_others_is_not_taken_for_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.watch.test_view.EXPECTED", replace(EXPECTED, steady_bytes=35 * GIB))
    assert "35.00 GiB (86% of it used)" in "\n".join(drawn(monkeypatch, 120, cards=1))  # 30 of the 40 GiB are the job's
    monkeypatch.setattr("tests.watch.test_view.SAMPLE", replace(SAMPLE, processes=()))
    assert "5.00 GiB more than predicted" in "\n".join(drawn(monkeypatch, 120, cards=1))


def test_a_peak_that_will_not_fit_beside_others_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "will run out" not in text  # 30 GiB more, 39 GiB free
    monkeypatch.setattr("tests.watch.test_view.SAMPLE", replace(SAMPLE, memory_free_bytes=29 * GIB))
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "will run out: the predicted peak takes 30.00 GiB more, 29.00 GiB are free" in text


def test_a_terminal_of_ascii_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outputs.sparkline([0, 40, 80], 80, 3, plain=True).isascii()
    assert outputs.bar(40, 80, 60, 8, plain=True) == "####--|-"


@pytest.mark.parametrize(("seconds", "text"), [
    (0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (86_400, "24 h"),
    (864_000, "10 days"),
])
def test_durations(seconds: float, text: str) -> None:
    assert outputs.duration(seconds) == text
