"""NeMo Automodel's recipes: YAML of a model from the hub, its data, PyTorch's optimizer and FSDP2.

[am] NVIDIA-NeMo/Automodel at 36044ad3 nemo_automodel/recipes/llm/train_ft.py, components/distributed/config.py
`FSDP2Config`, components/_peft/lora.py `PeftConfig`, _transformers/auto_model.py, components/loss/*.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.errors import Note, joined
from vramcast.formats.reading import Config, Reading, shown, table, together
from vramcast.formats.watched import Known, Watched
from vramcast.units import ceil_div

OF_IMAGES: Final = "FinetuneRecipeForVLM"

RECIPES: Final = {
    "TrainFinetuneRecipeForNextTokenPrediction": "sft", "BenchmarkingRecipeForNextTokenPrediction": "pretrain",
    OF_IMAGES: "sft",
}
"""Recipe -> what is optimised; those of distillation and of drafts train other networks."""

CLASSES: Final = tuple(
    f"NeMoAutoModelFor{kind}.from_{made}" for kind in ("CausalLM", "ImageTextToText", "MultimodalLM")
    for made in ("pretrained", "config")
)

DTYPES: Final = {
    "auto": "bf16", "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16", "float32": "mixed-bf16",
    "fp32": "mixed-bf16", "torch.float32": "mixed-bf16",
}
"""`torch_dtype` -> precision: weights, gradients and moments are stored in it, FSDP2 computes in bf16 [am]."""

KERNELS: Final = {"sdpa": None, "flash_attention_2": "flash", "te": "flash", "eager": "eager"}

IMAGE: Final = 1024
"""Pixels of a side where nobody says how large images are."""

LOSSES: Final = {
    "MaskedCrossEntropy": "eager", "TEParallelCrossEntropy": "fused",
    "FusedLinearCrossEntropy": "fused_linear", "ChunkedCrossEntropy": "chunked",
}

FLASH_ADAM: Final = {"24": "flash-adamw", "32": "flash-adamw-32"}
"""`master_weight_bits` -> optimizer."""

OPTIMIZERS: Final = {"torch.optim.AdamW": "adamw", "torch.optim.Adam": "adamw", "torch.optim.SGD": "sgd"}
"""Adam and AdamW keep the same."""

STRATEGIES: Final = {"fsdp2": "everything", "ddp": "nothing"}

FROZEN_SHARDING: Final = {"root": "root", "per_layer": "layers"}

DEGREES: Final = ("tp_size", "pp_size", "cp_size", "ep_size")

LENGTHS: Final = ("seq_length", "seq_len", "max_length")
"""How data sets call the longest sample."""

RECOMPUTED: Final = {"true": "full", "full": "full", "false": "none", "selective": "selective"}

PEFT: Final = "nemo_automodel.components._peft.lora.PeftConfig"

RING_OF_TE: Final = (
    "keys and values that TransformerEngine passes from rank to rank are counted as gathered, as PyTorch's ring does it"
)

LIGER: Final = "Liger's kernels, which Automodel takes for models of Transformers' own code, are not counted"


def read(config: Config) -> Reading:
    """Model, plan and batch of a recipe."""
    values = Watched(config.table or {}, Known("automodel", "recipe"))
    objective = _objective(values)
    options: dict[str, Any] = {"engine": "pytorch", "objective": objective}
    mesh, model = _section(values, "distributed"), _section(values, "model")
    parallel = "ep_size" in _degrees(mesh)
    options |= _model(model, parallel=parallel)
    divided = not parallel and _divides(options.get("model"))
    options = together(options, _distributed(mesh, parallel=parallel, divided=divided),
                       _loss(_section(values, "loss_fn")))
    options |= _frozen(values, options.get("model"))
    options |= _images(_section(values, "processor")) if _recipe(values) == OF_IMAGES else {"images": 0}
    options |= _optimizer(_section(values, "optimizer"))
    options = together(options, _adapters(values, own_layers=parallel), _float8(values))
    options |= _compiled(_section(values, "compile"))
    notes: tuple[str, ...] = (LIGER,)
    if parallel:
        options |= _experts(options, mesh, model)
        name = DISPATCHERS.get(str(table(dict.get(model, "backend")).get("dispatcher")), "DeepEP")
        notes = (Note(
            "model.backend.dispatcher: {}'s own buffers, which lie beside the allocator, are not counted", name
        ),)
    elif "cp" in options and table(dict.get(model, "backend")).get("attn") == "te":
        notes = (*notes, RING_OF_TE)
    scheduler = _section(values, "step_scheduler")
    batch = {kind: size for kind, name in (("global", "global_batch_size"), ("micro", "local_batch_size"))
             if (size := scheduler.count(name)) is not None}
    length = _length(values)
    options |= {"seq-len": length} if length else {}
    auto = {} if length else {"seq-len": "says no length of the samples"}
    options = {name: value for name, value in options.items() if value is not None}
    if options.get("precision") == "bf16" and "peft" in options:
        options["adapter-dtype"] = "bf16"  # of the weights that they stand beside [am]
    notes = (*notes, *values.inner["processor"].assumed) if "processor" in values.inner else notes
    return Reading("automodel", options, {}, batch, tuple(values.unread()), notes, auto)


def _section(values: Watched, name: str) -> Watched:
    return values.section(name, Known("automodel", name))


def _tail(value: Any) -> str:
    return str(value).rpartition(".")[2]


def _recipe(values: Watched) -> str:
    given = values.get("recipe")
    name = given.get("_target_") if isinstance(given, dict) else given
    return "TrainFinetuneRecipeForNextTokenPrediction" if name is None else _tail(name)


def _objective(values: Watched) -> str:
    recipe = _recipe(values)
    if recipe not in RECIPES:
        values.cannot("recipe", "{} trains another network; {} are modelled", shown(recipe), ", ".join(RECIPES))
    return RECIPES.get(recipe, "sft")


def _model(model: Watched, *, parallel: bool) -> dict[str, Any]:
    """Its name and how its weights are stored."""
    target = str(model.get("_target_", CLASSES[0]))
    if not target.endswith(CLASSES):
        model.cannot("_target_", "{} builds another network; {} are modelled", shown(target), joined(" and ", CLASSES))
    config = model.get("config")
    inner = _section(model, "config") if isinstance(config, dict) else Watched({})
    if isinstance(config, dict) and not str(inner.get("_target_", "")).endswith("Config.from_pretrained"):
        model.cannot("config", "builds a network of its own; name the model", option="model")
    name = model.text("pretrained_model_name_or_path") or inner.text("pretrained_model_name_or_path")
    name = name or (config if isinstance(config, str) else None)
    if model.get("backend") is not None:
        # `rope_fusion` is switched off whatever is said [am components/models/common/utils.py `BackendConfig`]
        own = Known("automodel", "backend")
        model.section("backend", own._replace(section="backend_of_experts", more=(own,)) if parallel else own)
    text = _section(model, "text_config")
    text.get("use_cache"), text.get("output_hidden_states")  # layers keep their inputs anyway
    for part, layers in product((model, text, inner), OF_PREDICTION):
        part.only(layers, 0)
    dtype = model.one_of("dtype" if "dtype" in model else "torch_dtype", DTYPES, option="precision")
    kernel = model.one_of("attn_implementation", KERNELS, option="attention")
    return {"model": name, "precision": dtype or "bf16", "attention": kernel}


VISUAL: Final = re.compile(r"qwen|gemma3n|gemma4|glm4v|llava_onevision")
"""Families whose projector is called by a name with "vision" or "visual" in it, and so is frozen with the tower:
Qwen's `visual.merger`, Gemma's `embed_vision`; others have a `multi_modal_projector` or `mm_projector`."""


def _frozen(values: Watched, model: str | None) -> dict[str, Any]:
    """Parts by patterns of their names [am components/utils/model_utils.py `apply_parameter_freezing`], which asks
    nobody whether embeddings are frozen."""
    if values.get("freeze_config") is None:
        return {}
    asked = _section(values, "freeze_config")
    asked.get("freeze_embeddings"), asked.get("freeze_audio_tower")  # no network here has a stack that hears beside one
    asked.must_be_off("freeze_language_model", option="freeze")
    asked.only("freeze_video_embedder", False)
    if asked.flag("freeze_vision_tower") is False:
        return {}
    known = MODELS.aliases.get(str(model).lower())
    if known is None:
        asked.cannot("freeze_vision_tower", "freezes what is called vision; name a model that is known here",
                     option="freeze")
        return {}
    return {"freeze": "towers,projectors" if VISUAL.match(load_model(known).family) else "towers"}


def _images(processor: Watched) -> dict[str, Any]:
    """The largest that a processor makes of an image, where the file says so."""
    for name in processor:
        if name not in ("max_pixels", "min_pixels"):
            processor.get(name)
    pixels = processor.count("max_pixels")
    processor.get("min_pixels")
    if pixels is None:
        processor.assumed.append(Note(
            "images of {} pixels a side, as it says none; --image-size says otherwise", IMAGE
        ))
    return {"image-size": math.isqrt(pixels) if pixels else IMAGE}


OF_PREDICTION: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Layers of multi-token prediction, as families call them."""

