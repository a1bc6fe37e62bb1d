"""What a family's code does in a release of transformers, as far as it decides memory.

Every entry was read in the released sources of 32 versions from 4.30.2 to 5.23.0 (`models/<family>/modeling_*.py`,
`generation/utils.py`, `cache_utils.py`, `integrations/sdpa_attention.py`, `modeling_utils.py`).
Code that a checkpoint brings itself ("remote") does not change with the release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Model
from vramcast.domain.version import Version, version_text
from vramcast.errors import Note

NEWEST: Final[Version] = (5, 23)
"""The newest release whose sources were read: what holds where no release is named."""
NEVER: Final[Version] = (1 << 30,)
ALWAYS: Final[Version] = (0,)

CONTEMPORARY: Final[tuple[tuple[Version, Version, Version], ...]] = (
    ((5, 18), (2, 13), (1, 15)), ((5, 10), (2, 12), (1, 14)), ((5, 6), (2, 11), (1, 13)), ((5, 3), (2, 10), (1, 13)),
    ((5, 0), (2, 10), (1, 12)), ((4, 57), (2, 9), (1, 12)), ((4, 55), (2, 8), (1, 10)), ((4, 53), (2, 7), (1, 9)),
    ((4, 52), (2, 6), (1, 7)), ((4, 50), (2, 6), (1, 5)), ((4, 48), (2, 6), (1, 3)), ((4, 46), (2, 5), (1, 1)),
    ((4, 43), (2, 4), (0, 33)), ((4, 40), (2, 3), (0, 30)), ((4, 38), (2, 2), (0, 27)), ((4, 34), (2, 1), (0, 23)),
    ((0,), (2, 0), (0, 20)),
)
"""Release of transformers, the torch and the Accelerate that were the newest when its last patch came out. 4.52 allows
no torch after 2.6."""


class Behaviour(Struct, frozen=True):
    """One family's code in one release."""

    last_logits: bool  # generate asks for the last position's logits only
    upcasts: bool  # forward returns fp32 logits
    clones_logits: bool  # sampling copies all logits before it takes the last ones
    keeps_logits: bool  # the prompt's logits live until the second forward has returned
    whole_cache: bool  # the cache of the step before lives until the step has ended (tuples)
    rotary_tables: bool  # every layer keeps cosines and sines of all positions
    sdpa: bool  # attention without a choice is PyTorch's fused one, else eager
    repeats_keys: bool  # keys and values are copied per query head before the fused kernel
    fused_gate: bool  # gate and up live until their product exists
    stacks_prompt: bool  # the prompt's keys and values of all layers grow into one tensor (ChatGLM)
    values_in_views: bool  # cached values of the prompt are views of the product that made q, k and v
    warms_up: bool  # loading first takes all weights' memory in one piece
    expert_loop: bool  # experts run one after the other
    every_expert: bool  # each reads all tokens, most of them with a score of zero
    windowed_cache: bool  # layers with a window keep its tokens only
    reads_packed: bool  # a kernel reads a quantised cache as it is: nothing of it is unpacked (Qwen 1)


LAST_LOGITS_SINCE: Final[dict[str, Version]] = {
    "granite": (4, 48), "granitemoe": (4, 52), "falcon": (4, 47), "gpt2": (4, 53), "gpt_neox": (4, 49),
    "qwen2_5_vl": (4, 54), "qwen2_vl": (5, 0), "jamba": (4, 40),
    **dict.fromkeys(
        ("bloom", "codegen", "falcon_mamba", "gpt_bigcode", "gpt_neo", "gptj", "mamba", "mamba2", "mpt", "opt"), (5, 0)
    ),
    **dict.fromkeys(("mt5", "t5", "whisper", "qwen", "baichuan"), NEVER),
    **dict.fromkeys(("chatglm", "internlm2", "internlm3"), ALWAYS),
}
"""First release in which generate computes one position's logits; 4.45 for every other family (`num_logits_to_keep`).
ChatGLM's own code has `return_last_logit`."""

