"""device_map="auto": which layers lie on which GPU.

[Accelerate] huggingface/accelerate utils/modeling.py `get_balanced_memory`, `infer_auto_device_map`: every GPU but the
last takes an equal share and 1.25 layers more; the first one keeps room for the largest module.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.domain.model import Model
from vramcast.engines.serving.stages import Stage, stages
from vramcast.engines.serving.weights import Formats
from vramcast.engines.transformers.weights import weights
from vramcast.errors import InvalidSpec


def placed(model: Model, formats: Formats, gpus: int) -> tuple[Stage, ...]:
    """Layers of each GPU in order; a GPU that would get none is left out.

    Raises: InvalidSpec when there are more GPUs than layers
    """
    count = model.num_layers
    if gpus > count:
        raise InvalidSpec(f"pp={gpus} is more than the {count} layers; use at most {count}")
    if gpus == 1:
        return stages((count,))
    ends, layers = _module_bytes(model, formats)
    whole, largest = sum(ends) + sum(layers), max(*ends, *layers)
    share = whole // gpus + int(1.25 * max(layers))
    sizes, used, room = [0], ends[0], share - largest
    for size in layers:
        if used + size > room and len(sizes) < gpus and sizes[-1]:
            sizes.append(0)
            used, room = 0, share
        sizes[-1] += 1
        used += size
    return stages(sizes)


def _module_bytes(model: Model, formats: Formats) -> tuple[tuple[int, int], list[int]]:
    """Bytes before the layers and behind them, and of each layer."""
    first = last = 0
    runs: dict[str, int] = {}
    whole = Stage(0, model.num_layers, first=True, last=True)
    for tensor, repeats in weights(model, formats, whole):
        if tensor.owner.startswith(f"{model.main.name}.layers"):
            runs[tensor.owner] = runs.get(tensor.owner, 0) + tensor.num_bytes
        elif tensor.owner in ("head", model.main.name):
            last += tensor.num_bytes * repeats
        else:
            first += tensor.num_bytes * repeats
    return (first, last), list(_each(runs))


def _each(runs: dict[str, int]) -> Iterator[int]:
    """One number a layer: owners are named by the layers they cover, "decoder.layers.0-27"."""
    for owner, size in runs.items():
        low, _, high = owner.rpartition(".")[2].partition("-")
        yield from [size] * (int(high or low) - int(low) + 1)
