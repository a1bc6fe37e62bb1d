"""Sequences of events are aligned by their longest common subsequence."""

from hypothesis import given
from hypothesis import strategies as st

from truth.events import Event, Gap, align

A, B, C = Event(False, 512), Event(False, 1024), Event(True, 512)
events = st.lists(st.sampled_from((A, B, C)), max_size=12)


def longest_common(ours, theirs):
    table = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, x in enumerate(ours):
        for j, y in enumerate(theirs):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def test_equal_sequences_have_no_gaps():
    aligned = align([A, B, C], [A, B, C])
    assert aligned.share == 1.0
    assert aligned.gaps == ()


def test_a_gap_says_where_the_sequences_part():
    assert align([A, B, B, C], [A, C]).gaps == (Gap(ours=1, num_ours=2, theirs=1, num_theirs=0),)


def test_sequences_too_far_apart_have_no_share():
    assert align([A] * 20, [B] * 20, most_edits=5).share is None


@given(events, events)
def test_what_is_the_same_is_the_longest_common_subsequence(ours, theirs):
    aligned = align(ours, theirs)
    assert aligned.num_same == longest_common(ours, theirs)


@given(events, events)
def test_without_the_gaps_both_sequences_are_the_same(ours, theirs):
    aligned = align(ours, theirs)
    for gap in reversed(aligned.gaps):
        ours = ours[: gap.ours] + ours[gap.ours + gap.num_ours :]
        theirs = theirs[: gap.theirs] + theirs[gap.theirs + gap.num_theirs :]
    assert ours == theirs