DISPATCHERS: Final = {"hybridep": "HybridEP", "uccl_ep": "UCCL-EP"}


def _degrees(mesh: Watched) -> list[str]:
    """Degrees of more than 1."""
    return [name for name in DEGREES if str(mesh.get(name)).lower() not in ("none", "1", "0")]


def _experts(options: Mapping[str, Any], mesh: Watched, model: Watched) -> dict[str, Any]:
    """Experts divided over ranks, in Automodel's own layers: FSDP2 keeps dense weights gathered between forward and
    backward, experts that no two ranks share stand outside it, what routers chose is not chosen again
    [am components/moe/parallelizer.py `apply_fsdp`, `apply_ac`].

    Gradients of the micro-batches before the last add up unsharded, where nobody asks otherwise [am components/
    distributed/config.py `defer_fsdp_grad_sync`]; those of a pipeline do so anyway.
    """
    moe = _section(mesh, "moe")
    moe.get("wrap_outer_model"), moe.get("_target_")
    moe.only("lm_head_precision", "bf16", "bfloat16")
    again, kernel = moe.flag("reshard_after_forward") is True, options.get("optimizer-kernel")
    pairs = {
        "whole_experts": True, "expandable": False, "keeps_router": moe.flag("ignore_router_for_ac") is not False,
        "kernel": kernel or "foreach", "reshard": "always" if again else "never",
    }
    found: dict[str, Any] = {}
    deferred = mesh.flag("defer_fsdp_grad_sync") is not False
    if "pp_size" in _degrees(mesh):
        found = _stages(mesh, str(options.get("model")))
        pairs |= {"ends_count": False, "keeps_outputs": True, "pipeline_microbatch_size": found.pop("samples", 1)}
        if again or not deferred:
            mesh.cannot("moe.reshard_after_forward" if again else "defer_fsdp_grad_sync")
    else:
        pairs["defers_sync"] = deferred
    if options.get("attention") is not None:
        model.cannot("attn_implementation")
    said = tuple(f"{name}={str(value).lower()}" for name, value in pairs.items())
    said += tuple(one for one in options.get("engine-option", ()) if one.startswith(("scaled_rank", "frozen_towers")))
    return {"engine": "torchtitan", "ep": mesh.count("ep_size"), "sharded-by": None, "attention": None,
            "optimizer-kernel": None, "reshard-after-forward": None, "loss": options.get("loss", "eager"),
            "engine-option": said, **found}


