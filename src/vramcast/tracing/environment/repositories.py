"""Files of a hub's repository that is not there, by the catalogue: configs, weights without data, a plain tokenizer.

Weights are a safetensors file whose data is a hole: names and shapes are those of the class that the config names, so
that dtype, device map, quantisation and tied weights are those of the library that reads them. A diffusion pipeline
has a folder for each of its parts [diffusers pipelines/pipeline_utils.py `save_pretrained`].

Processors of images and sound of a hub's repository that is not there, by the classes that transformers has for it.

What their files would say is left to the defaults of these classes, but for sizes, which are those of the model's
config. Media take the tokens that the processor's own code counts.
[classes] transformers models/auto/{image_processing,video_processing,feature_extraction,processing}_auto.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource, signature
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from vramcast.catalogue.index import MODELS, PIPELINES
from vramcast.catalogue.models import read_entry as read_model
from vramcast.catalogue.pipelines import Entry, Part, entry_pipeline, read_entry
from vramcast.domain.model import Model
from vramcast.domain.pipeline import Network, Pipeline
from vramcast.engines.diffusers import elements_of
from vramcast.errors import Note, Unsupported, VramcastError
from vramcast.sources.resolve import config_of
from vramcast.tracing.environment.saving import write_hollow
from vramcast.tracing.simulation import Simulation

PROCESSOR: Final = "{}: its processor's files are not fetched; {} has its defaults and the sizes of the model's config"
FILES: Final = {
    "processing": ("processor_config.json", "processor_class"),
    "image_processing": ("preprocessor_config.json", "image_processor_type"),
    "video_processing": ("video_preprocessor_config.json", "video_processor_type"),
    "feature_extraction": ("preprocessor_config.json", "feature_extractor_type"),
}
"""Kind -> file that names its class, and by which word."""
MAPPINGS: Final = {"feature_extraction": "FEATURE_EXTRACTOR", "image_processing": "IMAGE_PROCESSOR",
                   "processing": "PROCESSOR", "video_processing": "VIDEO_PROCESSOR"}
PATCHES: Final = ("patch_size", "temporal_patch_size")
EDGES: Final = {"height", "shortest_edge", "width"}
SPECIAL_TOKENS: Final = re.compile(r"\b(\w+_token)\b[^\n]*?[\"'](<[^\"'\n]+>)[\"']")
"""A line of a processor that says how the token of a medium is written."""
OF_TOKENIZER: Final = re.compile(r"\btokenizer\.(\w+_token)(?:_id)?\b")
"""What a processor asks its tokenizer for."""
STARTS_IMAGE: Final = "boi_token"  # which its processor puts the others behind [models/gemma3/processing_gemma3.py]
AROUND: Final = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
TEXTS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
CLASS_TOKEN: Final = "clip_vision_model"  # whose patches have another vector before them


def processor_files(config: Mapping[str, Any], repo_id: str) -> Iterator[tuple[str, dict[str, Any], Note]]:
    """Name of a file, its content, what is said of it."""
    vision = config.get("vision_config") or config
    for kind, (file, word) in FILES.items():
        name = _class_of(kind, config)
        if not name:
            continue
        class_ = getattr(import_module("transformers"), name)
        sizes = _of_config(class_, _whole(config), vision) if kind == "processing" else _sizes(class_, vision)
        content = {word: name, **sizes}
        if kind == "feature_extraction" and "num_mel_bins" in config:
            content["feature_size"] = config["num_mel_bins"]
        yield file, content, Note(PROCESSOR, repo_id, name)


def media_tokens(config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Role of a token that stands for a medium, or is beside one -> its text and id."""
    name = _class_of("processing", config)
    if not name:
        return {}
    made = getsource(getattr(import_module("transformers"), name).__init__)
    asked = {role: f"<|{role}|>" for role in OF_TOKENIZER.findall(made)}
    written = {**AROUND, **asked, **dict(SPECIAL_TOKENS.findall(made))}
    known = _whole(config)
    ids = {role: known.get(f"{role}_id", known.get(f"{role}_index")) for role in written if role not in TEXTS}
    return {role: (written[role], number) for role, number in ids.items() if isinstance(number, int)}


