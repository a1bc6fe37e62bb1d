"""A cache of separate pools: one for layers that keep everything, one for windows, one for recurrent states."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.states.cache import state_bytes, token_bytes
from vramcast.units import round_up


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


def contents_of(mixers: Iterable[Mixer | None], *, tp: int, kv_dtype: str, windows: bool = True) -> Contents:
    """What so many layers keep on one rank.

    Args:
        tp: tensor-parallel ranks
        kv_dtype: of keys and values
        windows: whether sliding windows have a pool of their own; else they are kept at full length
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
                states += state_bytes(mixer, tp=tp)
            case None:
                pass
    return Contents(full_token_bytes=full, window_token_bytes=window_bytes, window=window, state_bytes=states)
