"""The page for everybody: two languages, light and dark, keyboard, screen reader, phone."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from .conftest import ANSWER, EXAMPLES, LOG, PHONE, Opened, asked, go, needed, settle, view, wait_for_needed
from .test_answers import SERVE, TRAIN
from .test_plan import FORM as SEARCH
from .test_plan import SERVE as SEARCHED

SERIOUS = ("serious", "critical")
ROWS = ".data tbody tr"
INLINE = "() => document.querySelectorAll('[style], script:not([src]), style, [onclick]').length"


def violations(page: Any, axe: str, **options: Any) -> list[str]:
    """What axe finds serious, with the elements."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    asked = {"resultTypes": ["violations"]} | options
    found = page.evaluate("(asked) => axe.run(document, asked).then((result) => result.violations)", asked)
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]} {node['failureSummary']}"
        for one in found if one["impact"] in SERIOUS for node in one["nodes"]
    ]


def unfolded(page: Any) -> None:
    """An answer with an entry of its ledger and every group of its form; what an answer before it had open stays so."""
    for line, opened in ((1, ".line-2"), (2, ".behind")):
        if not page.locator(f".ledger {opened}").count():
            page.locator(f".ledger .line-{line} .opens").first.click()
    for group in page.locator(".group").all():
        group.evaluate("(node) => { node.open = true; }")


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
    page.wait_for_selector(".blocks")
    opened_all(page)


def row(page: Any) -> None:
    page.locator(".data .opens").first.click()


def pressed(page: Any) -> None:
    page.locator(".presses").nth(1).click()
    page.wait_for_selector(".points")


def opened_all(page: Any) -> None:
    for part in page.locator("#main .body details, #main .question details").all():
        part.evaluate("(node) => { node.open = true; }")


def answered(page: Any) -> None:
    page.wait_for_function("() => document.querySelectorAll('.live .badge').length === 4")


SHOWN: dict[str, tuple[str, str | tuple[str, dict[str, str]], Callable[[Any], None]]] = {
    "start": ("#/start", ".page-start .start-verdict h2", answered),
    "fits": (view("train", TRAIN["fits"]), ("train", TRAIN["fits"]), unfolded),
    "does not fit": (view("train", TRAIN["does not fit"]), ("train", TRAIN["does not fit"]), unfolded),
    "pipeline": (view("train", TRAIN["pipeline"]), ("train", TRAIN["pipeline"]), unfolded),
    "serving": (view("serve", SERVE["too many"]), ("serve", SERVE["too many"]), unfolded),
    "inverse": (view("serve", SERVE["search"]), ("serve", SERVE["search"]), unfolded),
    "compared": (view("train", TRAIN["fits"], TRAIN["pipeline"], TRAIN["offloaded, priced"]),
                 ("train", TRAIN["fits"]), unfolded),
    "plan": (view("plan/serve", SEARCHED), SEARCH, found),
    "oom": ("#/oom", ".page-oom .log", diagnosed),
    "replay": ("#/replay", ".page-replay .drop", played),
    "gpus": ("#/gpus", f".page-gpus {ROWS}", row),
    "instances": ("#/instances", f".page-instances {ROWS}", row),
    "accuracy": ("#/accuracy", f".page-accuracy {ROWS}", pressed),
}
"""A page -> its address, what it has once it is there or the question it answers, and how all of it is opened."""


def each_shown(opened: Opened, *names: str, **settings: Any) -> Iterator[tuple[str, Any]]:
    """Pages one after the other in one window, each as it is when all of it is opened."""
    page = opened("#/oom", wait=".log", script=HELD, **settings)
    for name in names:
        address, wait, act = SHOWN[name]
        go(page, address)
        if isinstance(wait, tuple):
            page.wait_for_selector(f".page-{wait[0]} {ANSWER}")
            wait_for_needed(page, needed(asked(*wait)))
        else:
            page.wait_for_selector(wait)
        act(page)
        settle(page)
        yield name, page


