"""Rows of reinforcement-learning post-training: asked by the settings of their own framework.

verl prints maxima of its trainer process since it began; where it prints mean lengths, they are asked for, too. What a
row says of its settings in words of its own, and not in its framework's, is put into those here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from truth.contract import STEP_TIME, VERDICT, Prediction, Refused
from vramcast import api
from vramcast.domain.answer import Peak, PostTrainingAnswer, RankAnswer
from vramcast.domain.version import check_version
from vramcast.formats.reading import sentence
from vramcast.formats.tools import nemo_rl, verl
from vramcast.units import GIB

Row = dict[str, Any]

UNITS: Final = {"GiB": GIB, "MiB": 1 << 20, "GB": 10**9}

CARDS: Final = {
    "H100-80GB": "h100-sxm-80gb", "H800-80GB": "h800", "A100-80GB": "a100-sxm4-80gb", "H20-96GB": "h20-96gb",
    "H20": "h20-96gb", "GB200-192GB": "gb200", "MI300X-192GB": "mi300x", "80GB card (79.14": "a100-sxm4-80gb",
    "RTX 5090-32GB": "rtx-5090", "A6000-48GB": "rtx-a6000", "GB10": "gb10", "L20-48GB": "l20", "B200-192GB": "b200",
    "H200-141GB": "h200", "80GB class": "a100-sxm4-80gb",
    "T4-16GB": "t4", "A800-80GB": "a800-sxm4-80gb", "RTX4090-24GB": "rtx-4090",
}
"""How a row's card begins -> ours. The one of 79.14 GiB has its MFU of 312 TFLOP/s: an A100; the one that "fits an H20
peak" and holds more than 80 GB is taken for the larger of the two. Any other must be named."""

RELEASES: Final = re.compile(r"(\d+\.\d+)")

GENERATED: Final = ("generate", "update_weights")
"""What verl counts as generation up to 0.7: the engine is woken and handed the weights within."""

BESIDE: Final = ("time_validation", "time_save_checkpoint", "time_reward", "time_advantage")
"""Parts of a printed step that are not timed."""

STAGES: Final = {
    "time_gen": ("generate",), "time_old_log_prob": ("old_log_prob",), "time_ref_log_prob": ("ref_log_prob",),
    "time_values": ("values",), "time_update_critic": ("update_critic",), "time_update_actor": ("update_actor",),
    "time_weight_sync(reshard)": ("update_weights",),
}
"""What verl prints -> our stages."""

IN_WORDS: Final = {
    "sequences_per_micro_batch_per_gpu": "actor.ppo_micro_batch_size_per_gpu", "model_dtype":
    "actor.fsdp_config.model_dtype", "max_prompt_length": "data.max_prompt_length", "max_response_length":
    "data.max_response_length", "train_batch_size": "data.train_batch_size", "ppo_mini_batch_size":
    "actor.ppo_mini_batch_size",
}
"""Settings of rows in words of their own -> those of the framework."""

SAID: Final = re.compile(r"^(ref|note|dtype_defaults|log|script|step|training_steps|env\..*|.* .*|trainer|engine|mode|"
                         r"algorithm|megatron|rollout|trainer_mode|parameter_sync_step|staleness_threshold)$")
"""Settings that describe, in words."""


DIVIDED: Final = {"TP": "tensor", "PP": "pipeline", "CP": "context", "EP": "expert"}
"""Degrees of Megatron as rows write them -> the beginnings of verl's names."""

CARDS_APART: Final = re.compile(r"fully async (\d+)(?: rollout)? ?: ?(\d+)|one step off (\d+) train \+ (\d+) rollout")
"""Cards of engine and trainer, or of trainer and engine."""

UNSAID_DEGREES: Final = "trains with Megatron and says no degrees, which decide"

INITIAL: Final = "initial"
CUT: Final = {"micro-batch", "micro-tokens"}
PROMPT: Final = 512
"""Longest prompt where nobody says it: beside it the engine's longest sequence says the answer's."""

TUNING: Final = "verl-tuning-"
OF_GSM8K: Final = (103, 250)
"""Scripts of verl's tuning table and bisections of them, which learn from one data set, as their notes say, and its
lengths, as other runs of the same harness print them: 240 to 267 tokens of answer."""

