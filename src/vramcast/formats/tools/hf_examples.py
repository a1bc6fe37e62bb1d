"""Scripts of Transformers' Trainer: the library's examples, and scripts of others that take its arguments.

[ex] huggingface/transformers examples/pytorch/*/run_*.py of 4.57 and 5
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.errors import Note
from vramcast.formats.reading import Reading, Unread, modules_of, together, without_none
from vramcast.formats.tools.transformers import ARGUMENTS, LENGTHS, arguments_of, liger_of, precision_of, recompute_of
from vramcast.formats.tools.trl import LOADED
from vramcast.formats.watched import Known, Watched

EXAMPLES: Final = Known("transformers", "examples", (ARGUMENTS,))


class Example(NamedTuple):
    """One script of the library."""

    length: str = ""  # the name that says how long samples are; "": its network's own
    usual: int = 0  # where nobody says it, for networks that take as many
    decoder: str = ""  # the same for what an encoder-decoder answers
    usual_decoder: int = 0
    objective: str = ""  # whose head it trains; "": the one that the network comes with
    samples: int = 1  # forwards of one sample
    model: str = ""  # where nobody names one
    alone: int = 0  # `usual` of the script without the Trainer, where it differs


SCRIPTS: Final[dict[str, Example]] = {
    "run_clm": Example("block_size", 1024),
    "run_mlm": Example("max_seq_length", 512),
    "run_summarization": Example("max_source_length", 1024, "max_target_length", 128),
    "run_translation": Example("max_source_length", 1024, "max_target_length", 128),
    "run_seq2seq_qa": Example("max_seq_length", 384, "max_answer_length", 30),
    **dict.fromkeys(("run_glue", "run_xnli", "run_classification"),
                    Example("max_seq_length", 128, objective="classification")),
    "run_ner": Example("max_seq_length", 512, objective="tagging", alone=128),
    "run_qa": Example("max_seq_length", 384, objective="tagging"),
    "run_swag": Example("max_seq_length", 512, objective="classification", samples=4, alone=128),
    "run_image_classification": Example(objective="classification", model="google/vit-base-patch16-224-in21k"),
    "run_speech_recognition_seq2seq": Example(),
    "run_clip": Example("max_seq_length", 128),
}
"""Those whose networks and heads are modelled; each may have a twin with a loop of its own, NAME_no_trainer."""

LOOPS: Final = ("run_clm", "run_mlm", "run_summarization", "run_translation", "run_glue", "run_ner", "run_qa",
                "run_swag", "run_image_classification")
"""Those that have a twin."""

OTHER: Final = re.compile(
    r"run_\w*(?:glue|qa|swag|ner|plm|fim|classification|segmentation|mae|mim|clip|asr|ctc|speech|xnli|detection|wav2vec2|"
    r"bart|t5|no_trainer)\w*\.py|\w+_no_trainer\.py"
)
"""The library's other scripts."""

PROGRAMS: Final = re.compile(
    "|".join((rf"(?:.*/)?(?:{'|'.join(SCRIPTS)})\.py", rf"(?:.*/)?(?:{'|'.join(LOOPS)})_no_trainer\.py"))
)
"""The scripts that are read, as a command names them."""

FROZEN: Final = {"freeze_encoder": "encoder", "freeze_vision_model": "vision", "freeze_text_model": "text"}
"""Switches of scripts -> the part that does not learn."""

OWN_LOOP: Final = "the script's own loop is counted as the Trainer's"