HELD = """(() => { const Real = ResizeObserver, waiting = [];
  let held = false;
  window.ResizeObserver = class extends Real {
    constructor(told) { super((entries) => { held ? waiting.push(() => told(entries)) : told(entries); }); }
  };
  window.hold = () => { held = true; };
  window.release = () => { held = false; waiting.splice(0).forEach((told) => told()); };
})()"""
"""No chart learns of another width between `hold` and `release`, as on a machine that is busy."""


def test_axe_finds_nothing_serious_in_either_colours_and_a_phone_scrolls_down_only(opened: Opened, axe: str) -> None:
    for name, page in each_shown(opened, *SHOWN):
        size = page.viewport_size
        assert page.evaluate(INLINE) == 0, name
        assert violations(page, axe) == [], name
        page.emulate_media(color_scheme="dark")
        settle(page)
        assert violations(page, axe, runOnly=["color-contrast"]) == [], name  # nothing else is of colours
        page.evaluate("hold()")
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        page.evaluate("release()")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        page.set_viewport_size(size)
        page.emulate_media(color_scheme="light")


UNITS = {"GiB", "MiB", "GB", "TFLOPS", "token", "s", "MFU"}
NAMES = {"GPU", "PyTorch", "JSON", "HTML", "Markdown", "bf", "fp", "OOM", "KV", "English", "vramcast"}


def test_a_chinese_page_is_chinese_on_a_phone_too(opened: Opened, axe: str) -> None:
    names = ("start", "compared", "plan", "oom", "replay", "gpus", "instances", "accuracy")
    for name, page in each_shown(opened, *names, viewport=PHONE, locale="zh-CN"):
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        assert violations(page, axe, rules={"color-contrast": {"enabled": False}}) == [], name
        parts = "#top nav a, #main h1, #main h2, #main h3, #main button:not(.opens):not(.presses), .filters label"
        if name == "compared":
            parts = "#top, .answered h2, .buttons, .figures dt, .question label:not(.mono), summary"
        texts = page.locator(parts).all_inner_texts()
        if name != "compared":
            texts = [
                text for text in texts  # names of options are names
                if not re.search(r"--|=|_|x?h100", text) and not re.fullmatch(r"[a-z-]+ ?[↕↑↓]?", text.strip())
            ]
        words = {word for text in texts for word in re.findall(r"[A-Za-z]{2,}", text)}
        assert words <= UNITS | NAMES, (name, words - UNITS - NAMES)
        if name == "oom":  # a button beside a long setting keeps its word whole
            heights = page.locator(".setting .link").evaluate_all("nodes => nodes.map(node => node.offsetHeight)")
            assert len(heights) > 3 and len(set(heights)) == 1


def test_a_wrong_question_on_a_phone_in_chinese_and_the_verdict_at_its_foot(opened: Opened, axe: str) -> None:
    page = opened(view("train", TRAIN["does not fit"]), viewport=PHONE, locale="zh-CN")
    glance = page.locator(".glance")
    assert "放不下" in glance.inner_text()
    glance.click()
    page.wait_for_function("() => document.querySelector('.foot').hidden")
    assert page.locator(".verdict").evaluate("(node) => node.getBoundingClientRect().top") < PHONE["height"]
    page.locator("[name=seq-len]").fill("8q")
    page.wait_for_selector(".field.wrong")
    page.locator("[name=model]").click()
    page.wait_for_selector("[role=option]")
    settle(page)
    assert violations(page, axe) == []


def test_language_and_colours_are_the_browsers_until_some_are_chosen_and_then_remembered(opened: Opened) -> None:
    dark = "() => getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 28)'"
    page = opened(view("train", TRAIN["does not fit"]), locale="zh-CN", color_scheme="dark")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert "放不下" in page.locator(".verdict h2").inner_text()
    assert "激活" in page.locator(".ledger").inner_text()
    assert page.evaluate(dark)
    page.emulate_media(color_scheme="light")
    assert not page.evaluate(dark)
    before = page.evaluate("location.hash")
    page.locator("[data-key=theme]").select_option("dark")
    page.locator("[data-key=language]").select_option("en")
    page.wait_for_function("() => document.querySelector('.verdict h2')?.textContent.includes('does not fit')")
    assert page.evaluate("location.hash") == before
    page.reload()
    page.wait_for_selector(".verdict")
    assert "does not fit" in page.locator(".verdict h2").inner_text().lower()
    assert page.evaluate(dark)


