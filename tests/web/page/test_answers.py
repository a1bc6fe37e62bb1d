"""Answers on the page are those of the library; changes, roles and entries do what they say."""

import json
import re
from collections import defaultdict
from typing import Any

import pytest

import vramcast
from vramcast.domain.verdict import Fit
from vramcast.report.messages import Words
from vramcast.report.sentences import TONES, word_of
from vramcast.report.text import trust

from .conftest import Opened, asked, comes_to, downloaded, go, needed, sizes, view, wait_for_needed

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
    "a size in the middle of two": {
        "model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "deepspeed", "shards": "everything",
        "seq-len": "4k", "offload-optimizer": "cpu",
    },
}
SERVE = {
    "fits": {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "8k", "concurrency": "8"},
    "too many": {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "32k", "concurrency": "64"},
    "llama.cpp": {
        "model": "qwen3-8b", "gpus": "rtx-4090", "engine": "llama.cpp", "weights": "q4_k_m", "context": "16k",
    },
    "search": {"model": "llama-3.1-70b", "gpus": "l40s", "context": "8k", "find": "fewest-gpus"},
}
ASKED = {"train": TRAIN, "serve": SERVE}

VERDICTS: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "train": (
        {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan"}, "seq-len",
        ("8k", "9k", "11k", "12k"),
    ),
    "serve": ({"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb"}, "memory-fraction", ("0.9", "0.95", "0.977", "0.98")),
}
"""Command -> a question, an option of it, and the values of that which lead to each verdict."""


@pytest.mark.parametrize("command", ASKED)
def test_the_page_shows_the_answers_of_the_library(opened: Opened, command: str) -> None:
    page = opened(view(command, VERDICTS[command][0]))
    for question in ASKED[command].values():
        expected = asked(command, question)
        go(page, view(command, question))
        # first of all: two questions may need the same memory, and the page shows the last answer until the next comes
        comes_to(page, lambda: json.loads(downloaded(page, "Answer (JSON)")), expected)
        assert page.locator(".needed b").inner_text() == needed(expected)
        assert page.locator(".verdict h2 .word").text_content() == expected["verdict"]
        device = expected["ranks"][0]["peak"]["device_bytes"]
        assert page.locator(".line.total .number").inner_text() == sizes(device)(device)
        assert page.locator(".roles .role").count() == len(expected["ranks"])
        sums: dict[str, int] = defaultdict(int)
        for entry in expected["ranks"][0]["ledger"]:
            sums[entry["path"].partition("/")[0]] += entry["bytes"]
        lines = page.locator(".ledger .line-1 .number").all_inner_texts()
        written = [sizes(device)(size) for size in sums.values() if size]
        assert sorted(line for line in lines if "%" not in line) == sorted(written)
        for text in (*expected["assumptions"], *expected["warnings"]):
            assert page.locator(".texts li").get_by_text(text, exact=True).count() >= 1
        badges = [(one.text_content(), one.get_attribute("class")) for one in page.locator(".part table .badge").all()]
        assert badges == [(one["verdict"], f"badge {TONES[Fit(one['verdict'])]}") for one in expected.get("tried", ())]


@pytest.mark.parametrize(("command", "locale"), [("train", "en-US"), ("serve", "zh-CN")])
def test_a_verdict_is_one_word_and_one_tone_wherever_it_stands(opened: Opened, command: str, locale: str) -> None:
    words = Words(locale[:2])
    question, option, values = VERDICTS[command]
    page = opened(view(command, question), locale=locale)
    for fit, value in zip(Fit, values, strict=True):
        one = question | {option: value}
        assert asked(command, one)["verdict"] == fit
        go(page, view(command, one, one))
        answer = getattr(vramcast, command)(**{name.replace("-", "_"): value for name, value in one.items()})
        word, tone = word_of(fit, words), TONES[fit]
        badges = page.locator(f".plans .badge.{tone}, .compare .badge.{tone}")
        comes_to(page, badges.all_text_contents, [word] * 4)  # the replies to both come one after the other
        comes_to(page, page.locator(f".verdict.{tone} h2 .word").all_text_contents, [word])
        comes_to(page, page.locator(f".glance.{tone} b").all_text_contents, [word])
        page.wait_for_function("word => document.getElementById('said').textContent.startsWith(word)", arg=word)
        comes_to(page, page.locator(".verdict .trust").text_content, trust(answer, answer.fullest.likest, words))


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