def _whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """With what its family's class has by default."""
    usual: dict[str, Any] = import_module("transformers").AutoConfig.for_model(config["model_type"]).to_dict()
    return {**usual, **config}


def shown(media: Mapping[str, tuple[str, int]]) -> str:
    """What a chat's template writes for an image."""
    if STARTS_IMAGE in media:
        return media[STARTS_IMAGE][0]
    around = [media[role][0] for role in AROUND if role in media]
    image = media["image_token"][0] if "image_token" in media else ""
    return image.join(around) if len(around) == len(AROUND) else image


def _class_of(kind: str, config: Mapping[str, Any]) -> str:
    """Name of the class that a family has of a kind, "" where it has none."""
    module: Any = import_module(f"transformers.models.auto.{kind}_auto")
    found = getattr(module, f"{MAPPINGS[kind]}_MAPPING_NAMES").get(config.get("model_type"), "")
    found = found.get("torchvision") or found.get("pil") if isinstance(found, dict) else found
    return found[0] if isinstance(found, tuple) else found or ""


def _sizes(class_: Any, vision: Mapping[str, Any]) -> dict[str, Any]:
    side, sizes = vision.get("image_size"), dict[str, Any]()
    for name in ("size", "crop_size"):
        usual = getattr(class_, name, None)
        if isinstance(side, int) and isinstance(usual, dict) and EDGES.issuperset(usual):
            sizes[name] = dict.fromkeys(usual, side)
    for name, field in (*zip(PATCHES, PATCHES, strict=True), ("merge_size", "spatial_merge_size")):
        if field in vision and hasattr(class_, name) and isinstance(getattr(class_, name), int):
            sizes[name] = vision[field]
    return sizes


