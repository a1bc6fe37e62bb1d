"""Both languages say the same things."""

from __future__ import annotations

from string import Formatter

import pytest

from vramcast.domain.job import Phase
from vramcast.domain.program import Category
from vramcast.report.messages import LANGUAGES, MESSAGES, language_of


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("key", MESSAGES)
def test_every_message_exists_in_every_language_with_the_same_placeholders(key: str) -> None:
    texts = MESSAGES[key]
    assert set(texts) == set(LANGUAGES)
    assert len({frozenset(placeholders(text)) for text in texts.values()}) == 1


def test_every_category_and_phase_has_a_name() -> None:
    assert {f"category.{category}" for category in Category} <= set(MESSAGES)
    assert {f"phase.{phase}" for phase in Phase} <= set(MESSAGES)


def test_the_locale_chooses_the_language() -> None:
    assert [language_of(name) for name in ("zh_CN.UTF-8", "en_US", "C", "")] == ["zh", "en", "en", "en"]
