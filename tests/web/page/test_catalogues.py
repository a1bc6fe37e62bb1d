"""Tables of cards, machines and measured cases: sorted, filtered, and the figures of their sources."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from vramcast.units import format_bytes
from vramcast.web.service import answered

from .conftest import REPOSITORY, Opened

ROWS = ".data tbody tr:not(.opened)"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def reply(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered("GET", path).body)
    return found


def column(page: Any, name: str, table: str = ".data") -> list[str]:
    """The texts of a column, by its heading."""
    headings = [text.strip() for text in page.locator(f"{table} thead th").all_inner_texts()]
    place = next(index for index, text in enumerate(headings) if text.startswith(name))
    rows = page.locator(f"{table} tbody tr:not(.opened)").all()
    return [row.locator("th, td").nth(place).inner_text().strip() for row in rows]


def whole(page: Any) -> None:
    """Scrolls until a table has all its rows."""
    while page.locator(".more-rows:visible").count():
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(50)


def test_cards_are_those_of_the_catalogue_with_their_usable_memory(opened: Opened) -> None:
    page = opened("#/gpus", wait=ROWS)
    whole(page)
    cards = reply("/api/gpus")["gpus"]
    shown = dict(zip(column(page, "GPU"), column(page, "usable"), strict=True))
    assert len(shown) == len(cards)
    for card in cards:
        size, unit = shown[card["name"]].split()
        assert float(size) == pytest.approx(float(format_bytes(card["visible_bytes"]).split()[0]), abs=0.06)
        assert unit == format_bytes(card["visible_bytes"]).split()[1]


def test_a_heading_sorts_both_ways_and_says_so(opened: Opened) -> None:
    page = opened("#/gpus", wait=ROWS)
    usable = page.get_by_role("button", name="usable")
    for direction, largest_first in (("descending", True), ("ascending", False)):
        usable.click()
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction
        whole(page)
        sizes = [float(text.split()[0]) for text in column(page, "usable")]
        assert sizes == sorted(sizes, reverse=largest_first)
    assert "sort=usable" in page.url
    again = opened(page.evaluate("location.hash"), wait=ROWS)
    assert again.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_cards_are_found_by_words_vendor_and_memory_and_the_address_holds_it(opened: Opened) -> None:
    page = opened("#/gpus", wait=ROWS)
    page.locator("[name=query]").fill("hopper 80")
    page.wait_for_function("() => location.hash.includes('query=')")
    page.wait_for_function("() => document.querySelectorAll('.data tbody tr:not(.opened)').length < 10")
    cards = reply("/api/gpus")["gpus"]
    found = [card for card in cards if card["arch"] == "Hopper" and "80" in card["memory_nameplate"]]
    assert {card["name"] for card in found} <= set(column(page, "GPU"))
    page.locator("[name=query]").fill("")
    page.locator("[name=vendor]").select_option("AMD")
    page.locator("[name=memory]").fill("150")
    page.wait_for_function("() => location.hash.includes('memory=150')")
    page.wait_for_timeout(100)
    expected = {
        card["name"] for card in reply("/api/gpus")["gpus"]
        if card["vendor"] == "AMD" and card["visible_bytes"] >= 150 * 2**30
    }
    assert set(column(page, "GPU")) == expected
    again = opened(page.evaluate("location.hash"), wait=ROWS)
    assert set(column(again, "GPU")) == expected


def test_a_card_opens_to_all_that_is_known_of_it_and_leads_to_a_question(opened: Opened) -> None:
    page = opened("#/gpus?query=h100-sxm", wait=ROWS)
    card = next(one for one in reply("/api/gpus")["gpus"] if one["name"] == "h100-sxm-80gb")
    opens = page.get_by_role("button", name="h100-sxm-80gb")
    opens.click()
    assert opens.get_attribute("aria-expanded") == "true"
    names = page.locator(".opened dt").all_inner_texts()
    assert set(names) == set(card)
    assert card["source"] in page.locator(".opened").inner_text()
    page.get_by_role("link", name="Train on h100-sxm-80gb").click()
    page.wait_for_selector(".verdict")
    assert "gpus=h100-sxm-80gb" in page.url


def test_machines_have_prices_with_their_day_and_are_sorted_within_a_currency(opened: Opened) -> None:
    page = opened("#/instances", wait=ROWS)
    whole(page)
    machines = {one["name"]: one for one in reply("/api/instances")["instances"]}
    names, hourly, dated = column(page, "instance"), column(page, "per hour"), column(page, "price of")
    assert set(names) == set(machines)
    for name, price, day in zip(names, hourly, dated, strict=True):
        stated = machines[name].get("price")
        assert (price == "") is (stated is None)
        if stated:
            assert price.endswith(stated["currency"])
            assert day.startswith(stated["date"])
            assert stated["region"] in day
    page.get_by_role("button", name="per hour").click()
    whole(page)
    priced = [price.replace(",", "").split() for price in column(page, "per hour") if price]
    for currency in {unit for _, unit in priced}:
        values = [float(value) for value, unit in priced if unit == currency]
        assert values == sorted(values)
    units = [unit for _, unit in priced]
    assert sum(one != other for one, other in pairwise(units)) == len(set(units)) - 1


def test_a_search_that_finds_nothing_says_how_many_there_are(opened: Opened) -> None:
    page = opened("#/instances?query=no-such-machine", wait=".filters")
    total = len(reply("/api/instances")["instances"])
    assert page.locator(".count").inner_text() == f"0 of {total}"
    assert page.locator(ROWS).count() == 0


def readme_rows(heading: str) -> list[list[str]]:
    """The rows of a table of the README between its marks, without those of other tools."""
    table = re.search(rf"<!-- {heading} -->\n(.*?)<!-- /{heading} -->", README, flags=re.DOTALL)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]
    return [row for row in rows if "on the same rows" not in row[0]]


def share(text: str) -> float:
    return float(text.replace("−", "-").replace("%", "").strip())


def test_groups_have_the_figures_of_the_readme(opened: Opened) -> None:
    page = opened("#/accuracy", wait=ROWS)
    page.locator(".long").first.get_by_role("button", name="Show more").click()
    rows = {}
    for row in page.locator(".long").first.locator("tbody tr").all():
        cells = [cell.strip() for cell in row.locator("th, td").all_inner_texts()]
        rows[cells[0], cells[1]] = cells[2:8]
    stated = readme_rows("accuracy")
    assert len(stated) > 10
    for group, level, cases, predicted, median, p95, worst, under in stated:
        if level == "fits":
            continue  # rows that say only whether a run came through have no error
        shown = rows[group, level]
        assert shown[:2] == [cases, predicted], group
        for page_says, readme_says, digits in zip(shown[2:], (median, p95, worst, under), (2, 1, 1, 0), strict=True):
            assert share(page_says) == pytest.approx(share(readme_says), abs=0.5 * 10**-digits + 0.006), group


def test_other_tools_stand_beside_on_the_same_rows(opened: Opened) -> None:
    page = opened("#/accuracy", wait=ROWS)
    page.locator(".long").first.get_by_role("button", name="Show more").click()
    said = re.findall(r"SimuMax: ([\d.]+) % \(worst ([\d.]+) %\)", page.locator(".long").first.inner_text())
    stated = re.findall(r"SimuMax on the same rows \|[^|]*\|[^|]*\|[^|]*\| ([\d.]+)% \| ([\d.]+)% \(max\)", README)
    assert len(stated) == 2
    assert sorted(said) == sorted(stated)


def test_a_group_leads_to_its_cases_each_predicted_or_with_its_reason(opened: Opened) -> None:
    page = opened("#/accuracy", wait=ROWS)
    page.get_by_role("button", name="megatron_lm_functional_tests").click()
    cases = [
        one for one in reply("/api/accuracy")["cases"]
        if (one["group"], one["level"]) == ("megatron_lm_functional_tests", "allocated")
    ]
    page.wait_for_function("() => location.hash.includes('group=megatron_lm_functional_tests')")
    assert page.locator(".count").inner_text() == f"{len(cases)} of {len(reply('/api/accuracy')['cases']):,}"
    table = page.locator(".long").nth(1)
    while page.locator(".more-rows:visible").nth(1).count():
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(50)
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert len(rows) == len(cases)
    for cells in rows:
        assert re.match(r"^[+−]\d", cells[5].strip()) or len(cells[5].strip()) > 5
    links = table.locator("tbody a")
    assert links.count() == sum("url" in one for one in cases)
    assert all(link.get_attribute("rel") == "noopener noreferrer" for link in links.all()[:5])


def test_the_refused_are_listed_with_their_reasons_and_the_low_ones_are_low(opened: Opened) -> None:
    cases = reply("/api/accuracy")["cases"]
    page = opened("#/accuracy?shown=refused", wait=ROWS)
    assert page.locator(".count").inner_text().startswith(f"{sum('error' not in one for one in cases):,} of")
    assert page.locator(".refused").first.inner_text() in {one.get("refused") for one in cases}
    page.locator("[name=shown]").select_option("under")
    page.wait_for_function("() => location.hash.includes('shown=under')")
    errors = page.locator(".long").nth(1).locator("[class^=error-]").all_inner_texts()
    assert errors and all(share(text) < -5 for text in errors)


def test_a_point_tells_its_case_and_leads_to_its_row(opened: Opened) -> None:
    page = opened("#/accuracy?group=megatron_b200&level=allocated", wait=".point")
    shown = page.locator(".points circle.point")
    assert shown.count() == 19
    page.locator(".told").scroll_into_view_if_needed()
    box = shown.first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.wait_for_function("() => /\\d %\\)$/.test(document.querySelector('.told').textContent)")
    page.mouse.click(box["x"] + 3, box["y"] + 3)
    page.wait_for_selector("tr.chosen")
    name = page.locator("tr.chosen th").inner_text()
    assert page.locator(".told").inner_text().startswith(name)


def test_two_thousand_rows_are_not_made_before_they_are_looked_at(opened: Opened) -> None:
    page = opened("#/accuracy", wait=ROWS)
    table = page.locator(".long").nth(1)
    assert table.locator("tbody tr").count() < 400
    button = table.get_by_role("button", name="Show more")
    before = table.locator("tbody tr").count()
    button.focus()
    page.keyboard.press("Enter")
    assert table.locator("tbody tr").count() > before


def test_the_page_counts_as_the_truth_does(opened: Opened) -> None:
    from truth.score import percentile

    values = [0.01, 0.2, 0.03, 0.5, 0.0, 0.07, 0.11]
    page = opened("#/gpus", wait=ROWS)
    counted = page.evaluate(
        "async (values) => { const { percentile } = await import('/truth_statistics.js');"
        " return [0.5, 0.95].map((share) => percentile(values, share)); }", values
    )
    assert counted == pytest.approx([percentile(values, 0.5), percentile(values, 0.95)])


def test_the_files_of_the_page_name_no_other_host() -> None:
    for path in (REPOSITORY / "src" / "vramcast" / "web" / "page").rglob("*.js"):
        hosts = set(re.findall(r"https?://([\w.-]+)", Path(path).read_text(encoding="utf-8")))
        assert hosts <= {"www.w3.org"}, path
