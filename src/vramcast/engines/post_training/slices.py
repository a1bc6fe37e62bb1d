"""What one rank of a tensor-parallel group has of a network whose linear layers are DTensors.

[nemo] NVIDIA-NeMo/RL 7ea279a nemo_rl/models/dtensor/parallelize.py `_parallelize_qwen`, `_parallelize_llama`,
`get_hf_tp_plan`: projections of queries, keys and values, of gate and up, and the head are divided by columns, those
behind them by rows, the embedding by its vocabulary; norms are whole on every rank
"""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.model import MLP, Attention, Layer, Model
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.units import ceil_div


def slice_of(model: Model, ranks: int) -> Model:
    """The network that one of so many ranks computes.

    Towers are whole on every rank. Leaves out: what a sum over the ranks is received into

    Raises: InvalidSpec for degrees that do not divide, Unsupported for layers that are not divided here
    """
    if ranks == 1:
        return model
    main = replace(model.main, runs=tuple(
        replace(run, layer=_layer(model, run.layer, ranks)) for run in model.main.runs))
    return replace(model, stacks=(*model.stacks[:-1], main), vocab=ceil_div(model.vocab, ranks))


def _layer(model: Model, layer: Layer, ranks: int) -> Layer:
    mixer, channel = layer.mixer, layer.channel
    if not isinstance(mixer, Attention) or not isinstance(channel, MLP) or layer.beside or layer.cross_attention:
        raise Unsupported("{}: tensor parallelism under FSDP2 divides attention and dense layers here; leave out --tp",
                          model.name)
    for name, count in (("heads", mixer.num_heads), ("key/value heads", mixer.num_kv_heads), ("width", channel.width)):
        if count % ranks:
            raise InvalidSpec("tp={} does not divide {} {} of {}", ranks, count, name, model.name)
    return replace(layer, mixer=replace(mixer, num_heads=mixer.num_heads // ranks,
                                        num_kv_heads=mixer.num_kv_heads // ranks),
                   channel=replace(channel, width=channel.width // ranks))