def read_example(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of one of the library's scripts."""
    name = program.rpartition("/")[2].removesuffix(".py")
    alone, row = name.endswith("_no_trainer"), SCRIPTS[name.removesuffix("_no_trainer")]
    values = Watched(given, EXAMPLES)
    options, notes = _lengths(values, row, alone=alone)
    if row.objective:
        options["objective"] = row.objective
    frozen = [part for switch, part in FROZEN.items() if values.flag(switch)]
    if frozen:
        options["freeze"] = ",".join(frozen)
    if name == "run_speech_recognition_seq2seq" and values.flag("freeze_feature_encoder") is not False:
        values.cannot("freeze_feature_encoder", "is true unasked, of an encoder with features of its own, which "
                      "Whisper has not; give False")
    values.must_be_unset("config_overrides", "changes the network; give it by its config.json", option="model")
    if alone:
        notes.append(OWN_LOOP)
    elif not values.flag("do_train"):
        if values.flag("do_eval") or values.flag("do_predict"):
            values.cannot("do_train", "is not given, so the script trains nothing")
        notes.append("do_train is not given, without which the script trains nothing")
    if row.model and values.get("model_name_or_path") is None:
        options["model"] = row.model
        notes.append(Note("model_name_or_path is not given: {}, as the script has it", row.model))
    found = _trained(values, options, file, notes)
    if row.samples == 1:
        return found
    micro = found.batch.get("micro")
    return found._replace(
        batch={**found.batch, **({"micro": row.samples * micro} if isinstance(micro, int) else {})},
        notes=(*found.notes, Note("each sample is read {} times, once with each of its answers", row.samples)),
    )


def _lengths(values: Watched, row: Example, *, alone: bool) -> tuple[dict[str, Any], list[str]]:
    """How long samples are, and what is said where nobody says it."""
    if not row.length:
        return {}, []
    notes: list[str] = []
    given = [size for name in (row.length, *LENGTHS) if (size := values.count(name)) is not None]
    usual = row.alone if alone and row.alone else row.usual
    if not given:
        notes.append(Note("{} is not given: {} is assumed", row.length, usual))
    options: dict[str, Any] = {"seq-len": given[0] if given else usual}
    if row.decoder:
        options["decoder-seq-len"] = values.count(row.decoder) or row.usual_decoder
    return options, notes


def read_own(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of a script that nobody here knows: the Trainer's are read."""
    values = Watched(given, EXAMPLES)
    if OTHER.fullmatch(name := program.rpartition("/")[2]):
        why = "trains a network or head that is not modelled; vramcast trace runs the script on a simulated card"
        return Reading("transformers", {}, unread=(Unread(name[:60], why),))
    lengths = [size for name in LENGTHS if (size := values.count(name)) is not None]
    options: dict[str, Any] = {"seq-len": lengths[-1]} if lengths else {}
    adapters = _adapters(values)
    what = "adapters" if adapters else "all weights"
    who = name[:60] or "the script"
    notes: list[str] = [Note("{} is not read: taken for one that trains {} with the Trainer", who, what)]
    found = _trained(values, together(options, adapters), file, notes)
    return found if lengths else found._replace(auto={"seq-len": "says no length of the samples"})


PACKED: Final = ("q_lora", "use_qlora", "qlora", "load_in_4bit")
SWITCHES: Final = ("use_lora", "lora_enable", "use_peft", "lora", *PACKED)
RANKS: Final = ("lora_r", "lora_rank", "lora_dim")
TARGETS: Final = ("lora_target_modules", "lora_target", "lora_targets", "target_modules")
"""What scripts of others call LoRA, its base in four bits, its rank and the modules that it adapts: those of Qwen,
FastChat, LLaVA, Firefly, alpaca-lora and their heirs."""


def _adapters(values: Watched) -> dict[str, Any]:
    """LoRA of a script that nobody here knows; its rank and its modules are the script's own where nobody says them."""
    on = [name for name in SWITCHES if values.flag(name)]
    ranks = [(name, rank) for name in RANKS if (rank := values.count(name))]
    # fire, which many of them use, reads [a,b] without quotes
    targets = next((re.sub(r"""[\[\]'"\s]""", "", found) for name in TARGETS
                    if (found := modules_of(values.get(name))) is not None), None)
    if not on and (not ranks or any(name in values for name in SWITCHES)):
        return {}
    if not ranks:
        values.cannot(RANKS[0], "is left to the script; --lora-rank says it", option="lora-rank")
    if targets is None:
        values.cannot(TARGETS[0], "is left to the script; --lora-targets says them", option="lora-targets")
    return without_none({
        "peft": "lora", "lora-rank": ranks[0][1] if ranks else None, "lora-targets": targets,
        "lora-dropout": values.number("lora_dropout"),
        "base-weights": "nf4" if any(name in PACKED for name in on) else None,
    })


DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": "fp32"}


def _trained(values: Watched, options: dict[str, Any], file: str, notes: list[str]) -> Reading:
    """What TrainingArguments say, and the dtype that weights are loaded in."""
    precision = precision_of(values)
    loaded = next((name for name in ("dtype", "torch_dtype") if name in values), "dtype")
    weights = values.one_of(loaded, DTYPES, option="precision") or "fp32"
    weak: dict[str, Any] = {}
    if weights != "fp32":
        computed = str(precision.get("precision", "")).removeprefix("amp-")
        if "peft" in options:
            precision = together(precision, {"engine-option": (f"dtype={LOADED[weights]}",)})
        elif computed == weights:
            precision = {"precision": weights, "engine-option": ("autocast=true",)}
        elif computed in ("fp32", "tf32"):
            precision = {"precision": weights}
        else:
            values.cannot(loaded, "weights in {} beside {} are not modelled", weights, computed, option="precision")
    elif precision == {"precision": "fp32"}:
        precision, weak = {}, precision
    found: dict[str, Any] = {"engine": "huggingface", **options}
    if model := values.text("model_name_or_path"):
        found["model"] = model
    found = together(found, recompute_of(values), liger_of(values), precision)
    read = arguments_of(values, file)
    return Reading("transformers", together(found, read.options), weak, read.batch,
                   (*values.unread(), *read.unread), (*notes, *read.notes))
