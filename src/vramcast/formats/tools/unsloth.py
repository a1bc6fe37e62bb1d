"""Unsloth's calls in a script or a notebook: what is loaded, what is adapted, and how it is trained.

[unsloth] unslothai/unsloth 015bdef0d9 unsloth/models/{loader,llama,vision,rl,sentence_transformer}.py
[zoo] unslothai/unsloth-zoo ce232d6c unsloth_zoo/{peft_utils,vision_utils}.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.index import MODELS
from vramcast.errors import Note
from vramcast.formats.python_calls import Call, Open, calls_of, unasked
from vramcast.formats.reading import Config, Reading, Unread, lengths_of, shown, together
from vramcast.formats.tools.transformers import ARGUMENTS, optimizer_of
from vramcast.formats.tools.trl import COLOCATED
from vramcast.formats.tools.trl_script import set_behind
from vramcast.formats.watched import Known, Watched

CALLS: Final = Known("unsloth", "calls")
TRAINING: Final = Known("unsloth", "training", (Known("unsloth", "calls"), ARGUMENTS))

LOADERS: Final = re.compile(r"\bFast\w*Model\b|\bFastSentenceTransformer\b")
EMBEDS: Final = "FastSentenceTransformer"

LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What FastLanguageModel adapts where nobody says it [unsloth llama.py `get_peft_model`]."""

IN_ORDER: Final = ("model_name", "max_seq_length", "dtype", "load_in_4bit", "load_in_8bit")
"""Of `from_pretrained`."""

LENGTH: Final = 2048

LENGTHS: Final = ("max_prompt_length", "max_completion_length")
TRL_LENGTHS: Final = {"max_prompt_length": 512, "max_completion_length": 256}
"""Of `GRPOConfig` in the releases of TRL that Unsloth installs."""

WHISPER_WRITES: Final = 448
"""`max_target_positions` of every size [tokens]."""

SHRUNK: Final = {"qwen": 512, "gemma-4": 816}
"""Networks that read images of any size -> the side to which larger ones are shrunk [pixels]: by Unsloth's collator
where the network names no size [zoo vision_utils.py]; to 280 tokens of 48 x 48 pixels by Gemma 4's own processor."""

TRAINERS: Final = {
    "SFTTrainer": "sft", "UnslothTrainer": "sft", "Trainer": "sft", "Seq2SeqTrainer": "sft", "ErnieSFTTrainer": "sft",
    "DPOTrainer": "dpo", "GRPOTrainer": "grpo", "RewardTrainer": "reward", "SentenceTransformerTrainer": "pretrain",
}
"""Class -> what is optimised."""

PAIRED: Final = "MultipleNegativesRankingLoss"
"""Loss of pairs: both texts are embedded before either's backward, the others of a batch are the wrong answers
[sentence-transformers 6d655a10 losses/MultipleNegativesRankingLoss.py `forward`]."""
PAIRS: Final = "each sample is taken for a pair, whose texts are read one after the other before backward"

OF_TRAINING: Final = ("per_device_train_batch_size", "learning_rate", "optim", "max_steps")
"""Names of which one tells a configuration of training from others of their names."""

CONFIGS: Final = ("SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig")
"""Those that Unsloth writes its own defaults into [unsloth rl.py `replacements`]."""

OWN: Final = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "optim": "adamw_8bit"}
TRANSFORMERS: Final = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}

WHOLE: Final = {"embed_tokens": "embedding", "lm_head": "head"}
"""Targets that learn whole [unsloth llama.py `get_peft_model`]."""

SAME: Final = re.compile(r"(?i)(?:-unsloth)?(?:-bnb-4bit)?(?:-gguf)?$")
TUNED: Final = re.compile(r"(?i)-(?:instruct|it|base|pt|chat|thinking|ft)(?=-\d{4}|$)|-\d{4}$|^meta-(?=llama)")

TOWERS_OR_TEXT: Final = {
    "finetune_vision_layers": "vision|image|visual|patch", "finetune_language_layers": "language|text",
}
ATTENTION_OR_MLP: Final = {
    "finetune_attention_modules": "self_attn|attention|attn", "finetune_mlp_modules": "mlp|feed_forward|ffn|dense",
}
"""What learns -> what stands in the names of its modules [zoo peft_utils.py `get_peft_regex`]. A mixer is of both."""