def test_bars_of_all_roles_end_where_they_do_in_one_order_and_each_shows_its_ledger(opened: Opened) -> None:
    question = TRAIN["pipeline"] | {"pp": "8", "tp": "2", "global-batch": "64"}
    page = opened(view("train", question))
    expected = asked("train", question)
    page.wait_for_selector(".role-bar svg")
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.role .bar')].map((bar) => ({
          capacity: +bar.querySelector('.capacity').getAttribute('x1'),
          kinds: [...bar.querySelectorAll('.cat')].map((rect) => rect.getAttribute('class')),
          end: Math.max(...[...bar.querySelectorAll('.cat')].map((rect) =>
            +rect.getAttribute('x') + +rect.getAttribute('width'))) }))"""
    )
    longest = sorted((bar["kinds"] for bar in drawn), key=len, reverse=True)
    order = list(dict.fromkeys(kind for kinds in longest for kind in kinds))
    assert len(drawn) > 2
    for rank, bar in zip(expected["ranks"], drawn, strict=True):
        share = rank["peak"]["device_bytes"] / expected["capacity_bytes"]
        assert bar["end"] / bar["capacity"] == pytest.approx(share, rel=1e-3)
        assert bar["kinds"] == [kind for kind in order if kind in bar["kinds"]]
    third = page.locator(".roles .role").nth(2)
    third.click()
    assert third.get_attribute("aria-pressed") == "true"
    device = expected["ranks"][2]["peak"]["device_bytes"]
    assert page.locator(".line.total .number").inner_text() == sizes(device)(device)
    labels = page.locator(".bar-label").all_text_contents()
    assert labels and all(re.fullmatch(r"[\w, -]+ (< )?\d+\.\d GiB", label) for label in labels)


@pytest.mark.parametrize(("command", "name"), [("train", "does not fit"), ("serve", "too many")])
def test_a_change_is_applied_and_back_undoes_it(opened: Opened, command: str, name: str) -> None:
    question = ASKED[command][name]
    page = opened(view(command, question))
    change = asked(command, question)["changes"][0]
    before = page.locator(".needed b").inner_text()
    page.get_by_role("button", name=f"Apply {change['name']} {change['change']}", exact=True).click()
    applied = {name: str(value) for name, value in change["apply"].items() if value is not None}
    changed = asked(command, {name: text for name, text in question.items() if name not in change["apply"]} | applied)
    page.wait_for_selector(f".verdict.{TONES[changed['verdict']]}")
    wait_for_needed(page, needed(changed))
    for name, value in applied.items():
        assert f"{name}={value}" in page.evaluate("decodeURIComponent(location.hash)")
    page.go_back()
    wait_for_needed(page, before)
    assert page.evaluate("location.hash") == view(command, question)
    best = next(change for change in asked(command, question)["changes"] if change["fits"])
    cure = page.locator(".make-fit button")
    assert cure.inner_text() == f"Make it fit: {best['name']}"
    cure.click()
    page.wait_for_selector(f".verdict.{TONES[best['verdict']]}")
    assert page.locator(".make-fit").count() == 0


def test_a_change_has_the_verdict_on_what_it_leads_to_before_its_cost(opened: Opened) -> None:
    question = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq-len": "20k"}
    page = opened(view("train", question))
    verdicts = [change["verdict"] for change in asked("train", question)["changes"]]
    assert len(set(verdicts)) > 2
    badges = page.locator(".changes .badge")
    assert badges.all_inner_texts() == verdicts
    tones = [(badge.get_attribute("class") or "").removeprefix("badge ") for badge in badges.all()]
    assert tones == [TONES[Fit(verdict)] for verdict in verdicts]
    assert page.evaluate("""[...document.querySelectorAll('.changes li')].every((row) =>
        row.querySelector('.badge').getBoundingClientRect().right
          <= row.querySelector(':scope > .soft').getBoundingClientRect().left)""")
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("""[...document.querySelectorAll('.after .badge')].every((badge) =>
        badge.getBoundingClientRect().right <= badge.closest('li').getBoundingClientRect().right)""")
    first = asked("train", question)["changes"][verdicts.index(Fit.MAY_RUN_OUT)]
    page.get_by_role("button", name=f"Apply {first['name']} {first['change']}", exact=True).click()
    page.wait_for_selector(".verdict.close")
    assert page.locator(".verdict h2 .word").text_content() == "may run out"


def test_answers_follow_what_is_typed_and_a_half_typed_question_keeps_the_last(opened: Opened) -> None:
    page = opened(view("train", TRAIN["fits"]))
    page.locator("[name=micro-batch]").fill("2")
    last = needed(asked("train", TRAIN["fits"] | {"micro-batch": "2"}))
    wait_for_needed(page, last)
    assert "micro-batch=2" in page.url
    field = page.locator("[name=seq-len]")
    field.fill("8q")
    page.wait_for_selector(".field.wrong")
    assert page.locator(".field.wrong .error").inner_text() == "seq-len='8q' must be a whole number such as 4096 or 8k"
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator(".needed b").inner_text() == last
    assert "last question" in page.locator(".old").inner_text()
    field.fill("8k")
    page.wait_for_function("() => !document.querySelector('.field.wrong')")
    assert page.locator(".old").inner_text() == ""


@pytest.mark.parametrize(
    ("question", "field"),
    [({"model": "llama-3.1-8", "gpus": "t4"}, "model"), ({"model": "llama-3.1-8b"}, "gpus"),
     ({"model": "llama-3.1-8b", "gpus": "7xh100", "pp": "7", "engine": "megatron"}, "pp")],
)
def test_the_first_answer_may_be_an_error(opened: Opened, question: dict[str, str], field: str) -> None:
    page = opened(view("train", question), wait=".notice .error")
    with pytest.raises(vramcast.errors.VramcastError) as refused:
        asked("train", question)
    assert page.locator(".notice .error").inner_text() == str(refused.value)
    assert page.locator(f"[name={field}]").get_attribute("aria-invalid") == "true"
    assert not page.locator(".verdict").count()


def test_an_older_answer_never_replaces_a_newer_one_and_a_server_that_is_gone_is_said(opened: Opened) -> None:
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
    page.unroute("**/api/train")

    busy = {"status": 503, "content_type": "application/json", "body": '{"error": "Busy", "message": "try again"}'}
    page.route("**/api/train", lambda route: route.fulfill(**busy))
    page.locator("[name=seq-len]").fill("1024")
    page.wait_for_selector(".question .error:not([hidden])")
    assert page.locator("[name=seq-len]").input_value() == "1024"
    page.unroute("**/api/train")
    page.locator("[name=micro-batch]").fill("2")
    page.wait_for_function("() => !document.querySelector('.question .error:not([hidden])')")


def placeholders(page: Any, *names: str) -> dict[str, str]:
    return {name: page.locator(f"[name={name}]").get_attribute("placeholder") for name in names}


@pytest.mark.parametrize(("locale", "stored"), [("en-US", "as stored"), ("zh-CN", "原样")])
def test_fields_left_alone_show_what_a_deployment_took_for_them(opened: Opened, locale: str, stored: str) -> None:
    page = opened(view("serve", SERVE["fits"]), locale=locale)
    expected = asked("serve", SERVE["fits"])
    assert placeholders(page, "input-len", "output-len", "weights", "memory-fraction") == {
        "input-len": str(expected["time"]["prompt_tokens"]),
        "output-len": str(expected["time"]["answer_tokens"]),
        "weights": stored,
        "memory-fraction": str(expected["question"]["plan"]["memory_fraction"]),
    }
    page.locator("[name=memory-fraction]").fill("0.8")
    page.locator("[name=memory-fraction]").fill("")
    comes_to(page, lambda: placeholders(page, "memory-fraction"), {"memory-fraction": "0.9"})
    question = {"model": "qwen2.5-vl-7b", "gpus": "h100", "engine": "sglang", "context": "8k"}
    go(page, view("serve", question))
    answer = asked("serve", question)
    wait_for_needed(page, needed(answer))
    shown = placeholders(page, "memory-fraction")["memory-fraction"]
    assert float(shown) == pytest.approx(answer["question"]["plan"]["memory_fraction"], abs=1e-4)
    assert len(shown) <= len("0.1234")


def test_a_choice_that_the_question_cannot_have_says_what_to_set_with_it_and_sets_it(opened: Opened) -> None:
    question = {"model": "llama-3.1-8b", "gpus": "2xa100-sxm4-80gb"}
    page = opened(view("train", question))
    page.wait_for_selector(".verdict")
    page.locator("[name=precision]").hover()
    page.wait_for_function("() => document.querySelector('[name=precision] [value=fp8]').disabled")
    said = page.locator("[name=precision] [value=fp16]").text_content()
    assert said == "fp16 – with Engine pytorch"
    page.select_option("[name=precision]", "fp16")
    wait_for_needed(page, needed(asked("train", question | {"engine": "pytorch", "precision": "fp16"})))
    go(page, view("train", question | {"precision": "tf32"}, question))  # a link may ask it all the same
    page.get_by_role("button", name="Set Engine pytorch").wait_for()
    assert "not in tf32" in page.locator(".compare .reason").inner_text()
    page.get_by_role("button", name="Set Engine pytorch").click()
    wait_for_needed(page, needed(asked("train", question | {"engine": "pytorch", "precision": "tf32"})))


def test_verdicts_over_two_options_and_the_memory_of_the_step_open_under_an_answer(opened: Opened) -> None:
    question = {"model": "llama-3.1-8b", "gpus": "2xa100-sxm4-80gb"}
    page = opened(view("train", question))
    page.get_by_text("By micro-batch and sequence").click()
    place = page.get_by_role("button", name="Micro-batch 2, Sequence length 2,048")
    place.wait_for()
    assert page.locator(".heat [aria-current]").get_attribute("title") == "Micro-batch 1, Sequence length 4,096"
    there = asked("train", question | {"micro-batch": "2", "seq-len": "2048"})
    assert place.inner_text().split("\n") == [needed(there), there["verdict"]]
    place.click()
    wait_for_needed(page, needed(there))
    page.get_by_text("Memory over the step").click()
    page.wait_for_selector(".blocks")
    assert "communication" in page.locator(".legend").last.inner_text()
    page.locator("[name=seq-len]").fill("1024")  # what was opened stays so
    page.get_by_role("button", name="Micro-batch 2, Sequence length 256").wait_for()
    go(page, view("serve", {"model": "llama-3.1-70b", "gpus": "2xh100-sxm-80gb", "context": "8k"}))
    page.get_by_text("By weights and card").click()
    page.get_by_role("button", name="Weights stored as awq-int4, 2 × L40S").click()
    page.wait_for_function("() => location.hash.includes('2xl40s') && location.hash.includes('awq-int4')")
