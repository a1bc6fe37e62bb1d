"""Megatron-Bridge's recipes in Python: what one function sets over a common base, in Megatron-LM's arguments.

[mb] NVIDIA-NeMo/Megatron-Bridge at 067f987d src/megatron/bridge/recipes/common.py `_pretrain_common`, `_sft_common`,
training/mixed_precision.py `MixedPrecisionConfig.setup`, training/config.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from vramcast.catalogue.formats import presets, renamed
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.model import MoE
from vramcast.engines.megatron.options import MODULES, Options
from vramcast.errors import Note, SourceError, UnknownName
from vramcast.formats.reading import Config, Reading, Unread, read_config, shown
from vramcast.formats.tools import megatron
from vramcast.formats.tools.bridge_recipe import (
    DEEPEST,
    SAYING_NOTHING,
    Recipe,
    functions_of,
    imports_of,
    read_recipe,
)
from vramcast.formats.watched import Known, Watched

_COMMON: Final[dict[str, Any]] = {
    "--bf16": True, "--use-distributed-optimizer": True, "--no-create-attention-mask-in-dataloader": True,
    "--moe-grouped-gemm": True, "--moe-permute-fusion": True, "--moe-token-dispatcher-type": "alltoall",
    "--cross-entropy-loss-fusion": True,
}
"""What its models and its optimizer have wherever a recipe says nothing; experts as the models of the hub set them."""

_TUNED: Final[dict[str, Any]] = {
    "--micro-batch-size": 1, "--global-batch-size": 128, "--seq-length": 2048, "--make-vocab-size-divisible-by": 1,
}
"""What tuning has; its vocabulary is the model's own, not padded [mb training/setup.py `should_pad_vocab`]."""

BASES: Final[dict[str, dict[str, Any]]] = {
    "_pretrain_common": _COMMON | {
        "--micro-batch-size": 2, "--global-batch-size": 32, "--seq-length": 4096, "--overlap-grad-reduce": True,
        "--overlap-param-gather": True,
    },
    "_sft_common": _COMMON | _TUNED,
    "_peft_common": _COMMON | _TUNED,
}
"""Base of a recipe -> the arguments of Megatron-LM that it stands for."""

PRETRAINS: Final = "_pretrain_common"

ADAPTS: Final = "_peft_common"

RENAMED: Final = renamed("megatron-bridge", "recipe")
FALSE: Final = renamed("megatron-bridge", "false")
"""What false stands for an argument; true is what is done anyway."""

SIZES: Final = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap")

HUB: Final = ("AutoBridge.from_hf_pretrained",)

OF_ONE_MODEL: Final = {"OlMoEModelProvider": "allenai/OLMoE-1B-7B-0924"}
"""Class that holds the numbers of one network -> its name at the hub [mb models/olmoe/olmoe_provider.py]."""


NAMES: Final = Known("megatron-bridge", "recipe")

OF_OTHERS: Final = {"ddp.data_parallel_sharding_strategy": "ddp.use_megatron_fsdp"}
"""What says nothing -> where this is not true."""

SWITCHED_ON: Final = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer", "ddp.grad_reduce_in_fp32")
"""Either of the first two switches the optimizer on, and the base has it on; the precision decides over the last."""


def _without_idle_graphs(values: dict[str, Any]) -> dict[str, Any]:
    """What a recipe sets, without how CUDA graphs would be made where there are none."""
    idle = values.get("model.cuda_graph_impl", "none") == "none"
    return {name: value for name, value in values.items() if not (idle and name.startswith("model.cuda_graph_"))}


def read(config: Config) -> Reading:
    """The recipe of the function that `--args` names, or of the only one.

    Raises: SourceError for what is no Python, InvalidSpec for a name that no recipe has
    """
    module = parse_python(config)
    found = recipes_of(module)
    asked = config.given.arguments
    if asked and found != [""]:
        if asked[0] not in found:
            raise UnknownName.of("recipe", asked[0], found)
        found = [asked[0]]
    if len(found) != 1:
        why = (Note("{} recipes stand in the file; name one, as in --args {}", len(found), found[0]) if found
               else "no function of the file makes a configuration of cfg = ...()")
        return _unread("cfg", why)
    recipe = read_recipe(module, found[0], _beside(module, config.folder))
    if recipe.base.endswith("_vlm"):
        return _unread("cfg", "trains a network that sees or hears, which is not modelled for megatron")
    if recipe.base not in BASES:
        return _unread("cfg", Note(
            "starts from {}, whose values the file does not hold; {} are known", shown(recipe.base), ", ".join(BASES)
        ))
    said = OF_GPUS.search(found[0])
    return _as_megatron(config.name, recipe)._replace(ranks=int(said[1]) if said else None)


