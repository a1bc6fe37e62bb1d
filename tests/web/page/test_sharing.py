"""The address holds the whole question; plans are compared; what is taken away is what was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast

from .conftest import Opened
from .test_answers import SERVE, TRAIN, asked, downloaded, needed, view, wait_for_needed

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
    page.wait_for_selector(".compare .badge[title*='tp=7']")
    figures = page.locator(".compare tr", has=page.locator("th:text-is('device')")).inner_text().split("\t")
    assert figures[1] != "–" and figures[2] == "–"
    page.locator(".tab button").first.click()  # another plan in front does not make it an answer
    assert page.locator(".tab", has_text="Plan B").locator(".badge").count() == 0
    assert page.locator(".compare .badge[title*='tp=7']").count() == 1


def test_a_link_of_more_plans_than_are_compared_shows_the_first_four(opened: Opened) -> None:
    page = opened(view("train", *[TRAIN["fits"] | {"micro-batch": str(count)} for count in range(1, 8)]))
    assert letters(page) == ["Plan A", "Plan B", "Plan C", "Plan D"]


HOSTILE_LINKS = (
    f"#/train?model={HOSTILE}&gpus=t4", f"#/train?model=llama-3.1-8b&gpus=t4&{HOSTILE}={HOSTILE}",
    f"#/train?model=llama-3.1-8b&gpus=t4&engine={HOSTILE}", "#/train?model=%E0%A4%A&gpus=%",
    "#/train?__proto__=1&model=x", "#/train/99?model=llama-3.1-8", f"#/{HOSTILE}?model=x", "#/train?&&&=&=1",
)


@pytest.mark.parametrize("link", HOSTILE_LINKS)
def test_a_hostile_link_is_text_and_refused_in_a_sentence(opened: Opened, link: str) -> None:
    page = opened(link, wait=".notice .error")
    assert page.locator(".notice .error").inner_text()
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


def test_the_command_of_a_hostile_link_is_harmless_in_a_shell(opened: Opened) -> None:
    page = opened()
    hostile = {
        "model": "$(id)", "gpus": "t4; id", "x;id|sh": "1", "report": "/etc/passwd", "__proto__": "1",
        "compile": "`id`",
    }
    kinds = {"model": "text", "gpus": "text", "compile": "flag", "seq-len": "count"}
    written = (
        "async ([question, kinds]) => (await import('/parts/take.js')).commandOf('train', JSON.parse(question), kinds)"
    )
    assert page.evaluate(written, [json.dumps(hostile), kinds]) == "vramcast train '$(id)' --gpus 't4; id' --compile"
    assert page.evaluate(written, ['{"model": "--report=/etc/passwd", "seq-len": "4k"}', kinds]) == (
        "vramcast train --seq-len 4k"
    )


@pytest.mark.parametrize("command", ["train", "serve"])
def test_configuration_files_and_reports_are_taken_away(opened: Opened, command: str) -> None:
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


def test_files_of_a_question_go_with_it(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.get_by_role("button", name="Configuration files").click()
    page.wait_for_selector(".files li")
    page.locator("[name=micro-batch]").fill("2")
    page.wait_for_function("() => !document.querySelector('.files')")


def test_each_page_keeps_its_question_while_another_is_looked_at(opened: Opened) -> None:
    page = opened(view("train", TRAIN["pipeline"]))
    page.get_by_role("link", name="Serve").click()
    page.wait_for_function("() => location.hash.startsWith('#/serve?')")
    page.get_by_role("link", name="Train").click()
    page.wait_for_selector(".page-train .verdict")
    assert page.evaluate("location.hash") == view("train", TRAIN["pipeline"])


NAMES = st.text(min_size=1, max_size=12).filter(lambda text: text != "__proto__")


def test_any_question_survives_its_address(opened: Opened) -> None:
    page = opened()
    there_and_back = """async (questions) => {
      const { parsed, written, questionOf, questionText } = await import('/hash.js');
      const route = { page: 'train', rest: [], queries: questions.map(questionText) };
      return parsed(new URL('#' + written(route).slice(1), location.href).hash).queries.map(questionOf);
    }"""

    @settings(max_examples=60)
    @given(st.lists(st.dictionaries(NAMES, st.text(min_size=1, max_size=20)), min_size=1, max_size=4))
    def survives(questions: list[dict[str, str]]) -> None:
        whole = json.loads(json.dumps(questions).encode("utf-8", "surrogatepass"))
        assert page.evaluate(there_and_back, whole) == whole

    survives()


def test_gpus_are_read_and_written_as_the_command_line_does(opened: Opened) -> None:
    page = opened()
    texts = ["t4", "8xh100", "2x8xh100-sxm-80gb", "aws:p5.48xlarge", "4xaws:p5.48xlarge", "1xl40s", "rtx-4090"]
    again = page.evaluate(
        "async (texts) => { const { gpusOf, gpusText } = await import('/parts/gpus_field.js');"
        " return texts.map((text) => gpusText(gpusOf(text))); }", texts
    )
    assert again == texts
    assert page.evaluate(
        "async () => (await import('/parts/gpus_field.js')).gpusText({ machines: '2', each: '', card: 'h100' })"
    ) == "2x1xh100"
    assert vramcast.train("llama-3.2-1b", gpus="2x1xh100").question["gpus"].startswith("2x1x")
