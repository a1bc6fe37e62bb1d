"""Which share of a forward the host computes: weights and caches that a placement leaves there."""

from __future__ import annotations

import re
from typing import NamedTuple

from vramcast.domain.serving import ServeJob
from vramcast.engines.llamacpp.context import Context
from vramcast.engines.llamacpp.placement import EXPERTS

OFFLOADED_ROWS = 32
"""From so many rows on weights on the host are brought to a card for their product, unless --no-op-offload
[ggml-org/llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu `ggml_backend_cuda_device_offload_op`]."""


class HostShares(NamedTuple):
    """Shares of a network that lie on the host, by bytes; 0: all on cards."""

    experts: float
    layers: float  # of all other weights of layers
    head: float
    cache: float
    op_offload: bool
    micro_batch: int  # tokens
    bytes_per_s: float | None  # of main memory, where the question says
    threads: int | None

    @property
    def any(self) -> bool:
        """Whether the host computes anything."""
        return bool(self.experts or self.layers or self.head or self.cache)


def host_shares(job: ServeJob) -> HostShares:
    """What stays on the host of a deployment.

    Raises: as the engine's `deploy`
    """
    context = Context(job)
    placement, host = context.placement, context.placement.host
    held: dict[str, list[int]] = {"experts": [0, 0], "layers": [0, 0], "head": [0, 0]}
    for weight in context.weights:
        kind = "head" if weight.layer is None else "experts" if re.search(EXPERTS, weight.name) else "layers"
        if weight.layer is None and not weight.name.startswith("output."):
            continue  # rows of the embedding are gathered
        held[kind][0] += weight.num_bytes * (placement.weight(weight.name, weight.layer) == host)
        held[kind][1] += weight.num_bytes
    held["head"] = held["head"] if held["head"][1] else [int(placement.output == host), 1]
    shares = {kind: on_host / whole if whole else 0.0 for kind, (on_host, whole) in held.items()}
    layers = range(job.model.num_layers)
    cache = sum(context.cache_device(layer) == host for layer in layers) / len(layers)
    said = context.options.get("host-bandwidth")
    return HostShares(
        **shares, cache=cache, op_offload=context.settings.op_offload, micro_batch=context.settings.micro_batch,
        bytes_per_s=None if said is None else said * 1e9, threads=context.options.get("threads"),
    )
