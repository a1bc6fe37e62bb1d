"""Rows that carry their question in a user's own options (`ask`): asked as the command line would ask it.

What a row says beside its options is said too, where there is an option for it: the release of the framework, and what
`unexpressed` could not say when the row was written. Nothing else is added: a row is what somebody gets who says what
the row says. Counters of the harnesses are not reset between phases, so a level is the highest of all phases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.contract import VERDICT, Prediction, Refused, traits_at
from vramcast.api import job_of, serve_answer, serve_job_of
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job, Phase
from vramcast.estimate.interval import Traits, serving_traits
from vramcast.estimate.training import answer
from vramcast.formats.tools.unsloth import WHISPER_WRITES, WHOLE, layers_pattern
from vramcast.units import GB, GIB, MIB

Row = dict[str, Any]

LEVELS: Final = {"max_allocated": "allocated", "max_reserved": "reserved", "device": "device"}
"""What a harness prints -> the level of memory it is."""

AFTER_LOADING: Final = "reserved_after_load"

VERDICTS: Final = {"oom": False, "fits": True}
"""Rows without a figure: whether the run came through."""

UNITS: Final = {"B": 1, "MiB": MIB, "GiB": GIB, "GB": GB, "GB?": GB}

RELEASES: Final = {
    "unsloth": re.compile(r"unsloth (?:unknown, )?(\d+(?:\.\d+)*)"),
    "huggingface": re.compile(r"transformers ~?(\d+\.\d+(?:\.\d+)?)(?![\dx])"),
    "pytorch": re.compile(r"torch (\d+\.\d+)"),
}
"""Engine -> where a row's `framework` names the release that its versions are of."""

COMMITTED: Final = {
    "986f6800f": "2025-03-20", "db52d57ca": "2025-07-14", "8a749c618": "2025-08-22", "d48445865": "2025-08-29",
    "c4e229115": "2025-09-05", "72f89d206": "2026-03-13", "af35cfb15": "2026-07-20",
}
"""Commit that a row of torchtitan's history ran -> its date, as that engine's versions are named; of c4e229115 the day
before, for the row is what was measured before it."""

COMMIT: Final = re.compile(r"pytorch/torchtitan commit ([0-9a-f]{9})")

FIRST_STEP: Final = "first step"
"""The line of `unexpressed` of a row that was read after one step: before the optimizer had states at its peak."""

EXPRESSED: Final[dict[str, dict[str, str]]] = {
    "FSDP1 by Accelerate": {"sharded-by": "fsdp1"},
    "FSDP1 with flat parameters": {"sharded-by": "fsdp1"},
    "FSDP2 over bf16 weights with torch.optim.AdamW": {
        "engine": "pytorch", "sharded-by": "fsdp2", "engine-option": "reduce_dtype=float32",
    },
    "bf16 weights under autocast": {"engine-option": "autocast=true"},
    "fused kernels (LoRA": {"engine-option": "liger=rope+rms_norm"},
    "samples have varying lengths": {"min-seq-len": "1"},
    "varying lengths up to": {"min-seq-len": "1"},
    "samples shorter than max_seq_length": {"min-seq-len": "1"},
    "AdaLoRA": {"peft": "adalora"},
    "use_loss_scale": {"engine-option": "autocast=true"},
    "autocast bf16 over bf16 weights": {"engine-option": "autocast=true"},
    "GPTQ 8 bit": {"base-weights": "gptq-int8"},
    "scattermoe": {"engine-option": "experts=fms"},
    **{f"expert parallel {ranks}": {"ep": str(ranks)} for ranks in (2, 4, 8)},
}
"""How a line of `unexpressed` begins -> what says it today."""

RANKED: Final = re.compile(r"galore_rank=(\d+)")
"""A setting of ms-swift's that names GaLore's rank [swift/llm/utils/argument.py `galore_rank`]."""

MODULES: Final = {
    "ms-swift": "lora_target_modules", "fms-hf-tuning sft_trainer": "target_modules", "unsloth": "target_modules",
}
"""`format` of a row's `config` -> the setting that names what is adapted."""

