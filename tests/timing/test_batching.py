"""The laws that a queue keeps, and that nothing is lost: requests, tokens, blocks."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.timing.batching import Arrival, Batching, Limits, Pool
from vramcast.timing.loop import routed


class Linear:
    """Steps whose time grows with what is in them."""

    def decode(self, sequences: int, context: float) -> float:
        return 0.01 + 1e-7 * sequences * context

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        return self.decode(sequences, context) + 1e-5 * sum(tokens for tokens, _ in chunks)


class Service(Linear):
    """A prompt takes 10 ms, whatever it is."""

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        return 0.01


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_one_at_a_time_waits_as_in_an_m_d_1_queue(busy: float) -> None:
    random, now, sent = Random(3), 0.0, []
    for _ in range(80_000):
        now += random.expovariate(busy / 0.01)
        sent.append(Arrival(now, 8, 1))
    one = Batching(Pool(10, 16), Limits(1, 64), Service())
    one.run(sent)
    waited = sum(start - at for start, at in zip(one.started_s, one.at_s, strict=True)) / len(sent)
    assert waited == pytest.approx(0.01 * busy / (2 * (1 - busy)), rel=0.04)  # Pollaczek and Khinchine


class Second(Linear):
    """Every step takes a second."""

    def decode(self, sequences: int, context: float) -> float:
        return 1.0

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        return 1.0


@pytest.mark.parametrize(("ahead", "comes_s", "first_s"), [
    (False, 10.5, 12.0), (True, 10.5, 13.0),  # the step from 11 on was put together at 10
    (True, 40.5, 41.5),  # nobody runs: at once
])
def test_who_comes_while_a_step_runs_misses_the_one_that_is_put_together(
    ahead: bool, comes_s: float, first_s: float
) -> None:
    one = Batching(Pool(100, 16), Limits(8, 64, ahead=ahead), Second())
    one.run([Arrival(0.0, 10, 30), Arrival(comes_s, 10, 2)])
    assert one.first_s == [1.0, first_s] and one.end_s[0] == 30.0


TRACES = st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3, 4.0]), st.integers(1, 150), st.integers(1, 90)),
                  min_size=1, max_size=40)
POOLS = st.builds(Pool, blocks=st.integers(18, 200), block_tokens=st.just(16), caches=st.booleans(),
                  windows=st.sampled_from([(), (2,)]))
LIMITS = st.builds(Limits, sequences=st.integers(1, 20), tokens=st.integers(20, 300), whole_prompt=st.booleans(),
                   ahead=st.booleans())


def arrivals_of(trace: Sequence[tuple[float, int, int]]) -> list[Arrival]:
    found, now = [], 0.0
    for wait, prompt, answer in trace:
        now += wait
        found.append(Arrival(now, prompt, answer))
    return found


@given(trace=TRACES, pool=POOLS, limits=LIMITS)
def test_no_request_no_token_and_no_block_is_lost(
    trace: list[tuple[float, int, int]], pool: Pool, limits: Limits
) -> None:
    one = Batching(pool, limits, Linear())
    one.run(arrivals_of(trace))
    assert one.emitted == [answer for _, _, answer in trace]
    assert one.free == pool.blocks and not any(one.grows) and not one.context
    assert all(0 <= interval.blocks <= pool.blocks for interval in one.intervals)
    decoded = sum(interval.decoding * interval.steps for interval in one.intervals)
    assert decoded + sum(one.admitted) >= sum(one.emitted)
    if not one.preemptions:
        assert decoded == sum(one.emitted) - len(trace)
        assert sum(interval.tokens for interval in one.intervals) == sum(prompt for _, prompt, _ in trace)
        # Little's law on the log: time with so many in it, and the times of each
        inside = sum(interval.running * interval.seconds for interval in one.intervals)
        assert inside == pytest.approx(sum(one.end_s) - sum(one.started_s))
    assert all(at <= start < first <= end for at, start, first, end in zip(
        one.at_s, one.started_s, one.first_s, one.end_s, strict=True))


@given(trace=TRACES, pool=POOLS, limits=LIMITS)
def test_jumps_end_where_single_steps_do(trace: list[tuple[float, int, int]], pool: Pool, limits: Limits) -> None:
    jumps, steps = Batching(pool, limits, Linear()), Batching(pool, limits, Linear(), records=True)
    for one in (jumps, steps):
        one.run(arrivals_of(trace))
    assert jumps.end_s == pytest.approx(steps.end_s)
    assert jumps.preemptions == steps.preemptions


def test_a_router_that_looks_at_loads_spreads_uneven_requests() -> None:
    sent = [Arrival(0.01 * number, 50, 400 if number % 2 else 4) for number in range(40)]

    def last(*, least_loaded: bool) -> float:
        found = [Batching(Pool(400, 16), Limits(4, 64), Linear()) for _ in range(2)]
        routed(found, sent, least_loaded=least_loaded)
        return max(one.now for one in found)

    assert last(least_loaded=True) < 0.85 * last(least_loaded=False)
