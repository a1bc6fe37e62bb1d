"""Which module writes a network's weights and forward, and what diffusers calls the linears that adapters are put on.

[peft] huggingface/peft tuners/tuners_utils.py `check_target_module_exists`: a target is a module's name or its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

from vramcast.blocks.diffusion.common import Network, Weights
from vramcast.domain.pipeline import Autoencoder, Denoiser

MODULES: Final[dict[str, str]] = {
    "UNet2DConditionModel": "unet",
    "FluxTransformer2DModel": "flux",
    "Flux2Transformer2DModel": "flux",
    "QwenImageTransformer2DModel": "flux",
    "SD3Transformer2DModel": "joint",
    "AuraFlowTransformer2DModel": "joint",
    "CogVideoXTransformer3DModel": "video",
    "HunyuanVideoTransformer3DModel": "video",
    "WanTransformer3DModel": "video",
    "PixArtTransformer2DModel": "single",
    "OmniGenTransformer2DModel": "single",
    "ZImageTransformer2DModel": "single",
    "AutoencoderKL": "autoencoder_kl",
    "AutoencoderKLCogVideoX": "autoencoder_cogvideox",
    "AutoencoderKLHunyuanVideo": "autoencoder_hunyuan_video",
    "AutoencoderKLWan": "autoencoder_wan",
}
"""Class of diffusers -> module of this package whose `NETWORKS` has it; imported when its network is asked for."""


def network_of(network: Denoiser | Autoencoder) -> Network:
    tag = str(network.__struct_config__.tag)
    found: Network = import_module(f"vramcast.blocks.diffusion.{MODULES[tag]}").NETWORKS[tag]
    return found


def weights_of(network: Denoiser | Autoencoder) -> Weights:
    return network_of(network).parameters(network)


def buffer_elements(network: Denoiser | Autoencoder) -> int:
    """Elements of tables that move with the weights."""
    return network_of(network).buffers(network)


def count_elements(network: Denoiser | Autoencoder) -> int:
    return sum(parameter.elements * count for _, parameter, count in weights_of(network))


_ATTENTION: Final = {"q": "to_q", "k": "to_k", "v": "to_v", "out": "to_out.0"}
_ADDED: Final = {"q": "add_q_proj", "k": "add_k_proj", "v": "add_v_proj", "out": "to_add_out"}
_FF: Final = {"up": "net.0.proj", "down": "net.2"}


def _under(prefix: str, module: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}": f"{module}.{theirs}" for name, theirs in names.items()}


_STREAMS: Final = {
    **_under("image.", "transformer_blocks.attn", _ATTENTION), **_under("text.", "transformer_blocks.attn", _ADDED),
    **_under("image.ff.", "transformer_blocks.ff", _FF), **_under("text.ff.", "transformer_blocks.ff_context", _FF),
}
_VIDEO: Final = {name.replace("image.", "video."): path for name, path in _STREAMS.items()}
_SINGLE: Final = {
    **_under("attention.", "single_transformer_blocks.attn", {name: _ATTENTION[name] for name in "qkv"}),
    "proj_mlp": "single_transformer_blocks.proj_mlp", "proj_out": "single_transformer_blocks.proj_out",
}

PATHS: Final[dict[str, dict[str, str]]] = {
    "UNet2DConditionModel": {
        **_under("", "transformer_blocks.attn", _ATTENTION), "ff.projection": "transformer_blocks.ff.net.0.proj",
        "ff.down": "transformer_blocks.ff.net.2", "proj_in": "attentions.proj_in", "proj_out": "attentions.proj_out",
    },
    "FluxTransformer2DModel": {
        **_STREAMS, **_SINGLE, "x_embedder": "x_embedder", "context_embedder": "context_embedder",
    },
    "Flux2Transformer2DModel": {
        **{name: path for name, path in _STREAMS.items() if ".ff." not in name},
        **_under("image.ff.", "transformer_blocks.ff", {"in": "linear_in", "out": "linear_out"}),
        **_under("text.ff.", "transformer_blocks.ff_context", {"in": "linear_in", "out": "linear_out"}),
        "qkv_mlp": "single_transformer_blocks.attn.to_qkv_mlp_proj", "out": "single_transformer_blocks.attn.to_out",
        "x_embedder": "x_embedder", "context_embedder": "context_embedder",
    },
    "SD3Transformer2DModel": {
        **_STREAMS, **_under("second.", "transformer_blocks.attn2", _ATTENTION),
        "context_embedder": "context_embedder",
    },
    "QwenImageTransformer2DModel": {
        **{name: path for name, path in _STREAMS.items() if ".ff." not in name},
        **_under("image.ff.", "transformer_blocks.img_mlp", _FF),
        **_under("text.ff.", "transformer_blocks.txt_mlp", _FF),
    },
    "HunyuanVideoTransformer3DModel": {**_VIDEO, **_SINGLE},
    "CogVideoXTransformer3DModel": {
        **_under("attention.", "transformer_blocks.attn1", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "transformer_blocks.attn1.to_out.0", **_under("ff.", "transformer_blocks.ff", _FF),
    },
    "WanTransformer3DModel": {
        **_under("attention.", "blocks.attn1", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "blocks.attn1.to_out.0", **_under("cross.", "blocks.attn2", _ATTENTION),
        **_under("ff.", "blocks.ffn", _FF),
    },
    "ZImageTransformer2DModel": {
        **_under("attention.", "layers.attention", {name: _ATTENTION[name] for name in "qkv"}),
        "out": "layers.attention.to_out.0", "ff.gate": "layers.feed_forward.w1", "ff.up": "layers.feed_forward.w3",
        "ff.down": "layers.feed_forward.w2",
    },
    "CLIPTextModel": {
        **_under("attention.", "self_attn", {name: f"{name}_proj" for name in "qkv"}), "out": "self_attn.out_proj",
        "ff.up": "mlp.fc1", "ff.down": "mlp.fc2",
    },
}
"""Class -> name on a tape -> module, its layer's number left out."""


def adapted(network: str, targets: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names on a tape that targets name, and the targets that name none."""
    paths, wanted = PATHS[network], tuple(targets)
    found = {target: {name for name, path in paths.items() if f".{path}".endswith(f".{target}")} for target in wanted}
    names = frozenset(name for hits in found.values() for name in hits)
    return names, tuple(target for target, hits in found.items() if not hits)


def adapts(names: frozenset[str]) -> Callable[[str], bool]:
    return names.__contains__