def test_a_question_is_asked_and_an_entry_opened_by_keyboard_alone(opened: Opened) -> None:
    page = opened(view("train", TRAIN["does not fit"]))
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    while page.evaluate("document.activeElement.name") != "model":
        press("Tab")
    page.keyboard.type("llama-3.2-1")
    page.wait_for_selector("[role=option]")
    press("ArrowDown")
    assert page.locator("[name=model]").get_attribute("aria-activedescendant")
    press("Enter")
    assert page.locator("[name=model]").input_value() == "llama-3.2-1b"
    page.wait_for_selector(".verdict.good")
    while page.evaluate("document.activeElement.dataset.key") != "category activations":
        press("Tab")
    press("Enter")
    page.wait_for_selector(".line-2")
    assert page.evaluate("document.activeElement.dataset.key") == "category activations"
    press("Tab")
    press("Enter")
    page.wait_for_selector(".behind")


def test_a_list_opens_at_what_is_chosen_and_escape_keeps_what_was_typed(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.locator("[name=gpus]").click()
    chosen = page.locator("[role=option][aria-selected=true]")
    assert chosen.locator("span").inner_text() == "H100 SXM5 80 GB"
    inside = "(node) => node.offsetTop >= node.parentNode.scrollTop && node.offsetTop < node.parentNode.scrollTop + 300"
    assert chosen.evaluate(inside)
    page.keyboard.press("Escape")
    model = page.locator("[name=model]")
    model.fill("qwen3")
    page.wait_for_selector("[role=option]")
    assert model.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert model.get_attribute("aria-expanded") == "false"
    assert model.input_value() == "qwen3"


def test_a_screen_reader_hears_what_was_found_once_it_has_settled(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    assert page.locator("#said").get_attribute("aria-live") == "polite"
    for text in ("32", "64", "128k"):
        page.locator("[name=seq-len]").fill(text)
    page.wait_for_function("() => document.getElementById('said').textContent.startsWith('does not fit')")
    page.get_by_role("link", name="OOM").click()
    page.wait_for_selector(".log")
    diagnosed(page)
    assert "more memory than there is" in page.locator("#said").inner_text()
    page.get_by_role("link", name="Replay").click()
    page.wait_for_selector(".drop")
    played(page)
    assert page.locator("#said").inner_text().startswith("Peak 1018.0 MiB")


def test_a_file_and_a_row_are_reached_by_keyboard_alone(opened: Opened) -> None:
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


def test_a_page_not_shown_is_tried_again_and_one_left_while_it_works_is_not_disturbed(opened: Opened) -> None:
    page = opened("#/accuracy", wait=".points")
    busy = {"status": 503, "content_type": "application/json", "body": '{"error": "Busy", "message": "no time"}'}
    page.route("**/api/gpus*", lambda route: route.fulfill(**busy))
    page.get_by_role("link", name="GPUs", exact=True).click()
    page.wait_for_selector("#main [role=alert]")
    assert page.locator("#main [role=alert]").inner_text() == "The page cannot be shown: no time"
    page.unroute("**/api/gpus*")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".page-gpus .data")
    go(page, view("plan/serve", SEARCHED))
    page.route("**/api/plan/serve", lambda route: None)
    page.wait_for_selector(SEARCH)
    page.locator(SEARCH).click()
    page.wait_for_selector(".working")
    page.get_by_role("link", name="Accuracy").click()
    page.wait_for_selector(".points")
    page.go_back()
    page.wait_for_selector(SEARCH)
    assert not page.locator(".working").count()


def test_names_stay_in_their_places_on_a_phone(opened: Opened) -> None:
    page = opened("#/instances?query=azure", wait=ROWS, viewport=PHONE)
    wider = "(nodes) => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent)"
    assert page.locator(".data tbody th, .data tbody th button").evaluate_all(wider) == []
    place = page.locator("nav [aria-current]").bounding_box()
    assert place["x"] >= 0 and place["x"] + place["width"] <= PHONE["width"]