def _beside(module: ast.Module, folder: str, depth: int = 0) -> dict[str, ast.Module]:
    """Files of recipes that one takes functions from, where it lies in the same package as they."""
    found: dict[str, ast.Module] = {}
    for name in imports_of(module) if depth < DEEPEST else ():
        inner = Path(*name.split(".")).with_suffix(".py")
        path = next((one / inner for one in Path(folder).absolute().parents if (one / inner).is_file()), None)
        if path is not None:
            found[name] = parse_python(read_config(path))
            found = _beside(found[name], folder, depth + 1) | found
    return found


def parse_python(config: Config) -> ast.Module:
    """Raises: SourceError for what is no Python"""
    try:
        return ast.parse(config.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError("{}: not Python, or nested too deep", config.name) from None


OF_GPUS: Final = re.compile(r"_(\d{1,5})gpu_")
"""What a recipe's name says of the GPUs that it is for."""


def _unread(name: str, why: str) -> Reading:
    return Reading("megatron-bridge", {"engine": "megatron"}, unread=(Unread(name, why),))


def _as_megatron(name: str, recipe: Recipe) -> Reading:
    """What a recipe sets as Megatron-LM's arguments, read as those."""
    values = Watched(_without_idle_graphs(recipe.values), NAMES)
    values.get("model")
    described = _provider(recipe)
    if described is not None and described not in PROVIDERS:
        return _unread("cfg.model", f"{shown(described)} builds a network of its own; name the model")
    given = BASES[recipe.base] | dict(PROVIDERS.get(described or "", {})) | dict(_arguments(values))
    if described:
        given |= _vocabulary(values)
    elif given.get("--position-embedding-type") == "yarn":  # its angles are as many; TE's fused kernel knows no mscale
        given |= {"--position-embedding-type": None, "--no-rope-fusion": True}  # [mlm rope_utils.py]
    given = placed(given, MODELS.aliases.get((_hub_name(recipe.values.get("model")) or "").lower()))
    inner = megatron.read(Config(name, "", {"MODEL_ARGS": {
        each: value for each, value in given.items() if value is not None}}))
    options = {**inner.options, "objective": "pretrain" if recipe.base == PRETRAINS else "sft"}
    options |= _adapters(values, recipe.base) | _network(values, recipe)
    unread = [*values.unread("cfg."), *(
        one for one in inner.unread
        if not (one.of_network and one.name.startswith("--mtp-" if described else OF_THE_HUB)))]
    unread += [Unread(text, "may change what the recipe sets") for text in recipe.others]
    if given.get("--mtp-num-layers") and given.get("--use-megatron-fsdp"):
        inner = inner._replace(notes=(*inner.notes, MTP))
    return inner._replace(format="megatron-bridge", options=options, unread=tuple(unread))


OF_THE_HUB: Final = ("--num-experts", "--num-query-groups", "--vocab-size", "--mtp-", "--dsa-")
"""Arguments that say what the named model says as well, how its loss is weighed, or what stands in a note."""

MTP: Final = "cfg.model.mtp_num_layers: modules of multi-token prediction and their losses are not counted"


PROVIDERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "HybridModelProvider": {
        "--normalization": "RMSNorm", "--position-embedding-type": "none", "--disable-bias-linear": True,
        "--untie-embeddings-and-output-weights": True, "--hidden-dropout": 0.0, "--attention-dropout": 0.0,
        "--attention-backend": "flash",
    },
    "GPTModelProvider": {},
}
"""Class that describes a network by numbers -> what it has unasked [mb models/hybrid/hybrid_provider.py,
models/gpt_provider.py]."""


def _provider(recipe: Recipe) -> str | None:
    """The class whose call describes the network; None where the hub does."""
    model = recipe.values.get("model")
    text = ast.unparse(model.func) if isinstance(model, ast.Call) else ""
    return text if text.endswith("Provider") and "." not in text and text not in OF_ONE_MODEL else None


