"""Continuous batching, decision by decision: which sequences run in a step, with how many tokens, and on which blocks.

While nobody comes, goes or is cut off, all sequences that generate take one token a step: so many steps are one jump
with a closed form. A sequence needs its next block every `block_tokens` steps, so how many need one in a step stands in
a table of as many residues, and nobody looks at sequences one by one until blocks run out.

Symbols:  T steps so far ("ticks")   c tokens of a sequence that are computed   b tokens of a block

[vllm] vllm-project/vllm 0.19.0 vllm/v1/core/sched/scheduler.py `Scheduler.schedule`: running sequences in order first,
each one token or the rest of its prompt as far as the budget goes; where blocks are missing the last running one is cut
off, goes to the head of the queue and computes anew; then, if none was, the queue in order
[full] `scheduler_reserve_full_isl` (since 0.19 on by default): who is admitted has room for all tokens it has now;
[sglang] schedule_policy.py `PrefillAdder.add_one_req` asks for that, too
[cache] vllm/v1/core/block_pool.py, kv_cache_manager.py `free`: freed blocks queue up, the last of a sequence first, and
keep what they hold until they are handed out again: who was cut off finds what is left of its own
[dp] vllm/v1/engine/core_client.py `get_core_engine_for_request`: a request goes where 4 x waiting + running is least
[sglang] sgl-project/sglang 0.5.9 python/sglang/srt/managers/scheduler.py `get_next_batch_to_run`: prompts that wait go
in a step of their own before anybody generates on; scheduler_recv_skipper.py `handle`: behind steps of generation the
queue is looked at each `scheduler_recv_interval` of them, behind one of prompts always
[ahead] vllm 0.19.0 vllm/v1/engine/core.py `step_with_batch_queue`, sglang scheduler.py `event_loop_overlap`,
TensorRT-LLM py_executor.py `_executor_loop_overlap`: requests are fetched and a step is scheduled while the card runs
the one before
[trtllm] NVIDIA/TensorRT-LLM 1.2 tensorrt_llm/_torch/pyexecutor/py_executor.py `_waiting_requests`: prompts wait
`batch_wait_timeout_iters` steps, or until those of a step fill `batch_wait_max_tokens_ratio` of `max_num_tokens`;
`_balance_adp_requests`: of ranks that attend apart, `timeout_iters` steps or until every rank has one
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import ceil, inf, sqrt
from typing import NamedTuple, Protocol

from msgspec import Struct


class Arrival(Struct, frozen=True):
    """One request."""

    at_s: float
    prompt: int  # tokens
    answer: int  # tokens


class Pool(Struct, frozen=True):
    """Blocks that sequences share, of one copy of the network."""

    blocks: int  # that can be handed out
    block_tokens: int
    groups: int = 1  # of layers that keep every token
    windows: tuple[int, ...] = ()  # most blocks that each group of layers with a window holds of a sequence
    fixed: int = 0  # blocks of recurrent states of one sequence
    caches: bool = False  # freed blocks are found again by who wrote them

    def held(self, tokens: int) -> int:
        """Blocks of a sequence with so many tokens computed.

        >>> Pool(100, 16, groups=1, windows=(9,)).held(160)
        19
        """
        full = -(-tokens // self.block_tokens)
        return full * self.groups + sum(min(full, most) for most in self.windows) + self.fixed

    def growing(self, tokens: int) -> int:
        """Groups that still take a block every `block_tokens`."""
        full = -(-tokens // self.block_tokens)
        return self.groups + sum(full < most for most in self.windows)


class Limits(Struct, frozen=True):
    """What a step may hold."""

    sequences: int  # vLLM max_num_seqs
    tokens: int  # vLLM max_num_batched_tokens
    chunks: bool = True  # prompts are cut where the budget ends
    whole_prompt: bool = True  # [full]
    prefix: int = 0  # tokens that all prompts begin with, in the cache
    apart: bool = False  # steps have prompts or tokens of those that generate, prompts first [sglang]
    looked_every: int = 1  # steps of generation between two looks at the queue [sglang]
    held_steps: int = 0  # steps of generation that prompts wait for more of them [trtllm]
    held_tokens: int = 0  # as many of a step wait no longer [trtllm]
    held_prompts: int = 0  # or as many of them
    ahead: bool = False  # a step is put together while the one before runs: who comes meanwhile misses it [ahead]


class Costs(Protocol):
    """Seconds of steps."""

    def decode(self, sequences: int, context: float) -> float:
        """One token of each, with so many tokens computed on average."""
        ...

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Beside them chunks of prompts: tokens, and those computed before."""
        ...


