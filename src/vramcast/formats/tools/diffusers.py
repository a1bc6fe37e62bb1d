"""Commands of diffusers' example scripts: text to image, DreamBooth, LoRA, ControlNet, textual inversion.

[examples] huggingface/diffusers examples/*/train_*.py, textual_inversion*.py @0.40: their arguments, and what each
keeps on the card. An autoencoder is in fp32 where a script says so; text encoders that do not learn are deleted once
the prompts are encoded, where all samples share a prompt.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from vramcast.engines.training import FEED_FORWARD, JOINT
from vramcast.formats.reading import Config, Reading, Unread, arguments, command_of
from vramcast.formats.tools.hf_command import Launch, launching, taken_apart
from vramcast.formats.watched import Known, Watched, is_unset

KNOWN: Final = Known("diffusers", "arguments")

SCRIPT: Final = re.compile(r"(?:\S*/)?(?:train_\w+|textual_inversion\w*)\.py")


class Script(NamedTuple):
    """One script, with what its arguments leave open."""

    family: str  # of pipelines that it trains: the class of their denoiser
    adapters: bool = True
    resolution: int = 512
    batch: int = 4
    rank: int = 4
    vae: str = "half"  # its type: "half", "fp32" or "given" (fp32 unless an autoencoder is named)
    cached: bool = False  # latents and text states are always made before
    text: str = "prompt"  # when encoders leave: "prompt": if all samples share one; "always"; "never"; "offload": if so
    tokens: int = 0  # of a prompt; 0: the pipeline's
    more_tokens: int = 0  # of other encoders, beside max_sequence_length
    reloads: bool = True  # encoders come back for validation
    again: str = ""  # for the last images a whole pipeline comes beside what was trained, "kept" or "cast" to fp32
    trains: str = "denoiser"
    targets: tuple[str, ...] = ()  # where they are not the engine's
    distils: str = ""  # what: "itself" without adapters, or another network "apart"
    encodes: int = 0  # images at once through the autoencoder
    control: bool = False  # an image of conditions beside the channels of the latent


_UNET: Final = "UNet2DConditionModel"
_FLUX: Final = "FluxTransformer2DModel"
_FLUX_LORA: Final = Script(_FLUX, tokens=512, again="kept")
_SDXL_LORA: Final = Script(_UNET, resolution=1024, vae="fp32", again="cast")
_FLUX2_TARGETS: Final = (
    "to_k", "to_q", "to_v", "to_out.0", "attn.to_qkv_mlp_proj", "single_transformer_blocks.attn.to_out",
)
_FLUX2_LORA: Final = Script(
    "Flux2Transformer2DModel", tokens=512, text="always", reloads=False, targets=_FLUX2_TARGETS)
_LCM_LORA: Final = Script(_UNET, batch=16, rank=64, text="never", encodes=8, targets=(
    "to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2", "conv1", "conv2",
    "conv_shortcut", "downsamplers.0.conv", "upsamplers.0.conv", "time_emb_proj",
))

SCRIPTS: Final[dict[str, Script]] = {
    "train_text_to_image": Script(_UNET, adapters=False, batch=16, text="never"),
    "train_text_to_image_lora": Script(_UNET, batch=16, text="never", again="cast"),
    "train_text_to_image_sdxl": Script(
        _UNET, adapters=False, resolution=1024, batch=16, vae="fp32", cached=True, text="always"),
    "train_text_to_image_lora_sdxl": Script(_UNET, resolution=1024, batch=16, vae="given", text="never"),
    "train_dreambooth": Script(_UNET, adapters=False, text="precomputed"),
    "train_dreambooth_lora": Script(_UNET, text="precomputed", again="cast"),
    "train_dreambooth_lora_sdxl": _SDXL_LORA,
    "train_dreambooth_lora_sdxl_advanced": _SDXL_LORA._replace(vae="given"),
    "train_dreambooth_lora_sd15_advanced": Script(_UNET),
    "train_instruct_pix2pix": Script(_UNET, adapters=False, resolution=256, batch=16, text="never"),
    "train_dreambooth_lora_sd3": Script(
        "SD3Transformer2DModel", vae="fp32", tokens=77, more_tokens=77, again="kept"),
    "train_dreambooth_sd3": Script(
        "SD3Transformer2DModel", adapters=False, vae="fp32", tokens=77, more_tokens=77, again="kept"),
    "train_dreambooth_lora_flux": _FLUX_LORA,
    "train_dreambooth_lora_flux_advanced": _FLUX_LORA,
    "train_dreambooth_lora_flux_kontext": _FLUX_LORA,
    "train_dreambooth_flux": Script(_FLUX, adapters=False, tokens=77, again="kept"),
    "train_dreambooth_lora_flux2": _FLUX2_LORA,
    "train_dreambooth_lora_flux2_img2img": _FLUX2_LORA,
    "train_dreambooth_lora_flux2_klein": _FLUX2_LORA,
    "train_dreambooth_lora_flux2_klein_img2img": _FLUX2_LORA,
    "train_control_lora_flux": Script(
        _FLUX, resolution=1024, vae="fp32", text="offload", tokens=512, control=True,
        targets=("x_embedder", *JOINT, *FEED_FORWARD)),
    "train_dreambooth_lora_qwen_image": Script(
        "QwenImageTransformer2DModel", tokens=512, text="always", again="kept"),
    "train_dreambooth_lora_z_image": Script("ZImageTransformer2DModel", tokens=512, text="always", reloads=False),
    "train_dreambooth_lora_lumina2": Script(
        "Lumina2Transformer2DModel", vae="fp32", tokens=256, again="kept"),
    "train_lcm_distill_lora_sd_wds": _LCM_LORA._replace(distils="apart", encodes=32),
    "train_lcm_distill_lora_sdxl": _LCM_LORA._replace(resolution=1024, vae="given", distils="itself"),
    "train_lcm_distill_lora_sdxl_wds": _LCM_LORA._replace(resolution=1024, vae="given", distils="apart"),
    "train_cogvideox_lora": Script(
        "CogVideoXTransformer3DModel", rank=128, resolution=0, cached=True, text="never", tokens=226),
    "train_cogvideox_image_to_video_lora": Script(
        "CogVideoXTransformer3DModel", rank=128, resolution=0, cached=True, text="never", tokens=226),
    "textual_inversion": Script(_UNET, adapters=False, batch=16, text="never", trains="embedding"),
    "textual_inversion_sdxl": Script(_UNET, adapters=False, batch=16, text="never", trains="embedding"),
    "train_custom_diffusion": Script(_UNET, adapters=False, text="never", trains="text-kv"),
    "train_instruct_pix2pix_sdxl": Script(
        _UNET, adapters=False, resolution=256, batch=16, vae="given", text="never"),
    "train_controlnet": Script(_UNET, adapters=False, text="never", trains="controlnet"),
    "train_controlnet_sdxl": Script(
        _UNET, adapters=False, vae="given", text="always", trains="controlnet", cached=False),
}
"""By the script's name; the others are refused by theirs."""

