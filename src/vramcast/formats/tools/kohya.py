"""Commands of kohya's sd-scripts: train_network, train_db, fine_tune and their forms for SDXL, SD3 and FLUX.

[kohya] kohya-ss/sd-scripts library/train_util.py `add_training_arguments`, `load_arguments_from_file`,
library/config_util.py, train_network.py, sdxl_train.py, flux_train.py @0.10.1
A checkpoint is a file of any name: which network it holds is said by the script.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from vramcast.errors import Note, Unsupported
from vramcast.formats.reading import ELSEWHERE, Config, Reading, Unread, arguments, command_of, shown
from vramcast.formats.tools.diffusers import OTHER, PRECISIONS, processes
from vramcast.formats.tools.hf_command import taken_apart
from vramcast.formats.watched import Known, Watched

KNOWN: Final = Known("sd-scripts", "arguments")
SUBSETS: Final = Known("sd-scripts", "datasets")

SCRIPT: Final = re.compile(r"(?:.*/)?(?:(?:\w+_)?train_(?:network|db|textual_inversion)|fine_tune|\w+_train)\.py")
FILES: Final = ("config_file", "dataset_config")
CALLED_ANYTHING: Final = ("pretrained_model_name_or_path", "dataset_config", "in_json")
"""Files whose name says nothing."""
PLACEHOLDER: Final = re.compile(r"\$\{(<[^{}]*>)\}")


class Script(NamedTuple):
    """What a script trains."""

    model: str  # of the catalogue
    adapters: bool = False
    text_learns: str = "asked"  # "unless" an argument says otherwise, "asked": with --train_text_encoder, "never"
    trains: str = "denoiser"
    tokens: int = 0
    narrow: bool = False  # what learns stays in the 16 bits that it is loaded in


_SD: Final = "stable-diffusion-1.5"
_XL: Final = "stable-diffusion-xl-base"
_FLUX: Final = "flux.1-dev"
_LUMINA: Final = "lumina-image-2.0"
_SD3: Final = "stable-diffusion-3.5-medium"

SCRIPTS: Final[dict[str, Script]] = {
    "train_network": Script(_SD, adapters=True, text_learns="unless"),
    "sdxl_train_network": Script(_XL, adapters=True, text_learns="unless"),
    "flux_train_network": Script(_FLUX, adapters=True, text_learns="unless", tokens=512),
    "sd3_train_network": Script(_SD3, adapters=True, text_learns="unless", tokens=333),
    "train_db": Script(_SD, text_learns="dreambooth"),
    "fine_tune": Script(_SD),
    "sdxl_train": Script(_XL),
    "flux_train": Script(_FLUX, text_learns="never", tokens=512, narrow=True),
    "lumina_train_network": Script(_LUMINA, adapters=True, text_learns="unless", tokens=256),
    "lumina_train": Script(_LUMINA, text_learns="never", tokens=256, narrow=True),
    "sd3_train": Script(_SD3, tokens=333, narrow=True),
    "train_textual_inversion": Script(_SD, text_learns="never", trains="embedding"),
    "sdxl_train_textual_inversion": Script(_XL, text_learns="never", trains="embedding"),
}

NARROW: Final = "weights learn in the 16 bits that {}.py loads them in: gradients and moments have as many"
"""[kohya] flux_train.py loads in the type of --mixed_precision, sd3_train.py as the checkpoint has them, which is taken
for 16 bits; only modules of SD and SDXL are fp32 from the start (`_load_state_dict_on_device`)."""

MOST_OF_MEDIUM: Final = 22
"""Blocks of 3.5 medium that can wait on the host: two of its 24 stay."""

ELSEWHERE_SIZES: Final = "leaves the size of images to {}, which is not given"
ELSEWHERE_BATCH: Final = "leaves the batch to {}, which is not given"
"""[kohya] library/config_util.py `BaseDatasetParams`: a batch of 1; a resolution has no default."""

NETWORKS: Final = ("networks.lora", "networks.lora_flux", "networks.lora_sd3", "networks.lora_lumina")

OPTIMIZERS: Final = {
    "adamw": "adamw", "adamw8bit": "adamw-8bit", "pagedadamw8bit": "paged-adamw-8bit", "pagedadamw": "paged-adamw",
    "lion": "lion", "lion8bit": "lion-8bit", "pagedlion8bit": "paged-lion-8bit", "adafactor": "adafactor",
    "prodigy": "prodigy", "sgdnesterov": "sgd-momentum", "sgdnesterov8bit": "sgd-8bit",
}


def read(config: Config) -> Reading:
    """The one command of a script that starts a training, over the files that it names."""
    if config.name.endswith(".toml"):
        raise Unsupported("{} is a file of sd-scripts; give the command that names it beside it", config.name)
    command = command_of(config, _score)
    launch = taken_apart(command.words)
    given = _with_placeholders(arguments(filter(str.strip, launch.words)))
    unread = list[Unread](command.unread)
    beside = dict(config.beside)
    dataset = beside.pop("dataset_config", None)
    values = Watched({**beside, **given}, KNOWN, command.undecided)
    values.ignore(*FILES)
    if "config_file" in given and not beside:
        unread.append(Unread(shown(given["config_file"]), ELSEWHERE))
    name = PurePosixPath(launch.program).stem
    shared, launched = processes(launch, command)
    row = SCRIPTS.get(name)
    if row is None:
        return Reading("sd-scripts", {}, unread=(Unread(f"{name[:60]}.py", OTHER),))
    options, pairs = _options(values, row, launched)
    notes = [*command.notes, *shared.notes]
    model, said = _model(values, row)
    notes += [*said, *([Note(NARROW, name)] if row.narrow else [])]
    size, batch, found = _samples(values, dataset)
    auto: dict[str, str] = {}
    if not size and not found:
        named = shown(values.text("dataset_config") or values.text("in_json") or "dataset_config")
        auto["image-size"] = Note(ELSEWHERE_SIZES, named)
        auto |= {} if batch else {"micro-batch": Note(ELSEWHERE_BATCH, named)}
    pairs = size + pairs
    unread += found
    options = {"engine": "sd-scripts", "model": model, **options, "engine-option": tuple(pairs)}
    batch["accumulation"] = values.count("gradient_accumulation_steps") or 1
    return Reading(
        "sd-scripts", options, batch=batch, unread=(*unread, *shared.unread, *values.unread()), notes=tuple(notes),
        ranks=shared.ranks, auto=auto,
    )


def _with_placeholders(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same; `<your checkpoint>` of a document as the name of a file, of which nothing here depends."""
    return {name: PLACEHOLDER.sub(r"\1", value) if name in CALLED_ANYTHING and isinstance(value, str) else value
            for name, value in given.items()}