class Interval(Struct, frozen=True):
    """Steps in which nobody came or went."""

    end_s: float
    seconds: float
    steps: int
    decoding: int
    running: int
    waiting: int
    blocks: int  # in use at the end
    tokens: int = 0  # of prompts


class Decision(Struct, frozen=True):
    """What a step was made of."""

    decoding: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]  # request, tokens
    cut_off: tuple[int, ...]


class Scheduled(NamedTuple):
    """Prompts of a step while it is put together."""

    chunks: list[tuple[int, int]]  # tokens, and those computed before
    prompts: list[tuple[int, int]]  # request, tokens
    whole: list[int]  # whose prompt ends in it
    cut_off: list[int]


class Batching:
    """One scheduler with its pool. Requests are numbered as they are pushed.

    >>> class Second:
    ...     def decode(self, sequences, context): return 1.0
    ...     def mixed(self, sequences, context, chunks): return 1.0
    >>> one = Batching(Pool(100, 16), Limits(8, 64), Second())
    >>> one.run([Arrival(0.0, 100, 3)])
    >>> one.first_s, one.end_s  # two steps of its prompt, two more tokens
    ([2.0], [4.0])
    """

    def __init__(self, pool: Pool, limits: Limits, costs: Costs, *, records: bool = False) -> None:
        self.pool, self.limits, self.costs = pool, limits, costs
        self.shared = limits.prefix // pool.block_tokens * pool.groups
        self.free = pool.blocks - self.shared
        self.now, self.tick = 0.0, 0
        self.waiting: deque[int] = deque()
        self.running: dict[int, None] = {}  # in the order of admission
        self.partial, self.computed = -1, 0  # whose prompt is not whole yet, the last of those that run; its tokens
        self.context = 0  # computed tokens of all that generate
        self.grows = [0] * pool.block_tokens  # residue of T - c -> blocks that such sequences take when T gets there
        self.blocked = False  # who is first in the queue cannot run until someone goes
        self.looked_at, self.held_since = -1, -1  # tick of the last step with prompts; since when prompts are held
        self.step_s = (0.0, 0.0)  # when the last step began and ended
        self.ends: dict[int, list[tuple[int, int]]] = {}  # tick -> who is done, as it was admitted for that time
        self.full: dict[int, list[tuple[int, int]]] = {}  # tick -> whose windows are full
        self.ticks: list[int] = []  # heap of those of `ends` and `full`
        self.taken, self.returned = 0, self.free  # blocks that left and joined the queue of free ones
        self.holes: list[tuple[int, int]] = []  # heap: places in that queue that were left early, and how many
        self.at_s: list[float] = []
        self.prompt, self.answer, self.emitted = list[int](), list[int](), list[int]()
        self.start: list[int] = []  # tick minus computed tokens, of those that generate
        self.admitted: list[int] = []  # how often
        self.left: list[tuple[int, int]] = []  # of who was cut off: end of its blocks in the queue of free ones, blocks
        self.started_s, self.first_s, self.end_s = list[float](), list[float](), list[float]()
        self.preemptions, self.recomputed = 0, 0  # times, and tokens
        self.intervals: list[Interval] = []
        self.gaps: list[tuple[float, int]] = []  # seconds between two tokens of a user, how many
        self.last_s: dict[int, float] = {}  # of who was cut off: when its last token came
        self.decisions: list[Decision] | None = [] if records else None

    def run(self, arrivals: Iterable[Arrival]) -> None:
        """All of them, in order of time, until the last is done."""
        for arrival in arrivals:
            self.advance(arrival.at_s)
            self.push(arrival)
        self.advance(inf)

    def push(self, arrival: Arrival) -> None:
        """Let a request wait; it arrived at `at_s`, up to which steps were taken."""
        self.waiting.append(len(self.at_s))
        self.at_s.append(arrival.at_s)
        self.prompt.append(arrival.prompt)
        self.answer.append(arrival.answer)
        self.left.append((0, 0))
        for counts in (self.emitted, self.start, self.admitted):
            counts.append(0)
        for moments in (self.started_s, self.first_s, self.end_s):
            moments.append(inf)

    @property
    def load(self) -> int:
        """By which a router compares schedulers [dp]."""
        return 4 * len(self.waiting) + len(self.running)

    def advance(self, until: float) -> None:
        """Take every step that begins before a moment; a run that nobody can join may end behind it."""
        while self.now < until and (self.running or self.waiting):
            self.proceed(until)
        self.now = max(self.now, until) if until < inf else self.now

    def proceed(self, until: float) -> None:
        """Take one step, or those in which nobody comes or goes; someone waits or runs."""
        if self.partial < 0 and self.running and self.waiting and not self.blocked:
            left = self._left_out()
            if left and self._decode(until, most=left):
                return
        alone = self.partial < 0 and (not self.waiting or self.blocked)
        if not (alone and self._decode(until)):
            self._step()

    def _unseen(self, request: int) -> bool:
        """Whether the step that begins now was put together before a request came [ahead]."""
        began_s, ended_s = self.step_s
        return self.limits.ahead and bool(self.running) and ended_s == self.now and self.at_s[request] > began_s

    def _left_out(self) -> int:
        """Steps that pass over those that wait [ahead] [sglang] [trtllm]."""
        limits, tick = self.limits, self.tick
        if self._unseen(self.waiting[0]):
            return 1
        if limits.looked_every > 1 and self.looked_at != tick:
            return -tick % limits.looked_every
        if limits.held_prompts:  # steps are counted whether a prompt waits or not
            since = tick - self.looked_at
            return len(self.waiting) < limits.held_prompts and (not since or since % limits.held_steps > 0)
        if limits.held_steps:
            self.held_since = tick if self.held_since < 0 else self.held_since
            tokens = len(self.running) + sum(self.prompt[request] for request in self.waiting)
            return tokens < limits.held_tokens and tick < self.held_since + limits.held_steps
        return 0

    def _decode(self, until: float, most: int | None = None) -> bool:
        """Steps of generation up to the next event; False where blocks run out in the first of them."""
        count, ticks = len(self.running), self.ticks
        while ticks[0] <= self.tick:
            heappop(ticks)
        steps = 1 if self.decisions is not None else min(ticks[0] - self.tick, most or ticks[0])
        need = self._needed(steps)
        if need > self.free:
            steps = self._lasting(steps)
            if not steps:
                return False
            need = self._needed(steps)
        context = self.context / count
        first = self.costs.decode(count, context)
        seconds = first * steps
        if steps > 1:
            more = (self.costs.decode(count, context + steps - 1) - first) / (steps - 1)
            seconds += more * steps * (steps - 1) / 2
            wait = inf if self.waiting else until - self.now  # a queue that is blocked stays so
            if wait < seconds:
                steps = min(steps, _steps_within(wait, first, more))
                seconds = first * steps + more * steps * (steps - 1) / 2
                need = self._needed(steps)
        if self.decisions is not None:
            self.decisions.append(Decision(tuple(self.running), (), ()))
        self._take(need)
        self._passed(seconds, steps, count, 0)
        return True

    def _needed(self, steps: int) -> int:
        """Blocks that those who generate take in so many steps."""
        grows, b = self.grows, self.pool.block_tokens
        rounds, rest = divmod(steps, b)
        need = rounds * sum(grows) if rounds else 0
        if rest:
            low = self.tick % b
            high = low + rest
            need += sum(grows[low:high]) if high <= b else sum(grows[low:]) + sum(grows[: high - b])
        return need

    def _lasting(self, most: int) -> int:
        """Steps that the free blocks are enough for."""
        return bisect_right(range(most), self.free, key=self._needed) - 1

    def _step(self) -> None:
        """One step as the scheduler makes it."""
        budget, made = self.limits.tokens, Scheduled([], [], [], [])
        chunks = made.chunks
        if self.limits.apart:
            self._prompts(budget, made)
        count = 0 if self.limits.apart and chunks else len(self.running) - (self.partial >= 0)
        if count:
            if self.grows[self.tick % self.pool.block_tokens] > self.free:
                made.cut_off.extend(self._cut_off())
                count = len(self.running) - (self.partial >= 0)
            self._take(self.grows[self.tick % self.pool.block_tokens])
            budget -= count
        if not self.limits.apart:
            self._prompts(budget, made)
        self.blocked = bool(self.waiting) and not (chunks or made.cut_off or self._unseen(self.waiting[0]))
        if not count and not chunks:
            return
        if chunks:
            self.looked_at, self.held_since = self.tick + (count > 0), -1
        if self.decisions is not None:
            ready = [r for r in self.running if r not in dict(made.prompts) and r != self.partial]
            self.decisions.append(Decision(tuple(ready), tuple(made.prompts), tuple(made.cut_off)))
        context = self.context / count if count else 0.0
        seconds = self.costs.mixed(count, context, chunks) if chunks else self.costs.decode(count, context)
        self._passed(seconds, 1, count, sum(tokens for tokens, _ in chunks))
        for request in made.whole:
            self._token(request)

    def _prompts(self, budget: int, made: Scheduled) -> None:
        """The prompt that is not whole, then those that wait."""
        if self.partial >= 0 and budget > 0:
            budget = self._go_on(budget, made)
        if not made.cut_off:
            self._admit(budget, made)

    def _go_on(self, budget: int, made: Scheduled) -> int:
        """The next chunk of the prompt that is not whole; the budget behind it."""
        request, before = self.partial, self.computed
        total = self.prompt[request] + self.emitted[request]
        tokens = min(total - before, budget)
        need = self.pool.held(before + tokens) - self.pool.held(before)
        if need > self.free:
            made.cut_off.append(self._drop_last())
            return budget
        self._take(need)
        made.chunks.append((tokens, before))
        made.prompts.append((request, tokens))
        self.computed = before + tokens
        if self.computed == total:
            self.partial = -1
            made.whole.append(request)
        return budget - tokens

    def _admit(self, budget: int, made: Scheduled) -> None:
        """The queue in order, as far as budget, places and blocks go."""
        limits, pool, waiting = self.limits, self.pool, self.waiting
        while waiting and budget > 0 and len(self.running) < limits.sequences and self.partial < 0:
            request = waiting[0]
            if self._unseen(request):
                return
            total = self.prompt[request] + self.emitted[request]
            found = self._found(request, total)
            tokens = total - found
            if tokens > budget:
                if not limits.chunks:
                    return
                tokens = budget
            end = found + tokens
            need = pool.held(total if limits.whole_prompt else end) - self.shared
            if need > self.free:
                return
            waiting.popleft()
            self._occupy(request, pool.held(end) - self.shared, found)
            self.running[request] = None
            if self.started_s[request] == inf:
                self.started_s[request] = self.now
            self.admitted[request] += 1
            made.chunks.append((tokens, found))
            made.prompts.append((request, tokens))
            budget -= tokens
            if end == total:
                made.whole.append(request)
            else:
                self.partial, self.computed = request, end

    def _found(self, request: int, total: int) -> int:
        """Tokens that the cache has of a request: what all share, or what is left of its own [cache]."""
        b = self.pool.block_tokens
        found = min(self.limits.prefix, total - 1) // b * b
        end, blocks = self.left[request]
        if blocks and self.pool.caches:
            own = min(max(0, end - self.taken), blocks, (total - 1) // b - self.shared)
            found = max(found, found + own * b) if own > 0 else found
        return found

    def _occupy(self, request: int, blocks: int, found: int) -> None:
        """Blocks of who is admitted: what it finds of its own leaves the queue of free ones where it stands."""
        own = max(0, found // self.pool.block_tokens - self.shared) if self.left[request][1] else 0
        if own:
            end = self.left[request][0]
            heappush(self.holes, (end - own, own))
            self.free -= own
        self.left[request] = (0, 0)
        self._take(blocks - own)

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        self.taken += blocks
        while self.holes and self.holes[0][0] < self.taken:
            self.taken += heappop(self.holes)[1]

    def _cut_off(self) -> list[int]:
        """Who has to go so that those before have their next block, the last first."""
        found: list[int] = []
        b, residue, given = self.pool.block_tokens, self.tick % self.pool.block_tokens, 0
        for request in list(self.running):
            if request not in self.running:
                break
            if request == self.partial or self.start[request] % b != residue:
                continue
            need = self.pool.growing(self.tick - self.start[request])
            while given + need > self.free and request in self.running:
                found.append(self._drop_last())
            given += need if request in self.running else 0
        return found

    def _drop_last(self) -> int:
        """Cut off the last that runs: it waits before all others, with nothing computed."""
        request, _ = self.running.popitem()
        if request == self.partial:
            computed, self.partial = self.computed, -1
        else:
            computed = self.tick - self.start[request]
            self._leave(request, computed)
            self.emitted[request] = computed - self.prompt[request] + 1
            self.last_s[request] = self.now
        self._release(request, computed)
        self.left[request] = (self.returned, computed // self.pool.block_tokens - self.shared)
        self.admitted[request] += 1  # what was to happen to it does not
        self.waiting.appendleft(request)
        self.preemptions += 1
        self.recomputed += computed
        return request

    def _release(self, request: int, computed: int) -> None:
        blocks = self.pool.held(computed) - self.shared
        self.free += blocks
        self.returned += blocks
        self.blocked = False

    def _leave(self, request: int, computed: int) -> None:
        """No longer one of those that generate."""
        self.context -= computed
        self.grows[self.start[request] % self.pool.block_tokens] -= self.pool.growing(computed)

    def _token(self, request: int) -> None:
        """The token behind a whole prompt; from now on the request generates, or is done."""
        self.emitted[request] += 1
        if self.emitted[request] == 1:
            self.first_s[request] = self.now
        else:
            self.gaps.append((self.now - self.last_s.pop(request, self.now), 1))
        computed = self.prompt[request] + self.emitted[request] - 1
        rest = self.answer[request] - self.emitted[request]
        self.start[request] = self.tick - computed
        if rest <= 0:
            self._end(request, computed)
            return
        pool = self.pool
        self.context += computed
        self.grows[self.start[request] % pool.block_tokens] += pool.growing(computed)
        self._at(self.ends, self.tick + rest, request)
        for most in pool.windows:
            until = (most - 1) * pool.block_tokens + 1 - computed
            if 0 < until <= rest:
                self._at(self.full, self.tick + until, request)

    def _at(self, table: dict[int, list[tuple[int, int]]], tick: int, request: int) -> None:
        if tick not in self.ends and tick not in self.full:
            heappush(self.ticks, tick)
        table.setdefault(tick, []).append((request, self.admitted[request]))

    def _passed(self, seconds: float, steps: int, decoding: int, tokens: int) -> None:
        """Time and tokens of steps that were taken; who is done goes."""
        running = len(self.running)
        self.now += seconds
        self.step_s = self.now - seconds / steps, self.now
        if decoding:
            self.tick += steps
            self.context += decoding * steps
            self.gaps.append((seconds / steps, decoding * steps))
            for request, time in self.full.pop(self.tick, ()):
                if self.admitted[request] == time:
                    self.grows[self.start[request] % self.pool.block_tokens] -= 1
            for request, time in self.ends.pop(self.tick, ()):
                if self.admitted[request] == time:
                    self._done(request)
        self.intervals.append(Interval(
            self.now, seconds, steps, decoding, running, len(self.waiting), self.pool.blocks - self.free, tokens))

    def _done(self, request: int) -> None:
        computed = self.tick - self.start[request]
        self.emitted[request] = self.answer[request]
        self._leave(request, computed)
        self._end(request, computed)

    def _end(self, request: int, computed: int) -> None:
        del self.running[request]
        self._release(request, computed)
        self.end_s[request] = self.now


def _steps_within(wait: float, first: float, more: float) -> int:
    """The fewest steps, of which each takes `more` longer than the one before, that take a time at least.

    >>> _steps_within(1.0, 0.3, 0.0), _steps_within(6.0, 1.0, 1.0)
    (4, 3)
    """
    if more <= 1e-9 * first:
        return max(1, ceil(wait / first - 1e-9))
    half = first - more / 2
    return max(1, ceil((sqrt(half * half + 2 * more * wait) - half) / more - 1e-9))
