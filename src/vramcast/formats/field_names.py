"""A question in the names of other tools: --per-device-train-batch-size, --max-model-len, --optimizer paged_adamw_8bit.

Each name is read by its tool's own reader, so it means here what it means in that tool's file. What the tool would do
unasked is not taken over: the rest of the question is vramcast's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import Name, load_format
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported
from vramcast.formats.read import OPTIONS_OF_BATCH, as_options
from vramcast.formats.reading import Config, Reading, Unread, sentence
from vramcast.formats.registry import READERS
from vramcast.formats.watched import Known
from vramcast.question.options import over
from vramcast.states.storage import SPOKEN


class Vocabulary(NamedTuple):
    """The names of one tool."""

    tool: str  # for sentences
    format: str  # of READERS
    known: Known
    engines: tuple[str, ...]  # that are asked with them; the first where no engine is named
    start: str = ""  # of its command line; "": it is read as a table
    file: str = "options"  # how that table is called
    beneath: Mapping[str, Any] = {}  # what a table of it has to say beside
    adapters: Mapping[str, Any] = {}  # what says that adapters are trained, where --peft does

    def knows(self, name: str) -> bool:
        """Whether the tool, or an earlier version of it, has a name."""
        gone = load_format(self.known.format).removed.get(self.known.section, {})
        return self.known.entry(name) is not None or name.replace("-", "_") in gone or name in gone


TRAINING_ARGUMENTS: Final = Known("transformers", "TrainingArguments")
TRAINERS: Final = ("huggingface", "deepspeed", "pytorch", "unsloth", "litgpt")

VOCABULARIES: Final = (
    Vocabulary("Transformers", "trainer", TRAINING_ARGUMENTS, TRAINERS),
    Vocabulary("TRL", "trl", Known("trl", "SFTConfig", (
        Known("trl", "ModelConfig"), Known("trl", "ScriptArguments"), TRAINING_ARGUMENTS)), TRAINERS, file="sft.yaml",
               adapters={"use_peft": True}),
    Vocabulary("LLaMA-Factory", "trainer", Known("llamafactory", "arguments", (TRAINING_ARGUMENTS,)), TRAINERS,
               beneath={"finetuning_type": "lora", "stage": "sft", "do_train": True}),
    Vocabulary("Megatron-LM", "megatron", Known("megatron", "arguments"), ("megatron",)),
    Vocabulary("vLLM", "vllm", Known("vllm", "EngineArgs", (Known("vllm", "FrontendArgs"),)), ("vllm",)),
    Vocabulary("SGLang", "sglang", Known("sglang", "ServerArgs"), ("sglang",), "python -m sglang.launch_server"),
    Vocabulary("llama.cpp", "llama.cpp", Known("llamacpp", "arguments"), ("llama.cpp", "ik_llama.cpp"), "llama-server"),
    Vocabulary("TensorRT-LLM", "tensorrt-llm", Known("tensorrt-llm", "options"), ("tensorrt-llm",), "trtllm-serve m"),
    Vocabulary("Text Generation Inference", "tgi", Known("tgi", "options"), ("tgi",), "text-generation-launcher"),
    Vocabulary("LMDeploy", "lmdeploy", Known("lmdeploy", "options"), ("lmdeploy",), "lmdeploy serve api_server m"),
)
"""In the order in which a name is looked for."""

PLAIN: Final = {
    "micro-batch-size": "micro-batch", "global-batch-size": "global-batch", "seq-length": "seq-len",
    "sequence-length": "seq-len", "sequence-len": "seq-len", "max-seq-length": "seq-len", "max-seq-len": "seq-len",
    "max-sequence-length": "seq-len", "model-max-length": "seq-len", "block-size": "seq-len",
    "seq": "seq-len",
    "gradient-accumulation": "grad-accum",
    "num-layers": "layers", "hidden-size": "hidden", "target-modules": "lora-targets",
    "ctx": "context", "context-len": "context", "max-len": "context", "zero-stage": "zero",
    **dict.fromkeys(("model-name-or-path", "model-path", "model-id", "model-id-or-path", "base-model"), "model"),
}
"""Names that several tools have for what an option here is as well, whatever the tool."""

VALUES: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("peft", "qlora"): {"peft": "lora", "base-weights": "nf4"},
    ("peft", "none"): {}, ("peft", "full"): {},
    ("precision", "bfloat16"): {"precision": "bf16"}, ("precision", "float16"): {"precision": "fp16"},
    ("precision", "float32"): {"precision": "fp32"},
    # Lightning's [lightning.fabric plugins/precision]
    ("precision", "bf16-mixed"): {"precision": "amp-bf16"}, ("precision", "16-mixed"): {"precision": "amp-fp16"},
    ("precision", "bf16-true"): {"precision": "bf16"}, ("precision", "32-true"): {"precision": "fp32"},
    ("attention", "flash_attention_2"): {"attention": "flash"}, ("attention", "fa2"): {"attention": "flash"},
    ("dtype", "bfloat16"): {"dtype": "bf16"}, ("dtype", "float16"): {"dtype": "fp16"}, ("dtype", "half"): {
        "dtype": "fp16"}, ("dtype", "float32"): {"dtype": "fp32"},
    ("kv-dtype", "bfloat16"): {"kv-dtype": "bf16"}, ("kv-dtype", "float16"): {"kv-dtype": "fp16"},
    **{("weights", word): {"weights": stored} for word, stored in SPOKEN.items()},
    ("base-weights", "4bit"): {"base-weights": "nf4"}, ("base-weights", "8bit"): {"base-weights": "int8"},
}
"""Option of vramcast and a value as the field writes it -> the options that say it."""

BATCHES: Final = (
    "--micro-batch (one forward of one GPU) or --global-batch (one optimizer step of all); of a server --concurrency"
)
AMBIGUOUS: Final = {
    "batch-size": BATCHES, "batchsize": BATCHES, "batch": BATCHES,
    "epochs": "--tokens for the price of the whole run; a step is the same in each",
    "lora": "--peft lora", "qlora": "--peft qlora", "full": "no --peft at all",
    "fsdp": "--shards everything --sharded-by fsdp2 (or fsdp1)",
    "ddp": "--shards nothing", "gpu": "--gpus", "num-gpus": "--gpus 8xh100", "model": "the model by itself",
    **dict.fromkeys(("checkpointing", "activation-checkpointing", "grad-checkpointing"), "--recompute full"),
    "quantize": "--weights (of a server) or --base-weights (under adapters)",
    "quant": "--weights (of a server) or --base-weights (under adapters)",
    "quantization": "--weights (of a server) or --base-weights (under adapters)",
    "offload": "--offload-optimizer cpu, --offload-parameters cpu or --offload-activations",
    "vram": "--gpus 24gb", "max-tokens": "--output-len", "users": "--concurrency",
}
"""Names that several things are called by -> what to write instead."""


class Translated(NamedTuple):
    """A question in vramcast's words."""

    options: dict[str, Any]
    assumptions: tuple[str, ...] = ()  # which words stood for which


