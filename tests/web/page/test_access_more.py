"""The pages plan, oom, replay, gpus, instances and accuracy for everybody."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Opened
from .test_access import PHONE, violations
from .test_plan import FORM as SEARCH
from .test_plan import SERVE, view
from .test_recordings import EXAMPLES, LOG

ROWS = ".data tbody tr"


def found(page: Any) -> None:
    page.locator(SEARCH).click()
    page.wait_for_selector(".plan-point")
    page.locator(".data .opens").first.click()
    page.locator(".plan-point").first.focus()


def diagnosed(page: Any) -> None:
    page.locator(".log").fill(LOG)
    page.locator(".primary").click()
    page.wait_for_selector(".finding .cause")
    opened_all(page)


def played(page: Any) -> None:
    page.locator("[name=leaks]").check()
    page.locator("[name=all-confs]").check()
    page.set_input_files("input[type=file]", str(EXAMPLES / "crash.pickle.gz"))
    page.wait_for_selector(".timeline")
    opened_all(page)


def row(page: Any) -> None:
    page.locator(".data .opens").first.click()


def pressed(page: Any) -> None:
    page.locator(".presses").nth(1).click()
    page.wait_for_selector(".points")


def opened_all(page: Any) -> None:
    for part in page.locator("#main .body details, #main .question details").all():
        part.evaluate("(node) => { node.open = true; }")


SHOWN = {
    "plan": (view("serve", SERVE), SEARCH, found),
    "oom": ("#/oom", ".log", diagnosed),
    "replay": ("#/replay", ".drop", played),
    "gpus": ("#/gpus", ROWS, row),
    "instances": ("#/instances", ROWS, row),
    "accuracy": ("#/accuracy", ROWS, pressed),
}


def shown(opened: Opened, name: str, **settings: Any) -> Any:
    """A page with an answer on it, as much of it opened as there is."""
    address, wait, act = SHOWN[name]
    page = opened(address, wait=wait, **settings)
    act(page)
    page.wait_for_timeout(400)
    return page


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Opened, axe: str, name: str, scheme: str) -> None:
    assert violations(shown(opened, name, color_scheme=scheme), axe) == []


@pytest.mark.parametrize("name", SHOWN)
def test_a_phone_scrolls_down_only_and_chinese_is_chinese(opened: Opened, axe: str, name: str) -> None:
    page = shown(opened, name, viewport=PHONE, locale="zh-CN")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert violations(page, axe) == []
    parts = "#top nav a, #main h1, #main h2, #main h3, #main button:not(.opens):not(.presses), .filters label"
    units = {"GiB", "MiB", "GB", "TFLOPS", "token"}
    known = units | {"GPU", "PyTorch", "JSON", "HTML", "Markdown", "bf", "fp", "OOM", "KV"}
    texts = [text for text in page.locator(parts).all_inner_texts() if not re.search(r"--|=|_|x?h100", text)]
    options = {text for text in texts if re.fullmatch(r"[a-z-]+ ?[↕↑↓]?", text.strip())}  # names of options are names
    words = {word for text in texts if text not in options for word in re.findall(r"[A-Za-z]{2,}", text)}
    assert words <= known, words - known


@pytest.mark.parametrize("name", SHOWN)
def test_no_style_or_script_stands_inside_the_document(opened: Opened, name: str) -> None:
    page = shown(opened, name)
    inline = "() => document.querySelectorAll('[style], script:not([src]), style, [onclick]').length"
    assert page.evaluate(inline) == 0


def test_a_search_a_file_and_a_row_are_reached_by_keyboard_alone(opened: Opened) -> None:
    page = opened("#/oom", wait=".log")
    page.locator(".log").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "file"
    page.get_by_role("link", name="GPUs", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(ROWS)
    while not page.evaluate("document.activeElement.classList.contains('opens')"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("tr.opened:not([hidden])").count() == 1


def test_a_screen_reader_hears_what_was_found(opened: Opened) -> None:
    page = opened("#/oom", wait=".log")
    diagnosed(page)
    assert "more memory than there is" in page.locator("#said").inner_text()
    page.get_by_role("link", name="Replay").click()
    page.wait_for_selector(".drop")
    played(page)
    assert page.locator("#said").inner_text().startswith("Peak 1018.00 MiB")


def test_a_page_that_is_left_while_it_works_is_not_disturbed(opened: Opened) -> None:
    page = opened(view("serve", SERVE), wait=SEARCH)
    page.route("**/api/plan/serve", lambda route: None)
    page.locator(SEARCH).click()
    page.wait_for_selector(".working")
    page.get_by_role("link", name="Accuracy").click()
    page.wait_for_selector(".points")
    page.go_back()
    page.wait_for_selector(SEARCH)
    assert not page.locator(".working").count()


def test_a_page_that_could_not_be_shown_is_tried_again_by_its_button(opened: Opened) -> None:
    page = opened("#/accuracy", wait=".points")
    busy = {"status": 503, "content_type": "application/json", "body": '{"error": "Busy", "message": "no time"}'}
    page.route("**/api/gpus*", lambda route: route.fulfill(**busy))
    page.get_by_role("link", name="GPUs", exact=True).click()
    page.wait_for_selector("#main [role=alert]")
    assert page.locator("#main [role=alert]").inner_text() == "The page cannot be shown: no time"
    page.unroute("**/api/gpus*")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".page-gpus .data")


def test_a_phone_shows_the_name_of_the_page_among_those_of_the_others(opened: Opened) -> None:
    page = opened("#/accuracy", wait=".data tbody tr", viewport=PHONE)
    place = page.locator("nav [aria-current]").bounding_box()
    assert place["x"] >= 0 and place["x"] + place["width"] <= PHONE["width"]


def test_names_of_machines_stay_in_their_column_on_a_phone(opened: Opened) -> None:
    page = opened("#/instances?query=azure", wait=".data tbody tr", viewport=PHONE)
    wider = "(nodes) => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent)"
    assert page.locator(".data tbody th, .data tbody th button").evaluate_all(wider) == []


def test_links_of_every_machine_stand_in_a_window_of_a_laptop(opened: Opened) -> None:
    page = opened("#/instances", wait=".data tbody tr")
    frame = page.locator(".table").bounding_box()
    last = page.locator(".data tbody .links").first.bounding_box()
    assert last["x"] + last["width"] <= frame["x"] + frame["width"]


@pytest.mark.parametrize(("low", "high", "expected"), [
    (36, 8975, [2000, 4000, 6000, 8000]), (0, 10, [0, 2, 4, 6, 8, 10]), (0.0283, 0.0318, [0.029, 0.03, 0.031]),
])
def test_axes_have_round_values_wherever_they_begin(
    opened: Opened, low: float, high: float, expected: list[float]
) -> None:
    found = opened().evaluate(
        "async ([low, high]) => (await import('/parts/scale.js')).ticksBetween(low, high, 5)", [low, high])
    assert found == pytest.approx(expected)
