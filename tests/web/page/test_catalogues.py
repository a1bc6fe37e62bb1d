"""Tables of cards, machines and measured cases: sorted, filtered, and the figures of their sources."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from vramcast.web.service import answered

from .conftest import REPOSITORY, Opened, comes_to, sizes

ROWS = ".data tbody tr:not(.opened)"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def reply(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered("GET", path).body)
    return found


def column(page: Any, name: str, table: str = ".data") -> list[str]:
    """The texts of a column, by its heading."""
    found: list[str] = page.locator(table).first.evaluate(
        """(table, name) => {
          const heads = [...table.querySelectorAll("thead th")];
          const place = heads.findIndex((one) => one.innerText.trim().startsWith(name));
          return [...table.querySelectorAll("tbody tr:not(.opened)")].map((row) => row.cells[place].innerText.trim());
        }""", name,
    )
    return found


def card_names(page: Any) -> list[str]:
    """Names of the cards shown, as they are asked for: they stand behind what people call them."""
    found: list[str] = page.locator(".data tbody tr:not(.opened) th small").all_inner_texts()
    return [name.strip() for name in found]


def whole(page: Any) -> None:
    """Scrolls until a table has all its rows."""
    while page.locator(".more-rows:visible").count():
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(20)


def test_cards_are_those_of_the_catalogue_sorted_both_ways(opened: Opened) -> None:
    page = opened("#/gpus", wait=ROWS)
    whole(page)
    cards = reply("/api/gpus")["gpus"]
    shown = dict(zip(card_names(page), column(page, "usable"), strict=True))
    assert len(shown) == len(cards)
    for card in cards:
        assert shown[card["name"]] == sizes(card["visible_bytes"])(card["visible_bytes"])
    for direction, largest_first in (("descending", True), ("ascending", False)):
        page.get_by_role("button", name="usable").click()
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction
        whole(page)
        figures = [float(text.split()[0]) for text in column(page, "usable")]
        assert figures == sorted(figures, reverse=largest_first)
    assert "sort=usable" in page.url
    again = opened(page.evaluate("location.hash"), wait=ROWS)
    assert again.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_cards_are_found_by_words_vendor_and_memory_and_the_address_holds_it(opened: Opened) -> None:
    page = opened("#/gpus", wait=ROWS)
    cards = reply("/api/gpus")["gpus"]
    page.locator("[name=query]").fill("hopper 80")
    page.wait_for_function("() => location.hash.includes('query=')")
    page.wait_for_function("() => document.querySelectorAll('.data tbody tr:not(.opened)').length < 10")
    found = {card["name"] for card in cards if card["arch"] == "Hopper" and "80" in card["memory_nameplate"]}
    assert found <= set(card_names(page))
    page.locator("[name=query]").fill("")
    page.locator("[name=vendor]").select_option("AMD")
    page.locator("[name=memory]").fill("150")
    expected = {card["name"] for card in cards if card["vendor"] == "AMD" and card["visible_bytes"] >= 150 * 2**30}
    comes_to(page, lambda: set(card_names(page)), expected)
    assert "memory=150" in page.url
    again = opened(page.evaluate("location.hash"), wait=ROWS)
    assert set(card_names(again)) == expected


def test_a_card_opens_to_all_that_is_known_of_it_and_leads_to_a_question(opened: Opened) -> None:
    page = opened("#/gpus?query=h100-sxm", wait=ROWS)
    card = next(one for one in reply("/api/gpus")["gpus"] if one["name"] == "h100-sxm-80gb")
    opens = page.get_by_role("button", name="h100-sxm-80gb")
    opens.click()
    assert opens.get_attribute("aria-expanded") == "true"
    names = page.locator(".opened dt").all_inner_texts()
    assert len(names) == len(card) and {"compute capability", "fp32", "power"} <= set(names)
    told = page.locator(".opened:visible").inner_text()
    assert "79.2 GiB" in told and "3,350 GB/s" in told and "700 W" in told
    assert card["source"] in page.locator(".opened:visible").inner_text()
    page.get_by_role("link", name="Train on h100-sxm-80gb").click()
    page.wait_for_selector(".verdict")
    assert "gpus=h100-sxm-80gb" in page.url


def test_machines_have_prices_with_their_day_and_are_sorted_within_a_currency(opened: Opened) -> None:
    page = opened("#/instances", wait=ROWS)
    frame = page.locator(".table").bounding_box()
    last = page.locator(".data tbody .links").first.bounding_box()
    assert last["x"] + last["width"] <= frame["x"] + frame["width"]  # in a window of a laptop
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
    page.locator("[name=query]").fill("no-such-machine")
    comes_to(page, page.locator(".count").inner_text, f"0 of {len(machines)}")
    assert page.locator(ROWS).count() == 0


def readme_rows(heading: str) -> list[list[str]]:
    """The rows of a table of the README between its marks, without those of other tools."""
    table = re.search(rf"<!-- {heading} -->\n(.*?)<!-- /{heading} -->", README, flags=re.DOTALL)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]
    return [row for row in rows if "on the same rows" not in row[0]]


def share(text: str) -> float:
    return float(text.replace("−", "-").replace("%", "").strip())


def test_groups_have_the_figures_of_the_readme_and_lead_to_their_cases(opened: Opened) -> None:
    page = opened("#/accuracy", wait=ROWS)
    groups, table = page.locator(".long").first, page.locator(".long").nth(1)
    button, before = table.get_by_role("button", name="Show more"), table.locator("tbody tr").count()
    assert before < 400  # two thousand rows are not made before they are looked at
    button.focus()
    page.keyboard.press("Enter")
    assert table.locator("tbody tr").count() > before
    groups.get_by_role("button", name="Show more").click()
    cells = groups.evaluate(
        "(table) => [...table.querySelectorAll('tbody tr')]"
        ".map((row) => [...row.cells].map((one) => one.innerText.trim()))"
    )
    rows = {(row[0], row[1]): row[2:8] for row in cells}
    stated = readme_rows("accuracy")
    assert len(stated) > 10
    for group, level, cases, predicted, median, p95, worst, under in stated:
        if level == "fits":
            continue  # rows that say only whether a run came through have no error
        shown = rows[group, level]
        assert shown[:2] == [cases, predicted], group
        for page_says, readme_says, digits in zip(shown[2:], (median, p95, worst, under), (2, 1, 1, 0), strict=True):
            assert share(page_says) == pytest.approx(share(readme_says), abs=0.5 * 10**-digits + 0.006), group
    said = re.findall(r"SimuMax: ([\d.]+) % \(worst ([\d.]+) %\)", groups.inner_text())
    others = re.findall(r"SimuMax on the same rows \|[^|]*\|[^|]*\|[^|]*\| ([\d.]+)% \| ([\d.]+)% \(max\)", README)
    assert len(others) == 2
    assert sorted(said) == sorted(others)

    page.get_by_role("button", name="megatron_lm_functional_tests").click()
    every = reply("/api/accuracy")["cases"]
    of_group = [one for one in every if (one["group"], one["level"]) == ("megatron_lm_functional_tests", "allocated")]
    page.wait_for_function("() => location.hash.includes('group=megatron_lm_functional_tests')")
    comes_to(page, page.locator(".count").inner_text, f"{len(of_group)} of {len(every):,}")
    whole(page)
    found = table.evaluate(
        "(table) => [...table.querySelectorAll('tbody tr')].map((row) => row.cells[5].innerText.trim())"
    )
    assert len(found) == len(of_group)
    assert all(re.match(r"^[+−]\d", text) or len(text) > 5 for text in found)  # predicted, or the reason
    links = table.locator("tbody a")
    assert links.count() == sum("url" in one for one in of_group)
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
