"""The page for everybody: two languages, light and dark, keyboard, screen reader, phone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Opened
from .test_answers import SERVE, TRAIN, view

PHONE = {"width": 390, "height": 844}
SERIOUS = ("serious", "critical")

VIEWS = {
    "fits": view("train", TRAIN["fits"]),
    "does not fit": view("train", TRAIN["does not fit"]),
    "pipeline": view("train", TRAIN["pipeline"]),
    "serving": view("serve", SERVE["too many"]),
    "search": view("serve", SERVE["search"]),
    "compared": view("train", TRAIN["fits"], TRAIN["pipeline"], TRAIN["offloaded, priced"]),
}


def violations(page: Any, axe: str) -> list[str]:
    """What axe finds serious, with the elements."""
    page.evaluate(axe)
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]} {node['failureSummary']}"
        for one in found if one["impact"] in SERIOUS for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Opened, axe: str, name: str, scheme: str) -> None:
    page = opened(VIEWS[name], color_scheme=scheme)
    page.locator(".ledger .line-1 .opens").first.click()
    page.locator(".ledger .line-2 .opens").first.click()
    for group in page.locator(".group").all():
        group.evaluate("(node) => { node.open = true; }")
    assert violations(page, axe) == []


def test_axe_finds_nothing_serious_where_a_question_is_wrong_on_a_phone_in_chinese(opened: Opened, axe: str) -> None:
    page = opened(VIEWS["does not fit"], viewport=PHONE, locale="zh-CN")
    page.locator("[name=seq-len]").fill("8q")
    page.wait_for_selector(".field.wrong")
    page.locator("[name=model]").click()
    page.wait_for_selector("[role=option]")
    page.wait_for_timeout(1000)  # until the colours of an old answer have settled
    assert violations(page, axe) == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_phone_scrolls_down_only(opened: Opened, name: str) -> None:
    page = opened(VIEWS[name], viewport=PHONE)
    page.wait_for_selector(".role-bar svg")
    for button in page.locator(".ledger .line-1 .opens").all():
        button.click()
    for group in page.locator(".group").all():
        group.evaluate("(node) => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_phone_shows_the_verdict_at_its_foot_and_leads_there(opened: Opened) -> None:
    page = opened(VIEWS["does not fit"], viewport=PHONE)
    glance = page.locator(".glance")
    assert "does not fit" in glance.inner_text().lower()
    glance.click()
    page.wait_for_function("() => document.querySelector('.foot').hidden")
    assert page.locator(".verdict").evaluate("(node) => node.getBoundingClientRect().top") < PHONE["height"]


def test_the_language_is_the_browsers_until_one_is_chosen_and_then_remembered(opened: Opened) -> None:
    page = opened(VIEWS["does not fit"], locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert "放不下" in page.locator(".verdict h2").inner_text()
    assert "激活" in page.locator(".ledger").inner_text()
    before = page.evaluate("location.hash")
    page.locator("[data-key=language]").select_option("en")
    page.wait_for_function("() => document.querySelector('.verdict h2')?.textContent.includes('does not fit')")
    assert page.evaluate("location.hash") == before
    page.reload()
    page.wait_for_selector(".verdict")
    assert "does not fit" in page.locator(".verdict h2").inner_text().lower()


def test_a_chinese_page_is_chinese(opened: Opened) -> None:
    page = opened(VIEWS["compared"], locale="zh-CN")
    parts = "#top, .answered h2, .buttons, .figures dt, .question label:not(.mono), summary"
    names = page.locator(parts).all_inner_texts()
    english = {"English", "vramcast", "MFU", "token", "s", "JSON", "HTML", "Markdown", "GiB", "KV"}
    words = {word for text in names for word in re.findall(r"[A-Za-z]{2,}", text)}
    assert words <= english, words - english


def test_every_word_is_there_in_both_languages_with_the_same_places(opened: Opened) -> None:
    words = opened().evaluate("async () => (await import('/words.js')).WORDS")
    for key, texts in words.items():
        assert set(texts) == {"en", "zh"}, key
        assert set(re.findall(r"\{\w+\}", texts["en"])) == set(re.findall(r"\{\w+\}", texts["zh"])), key


def test_colours_follow_the_browser_until_some_are_chosen_and_then_remembered(opened: Opened) -> None:
    dark = "() => getComputedStyle(document.body).backgroundColor === 'rgb(16, 20, 25)'"
    page = opened(color_scheme="dark")
    assert page.evaluate(dark)
    page.emulate_media(color_scheme="light")
    assert not page.evaluate(dark)
    page.locator("[data-key=theme]").select_option("dark")
    assert page.evaluate(dark)
    page.reload()
    page.wait_for_selector(".verdict")
    assert page.evaluate(dark)


def test_a_question_is_asked_and_an_entry_opened_by_keyboard_alone(opened: Opened) -> None:
    page = opened(VIEWS["does not fit"])
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


def test_the_whole_list_opens_at_the_card_that_is_chosen(opened: Opened) -> None:
    page = opened(VIEWS["fits"])
    page.locator("[name=gpus]").click()
    chosen = page.locator("[role=option][aria-selected=true]")
    assert chosen.locator("span").inner_text() == "h100-sxm-80gb"
    inside = "(node) => node.offsetTop >= node.parentNode.scrollTop && node.offsetTop < node.parentNode.scrollTop + 300"
    assert chosen.evaluate(inside)


def test_escape_closes_suggestions_and_keeps_what_was_typed(opened: Opened) -> None:
    page = opened()
    model = page.locator("[name=model]")
    model.fill("qwen3")
    page.wait_for_selector("[role=option]")
    assert model.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert model.get_attribute("aria-expanded") == "false"
    assert model.input_value() == "qwen3"


def test_a_screen_reader_hears_the_verdict_once_it_has_settled(opened: Opened) -> None:
    page = opened(VIEWS["fits"])
    assert page.locator("#said").get_attribute("aria-live") == "polite"
    for text in ("32", "64", "128k"):
        page.locator("[name=seq-len]").fill(text)
    page.wait_for_function("() => document.getElementById('said').textContent.startsWith('does not fit')")


def test_no_style_or_script_stands_inside_the_document(opened: Opened) -> None:
    page = opened(VIEWS["compared"])
    inline = "() => document.querySelectorAll('[style], script:not([src]), style, [onclick]').length"
    assert page.evaluate(inline) == 0
