"""A Python script or notebook that calls one of TRL's trainers: its calls as the arguments that TRL's YAML has.

[TRL] huggingface/trl 1.9.0 trl/trainer/{sft,dpo,reward,grpo,rloo}_trainer.py `__init__`, trl/trainer/utils.py
`create_model_from_path`   [PEFT] peft/tuners/lora/config.py   [HF] transformers/utils/quantization_config.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.python_calls import SET, Call, Open, calls_of, unasked
from vramcast.formats.reading import Config, Reading, Unread, arguments, shown, together
from vramcast.formats.tools import trl
from vramcast.formats.unread import options_of_environment, ranks_of, unread_environment
from vramcast.formats.watched import Known

LOADER: Final = re.compile(r"(?:Auto)?(?:Model\w*|\w*For\w+)\.from_pretrained$")
PARSERS: Final = ("HfArgumentParser", "TrlParser")
"""They make the trainer's whole configuration of the command line."""

ARGUMENT: Final = ("model", "args", "data_collator")
"""Of a trainer, in order."""

OLD_ARGUMENTS: Final = ("max_seq_length", "max_length", "max_prompt_length", "packing", "beta", "loss_type",
                        "dataset_text_field")
"""What the trainers of former releases took beside their configuration."""

NOTHING_OF_MEMORY: Final = (
    "model", "args", "peft_config", "quantization_config", "train_dataset", "eval_dataset", "dataset", "callbacks",
    "processing_class", "tokenizer", "compute_metrics", "formatting_func", "reward_processing_classes",
    "environment_factory", "tools",
)
"""Arguments of trainers; what tools and environments answer counts among the tokens of `max_completion_length` [TRL
grpo_trainer.py `_tool_call_loop`]."""

ADAPTERS: Final = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save", "target_parameters": "lora_target_parameters", "use_dora": "use_dora",
    "use_rslora": "use_rslora", "task_type": "lora_task_type",
}
"""Argument of PEFT's LoraConfig -> of TRL."""
OWN_OF_PEFT: Final[dict[str, Any]] = {"use_peft": True, "lora_r": 8, "lora_dropout": 0.0}
"""What stands there unasked, where TRL's arguments have something else [PEFT]."""
ALSO_OF_PEFT: Final = {"bias": ("none",), "inference_mode": (False,), "init_lora_weights": (True, False, "gaussian"),
                       "fan_in_fan_out": (False, True)}
"""Argument -> values that change no size."""

PACKED: Final = {"load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit", "bnb_4bit_quant_type":
                 "bnb_4bit_quant_type", "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
                 "bnb_4bit_quant_storage": "bnb_4bit_quant_storage"}
"""Argument of BitsAndBytesConfig -> of TRL; what it computes in changes no size."""
OWN_OF_PACKED: Final = {"bnb_4bit_quant_storage": "uint8"}

LOADED: Final = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation",
                 "load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"}
"""Argument of `from_pretrained` -> of TRL."""
ALSO_LOADED: Final = ("quantization_config", "trust_remote_code", "use_cache", "revision", "token", "cache_dir",
                      "low_cpu_mem_usage", "num_labels", "use_safetensors", "local_files_only", "device_map")

OTHER_MODEL: Final = "loads another network, which may lie on the same cards and is not counted"

CHANGES: Final = {
    "prepare_model_for_kbit_training": "casts what is not packed to fp32, which is not modelled for TRL",
    "requires_grad_": "freezes or frees weights; give --freeze", "half": "casts the model",
    "bfloat16": "casts the model",
    "compile": "compiles the model by hand; give --compile", "merge_and_unload": "changes the network",
    "float": "casts the model", "double": "casts the model", "set_default_dtype": "casts what is made behind it",
    "add_adapter": "adapts the model beside the trainer; give peft_config",
    "LLM": OTHER_MODEL, "pipeline": OTHER_MODEL, "SentenceTransformer": OTHER_MODEL, "CrossEncoder": OTHER_MODEL,
    "resize_token_embeddings": "changes the network's vocabulary",
    "gradient_checkpointing_enable": "is TRL's own gradient_checkpointing; say it there",
}
"""Method or function -> what it does to a model beside the trainer."""
OF_TENSORS: Final = ("float", "double", "compile")
"""Names that others have, too: read of a model, and of torch."""
OF_MODELS: Final = re.compile(r"(?:.*\.)?\w*model\w*\.\w+|torch\.compile")