UNSAID: Final = "no --mixed_precision is given: fp32 is assumed, which `accelerate config` of that machine may change"

OTHER: Final = "is a script whose networks or steps are not modelled"

PRECISIONS: Final = {"no": "fp32", "fp16": "amp-fp16", "bf16": "amp-bf16"}
PROMPTS: Final = ("validation_prompt", "validation_prompts")
OPTIMIZERS: Final = {"adamw": "adamw", "adam": "adam", "prodigy": "prodigy"}


def read(config: Config) -> Reading:
    """The one command of a script that starts a training."""
    command = command_of(config, _score)
    launch = taken_apart(command.words)
    given = arguments(filter(str.strip, launch.words))  # a backslash that ends a command is no argument
    given |= {name: True for name in PROMPTS if is_unset(given.get(name))}  # whatever it says, images are made
    values = Watched({**dict(config.beside), **given}, KNOWN, command.undecided)
    name = PurePosixPath(launch.program).stem
    shared, precision = processes(launch, command)
    row = SCRIPTS.get(name)
    if row is None:
        return Reading("diffusers", {}, unread=(Unread(f"{name[:60]}.py", OTHER),))
    options, pairs = _options(values, row, precision)
    notes = [*command.notes, *shared.notes, *_notes(values, row)]
    if options["precision"] == "fp32" and values.get("mixed_precision") is None:
        notes.append(UNSAID)
    batch = {"micro": values.count("train_batch_size") or row.batch}
    batch["accumulation"] = values.count("gradient_accumulation_steps") or 1
    unread = (*command.unread, *shared.unread, *values.unread())
    return Reading(
        "diffusers", {"engine": "diffusers", **options, "engine-option": tuple(pairs)}, batch=batch, unread=unread,
        notes=tuple(notes), ranks=shared.ranks,
    )


def processes(launch: Launch, command: Any) -> tuple[Reading, str | None]:
    """How many processes there are, and the precision that the launcher says; what shards is refused."""
    shared = launching(launch, command)
    said = shared.options | shared.weak
    unread = list(shared.unread)
    shards = str(said.get("shards", said.get("zero", "nothing")))
    if shards not in ("nothing", "0") or said.get("sharded-by") or said.get("engine") == "deepspeed":
        unread.append(Unread("accelerate", "shards what is modelled with everything on every card (DDP)"))
    precision = str(launch.launching.get("mixed_precision") or "") or None
    return shared._replace(unread=tuple(unread)), precision


