"""Answers on the page are those of the library; changes, roles and entries do what they say."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import vramcast
from vramcast.domain.answer import Fit
from vramcast.report.document import to_json
from vramcast.report.verdicts import TONES
from vramcast.units import format_bytes

from .conftest import Opened

TRAIN = {
    "fits": {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": "8k"},
    "does not fit": {"model": "llama-3.1-70b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq-len": "8k"},
    "pipeline": {
        "model": "llama-3.1-70b", "gpus": "4x8xh100-sxm-80gb", "engine": "megatron", "seq-len": "8k",
        "tp": "4", "pp": "4",
    },
    "offloaded, priced": {
        "model": "qwen3-8b", "gpus": "aws:p5.48xlarge", "engine": "deepspeed", "offload-optimizer": "cpu",
        "tokens": "1T",
    },
    "numbers": {"params": "7B", "layers": "32", "hidden": "4096", "gpus": "a100-sxm4-80gb", "compile": "true"},
}
SERVE = {
    "fits": {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "8k", "concurrency": "8"},
    "too many": {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "32k", "concurrency": "64"},
    "llama.cpp": {
        "model": "qwen3-8b", "gpus": "rtx-4090", "engine": "llama.cpp", "weights": "q4_k_m", "context": "16k",
    },
    "search": {"model": "llama-3.1-70b", "gpus": "l40s", "context": "8k", "find": "fewest-gpus"},
}


def view(command: str, *questions: dict[str, str], active: int = 1) -> str:
    """The address of questions."""
    texts = ("?" + "&".join(f"{name}={value}" for name, value in question.items()) for question in questions)
    return f"#/{command}" + (f"/{active}" if active > 1 else "") + "".join(texts)


def asked(command: str, question: dict[str, str]) -> dict[str, Any]:
    """The document of the same question, from the library."""
    words = {"true": True, "false": False}
    options = {name.replace("-", "_"): words.get(value, value) for name, value in question.items()}
    answer = (vramcast.train if command == "train" else vramcast.serve)(**options)
    document: dict[str, Any] = json.loads(to_json(answer, today=date.today()))
    return document


def needed(document: dict[str, Any]) -> str:
    """The memory of a document as the verdict shows it."""
    return f"{document['needed_bytes'] / 2**30:.1f} GiB"


def wait_for_needed(page: Any, text: str) -> None:
    """Until the verdict shows that memory."""
    page.wait_for_function("text => document.querySelector('.needed b').textContent === text", arg=text)


def downloaded(page: Any, button: str) -> str:
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(started.value.path()).read_text(encoding="utf-8")


CASES = [("train", name) for name in TRAIN] + [("serve", name) for name in SERVE]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_the_page_shows_the_answer_of_the_library(opened: Opened, command: str, name: str) -> None:
    question = (TRAIN if command == "train" else SERVE)[name]
    page = opened(view(command, question))
    expected = asked(command, question)
    said = page.locator(".verdict h2 .word").text_content()
    assert said == expected["verdict"]
    assert page.locator(".needed b").inner_text() == needed(expected)
    device = expected["ranks"][0]["peak"]["device_bytes"]
    assert page.locator(".line.total .number").inner_text() == format_bytes(device)
    assert page.locator(".roles .role").count() == len(expected["ranks"])
    for text in (*expected["assumptions"], *expected["warnings"]):
        assert page.locator(".texts li").get_by_text(text, exact=True).count() >= 1
    assert json.loads(downloaded(page, "Answer (JSON)")) == expected


def test_a_chinese_page_saves_the_document_that_the_command_line_prints(opened: Opened) -> None:
    question = TRAIN["does not fit"]
    page = opened(view("train", question), locale="zh-CN")
    expected = asked("train", question)
    assert json.loads(downloaded(page, "答案（JSON）")) == expected
    page.locator("[name=seq-len]").fill("8q")
    page.wait_for_selector(".field.wrong")
    assert json.loads(downloaded(page, "答案（JSON）")) == expected  # of the question that was answered


def test_a_category_opens_to_entries_and_an_entry_to_its_formula_and_source(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    rank = asked("train", TRAIN["fits"])["ranks"][0]
    entry = max((one for one in rank["ledger"] if one["path"].startswith("activations/")), key=lambda one: one["bytes"])
    page.locator(".ledger").get_by_role("button", name="activations").click()
    page.locator(f'[data-key="entry {entry["path"]}"]').click()
    behind = page.locator(".behind").inner_text()
    assert entry["formula"] in behind and entry["source"] in behind
    assert f"= {entry['bytes']:,} B" in behind
    page.locator(".ledger").get_by_role("button", name="smaller entries").click()
    shown = page.locator(".line-2").count()
    assert shown == sum(one["path"].startswith("activations/") and one["bytes"] > 0 for one in rank["ledger"])


def test_another_role_shows_its_own_ledger(opened: Opened) -> None:
    page = opened(view("train", TRAIN["pipeline"]))
    ranks = asked("train", TRAIN["pipeline"])["ranks"]
    page.locator(".roles .role").nth(2).click()
    assert page.locator(".roles .role").nth(2).get_attribute("aria-pressed") == "true"
    assert page.locator(".line.total .number").inner_text() == format_bytes(ranks[2]["peak"]["device_bytes"])


def test_every_bar_ends_where_its_role_does(opened: Opened) -> None:
    page = opened(view("train", TRAIN["pipeline"]))
    expected = asked("train", TRAIN["pipeline"])
    page.wait_for_selector(".role-bar svg")
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.role .bar')].map((bar) => ({
          capacity: +bar.querySelector('.capacity').getAttribute('x1'),
          end: Math.max(...[...bar.querySelectorAll('.cat')].map((rect) =>
            +rect.getAttribute('x') + +rect.getAttribute('width'))) }))"""
    )
    for rank, bar in zip(expected["ranks"], drawn, strict=True):
        share = rank["peak"]["device_bytes"] / expected["capacity_bytes"]
        assert bar["end"] / bar["capacity"] == pytest.approx(share, rel=1e-3)