def entry_of(command: str, name: str) -> Name | None:
    """What a name of another tool takes; None: no tool of a command has it.

    >>> entry_of("train", "per-device-train-batch-size").kind, entry_of("serve", "enforce_eager").kind
    ('int', 'bool')
    """
    if name in PLAIN:
        return Name()
    known = (each.known.entry(name) or Name() for each in _of_command(command) if each.knows(name))
    return next(known, None)


def instead_of(name: str) -> str | None:
    """What to write for a name that means several things."""
    return AMBIGUOUS.get(name)


def in_own_words(options: Mapping[str, Any], own: Iterable[str], *, command: str) -> Translated:
    """The question with every name and value of other tools put into vramcast's.

    Args:
        options: as given by name
        own: the names that vramcast has
        command: "train" or "serve"

    Raises: UnknownName for a name that is nobody's, InvalidSpec for two that contradict each other, Unsupported for
        one that is not modelled
    """
    own = ("model", "gpus", *own)
    said = []
    for name in [name for name in options if name not in own and PLAIN.get(name) in own]:
        plain, value = PLAIN[name], options[name]
        rest = {other: given for other, given in options.items() if other != name}
        options = _added(rest, {plain: value}, f"--{name}")
        said.append(Note("--{} {} stands for --{} {}", name, value, plain, value))
    theirs = {name: value for name, value in options.items() if name not in own}
    found = {name: value for name, value in options.items() if name in own}
    for name, value in list(found.items()):
        meant = _meant(name, value)
        if meant is not None:
            del found[name]
            found = _added(found, meant, f"--{name} {value}")
            said.append(Note("--{} {} stands for {}", name, value, as_options(meant) or "the default"))
    for name in theirs if "engine" not in found else ():
        if AMBIGUOUS.get(name.replace("_", "-")) is BATCHES:
            raise InvalidSpec("--{} is another thing to every tool; write {}", name, BATCHES)
    if theirs:
        vocabulary = _vocabulary(theirs, found, command)
        if vocabulary is None:  # names of several tools: those that say nothing here are anybody's
            silent = [name for name, value in theirs.items() if _is_silent(name, value, found, command)]
            theirs = {name: value for name, value in theirs.items() if name not in silent}
            said.extend(Note("--{}: nothing that takes memory", name) for name in silent)
            vocabulary = _vocabulary(theirs, found, command)
        if vocabulary is None and theirs:
            strange = next((name for name in theirs if entry_of(command, name) is None), next(iter(theirs)))
            raise UnknownName.of("option", strange, own)
    if theirs and vocabulary is not None:
        if "peft" in found:
            vocabulary = vocabulary._replace(beneath={**vocabulary.beneath, **vocabulary.adapters})
        elif vocabulary.adapters and not any(name.replace("-", "_") in vocabulary.adapters for name in theirs):
            for name in theirs:
                if name.startswith("lora"):  # the tool passes over it, who types it means adapters
                    raise InvalidSpec("--{} needs --peft, for example --peft lora", name)
        meant = _read(vocabulary, theirs)
        names = ", ".join(f"--{name}" for name in theirs)
        found = _added(found, meant, names)
        if meant and "engine" not in found and not found.get("from"):
            meant = {"engine": vocabulary.engines[0], **meant}
            found["engine"] = vocabulary.engines[0]
        said.append(Note("{}: in the words of {}, read as {}", names, vocabulary.tool, as_options(meant)) if meant else
                    Note("{}: nothing that takes memory", names))
    return Translated(found, tuple(said))


