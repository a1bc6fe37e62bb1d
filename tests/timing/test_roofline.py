"""Seconds of a step: the longer of operations and bytes, collectives, launches; shares that add up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalogue.gpus import load_gpu
from vramcast.timing.rates import collective_s, links_of

H100 = load_gpu("h100-sxm-80gb")


@given(ranks=st.integers(2, 64), num_bytes=st.integers(1, 1 << 30))
@settings(max_examples=30)
def test_an_all_reduce_takes_its_latency_and_never_less_with_more_ranks(ranks: int, num_bytes: int) -> None:
    link = links_of(H100, node_cards=8).whole
    here = collective_s(num_bytes, ranks=ranks, pattern="all-reduce", link=link)
    more = collective_s(num_bytes, ranks=ranks + 1, pattern="all-reduce", link=link)
    assert link.latency_s < here <= more
    assert collective_s(num_bytes, ranks=1, pattern="all-reduce", link=link) == 0.0
