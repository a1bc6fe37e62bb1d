"""Processes that answer: killed at their limits, and nobody else notices."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from tests.web.asking import TRAIN

pytest.importorskip("pebble")

from vramcast.web.exchange import CATALOGUE_ONLY, GIB, JSON, MIB, OVERTIME, Limit, Refused
from vramcast.web.workers import WAITING_PER_WORKER, Question, Workers

HEADERS = {"content-type": JSON}
QUICK = Question("POST", "/api/train", "", HEADERS, json.dumps(TRAIN).encode())
ENDLESS = Question(
    "POST", "/api/plan/train", "", HEADERS, json.dumps({"model": "llama-3.1-70b", "on": "any", "max-gpus": 64}).encode()
)
SEARCH = Question(
    "POST", "/api/plan/train", "", HEADERS, json.dumps({"model": "llama-3.1-8b", "on": "aws", "max-gpus": 64}).encode()
)


async def never() -> None:
    """Nobody leaves."""
    await asyncio.Event().wait()


def with_workers(limit: Limit, test: Any) -> None:
    async def run() -> None:
        workers = Workers(1, limit, CATALOGUE_ONLY)
        try:
            assert (await workers.answer(QUICK, never)).status == 200  # the process is there
            await test(workers)
            assert (await workers.answer(QUICK, never)).status == 200  # and is there again
        finally:
            workers.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_question_over_its_time_is_ended_and_the_next_one_answered(is_slow: bool) -> None:
    async def test(workers: Workers) -> None:
        with pytest.raises(Refused, match=r"no answer within 8 s") as refused:
            await workers.answer(ENDLESS, never)
        assert refused.value.status == OVERTIME

    with_workers(Limit(8, 2 * GIB, is_slow), test)  # a busy machine starts a process in seconds


def test_a_search_tells_meanwhile_how_far_it_is() -> None:
    async def test(workers: Workers) -> None:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        asked = asyncio.ensure_future(workers.answer(SEARCH, never, lines.put_nowait))
        first = json.loads(await lines.get())
        assert first["looked"] > 0
        while not (line := json.loads(await lines.get()))["front"]:
            assert line["looked"] > first["looked"]
        assert {"what", "gpus", "tokens_per_s", "cost_per_million_tokens", "unit"} <= line["front"][0].keys()
        asked.cancel()

    with_workers(Limit(120, 2 * GIB, is_slow=True), test)


def test_a_question_whose_process_dies_is_told_so() -> None:
    async def test(workers: Workers) -> None:
        asked = asyncio.ensure_future(workers.answer(ENDLESS, never))
        await asyncio.sleep(0.5)
        for pid in list(workers._pool._pool_manager.worker_manager.workers):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Refused, match="has ended") as refused:
            await asked
        assert refused.value.status == 503

    with_workers(Limit(30, 2 * GIB, True), test)


def test_memory_beyond_the_limit_is_not_given() -> None:
    pytest.importorskip("resource")

    async def test(workers: Workers) -> None:
        assert len(await asyncio.wrap_future(workers._pool.schedule(bytes, args=(64 * MIB,)))) == 64 * MIB
        with pytest.raises(MemoryError):
            await asyncio.wrap_future(workers._pool.schedule(bytes, args=(2 * GIB,)))

    with_workers(Limit(30, 1 * GIB), test)


def test_questions_beyond_those_that_can_wait_are_sent_away() -> None:
    async def test(workers: Workers) -> None:
        waiting = [asyncio.ensure_future(workers.answer(ENDLESS, never)) for _ in range(WAITING_PER_WORKER)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="too many") as refused:
            await workers.answer(QUICK, never)
        assert refused.value.status == 503
        assert dict(refused.value.headers)["retry-after"] == "1"
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    with_workers(Limit(8, 2 * GIB, True), test)


def test_a_search_nobody_waits_for_is_ended() -> None:
    async def test(workers: Workers) -> None:
        async def leaves() -> None:
            await asyncio.sleep(0.2)

        with pytest.raises(Refused, match="has left"):
            await workers.answer(ENDLESS, leaves)

    with_workers(Limit(60, 2 * GIB, True), test)


def test_a_process_is_replaced_after_so_many_answers() -> None:
    async def test(workers: Workers) -> None:
        pids = set()
        for _ in range(6):
            pids.add(await asyncio.wrap_future(workers._pool.schedule(os.getpid)))
        assert 2 <= len(pids) <= 4

    with_workers(Limit(30, 2 * GIB, answers=3), test)
