"""The address holds the whole question; plans are compared; what is taken away is what was asked."""

from typing import Any

import pytest

from .conftest import Opened, asked, comes_to, downloaded, go, needed, view, wait_for_needed
from .test_answers import SERVE, TRAIN

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def letters(page: Any) -> list[str]:
    return [tab.inner_text() for tab in page.locator(".tab b").all()]


def test_a_link_shows_the_same_plans_after_a_reload_and_elsewhere(opened: Opened) -> None:
    link = view("train", TRAIN["pipeline"], TRAIN["fits"], active=2)
    page = opened(link)
    shown = page.locator(".needed b").inner_text()
    assert letters(page) == ["Plan A", "Plan B"]
    page.reload()
    page.wait_for_selector(".verdict")
    assert page.locator(".needed b").inner_text() == shown
    assert page.locator("[name=model]").input_value() == TRAIN["fits"]["model"]
    other = opened(page.evaluate("location.hash"))
    assert other.locator(".needed b").inner_text() == shown
    assert letters(other) == ["Plan A", "Plan B"]
    go(other, view("train", *[TRAIN["fits"] | {"micro-batch": str(count)} for count in range(1, 8)]))
    comes_to(other, lambda: letters(other), ["Plan A", "Plan B", "Plan C", "Plan D"])  # no more are compared


def test_plans_are_added_changed_marked_and_removed(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.get_by_role("button", name="Compare another").click()
    page.wait_for_selector(".compare")
    assert page.locator(".compare .option.differs").count() == 0
    page.locator("[name=recompute]").select_option("full")
    page.wait_for_selector(".compare .option.differs")
    rows = page.locator(".compare .option.differs")
    assert [row.inner_text().split() for row in rows.all()] == [["recompute", "–", "full"]]
    wait_for_needed(page, needed(asked("train", TRAIN["fits"] | {"recompute": "full"})))
    for _ in range(2):
        page.get_by_role("button", name="Compare another").click()
    assert letters(page) == ["Plan A", "Plan B", "Plan C", "Plan D"]
    assert page.get_by_role("button", name="Compare another").is_disabled()
    page.get_by_role("button", name="Remove plan A").click()
    page.wait_for_function("() => document.querySelectorAll('.tab').length === 3")
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('.tab').length === 4")


def test_a_refused_question_shows_no_figures_of_an_older_one_among_the_plans(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.get_by_role("button", name="Compare another").click()
    page.wait_for_selector(".compare .badge.good")
    page.locator("[name=tp]").fill("7")
    page.wait_for_selector(".compare .reason:has-text('tp=7')")
    figures = page.locator(".compare tr", has=page.locator("th:text-is('device')")).inner_text().split("\t")
    assert figures[1] != "–" and figures[2] == "–"
    page.locator(".tab button").first.click()  # another plan in front does not make it an answer
    assert page.locator(".tab", has_text="Plan B").locator(".badge").count() == 0
    assert page.locator(".compare .reason:has-text('tp=7')").count() == 1


HOSTILE_LINKS = (  # the first is no page: the front page, which would show the question of another
    f"#/{HOSTILE}?model=x", f"#/train?model={HOSTILE}&gpus=t4",
    f"#/train?model=llama-3.1-8b&gpus=t4&{HOSTILE}={HOSTILE}", f"#/train?model=llama-3.1-8b&gpus=t4&engine={HOSTILE}",
    "#/train?model=%E0%A4%A&gpus=%", "#/train?__proto__=1&model=x", "#/train/99?model=llama-3.1-8", "#/train?&&&=&=1",
)


def test_hostile_links_are_text_and_refused_in_a_sentence(opened: Opened) -> None:
    page = opened(HOSTILE_LINKS[0], wait=".start-verdict h2")
    for link in HOSTILE_LINKS:
        said = ".start-verdict h2"
        if link != HOSTILE_LINKS[0]:
            said = ".notice .error"
            go(page, "#/oom")
            page.wait_for_selector(".page-oom .log")
            go(page, link)
        page.wait_for_selector(said)
        assert page.locator(said).inner_text(), link
        assert page.evaluate("document.querySelectorAll('#main img, #main script').length") == 0


def test_the_copied_link_and_command_hold_the_question(opened: Opened, server: str) -> None:
    page = opened(view("train", TRAIN["numbers"]), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("() => document.querySelector('.below').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Copy command").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('vramcast train')")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == "vramcast train --params 7B --layers 32 --hidden 4096 --gpus a100-sxm4-80gb --compile"


@pytest.mark.parametrize("command", ["train", "serve"])
def test_files_and_reports_are_taken_away_and_files_go_with_their_question(opened: Opened, command: str) -> None:
    question = (TRAIN if command == "train" else SERVE)["fits"]
    page = opened(view(command, question))
    page.get_by_role("button", name="Configuration files").click()
    page.wait_for_selector(".files li")
    first = page.locator(".files li").first
    first.locator("summary").click()
    name = first.locator("summary").inner_text()
    assert downloaded(page, f"Download {name}") == first.locator("pre").inner_text()
    size = asked(command, question)["needed_bytes"]
    for button, begins in (("Report (HTML)", "<!doctype html>"), ("Report (Markdown)", "#")):
        text = downloaded(page, button)
        assert text.lower().startswith(begins)
        assert f"{size / 2**30:.2f} GiB" in text
    page.locator("[name=tp]").fill("2")
    page.wait_for_function("() => !document.querySelector('.files')")


def test_each_page_keeps_its_question_while_another_is_looked_at(opened: Opened) -> None:
    page = opened(view("train", TRAIN["pipeline"]))
    page.get_by_role("link", name="Serve").click()
    page.wait_for_function("() => location.hash.startsWith('#/serve?')")
    page.get_by_role("link", name="Train").click()
    page.wait_for_selector(".page-train .verdict")
    assert page.evaluate("location.hash") == view("train", TRAIN["pipeline"])
