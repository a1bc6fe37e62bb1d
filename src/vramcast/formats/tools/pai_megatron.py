"""Alibaba's Pai-Megatron-Patch: Megatron-LM's arguments, its own entry scripts, tokenizers and a few names more.

[pai] alibaba/Pai-Megatron-Patch at a098ca5a: megatron_patch/arguments.py `get_patch_args`, megatron_patch/tokenizer/
__init__.py `build_tokenizer`, examples/*/pretrain_*.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Unread
from vramcast.formats.watched import Known, Watched, is_unset

NAMES: Final = Known("pai-megatron", "arguments")

TOKENIZER: Final = "--patch-tokenizer-type"

EXTRA: Final = "--extra-vocab-size"

SCRIPTS: Final = {
    "pretrain_qwen.py": "gpt", "pretrain_qwen2_moe.py": "gpt", "pretrain_mcore_qwen.py": "gpt",
    "pretrain_llama.py": "gpt", "pretrain_mcore_llama.py": "gpt", "pretrain_llama_mcore070.py": "gpt",
    "finetune_mcore_llama_withGA.py": "gpt", "pretrain_mcore_mistral.py": "gpt", "pretrain_deepseek.py": "gpt",
    "pretrain_deepseek_250624.py": "gpt",
}
"""Entry scripts that build Megatron-Core's GPT from its arguments; those of images and sound, of linear attention and
of Megatron's older layers (pretrain_megatron_*.py) build others."""

OLDER: Final = "builds Megatron's older layers, which are not modelled; the patch's scripts run_mcore_*.sh are"
"""Why pretrain_megatron_*.py and finetune_megatron_*.py are not read."""

WORDS: Final = {
    "Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "QwenTokenizer": 151851, "LLama2Tokenizer": 32000,
    "LLamaTokenizer": 32000, "MixtralTokenizer": 32000, "LLama3Tokenizer": 128000,
}
"""Tokenizer -> its words without those that are added [pai `build_tokenizer`, the models' own tokenizer files]."""

OF_DEEPSEEK: Final = {2400: 102400, 467: 129280, 0: 163840}
"""DeepSeekV2Tokenizer is that of three models, which differ in what they add: DeepSeek-V2, DeepSeek-V3, Moonlight."""

LATENT: Final = {
    "--qk-nope-head-dim": ("--qk-head-dim", 128), "--qk-rope-head-dim": ("--qk-pos-emb-head-dim", 64),
}
"""The patch's own names of widths -> what Megatron-Core reads instead, and where nobody says it."""

SAMPLES: Final = {"JSON-SFT": "--max-padding-length", "MMAP": "--seq-length"}
"""--dataset -> what says how long a sample is."""


def is_patched(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments are those of the patch."""
    return TOKENIZER in arguments


def vocabulary(arguments: Mapping[str, Any]) -> int:
    """Words of the vocabulary, which is not padded any further; 0: not known."""
    tokenizer, extra = str(arguments.get(TOKENIZER)), arguments.get(EXTRA, 0)
    if not isinstance(extra, int):
        return 0
    if tokenizer == "DeepSeekV2Tokenizer":
        return OF_DEEPSEEK.get(extra, 0)
    words = WORDS.get(tokenizer, 0)
    return words + extra if words else 0


def translated(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Unread], list[str]]:
    """Arguments in Megatron-LM's words, what of them is not understood, and what was filled in."""
    found = dict(arguments)
    tokenizer, extra = found.get(TOKENIZER), found.get(EXTRA)
    notes: list[str] = []
    unread = list(_own_network(found))
    if found.get("--padded-vocab-size") in (None, 0):
        if words := vocabulary(found):
            found["--padded-vocab-size"] = words
            notes.append(Note("--patch-tokenizer-type {}: {:,} words are taken", tokenizer, words))
        elif not is_unset(extra):
            why = Note("the vocabulary of {} is not known here; name the model", str(tokenizer)[:40])
            unread.append(Unread(TOKENIZER, why, "model", of_network=True))
    shared = found.pop("--shared-moe-ffn-hidden-size", None)
    if found.pop("--enable-shared-expert", None):  # its output is weighed by a gate [pai model/qwen1_5/moe]
        found |= {"--moe-shared-expert-intermediate-size": shared, "--moe-shared-expert-gate": True}
    dense, layers = found.get("--moe-layer-freq"), found.get("--num-layers")
    if tokenizer == "DeepSeekV2Tokenizer" and isinstance(dense, int) and isinstance(layers, int):
        # so many layers are dense [pai megatron_patch/model/deepseek_v2/transformer_layer.py]
        found["--moe-layer-freq"] = f"([0]*{dense}+[1]*{max(0, layers - dense)})"
    if found.get("--moe-layer-recompute"):
        if "--recompute-granularity" in found:
            unread.append(Unread("--moe-layer-recompute", "stands beside --recompute-granularity; keep one"))
        else:  # its newer name [Megatron-LM core/transformer/transformer_config.py `moe_layer_recompute`]
            found |= {"--recompute-granularity": "selective", "--recompute-modules": ["moe"]}
    unread += _lengths(found)
    for name in list(found):
        if NAMES.is_harmless(name) or name in (TOKENIZER, EXTRA, "--moe-layer-recompute", "--max-padding-length",
                                               "--dataset", "--sliding-window"):
            del found[name]
    return found, unread, notes


def _own_network(arguments: dict[str, Any]) -> list[Unread]:
    """What says that another network is built than Megatron-Core's own."""
    found = []
    for name, (read, usual) in LATENT.items():
        if arguments.pop(name, None) not in (None, arguments.get(read, usual)):
            found.append(Unread(name, Note(
                "is not what Megatron-Core reads, which is {}; give that", read
            ), of_network=True))
    if "VL" in str(arguments.get(TOKENIZER)):
        why = "is of a network that sees or hears, which is not modelled for megatron"
        found.append(Unread(f"{TOKENIZER} {arguments[TOKENIZER]}", why, of_network=True))
    return found


def _lengths(arguments: Mapping[str, Any]) -> list[Unread]:
    """Where samples are shorter or longer than the sequence, or attention sees less of it."""
    length = arguments.get("--seq-length")
    padded, window = arguments.get("--max-padding-length"), arguments.get("--sliding-window")
    found = []
    if arguments.get("--dataset") == "JSON-SFT" and padded != length:
        found.append(Unread("--max-padding-length", "is the length of a sample and not that of --seq-length; keep one"))
    if isinstance(window, int) and isinstance(length, int) and window < length:
        found.append(Unread("--sliding-window", "is shorter than --seq-length, which is not modelled for megatron"))
    return found


def exact_vocabulary(values: Watched) -> None:
    """A vocabulary that is given padded is not padded again [Megatron-LM megatron/training/arguments.py]."""
    if values.get("--padded-vocab-size") is not None and "--make-vocab-size-divisible-by" not in values:
        dict.__setitem__(values, "--make-vocab-size-divisible-by", 1)
