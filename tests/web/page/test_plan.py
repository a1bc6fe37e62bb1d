"""Searches on the page: their plans are the library's, lead to the pages train and serve, and say why nothing fits."""

from __future__ import annotations

import json
from typing import Any

import pytest

import vramcast
from vramcast.report.verdicts import TONES

from .conftest import Opened
from .test_answers import downloaded, needed, wait_for_needed

pytest.importorskip("numpy", reason="a search over training plans needs NumPy")

TRAIN = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb,2xl40s", "seq-len": "4k", "engine": "torchtitan"}
SERVE = {"model": "llama-3.1-70b", "on": "8xh100-sxm-80gb,8xl40s", "context": "8k", "concurrency": "16"}
MANY = SERVE | {"on": "8xh100-sxm-80gb,8xl40s,4xh100-sxm-80gb,8xa100-sxm4-80gb,4xh200"}
NOTHING = {"model": "llama-3.1-70b", "on": "2xrtx-4090", "engine": "torchtitan"}
FORM = ".primary"
FOUND = ".verdict"


def view(command: str, question: dict[str, str]) -> str:
    return f"#/plan/{command}?" + "&".join(f"{name}={value}" for name, value in question.items())


def searched(command: str, question: dict[str, str]) -> dict[str, Any]:
    """The document of the same search, from the library."""
    from vramcast.report.plan_document import to_json

    options: dict[str, Any] = {name.replace("-", "_"): value for name, value in question.items()}
    found: Any = vramcast.plan(command, **options)
    document: dict[str, Any] = json.loads(to_json(found))
    return document


def search(opened: Opened, command: str, question: dict[str, str], **settings: Any) -> Any:
    """The page once it has found something."""
    page = opened(view(command, question), wait=FORM, **settings)
    page.locator(FORM).click()
    page.wait_for_selector(FOUND)
    return page


@pytest.mark.parametrize(("command", "question"), [("train", TRAIN), ("serve", SERVE)], ids=["train", "serve"])
def test_a_search_shows_the_plans_of_the_library_best_first(
    opened: Opened, command: str, question: dict[str, str]
) -> None:
    page = search(opened, command, question)
    expected = searched(command, question)
    assert page.locator(".best-plan").inner_text() == expected["labels"][0]
    rows = page.locator(".data tbody tr[data-row]")
    assert [row.get_attribute("data-row") for row in rows.all()] == expected["labels"]
    best = expected["plans"][0]
    assert page.locator(f".verdict.{TONES[best['verdict']]} .badge").inner_text() == best["verdict"]
    memory = [row.inner_text() for row in rows.all()]
    for text, plan in zip(memory, expected["plans"], strict=True):
        assert needed(plan) in text
    for reason in expected["reasons"]:
        assert page.get_by_text(reason, exact=True).count() == 1
    assert json.loads(downloaded(page, "Answer (JSON)"))["labels"] == expected["labels"]


@pytest.mark.parametrize(("command", "question"), [("train", TRAIN), ("serve", SERVE)], ids=["train", "serve"])
def test_a_plan_opens_as_the_whole_question_and_comes_to_the_same(
    opened: Opened, command: str, question: dict[str, str]
) -> None:
    page = search(opened, command, question)
    plan = searched(command, question)["plans"][-1]
    page.locator(".data tbody tr[data-row]").last.get_by_role("link").click()
    page.wait_for_selector(f".page-{command} .verdict")
    wait_for_needed(page, needed(plan))
    page.go_back()
    page.wait_for_selector(".best-plan")  # what was found is still there


def test_plans_are_marked_and_compared_side_by_side(opened: Opened) -> None:
    page = search(opened, "serve", MANY)
    boxes = page.locator(".data input[type=checkbox]")
    for index in range(4):
        boxes.nth(index).check()
    assert boxes.nth(4).is_disabled()
    boxes.nth(3).uncheck()
    page.get_by_role("link", name="Compare these 3 plans").click()
    page.wait_for_selector(".compare")
    assert page.locator(".tab").count() == 3


def test_the_picture_has_every_plan_and_a_point_chosen_by_keyboard_marks_its_row(opened: Opened) -> None:
    page = search(opened, "serve", SERVE)
    expected = searched("serve", SERVE)
    labels = set(expected["labels"]) | {point["what"] for point in expected["front"]}
    page.wait_for_selector(".plan-point")  # drawn once its place has a width
    points = page.locator(".plan-point")
    assert {point.get_attribute("data-label") for point in points.all()} == labels
    best = page.locator(".plan-point.best").first
    best.focus()
    label = best.get_attribute("data-label")
    assert label in page.locator(".told").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("tr.chosen").get_attribute("data-row") == label
    page.locator("[data-key='front gpus']").click()
    assert page.locator("[data-key='front gpus']").get_attribute("aria-pressed") == "true"
    fronts = [point.get_attribute("data-label") for point in page.locator(".plan-point.best").all()]
    front = [next(point for point in expected["front"] if point["what"] == name) for name in fronts
             if name in {point["what"] for point in expected["front"]}]
    for one in front:
        assert not any(
            other["gpus"] <= one["gpus"] and other["tokens_per_s"] > one["tokens_per_s"] for other in expected["front"]
        )