MADE: Final = re.compile(r"[\w.]*(?:Config|Arguments|Trainer|get_peft_model|from_pretrained)\(")
SETS: Final = re.compile(r"(?:.*\.)?\w*(?:model|config|args|trainer)\w*(?:\.\w+|\[.*\])*\.\w+")
"""Attributes that belong to what a trainer is given."""
SETS_NOTHING: Final = re.compile(
    r"self\.\w+|torch\._\w+\..*|.*(?:token|process|generation_config)\w*\..*|.*\.(?:use_cache|pretraining_tp|"
    r"is_parallelizable|model_parallel|\w+_token(?:_id)?|suppress_tokens|forced_decoder_ids|padding_side|chat_template|"
    r"_?name_or_path)")
"""Those of them that change no memory, and those of tokenizers."""

LOOSE: Final = re.compile(r"""\.requires_grad\s*=(?!=)|\bsetattr\([^)]*["']requires_grad""")

PLAIN: Final = {"bf16": False, "gradient_checkpointing": False}
"""Of TrainingArguments, which a trainer takes over as they are [TRL sft_trainer.py `dict_args`]."""

HELD: Final = re.compile(
    r"(?<![\w.-])(trl|transformers)(?:\[[\w, -]*\])? *((?:[~=]=|<)[^\s'\";#]*|[>!]=[^\s'\";#]*<[^\s'\";#]*)")
"""What of a notebook or of the head of a script names a release to install, or one from which on none is."""
EXACT: Final = re.compile(r"[=~]==?v?(\d+(?:\.\d+){0,3})")

SPREADS: Final = ("auto", "balanced")
"""`device_map` -> layers on all the cards that one process sees, alike."""

LIKE_TRLS: Final = "the model is taken to be loaded and adapted as TRL's own scripts do it of the same arguments"


def read(config: Config, words: tuple[str, ...] | None = None, parsed: Mapping[str, Any] = {}) -> Reading:
    """The trainer that a script calls.

    Args:
        words: arguments of the command that starts it; None: it is not known
        parsed: the same as HfArgumentParser reads them
    """
    calls = calls_of(config.text, config.name, arguments(words or ()))
    trainers = [call for call in calls if call.last.endswith("Trainer") and _argument(call, "model") is not None]
    if not trainers:
        return _refused("Trainer", "is not called: nothing is trained")
    trainer, unread = trainers[0], list[Unread]()
    if others := {call for call in map(_text, trainers) if call != _text(trainer)}:
        unread.append(Unread(trainer.last, Note(
            "stands in the file with {} different calls; keep one", len(others) + 1
        )))
    method = trainer.last.removesuffix("Trainer").lower()
    if parser := next((call.last for call in calls if call.last in PARSERS), ""):
        if words is None or "ModelConfig" not in config.text:
            why = "reads a command line; give the command that starts the script"
            return _refused(parser, why if words is None else "makes more than TRL's own configurations of it")
        found = trl.read_arguments(parsed, method, config.name)
        return found._replace(format="trl-script", unread=(*unread, *found.unread), notes=(LIKE_TRLS, *found.notes))
    calls, behind = _until_it_trains(calls, trainer)
    table, told = _arguments(calls, trainer)
    model, beside, spread = _model(calls, trainer, table.pop("model_init_kwargs", None))
    installed, other = _installed(config.text)
    found = trl.read_arguments({**model, **_adapters(calls, trainer, beside), **table}, method, config.name,
                               pinned=installed.get("trl", ""))
    if "transformers" in installed:
        found.options["engine"] = f"huggingface@{installed['transformers']}"
    names = trl.known(method if method in trl.METHODS else "sft")
    own = trainer.last.removesuffix("Trainer") + "Config"
    set_later = [one for call in calls if call.last == own for one in _set_on(calls, call)]
    around = [call for call in calls if call not in set_later]
    unread += [*other, *told, *beside, *_around(around, trainer, config.text, names)]
    if _asks_wider(trainer, method, table) and found.options.get("precision") in ("bf16", "fp16"):
        unread.append(WIDER)
    inside = {name for call in calls if call == trainer or call.last == "train" for name in call.within}
    if any(name.endswith("autocast") for name in inside) and str(found.options.get("precision"))[:4] != "amp-":
        unread.append(Unread("autocast", "around the trainer computes in a type that its configuration does not say",
                             "precision"))
    variables = {str(call.positional[0]): str(_plain(call.positional[1])) for call in calls
                 if call.name == f"os.environ{SET}" and len(call.positional) == 2}
    unread += unread_environment(variables)
    found = found._replace(options=together(found.options, options_of_environment(variables)))
    notes = (unasked(calls) if words is None else ()) + behind + found.notes
    return found._replace(format="trl-script", unread=(*unread, *found.unread), notes=notes,
                          alone=ranks_of(None, None, variables) == 1, device_map=spread)