def _vocabulary(values: Watched) -> dict[str, Any]:
    """The tokenizer's words, which a network described by numbers has."""
    size, model = (values.get(f"tokenizer.{name}") for name in ("vocab_size", "tokenizer_model"))
    if values.get("tokenizer.tokenizer_type") == NULL and isinstance(size, int):
        return {"--vocab-size": size}
    return {"--tokenizer-type": "HuggingFaceTokenizer", "--tokenizer-model": model if isinstance(model, str) else ""}


LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

COUNTED: Final = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")

IDLE: Final[Mapping[str, tuple[str, Any]]] = {
    "--cross-entropy-fusion-impl": ("--cross-entropy-loss-fusion", True),
    "--moe-flex-dispatcher-backend": ("--moe-token-dispatcher-type", "flex"),
    "--offload-modules": ("--fine-grained-activation-offloading", True),
    "--first-last-layers-bf16": ("--fp8-format", None),
    "--num-layers-at-start-in-bf16": ("--first-last-layers-bf16", True),
    "--num-layers-at-end-in-bf16": ("--first-last-layers-bf16", True),
    "--optimizer-offload-fraction": ("--optimizer-cpu-offload", True),
    "--mamba-chunk-size": ("--disable-mamba-mem-eff-path", True),
    "--moe-router-topk": ("--num-experts", None),
}
"""Argument -> another one and its value without which it says nothing; None: any value."""


