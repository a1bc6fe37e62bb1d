"""Cards and clusters of one kind of card."""

from __future__ import annotations

from vramcast.domain.model import Noun


class Gpu(Noun, frozen=True, kw_only=True):
    """One card as a process sees it."""

    name: str
    vendor: str
    arch: str  # "Hopper"
    compute_capability: str | None = None
    visible_bytes: int  # what a process can use
    smi_total_bytes: int | None = None
    context_bytes: int | None = None  # CUDA context and library images of one PyTorch process

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 90 for Hopper."""
        return None if self.compute_capability is None else int(self.compute_capability.replace(".", ""))


class Cluster(Noun):
    """`num_nodes` machines with `gpus_per_node` equal cards."""

    gpu: Gpu
    gpus_per_node: int
    num_nodes: int = 1

    @property
    def count(self) -> int:
        """Cards in all."""
        return self.gpus_per_node * self.num_nodes

    @property
    def name(self) -> str:
        """As the command line writes it: '8xh100-sxm-80gb', '2x8xh100-sxm-80gb'."""
        nodes = f"{self.num_nodes}x" if self.num_nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node}x{self.gpu.name}"
