"""Configs of the catalogue with few layers: what holds of a layer by its kind holds of all of them."""

from typing import Any

LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "depth",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def shortened(config: dict[str, Any], layers: int = 8, experts: int = 16) -> dict[str, Any]:
    """A config, and those within it, of no more than so many layers, of so many experts."""
    found = {key: shortened(value, layers, experts) if isinstance(value, dict) else value
             for key, value in config.items()}
    for key, most in [*((key, layers) for key in LAYERS), *((key, experts) for key in EXPERTS)]:
        if isinstance(found.get(key), int) and found[key] > most:
            lists = {name for name, value in found.items() if isinstance(value, list) and len(value) == config[key]}
            found |= {key: most, **{name: found[name][:most] for name in lists}}
    return found
