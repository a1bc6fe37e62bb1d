"""Attention over positions that ranks divide among themselves.

[ring] pytorch torch/distributed/tensor/experimental/_attention.py `_AllGatherRotater`, `_SDPAMerger`,
`_templated_ring_attention_backward`
"""

from __future__ import annotations

from vramcast.operators.graph import Graph


def ring_attention(graph: Graph, ranks: int) -> None:
    """Context parallelism: keys and values of all ranks are gathered, partial results merged in fp32 [ring]."""
    for operator in graph.operators:
        if operator.name not in ("flash_attention", "efficient_attention", "cudnn_attention"):
            continue
        q, k, v = operator.inputs
        local = k.num_bytes + v.num_bytes
        both = [graph.tensor("ring.kv", local), graph.tensor("ring.kv_gathered", ranks * local)]
        merged = [graph.tensor("ring.output_fp32", 2 * operator.outputs[0].num_bytes)]
        gradients = [
            graph.tensor("ring.gradients_fp32", 2 * (q.num_bytes + local)),
            graph.tensor("ring.gradients_sent", 2 * local),
            graph.tensor("ring.gradients_received", 2 * local),
            graph.tensor("ring.block_gradients", q.num_bytes + local),
        ]
        operator.temporaries = (*operator.temporaries, *both, *merged)
        operator.backward_temporaries = (*operator.backward_temporaries, *both, *gradients)
