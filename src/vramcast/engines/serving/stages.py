"""The part of a network that one pipeline rank holds, its widest moment, what the driver and other cards take.

Symbols:  T tokens of the step   H hidden   F feed-forward width of one rank   k experts a token   V vocabulary Engines
hold the same tensors there; what differs (workspaces, samplers) is their own.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: up to 1 MiB in segments of 2 MiB, up to 10 MiB in segments of 20
MiB, the rest in whole 2 MiB; what a segment has left over serves later weights

A cache of separate pools: one for layers that keep everything, one for windows, one for recurrent states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.allocator import Allocator
from vramcast.domain.device import Gpu
from vramcast.domain.model import (
    MLP,
    Attention,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Model,
    MoE,
    MultiLatentAttention,
    Run,
)
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor, TensorsOf
from vramcast.errors import InvalidSpec, Note
from vramcast.states.storage import state_bytes, token_bytes
from vramcast.units import ceil_div, round_up


class Stage(Struct, frozen=True):
    """Layers [start, stop) of the main stack; the first stage holds the embedding and towers, the last the head."""

    start: int
    stop: int
    first: bool
    last: bool

    @property
    def role(self) -> str:
        """As rank roles are named."""
        if self.first and self.last:
            return "all"
        return "first stage" if self.first else "last stage" if self.last else "middle stage"

    def runs(self, model: Model) -> Iterator[Run]:
        """The runs of equal layers of this stage."""
        position = 0
        for run in model.main.runs:
            low, high = max(position, self.start), min(position + run.count, self.stop)
            if high > low:
                yield Run(count=high - low, layer=run.layer)
            position += run.count

    def layers(self, model: Model) -> Iterator[Layer]:
        """The layers of this stage, one by one."""
        for run in self.runs(model):
            for _ in range(run.count):
                yield run.layer


def stages(sizes: Sequence[int]) -> tuple[Stage, ...]:
    """Stages of so many layers each, in order."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    last = len(sizes) - 1
    return tuple(
        Stage(start, start + size, index == 0, index == last)
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def even_stages(num_layers: int, pp: int) -> tuple[Stage, ...]:
    """Equal stages; layers left over go to the last stages but one, so that the head's stage is never the fuller one.

    Source: vllm-project/vllm vllm/distributed/utils.py `get_pp_indices`
    """
    if pp > num_layers:
        raise InvalidSpec("pp={} is more than the {} layers; use at most {}", pp, num_layers, num_layers)
    sizes = [num_layers // pp] * pp
    for left in range(num_layers % pp):
        sizes[pp - 2 - left if pp > 1 else 0] += 1
    return stages(sizes)


HIDDEN_COPIES: Final = 4
"""Tensors of T x H alive beside them: residuals before and after, attention output, normed states."""


def widest_moment(
    model: Model, stage: Stage, *, tokens: int, tp: int, experts_divided: int, width: int, source: str,
    gathered: int = 1,
) -> Iterator[Tensor]:
    """Tensors alive in the widest layer of a step.

    Args:
        tokens: of the step, T
        tp: ranks that share a layer's matrices
        experts_divided: ranks that share one expert's matrices
        width: of an activation [bytes]
        source: where the engine's forward is written
        gathered: data-parallel ranks whose tokens pass through the experts of each
    """
    h, tensor = model.hidden, TensorsOf(owner="step", category=Category.ACTIVATIONS, source=source)
    yield tensor("hidden states", HIDDEN_COPIES * tokens * h * width,
                 formula=f"{HIDDEN_COPIES} x {tokens:,} x {h:,}")
    dense = max((inner_width(run.layer.channel, tp) for run in stage.runs(model)), default=0)
    yield tensor("mlp.gate_up and product", 3 * tokens * dense * width, formula=f"3 x {tokens:,} x {dense:,}")
    routed = max((_routed(run.layer.channel, h, experts_divided) for run in stage.runs(model)), default=0)
    rows = tokens * gathered
    yield tensor("experts", rows * routed * width, formula=f"{rows:,} x {routed:,}")


def inner_width(channel: MLP | MoE | None, tp: int) -> int:
    """Width of the dense part of a layer's channel mixer on one rank."""
    if isinstance(channel, MoE):
        return ceil_div(channel.shared_width, tp)
    return ceil_div(channel.width, tp) if channel is not None else 0


def _routed(channel: MLP | MoE | None, hidden: int, divided: int) -> int:
    """Elements a token has in the experts' tensors: up projections or outputs, products, and the sum."""
    if not isinstance(channel, MoE):
        return 0
    inner, h = ceil_div(channel.expert.width, divided), channel.latent_width or hidden
    return channel.top_k * (max(2 * inner, h) + inner) + h


def logits(model: Model, *, sequences: int, width: int, source: str, copies: int = 1) -> Iterator[Tensor]:
    """Logits of one position of every sequence, in the model's width and in fp32.

    Args:
        copies: of attention that divide the head: the logits of all are gathered before a rank takes its own
    """
    per = Note("{:,} sequences x {:,}", sequences, model.vocab)
    mine, tensor = sequences * model.vocab, TensorsOf(owner="step", category=Category.ACTIVATIONS, source=source)
    if copies > 1:
        everyone = Note("{:,} sequences x {:,}", sequences * copies, model.vocab)
        yield tensor("gathered logits", mine * copies * width, formula=Note("{} x {} B", everyone, width))
    yield tensor("logits", mine * width, formula=Note("{} x {} B", per, width))
    yield tensor("logits in fp32", mine * 4, formula=f"{per} x 4 B")


def reserved_bytes(program: Program) -> int:
    """Segments that a load program's tensors lie in, made layer after layer as engines make them [bytes].

    Args:
        program: allocations only, each with how many equal ones there are

    >>> mib = 2**20
    >>> weight = Tensor(name="w", num_bytes=12 * mib + mib // 2, category=Category.WEIGHTS)
    >>> reserved_bytes((Loop(40, (Alloc(weight),), label="layers"),)) // mib
    560
    """
    return _reserved_by(tuple((count, tensor.num_bytes) for tensor, count in tensors_of(program) if tensor.num_bytes))


@lru_cache(maxsize=1024)
def _reserved_by(equal: tuple[tuple[int, int], ...]) -> int:
    """The same of (number, size) pairs; questions about one model often differ in everything but its weights."""
    allocator = Allocator()
    for index in range(max((count for count, _ in equal), default=0)):
        for count, num_bytes in equal:
            if index < count:
                allocator.allocate(num_bytes)
    return allocator.reserved_bytes


def peak_reserved_bytes(program: Program) -> int:
    """Segments that a step leaves behind: later tensors that find no room in earlier ones lie beside them [bytes].

    Args:
        program: allocations and frees, without loops
    """
    allocator, live = Allocator(), {}
    for node in program:
        if isinstance(node, Alloc) and node.tensor.num_bytes:
            live[node.tensor.name] = allocator.allocate(node.tensor.num_bytes)
        elif isinstance(node, Free) and node.tensor.num_bytes:
            allocator.free(live.pop(node.tensor.name))
    return allocator.peak_reserved_bytes


def without_draft(program: Program) -> Program:
    """A load program without what belongs to a draft."""
    kept = []
    for node in program:
        (tensor, _), *_ = tensors_of((node,))
        if tensor.category is not Category.DRAFT:
            kept.append(node)
    return tuple(kept)


def tensors_of(program: Program) -> list[tuple[Tensor, int]]:
    """The tensors a load program allocates, with how many equal ones there are."""
    found: list[tuple[Tensor, int]] = []
    for node in program:
        if isinstance(node, Alloc):
            found.append((node.tensor, 1))
        elif isinstance(node, Loop):
            found += [(tensor, count * node.count) for tensor, count in tensors_of(node.body)]
    return found


def has_fabric(gpu: Gpu) -> bool:
    """Whether all cards of a machine reach each other directly; bridges join few."""
    return gpu.link is not None and gpu.link_topology != "bridge"


class Contents(Struct, frozen=True, kw_only=True):
    """What the layers of one rank keep of a sequence [bytes]."""

    full_token_bytes: int = 0  # of all layers that keep every token
    window_token_bytes: int = 0  # of all layers with a sliding window
    window: int = 0  # the largest [tokens]
    state_bytes: int = 0  # of all recurrent layers


class Pools(Struct, frozen=True, kw_only=True):
    """The pools of one rank, sized so that each serves the same number of sequences as far as the engine knows."""

    contents: Contents
    full_tokens: int  # that the first pool holds
    window_tokens: int = 0  # that the pool of windows holds
    states: int = 0  # recurrent states that fit
    states_per_sequence: int = 1  # a running sequence's own, and those of its prefixes
    page_tokens: int = 1
    in_flight: int = 0  # tokens of a step that windows keep beside their own
    logged: str = "tokens of full attention"

    @property
    def num_bytes(self) -> int:
        """All pools [bytes]."""
        c = self.contents
        kept = self.full_tokens * c.full_token_bytes + self.window_tokens * c.window_token_bytes
        return kept + self.states * c.state_bytes

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence takes of the pool that fills first, as a share of all of them [bytes].

        0 where layers keep nothing.
        """
        if not any((self.contents.full_token_bytes, self.contents.window_token_bytes, self.contents.state_bytes)):
            return 0
        c, paged = self.contents, round_up(tokens, self.page_tokens)
        kept = min(paged, round_up(c.window + self.in_flight, self.page_tokens))
        uses = (
            (paged, self.full_tokens, c.full_token_bytes),
            (kept, self.window_tokens, c.window_token_bytes),
            (self.states_per_sequence, self.states, c.state_bytes),
        )
        shares = [used * self.num_bytes / held for used, held, size in uses if size and held]
        return max(1, ceil(max(shares))) if shares else max(1, sum(used * size for used, _, size in uses))

    def shortened(self, tokens: int) -> Pools:
        """Those of a stage that has to follow one with fewer tokens."""
        if not self.full_tokens:
            return self
        window = self.window_tokens * tokens // self.full_tokens // self.page_tokens * self.page_tokens
        return replace(self, full_tokens=tokens, window_tokens=window)

    @property
    def reported_tokens(self) -> dict[str, int]:
        """Tokens of each pool; the one of full attention is what engines log."""
        counts = {self.logged: self.full_tokens}
        if self.contents.window_token_bytes:
            counts["tokens of sliding windows"] = self.window_tokens
        if self.contents.state_bytes:
            counts["recurrent states"] = self.states
        return counts


def fewest_tokens(stages: Iterable[Pools]) -> int:
    """What all stages have room for; stages whose layers keep nothing for a token follow any number of them."""
    keeping = (pools for pools in stages if pools.contents.full_token_bytes or pools.contents.window_token_bytes)
    return min((pools.full_tokens for pools in keeping), default=0)


def contents_of(
    mixers: Iterable[Mixer | None], *, tp: int, kv_dtype: str, windows: bool = True, state_width: int = 4
) -> Contents:
    """What so many layers keep on one rank.

    Args:
        tp: tensor-parallel ranks
        kv_dtype: of keys and values
        windows: whether sliding windows have a pool of their own; else they are kept at full length
        state_width: of an element of a recurrent state [bytes]
    """
    full = window_bytes = window = states = 0
    for mixer in mixers:
        match mixer:
            case Attention() | MultiLatentAttention():
                size = token_bytes(mixer, tp=tp, k_dtype=kv_dtype)
                if windows and isinstance(mixer, Attention) and mixer.window is not None:
                    window_bytes, window = window_bytes + size, max(window, mixer.window)
                else:
                    full += size
            case Mamba() | LinearAttention():
                states += state_bytes(mixer, tp=tp, state_width=state_width)
            case None:
                pass
    return Contents(full_token_bytes=full, window_token_bytes=window_bytes, window=window, state_bytes=states)