def test_bars_of_all_roles_stack_in_one_order(opened: Opened) -> None:
    page = opened(view("train", TRAIN["pipeline"] | {"pp": "8", "tp": "2", "global-batch": "64"}))
    page.wait_for_selector(".role-bar svg")
    stacks = page.evaluate(
        """() => [...document.querySelectorAll('.role .bar')].map((bar) =>
          [...bar.querySelectorAll('.cat')].map((rect) => rect.getAttribute('class')))"""
    )
    order = [kind.get_attribute("class") for kind in page.locator(".legend .cat").all()]
    assert len(stacks) > 2
    for stack in stacks:
        assert stack == [kind for kind in order if kind in stack]


@pytest.mark.parametrize("command", ["train", "serve"])
def test_a_change_is_applied_and_back_undoes_it(opened: Opened, command: str) -> None:
    question = TRAIN["does not fit"] if command == "train" else SERVE["too many"]
    page = opened(view(command, question))
    change = asked(command, question)["changes"][0]
    before = page.locator(".needed b").inner_text()
    page.get_by_role("button", name=f"Apply {change['change']}", exact=True).click()
    applied = {name: str(value) for name, value in change["apply"].items() if value is not None}
    changed = asked(command, {name: text for name, text in question.items() if name not in change["apply"]} | applied)
    page.wait_for_selector(f".verdict.{TONES[changed['verdict']]}")
    wait_for_needed(page, needed(changed))
    for name, value in applied.items():
        assert f"{name}={value}" in page.evaluate("decodeURIComponent(location.hash)")
    page.go_back()
    wait_for_needed(page, before)
    assert page.evaluate("location.hash") == view(command, question)


