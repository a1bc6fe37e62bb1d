"""Both languages say the same things."""

from __future__ import annotations

from string import Formatter

import pytest

from vramcast.doctor.failures.causes import DETAILS, FOLLOWING, ORDER, RULES
from vramcast.doctor.failures.fixes import REMEDIES
from vramcast.doctor.failures.job import CHECKS
from vramcast.domain.failure import Cause
from vramcast.domain.job import Phase
from vramcast.domain.program import Category
from vramcast.report.failure_actions import FAILURE_ACTIONS
from vramcast.report.failure_messages import FAILURE_MESSAGES
from vramcast.report.failure_numbers import FAILURE_NUMBERS
from vramcast.report.messages import LANGUAGES, MESSAGES, language_of, rare_messages
from vramcast.report.replay_messages import REPLAY_MESSAGES
from vramcast.report.trace_messages import TRACE_MESSAGES
from vramcast.report.watch_messages import WATCH_MESSAGES
from vramcast.report.written.words import REPORT_MESSAGES


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


ALL = MESSAGES | rare_messages()


@pytest.mark.parametrize("key", ALL)
def test_every_message_exists_in_every_language_with_the_same_placeholders(key: str) -> None:
    texts = ALL[key]
    assert set(texts) == set(LANGUAGES)
    assert len({frozenset(placeholders(text)) for text in texts.values()}) == 1


def test_every_category_and_phase_has_a_name() -> None:
    assert {f"category.{category}" for category in Category} <= set(MESSAGES)
    assert {f"phase.{phase}" for phase in Phase} <= set(MESSAGES)


def test_rules_fixes_and_checks_of_failures_have_words() -> None:
    keys = {rule.key for rule in RULES if rule.key}
    keys |= {remedy.key for remedy in REMEDIES} | {check.key for check in CHECKS}
    keys |= {f"detail.{row.name}" for row in DETAILS}
    keys |= {f"{kind}.{cause}" for cause in Cause for kind in ("failed", "name")}
    keys |= {f"{kind}.{name}" for name in (*ORDER, *FOLLOWING) for kind in ("means", "short")}
    assert keys <= set(rare_messages())
    assert not set(rare_messages()) & set(MESSAGES)
    tables = (
        FAILURE_ACTIONS, FAILURE_MESSAGES, FAILURE_NUMBERS, REPLAY_MESSAGES, TRACE_MESSAGES, WATCH_MESSAGES,
        REPORT_MESSAGES,
    )
    assert len(rare_messages()) == sum(map(len, tables))


def test_the_locale_chooses_the_language() -> None:
    assert [language_of(name) for name in ("zh_CN.UTF-8", "en_US", "C", "")] == ["zh", "en", "en", "en"]