UPCAST_UNTIL: Final[dict[str, Version]] = {
    "mistral": (4, 48), "starcoder2": (4, 47), "qwen2_vl": (4, 52), "qwen2_5_vl": (4, 52), "granitemoe": (5, 0),
    "granite": (4, 48),
    **dict.fromkeys(("gptj", "codegen", "mamba", "mamba2", "falcon_mamba"), NEVER),
    **dict.fromkeys(
        ("bloom", "chatglm", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "mpt", "mt5", "opt", "qwen",
         "stablelm", "t5", "whisper"), ALWAYS,
    ),
}
"""First release that returns logits as the projection made them; 4.46 for every other family."""

UPCAST_SINCE: Final[dict[str, Version]] = {"llama": (4, 31)}

ROTARY_TABLES_UNTIL: Final[dict[str, Version]] = {
    "llama": (4, 41), "mistral": (4, 42), "olmo": (4, 41), "mixtral": (4, 48),
    **dict.fromkeys(
        ("falcon", "gpt_neox", "phi", "qwen2", "qwen2_moe", "qwen2_vl", "stablelm", "starcoder2"), (4, 45)
    ),
}
"""First release without `cos_cached` and `sin_cached` per layer."""

SDPA_SINCE: Final[dict[str, Version]] = {
    **dict.fromkeys(("mixtral", "mistral"), (4, 37)), **dict.fromkeys(("phi", "starcoder2", "stablelm"), (4, 39)),
    **dict.fromkeys(("gpt2", "gpt_neox"), (4, 42)), **dict.fromkeys(("clip", "siglip"), (4, 43)),
    **dict.fromkeys(("bert", "vit"), (4, 41)), **dict.fromkeys(("opt", "distilbert", "llava"), (4, 46)),
    **dict.fromkeys(("camembert", "roberta", "xlm-roberta"), (4, 45)), "electra": (5, 0),
    **dict.fromkeys(
        ("bloom", "codegen", "gptj", "gpt_neo", "gpt_oss", "mpt", "deberta", "deberta-v2", "deepseek_v4",
         "mimo_v2_flash", "baichuan"), NEVER,
    ),
    **dict.fromkeys(("t5", "mt5"), (5, 17)), **dict.fromkeys(("chatglm", "qwen"), ALWAYS),
}
"""First release whose default is `scaled_dot_product_attention`; 4.36 for every other family. Qwen's own code takes
flash-attn where it is installed."""

SDPA_UNTIL: Final[dict[str, Version]] = {"gemma2": (5, 19)}
"""First release without `_supports_sdpa` again: 5.18 has it, 5.23 has not."""

FLASH_SINCE: Final[dict[str, Version]] = {
    "gpt_oss": (4, 55),  # attn_implementation="kernels-community/vllm-flash-attn3", which knows sinks
    "mimo_v2_flash": (5, 14), **dict.fromkeys(("gptj", "gpt_neo"), (4, 35)),
}
"""First release in which kernels of flash-attn or of the kernels hub run a family that PyTorch's do not."""

FLASH_NEEDS: Final[dict[str, int]] = {"gpt_oss": 90, "mimo_v2_flash": 90}
"""Compute capability of the kernels that know sinks [`_compatible_flash_implementations`: FlashAttention 3 and 4]."""

REMOTE: Final = ("qwen", "baichuan", "chatglm", "internlm", "internlm2", "internlm3", "minicpm", "aquila")
"""Families whose code lies beside the checkpoint: tuples as caches."""

FUSED_GATE: Final = ("glm", "glm4", "phi3", "chatglm", "qwen")
"""One product makes gate and up, or variables hold both."""

STACKED_PROMPT: Final = ("chatglm",)

VALUES_IN_VIEWS: Final = ("qwen", "phi3", "gpt_neox", "falcon", "bloom", "mpt")

CACHE_OBJECTS_SINCE: Final[Version] = (4, 42)
"""`generate` makes a DynamicCache itself: a layer's old tensors die when the layer has concatenated."""

COPIED_LOGITS_SINCE: Final[Version] = (4, 42)
"""`generate` copies the last logits and deletes the outputs."""

CLONED_LOGITS: Final[tuple[Version, Version]] = ((4, 45), (4, 47))
"""`outputs.logits.clone()[:, -1, :]`, from the first release up to before the second."""

GROUPED_SDPA_SINCE: Final[Version] = (4, 53)
GROUPED_FLASH_SINCE: Final[Version] = (4, 48)
CONCATENATES_PROMPT_SINCE: Final[Version] = (4, 56)
"""A layer's first update is a concatenation too, so that no views are cached."""
WARM_UP_SINCE: Final[Version] = (4, 50)
GROUPED_EXPERTS_SINCE: Final[Version] = (5, 0)