def test_a_change_has_the_verdict_on_what_it_leads_to(opened: Opened) -> None:
    question = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq-len": "16k"}
    page = opened(view("train", question))
    expected = asked("train", question)
    verdicts = [change["verdict"] for change in expected["changes"]]
    assert len(set(verdicts)) > 2
    badges = page.locator(".changes .badge")
    assert badges.all_inner_texts() == verdicts
    tones = [(badge.get_attribute("class") or "").removeprefix("badge ") for badge in badges.all()]
    assert tones == [TONES[Fit(verdict)] for verdict in verdicts]
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("""[...document.querySelectorAll('.after .badge')].every((badge) =>
        badge.getBoundingClientRect().right <= badge.closest('li').getBoundingClientRect().right)""")
    first = expected["changes"][verdicts.index(Fit.MAY_RUN_OUT)]
    page.get_by_role("button", name=f"Apply {first['change']}", exact=True).click()
    page.wait_for_selector(".verdict.close")
    assert page.locator(".verdict h2 .word").text_content() == "may run out"


def test_answers_follow_what_is_typed(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.locator("[name=micro-batch]").fill("2")
    wait_for_needed(page, needed(asked("train", TRAIN["fits"] | {"micro-batch": "2"})))
    assert "micro-batch=2" in page.url


def test_a_half_typed_question_keeps_the_last_answer_and_says_why_at_its_field(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    before = page.locator(".needed b").inner_text()
    field = page.locator("[name=seq-len]")
    field.fill("8q")
    page.wait_for_selector(".field.wrong")
    assert page.locator(".field.wrong .error").inner_text() == "seq-len='8q' must be a whole number such as 4096 or 8k"
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator(".needed b").inner_text() == before
    assert "last question" in page.locator(".old").inner_text()
    field.fill("8k")
    page.wait_for_function("() => !document.querySelector('.field.wrong')")
    assert page.locator(".old").inner_text() == ""


@pytest.mark.parametrize(
    ("question", "field"),
    [({"model": "llama-3.1-8", "gpus": "t4"}, "model"), ({"model": "llama-3.1-8b", "gpus": "8xh1000"}, "gpus"),
     ({"model": "llama-3.1-8b", "gpus": "8xh100", "tp": "3"}, "tp"), ({"model": "llama-3.1-8b"}, "gpus"),
     ({"model": "llama-3.1-8b", "gpus": "8xh100", "pp": "7"}, "pp"),
     ({"model": "llama-3.1-8b", "gpus": "7xh100", "pp": "7", "engine": "megatron"}, "pp")],
)
def test_the_first_answer_may_be_an_error(opened: Opened, question: dict[str, str], field: str) -> None:
    page = opened(view("train", question), wait=".notice .error")
    with pytest.raises(vramcast.errors.VramcastError) as refused:
        asked("train", question)
    assert page.locator(".notice .error").inner_text() == str(refused.value)
    assert page.locator(f"[name={field}]").get_attribute("aria-invalid") == "true"
    assert not page.locator(".verdict").count()


def test_an_older_answer_never_replaces_a_newer_one(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    slow: list[Any] = []

    def held(route: Any) -> None:
        if '"seq-len":"4096"' in (route.request.post_data or ""):
            slow.append(route)
        else:
            route.continue_()

    page.route("**/api/train", held)
    page.locator("[name=seq-len]").fill("4096")
    while not slow:
        page.wait_for_timeout(20)
    page.locator("[name=seq-len]").fill("2048")
    shown = needed(asked("train", TRAIN["fits"] | {"seq-len": "2048"}))
    wait_for_needed(page, shown)
    slow[0].abort()
    page.wait_for_timeout(100)
    assert page.locator(".needed b").inner_text() == shown


def test_a_server_that_is_gone_is_said_and_the_question_kept(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    busy = {"status": 503, "content_type": "application/json", "body": '{"error": "Busy", "message": "try again"}'}
    page.route("**/api/train", lambda route: route.fulfill(**busy))
    page.locator("[name=seq-len]").fill("4096")
    page.wait_for_selector(".question .error:not([hidden])")
    assert page.locator("[name=seq-len]").input_value() == "4096"
    page.unroute("**/api/train")
    page.locator("[name=micro-batch]").fill("2")
    page.wait_for_function("() => !document.querySelector('.question .error:not([hidden])')")
