"""Prices in reports: with their age, in both languages, unknown parts absent."""

from __future__ import annotations

from datetime import date

from vramcast.domain.price import Cost, Price
from vramcast.report.messages import Words
from vramcast.report.price import age_days, cost_document, cost_lines

PRICE = Price(per_hour=98.32, currency="USD", region="eastus", date="2026-06-18", source="list")
COST = Cost(price=PRICE, machines=2, per_hour=196.64, per_million_tokens=0.0123, per_run=12345.6, run_hours=62.8)
TODAY = date(2026, 11, 21)


def test_a_given_price_has_no_age() -> None:
    cost = Cost(price=Price(per_hour=2.0, currency="CNY"), machines=1, per_hour=2.0)
    assert list(cost_lines(cost, Words("en"), instance="8xh20", today=TODAY)) == [
        "costs 2.00 CNY per hour (8xh20, on-demand, price as given)"
    ]
    assert set(cost_document(cost, TODAY)) == {"per_hour", "currency", "tariff", "machines", "machine_per_hour"}
    assert list(cost_lines(None, Words("en"), instance="x", today=TODAY)) == []


def test_the_document_names_everything_that_is_known() -> None:
    plain = cost_document(COST, TODAY)
    assert (plain["age_days"], plain["per_hour"], plain["machine_per_hour"]) == (156, 196.64, 98.32)
    assert age_days(PRICE, None) is None