EVERY_LINEAR: Final = "all linear"
"""How a setting of Unsloth's rows begins where its calls name no modules, but what kinds of layers learn."""

VISION_TOO: Final = "vision layers adapted too"
"""What a line of `unexpressed` says of a run whose calls adapt the vision tower."""

NOT_MODELLED: Final[dict[str, str]] = {
    "torchao generate.py": "asked of a tool that is not modelled: torchao's generate.py, for which transformers stands",
    "sentence-transformers contrastive loss": "a contrastive loss over pairs is asked as a language model's",
    "LISA": "LISA, which trains a few layers at a time, is asked as training all of them",
    "LLaMA-Pro": "LLaMA-Pro, which trains new blocks beside frozen ones, is asked as training all of them",
}
"""How a line of `unexpressed` begins -> why what is asked is another job than what was measured."""

IN_TURN: Final = "device_map=auto over two cards (naive pipeline): sum of cards"
"""How a line of `unexpressed` begins where cards of one process hold some layers each; the figure is that of both."""

UP_TO_LIMIT: Final = ", longest samples"
"""Of a level: what was measured had samples of unknown lengths, what is answered is the most that any lengths take."""

PACKED: Final = ", all in 4 bits"
"""Of a level: what was measured kept some layers in 16 bits, what is answered has all of them packed."""

NAMES_MIXED_SINCE: Final = (2024, 12)
"""Since this release of Unsloth a model's name leads to its dynamic 4-bit checkpoint [unsloth/models/mapper.py]."""

PACKED_WHOLE: Final = re.compile(
    r"(?<!unsloth)-bnb-4bit$|qwen3-30b-a3b|qwen3-32b|gemma-4-26b-a4b|ernie", re.IGNORECASE
)
"""Names that lead to no dynamic checkpoint [unsloth/models/mapper.py; models/loader_utils.py `BAD_MAPPINGS`]."""

FAKE_QUANTISED: Final = re.compile(r"\bQAT\b")

LENGTHS_UNKNOWN: Final = re.compile("lengths unknown|of unknown length")
"""What a line of `unexpressed`, or the notes, say of batches that are as long as their longest sample, whatever the
limit."""

LEAST_BITS: Final = {"full": 16, "int8": 8, "gptq-int8": 8}
"""Storage of frozen weights -> bits that no weight has less of; the others have 4."""

SETTINGS: Final[tuple[tuple[str, str, dict[str, str]], ...]] = (
    ("framework_config", "accelerated-peft", {"engine-option": "prepare_kbit=none"}),
    ("framework_config", "accelerated-peft-autogptq", {"engine-option": "gptq_kernel=tritonv2"}),
    ("framework_config", "accelerated-peft-bnb", {"base-weights": "nf4-dq"}),
    ("framework_config", "baseline-peft-bnb", {"base-weights": "nf4-dq"}),
    ("model_name", "-bnb-4bit", {"base-weights": "nf4-dq"}),
    ("optim", "paged_adamw_8bit", {"optimizer": "paged-adamw-8bit"}),
)
"""A setting of a row's own tool, what its value holds, and what that means. fms-acceleration quantises constants too,
prepares packed models its own way [plugins/accelerated-peft framework_plugin_bnb.py], and runs GPTQ by Backend.TRITON
[framework_plugin_autogptq.py]. What ms-swift packs has one length, but its loss takes the logits of the tokens that
count, which are as many as they are in every batch [swift/trainers/trainers.py `compute_scaled_loss`]: the allocator
sees as many shapes."""

FOLDER: Final = "recipe_configs/"
"""Where a row's model is a file of its own beside the rows."""


