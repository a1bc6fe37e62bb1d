"""DeepSpeed-Chat's steps of supervised fine-tuning, reward models and DPO: `deepspeed main.py` with a few arguments.

[chat] deepspeedai/DeepSpeedExamples at 45b4b715 applications/DeepSpeed-Chat/: training/step1_supervised_finetuning/
main.py, training/step2_{reward_model,dpo}_finetuning/main.py, dschat/utils/ds_utils.py `get_train_ds_config`,
dschat/utils/module/lora.py
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.formats.reading import Config, Reading, Unread, arguments, command_of, together
from vramcast.formats.table import Row, read_options
from vramcast.formats.watched import Known, Watched

NAMES: Final = Known("deepspeed-chat", "arguments")

DTYPES: Final = {"fp16": "mixed-fp16", "bf16": "mixed-bf16"}

ROWS: Final = (
    Row("seq_len", "max_seq_len", 512),
    Row("micro_batch", "per_device_train_batch_size", 16),
    Row("grad_accum", "gradient_accumulation_steps", 1),
    Row("precision", "dtype", "mixed-fp16", words=DTYPES),
    Row("recompute", "gradient_checkpointing", "none", words={"true": "full", "false": "none"}),
    Row("model", "model_name_or_path", ""),
)
"""What is said of the plan, and where nobody says it [chat]."""

BUFFERS: Final = ("stage3_param_persistence_threshold=10000", "stage3_prefetch_bucket_size=30000000")
"""What its table of ZeRO says; the rest is DeepSpeed's own."""

OWN: Final = {
    "sft_only_data_path": "sft", "eot_token": "sft", "print_loss": "sft", "eval_interval": "reward",
    "eval_iters": "reward", "num_padding_at_beginning": "reward", "beta": "dpo", "label_smoothing": "dpo",
    "offload_reference_model": "dpo",
}
"""An argument that only one step has -> what is optimised; they share the others, and the name main.py."""

FOLDERS: Final = {"step1": "sft", "step2_reward": "reward", "output_step1": "sft", "step2_dpo": "dpo"}
"""What stands in the name of a step's folder, or of its output."""

STEPS: Final = {
    "actor_model_name_or_path": "trains by generation: actor, critic, reward and reference models at once, which "
                                "is not modelled",
}
"""An argument of a step that is not read -> why."""


def read(config: Config) -> Reading:
    """Plan and batch of one step; which one it is only some arguments say."""
    command = command_of(config, lambda words: int("deepspeed" in words[:1] and "--deepspeed" in words))
    values = Watched(_without_script(arguments(command.words)), NAMES, undecided=command.undecided)
    other = next((Unread(name, why) for name, why in STEPS.items() if dict.__contains__(values, name)), None)
    if other is not None:
        return Reading("deepspeed-chat", {"engine": "deepspeed"}, unread=(other,))
    objective = next((step for name, step in OWN.items() if dict.__contains__(values, name)), None)
    places = f"{config.folder} {dict.get(values, 'output_dir', '')}"
    objective = objective or next((step for name, step in FOLDERS.items() if name in places), None)
    options = {"engine": "deepspeed", "optimizer": "adamw", "engine-option": BUFFERS,
               **read_options(ROWS, values, unasked=True)}
    options = together(options, _zero(values), _adapters(values), {"objective": objective} if objective else {})
    if objective == "dpo":
        options = together(options, {"engine-option": ("log_probs=outputs",)})
        if values.flag("offload_reference_model") and options["zero"] == "3":  # below stage 3 it stays on the card
            values.cannot("offload_reference_model")
    values.must_be_off("compute_fp32_loss", option="loss")
    gpus, machines = values.count("num_gpus"), values.count("num_nodes")
    why = "is the name of several steps: say which by --objective sft, reward or dpo"
    step = () if objective else (Unread(SCRIPT, why, "objective"),)
    return Reading(
        "deepspeed-chat", options, unread=(*command.unread, *step, *values.unread()), notes=command.notes,
        ranks=gpus and gpus * (machines or 1),
    )


SCRIPT: Final = "main.py"


def _without_script(words: dict[str, Any]) -> dict[str, Any]:
    """Arguments without the script, which follows those of the launcher."""
    return {name: value[0] if isinstance(value, list) and value[1:2] == [SCRIPT] else value
            for name, value in words.items()}


def _zero(values: Watched) -> dict[str, Any]:
    stage = values.whole("zero_stage") or 0
    if stage not in (0, 1, 2, 3):
        values.refuse("zero_stage", "0, 1, 2 or 3", option="zero")
        return {}
    found: dict[str, Any] = {"zero": str(stage)}
    if values.flag("offload") and stage:
        found |= {"offload-optimizer": "cpu"} | ({"offload-parameters": "cpu"} if stage == 3 else {})
    return found


def _adapters(values: Watched) -> dict[str, Any]:
    """Adapters; without --only_optimize_lora all learns that they do not stand beside."""
    rank, only = values.whole("lora_dim"), values.flag("only_optimize_lora")
    within = values.text("lora_module_name") or "decoder.layers."
    if not rank:
        return {}
    found = {"peft": "lora", "lora-rank": rank, "lora-targets": f"(?:.*{_quoted(within)}.*)"}
    return found if only else {**found, "engine-option": ("rest_learns=true",)}


def _quoted(text: str) -> str:
    return text.replace(".", r"\.")