BEHIND: Final = "what the script does once it has trained is not counted"


def _until_it_trains(calls: tuple[Call, ...], trainer: Call) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """The calls up to the first `.train()` of a trainer, and what is said of networks that are loaded or changed
    behind it."""
    made = calls.index(trainer)
    ends = next((place for place, call in enumerate(calls) if place > made and call.last == "train"
                 and not call.perhaps and not OF_MODELS.fullmatch(call.name)), len(calls))
    later = any(LOADER.search(call.name) or call.last in CHANGES for call in calls[ends + 1 :])
    return calls[: ends + 1], (BEHIND,) if later else ()


def _installed(text: str) -> tuple[dict[str, str], list[Unread]]:
    """Releases by their package, and what of them names no release."""
    found, unread = dict[str, str](), list[Unread]()
    for package in ("trl", "transformers"):
        said = {held for name, held in HELD.findall(text) if name == package}
        exact = EXACT.fullmatch("".join(said))  # several together are none
        if exact is not None:
            found[package] = exact[1]
        elif said:
            unread.append(Unread(package, "is held to no single release, as trl==0.9.6 is"))
    return found, unread


WIDER: Final = Unread("ref_model", "is loaded in float32 by the trainer, beside a model in 16 bits, which is not "
                      "modelled; give ref_model, or the model by its name and model_init_kwargs")


def _asks_wider(trainer: Call, method: str, table: Mapping[str, Any]) -> bool:
    """Whether the trainer loads a reference itself beside a model that the script loaded, whose type it does not ask
    [TRL {dpo,kto,grpo,rloo}_trainer.py `ref_model_init_kwargs`]; adapters are their own."""
    asks = (method in ("dpo", "kto") and table.get("precompute_ref_log_probs") is not True) or method == "rloo" or (
        method == "grpo" and table.get("beta") not in (None, 0, 0.0))
    return asks and not isinstance(_argument(trainer, "model"), str) and trainer.arguments.get("ref_model") is None


def _refused(name: str, why: str) -> Reading:
    return Reading("trl-script", {"engine": "huggingface"}, unread=(Unread(name, why),))


def _text(call: Call) -> str:
    return str(call)


def _argument(call: Call, name: str) -> Any:
    place = ARGUMENT.index(name) if name in ARGUMENT else len(call.positional)
    return call.arguments.get(name, call.positional[place] if place < len(call.positional) else None)


def _plain(value: Any) -> Any:
    """A value as a file would have it; types of torch by their names, what only a run knows as open."""
    if isinstance(value, Open):
        kind = re.fullmatch(r"(?:torch\.)?(bfloat16|float16|float32|uint8)", value.text)
        return kind[1] if kind else f"${{{value.text}}}"
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def _several(call: Call) -> Iterator[Unread]:
    """What of a call has no name here."""
    if call.several:
        yield Unread(f"{call.last}(**)", "holds what only a run knows")