EVERY: Final = r"(?!gate$|router$)[A-Za-z_]\w*"
"""Linear layers of which there are many; no routers, which are none, and no single ones, which have numbers."""

TOWERS: Final = Unread("finetune_vision_layers", "is true, so that towers learn from images of sizes that the samples "
                       "decide; give --image-size", option="image-size", of_towers=True, of_sizes=False)


NOTHING: Final = Unread("Trainer", "is not called: nothing is trained")
MORE: Final = Unread("**", "holds what only a run knows")


def read(config: Config) -> Reading:
    """The first model that is loaded, its adapters, and the first trainer."""
    calls = calls_of(config.text, config.name)
    loads = _first(calls, lambda call: call.last == "from_pretrained" and LOADERS.search(call.name) is not None)
    adapts = _first(calls, lambda call: call.last == "get_peft_model" and LOADERS.search(call.name) is not None)
    trainers = [call for call in calls if call.last.endswith("Trainer") and "model" in call.arguments]
    answers = _first(tuple(trainers), lambda call: call.last == "GRPOTrainer")
    warms = bool(answers and trainers[0] != answers)  # a few steps of SFT before, in the same process
    trains = answers or next(iter(trainers), None)
    arguments = _first(calls, lambda call: call.last == "GRPOConfig") if warms else None
    arguments = arguments or _first(calls, lambda call: call.last in CONFIGS or call.last.endswith(
        "TrainingArguments") or (call.last.endswith("Config") and any(name in call.arguments for name in OF_TRAINING)))
    if loads is None:
        unread: tuple[Unread, ...] = (Unread("from_pretrained", "of a Fast...Model is not there: no model is loaded"),)
        return Reading("unsloth", {"engine": "unsloth"}, unread=unread)
    if trains is None and arguments is None:
        return Reading("unsloth", {"engine": "unsloth"}, unread=(NOTHING,))
    model, training = _loaded(loads), _training(trains, arguments)
    tuned = Watched(_plain(adapts.arguments if adapts else {}), CALLS)
    whole = model.flag("full_finetuning") or adapts is None
    options: dict[str, Any] = {"engine": "unsloth"}
    objective = TRAINERS.get(trains.last, "") if trains is not None else "sft"
    options["seq-len"] = _length(model, training, objective) or (512 if EMBEDS in loads.name else LENGTH)
    notes = _named(model, options)
    if warms:
        notes.append(Note("trains twice: {} and then GRPOTrainer, whose steps are counted", trainers[0].last))
    context = options["seq-len"]
    options |= _task(trains, training, context, notes)
    sized, seen = _images(calls, str(options.get("model", "")))
    options |= sized
    if "whisper" in str(options.get("model", "")):  # its encoder reads 30 seconds, whatever is asked
        options |= {"decoder-seq-len": min(options.pop("seq-len"), WHISPER_WRITES)}
    notes += [*seen, *unasked(calls)]
    if model.flag("offload_embedding"):
        notes.append("the trainer brings an embedding that offload_embedding moves to the host back to the card")
    rollout = _rollout(model, training, tuned, options, config.text) if model.flag("fast_inference") else {}
    if rollout:
        rollout["context"] = context
    options |= _precision(model, whole=bool(whole))
    if whole:
        model.ignore("load_in_4bit", "load_in_16bit", "load_in_8bit")
        tuned.ignore("*")  # without effect [unsloth vision.py `get_peft_model`]
    options = together(options, {} if whole else _adapters(model, tuned, loads.name), _recompute(model, tuned, loads),
                       _optimizer(training))
    batch = _batch(training)
    if trains is not None and trains.last == "SentenceTransformerTrainer":
        if _first(calls, lambda call: call.last == PAIRED) is None:
            training.cannot("loss", "is not modelled but for {}", PAIRED)
        training.cannot("max_seq_length", "cuts texts that may be far shorter; give --seq-len", option="seq-len")
        batch = {**batch, "micro": 2 * batch["micro"]}
        notes.append(PAIRS)
    anything = tuple(one for call in calls for one in set_behind(call, TRAINING))
    anything += tuple(MORE for call in (loads, adapts, arguments) if call is not None and call.several)
    unread = (*anything, *model.unread(), *tuned.unread(), *training.unread(),
              *(_towers(tuned) if adapts is not None and not sized else ()))
    fp16 = options.get("precision") == "amp-bf16"
    return Reading("unsloth", options, {}, batch, unread, tuple(notes), alone=True, rollout=rollout,
                   without_bf16={"precision": "amp-fp16"} if fp16 or options["precision"] == "bf16" else {})


