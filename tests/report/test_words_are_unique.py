"""No table of words hides a word of another."""

from __future__ import annotations

from pathlib import Path

from vramcast.report import log_messages, market_messages, messages, plan_messages


def test_tables_share_no_key() -> None:
    tables = (log_messages.LOG_MESSAGES, market_messages.MARKET_MESSAGES, plan_messages.PLAN_MESSAGES)
    shared = [key for index, one in enumerate(tables) for other in tables[:index] for key in one if key in other]
    assert not shared
    source = Path(messages.__file__).read_text(encoding="utf-8")
    assert not [key for table in tables for key in table if f'    "{key}": {{' in source]