STACKED_EXPERTS_SINCE: Final[dict[str, Version]] = {
    **dict.fromkeys(("dbrx", "gpt_oss", "granitemoe", "jetmoe", "llama4", "qwen3_vl_moe"), ALWAYS),
    **dict.fromkeys(("gemma4", "glm4_moe_lite", "glm_moe_dsa", "qwen3_5_moe"), ALWAYS),  # newer than 5.0
    "nemotron_h": (5, 3), "deepseek_v4": (5, 10), **dict.fromkeys(("deepseek_v32", "mimo_v2_flash"), (5, 14)),
    "kimi_linear": (5, 18), "kimi_k2": NEVER,
}
"""First release whose experts are one parameter of three dimensions and no linear layers, which bitsandbytes converts;
GROUPED_EXPERTS_SINCE for every other family. Those of a later release came with code of their own before, with linear
layers, as Kimi K2 still does."""

EVERY_EXPERT: Final = ("llama4",)
"""Families whose tokens are repeated for every expert, `Llama4TextMoe.forward`."""

BATCHED_EXPERTS: Final = ("gpt_oss", "llama4")
"""Families whose experts were one batched product already before GROUPED_EXPERTS_SINCE."""

MET_EXPERTS_SINCE: Final[dict[str, Version]] = {
    "mixtral": (4, 52), "qwen2_moe": (4, 52), "qwen3_moe": (4, 53),
    **dict.fromkeys(("ernie4_5_moe", "hunyuan_v1_moe", "minimax", "qwen3_next", "qwen3_omni_moe"), ALWAYS),
}
"""First release whose loop leaves out experts without a token: `expert_hit`, `expert_hitted` in the wheels 4.51.3 to
4.57.1; the last five are newer than their families' older siblings."""

OWN_ROUTER_SINCE: Final[dict[str, Version]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "gpt_oss", "kimi_k2"), ALWAYS),
    "llama4": (5, 5), "gemma4": NEVER,
}
"""First release whose router is a parameter or a subclass of nn.Linear, left as it is; else (5, 0)."""

OTHERS_LEFT: Final[dict[str, tuple[Version, tuple[str, ...]]]] = {
    "falcon": ((5, 5), ("attention.", "mlp.")),  # `FalconLinear`, since only nn.Linear itself is converted
    **dict.fromkeys(("mt5", "t5", "umt5"), (ALWAYS, ("mlp.down",))),  # `_keep_in_fp32_modules`, here and below
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), (ALWAYS, ("indexer.weights",))),
    "deepseek_v4": (
        ALWAYS,
        ("attention.out_a", "compressor.", "hyper.", "indexer.kv", "indexer.gate", "indexer.weights"),
    ),
}
"""Since when which other matrices of a family are kept whole."""
WINDOWED_CACHE_SINCE: Final[Version] = (4, 56)
"""DynamicSlidingWindowLayer: layers with a window keep its tokens only."""


def family_of(family: str) -> str:
    """The folder of a family's code: text and vision parts live in one.

    >>> family_of("qwen2_vl_text")
    'qwen2_vl'
    """
    return family.removesuffix("_text")


def attention_kernels(family: str, version: Version) -> tuple[AttentionKernel, ...]:
    """The kernels that a family's code can run, the one it runs unasked first.

    >>> [str(kernel) for kernel in attention_kernels("gpt_oss", (5, 0))]
    ['eager', 'flash']
    """
    name = family_of(family)
    since = SDPA_SINCE.get(name, (4, 36))
    if since <= version < SDPA_UNTIL.get(name, NEVER):
        return (AttentionKernel.FLASH, AttentionKernel.EFFICIENT, AttentionKernel.CUDNN, AttentionKernel.EAGER)
    flash = FLASH_SINCE.get(name, NEVER if since == NEVER else ALWAYS)
    return (AttentionKernel.EAGER, AttentionKernel.FLASH) if version >= flash else (AttentionKernel.EAGER,)


