"""Prices in reports: with their age, in both languages, unknown parts absent."""

from datetime import date

from msgspec.structs import replace

from vramcast.domain.device import Cost, Price
from vramcast.report.document import plain
from vramcast.report.sentences import age_days

PRICE = Price(per_hour=98.32, currency="USD", region="eastus", date="2026-06-18", source="list")
COST = Cost(price=PRICE, machines=2, per_hour=196.64, per_million_tokens=0.0123, per_run=12345.6, run_hours=62.8)
TODAY = date(2026, 11, 21)


def test_the_document_names_everything_that_is_known() -> None:
    said = plain(replace(COST, age_days=age_days(PRICE, TODAY)))
    assert (said["age_days"], said["per_hour"], said["machine_per_hour"]) == (156, 196.64, 98.32)
    assert age_days(PRICE, None) is None