STANDBY: Final = re.compile(
    r"""(?m)^[^#\n]*\bUNSLOTH_VLLM_STANDBY\\?["']?\]?\s*=\s*\\?["']?(?!0\b)\w""")
"""The variable by which the engine gives its cache up while the trainer works, in a script or a notebook."""

SHARE: Final = 0.5
ANSWERS: Final = 8
"""`gpu_memory_utilization` of `from_pretrained` and `num_generations` where nobody says them."""


def _rollout(
    model: Watched, training: Watched, tuned: Watched, options: dict[str, Any], text: str
) -> dict[str, Any]:
    """What `vramcast rl` is asked of the engine that `fast_inference` starts on the card."""
    if options.get("objective") != "grpo" or model.flag("full_finetuning"):
        model.cannot("fast_inference", "puts a server on the same card, which is modelled for GRPO of adapters alone")
        return {}
    model.cannot("fast_inference", COLOCATED[True], option="rollout")
    training.get("use_vllm")  # of TRL: the engine that is there
    model.only("float8_kv_cache", False)
    model.must_be_off("load_in_8bit", "beside fast_inference is not modelled")
    model.only("conservativeness", 1)
    slots, rank = model.count("max_lora_rank"), tuned.count("r") or 16
    if slots is not None and slots < rank:
        model.cannot("max_lora_rank", "is less than r={}, which vLLM refuses", rank)
    share, told = model.number("gpu_memory_utilization"), model.flag("unsloth_vllm_standby")
    most = model.count("max_num_seqs")
    return {
        "framework": "unsloth", "rollout": "vllm", "samples": training.count("num_generations") or ANSWERS,
        "memory-fraction": SHARE if share is None else share, "sleep": bool(told or STANDBY.search(text)),
        "base-weights": "full",  # where nothing packs them
        **({"max-sequences": most} if most else {}),
    }


