"""NeMo's YAML of Megatron models: `trainer` and `model` of megatron_gpt_pretraining.py, as Megatron-LM's arguments.

[nemo] NVIDIA/NeMo 1.x and 2.0's nlp collection, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and
nemo/collections/nlp/models/language_modeling/megatron_base_model.py `build_transformer_config`;
NVIDIA/NeMo-Framework-Launcher at 26e42fa9 launcher_scripts/conf/training
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.formats import renamed
from vramcast.formats.reading import Config, Reading, Unread, shown, table
from vramcast.formats.tools import megatron
from vramcast.formats.watched import Known, Watched

MODEL: Final = Known("nemo", "model")

SAME: Final = renamed("nemo", "model")
"""Name of NeMo -> the argument of Megatron-LM with the same value; null is none."""

SWITCHES: Final = renamed("nemo", "switches")
"""Name of NeMo -> the argument that stands for one of its values."""

NORMS: Final = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}

ACTIVATIONS: Final = {
    "gelu": None, "fast-swiglu": "swiglu", "swiglu": "swiglu", "squared-relu": "squared-relu",
}

PRECISIONS: Final = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": "", "32-true": ""}

OPTIMIZER: Final = "mcore_distributed_optim"

OF_INTERPOLATION: Final = re.compile(r"\$\{\.(\w+)\}")
PRODUCT: Final = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")


def read(config: Config) -> Reading:
    """The arguments of Megatron-LM that the file stands for, read as those."""
    whole = config.table or {}
    values = Watched(_put_in(table(whole.get("model"))), MODEL)
    trainer = Watched(table(whole.get("trainer")), Known("nemo", "trainer"))
    if not dict.__contains__(values, "num_layers"):
        why = "says no layers of a network of Megatron's; those networks alone are read"
        return Reading("nemo", {"engine": "megatron"}, unread=(Unread("model", why),))
    given: dict[str, Any] = {
        f"--{name}": value for own, name in SAME.items() if (value := values.get(own)) not in (None, "None")}
    _window(values, whole)
    given |= {f"--{name}": True for own, (name, when) in SWITCHES.items() if values.flag(own) is when}
    given |= _network(values, given) | _precision(values, trainer) | _optimizer(values)
    if any(table(values.get("mcore_customization_config")).values()):
        values.cannot("mcore_customization_config")
    if not given.get("--recompute-granularity"):
        for name in ("--recompute-method", "--recompute-num-layers"):
            given.pop(name, None)
    unread = [*values.unread("model."), *trainer.unread("trainer.")]
    found = megatron.read(Config(config.name, "", {"MODEL_ARGS": given}))
    gpus, machines = trainer.count("devices"), trainer.count("num_nodes")
    return found._replace(
        format="nemo", unread=(*unread, *map(_in_its_words, found.unread)), ranks=gpus and gpus * (machines or 1)
    )


NAMES: Final = {f"--{name}": own for own, name in SAME.items()} | {
    f"--{name}": own for own, (name, _) in SWITCHES.items()}


def _in_its_words(one: Unread) -> Unread:
    """What is not understood, by NeMo's name."""
    own = NAMES.get(one.name)
    return one if own is None else one._replace(name=f"model.{own}")


OF_FALCON: Final = ("new_decoder_architecture", "parallel_attention")
"""What of `mcore_customization_config` the layers of Falcon alone read [nemo megatron_gpt_model.py
`build_transformer_config` sets it on the configuration, megatron/falcon/falcon_decoder_layer.py reads it]."""


def _window(values: Watched, whole: Mapping[str, Any]) -> None:
    """Attention that sees as far as a sample is long says nothing; Megatron's own switch of it stands in a table."""
    names = (values.get("name"), table(whole.get("run")).get("name"), table(whole.get("exp_manager")).get("name"))
    inner = table(dict.get(values, "mcore_customization_config"))
    if inner and "falcon" not in str(names).lower():
        dict.__setitem__(values, "mcore_customization_config", {
            name: value for name, value in inner.items() if name not in OF_FALCON})
    inner, length = table(values.get("mcore_customization_config")), values.get("encoder_seq_length")
    windows = [held for held in (values.get("window_size"), inner.get("window_size")) if held is not None]
    wide = all(isinstance(held, list) and held and isinstance(held[0], int) and isinstance(length, int)
               and held[0] >= length for held in windows)
    if wide and set(inner) <= {"window_size"}:
        for name in ("window_size", "mcore_customization_config"):
            dict.pop(values, name, None)


def _put_in(model: Mapping[str, Any]) -> dict[str, Any]:
    """Values that name others of their table, and products of them; others stay as they are."""
    found = dict(model)
    for name, value in model.items():
        if not isinstance(value, str) or "${" not in value or len(value) > 200:
            continue
        text = OF_INTERPOLATION.sub(lambda match: str(model.get(match[1], match[0])), value)
        product = PRODUCT.fullmatch(text)
        found[name] = int(product[1]) * int(product[2]) if product else int(text) if text.isdecimal() else text
    return found


def _network(values: Watched, given: dict[str, Any]) -> dict[str, Any]:
    """What of the network has other words."""
    found: dict[str, Any] = {"--no-create-attention-mask-in-dataloader": True}
    if values.flag("get_attention_mask_from_fusion") is False:
        del found["--no-create-attention-mask-in-dataloader"]
    if (norm := values.one_of("normalization", NORMS)) is not None:
        found["--normalization"] = norm
    activation = values.one_of("activation", ACTIVATIONS)
    found |= {f"--{activation}": True} if activation else {}
    if values.flag("bias_activation_fusion") is False:
        found[f"--no-bias-{'swiglu' if activation == 'swiglu' else 'gelu'}-fusion"] = True
    found |= {"--group-query-attention": True} if "--num-query-groups" in given else {}
    tokenizer = table(values.get("tokenizer"))
    kind = tokenizer.get("type")
    if tokenizer.get("library") == "megatron":
        return found | {"--tokenizer-type": kind}
    if tokenizer.get("library") == "huggingface":
        return found | {"--tokenizer-type": "HuggingFaceTokenizer", "--tokenizer-model": str(kind)}
    return found | {"--tokenizer-type": "SentencePieceTokenizer", "--tokenizer-model": str(tokenizer.get("model"))}


def _precision(values: Watched, trainer: Watched) -> dict[str, Any]:
    words = {str(word): kind for word, kind in PRECISIONS.items()}
    kind = trainer.one_of("precision", words)
    values.only("precision", trainer.get("precision"))
    found: dict[str, Any] = {f"--{kind}": True} if kind else {}
    if values.flag("fp8"):
        found["--fp8-format"] = "e4m3" if values.flag("fp8_e4m3") else "hybrid"
        values.get("fp8_hybrid")
    else:
        for name in values:
            if name.startswith("fp8"):
                values.get(name)
    return found


def _optimizer(values: Watched) -> dict[str, Any]:
    inner = values.section("optim", Known("nemo", "optim"))
    name = inner.get("name")
    if name != OPTIMIZER:
        inner.cannot("name", "{} is not modelled; {} is", shown(name), OPTIMIZER, option="optimizer")
    found: dict[str, Any] = {"--use-distributed-optimizer": True}
    if inner.flag("overlap_grad_sync") is not False:
        found["--overlap-grad-reduce"] = True
    if inner.flag("overlap_param_sync"):
        found["--overlap-param-gather"] = True
    dtype = inner.one_of("grad_sync_dtype", {"bf16": True, "fp32": False, "32": False})
    return found | ({"--grad-reduce-in-bf16": True} if dtype else {})
