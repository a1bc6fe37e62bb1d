"""Whatever a log holds, reading it ends soon, in figures or in an error of ours."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.logs.samples import NAMES, parsed, sample
from vramcast.errors import SourceError
from vramcast.sources.logs import READERS
from vramcast.sources.logs.options import argument, split_arguments
from vramcast.sources.logs.wording import LONGEST_LINE, Wording, facts_of

ALL_LINES = [line for name in NAMES for line in sample(name).splitlines(keepends=True)]
WORDINGS = {known.pattern.pattern: known for reader, _ in READERS for known in (*reader.markers, *reader.wordings)}

SLOW = 5.0
"""Far more than a bounded pattern takes for one line [s]."""

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_anything(text: str) -> None:
    try:
        log = parsed(text)
    except SourceError:
        return
    assert all(isinstance(size, int) for rank in log.ranks for size in rank.num_bytes.values())
    assert log.startups >= 1


@MANY
@given(st.sampled_from(NAMES), st.integers(0, 6000), st.integers(0, 6000))
def test_a_log_cut_anywhere_is_read(name: str, start: int, stop: int) -> None:
    read_anything(sample(name)[start:stop])


@MANY
@given(st.lists(st.sampled_from(ALL_LINES) | st.text(max_size=200), max_size=60))
def test_lines_of_all_engines_in_any_order_are_read(lines: list[str]) -> None:
    read_anything("".join(lines))


@MANY
@given(st.sampled_from(NAMES), st.data())
def test_a_log_with_changed_characters_is_read(name: str, data: st.DataObject) -> None:
    text = list(sample(name))
    for _ in range(data.draw(st.integers(1, 20))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from("0123456789.,-()[]{}'\"= \n\0é"))
    read_anything("".join(text))


@pytest.mark.parametrize("known", WORDINGS.values(), ids=lambda known: known.needle[:30])
def test_no_pattern_is_slow_on_a_line_made_of_its_own_words(known: Wording) -> None:
    needle = known.needle
    for filling in (needle, f"{needle} 1", f"{needle}(1 GiB) ", f"{needle}= 1.0 MiB", f" {needle},", f"{needle}: 1, "):
        line = filling * (LONGEST_LINE // len(filling))
        began = time.process_time()
        facts_of(known, line)
        assert time.process_time() - began < SLOW


@pytest.mark.parametrize("filling", ["model='", "a=[", "{", "'\\", "x=1,", "tp_size", "=", "\"", "<("])
def test_arguments_of_any_shape_are_split_soon(filling: str) -> None:
    text = filling * (LONGEST_LINE // len(filling))
    began = time.process_time()
    split_arguments(text)
    argument(text, "tp_size")
    assert time.process_time() - began < SLOW


def test_numbers_beyond_reason_are_left_out() -> None:
    with pytest.raises(SourceError):
        parsed("Model loading took " + "9" * 400 + " GiB\n")
    huge = parsed("Model loading took 9,999,999,999,999,999.00 GiB\nINFO Available KV cache memory: 1.00 GiB\n")
    assert all("weights" not in rank.num_bytes for rank in huge.ranks)
