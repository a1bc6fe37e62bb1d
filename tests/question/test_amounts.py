"""Amounts as users write them: what is written is what is read, and everything else is one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import InvalidSpec
from vramcast.question.amounts import Money, parse_hours, parse_money, parse_share

PARSERS = (parse_money, parse_hours, parse_share)


@given(amount=st.integers(1, 10**9), currency=st.sampled_from(("usd", "CNY", "Eur")), space=st.sampled_from(("", " ")))
def test_money_is_read_as_it_is_written(amount: int, currency: str, space: str) -> None:
    assert parse_money("budget", f"{amount}{space}{currency}") == Money(float(amount), currency.upper())


@given(days=st.integers(1, 10**5))
def test_durations_agree_across_units(days: int) -> None:
    assert parse_hours("deadline", f"{days}d") == parse_hours("deadline", f"{24 * days}h") == 24.0 * days
    assert parse_hours("deadline", f"{7 * days}d") == parse_hours("deadline", f"{days}w")


@given(percent=st.integers(0, 99))
def test_a_percentage_is_the_share_it_names(percent: int) -> None:
    assert parse_share("headroom", f"{percent}%") == percent / 100 == parse_share("headroom", percent / 100)


@pytest.mark.parametrize(("parse", "text"), [
    (parse_money, "100000"), (parse_money, "usd"), (parse_money, "1tusd"), (parse_money, "-5usd"),
    (parse_money, "1e5usd"), (parse_money, "0usd"), (parse_money, "5 dollars"),
    (parse_hours, "30"), (parse_hours, "30y"), (parse_hours, "0h"), (parse_hours, "-1d"), (parse_hours, "1d12h"),
    (parse_share, "100%"), (parse_share, "1"), (parse_share, "-5%"), (parse_share, "5 pct"), (parse_share, "nan"),
    (parse_hours, True),
])
def test_what_is_no_amount_is_refused_by_name_in_one_sentence(parse: Callable[..., Any], text: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^limit=.* must be ") as raised:
        parse("limit", text)
    assert "\n" not in str(raised.value)


@given(text=st.text(max_size=30), parse=st.sampled_from(PARSERS))
def test_any_text_is_read_or_refused(text: str, parse: Callable[..., Any]) -> None:
    try:
        parse("limit", text)
    except InvalidSpec as error:
        assert len(str(error)) < 200