def _options(values: Watched, row: Script, launched: str | None) -> tuple[dict[str, Any], list[str]]:
    options: dict[str, Any] = {}
    if model := values.text("pretrained_teacher_model" if row.distils else "pretrained_model_name_or_path"):
        options["model"] = model
    precision = values.one_of("mixed_precision", PRECISIONS, option="precision")
    options["precision"] = precision or PRECISIONS.get(launched or "no", "fp32")
    if row.adapters and options["precision"] == "amp-bf16" and "train_text_encoder_ti" not in values:
        options["precision"] = "bf16"  # adapters are as their layers are; scripts make them fp32 beside fp16 alone
    if values.flag("gradient_checkpointing"):
        options["recompute"] = "full"
    options["optimizer"] = _optimizer(values)
    if row.adapters:
        prefix = "lora_" if row.distils else ""
        options |= {"peft": "lora", "lora-rank": values.count(f"{prefix}rank") or row.rank}
        layers = values.text("lora_target_modules" if row.distils else "lora_layers")
        if row.distils and values.number("lora_dropout"):
            values.cannot("lora_dropout", "of adapters of convolutions is not modelled")
        if layers or row.targets:
            options["lora-targets"] = tuple(map(str.strip, layers.split(","))) if layers else row.targets
    pairs = _sizes(values, row) + _placed(values, row)
    if row.trains != "denoiser":
        pairs.append(f"trains={row.trains}")
    if row.control or values.text("cond_image_column"):
        pairs.append(f"condition={'channels' if row.control else 'tokens'}")
    if row.distils:
        pairs += [f"distils={row.distils}", f"encodes={values.count('vae_encode_batch_size') or row.encodes}"]
        pairs += ["teacher_half=true"] if row.distils == "apart" and values.flag("cast_teacher_unet") else []
    pairs += [f"{ours}=true" for name, ours in FLAGS.items() if values.flag(name)]
    return options, pairs


FLAGS: Final = {
    "with_prior_preservation": "prior", "use_ema": "ema", "train_text_encoder_ti": "text_words",
    "do_fp8_training": "float8",
}


def _optimizer(values: Watched) -> str:
    name = values.one_of("optimizer", OPTIMIZERS, lower=True, option="optimizer") or "adamw"
    if values.flag("use_adafactor"):
        return "adafactor"
    return f"{name}-8bit" if values.flag("use_8bit_adam") and name != "prodigy" else str(name)


def _sizes(values: Watched, row: Script) -> list[str]:
    pairs = []
    if row.resolution:
        side = values.count("resolution") or row.resolution
        pairs += [f"height={side}", f"width={side}"]
    else:
        usual = {"height": 480, "width": 720, "max_num_frames": 49}
        sizes = {name: values.count(name) or value for name, value in usual.items()}
        pairs += [f"{name.removeprefix('max_num_')}={size}" for name, size in sizes.items()]
    if row.tokens:
        pairs.append(f"tokens={(values.count('max_sequence_length') or row.tokens) + row.more_tokens}")
    return pairs


def _placed(values: Watched, row: Script) -> list[str]:
    """Where the autoencoder and the encoders are while the denoiser learns."""
    pairs, learns = [], bool(values.flag("train_text_encoder"))
    own = bool(values.text("pretrained_vae_model_name_or_path") or values.text("pretrained_vae_name_or_path"))
    if row.vae == "fp32" or (row.vae == "given" and not own):
        pairs.append("vae_dtype=fp32")
    elif row.vae == "half":
        pairs.append("vae_dtype=half")
    offloaded = bool(values.flag("offload"))  # in every step: as on the card beside the denoiser as once before all
    if any([row.cached, values.flag("cache_latents"), offloaded]):
        pairs.append("vae=cached")
    if learns:
        pairs.append("text_learns=true")
    shared_prompt = "instance_prompt" in values and "caption_column" not in values
    precomputed = bool(values.flag("pre_compute_text_embeddings"))
    if values.flag("remote_text_encoder"):
        pairs.append("text=none")
    if values.get("modifier_token") is not None:
        pairs.append("text_words=true")
    learns = learns or bool(values.flag("train_text_encoder_ti"))
    gone = {"prompt": shared_prompt and not learns, "always": True, "never": False, "precomputed": precomputed,
            "offload": offloaded}
    if gone[row.text] and "text=none" not in pairs:
        pairs.append("text=cached")
    validates = any(values.get(name) for name in PROMPTS)
    if validates and row.reloads:
        pairs.append("validation=true")
        if row.again and not values.flag("skip_final_inference"):
            pairs.append(f"reloads={row.again}")
    return pairs


def _notes(values: Watched, row: Script) -> list[str]:
    notes = []
    if values.flag("with_prior_preservation"):
        notes.append("images of the class are taken to be there: making them before training is not counted")
    if row.tokens and row.text == "always":
        notes.append("prompts are taken to be as long as max_sequence_length")
    return notes


def _score(words: tuple[str, ...]) -> int:
    """How much of a command is a script of diffusers."""
    return 1 + len(words) if any(SCRIPT.fullmatch(word) for word in words) else 0
