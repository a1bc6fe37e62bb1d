"""Every family is recognised by its own words, with its figures."""

from typing import Any

import pytest

from tests.sources.failures.samples import SAMPLES
from vramcast.sources.failures import FAMILIES, NUMBERS, read_failures
from vramcast.sources.failures.families import SHORT, by_roots, by_words
from vramcast.sources.failures.wording import compiled


@pytest.mark.parametrize(
    ("family", "wording", "text", "figures"),
    SAMPLES,
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_a_message_is_one_statement_of_its_family_with_its_figures(
    family: str, wording: str, text: str, figures: dict[str, Any]
) -> None:
    statements = read_failures(text).statements
    assert [(item.family, item.wording) for item in statements] == [(family, wording)]
    assert {name: statements[0].numbers.get(name) for name in figures} == figures


def test_every_family_has_a_message_here_or_a_table_of_its_own() -> None:
    tested = {family for family, *_ in SAMPLES} | {"nvidia-smi", "npu-smi"}  # those: test_tables.py
    assert tested == set(FAMILIES)


def test_every_pattern_compiles_and_names_only_known_figures() -> None:
    for family in FAMILIES.values():
        for wording in family.wordings:
            patterns = (
                wording.rest, wording.before, wording.sums, *wording.parts, *(mark for _, mark in wording.marks),
            )
            names = {group.partition("__")[0] for pattern in patterns for group in compiled(pattern).groupindex}
            assert names <= set(NUMBERS), wording


def test_a_short_text_is_read_without_roots_and_a_long_one_alike() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    by_roots.cache_clear()
    short = read_failures(said).statements
    assert short and not by_roots.cache_info().currsize
    long = read_failures(said + "\n" + "step went well\n" * SHORT).statements
    assert by_roots.cache_info().currsize and long == short


def test_every_wording_is_reached_by_a_root() -> None:
    grouped = [words for group in by_roots().values() for words in group]
    assert sorted(grouped) == sorted(by_words())
    assert all(root in words for root, group in by_roots().items() for words in group)
