"""No text takes long or raises, and what is read of it stays within bounds."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.failures import TEXTS, megabytes_per_second
from tests.sources.failures.samples import SAMPLES
from vramcast.sources.failures import FAMILIES, NUMBERS, read_failures
from vramcast.sources.failures.families import by_words
from vramcast.sources.failures.text import blocks, run_of
from vramcast.sources.failures.wording import MOST_BYTES, compiled, plain_words, size_of

WORDS = sorted(by_words())
PIECES = [
    *WORDS, *(text for _, _, text, _ in SAMPLES), "9" * 40, "1.5 GiB", "-3 MiB", "NaN", "inf", "٣ GiB", "1e400", "(",
    "[", "\n", " ", "\0", "\\", "&#", "\x1b[",
]


@given(st.lists(st.sampled_from(PIECES), max_size=60), st.sampled_from(["", " ", "\n", "\r\n"]))
@settings(max_examples=120, deadline=None)
def test_any_mixture_of_words_is_read_within_bounds(pieces: list[str], joint: str) -> None:
    text = joint.join(pieces)
    found = read_failures(text)
    for statement in found.statements:
        assert statement.family in FAMILIES
        assert 1 <= statement.line <= text.count("\n") + text.count("\\n") + 1
        assert len(statement.text) <= 2_000
        assert set(statement.numbers) <= set(NUMBERS)
        sizes = [value for name, value in statement.numbers.items() if NUMBERS[name].unit == "bytes"]
        assert all(isinstance(size, int) and abs(size) <= MOST_BYTES * 256 for size in sizes)


@given(st.text(max_size=2_000))
@settings(max_examples=80, deadline=None)
def test_any_text_is_read(text: str) -> None:
    read_failures(text)


@given(st.binary(max_size=2_000))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read(data: bytes) -> None:
    read_failures(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_slow(name: str) -> None:
    text = TEXTS[name](300_000)
    assert any(megabytes_per_second(text) > 0.1 for _ in range(3))  # a pattern that backtracks reads kilobytes a second


def test_no_wording_is_slow_when_its_words_are_repeated() -> None:
    for words in WORDS:
        text = (f"{words} 1" * (10_000 // (len(words) + 2)))[:10_000]
        assert any(megabytes_per_second(text) > 0.05 for _ in range(3)), words


@pytest.mark.parametrize(
    "written", ["9" * 31 + " GiB", "9" * 5_000, "NaN GiB", "inf MiB", "1..5 GiB", "٣ GiB", "1e9 GiB", "", " GiB"]
)
def test_what_is_no_size_is_none(written: str) -> None:
    assert size_of(written) is None


@given(st.floats(0, 1e6), st.sampled_from(["KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "K", "M", "G"]))
def test_sizes_are_rounded_as_they_are_written(value: float, unit: str) -> None:
    factor = 1024 ** ("KMGT".index(unit[0]) + 1)
    assert size_of(f"{value:.2f} {unit}") == round(float(f"{value:.2f}") * factor)


@given(st.integers(0, 10**17))
def test_bytes_are_read_to_the_last_digit(value: int) -> None:
    assert size_of(f"{value} bytes") == size_of(f"{value:,} B") == value


def test_plain_words_stand_in_whatever_their_pattern_matches() -> None:
    flat = [" ".join(text.split()) for _, _, text, _ in SAMPLES]
    wordings = (wording for family in FAMILIES.values() for wording in family.wordings)
    for pattern in {part for one in wordings for part in (*one.parts, *(mark for _, mark in one.marks))}:
        for match in filter(None, map(compiled(pattern).search, flat)):
            assert plain_words(pattern) in match[0].lower(), pattern


def test_no_pattern_repeats_without_bound() -> None:
    unbounded = re.compile(r"(?<!\\)(?:[*+]|\{[0-9]+,\})(?![^\[]*\])")
    for family in FAMILIES.values():
        for wording in family.wordings:
            for pattern in (wording.rest, wording.before, wording.sums, *wording.parts):
                assert not unbounded.search(re.sub(r"\[[^\]]*\]", "", pattern)), pattern


@given(st.text(alphabet="ab \n", max_size=3_000))
def test_blocks_cover_a_text_once(text: str) -> None:
    parts = list(blocks(text))
    assert "".join(text[block.start : block.stop] for block in parts) == text
    assert all(run_of(block).text == " ".join(block.seen.split()) for block in parts)