def test_plans_that_live_on_memory_given_back_are_marked(opened: Opened) -> None:
    question = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb", "seq-len": "4k", "engine": "megatron",
                "global-batch": "512"}
    page = search(opened, "train", question)
    gives = [any(rank.get("gives_back_cache") for rank in plan["ranks"])
             for plan in searched("train", question)["plans"]]
    rows = page.locator(".data tbody tr[data-row]").all_inner_texts()
    assert ["GiB*" in row for row in rows] == gives


def test_where_nothing_fits_the_nearest_plan_and_a_change_stand_there(opened: Opened) -> None:
    page = search(opened, "train", NOTHING)
    expected = searched("train", NOTHING)
    assert not expected["plans"]
    assert "No plan fits" in page.locator(".verdict").inner_text()
    assert expected["nearest_label"] in page.locator(".body").inner_text()
    if "change" in expected:
        button = page.locator(".change .apply")
        assert button.inner_text() == expected["change"]["change"]
        before = page.url
        button.click()
        page.wait_for_function("before => location.href !== before", arg=before)


def test_a_search_is_called_off_and_the_question_kept(opened: Opened) -> None:
    page = opened(view("train", TRAIN), wait=FORM)
    page.route("**/api/plan/train", lambda route: None)
    page.locator(FORM).click()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_function("() => document.querySelector('.notice').textContent.includes('Called off')")
    assert page.locator("[name=model]").input_value() == TRAIN["model"]
    page.unroute("**/api/plan/train")
    page.locator(FORM).click()
    page.wait_for_selector(FOUND)


def test_a_wrong_question_is_blamed_on_its_field(opened: Opened) -> None:
    page = opened(view("train", TRAIN | {"on": "8xh1000"}), wait=FORM)
    page.locator(FORM).click()
    page.wait_for_selector(".error-box")
    assert page.locator("[name=on]").get_attribute("aria-invalid") == "true"
    page.locator("[name=on]").fill("")
    page.keyboard.press("Escape")  # the suggestions
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.error-box')?.textContent.includes('give --on')")


def test_where_numpy_is_missing_the_command_line_is_named(opened: Opened) -> None:
    page = opened(view("train", TRAIN), wait=FORM)
    said = "a search over training plans needs NumPy, which this page does not have; ask the command line"
    body = json.dumps({"error": "Unsupported", "message": said})
    page.route("**/api/plan/train", lambda route: route.fulfill(status=422, content_type="application/json", body=body))
    page.locator(FORM).click()
    page.wait_for_selector(".error-box pre")
    assert said in page.locator(".error-box").inner_text()
    assert page.locator(".error-box pre").inner_text() == (
        "vramcast plan train llama-3.2-1b --on 2xa100-sxm4-80gb,2xl40s --seq-len 4k --engine torchtitan"
    )


def test_an_inverse_question_comes_to_one_plan(opened: Opened) -> None:
    question = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb", "find": "largest-batch", "engine": "torchtitan"}
    page = search(opened, "train", question)
    assert page.locator(".found").inner_text()
    assert page.locator(".ledger .line-1").count()


def test_suggestions_complete_the_card_that_is_typed(opened: Opened) -> None:
    page = opened(view("train", TRAIN), wait=FORM)
    field = page.locator("[name=on]")
    field.fill("8xh100-sxm-80gb,4xb200")
    page.wait_for_selector("[role=option]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert field.input_value().startswith("8xh100-sxm-80gb,4xb200-")
    assert "on=8xh100-sxm-80gb,4xb200-" in page.url


def test_labels_are_read_as_options(opened: Opened) -> None:
    page = opened("#/gpus", wait=".data")
    read = page.evaluate(
        "async (label) => (await import('/plan_question.js')).optionsIn(label)",
        "--gpus 8xh100 --compile --alloc-conf a:1",
    )
    assert read == {"gpus": "8xh100", "compile": "true", "alloc-conf": "a:1"}
    whole = page.evaluate(
        "async ([asked, found, names]) => (await import('/plan_question.js')).planQuestion(asked, found, names)",
        [{"model": "m", "tp": "1,2,4", "zero": "1", "on": "h100", "seq-len": "8k"}, {"shards": "nothing", "gpus": "t4"},
         ["model", "tp", "zero", "shards", "seq-len", "gpus"]],
    )
    assert whole == {"model": "m", "seq-len": "8k", "shards": "nothing", "gpus": "t4"}
