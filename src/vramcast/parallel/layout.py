"""What one rank holds of a divided model: local widths, local tokens, local experts.

[Megatron] Shoeybi et al., arXiv:1909.08053; [SP] Korthikanti et al., arXiv:2205.05198.
[apart] sgl-project/sglang srt/models/deepseek_v2.py and qwen3_moe.py under --enable-dp-attention: `DeepseekV2MLP` and
`lm_head` lie on the whole tensor-parallel group, `embed_tokens` has `enable_tp=not is_dp_attention_enabled()`

Pipeline schedules as forward and backward slots of one stage.

[1F1B] Narayanan et al., arXiv:2104.04473, section 2.2; [Megatron] megatron/core/pipeline_parallel/schedules.py,
get_pp_rank_microbatches; [GPipe] Huang et al., arXiv:1811.06965; pytorch torch/distributed/pipelining/schedules.py
`ScheduleGPipe`.

Which layers `device_map="auto"` puts on which card of one process.

Source: huggingface/accelerate utils/modeling.py, since transformers 5.0 its integrations/accelerate.py:
`get_balanced_memory`, `infer_auto_device_map`; quantizers/quantizer_bnb_4bit.py `adjust_max_memory`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Plan, share
from vramcast.domain.model import Noun, Parameter, Split
from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec
from vramcast.units import ceil_div, round_up

OVER_ALL: Final = ("mlp.", "moe.shared.", "head", "mtp.mlp.", "mtp.moe.shared.", "mtp.head")
"""Beginnings of the paths of weights that copies of attention divide together."""


class Layout(Noun, frozen=True):
    """Degrees of parallelism and the local sizes they lead to."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1  # context parallelism not counted in
    sequence_parallel: bool = False
    vocab_divisor: int = 1  # the embedding is padded to a multiple of this times tp
    kv_heads: int = 0  # of the layer in question; 0: no copies of keys and values
    apart: int = 1  # copies of attention that divide the dense feed-forward blocks and the head together [apart]

    def around(self, parameter: Parameter) -> Layout:
        """The degrees that a weight is divided by where attention has copies of its own [apart]."""
        if self.apart == 1 or parameter.expert:
            return self
        if parameter.path.startswith(OVER_ALL):
            return replace(self, tp=self.tp * self.apart)
        return replace(self, tp=1) if parameter.kind == "embedding" else self

    @property
    def expert_dp(self) -> int:
        """Ranks that share one copy of the experts."""
        return max(1, self.dp * self.cp * self.tp // (self.ep * self.etp))

    def local_experts(self, experts: int) -> int:
        """Experts of one rank."""
        return share("ep", experts, self.ep, what="experts")

    def padded_vocab(self, vocab: int) -> int:
        """Rows of the embedding over all ranks."""
        return round_up(vocab, self.vocab_divisor * self.tp)

    def local_vocab(self, vocab: int) -> int:
        """Rows of the embedding on one rank."""
        return self.padded_vocab(vocab) // self.tp

    def local_elements(self, parameter: Parameter) -> int:
        """Elements of a weight that one rank owns."""
        if parameter.expert:
            experts, *rest = parameter.shape
            inner = prod(rest)
            divided = parameter.split in (Split.COLUMN, Split.ROW)
            return ceil_div(experts, self.ep) * (ceil_div(inner, self.etp) if divided else inner)
        match parameter.split:
            case Split.REPLICATED:
                return parameter.elements
            case Split.VOCAB:
                return self.local_vocab(parameter.shape[0]) * prod(parameter.shape[1:])
            case Split.KV:
                kept = min(self.tp, self.kv_heads) if self.kv_heads else self.tp
                return ceil_div(parameter.elements, kept)
            case _:
                return ceil_div(parameter.elements, self.tp)


def uneven(engine: str, plan: Plan, asked: str, length: int, divisor: int) -> InvalidSpec:
    """The refusal of a length that sequence and context parallelism do not divide.

    Args:
        engine: whose rule it is
        plan: how many ranks share the positions
        asked: the option with its value, "seq-len=4097"
        length: its value [tokens]
        divisor: of what would be accepted [tokens]
    """
    below = length // divisor * divisor
    return InvalidSpec(
        "{} divides positions evenly over tp={} and cp={}, by {}; {} does not divide so, use {} or {}",
        engine, plan.tp, plan.cp, divisor, asked, below or divisor, below + divisor
    )


MOST_KNOWN: Final = 1024
"""Schedules that are kept: a search looks at each with many degrees of another kind [count]."""


class Slot(Struct, frozen=True):
    """One pass of one micro-batch through one model chunk of the stage."""

    forward: bool
    chunk: int = 0


class Slots(Struct, frozen=True):
    """Slots before, during and after the steady state; the steady part repeats `repeats` times.

    Where its length is no multiple of what repeats, the rest of the steady state is counted to the end.
    """

    warmup: tuple[Slot, ...]
    steady: tuple[Slot, ...]
    repeats: int
    cooldown: tuple[Slot, ...]


def one_forward_one_backward(*, stage: int, stages: int, micro_batches: int) -> Slots:
    """1F1B: stage i holds at most stages - i micro-batches.

    Args:
        stage: from 0 [index]
        stages: pipeline ranks [count]
        micro_batches: per optimizer step [count]
    """
    warmup = min(stages - stage - 1, micro_batches)
    forward, backward = Slot(True), Slot(False)
    return Slots((forward,) * warmup, (forward, backward), micro_batches - warmup, (backward,) * warmup)


def gpipe(*, micro_batches: int) -> Slots:
    """All forwards, then all backwards in the same order: every stage holds every micro-batch at once."""
    return Slots((Slot(True),) * micro_batches, (), 0, (Slot(False),) * micro_batches)


@lru_cache(maxsize=MOST_KNOWN)
def interleaved(
    *, stage: int, stages: int, micro_batches: int, chunks: int, group: int, overlap_extra: int = 0
) -> Slots:
    """Interleaved 1F1B: each rank owns `chunks` pieces and runs groups of micro-batches through one after the other.

    Args:
        stage, stages, micro_batches: as above
        chunks: model chunks per rank [count]
        group: micro-batches per chunk in a row (Megatron's microbatch group size, by default `stages`) [count]
        overlap_extra: further warm-up slots (expert-communication overlap) [count]
    """
    total = micro_batches * chunks
    warmup = min(total, 2 * (stages - stage - 1) + (chunks - 1) * group + overlap_extra)
    order = list(_chunk_order(micro_batches, chunks, group))
    forward, backward = ([Slot(way, chunk) for chunk in range(chunks)] for way in (True, False))
    forwards, backwards = [forward[chunk] for chunk in order], [backward[chunks - 1 - chunk] for chunk in order]
    steady = [slot for pair in zip(forwards[warmup:], backwards, strict=False) for slot in pair]
    period, repeats = len(steady), 1
    if micro_batches % group == 0 and len(steady) >= 2 * group * chunks:
        period = 2 * group * chunks  # a group of micro-batches through all chunks, forward and backward
        repeats = len(steady) // period
    return Slots(
        tuple(forwards[:warmup]),
        tuple(steady[:period]),
        repeats,
        (*steady[period * repeats :], *backwards[total - warmup :]),
    )


def _chunk_order(micro_batches: int, chunks: int, group: int) -> Iterator[int]:
    """The chunk of every forward slot (schedules.py, get_schedule_table)."""
    for start in range(0, micro_batches, group):
        for chunk in range(chunks):
            for _ in range(start, min(start + group, micro_batches)):
                yield chunk


def in_flight(slots: Slots) -> int:
    """Most micro-batch chunks held at once."""
    held = most = 0
    for slot in (*slots.warmup, *slots.steady * min(slots.repeats, 2), *slots.cooldown):
        held += 1 if slot.forward else -1
        most = max(most, held)
    return most


COUNTS_LEAVES_SINCE: Final = (5, 18)
"""Release of transformers whose buffer is at least as large as the largest module without parts."""

KEPT_FREE: Final = 0.9
"""Of each card, where bitsandbytes packs the network."""


def require_layers(layers: int, gpus: int) -> None:
    """Raises: InvalidSpec when there are more GPUs than layers"""
    if gpus > layers:
        raise InvalidSpec("pp={} is more than the {} layers; use at most {}", gpus, layers, layers)


class Modules(NamedTuple):
    """What is placed, in this order [bytes]."""

    first: int  # before the layers
    layers: tuple[int, ...]
    last: int  # behind them
    leaf: int  # the largest module without parts outside the layers


def modules_of(weights: Iterable[tuple[str, int, int]], main: str) -> Modules:
    """Of weights by their owner.

    Args:
        weights: owner, size [bytes] and how many such there are, as they are loaded
        main: name of the stack whose layers are placed
    """
    first = last = leaf = 0
    layers: dict[str, tuple[int, int]] = {}
    for owner, size, repeats in weights:
        if owner.startswith(f"{main}.layers"):
            layers[owner] = (repeats, layers.get(owner, (0, 0))[1] + size)
            continue
        leaf = max(leaf, size)
        if owner in ("head", main):
            last += size * repeats
        else:
            first += size * repeats
    return Modules(first, tuple(size for count, size in layers.values() for _ in range(count)), last, leaf)


def balanced(found: Modules, *, gpus: int, release: Version, packed: bool = False) -> tuple[int, ...]:
    """Layers of each GPU, in order: every GPU but the last takes an equal share and 1.25 times the largest module more;
    the first one keeps room for the largest that is still to come. The last may get what is behind the layers alone.

    Args:
        gpus: more than one [count]
        release: of transformers
        packed: by bitsandbytes, which keeps a part of each card free

    >>> balanced(Modules(4, (2,) * 8, 4, 4), gpus=2, release=(4, 57)), balanced(Modules(4, (2,) * 8, 4, 4), gpus=2,
    ...     release=(5, 20))
    ((3, 5), (4, 4))
    """
    first, layers, last, leaf = found
    largest = max(leaf if release >= COUNTS_LEAVES_SINCE else 0, *layers)
    share = ((first + sum(layers) + last) // gpus + int(1.25 * largest)) * (KEPT_FREE if packed else 1)
    sizes, used, room = [0], first, share - max(last, *layers)
    for size in (*layers, last):
        if used + size > room and len(sizes) < gpus and sizes[-1]:
            sizes.append(0)
            used, room = 0, share
        sizes[-1] += 1
        used += size
    return (*sizes[:-1], sizes[-1] - 1)