def _meant(name: str, value: object) -> dict[str, Any] | None:
    """The options that a value of the field stands for; None where it is vramcast's own."""
    if not isinstance(value, str):
        return None
    if name == "optimizer":
        from vramcast.formats.tools.transformers import optim_options  # the Trainer's names

        return optim_options(value)
    return VALUES.get((name, value.lower()))


def _added(options: Mapping[str, Any], meant: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Options and what further names say.

    Raises: InvalidSpec where both say something of the same, and not the same
    """
    for name, value in meant.items():
        if name in options and name != "engine-option" and str(options[name]) != str(value):
            raise InvalidSpec(
                "{} says --{} {}, and --{} {} is given; keep one of them", names, name, value, name, options[name]
            )
    return over(options, meant)


def _of_command(command: str) -> Iterator[Vocabulary]:
    return (each for each in VOCABULARIES if READERS[each.format].command == command)


def _vocabulary(theirs: Mapping[str, Any], options: Mapping[str, Any], command: str) -> Vocabulary | None:
    """Whose names all of these are; an engine that is named decides between several."""
    engine = str(options.get("engine") or "").partition("@")[0]
    knowing = [each for each in _of_command(command) if all(map(each.knows, theirs))]
    return next((each for each in knowing if engine in each.engines), next(iter(knowing if not engine else ()), None))


def _is_silent(name: str, value: Any, options: Mapping[str, Any], command: str) -> bool:
    """Whether a tool has a name, and it says nothing that takes memory."""
    vocabulary = _vocabulary({name: value}, options, command)
    return vocabulary is not None and not _read(vocabulary, {name: value})


def _module(vocabulary: Vocabulary) -> Any:
    return import_module(f"vramcast.formats.tools.{READERS[vocabulary.format].module}")


def _read(vocabulary: Vocabulary, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool's reader makes of names, without what it makes of none.

    Raises: Unsupported for what may change the answer and is not modelled
    """
    read, silent = _reading(vocabulary, theirs), _reading(vocabulary, {})
    unread = [one for one in read.unread if one not in silent.unread]
    if unread:
        raise Unsupported("{}; leave it out, or say it in options of vramcast", sentence(map(_as_option, unread)))
    found, usual = _options(read), _options(silent)
    said = {name for name, value in found.items() if usual.get(name) != value}
    for name, value in theirs.items():  # a value that the tool would take anyway is said as well
        other = _options(_reading(vocabulary, {**theirs, name: _another(value)}))
        said |= {option for option, value in found.items() if other.get(option) != value}
    meant = {name: value for name, value in found.items() if name in said and name not in ("engine", "model")}
    if "engine-option" in meant:
        kept = set(usual.get("engine-option", ()))
        meant["engine-option"] = tuple(pair for pair in meant["engine-option"] if pair not in kept)
    return meant


def _options(reading: Reading) -> dict[str, Any]:
    return reading.options | {OPTIONS_OF_BATCH[kind]: size for kind, size in reading.batch.items()}


def _another(value: Any) -> Any:
    """Another value of the same kind."""
    return not value if isinstance(value, bool) else 2 * value + 1 if isinstance(value, (int, float)) else None


def _as_option(one: Unread) -> Unread:
    return one._replace(name=f"--{one.name.lstrip('-').replace('_', '-')}")


def _reading(vocabulary: Vocabulary, values: Mapping[str, Any]) -> Reading:
    """What the tool's reader says of names and values."""
    plainly = {name.replace("-", "_"): value for name, value in values.items()}
    config = Config(vocabulary.file, "", {**vocabulary.beneath, **plainly})
    if vocabulary.start:
        long = load_format(vocabulary.known.format).sections[vocabulary.known.section]
        words = [word for name, value in values.items()
                 for word in _words("--" if {name, name.replace("-", "_")} & long.keys() else "-", name, value)]
        config = Config("options", f"{vocabulary.start} {shlex.join(words)}\n", None)
    reading: Reading = _module(vocabulary).read(config)
    return reading


def _words(dashes: str, name: str, value: object) -> list[str]:
    """An argument of a command line; short names have one dash."""
    values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
    return [f"{dashes}{name}", *map(str, values)]
