"""Searches on the page: their plans are the library's, lead to the pages train and serve, and say why nothing fits."""

import json
from typing import Any

import pytest

from vramcast.report.sentences import TONES

from .conftest import Opened, asked, downloaded, needed, view, wait_for_needed

pytest.importorskip("numpy", reason="a search over training plans needs NumPy")

TRAIN = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb,2xl40s", "seq-len": "4k", "engine": "torchtitan"}
SERVE = {"model": "llama-3.1-70b", "on": "8xh100-sxm-80gb,8xl40s", "context": "8k", "concurrency": "16"}
MANY = SERVE | {"on": "8xh100-sxm-80gb,8xl40s,4xh100-sxm-80gb,8xa100-sxm4-80gb,4xh200"}
NOTHING = {"model": "llama-3.1-70b", "on": "2xrtx-4090", "engine": "torchtitan"}
FORM = ".primary"
FOUND = ".verdict"
PLANS = ".data tbody tr[data-row]"


def search(opened: Opened, command: str, question: dict[str, str], **settings: Any) -> Any:
    """The page once it has found something."""
    page = opened(view(f"plan/{command}", question), wait=FORM, **settings)
    page.locator(FORM).click()
    page.wait_for_selector(FOUND)
    return page


@pytest.mark.parametrize(("command", "question"), [("train", TRAIN), ("serve", SERVE)], ids=["train", "serve"])
def test_a_search_shows_the_plans_of_the_library_and_each_opens_as_its_question(
    opened: Opened, command: str, question: dict[str, str]
) -> None:
    page = search(opened, command, question)
    expected = asked(f"plan {command}", question)
    best = expected["plans"][0]
    assert page.locator(".best-plan").inner_text() == expected["labels"][0]
    rows = page.locator(PLANS)
    assert [row.get_attribute("data-row") for row in rows.all()] == expected["labels"]
    assert page.locator(f".verdict.{TONES[best['verdict']]} .badge").inner_text() == best["verdict"]
    for text, plan in zip(rows.all_inner_texts(), expected["plans"], strict=True):
        assert needed(plan) in text
    for reason in expected["reasons"]:
        assert page.get_by_text(reason, exact=True).count() == 1
    assert json.loads(downloaded(page, "Answer (JSON)"))["labels"] == expected["labels"]
    if command == "serve":  # fields left alone say what was looked at and nothing of what was varied
        shown = {
            "engine": "vllm", "weights": "as stored, fp8", "input-len": str(best["time"]["prompt_tokens"]),
            "output-len": str(best["time"]["answer_tokens"]), "memory-fraction": "0.9", "tp": "default",
        }
        assert {name: page.locator(f"[name={name}]").get_attribute("placeholder") for name in shown} == shown
        picture(page, expected)
    rows.last.get_by_role("link").click()
    page.wait_for_selector(f".page-{command} .verdict")
    wait_for_needed(page, needed(expected["plans"][-1]))
    page.go_back()
    page.wait_for_selector(".best-plan")  # what was found is still there


def picture(page: Any, expected: dict[str, Any]) -> None:
    """It has every plan, and a point chosen by keyboard marks its row."""
    points = {point["what"]: point for point in expected["front"]}
    page.wait_for_selector(".plan-point")  # drawn once its place has a width
    drawn = {point.get_attribute("data-label") for point in page.locator(".plan-point").all()}
    assert drawn == {*expected["labels"], *points}
    best = page.locator(".plan-point.best").first
    best.focus()
    label = best.get_attribute("data-label")
    assert label in page.locator(".told").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("tr.chosen").get_attribute("data-row") == label
    page.locator("[data-key='front gpus']").click()
    assert page.locator("[data-key='front gpus']").get_attribute("aria-pressed") == "true"
    for name in [point.get_attribute("data-label") for point in page.locator(".plan-point.best").all()]:
        assert name not in points or not any(
            other["gpus"] <= points[name]["gpus"] and other["tokens_per_s"] > points[name]["tokens_per_s"]
            for other in points.values()
        )


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