def predict(row: Row, *, folder: Path) -> list[Prediction]:
    """The row's one figure.

    Args:
        row: with `ask` (model, gpus, options) and `measured` (quantity, value, unit)
        folder: where the rows' file lies

    Raises: Refused where a row asks nothing, or something else than a level of memory
    """
    ask, measured = row["ask"], row["measured"]
    if ask.get("ask_with") == "none":
        raise Refused(f"not a question of train or serve: {ask['reason']}")
    refuse_other_jobs(row)
    quantity = measured["quantity"]
    found = figure(row, question(row, folder))
    if quantity in VERDICTS:
        return [Prediction(VERDICT, found.value, float(VERDICTS[quantity]))]
    value = measured["value"] * UNITS[measured["unit"]]
    refuse_less_than_weights(row, folder, value)
    unknown = _said_unknown(row)
    if quantity == AFTER_LOADING:
        return [Prediction(f"reserved after loading{unknown}", found.value, value)]
    if quantity == "weights":
        return [Prediction("weights", found.value, value, measured["value"] * GIB)]
    return [Prediction(f"{LEVELS[quantity]}{unknown}", found.value, value, traits=None if unknown else found.traits)]


def question(row: Row, folder: Path) -> dict[str, Any]:
    """What a row asks, in options."""
    divided = {"pp": int(row["ask"]["gpus"].partition("x")[0])} if _in_turn(row) else {}
    return said(row) | _model(row["ask"], folder) | divided


class Figure(NamedTuple):
    """What an answer says of the quantity that a row measured."""

    value: float  # [bytes], or 1 and 0 for what fits and does not
    traits: Traits | None = None


def figure(row: Row, options: dict[str, Any]) -> Figure:
    """The one figure of an answer that a row measured.

    Args:
        row: with `measured`
        options: the question: the row's own options, or its command

    Raises: Refused where the row measured something else than a level of memory
    """
    quantity = row["measured"]["quantity"]
    found, traits = _answered(row["task"], options)
    if quantity in VERDICTS:
        return Figure(float(found.fits))
    if quantity == AFTER_LOADING:
        return Figure(found.fullest.phases[Phase.LOAD].reserved_bytes)
    if quantity == "weights":
        return Figure(sum(
            rank.count * entry.num_bytes for rank in found.ranks for entry in rank.ledger if entry.category == "weights"
        ))
    if quantity not in LEVELS:
        raise Refused(f"measures {quantity!r}, which no answer has")
    level = LEVELS[quantity]
    first = FIRST_STEP in row["ask"].get("unexpressed", ())
    phases = (Phase.LOAD, Phase.FIRST_STEP) if first else tuple(Phase)
    highest = [max(int(getattr(peak, f"{level}_bytes")) for phase, peak in rank.phases.items() if phase in phases)
               for rank in found.ranks]
    return Figure(sum(highest) if _in_turn(row) else max(highest), traits(level))


def said(row: Row) -> dict[str, Any]:
    """The options of a row, with what it says in words."""
    ask = row["ask"]
    options = dict(ask["options"])
    unsaid, values = ask.get("unexpressed", ()), row.get("config", {}).get("values", {})
    words: list[Any] = [EXPRESSED[key] for text in unsaid for key in EXPRESSED if text.startswith(key)]
    words += [{"min-seq-len": "1"}] if LENGTHS_UNKNOWN.search(row.get("notes", "")) else []
    words += [meant for name, value, meant in SETTINGS if value in str(values.get(name) or "")]
    rank = RANKED.search(str(values.get("tuner_params") or ""))
    words += [{"optimizer": f"galore:{rank[1]}", "optimizer-kernel": None}] if rank else []
    if "lora-targets" in options and (modules := _modules(row)):
        words.append({"lora-targets": modules})
    for meant in words:
        for name, value in meant.items():
            options[name] = [*options.get(name, ()), value] if name == "engine-option" else value
    if "whisper" in ask["model"] and "decoder-seq-len" not in options:  # its encoder reads 30 seconds
        options["decoder-seq-len"] = min(options.pop("seq-len"), WHISPER_WRITES)
    engine = options.get("engine")
    release = _release(row, engine)
    return options | ({} if release is None else {"engine": f"{engine}@{release}"})


def _modules(row: Row) -> str | None:
    """The modules that a row's own file adapts, as it names them: of a fused projection one adapter, not three."""
    config = row.get("config") or {}
    values = config.get("values", {})
    if "target=ALL" in str(values.get("tuner_params")):
        return "all"
    named = values.get(MODULES.get(config.get("format", ""), ""))
    if not named:
        return None
    if isinstance(named, str) and named.startswith(EVERY_LINEAR):
        return layers_pattern({"finetune_vision_layers": vision_learns(row)})
    names = named.replace(",", " ").split() if isinstance(named, str) else named
    return ",".join(name for name in names if name not in WHOLE)


