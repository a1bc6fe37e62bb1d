"""vLLM's paged cache: layers in groups of equal size that share one pool of blocks.

[groups] vllm-project/vllm vllm/v1/core/kv_cache_utils.py `get_kv_cache_groups`, `get_num_blocks`
[managers] vllm/v1/core/single_type_kv_cache_manager.py: a sliding window keeps window - 1 + tokens in flight
"""

from __future__ import annotations

from msgspec import Struct

from vramcast.units import ceil_div


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers whose blocks are handed out together."""

    kind: str  # "full", "window", "state"
    layers: int  # padding layers included
    window: int = 0  # tokens a sliding window looks back


class BlockPool(Struct, frozen=True, kw_only=True):
    """The pool of one rank."""

    blocks: int  # of the pool
    block_tokens: int
    page_bytes: int  # one block of one layer
    groups: tuple[LayerGroup, ...]  # equal in layers
    in_flight: int  # tokens scheduled in one step
    max_model_len: int

    @property
    def block_bytes(self) -> int:
        """One block in all layers of a group."""
        return self.page_bytes * self.groups[0].layers

    @property
    def num_bytes(self) -> int:
        """The whole pool."""
        return self.blocks * self.block_bytes

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks one sequence holds at its longest."""
        return sum(self._blocks_of(group, tokens) for group in self.groups)

    def _blocks_of(self, group: LayerGroup, tokens: int) -> int:
        if group.kind == "state":
            return 1
        if group.kind == "window":
            kept = min(group.window - 1 + self.in_flight, tokens)
            return ceil_div(kept, self.block_tokens) + 1
        return ceil_div(tokens, self.block_tokens)

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence of so many tokens takes [bytes]."""
        return self.sequence_blocks(tokens) * self.block_bytes

    @property
    def reported_tokens(self) -> dict[str, int]:
        """vLLM's figures: blocks x block size / groups, and concurrency x context since 0.2x."""
        by_blocks = self.blocks // len(self.groups) * self.block_tokens
        concurrency = self.blocks / self.sequence_blocks(self.max_model_len)
        return {"blocks per group": by_blocks, "concurrency x context": int(concurrency * self.max_model_len)}