def placed(given: dict[str, Any], known: str | None) -> dict[str, Any]:
    """Arguments without what says nothing here; stages that count the embedding or the head as a layer are laid out.

    Args:
        given: Megatron-LM's, `--name` -> value
        known: the model of the catalogue that another file of the tool names
    """
    for name, (other, value) in IDLE.items():
        if name in given and not (given.get(other) == value if value is not None else given.get(other)):
            del given[name]
    if given.get("--hidden-size"):
        if not given.get("--num-experts"):
            given = {name: value for name, value in given.items() if not name.startswith("--moe-")}
        given.setdefault("--max-position-embeddings", given.get("--seq-length"))
        given["--group-query-attention"] = given.get("--num-query-groups") is not None
        pattern = str(given.get("--hybrid-layer-pattern", "")).partition("/")[0].replace("|", "")
        if len(pattern) == given.get("--num-layers"):
            del given["--num-layers"]  # of a network of whose layers each has a letter
    if (experts := _experts(known, given)) and not given.get("--num-experts"):
        given["--num-experts"] = experts  # of the model that the hub names: what is said of them counts
    if isinstance(modules := given.get("--recompute-modules"), (list, tuple)) and known is not None:
        main = load_model(known).main
        lacking = {name for name in WITHOUT_EFFECT
                   if not any(MODULES[name][0](run.layer, Options()) for run in main.runs)}
        given["--recompute-modules"] = [name for name in modules if name not in lacking]
        if modules and not given["--recompute-modules"]:
            for name in [one for one in given if one.startswith("--recompute-")]:
                del given[name]  # nothing runs again
    if any(given.get(name) for name in COUNTED) and known is not None and "--num-layers" not in given:
        ends = [bool(given.pop(name, False)) for name in COUNTED]
        stages = int(given.get("--pipeline-model-parallel-size") or 1) * int(given.get(VIRTUAL) or 1)
        if 1 < stages <= (whole := load_model(known).num_layers + sum(ends)) and whole % stages == 0:
            layers = ["t" * (whole // stages)] * stages
            layers[0] = "E" + layers[0][ends[0]:]
            layers[-1] = layers[-1][ends[1]:] + "L"
            given["--pipeline-model-parallel-layout"] = "|".join(layers)
    return given


def _experts(known: str | None, given: Mapping[str, Any]) -> int:
    """Experts of a layer of the named model; of one that is not known here as many as ranks divide them."""
    if known is None:
        ranks = given.get("--expert-model-parallel-size") or 1
        return ranks if isinstance(ranks, int) and ranks > 1 else 0
    channels = (run.layer.channel for run in load_model(known).main.runs)
    return max((channel.num_experts for channel in channels if isinstance(channel, MoE)), default=0)


WITHOUT_EFFECT: Final = ("core_attn", "mlp", "moe", "mla_up_proj")
"""Modules that a network without them is asked to recompute in vain [Megatron-LM core/transformer/
transformer_layer.py `TransformerLayer.__init__`]."""

VIRTUAL: Final = "--num-virtual-stages-per-pipeline-rank"


def _network(values: Watched, recipe: Recipe) -> dict[str, Any]:
    """The model that the recipe names, with the vocabulary that it trains.

    Source: [mb] training/setup.py `_validate_and_set_vocab_size`: from scratch the tokenizer's takes the model's place
    """
    name = _hub_name(recipe.values.get("model"))
    if name is None:
        return {}
    exact, given = MODELS.aliases.get(name.lower()), values.get("model.vocab_size")
    if exact is not None and isinstance(given, int):
        return {"model": replace(load_model(exact), vocab=given)}
    own = recipe.base == PRETRAINS and values.get("tokenizer.use_tokenizer_vocab_size", True) is not False
    size = values.get("tokenizer.vocab_size") if own and values.get("tokenizer.tokenizer_type") == NULL else None
    if isinstance(size, ast.Attribute) and ast.unparse(size) == "cfg.model.vocab_size":
        size = None  # the model's own
    if size is None:
        return {"model": name}
    known = MODELS.aliases.get(name.lower())
    if known is None or not isinstance(size, int):
        values.cannot("tokenizer.vocab_size", "takes the place of the model's vocabulary; name the model",
                      option="model")
        return {"model": name}
    return {"model": replace(load_model(known), vocab=size)}


NULL: Final = "NullTokenizer"


LORA: Final = ("LoRA", "default_peft_config")

USUAL_RANK: Final = 32
"""[mb] peft/lora.py `LoRA.dim`."""


def _adapters(values: Watched, base: str) -> dict[str, Any]:
    """LoRA on modules of all layers: those that the base has, or that the recipe says instead."""
    whole = values.get("peft", base == ADAPTS)
    if not whole:
        return {}
    text = ast.unparse(whole.func) if isinstance(whole, ast.Call) else ""
    first = whole.args[0] if isinstance(whole, ast.Call) and whole.args else None
    scheme = first.value if isinstance(first, ast.Constant) else None
    # the schemes of a recipe are its parameter, whose default is LoRA
    if whole is not True and (text not in LORA or scheme not in (None, "lora")):
        values.cannot("peft", "{} is not modelled; LoRA is", shown(text or str(whole)), option="peft")
        return {}
    targets = values.get("peft.target_modules")
    found = {"peft": "lora", "lora-rank": values.get("peft.dim", USUAL_RANK),
             "lora-dropout": values.get("peft.dropout") or None}
    if isinstance(targets, list) and all(isinstance(each, str) and "*" not in each for each in targets):
        found["lora-targets"] = tuple(targets)
    elif targets is not None:
        values.cannot("peft.target_modules", option="lora-targets")
    for name, usual in {"lora_dtype": None, "a2a_experimental": False, "share_expert_adapters": True,
                        "normalize_moe_lora": False, "sequence_parallel_input_regather": False}.items():
        values.only(f"peft.{name}", usual)
    return {name: value for name, value in found.items() if value is not None}


def _hub_name(node: Any) -> str | None:
    """The model that `AutoBridge.from_hf_pretrained("...")` names."""
    for each in ast.walk(node) if isinstance(node, ast.AST) else ():
        if isinstance(each, ast.Call) and (only := OF_ONE_MODEL.get(ast.unparse(each.func))):
            return only
        if isinstance(each, ast.Call) and ast.unparse(each.func) in HUB and each.args:
            named = each.args[0]
            return named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
    return None


def _arguments(values: Watched) -> Iterator[tuple[str, Any]]:
    """Arguments of Megatron-LM, in the order in which they are set."""
    yield from _precision(values)
    for path in list(values):
        part, _, name = path.partition(".")
        if path.startswith("@") or part in ("peft", "mixed_precision"):
            if path.startswith("@"):
                values.get(path)
            continue
        value = values.get(path)
        if NAMES.is_harmless(path) or (path in OF_OTHERS and not values.get(OF_OTHERS[path], False)):
            continue
        if part in SAYING_NOTHING:
            yield from [("--seq-length", value)] if path == "dataset.seq_length" and isinstance(value, int) else []
        elif part not in SIZES or not name:
            yield from _whole(values, path, value)
        elif isinstance(value, ast.AST):
            values.cannot(path, "{} is only known to a run", shown(ast.unparse(value)))
        elif path in FALSE:
            yield from [(f"--{FALSE[path]}", True)] if value is False else []
        elif path in SWITCHED_ON:
            continue
        elif path == "model.activation_func":
            yield f"--{ACTIVATIONS.get(value, value)}".replace("_", "-"), True
        elif path == "model.pipeline_model_parallel_layout" and isinstance(value, (list, tuple)):
            yield "--pipeline-model-parallel-layout", "|".join(
                "".join(LETTERS.get(str(each), "?") for each in stage) for stage in value)
        else:
            yield f"--{RENAMED.get(path, name)}".replace("_", "-"), value


ACTIVATIONS: Final = {"squared_relu": "squared-relu"}

PRECISIONS: Final = presets("megatron-bridge", "precisions")
"""Recipe of a precision -> what it sets over bf16."""

OF_PRECISION: Final = {
    "fp8_recipe": "--fp8-recipe", "fp8": "--fp8-format", "fp8_param_gather": "--fp8-param-gather",
    "first_last_layers_bf16": "--first-last-layers-bf16",
    "num_layers_at_start_in_bf16": "--num-layers-at-start-in-bf16",
    "num_layers_at_end_in_bf16": "--num-layers-at-end-in-bf16",
    "reuse_grad_buf_for_mxfp8_param_ag": "--reuse-grad-buf-for-mxfp8-param-ag",
}

OF_BF16: Final = {"bf16": (True,), "fp16": (False,), "fp32": (False,), "fp4": (None,)}


def _precision(values: Watched) -> Iterator[tuple[str, Any]]:
    """What a precision's recipe says, by its name or by its call, and what is changed of it."""
    whole = values.get("mixed_precision")
    while isinstance(whole, ast.Call) and ast.unparse(whole.func) == "get_mixed_precision_config" and whole.args:
        whole = whole.args[0].value if isinstance(whole.args[0], ast.Constant) else "bf16_mixed"
    name = ast.unparse(whole.func) if isinstance(whole, ast.Call) else str(whole or "bf16_mixed")
    own = {path.partition(".")[2]: values.get(path) for path in list(values) if path.startswith("mixed_precision.")}
    if name not in PRECISIONS and name != "MixedPrecisionConfig":
        values.cannot("mixed_precision", "{} is not modelled; {} are", shown(name), ", ".join(PRECISIONS),
                      option="precision")
        return
    said = dict(PRECISIONS.get(name, {})) | own
    for each, usual in OF_BF16.items():
        if said.get(each, usual[0]) not in usual:
            values.cannot(f"mixed_precision.{each}", option="precision")
    if said.get("grad_reduce_in_fp32") is False:
        yield "--grad-reduce-in-bf16", True
    if said.get("fp8"):
        # of the layers in bf16 it has 0 where nobody says [mb training/mixed_precision.py `MixedPrecisionConfig`]
        said = dict.fromkeys(LAYERS_IN_BF16, 0) | said if said.get("first_last_layers_bf16") else said
        yield from ((argument, value) for each, argument in OF_PRECISION.items()
                    if (value := said.get(each)) or (each in LAYERS_IN_BF16 and value is not None))


LAYERS_IN_BF16: Final = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def _whole(values: Watched, path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Parts that are set as one; what their keywords say stands in lines of its own."""
    text = ast.unparse(value) if isinstance(value, ast.AST) else repr(value)
    if path == "comm_overlap" and "tp_comm_overlap=True" in text:
        yield "--tp-comm-overlap", True
    elif path in ("comm_overlap", "model", "optimizer", "ddp", "train"):
        pass
    elif value is not None and not path.startswith("comm_overlap."):
        values.cannot(path)


def recipes_of(module: ast.Module) -> list[str]:
    """Names of the functions that make a configuration and can be called as they are; "" is the module itself."""
    functions = functions_of(module)
    found = [name for name, node in functions.items() if not name.startswith("_") and _makes(node, functions)]
    return found or ([""] if _makes(module, functions) else [])


def _makes(node: ast.FunctionDef | ast.Module, functions: Mapping[str, ast.FunctionDef]) -> bool:
    starts = any(
        isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) in ("cfg", "config")
        and isinstance(each.value, ast.Call) for each in node.body
    )
    returned = next((each.value for each in node.body if isinstance(each, ast.Return)), None)
    passes_on = (
        isinstance(returned, ast.Call) and isinstance(returned.func, ast.Name) and returned.func.id in functions
        and _makes(functions[returned.func.id], {})
    )
    return starts or passes_on
