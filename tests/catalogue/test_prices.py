"""Prices: dated and sourced, chosen as asked, never converted, never taken from a broken table."""

from pathlib import Path

import pytest

from vramcast.catalogue.clusters import Market, own_prices
from vramcast.catalogue.instances import load_instance
from vramcast.catalogue.prices import (
    COLUMNS,
    FILE,
    Wanted,
    choose,
    known_prices,
    read_prices,
    shipped_prices,
    user_file,
)
from vramcast.errors import SourceError

BAD = Path(__file__).parent / "bad"
HEADER = ",".join(COLUMNS)


def test_every_shipped_price_is_of_a_known_machine_with_source_and_date() -> None:
    count = 0
    for name, price in read_prices(FILE.read_text(encoding="utf-8"), file=FILE.name):
        assert load_instance(name).full_name == name
        assert price.source and price.date and price.region
        count += 1
    assert count > 1000


def test_published_prices_are_as_published() -> None:
    """AWS us-east-1, 2026-07-20; Alibaba's China site, 2024-10-10; Azure eastus, 2026-06-18."""
    prices = shipped_prices()
    assert [price.per_hour for price in prices.of("aws:p5.48xlarge")] == [55.04]
    cheap = choose("alibaba:ecs.gn7i-c16g1.4xlarge", prices.of("alibaba:ecs.gn7i-c16g1.4xlarge"), Wanted())
    assert cheap is not None and (cheap.per_hour, cheap.currency, cheap.region) == (10.0934, "CNY", "cn-hangzhou")
    azure = choose("azure:Standard_ND96isr_H100_v5", prices.of("azure:Standard_ND96isr_H100_v5"), Wanted())
    assert azure is not None and azure.per_hour == 98.32


def test_a_refreshed_row_wins_unless_a_newer_one_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_DATA", str(tmp_path))
    assert user_file() == tmp_path / "prices.csv"
    for day, expected in (("2026-12-01", 50.0), ("2020-01-01", 55.04)):
        row = f"aws:p5.48xlarge,us-east-1,on-demand,USD,50,{day},update"
        user_file().write_text(f"{HEADER}\n{row}\n", encoding="utf-8")
        assert [price.per_hour for price in known_prices().of("aws:p5.48xlarge")] == [expected]


@pytest.mark.parametrize(("name", "message"), [
    ("unknown_column", "line 1: unknown columns discount"),
    ("missing_column", "line 1: missing columns currency"),
    ("duplicate_row", "line 3: aws:p5.48xlarge, us-east-1, on-demand, USD stands in line 2 already"),
    ("tariff", "line 3: tariff='reserved' must be one of on-demand, spot"),
    ("currency", "line 2: currency 'usd' must be an ISO 4217 code"),
    ("empty_price", "line 2: per_hour is empty; leave out the row"),
    ("comma_price", "line 2: per_hour='55,04' must be a positive number"),
    ("date", "line 2: date='2026-13-01' must be a date"),
    ("no_source", "line 2: source is empty"),
    ("huge_price", "line 2: price per hour 5504000.0 must be more than 0 and less than 1,000,000"),
    ("unknown_machine", "line 3: unknown instance 'aws:p5.48xlarg'; did you mean"),
])
def test_a_wrong_row_of_own_prices_names_file_and_line(name: str, message: str) -> None:
    path = BAD / f"bad_prices_{name}.csv"
    with pytest.raises(SourceError) as caught:
        own_prices(Market(prices=str(path)))
    assert f"{path}: {message}" in str(caught.value)


def test_files_that_are_none_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        own_prices(Market(prices=str(tmp_path / "none.csv")))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="not a text file"):
        own_prices(Market(prices=str(tmp_path / "binary.csv")))