def _of_config(class_: Any, config: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a processor that the model's config answers."""
    answers = {
        "patch_size": vision.get("patch_size"),
        "num_additional_image_tokens": int(vision.get("model_type") == CLASS_TOKEN),
        "image_seq_length": config.get("mm_tokens_per_image"),
        "vision_feature_select_strategy": config.get("vision_feature_select_strategy"),
    }
    return {name: answers[name] for name in signature(class_.__init__).parameters if answers.get(name) is not None}


Maker = Callable[[Path, Simulation], None]

WEIGHTS: Final = "model.safetensors"
NETWORK_WEIGHTS: Final = "diffusion_pytorch_model.safetensors"
INDEX: Final = "model_index.json"
VARIANT: Final = re.compile(r"\.(fp16|bf16|non_ema)(?=\.safetensors$)")
"""Of a name of weights: diffusers' networks are made in the dtype that is asked for, whatever the file has."""
HOLLOW: Final = "{}: its weights are not fetched; tensors of the shapes that its config says stand in"
CONFIG: Final = "{}: the hub does not answer, so its config is that of the catalogue"
DEFAULTS: Final = "{}: the hub does not answer, so its config is what transformers' {} has by default, which names it"
DESCRIBED: Final = re.compile(r'@auto_docstring\((?:.*\s*)?checkpoint="([^"]+)"[^)]*\)\n(?:@.*\n)*class (\w+)\(')
TUNED: Final = "{}: the hub does not answer, so its config is that of {}, from which its name says it was trained"
TRAINED: Final = frozenset((
    "dpo", "finetuned", "ft", "grpo", "kto", "orpo", "ppo", "reward", "rlhf", "rloo", "rm", "sft", "tldr", "tuned",
))
"""Words of a name by which weights were trained further."""
QUANTISED: Final = frozenset(("awq", "bnb", "draft", "eagle", "gguf", "gptq", "mlx", "tiny"))
PLAIN_TOKENIZER: Final = "{}: a tokenizer that makes a token of every 4 characters stands in for its own"
PARTS: Final = "{}: the pipeline's parts are those of the catalogue, without a safety checker"
NOT_ITS_CLASS: Final = (
    "{} cannot stand in: diffusers {} makes {:,} parameters of the config in the catalogue, which counts {:,}"
)
CHARACTERS: Final = r"[\s\S]{1,4}"
"""Of a token: about what tokenizers of large vocabularies make of English."""
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OF_MEDIA: Final = (
    "{{% for message in messages %}}{{{{ '<|im_start|>' + message['role'] + '\n' }}}}"
    "{{% if message['content'] is string %}}{{{{ message['content'] }}}}{{% else %}}"
    "{{% for part in message['content'] %}}{{% if part['type'] == 'image' %}}{}"
    "{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"
)
USUAL: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<s>", "</s>", "<pad>", "<image>")
"""Tokens that scripts name, at the end of a vocabulary that has room for them."""
LEAST_VOCABULARY: Final = 1000
PADS: Final = ("qwen2", "qwen3")
"""Families whose tokenizer has a token to pad with, of which their config says nothing [transformers models/qwen2/
tokenization_qwen2.py `pad_token`]."""
AFTER_PAD: Final = (
    "camembert", "data2vec-text", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)
"""Families whose positions start after that of padding [transformers models/*/modeling_*.py, `padding_idx + 1`]."""
AUTOENCODERS: Final = {
    "stabilityai/sd-vae-ft-ema": "stable-diffusion-1.5", "stabilityai/sd-vae-ft-mse": "stable-diffusion-1.5",
    "madebyollin/sdxl-vae-fp16-fix": "stable-diffusion-xl-base", "stabilityai/sdxl-vae": "stable-diffusion-xl-base",
}
"""Repository with other weights of a pipeline's autoencoder, as its page says -> that pipeline."""
SCHEDULERS: Final = {"StableDiffusionPipeline": "PNDMScheduler"}
"""Pipeline -> scheduler, where its class takes any; else EulerDiscreteScheduler."""
NOISE: Final = {
    "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1,
    "skip_prk_steps": True, "set_alpha_to_one": False,
}
DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@cache
def files_of(repo_id: str, *, is_whole: bool = False) -> Mapping[str, Maker] | None:
    """File of a repository -> what writes one; None for a repository that the catalogue does not know.

    Networks of a pipeline that is loaded as a whole have the dtype that it is kept in; what a script loads alone comes
    in fp32, as diffusers makes it where no dtype is asked for: another one would be converted in main memory.
    """
    if repo_id in AUTOENCODERS:
        entry = read_entry(AUTOENCODERS[repo_id])
        part = next(part for part in entry.components if part.role == "autoencoder")
        return _network_files(part, entry, repo_id, torch.float32)
    if repo_id.lower() in PIPELINES.aliases:
        entry = read_entry(PIPELINES.resolve(repo_id))
        return _pipeline_files(entry, repo_id, getattr(torch, _dtype(entry)) if is_whole else torch.float32)
    try:
        return _model_files(config_of(repo_id), repo_id)
    except VramcastError:
        described = _config_of_library(repo_id)
    if described:
        return _model_files(described, repo_id, said=Note(DEFAULTS, repo_id, described["model_type"]))
    base = base_of(repo_id)
    return _model_files(config_of(base), repo_id, said=Note(TUNED, repo_id, base)) if base else None


def base_of(repo_id: str) -> str:
    """Repository of the catalogue that one is tuned from by its name, "" where the name says nothing of it, or more
    than that its weights were trained on: it may be of other sizes then, or quantised."""
    name = repo_id.lower().rpartition("/")[2]
    found = ""
    for alias in MODELS.aliases:
        base = alias.rpartition("/")[2]
        if name.startswith(f"{base}-") and len(base) > len(found.rpartition("/")[2]) and re.search(r"\d[bm]\b", base):
            found = alias
    rest = name.removeprefix(found.rpartition("/")[2]).split("-")
    is_whole = all(re.fullmatch(r"[a-z]*|v\d.*", word) and word not in QUANTISED for word in rest)
    return found if is_whole and not TRAINED.isdisjoint(rest) else ""


def _config_of_library(repo_id: str) -> dict[str, Any] | None:
    """The defaults of the configuration whose class names a repository as the one that they describe."""
    name = repo_id.lower()
    described = next((class_ for id_, class_ in _described().items() if name in (id_, id_.rpartition("/")[2])), None)
    if described is None:
        return None
    config: dict[str, Any] = getattr(import_module("transformers"), described)().to_dict()
    return {key: value for key, value in config.items() if value is not None}


@cache
def _described() -> dict[str, str]:
    """Repository -> configuration whose defaults are its own [transformers utils/auto_docstring.py: "Instantiating a
    configuration with the defaults will yield a similar configuration to that of"]."""
    spec, found = find_spec("transformers"), dict[str, str]()
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    for file in sorted(folder.glob("models/*/configuration_*.py")) if spec else ():
        for repository, class_ in DESCRIBED.findall(file.read_text(encoding="utf-8")):
            before = found.get(repository.lower())
            if before is None or len(class_) < len(before):  # the parts of a model are classes of longer names
                found[repository.lower()] = class_
    return found


def _model_files(config: dict[str, Any], repo_id: str, tokens: int = 0, said: str = "") -> dict[str, Maker]:
    longest = tokens or config.get("max_position_embeddings") or 1 << 20
    if config.get("model_type") in AFTER_PAD and not tokens:
        longest -= _specials(config)["pad"][1] + 1
    media = media_tokens(config)
    template = OF_MEDIA.format(shown(media)) if media else TEMPLATE
    processors: dict[str, Maker] = {
        file: partial(_make_json, content, told) for file, content, told in processor_files(config, repo_id)
    }
    if media and processors:
        processors["chat_template.jinja"] = partial(_make_text, template)
    return processors | {
        "config.json": partial(_make_json, config, said or Note(CONFIG, repo_id)),
        WEIGHTS: partial(make_weights, config, repo_id),
        "tokenizer.json": partial(_make_tokenizer, config, repo_id),
        "tokenizer_config.json": partial(_make_json, {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest,
            **({"chat_template": template} if _writes(config) else {}),
            **{f"{role}_token": text for role, (text, _) in _specials(config).items()},
            **({"extra_special_tokens": {role: text for role, (text, _) in media.items()}} if media else {}),
        }, ""),
    }


def _writes(config: Mapping[str, Any]) -> bool:
    """Whether a model goes on with text, as those that chat do: encoders and translators have no template for it."""
    return "text_config" in config or any("CausalLM" in name for name in config.get("architectures") or ())


def _make_json(content: Mapping[str, Any], said: str, path: Path, simulation: Simulation) -> None:
    if said:
        simulation.assumptions.note(said)
    path.write_text(json.dumps(content), encoding="utf-8")


def _make_text(content: str, path: Path, _simulation: Simulation) -> None:
    path.write_text(content, encoding="utf-8")


def make_weights(config: Mapping[str, Any], repo_id: str, path: Path, simulation: Simulation) -> None:
    """What `save_pretrained` of the architecture would write."""
    transformers: Any = import_module("transformers")
    raw = dict(config)
    made = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    names = [name for name in raw.get("architectures") or () if hasattr(transformers, name)]
    class_ = getattr(transformers, names[0]) if names else transformers.AutoModel._model_mapping[type(made)]
    dtype = getattr(torch, str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."))
    with torch.device("meta"):
        model = class_(made).to(dtype)
    _write_weights(model, repo_id, path, simulation)


def _write_weights(model: torch.nn.Module, repo_id: str, path: Path, simulation: Simulation) -> None:
    simulation.assumptions.note(Note(HOLLOW, repo_id))
    tensors = {id(tensor): (name, tensor) for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    write_hollow(dict(reversed(tensors.values())), str(path), {"format": "pt"})


def _vocabulary(config: Mapping[str, Any]) -> int:
    return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 32_000)


def _specials(config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Role of a token -> its text and id."""
    ids = {role: config.get(f"{role}_token_id") for role in ("eos", "bos", "pad")}
    if "model_type" in config:  # left out where they are those of the family's own class
        usual = import_module("transformers").AutoConfig.for_model(config["model_type"])
        for role in ("bos", "pad"):
            ids[role] = getattr(usual, f"{role}_token_id", None) if ids[role] is None else ids[role]
    if ids["pad"] is None and str(config.get("model_type")).startswith(PADS):
        ids["pad"] = _vocabulary(config) - 2
    ids["eos"] = _vocabulary(config) - 1 if ids["eos"] is None else ids["eos"]  # as every tokenizer has one
    firsts = {role: each[0] if isinstance(each, list) else each for role, each in ids.items()}
    texts: dict[int, str] = {}
    for role, number in firsts.items():
        if number is not None and number >= 0:
            texts.setdefault(number, f"<|{role}|>")
    unknown = next(number for number in range(len(texts) + 1) if number not in texts)
    found = {role: (texts[number], number) for role, number in firsts.items() if number in texts}
    return {**found, "unk": ("<|unk|>", unknown)}


def _make_tokenizer(config: Mapping[str, Any], repo_id: str, path: Path, simulation: Simulation) -> None:
    simulation.assumptions.note(Note(PLAIN_TOKENIZER, repo_id))
    specials = _specials(config)
    size = _vocabulary(config)
    named = {number: text for text, number in (*specials.values(), *media_tokens(config).values())}
    size = max(size, *(number + 1 for number in named))
    if size >= LEAST_VOCABULARY:
        free = [number for number in range(size - len(USUAL) - len(named), size) if number not in named]
        usual = (text for text in USUAL if text not in named.values())
        named |= dict(zip(reversed(free), [*usual], strict=False))
    vocabulary = {named.get(number, f"<|{number}|>"): number for number in range(size)}
    added = [
        {"id": number, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, text in sorted(named.items())
    ]
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": CHARACTERS}, "behavior": "Isolated", "invert": False,
        },
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": specials["unk"][0]},
    }), encoding="utf-8")


def _pipeline_files(entry: Entry, repo_id: str, dtype: torch.dtype) -> dict[str, Maker]:
    diffusers: Any = import_module("diffusers")
    class_ = getattr(diffusers, entry.family)
    takes = signature(class_.__init__).parameters
    scheduler = _scheduler(takes["scheduler"].annotation, entry)
    files: dict[str, Maker] = {}
    index: dict[str, Any] = dict.fromkeys(class_._optional_components, (None, None))
    index |= {"_class_name": entry.family, "_diffusers_version": diffusers.__version__}
    for part in entry.components:
        if not part.model:
            index[part.name] = "diffusers", part.class_
            network = _network_files(part, entry, repo_id, dtype)
            files |= {f"{part.name}/{name}": made for name, made in network.items()}
            continue
        config = _encoder(part, entry)
        tokenizer = part.name.replace("text_encoder", "tokenizer")
        index |= {part.name: ("transformers", config["architectures"][0])}
        index |= {tokenizer: ("transformers", "PreTrainedTokenizerFast")} if tokenizer in takes else {}
        for name, made in _model_files(config, repo_id, part.tokens).items():
            files[f"{tokenizer if 'tokenizer' in name else part.name}/{name}"] = made
    if scheduler:
        index["scheduler"] = "diffusers", scheduler
        described = {"_class_name": scheduler, "_diffusers_version": diffusers.__version__, **NOISE}
        files["scheduler/scheduler_config.json"] = partial(_make_json, described, "")
    return {INDEX: partial(_make_json, index, PARTS.format(repo_id)), **files}


def _scheduler(annotation: Any, entry: Entry) -> str:
    """Name of the class that a pipeline's constructor asks for, or of the one that its repository has."""
    name = str(getattr(annotation, "__name__", annotation)).rpartition(".")[2]
    is_any = not hasattr(import_module("diffusers"), name)
    return SCHEDULERS.get(entry.family, "EulerDiscreteScheduler") if is_any else name


def _encoder(part: Part, entry: Entry) -> dict[str, Any]:
    """Config of a text encoder."""
    config = dict(read_model(part.model).config)
    last = _vocabulary(config) - 1
    ids = (1, 0, None) if config["model_type"] == "t5" else (last, last, last - 1)
    roles = dict(zip(("eos_token_id", "pad_token_id", "bos_token_id"), ids, strict=True))
    return {**roles, **config, "torch_dtype": _dtype(entry)}


def _dtype(entry: Entry) -> str:
    """What a repository keeps its weights in; Stable Diffusion's first ones have fp32."""
    return "float32" if entry.family == "StableDiffusionPipeline" else DTYPES[entry.dtype]


def _network_files(part: Part, entry: Entry, repo_id: str, dtype: torch.dtype) -> dict[str, Maker]:
    pipeline = entry_pipeline(repo_id, entry)
    network = next(component.network for component in pipeline.components if component.name == part.name)
    config = _config(part, network, pipeline)
    return {
        "config.json": partial(_make_json, {"_class_name": part.class_, **config}, Note(CONFIG, repo_id)),
        NETWORK_WEIGHTS: partial(_make_network_weights, part, network, config, dtype, repo_id),
    }


def _make_network_weights(
    part: Part, network: Network, config: Mapping[str, Any], dtype: torch.dtype, repo_id: str, path: Path,
    simulation: Simulation,
) -> None:
    assert not isinstance(network, Model)
    diffusers: Any = import_module("diffusers")
    with torch.device("meta"):
        model = getattr(diffusers, part.class_).from_config(config).to(dtype)
    made, counted = sum(weight.numel() for weight in model.parameters()), elements_of(network)
    if made != counted:
        raise Unsupported(NOT_ITS_CLASS, f"{repo_id}'s {part.name}", diffusers.__version__, made, counted)
    _write_weights(model, repo_id, path, simulation)


def _config(part: Part, network: Network, pipeline: Pipeline) -> dict[str, Any]:
    """Config of a network: what its constructor takes of the catalogue's fields, with what follows from them."""
    diffusers: Any = import_module("diffusers")
    taken = signature(getattr(diffusers, part.class_).__init__).parameters
    whole = {name: value for name, value in msgspec.structs.asdict(network).items() if name in taken} | part.config
    decoder = pipeline.autoencoder
    if "sample_size" in taken and decoder is not None and hasattr(decoder.network, "scale"):
        whole.setdefault("sample_size", pipeline.height // decoder.network.scale)
    return whole | dict(_implied(part.class_, whole))


def _implied(class_: str, whole: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the catalogue leaves out as other fields of a config say it already."""
    if class_ == "AutoencoderKL":
        levels = len(whole["block_out_channels"])
        yield "down_block_types", ("DownEncoderBlock2D",) * levels
        yield "up_block_types", ("UpDecoderBlock2D",) * levels
        if not whole["use_quant_conv"]:  # of FLUX and Stable Diffusion 3, whose pipelines move latents by it
            yield "shift_factor", 0.0
    if class_ == "UNet2DConditionModel":
        yield "up_block_types", tuple(name.replace("Down", "Up") for name in reversed(whole["down_block_types"]))
        if whole["addition_time_embed_dim"]:
            yield "addition_embed_type", "text_time"