def _model(values: Watched, row: Script) -> tuple[str, list[str]]:
    """The catalogue's network of the script's kind, whatever the checkpoint is called."""
    checkpoint, model = values.get("pretrained_model_name_or_path"), row.model
    named = checkpoint if isinstance(checkpoint, str) else ""  # words in brackets are a placeholder
    if model == _SD and values.flag("v2"):
        model = "stable-diffusion-2.1"
    if model == _SD3:
        model = next((f"stable-diffusion-{one}" for one in ("3.5-large", "3.5-medium", "3-medium")
                      if re.search(one.replace("-", "[-_]?"), named.lower())), _SD3)
        if (values.whole("blocks_to_swap") or 0) > MOST_OF_MEDIUM:
            model = "stable-diffusion-3.5-large"
    kind = values.get("model_type")
    if kind not in (None, "flux", "flux_dev"):
        values.cannot("model_type", "{} is another network", shown(kind))
    return model, [Note(
        "{} is taken for {}, which the script trains", shown(named) if named else "the checkpoint", model
    )]


def _options(values: Watched, row: Script, launched: str | None) -> tuple[dict[str, Any], list[str]]:
    options: dict[str, Any] = {}
    precision = values.one_of("mixed_precision", PRECISIONS, option="precision")
    precision = precision or PRECISIONS.get(launched or "no", "fp32")
    if any([values.flag("full_bf16"), values.flag("full_fp16"), row.narrow]):
        precision = precision.removeprefix("amp-")
    options["precision"] = precision
    if values.flag("gradient_checkpointing"):
        options["recompute"] = "full"
    options["optimizer"] = _optimizer(values)
    pairs = []
    if row.adapters:
        module = values.text("network_module")
        if module not in NETWORKS:
            values.cannot("network_module", "{} is none of {}", shown(module), ", ".join(NETWORKS))
        options |= {"peft": "lora", "lora-rank": values.count("network_dim") or 4}
    if row.trains != "denoiser":
        pairs.append(f"trains={row.trains}")
    if row.tokens:
        pairs.append(f"tokens={row.tokens}")
    pairs += ["weights=fp8"] if any([values.flag("fp8_base"), values.flag("fp8_base_unet")]) else []
    pairs += [f"swapped={count}"] if (count := values.whole("blocks_to_swap")) else []
    if any([values.flag("fused_backward_pass"), values.flag("blockwise_fused_optimizers")]):
        pairs.append("fused=true")
    kernels = [values.flag(name) for name in ("xformers", "sdpa", "mem_eff_attn")]
    if row.model in (_SD, _XL) and not any(kernels):
        options["attention"] = "eager"
    return options, pairs + _placed(values, row)


