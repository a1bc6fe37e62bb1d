"""Blocks of a denoiser that wait on the host while others work.

[kohya] kohya-ss/sd-scripts library/flux_models.py, sd3_models.py `enable_block_swap` @0.9
"""

from __future__ import annotations

from vramcast.domain.pipeline import SD3, Flux, Network
from vramcast.engines.diffusers import Tensors
from vramcast.errors import InvalidSpec, Unsupported


def on_card(found: Tensors, network: Network, swapped: int, name: str) -> Tensors:
    """What is on the card of weights and how many equal ones there are.

    Args:
        found: the denoiser's tensors, each with how many equal ones there are
        network: whose they are
        swapped: blocks that wait on the host, as sd-scripts counts them [count]
        name: of the pipeline

    Raises: Unsupported for other networks, InvalidSpec where no two blocks of a kind are left
    Source: [kohya]
    """
    if isinstance(network, Flux):
        waiting = {"double": (swapped // 2, network.num_layers),
                   "single": ((swapped - swapped // 2) * 2 + 1, network.num_single_layers)}
    elif isinstance(network, SD3):
        waiting = {"joint": (swapped, network.num_layers)}
    else:
        raise Unsupported("blocks of {} that wait on the host are not modelled", name)
    for owner, (count, layers) in waiting.items():
        if count > layers - 2:
            raise InvalidSpec("swapped={} leaves no two of {} {} blocks on the card; use fewer", swapped, layers, owner)
        mine = [one for one in found if one[0].owner.endswith(f".{owner}")]
        left = layers - count
        kept = ([(one, times * left // layers) for one, times in mine] if all(times > 1 for _, times in mine)
                else mine[:len(mine) * left // layers])
        found = [one for one in found if one not in mine] + kept
    return found
