"""What stands beside each other does not meet, on a phone and on a desk; sizes read as the command line prints them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from vramcast.report.written.html import html
from vramcast.report.written.parts import Report, Section, Table
from vramcast.units import format_bytes

from .conftest import Opened
from .test_access import PHONE
from .test_answers import asked, view
from .test_recordings import LOG, shown
from .test_recordings import asked as diagnosed

Sides = tuple[float, float, float, float]


def sides(page: Any, selector: str) -> list[Sides]:
    """Left, right, top and bottom of all elements."""
    box = "({ left, right, top, bottom }) => [left, right, top, bottom]"
    found = page.locator(selector).evaluate_all(f"all => all.map(one => one.getBoundingClientRect()).map({box})")
    return [tuple(box) for box in found]


def meet(one: Sides, other: Sides) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def test_names_of_marks_close_by_do_not_meet(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz", viewport=PHONE)
    page.wait_for_selector(".mark.failure text")
    one, other = sides(page, ".mark text")
    assert not meet(one, other)


def test_a_button_beside_a_long_setting_keeps_its_word_whole(opened: Opened) -> None:
    page = diagnosed(opened, LOG, viewport=PHONE, locale="zh-CN")
    heights = page.locator(".setting .link").evaluate_all("nodes => nodes.map(node => node.offsetHeight)")
    assert len(heights) > 3 and len(set(heights)) == 1


def test_the_verdict_of_a_change_stands_before_its_cost(opened: Opened) -> None:
    page = opened(view("train", {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb"}))
    badges, costs = sides(page, ".changes .badge"), sides(page, ".changes li > .soft")
    assert len(badges) == len(costs) > 1
    assert all(badge[1] <= cost[0] for badge, cost in zip(badges, costs, strict=True))


def test_sizes_in_the_middle_of_two_read_as_the_command_line_prints_them(opened: Opened) -> None:
    question = {
        "model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "deepspeed", "shards": "everything",
        "seq-len": "4k", "offload-optimizer": "cpu",
    }
    sums: dict[str, int] = defaultdict(int)
    for entry in asked("train", question)["ranks"][0]["ledger"]:
        sums[entry["path"].partition("/")[0]] += entry["bytes"]
    assert any(size * 100 * 2 % (1 << 20) == 0 and size * 100 % (1 << 20) for size in sums.values())  # such a middle
    page = opened(view("train", question))
    lines = page.locator(".ledger .line-1 .number").all_inner_texts()
    expected = [format_bytes(size) for size in sums.values() if size]
    assert sorted(line for line in lines if "%" not in line) == sorted(expected)


def test_a_phone_shows_a_reports_figures_beside_long_settings(chromium: Any) -> None:
    row = ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "28.72 GiB", "not yet", "")
    table = Table(("change", "memory with it", "verdict", "what it costs"), (row,), right=frozenset({1}))
    report = Report("en", "a run", ("fits",), None, (Section("Changes", (table,)),))
    page = chromium.new_page(viewport=PHONE)
    page.set_content(html(report))
    [figure] = sides(page, "td.figure")
    [frame] = sides(page, "div.table")
    page.close()
    assert figure[1] <= frame[1]