def left_whole(family: str, version: Version) -> tuple[str, ...]:
    """How the paths of those matrices begin that bitsandbytes does not convert when it converts every linear layer.

    Source: transformers integrations/bitsandbytes.py `replace_with_bnb_linear`; models/<family>/modeling_*.py

    >>> left_whole("qwen3_moe", (4, 57)), left_whole("qwen3_moe", (5, 0))
    ((), ('moe.experts.', 'moe.router'))
    """
    name = family_of(family)
    since, found = OTHERS_LEFT.get(name, (NEVER, ()))
    found = found if version >= since else ()
    if stacks_experts(family, version):
        found += ("moe.experts.",)
    if version >= OWN_ROUTER_SINCE.get(name, GROUPED_EXPERTS_SINCE):
        found += ("moe.router",)
    return found


def stacks_experts(family: str, version: Version) -> bool:
    """Whether a family's experts are parameters of three dimensions, which no name of a module means.

    >>> stacks_experts("ernie4_5_moe", (4, 57)), stacks_experts("glm4_moe_lite", (4, 57))
    (False, True)
    """
    return version >= STACKED_EXPERTS_SINCE.get(family_of(family), GROUPED_EXPERTS_SINCE)


def loops_experts(family: str, version: Version) -> bool:
    """Whether a family's code runs its experts one after the other, those without a token included.

    Source: transformers models/<family>/modeling_*.py; from 5.0 on modeling_utils.py
    `get_correct_experts_implementation`: "grouped_mm" unless something else is asked for

    >>> loops_experts("qwen3_moe", (4, 57)), loops_experts("qwen3_moe", (5, 0)), loops_experts("gpt_oss", (4, 57))
    (True, False, False)
    """
    name = family_of(family)
    if name in BATCHED_EXPERTS:
        return False
    return version < max(GROUPED_EXPERTS_SINCE, STACKED_EXPERTS_SINCE.get(name, GROUPED_EXPERTS_SINCE))


def meets_experts(family: str, version: Version) -> bool:
    """Whether a loop over experts leaves out those without a token.

    >>> meets_experts("qwen3_moe", (4, 51)), meets_experts("qwen3_moe", (4, 57))
    (False, True)
    """
    return version >= MET_EXPERTS_SINCE.get(family_of(family), NEVER)


def left_sentences(model: Model, left: tuple[str, ...], version: Version) -> Iterator[str]:
    """What somebody should know who expects bitsandbytes to convert all of a network.

    Args:
        left: what is not converted, as `left_whole` says it
    """
    said = version_text(version)
    if "moe.experts." in left and any(owned.parameter.expert for owned in named_parameters(model)):
        yield Note(
            "experts are not packed: transformers {} stacks them in one parameter, and bitsandbytes converts "
            "linear layers only", said
        )
    if "mlp." in left:
        yield Note(
            "no layer is packed: {} has linear layers of its own, which transformers {} passes by", model.family, said
        )


def behaviour(family: str, version: Version, *, flash: bool) -> Behaviour:
    """What one family's code does in one release.

    Args:
        family: `Model.family`
        flash: the flash-attn package is used
    """
    name = family_of(family)
    remote = name in REMOTE
    grouped = version >= (GROUPED_FLASH_SINCE if flash else GROUPED_SDPA_SINCE)
    return Behaviour(
        last_logits=version >= LAST_LOGITS_SINCE.get(name, (4, 45)),
        upcasts=UPCAST_SINCE.get(name, ALWAYS) <= version < UPCAST_UNTIL.get(name, (4, 46)),
        clones_logits=CLONED_LOGITS[0] <= version < CLONED_LOGITS[1],
        keeps_logits=version < COPIED_LOGITS_SINCE,
        whole_cache=remote or version < CACHE_OBJECTS_SINCE,
        rotary_tables=version < ROTARY_TABLES_UNTIL.get(name, ALWAYS),
        sdpa=attention_kernels(name, version)[0] is not AttentionKernel.EAGER,
        repeats_keys=not grouped or remote,
        fused_gate=name in FUSED_GATE,
        stacks_prompt=name in STACKED_PROMPT,
        values_in_views=name in VALUES_IN_VIEWS and (remote or version < CONCATENATES_PROMPT_SINCE),
        warms_up=version >= WARM_UP_SINCE,
        expert_loop=version < GROUPED_EXPERTS_SINCE,
        every_expert=name in EVERY_EXPERT,
        windowed_cache=version >= WINDOWED_CACHE_SINCE,
        reads_packed=name == "qwen",
    )