def _arguments(calls: Sequence[Call], trainer: Call) -> tuple[dict[str, Any], list[Unread]]:
    """Those of the trainer's configuration, and of the trainer as former releases had it."""
    old = {name: _plain(trainer.arguments[name]) for name in OLD_ARGUMENTS if name in trainer.arguments}
    if _argument(trainer, "args") is None:
        return old, []
    configs = [call for call in calls if call.last in (f"{trainer.last.removesuffix('Trainer')}Config",
                                                       "TrainingArguments")]
    if len(configs) != 1:
        why = Note("is made by {} calls of its configuration; one is read", len(configs))
        return old, [Unread("args", why)]
    usual = PLAIN if configs[0].last == "TrainingArguments" else {}
    later = {call.name.removesuffix(SET).rpartition(".")[2]: call.positional[0] for call in _set_on(calls, configs[0])}
    given = {name: _plain(value) for name, value in (*configs[0].arguments.items(), *later.items())}
    return {**usual, **old, **given}, list(_several(configs[0]))


def _set_on(calls: Iterable[Call], config: Call) -> list[Call]:
    """Arguments of a configuration that the script always sets behind the call that made it."""
    found = (call for call in calls if re.fullmatch(r"\w+\.\w+" + re.escape(SET), call.name) and not call.perhaps)
    return [call for call in found if isinstance(owner := call.arguments.get("of"), Open)
            and owner.text.startswith(f"{config.last}(")]


def _model(calls: Sequence[Call], trainer: Call, kwargs: Any) -> tuple[dict[str, Any], list[Unread], bool]:
    """The model, type and packing of its weights; what is not read; whether one process has all cards."""
    model = _argument(trainer, "model")
    loads = [call for call in calls if LOADER.search(call.name)]
    quantised = [call for call in calls if call.last == "BitsAndBytesConfig"]
    unread: list[Unread] = []
    if isinstance(model, str):
        given = {"model_name_or_path": model, **(kwargs if isinstance(kwargs, Mapping) else {})}
        if kwargs is not None and not isinstance(kwargs, Mapping):
            unread.append(Unread("model_init_kwargs", "holds what only a run knows"))
    else:
        named = {str(call.positional[:1] or call.arguments.get("pretrained_model_name_or_path")) for call in loads}
        if len(named) != 1 or any("Peft" in call.name or call[:2] != loads[0][:2] for call in loads):
            return {}, [Unread("model", "is loaded by no from_pretrained or by several different ones; give a "
                               "script with one")], False
        first = loads[0]
        name = first.arguments.get("pretrained_model_name_or_path", first.positional[0] if first.positional else None)
        given = {"model_name_or_path": _plain(name), "dtype": "auto",
                 **{word: _plain(value) for word, value in first.arguments.items()}}
        given.pop("pretrained_model_name_or_path", None)
        unread += _several(first)
    table: dict[str, Any] = {"model_name_or_path": given.pop("model_name_or_path")}
    for name, value in given.items():
        if name in LOADED:
            table[LOADED[name]] = value
        elif name not in ALSO_LOADED:
            unread.append(Unread(name[:60], "of the model's loading may change memory or time and is not modelled"))
    of_loading = given if isinstance(model, str) else loads[0].arguments
    packing = of_loading.get("quantization_config", trainer.arguments.get("quantization_config"))
    unread += _undecided("quantization_config", packing)
    if packing is not None:
        unread += _quantised(quantised, table)
    where = given.get("device_map")
    if where in ("balanced_low_0", "sequential"):
        unread.append(Unread("device_map", Note("{} is not modelled over several cards; auto is", where)))
    return table, unread, where in SPREADS


UNDECIDED: Final = "depends on what only a run knows"


def _undecided(name: str, value: Any) -> Iterator[Unread]:
    """What a branch may have left None."""
    if isinstance(value, Open) and value.either:
        yield Unread(name, UNDECIDED)


