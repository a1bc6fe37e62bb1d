"""Networks of transformers, from configurations alone, with fewer layers than their large relatives."""

from __future__ import annotations

from typing import Any, Final

import torch
import transformers as library
from torch import Tensor, nn

from truth.measure.networks import Batch, Network, Place

DECODER: Final = {
    "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2816,
}
MODELS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {  # class, configuration, what it changes
    "bert": ("BertForMaskedLM", "BertConfig", {}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, "vocab_size": 32_000}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**DECODER, "vocab_size": 151_936}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {"decoder_start_token_id": 0}),
    "mixtral": (
        "MixtralForCausalLM", "MixtralConfig",
        {**DECODER, "num_hidden_layers": 2, "intermediate_size": 2048, "num_local_experts": 4, "vocab_size": 32_000},
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
}
TOKENS: Final = (4, 512)
IMAGES: Final = (16, 3, 224, 224)


def network(
    place: Place, *, model: str, attention: str = "sdpa", checkpoints: bool = False, generates: int = 0
) -> Network:
    """A model with its own loss.

    Args:
        place: where
        model: key of `MODELS`
        attention: "sdpa" or "eager"
        checkpoints: recompute layers in backward
        generates: tokens to generate instead of a loss [count]
    """
    kind, configuration, changes = MODELS[model]
    config = getattr(library, configuration)(**changes)
    config._attn_implementation = attention
    built: nn.Module = getattr(library, kind)(config)
    if checkpoints:
        built.gradient_checkpointing_enable()

    def make_batch() -> Batch:
        if model == "vit":
            images = torch.randn(IMAGES, device=place.device, dtype=place.dtype)
            return images, torch.randint(0, 1000, IMAGES[:1], device=place.device)
        ids = torch.randint(0, 30_000, TOKENS, device=place.device)
        return ids, ids

    def loss(model_: nn.Module, batch: Batch) -> Tensor:
        if generates:
            limits = {"max_new_tokens": generates, "min_new_tokens": generates}
            return model_.generate(batch[0], do_sample=False, **limits).float().sum()
        inputs = {"pixel_values" if model == "vit" else "input_ids": batch[0]}
        return model_(**inputs, labels=batch[1]).loss

    return Network(built.to(*place), make_batch, loss)