def _optimizer(values: Watched) -> str:
    if values.flag("use_8bit_adam"):
        return "adamw-8bit"
    if values.flag("use_lion_optimizer"):
        return "lion"
    name = values.text("optimizer_type")
    found = OPTIMIZERS.get(str(name).lower().rpartition(".")[2]) if name else "adamw"
    if found is None:
        values.cannot("optimizer_type", "{} is none of {}", shown(name), ", ".join(OPTIMIZERS), option="optimizer")
    return found or "adamw"


def _placed(values: Watched, row: Script) -> list[str]:
    pairs = ["vae_dtype=fp32" if values.flag("no_half_vae") else "vae_dtype=half"]
    if any([values.flag("cache_latents"), values.flag("cache_latents_to_disk")]):  # both are looked at
        pairs.append("vae=cached")
    cached = any([values.flag("cache_text_encoder_outputs"), values.flag("cache_text_encoder_outputs_to_disk")])
    if cached:
        pairs.append("text=cached")
    alone = bool(values.flag("network_train_unet_only"))
    stops = values.get("stop_text_encoder_training")
    learns = {
        "unless": not alone and not cached, "asked": bool(values.flag("train_text_encoder")), "never": False,
        "dreambooth": not (isinstance(stops, (int, float)) and stops < 0),
    }[row.text_learns]
    if learns and row.model == _LUMINA:
        values.cannot("network_train_unet_only", "is not given: adapters of Gemma are not modelled")
    elif learns:
        pairs.append("text_learns=true")
    if values.get("sample_prompts") is not None:
        pairs.append("validation=true")
    return pairs


def _samples(values: Watched, dataset: Any) -> tuple[list[str], dict[str, int], list[Unread]]:
    """Size and number of the images, from the command and from the file of its data sets: the largest of them.

    No size where they are in a file that is not given: of data sets, or of images that were measured before.
    """
    if dataset is None:
        size, batch = _sides(values.get("resolution")), values.count("train_batch_size")
        elsewhere = values.get("dataset_config") is not None or values.get("in_json") is not None
        batch = batch or (None if elsewhere else 1)
        missing = [] if size or elsewhere else [
            Unread("resolution", "is not given, which sd-scripts needs", option="image-size")]
        return _pairs(size), {"micro": batch} if batch else {}, missing
    general = Watched(dataset.get("general") or {}, SUBSETS)
    tables = [Watched(one, SUBSETS) for one in dataset.get("datasets") or [{}] if isinstance(one, Mapping)]
    sizes, batches = [], []
    for one in tables:
        sizes.append(_sides(one.get("resolution") or general.get("resolution") or values.get("resolution")))
        batches.append(one.count("batch_size") or general.count("batch_size") or values.count("train_batch_size") or 1)
    values.get("resolution")
    found = [size for size in sizes if size]
    unread = [] if found else [Unread("resolution", "is said by no data set", option="image-size")]
    unread += [one for table in (general, *tables) for one in table.unread()]
    largest = max(found, key=lambda size: size[0] * size[1], default=())
    return _pairs(largest), {"micro": max(batches, default=1)}, unread


def _sides(value: Any) -> tuple[int, ...]:
    """Width and height of `1024`, "1024,768" and [1024, 768]."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    sides = [int(part) for part in map(str, parts) if part.strip().isdecimal() and len(part.strip()) < 6]
    return tuple(sides * 2 if len(sides) == 1 else sides[:2]) if sides else ()


def _pairs(size: tuple[int, ...]) -> list[str]:
    return [f"width={size[0]}", f"height={size[1]}"] if size else []


def files_of(config: Config) -> set[str]:
    """The files that a command's program takes its own arguments from, without folders."""
    given = arguments(taken_apart(command_of(config, _score).words).words)
    return {PurePosixPath(str(given[name]).replace("\\", "/")).name for name in FILES if name in given}


def table_of(config: Config) -> Mapping[str, Any]:
    """What a file says beside a command: that of the data sets under its name, sections of the other as one.

    Raises: SourceError, by the reader's walk, for what is no TOML
    """
    found = config.table if config.table is not None else tomllib.loads(config.text)
    if "datasets" in found or "general" in found:
        return {"dataset_config": found}
    flat: dict[str, Any] = {}
    for name, value in found.items():  # [kohya] sections are for the reader's eyes
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def _score(words: tuple[str, ...]) -> int:
    return 1 + len(words) if any(SCRIPT.fullmatch(word) for word in words) else 0
