"""Processors of images and sound of a hub's repository that is not there, by the classes that transformers has for it.

What their files would say is left to the defaults of these classes, but for sizes, which are those of the model's
config. Media take the tokens that the processor's own code counts.
[classes] transformers models/auto/{image_processing,video_processing,feature_extraction,processing}_auto.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import getsource, signature
from typing import Any, Final

from vramcast.errors import Note

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
OF_MEDIA: Final = re.compile(r"\b(\w+_token)\b[^\n]*?[\"'](<[^\"'\n]+>)[\"']")
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
    written = {**AROUND, **asked, **dict(OF_MEDIA.findall(made))}
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