def _first(calls: tuple[Call, ...], wanted: Any) -> Call | None:
    return next((call for call in calls if wanted(call)), None)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that only a run knows; these are named apart."""
    return {name: f"${{{value.text}}}" if isinstance(value, Open) else value for name, value in arguments.items()}


def _loaded(call: Call) -> Watched:
    """What `from_pretrained` is told, by name."""
    positional = dict(zip(IN_ORDER, call.positional, strict=False))
    given = _plain({**positional, **call.arguments})
    usual = {"load_in_4bit": EMBEDS not in call.name}
    given.pop("token", None)
    dtype = str(given.get("dtype") or given.get("torch_dtype") or "")
    for name in ("dtype", "torch_dtype"):
        if name in given:
            given[name] = next((kind for kind in ("bfloat16", "float16", "float32") if kind in dtype), None)
    return Watched(usual | given, CALLS)


def _training(trains: Call | None, arguments: Call | None) -> Watched:
    """What trainer and arguments say, with what stands there unasked."""
    usual = OWN if arguments is not None and arguments.last in CONFIGS else TRANSFORMERS
    given = _plain(arguments.arguments if arguments else {})
    of_trainer = _plain(trains.arguments if trains else {})
    for name in ("bf16", "fp16"):  # as the card has it
        given.pop(name, None)
    kept = ("max_seq_length", "max_length", "max_prompt_length", "packing", "beta")
    return Watched(usual | {name: value for name, value in of_trainer.items() if name in kept} | given, TRAINING)


def _length(model: Watched, training: Watched, objective: str) -> int | None:
    """Positions to which a trainer cuts samples, within those that the model was loaded for. Unsloth's trainer of texts
    writes the model's over `max_length`, and keeps a shorter `max_seq_length`; that of preferences cuts at `max_length`
    [unsloth rl.py `length_check`, `max_length_check`, llama.py `LlamaModel_fast_forward`]."""
    loaded, own, also = model.count("max_seq_length"), training.count("max_seq_length"), training.count("max_length")
    cut = {"sft": own, "dpo": also, "reward": also}.get(objective)
    return min(loaded, cut) if loaded and cut else loaded or own or also


def _task(trains: Call | None, training: Watched, length: int, notes: list[str]) -> dict[str, Any]:
    """What is optimised, and on how many tokens; `notes` gets what is said of them."""
    objective = TRAINERS.get(trains.last, "") if trains is not None else "sft"
    packs = training.flag("packing")
    if not objective:
        training.cannot("trainer", "{} is not modelled", shown(trains.last if trains else ""), option="objective")
        return {}
    if objective != "grpo":
        training.get("max_prompt_length")
        training.get("beta")
        return {"objective": objective} | (lengths_of(packed=packs) if objective == "sft" else {})
    prompt, answers = (None if training.is_open(name) else training.count(name) for name in LENGTHS)
    if any(map(training.is_open, LENGTHS)):
        prompt = length - answers if answers is not None and answers < length else prompt or 1
        notes.append(Note(
            "how long prompts are is known to a run alone: prompts and answers together take {} tokens", length
        ))
        for name in LENGTHS:
            training.pop(name, None)
        answers = answers or max(1, length - prompt)
    for name, said in zip(LENGTHS, (prompt, answers), strict=True):
        if said is None:
            notes.append(Note("{} is not given: {}, as TRL has it", name, TRL_LENGTHS[name]))
    prompt, answers = (said or TRL_LENGTHS[name] for name, said in zip(LENGTHS, (prompt, answers), strict=True))
    beta = training.number("beta")
    return {"objective": "grpo", "seq-len": prompt, "completion-len": answers,
            "engine-option": (f"beta={0.001 if beta is None else beta:g}",)}


def _images(calls: tuple[Call, ...], network: str) -> tuple[dict[str, Any], list[str]]:
    """The size to which the collator shrinks images, where it does and networks take any."""
    collates = _first(calls, lambda call: call.last == "UnslothVisionDataCollator")
    side = next((side for name, side in SHRUNK.items() if network.startswith(name)), None)
    if collates is None or collates.arguments.get("resize", "min") != "min" or side is None:
        return {}, []
    return {"image-size": side}, [Note("images are {} x {}, to which larger ones are shrunk", side, side)]


def _named(model: Watched, options: dict[str, Any]) -> list[str]:
    """The model; Unsloth's copies have the network of what they are copies of."""
    name = model.text("model_name")
    if name is None:
        return []
    copied = _original(name)
    options["model"] = copied or name
    return [Note("{} is a copy of {}", name, copied)] if copied else []


def _original(name: str) -> str | None:
    """What the catalogue calls a network that Unsloth copied, None where it is no copy or not known."""
    owner, slash, bare = name.partition("/")
    plain = SAME.sub("", bare if slash else owner)
    if owner != "unsloth" or name.lower() in MODELS.aliases:
        return None
    by_last = {alias.rpartition("/")[2]: alias for alias in MODELS.aliases}
    for text in (plain, TUNED.sub("", plain), TUNED.sub("", TUNED.sub("", plain))):
        if (found := by_last.get(text.lower())) is not None:
            return MODELS.aliases[found]
    return None


def _precision(model: Watched, *, whole: bool) -> dict[str, Any]:
    """bf16 where the card has it; all of it in bf16 where every weight learns [unsloth vision.py, llama.py]."""
    dtype = model.get("dtype") or model.get("torch_dtype")
    model.get("torch_dtype")
    if dtype == "float16":
        return {"precision": "amp-fp16"}
    if dtype == "float32" or model.flag("float32_mixed_precision"):
        return {"precision": "amp-bf16"}
    return {"precision": "bf16" if whole else "amp-bf16"}