UNNAMED: Final = re.compile(r"^(\d[\d.-]*B\b.*|not (named|recorded).*|Follow instructions.*)$|\bclass$")
"""Networks of rows that say a size, or nothing."""

PROGRAMS: Final = {
    "TRL": "trl grpo --model_name_or_path {model} --use_vllm true", "OpenRLHF":
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain {model}", "ms-swift": "{swift} rlhf --model {model}",
}
"""What is typed where a row's settings are arguments of a command."""


LATE: Final = re.compile(r"(\d+)-step Off")
"""How rows of NeMo-RL say `max_trajectory_age_steps`."""

STANDBY: Final = 'import os\nos.environ["UNSLOTH_VLLM_STANDBY"] = "1"\n'
SCRIPT: Final = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/{model}", fast_inference=True, {loads})
model = FastLanguageModel.get_peft_model(model)
trainer = GRPOTrainer(model=model, args=GRPOConfig(learning_rate=5e-6))
"""
"""Of Unsloth, with its own sizes. Rows of 2025 vary a share of the card that standby took as it was said to 2025.9."""


def predict(row: Row) -> Iterator[Prediction]:
    """What a row measured, beside what is answered.

    Raises: Refused where its settings do not say a job
    """
    if UNNAMED.search(str(row["model"])):
        raise Refused("does not name its network")
    if row["framework"] in PROGRAMS or row["framework"] == "Unsloth":
        yield from _scripted(row) if row["framework"] == "Unsloth" else _commanded(row)
        return
    options = options_of(row)
    answer = api.post_training_answer(options, with_changes=False)
    trainer = next((rank for rank in answer.ranks if rank.role == "trainer"), answer.ranks[0])
    found = [*_measured(row, answer, trainer), *_outcome(row, fits=answer.fits)]
    if row["framework"] == "verl" and not CUT & options.keys():  # what is there when all is loaded
        found = [one for one in found if one.level in (INITIAL, VERDICT)]
    if row["framework"] == "verl" and "prompts" not in options:
        found = [one for one in found if one.level != STEP_TIME]
    if not found:
        raise Refused("measures nothing that is predicted")
    yield from found


def _outcome(row: Row, *, fits: bool) -> Iterator[Prediction]:
    """Whether it ran: what was measured or timed did, too."""
    outcome = (row.get("outcome") or {}).get("result")
    if outcome in ("fits", "oom"):
        yield Prediction(VERDICT, float(fits), float(outcome == "fits"))


def _measured(row: Row, answer: PostTrainingAnswer, trainer: RankAnswer) -> Iterator[Prediction]:
    printed = {item["quantity"]: item["value"] for item in row.get("measured", ())}
    old = row["framework"] == "verl" and check_version(
        "verl", _framework(row).partition("@")[2], oldest=(0, 2), newest=(0, 10)) < (0, 8)
    for item in row.get("measured", ()):
        name, value, scope = item["quantity"], item["value"], str(item.get("scope", ""))
        if name in ("torch_max_allocated", "torch_max_reserved"):
            level = name.removeprefix("torch_max_")
            most = max(_level(peak, level) for peak in trainer.phases.values())
            yield Prediction(level, most, value * UNITS[item["unit"]])
        elif name == "torch_allocated" and re.search(r"after|before vLLM|built", scope):
            yield Prediction(INITIAL, answer.resting["trainer"]["init"], value * UNITS[item["unit"]])
        elif answer.time is not None and name in STAGES:
            stages = GENERATED if old and name == "time_gen" else STAGES[name]
            seconds = sum(answer.time.seconds.get(stage, 0.0) for stage in stages)
            if seconds:
                yield Prediction(f"time of {STAGES[name][0]}", seconds, value)
        elif answer.time is not None and name == "time_step":
            yield Prediction(STEP_TIME, answer.time.step_s, value - sum(printed.get(part, 0.0) for part in BESIDE))


def _level(peak: Peak, level: str) -> int:
    return peak.allocated_bytes if level == "allocated" else peak.reserved_bytes


def options_of(row: Row) -> dict[str, Any]:
    """The question of a row.

    Raises: Refused where its settings are too few, or of a framework that is not modelled
    """
    framework = str(row["framework"])
    if framework not in ("verl", "NeMo-RL"):
        raise Refused(f"{framework} is not modelled")
    settings = {IN_WORDS.get(name, name): value for name, value in row["settings"].items() if not SAID.match(name)}
    settings |= {IN_WORDS[name]: value for name, value in row["settings"].items() if name in IN_WORDS}
    if framework == "verl":
        settings |= _of_words(row)
        settings = {name: verl.value_of(value) for name, value in settings.items()}
        settings.setdefault("trainer.n_gpus_per_node", row["gpus"].get("count") or 8)
        settings.setdefault("critic.model.use_remove_padding", settings.get("model.use_remove_padding", False))
        if "data.max_response_length" not in settings and "rollout.max_model_len" in settings:
            settings["data.max_response_length"] = settings["rollout.max_model_len"] - PROMPT
        settings.setdefault("algorithm.adv_estimator", "gae" if "ppo" in str(row["algorithm"]) else "grpo")
        if "megatron" in str(row.get("backend")):
            settings.setdefault("actor.strategy", "megatron")
        if str(row.get("backend")) == "fsdp2":
            settings.setdefault("actor.strategy", "fsdp2")
        found = verl.reading(settings, "")
    elif row["algorithm"] in nemo_rl.OTHERS:
        raise Refused(f"NeMo-RL's {row['algorithm']} is not modelled")
    else:
        if not any(name.startswith(("policy.", "grpo.")) for name in settings):
            raise Refused("says neither prompts nor lengths nor degrees in its framework's words")
        if late := LATE.match(str(row["settings"].get("on_or_off_policy", ""))):
            settings["grpo.async_grpo.max_trajectory_age_steps"] = int(late[1])
        found = nemo_rl.reading(settings)
    options: dict[str, Any] = dict(found.options)
    if found.unread:
        raise Refused(sentence(found.unread))
    options |= {"model": row["model"], "gpus": _gpus(row), "framework": _framework(row)}
    options |= _lengths(row, options)
    return options


def _of_words(row: Row) -> dict[str, Any]:
    """What a row says of its placement in words.

    Raises: Refused where they leave the trainer's split open
    """
    said = {name: str(value) for name, value in row["settings"].items()}
    found: dict[str, Any] = {}
    for text, count in re.findall(r"\b(TP|PP|CP|EP)(\d+)", said.get("megatron", "")):
        found[f"actor.megatron.{DIVIDED[text]}_model_parallel_size"
              if text != "CP" else "actor.megatron.context_parallel_size"] = int(count)
    trains = said.get("trainer", "Megatron" if "megatron" in f"{said.get('megatron', '')}{row['id']}".lower() else "")
    if trains == "Megatron" or found:
        if not found and "actor.megatron.tensor_model_parallel_size" not in said:
            raise Refused(UNSAID_DEGREES)
        found["actor.strategy"] = "megatron"
    elif trains:
        found["actor.strategy"] = trains.lower()
    if tp := re.search(r"TP(\d+)", said.get("rollout", "")):
        found["rollout.tensor_model_parallel_size"] = int(tp[1])
    if mode := said.get("trainer_mode"):
        found["trainer.v1.trainer_mode"] = mode.split()[0]
    if apart := CARDS_APART.match(said.get("mode", "")):
        engine, trainer = (apart[1], apart[2]) if apart[1] else (apart[4], apart[3])
        each = min(8, int(engine), int(trainer))
        found |= {"trainer.nnodes": int(trainer) // each, "trainer.n_gpus_per_node": each,
                  "rollout.nnodes": int(engine) // each, "rollout.n_gpus_per_node": each}
    return found


def _commanded(row: Row) -> Iterator[Prediction]:
    """The command of a run, whose header may say what `nvidia-smi` showed; what it leaves out is its framework's own
    default. Answers are written by `vramcast rl`'s engine on the same cards, or by none."""
    framework, (model, *adapted) = str(row["framework"]), str(row["model"]).split()
    settings = {name: str(value) for name, value in row["settings"].items()}
    if any("$" in value for value in settings.values()):
        raise Refused("its settings name what only a run knows")
    swift = framework == "ms-swift"
    variables = (f"{name.removeprefix('env.')}={value}" for name, value in settings.items() if name.startswith("env."))
    words = [f"--{name} '{value}'" for name, value in settings.items() if not name.startswith("env.")]
    words += ["--use_peft true"] if adapted == ["LoRA"] else []
    program = PROGRAMS[framework].format(model=model, swift="megatron" if row["backend"] == "megatron" else "swift")
    command = f"{' '.join(variables)} {program} {' '.join(words)}\n"
    rolls = not swift or settings.get("vllm_mode") == "colocate"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.sh"
        path.write_text(command, encoding="utf-8")
        count = settings.get("env.NPROC_PER_NODE", row["gpus"]["count"])
        asked: dict[str, Any] = {"from": (str(path),), "gpus": f"{count}xa100-sxm4-80gb" if swift else _gpus(row)}
        if not swift:
            asked |= {"framework": _framework(row)} | ({"zero": 3} if row["backend"] == "zero3" else {})
        answer: Any = api.post_training_answer(asked, with_changes=False) if rolls else api.train_answer(asked)[1]
    for item in row.get("measured", ()):
        if item["quantity"] == "device_used_per_gpu":
            yield Prediction("device", answer.fullest.needed_bytes, item["value"] * UNITS[item["unit"]])
        elif item["quantity"] == "time_step" and answer.time is not None:
            yield Prediction(STEP_TIME, answer.time.step_s, item["value"])
    yield from _outcome(row, fits=answer.fits)


