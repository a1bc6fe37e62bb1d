"""vLLM's paged cache: layers in groups of equal size that share one pool of blocks.

[groups] vllm-project/vllm vllm/v1/core/kv_cache_utils.py `get_kv_cache_groups`, `unify_kv_cache_spec_page_size`
[specs] vllm/v1/kv_cache_interface.py `max_memory_usage_bytes`: a window keeps window - 1 tokens and those in flight
"""

from __future__ import annotations

from msgspec import Struct

from vramcast.units import ceil_div


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers whose blocks are handed out together."""

    kind: str  # "full attention", "sliding window", "chunked", "state"
    block_tokens: int  # tokens of one of its blocks
    window: int = 0  # tokens a window looks back, or of one chunk
    state_blocks: int = 1  # of a recurrent state: more with speculative tokens and prefix caching

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks one sequence of so many tokens holds at most."""
        match self.kind:
            case "state":
                return self.state_blocks
            case "sliding window":
                return ceil_div(min(self.window - 1 + in_flight, tokens), self.block_tokens) + 1
            case "chunked":
                return ceil_div(min(self.window + in_flight, tokens), self.block_tokens)
            case _:
                return ceil_div(tokens, self.block_tokens)


class BlockPool(Struct, frozen=True, kw_only=True):
    """The pool of one rank."""

    blocks: int  # of the pool
    block_bytes: int  # one block in all layers of a group
    groups: tuple[LayerGroup, ...]
    in_flight: int  # tokens that steps under way can write
    max_model_len: int
    logs_blocks: bool = True  # the figure logged counts blocks; later versions log concurrency x context
    ranks_sharing: int = 1  # decode context parallelism: ranks that hold a part of each sequence

    @property
    def num_bytes(self) -> int:
        """The whole pool."""
        return self.blocks * self.block_bytes

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks one sequence holds at its longest."""
        share = ceil_div(tokens, self.ranks_sharing)
        return sum(group.blocks(share, self.in_flight) for group in self.groups)

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence of so many tokens takes [bytes]."""
        return self.sequence_blocks(tokens) * self.block_bytes

    @property
    def reported_tokens(self) -> dict[str, int]:
        """Both ways vLLM has counted; hybrid models make them differ. The one logged comes first."""
        block_tokens = min(group.block_tokens for group in self.groups)
        by_blocks = self.blocks // len(self.groups) * block_tokens * self.ranks_sharing
        concurrency = self.blocks / self.sequence_blocks(self.max_model_len)
        counts = {"blocks per group": by_blocks, "concurrency x context": int(concurrency * self.max_model_len)}
        return counts if self.logs_blocks else dict(reversed(counts.items()))