def _adapters(model: Watched, tuned: Watched, loader: str) -> dict[str, Any]:
    found: dict[str, Any] = {"peft": "dora" if tuned.flag("use_dora") else "lora", "adapter-dtype": "fp32"}
    found["lora-rank"] = tuned.count("r") or 16
    found["lora-dropout"] = tuned.number("lora_dropout") or 0.0
    given = tuned.get("target_modules")
    listed = [str(word) for word in (given if isinstance(given, list) else [given])] if given else []
    saved = tuned.get("modules_to_save") or []
    learn = [WHOLE[word] for word in (*listed, *saved) if word in WHOLE]
    listed = [word for word in listed if word not in WHOLE]
    parameters = tuned.get("target_parameters") or []
    flags = {name: tuned.flag(name) for name in (*TOWERS_OR_TEXT, *ATTENTION_OR_MLP)}
    if not listed and loader.startswith("FastLanguageModel"):
        listed = list(LINEAR)
    elif EMBEDS in loader:
        listed = listed or ["all-linear"]
    elif not listed or listed == ["all-linear"]:
        listed = [layers_pattern(flags if not listed else {})]
    elif False in flags.values():
        listed = [layers_pattern(flags, rf"(?:{'|'.join(map(re.escape, listed))})")]
    found["lora-targets"] = ",".join((*listed, *map(str, parameters)))
    if learn:
        found["modules-to-save"] = ",".join(dict.fromkeys(learn))
    return found | _stored(model)


def layers_pattern(flags: Mapping[str, bool | None], names: str = EVERY) -> str:
    """The modules that Unsloth chooses by parts of their names [zoo peft_utils.py `get_peft_regex`].

    Args:
        flags: what learns; what nobody says does
        names: pattern of a module's last name
    """
    parts, components = (
        "|".join(text for name, text in table.items() if flags.get(name) is not False)
        for table in (TOWERS_OR_TEXT, ATTENTION_OR_MLP))
    components += "|mixer"
    plain = rf"|model\.layers\.\d+\.(?:{components})\.{names}"
    text = plain if flags.get("finetune_language_layers") is not False else ""
    return rf".*?(?:{parts}).*?(?:{components}).*?\.{names}{text}"


def _towers(tuned: Watched) -> tuple[Unread, ...]:
    return (TOWERS,) if dict.get(tuned, "finetune_vision_layers") is True else ()


def _stored(model: Watched) -> dict[str, Any]:
    """Packed in 4 bits unless it is said; a name may say so, too."""
    if model.flag("load_in_8bit"):
        model.get("load_in_4bit")
        return {"base-weights": "int8"}
    sixteen = model.flag("load_in_16bit")
    four = bool(model.flag("load_in_4bit")) and not sixteen
    return {"base-weights": "nf4-dq"} if four or "bnb-4bit" in str(model.get("model_name", "")).lower() else {}


def _recompute(model: Watched, tuned: Watched, loads: Call) -> dict[str, Any]:
    """Inputs of layers wait on the host unless plain checkpoints are asked for."""
    given = [part.get("use_gradient_checkpointing") for part in (tuned, model)]
    said = next((one for one in given if one is not None), False if EMBEDS in loads.name else "unsloth")
    if said in (False, "False", "false", "none"):
        return {"recompute": "none"}
    plain = said in (True, "True", "true")
    return {"recompute": "full"} | ({"engine-option": ("offload_checkpoints=false",)} if plain else {})


def _optimizer(training: Watched) -> dict[str, Any]:
    inner = Watched({name: training.get(name) for name in ("optim", "optim_args") if name in training})
    found = optimizer_of(inner)
    for one in inner.unread():
        training.cannot(one.name, one.why, option=one.option)
    found.pop("optimizer-kernel", None)
    return found


def _batch(training: Watched) -> dict[str, int]:
    micro, steps = (training.count(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps"))
    groups = training.count("num_generations")
    if groups and micro and (micro * (steps or 1)) % groups:
        micro = groups  # [unsloth rl.py] makes the batch that of one prompt
    return {"micro": micro or 1, "accumulation": steps or 1}