def _stages(mesh: Watched, model: str) -> dict[str, Any]:
    """Stages and their chunks [am components/distributed/pipelining/functional.py `calculate_virtual_stages`]."""
    pipeline = _section(mesh, "pipeline")
    pipeline.ignore("round_virtual_stages_to_pp_multiple")
    schedule = str(pipeline.get("pp_schedule", "1f1b")).lower()
    if schedule not in ("1f1b", "interleaved1f1b"):
        pipeline.cannot("pp_schedule", "{} is not modelled; 1f1b and interleaved1f1b are", shown(schedule))
    pp, each = mesh.count("pp_size") or 1, pipeline.count("layers_per_stage")
    known = MODELS.aliases.get(model.lower())
    if each is not None and known is None:
        pipeline.cannot("layers_per_stage", "counts layers of a network that is not known here; name the model")
    stages = pp if schedule == "1f1b" else 2 * pp
    if each is not None and known is not None:
        stages = ceil_div(load_model(known).num_layers, each)
        up = pp if pipeline.get("round_virtual_stages_to_pp_multiple") == "up" else 0
        stages += (up - stages % pp) if up and stages % pp else -(stages % pp)
    return {"pp": pp, "virtual-stages": max(1, stages // pp), "samples": pipeline.count("pp_microbatch_size") or 1,
            "schedule": "interleaved" if stages > pp else "1f1b"}


DIVIDED: Final = ("llama", "phi", "qwen2", "qwen3")
"""Families whose plan divides every matrix and leaves the head's columns apart [am components/distributed/
optimized_tp_plans.py `PARALLELIZE_FUNCTIONS`]; others keep attention whole, or gather logits before they are fp32."""


def _divides(model: str | None) -> bool:
    """Whether the network is one of those, as far as it is known here."""
    known = MODELS.aliases.get(str(model).lower())
    return known is not None and load_model(known).family in DIVIDED


def _distributed(mesh: Watched, *, parallel: bool, divided: bool) -> dict[str, Any]:
    """FSDP2 over all ranks; what splits inside a layer runs in Automodel's own layers, or by a plan of PyTorch's."""
    target = str(mesh.get("_target_", ""))
    strategy = mesh.get("strategy") or ("fsdp2" if not target or target.endswith("FSDP2Manager") else target)
    if strategy not in STRATEGIES:
        mesh.cannot("strategy" if "strategy" in mesh else "_target_", "{} is not modelled; fsdp2 is", shown(strategy))
    for name in _degrees(mesh):
        if name != "cp_size" and not (parallel and name in ("ep_size", "pp_size")) and not (
                divided and name == "tp_size"):
            mesh.cannot(name, "is more than 1, which is not modelled for Automodel")
    found: dict[str, Any] = {"shards": STRATEGIES.get(str(strategy), "everything"), "recompute": mesh.one_of(
        "activation_checkpointing", RECOMPUTED, lower=True, option="recompute") or "none"}
    if found["shards"] == "everything":
        multimodal = _section(mesh, "multimodal")
        frozen = multimodal.one_of("frozen_sharding", FROZEN_SHARDING) or "root"
        found |= {"sharded-by": "fsdp2", "engine-option": ("reduce_dtype=float32", f"frozen_towers={frozen}")}
    if "cp_size" in _degrees(mesh):
        found["cp"] = mesh.count("cp_size")
    if "tp_size" in _degrees(mesh) and divided:
        found["tp"] = mesh.count("tp_size")
        for name in ("sequence_parallel", "enable_async_tensor_parallel"):
            mesh.only(name, False)
    mesh.get("dp_size")
    if mesh.get("mp_policy") is not None:
        policy = _section(mesh, "mp_policy")
        policy.get("_target_"), policy.get("output_dtype"), policy.get("cast_forward_inputs")
        policy.only("param_dtype", "bfloat16", "torch.bfloat16")
        policy.only("reduce_dtype", *WIDE)
    if mesh.flag("enable_compile"):
        found["compile"] = True
    if str(mesh.get("dp_replicate_size")).lower() not in ("none", "1"):
        mesh.cannot("dp_replicate_size", option="shard-group")
    if mesh.flag("defer_fsdp_grad_sync") is False:
        found = together(found, {"engine-option": ("defers_sync=false",)})
    if mesh.flag("reshard_after_forward") is False:
        found["reshard-after-forward"] = False
    if (offload := mesh.get("offload_policy")) is not None:
        kind = offload.get("_target_") if isinstance(offload, dict) else offload
        if _tail(kind) != "CPUOffloadPolicy":
            mesh.cannot("offload_policy")
        found["offload-parameters"] = "cpu"
    return found


def _loss(loss: Watched) -> dict[str, Any]:
    target = loss.get("_target_")
    if target is None:
        return {}
    kind = LOSSES.get(_tail(target))
    if kind is None:
        loss.cannot("_target_", "{} is not modelled", shown(_tail(target)), option="loss")
    if kind != "eager":
        loss.get("fp32_upcast")
        return {"loss": kind}
    upcast = loss.flag("fp32_upcast") is not False  # as transformers' own code of a model takes its logits
    return {"loss": kind, "engine-option": (f"model_loss={str(upcast).lower()}",)}


def _optimizer(optimizer: Watched) -> dict[str, Any]:
    target = str(optimizer.get("_target_", "torch.optim.AdamW"))
    if target.endswith(".FlashAdamW"):
        optimizer.get("compress_state_dict")  # of checkpoints
        return {"optimizer": optimizer.one_of("master_weight_bits", FLASH_ADAM, option="optimizer") or "flash-adamw"}
    if target.endswith(".FusedAdam"):
        return {"optimizer": _fused_adam(optimizer)}
    if target not in OPTIMIZERS:
        optimizer.cannot("_target_", "{} is not modelled", shown(target), option="optimizer")
    found: dict[str, Any] = {"optimizer": OPTIMIZERS.get(target)}
    if optimizer.flag("fused"):
        found["optimizer-kernel"] = "fused"
    elif optimizer.flag("foreach") is False:
        found["optimizer-kernel"] = "loop"
    return found


def _fused_adam(optimizer: Watched) -> str:
    """TransformerEngine's, by the types of its states."""
    optimizer.only("master_weight_dtype", *WIDE)
    narrow = {_tail(optimizer.get(name, "float32")) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")}
    masters, remainders = optimizer.flag("master_weights"), optimizer.flag("store_param_remainders")
    found = TE_ADAM.get(("bf16" if narrow == {"bfloat16"} else "fp32", bool(masters), bool(masters and remainders)))
    if found is None or not narrow <= {"float32", "bfloat16"}:
        optimizer.cannot("exp_avg_dtype", "is modelled with both moments in float32, or in bfloat16 beside remainders",
                         option="optimizer")
    return found or "adamw-fp32"


WIDE: Final = ("torch.float32", "float32", "fp32")

TE_ADAM: Final = {
    ("fp32", False, False): "adamw-fp32", ("fp32", True, False): "adamw-te-master",
    ("fp32", True, True): "adamw-te-remainders", ("bf16", True, True): "adamw-te-remainders-bf16",
}
"""Type of the moments, whether there are master weights, whether only what bf16 lacks of them -> optimizer."""


def _adapters(values: Watched, *, own_layers: bool) -> dict[str, Any]:
    """LoRA beside frozen weights, packed or not."""
    packed = _section(values, "quantization")
    base, narrow = None, packed.flag("load_in_8bit")
    if packed.flag("load_in_4bit"):
        packed.only("bnb_4bit_quant_type", "nf4")
        base = "nf4-dq" if packed.flag("bnb_4bit_use_double_quant") else "nf4"
    elif narrow:
        base = "int8"
    if values.get("peft") is None:
        if base is not None:
            values.cannot("quantization", "packs weights that no adapter stands beside")
        return {}
    peft = _section(values, "peft")
    peft.only("_target_", PEFT)
    if dict.get(peft, "lora_dtype") is not None:
        peft.cannot("lora_dtype", option="adapter-dtype")
    if own_layers and base is not None:
        values.cannot("quantization", "packs a base whose experts are divided over ranks, which is not modelled")
    found = {
        "peft": "dora" if peft.flag("use_dora") else "lora", "lora-rank": peft.count("dim") or 8,
        "lora-dropout": peft.number("dropout"), "base-weights": base,
    }
    if not own_layers:
        return found | {"lora-targets": _targets(peft)}
    scaled = peft.flag("moe_rank_scaling") is True
    return found | {"lora-targets": _own_targets(peft), "engine-option": (f"scaled_rank={str(scaled).lower()}",)}


OWN: Final = r"(?!.*(?:\bexperts\b|\bembed|\.gate$|router))"
"""Names that are linear layers of their own where Automodel's layers run: routers are none, experts one module."""


def _own_targets(peft: Watched) -> str:
    """As `_targets`, in Automodel's layers; experts are adapted where a pattern fits the module that holds all."""
    left_out, chosen = _patterns(peft, "exclude_modules"), _patterns(peft, "target_modules")
    if peft.flag("match_all_linear"):
        return f"{OWN}.*"
    if left_out and not chosen:
        return f"{OWN}(?!{'|'.join(left_out)}).*"
    chosen = chosen or [".*_proj$"]
    experts = any(re.fullmatch(pattern, "model.layers.0.mlp.experts") for pattern in chosen)
    return f"{OWN}(?:{'|'.join(chosen)})" + ",moe.experts.gate_up,moe.experts.down" * experts


def _targets(peft: Watched) -> str:
    """Modules whose whole name a pattern fits; all linear layers, the head too, but those left out
    [am _peft/module_matcher.py `ModuleMatcher`]."""
    left_out, chosen = _patterns(peft, "exclude_modules"), _patterns(peft, "target_modules")
    if peft.flag("match_all_linear"):
        return "all-linear,lm_head"
    if left_out and not chosen:
        return f"(?!.*embed|{'|'.join(left_out)}).*"
    return f"(?:{'|'.join(chosen or ['.*_proj$'])})"


def _patterns(peft: Watched, name: str) -> list[str]:
    """Patterns of a shell as regular expressions; a plain name is the end of a module's."""
    given = peft.get(name)
    names = given if isinstance(given, list) else [] if given is None else [given]
    found = []
    for each in map(str, names):
        if not re.fullmatch(r"[\w.*]{1,80}", each):
            peft.cannot(name, "{} is no pattern of names", shown(each), option="lora-targets")
            continue
        text = each if "*" in each else f"*.{each}"
        found.append(re.escape(text).replace(r"\*", ".*") + "$")
    return found


def _compiled(compiled: Watched) -> dict[str, Any]:
    if not compiled.flag("enabled"):
        compiled.ignore("*")
        return {}
    compiled.only("backend", "inductor", "null")
    compiled.only("mode", "default")
    compiled.get("fullgraph"), compiled.get("dynamic")  # shapes are fixed here
    return {"compile": True}


def _float8(values: Watched) -> dict[str, Any]:
    """torchao's linear layers in all but the head [am components/quantization/fp8.py `apply_fp8_to_model`]."""
    asked = _section(values, "fp8")
    if not asked.flag("enabled"):
        asked.ignore("*")
        return {}
    asked.only("recipe_name", "tensorwise")
    asked.only("emulate", False)
    asked.only("filter_fqns", ["lm_head"])
    if not asked.flag("enable_fsdp_float8_all_gather") or not table(values.get("compile")).get("enabled"):
        asked.cannot("enabled", "is modelled with enable_fsdp_float8_all_gather and compile")
    return {"engine-option": ("float8_all_gather=true",)}


def _length(values: Watched) -> int | None:
    """Positions of a sample: those of a pack, or those after which a sample is cut."""
    given = table(values.get("dataset"))
    samples = values.inner["dataset"] = Watched({name: given[name] for name in LENGTHS if name in given})
    lengths = [found for name in samples if (found := samples.count(name))]
    packing = _section(values, "packed_sequence")
    packed = packing.whole("packed_sequence_size") or packing.whole("pack_size")
    if packed or lengths:
        return packed or lengths[0]
    loader = dict.get(values, "dataloader")
    collate = loader.get("collate_fn") if isinstance(loader, dict) else None
    length = collate.get("max_length") if isinstance(collate, dict) else None
    return length if isinstance(length, int) and length > 0 else None