def test_plans_that_live_on_memory_given_back_are_marked(opened: Opened) -> None:
    question = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb", "seq-len": "4k", "engine": "megatron",
                "global-batch": "512"}
    page = search(opened, "train", question)
    gives = [any(rank.get("gives_back_cache") for rank in plan["ranks"])
             for plan in asked("plan train", question)["plans"]]
    assert ["GiB*" in row for row in page.locator(PLANS).all_inner_texts()] == gives


def test_where_nothing_fits_the_nearest_plan_and_a_change_stand_there(opened: Opened) -> None:
    page = search(opened, "train", NOTHING)
    expected = asked("plan train", NOTHING)
    assert not expected["plans"]
    assert "No plan fits" in page.locator(".verdict").inner_text()
    assert expected["nearest_label"] in page.locator(".body").inner_text()
    if "change" in expected:
        button = page.locator(".change .apply")
        assert button.inner_text() == expected["change"]["change"]
        before = page.url
        button.click()
        page.wait_for_function("before => location.href !== before", arg=before)


def test_a_search_is_called_off_completed_and_a_wrong_question_blamed_on_its_field(opened: Opened) -> None:
    page = opened(view("plan/train", TRAIN), wait=FORM)
    page.route("**/api/plan/train", lambda route: None)
    page.locator(FORM).click()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_function("() => document.querySelector('.notice').textContent.includes('Called off')")
    assert page.locator("[name=model]").input_value() == TRAIN["model"]
    page.unroute("**/api/plan/train")

    said = "a search over training plans needs NumPy, which this page does not have; ask the command line"
    body = json.dumps({"error": "Unsupported", "message": said})
    page.route("**/api/plan/train", lambda route: route.fulfill(status=422, content_type="application/json", body=body))
    page.locator(FORM).click()
    page.wait_for_selector(".error-box pre")
    assert said in page.locator(".error-box").inner_text()
    assert page.locator(".error-box pre").inner_text() == (
        "vramcast plan train llama-3.2-1b --on 2xa100-sxm4-80gb,2xl40s --seq-len 4k --engine torchtitan"
    )
    page.unroute("**/api/plan/train")

    field = page.locator("[name=on]")
    field.fill("8xh100-sxm-80gb,4xb200")
    page.wait_for_selector("[role=option]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert field.input_value().startswith("8xh100-sxm-80gb,4xb200-")
    assert "on=8xh100-sxm-80gb,4xb200-" in page.url
    field.fill("8xh1000")
    page.keyboard.press("Escape")  # the suggestions
    page.locator(FORM).click()
    page.wait_for_selector("[name=on][aria-invalid=true]")
    field.fill("")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.error-box')?.textContent.includes('give --on')")
    field.fill(TRAIN["on"])
    page.keyboard.press("Escape")
    page.locator(FORM).click()
    page.wait_for_selector(FOUND)


def test_a_long_search_shows_meanwhile_what_it_has_found(opened: Opened) -> None:
    page = opened(view("plan/train", {"model": "llama-3.1-8b", "on": "aws", "max-gpus": "64"}), wait=FORM)
    page.locator(FORM).click()
    page.wait_for_function("() => document.querySelectorAll('.body tbody tr').length > 1")
    assert "cheapest first" in page.locator(".body").inner_text()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_function("() => document.querySelector('.notice').textContent.includes('Called off')")
    assert page.locator(".body tbody tr").count() > 1  # they stay
    page.locator(".body tbody a").first.click()
    page.wait_for_selector(".page-train .verdict")


def test_an_inverse_question_comes_to_one_plan(opened: Opened) -> None:
    question = {"model": "llama-3.2-1b", "on": "2xa100-sxm4-80gb", "find": "largest-batch", "engine": "torchtitan"}
    page = search(opened, "train", question)
    assert page.locator(".found").inner_text()
    assert page.locator(".ledger .line-1").count()