def vision_learns(row: Row) -> bool:
    """Whether the calls of an Unsloth row adapt the vision tower."""
    return any(VISION_TOO in text for text in row["ask"].get("unexpressed", ()))


def _release(row: Row, engine: str | None) -> str | None:
    """The release that a row names, as its engine's versions are named."""
    if engine == "torchtitan":
        commit = COMMIT.match(row.get("source", ""))
        return COMMITTED.get(commit[1]) if commit else None
    named = RELEASES[engine].search(row.get("framework", "")) if engine in RELEASES else None
    return named[1] if named else None


def _model(ask: Row, folder: Path) -> dict[str, Any]:
    model = ask["model"]
    return {"model": str(folder / model) if model.startswith(FOLDER) else model, "gpus": ask["gpus"]}


def _is_mixed(row: Row) -> bool:
    """Whether an Unsloth run's base was a checkpoint that keeps some layers in 16 bits."""
    names = (str(row.get("config", {}).get("values", {}).get("model_name") or ""), row["ask"]["model"])
    release = RELEASES["unsloth"].search(row.get("framework", ""))
    if "base-weights" not in row["ask"]["options"] or release is None or any(map(PACKED_WHOLE.search, names)):
        return False
    return tuple(int(part) for part in release[1].split(".")[:2]) >= NAMES_MIXED_SINCE


def refuse_other_jobs(row: Row) -> None:
    """What was measured is not what the row's options ask.

    Raises: Refused
    """
    for text in row["ask"].get("unexpressed", ()):
        for key, reason in NOT_MODELLED.items():
            if text.startswith(key):
                raise Refused(reason)
    if FAKE_QUANTISED.search(f"{row['id']} {row.get('notes', '')}"):
        raise Refused("trained through fake quantisation (QAT), which is not modelled and not asked for")


def _said_unknown(row: Row) -> str:
    """What decides the figure and is not in the row, for the name of its level: none of both is refused to a user, who
    gets the answer for samples up to their limit, and for a checkpoint that is packed whole."""
    unknown = any(map(LENGTHS_UNKNOWN.search, (*row["ask"].get("unexpressed", ()), row.get("notes", ""))))
    lengths = unknown and row["measured"]["quantity"] in LEVELS
    return (UP_TO_LIMIT if lengths else "") + (PACKED if _is_mixed(row) else "")


def refuse_less_than_weights(row: Row, folder: Path, value: float) -> None:
    """A run on one card holds its model: less than that was measured of another card's share, or another storage.

    Raises: Refused
    """
    options = question(row, folder)
    if row["task"] == "serve" or not options["gpus"].startswith("1x") or any("offload" in name for name in options):
        return
    job = job_of(options)
    bits = LEAST_BITS.get(job.plan.peft.base, 4) if job.plan.peft is not None else 16
    if value < count_parameters(job.model).total * bits // 8:
        raise Refused("less was measured than the model's parameters take as they are stored on one card")


def _in_turn(row: Row) -> bool:
    return any(text.startswith(IN_TURN) for text in row["ask"].get("unexpressed", ()))


_last: Final[list[tuple[Job, Answer]]] = []
"""The two jobs asked last: a row is asked by its options, and both by them and by its own file."""


def _answered(task: str, options: dict[str, Any]) -> tuple[Answer, Callable[[str], Traits]]:
    """The answer, and the traits of its number at a level."""
    if task == "serve":
        traits = serving_traits(serve_job_of(options))
        return serve_answer(options, with_changes=False), lambda _: traits
    job = job_of(options)
    found = next((known for asked, known in _last if asked == job), None)
    if found is None:
        found = answer(job, with_changes=False)
        _last[:] = [(job, found), *_last[:1]]
    return found, lambda level: traits_at(level, job, found.fullest.peak)
