"""Both languages say the same things."""

import csv
from pathlib import Path
from string import Formatter

from vramcast.doctor.failures.causes import DETAILS, FOLLOWING, ORDER, RULES
from vramcast.doctor.failures.fixes import REMEDIES
from vramcast.doctor.failures.job import CHECKS
from vramcast.domain.failure import Cause
from vramcast.domain.job import Phase
from vramcast.domain.program import Category
from vramcast.report import messages
from vramcast.report.messages import LANGUAGES, MESSAGES, language_of, rare_messages

CATALOGUES = sorted((Path(messages.__file__).parent / "words").glob("*.csv"))


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_message_exists_once_in_every_language_with_the_same_placeholders() -> None:
    tables = [list(csv.reader(path.open(encoding="utf-8"))) for path in CATALOGUES]
    assert {tuple(head) for head, *_ in tables} == {("key", *LANGUAGES)}
    rows = {key: texts for _, *table in tables for key, *texts in table}
    assert len(rows) == sum(len(table) - 1 for table in tables) == len(MESSAGES) + len(rare_messages())
    differing = [key for key, texts in rows.items() if len({frozenset(placeholders(text)) for text in texts}) > 1]
    assert not differing and all(all(texts) for texts in rows.values())


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


def test_the_locale_chooses_the_language() -> None:
    assert [language_of(name) for name in ("zh_CN.UTF-8", "en_US", "C", "")] == ["zh", "en", "en", "en"]