def _scripted(row: Row) -> Iterator[Prediction]:
    """A script that says what the row does, and nothing else."""
    settings = dict(row["settings"])
    if "gpu_memory_utilization" not in settings:
        raise Refused("its settings say no gpu_memory_utilization, which decides")
    model, standby = str(row["model"]).split()[0], settings.pop("UNSLOTH_VLLM_STANDBY", False)
    script = STANDBY * bool(standby) + SCRIPT.format(model=model, loads=", ".join(f"{name}={value!r}" for name, value in
                                                                                 settings.items()))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(script, encoding="utf-8")
        answer = api.post_training_answer({"from": (str(path),), "gpus": _gpus(row), "framework": "unsloth@2025.8"},
                                          with_changes=False)
    for item in row.get("measured", ()):
        if item["quantity"] == "device_used_peak":
            yield Prediction("device", answer.fullest.needed_bytes, item["value"] * UNITS[item["unit"]])
    yield from _outcome(row, fits=answer.fits)


def _gpus(row: Row) -> str:
    kind, count = str(row["gpus"].get("kind")), row["gpus"].get("count")
    if not count:
        raise Refused("does not say how many cards")
    name = next((ours for theirs, ours in CARDS.items() if kind.startswith(theirs)), None)
    if name is None and "fits an H20 peak" in kind and "above 80 GB" in kind:
        name = "h20-141gb"
    if name is None:
        raise Refused(f"the card {kind[:40]!r} is not known")
    each = row["gpus"].get("per_node") or 8
    return f"{count // each}x{each}x{name}" if count > each and count % each == 0 else f"{count}x{name}"


def _framework(row: Row) -> str:
    name = str(row["framework"]).lower()
    versions, head = RELEASES.findall(str(row["version"])), {"verl": "verl@0.9", "nemo-rl": "nemo-rl@0.6"}
    if not versions and name not in head:
        raise Refused("does not name its release")
    return f"{name}@{versions[0]}" if versions else head[name]


def _lengths(row: Row, options: dict[str, Any]) -> dict[str, Any]:
    """Mean lengths, where the run printed them; of whole sequences a tenth is taken for the prompt."""
    printed = {item["quantity"]: item["value"] for item in row.get("measured", ())}
    prompt, response = printed.get("prompt_tokens_mean"), printed.get("response_tokens_mean")
    whole = printed.get("sequence_tokens_mean")
    if prompt is None and row["id"].startswith(TUNING):
        prompt, response = OF_GSM8K
    if whole is not None:
        prompt, response = min(150, whole / 10), whole - min(150, whole / 10)
    if prompt is None or response is None:
        return {}
    return {
        "mean-prompt-len": max(1, min(round(prompt), options.get("prompt-len", 512))),
        "mean-response-len": max(1, min(round(response), options.get("response-len", 512))),
    }