def _quantised(calls: Sequence[Call], table: dict[str, Any]) -> Iterator[Unread]:
    """Into the table what the only BitsAndBytesConfig says."""
    if len(calls) != 1:
        yield Unread("quantization_config", "is made by no BitsAndBytesConfig or by several; one is read",
                     "base-weights")
        return
    said = {PACKED[name]: _plain(value) for name, value in calls[0].arguments.items() if name in PACKED}
    table.update(OWN_OF_PACKED | said)
    for name in calls[0].arguments:
        if name not in PACKED and name not in ("bnb_4bit_compute_dtype", "llm_int8_threshold"):
            yield Unread(name[:60], "of BitsAndBytesConfig is not modelled", "base-weights")


def _adapters(calls: Sequence[Call], trainer: Call, unread: list[Unread]) -> dict[str, Any]:
    """What PEFT's LoraConfig says; the rest of it goes into `unread`."""
    adapts = [call for call in calls if call.last == "get_peft_model"]
    if trainer.arguments.get("peft_config") is None and not adapts:
        return {}
    unread += _undecided("peft_config", trainer.arguments.get("peft_config"))
    if all(call.perhaps and not trainer.perhaps for call in adapts) and adapts:
        unread.append(Unread("get_peft_model", UNDECIDED, "peft"))
    configs = [call for call in calls if call.last == "LoraConfig"]
    if len(configs) != 1:
        unread.append(Unread("peft_config", "is made by no LoraConfig or by several; one is read", "peft"))
        return {}
    unread += _several(configs[0])
    if configs[0].positional:
        unread.append(Unread("LoraConfig", "has arguments without names"))
    found = dict(OWN_OF_PEFT)
    for name, value in configs[0].arguments.items():
        if name in ADAPTERS:
            found[ADAPTERS[name]] = _plain(value)
        elif value not in ALSO_OF_PEFT.get(name, (None,)):
            unread.append(Unread(name[:60], Note("{} of LoraConfig is not modelled", shown(_plain(value))), "peft"))
    return found


def set_behind(call: Call, names: Known) -> Iterator[Unread]:
    """An attribute that the script sets behind the call that made its owner."""
    by_name = call.name == "setattr" and len(call.positional) == 3
    if not by_name and not call.name.endswith(SET):
        return
    owner = call.positional[0] if by_name else call.arguments.get("of")
    text = owner.text if isinstance(owner, Open) else ""
    name = f"{text}.{_plain(call.positional[1])}" if by_name else call.name.removesuffix(SET)
    made = MADE.match(text) and "Tokenizer" not in text
    if (made or SETS.fullmatch(name)) and not SETS_NOTHING.fullmatch(name) and not names.is_harmless(
            name.rpartition(".")[2]):
        yield Unread(f"{text.partition('(')[0]}.{name.rpartition('.')[2]}" if by_name else name[:60],
                     "is set behind the call that made it; say it there")


def _around(calls: Iterable[Call], trainer: Call, text: str, names: Known) -> Iterator[Unread]:
    """What the script does beside, and the trainer's arguments that its configuration has not."""
    for call in calls:
        what = CHANGES.get(call.last)
        if (call.last in OF_TENSORS and not OF_MODELS.fullmatch(call.name)) or (
                call.last == "pipeline" and isinstance(call.arguments.get("model"), Open)):
            what = None
        yield from set_behind(call, names)
        moved = call.last == "to" and any("torch." in str(one) and "device" not in str(one) for one in (
            *call.positional, *call.arguments.values()))
        if what or moved:
            yield Unread(call.name[:60], what or "casts the model")
    if LOOSE.search(text):
        yield Unread("requires_grad", CHANGES["requires_grad_"])
    for name, value in trainer.arguments.items():
        if value is None or name in (*NOTHING_OF_MEMORY, *OLD_ARGUMENTS):
            continue
        if name == "reward_funcs":
            listed = value if isinstance(value, list) else [value]
            if any(isinstance(one, str) for one in listed):
                yield Unread(name, "names a reward model, which lies on the same cards and is not modelled")
        elif name == "data_collator":
            yield Unread(name, "makes batches of lengths of its own; give --seq-len", "seq-len")
        elif name != "ref_model":  # loaded as the model is: another name is another from_pretrained
            yield Unread(name[:60])
    yield from _several(trainer)
