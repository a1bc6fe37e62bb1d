"""Ollama: a Modelfile, and `ollama run` or `ollama serve` with the variables of its environment.

It starts llama.cpp's server, so its question is one about llama.cpp.

[server] ollama/ollama llm/llama_server.go at fb307609: `-c num_ctx*parallel -np parallel -b num_batch -ub num_batch`,
`--mmproj` with the projector of the model or beside it, `--no-mmproj-offload` where layers are left to the host;
LLAMA_CPP_VERSION: build 10488
[default] server/routes.go: num_ctx by the memory of all cards; api/types.go `DefaultOptions`; envconfig/config.go
[flags] cmd/cmd.go `runCmd.Flags()`: what they do not know ends them
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.catalogue.models import load_model
from vramcast.engines.serving.requests import sees
from vramcast.errors import Note, SourceError
from vramcast.formats.reading import SAID, Config, Reading, Unread, command_of, plain
from vramcast.formats.shell import read_script
from vramcast.formats.tools.llamacpp import network_of
from vramcast.formats.watched import Known, Watched
from vramcast.sources.by_name import by_name
from vramcast.sources.logs import options as logged

VARIABLES: Final = {
    "OLLAMA_CONTEXT_LENGTH": "num_ctx", "OLLAMA_NUM_PARALLEL": "parallel", "OLLAMA_KV_CACHE_TYPE": "kv_cache_type",
    "OLLAMA_FLASH_ATTENTION": "flash_attention",
}
"""Variable -> name of what it sets."""

SILENT: Final = (
    "OLLAMA_HOST", "OLLAMA_ORIGINS", "OLLAMA_MODELS", "OLLAMA_KEEP_ALIVE", "OLLAMA_LOAD_TIMEOUT", "OLLAMA_DEBUG",
    "OLLAMA_NOHISTORY", "OLLAMA_NOPRUNE", "OLLAMA_MAX_QUEUE", "OLLAMA_AUTH", "OLLAMA_REMOTES", "OLLAMA_NO_CLOUD",
    "OLLAMA_MAX_LOADED_MODELS", "OLLAMA_DEBUG_LOG_REQUESTS", "OLLAMA_EDITOR", "OLLAMA_MAX_TRANSFER_STREAMS",
    "OLLAMA_API_KEY",
)
"""Variables that change neither memory nor time of one model."""

FLAGS: Final = ("verbose", "insecure", "nowordwrap", "think", "hidethinking", "truncate", "experimental",
                "experimental-yolo", "experimental-websearch", "help")
"""Flags of `ollama run` that stand alone, or with = before their value; none changes memory [flags]."""

VALUED: Final = ("keepalive", "format", "dimensions", "width", "height", "steps", "seed", "negative", "draft")
"""Flags whose value may be the next word [flags]."""

LINES: Final = re.compile(r"^[ \t]*(FROM|PARAMETER|ADAPTER|DRAFT)[ \t]+(\S.*)$", re.IGNORECASE | re.MULTILINE)
RELEASED: Final = re.compile(r"\bollama/ollama:v?\d[\w.-]*")
QUOTED: Final = re.compile(r'"""(?:[^"]|"(?!""))*"""')

ENGINE: Final = "llama.cpp@10488"
"""The build that it fetches [server]."""

BATCH: Final = 512
"""`num_batch` [default]."""

CONTEXTS: Final = ((47 << 30, 262144), (23 << 30, 32768), (0, 4096))
"""Memory of all cards [bytes] -> `num_ctx`, up to the network's own [default]."""

LIBRARY: Final[dict[str, Any]] = networks_of("ollama")
"""What names and tags of the library stand for."""

JOINED: Final = ("falcon", "qwen", "smollm", "starcoder")
"""Families whose own names have no dash before their number."""


def read(config: Config) -> Reading:
    """Options of llama.cpp.

    Raises: SourceError where no command stands in a script
    """
    values, variables, said = _modelfile(config) if is_modelfile(config) else _command(config)
    watched = Watched(values, Known("ollama", "parameters"))
    for flag in values:
        if flag.startswith("-"):
            watched.cannot(flag, "is no flag of ollama run; OLLAMA_CONTEXT_LENGTH or --context say num_ctx")
    options: dict[str, Any] = {"engine": ENGINE} | _network(watched)
    options |= _settings(watched, options.get("model"))
    unread = [*watched.unread(), *(Unread(f"${name}") for name in variables), *said]
    if not values.get("from"):
        why = "loads what it is asked for; give MODEL, and --weights as its tag has them, q4_k_m where it has none"
        unread.append(Unread("ollama serve", why, "weights"))
    elif "context" not in options and not any(one.name == "from" for one in unread):
        why = "is 4096, 32768 or 262144 by the memory of all cards, up to the network's own; give --context"
        unread.append(Unread("num_ctx", why, "context"))
    if (image := RELEASED.search(config.text)) is not None:
        why = Note("does not say which {} is in it; give --engine {}@VERSION", "llama.cpp", "llama.cpp")
        unread.append(Unread(image[0][:60], why, "engine"))
    notes = ("Ollama starts llama.cpp's server, and is answered as that", *watched.assumed)
    contexts = () if "context" in options else CONTEXTS
    return Reading("ollama", options, unread=tuple(unread), notes=notes, contexts=contexts)


def is_modelfile(config: Config) -> bool:
    """A Modelfile by its name or its lines, and no Dockerfile."""
    text = QUOTED.sub("", config.text)
    named = config.name.lower().startswith("modelfile") or config.name.lower().endswith(".modelfile")
    lines = re.search(r"^[ \t]*(?:PARAMETER|TEMPLATE|SYSTEM|MESSAGE|ADAPTER)[ \t]", text, re.MULTILINE)
    return bool(re.search(r"^[ \t]*FROM[ \t]", text, re.MULTILINE | re.IGNORECASE) and (named or lines))


def _modelfile(config: Config) -> tuple[dict[str, Any], list[str], list[Unread]]:
    found: dict[str, Any] = {}
    for word, text in LINES.findall(QUOTED.sub("", config.text)):
        if word.upper() == "PARAMETER":
            name, value = (*text.split(None, 1), "")[:2]
            found[name.lower()] = plain(value.strip().strip('"'))
        else:  # a second FROM is a projector
            found["projector" if word.upper() == "FROM" and "from" in found else word.lower()] = text.strip()
    return found, [], []


def _command(config: Config) -> tuple[dict[str, Any], list[str], list[Unread]]:
    """`ollama run MODEL`, or `ollama serve`, with the variables that stand before it."""
    def score(words: tuple[str, ...]) -> int:
        place = _place(words)
        return 0 if place is None else 1 + (words[place + 1 : place + 2] == ("run",))

    command = command_of(config, score)
    place = _place(command.words)
    if place is None:
        raise SourceError("{}: no command that starts ollama stands in it", config.name)
    found = _of_run(command.words[place + 2 :]) if command.words[place + 1] == "run" else {}
    set_ = dict(command.variables) | dict(re.findall(r"(?:^|\s)(?:-e|--env)[ =](OLLAMA_\w+)=(\S+)", config.text))
    found |= {name: plain(set_[variable]) for variable, name in VARIABLES.items() if variable in set_}
    left = [name for name, text in set_.items()
            if name.startswith(("OLLAMA_", "LLAMA_ARG_", "GGML_")) and name not in (*VARIABLES, *SILENT) and text]
    return found, left, [*_several(config), *(one for one in command.unread if one.why in SAID)]


def _several(config: Config) -> Iterator[Unread]:
    """What is said of a script that runs several models: the server loads them beside each other."""
    commands = read_script(config.text, config.name, config.given).commands
    places = ((words, _place(words)) for words in commands)
    runs = (_of_run(words[at + 2 :]).get("from") for words, at in places if at is not None and words[at + 1] == "run")
    if len(models := list(dict.fromkeys(str(one) for one in runs if one))) > 1:
        yield Unread("ollama run", Note("loads {} models beside each other; keep one of them: {}", len(models),
                                        ", ".join(models)[:120]))


def _of_run(words: tuple[str, ...]) -> dict[str, Any]:
    """The model, a draft, and what is no flag of `ollama run`, as it is written.

    >>> _of_run(("--keepalive", "1h", "--think=high", "qwen3:8b", "--num_ctx", "4096"))
    {'from': 'qwen3:8b', '--num_ctx': '4096'}
    """
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        name, given, value = left.pop(0).partition("=")
        flag = name.lstrip("-")
        if not name.startswith("-"):
            found.setdefault("from", name + given + value)
        elif flag not in (*FLAGS, "h"):
            value = value if given or not left or left[0].startswith("-") else left.pop(0)
            found |= {"draft": value} if flag == "draft" else {} if flag in VALUED else {name: value}
    return found


def _place(words: tuple[str, ...]) -> int | None:
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "ollama" and words[place + 1 : place + 2] in (("run",), ("serve",)):
            return place
    return None


def _network(values: Watched) -> dict[str, Any]:
    """The network of a file, of a repository, or of Ollama's library, by its name and tag."""
    said = values.text("from")
    if said is None:
        return {}
    if os.path.isfile(said):  # noqa: PTH113  # a name longer than a path may be is none
        return {"model": said}
    repository = re.match(r"(?:https?://)?(?:hf\.co|huggingface\.co)/([^:]+)(?::.*)?$", said)
    if said.endswith(".gguf") or repository:
        found, why = network_of(said, repository[1] if repository else None)
    else:
        found, why = _of_library(said)
    if not found:
        values.cannot("from", why, option="model")
        return {}
    values.assumed.append(why)
    return found


def _of_library(said: str) -> tuple[dict[str, str], str]:
    """Network and storage of a name of the library, with a line that says so; without them why there are none.

    >>> _of_library("deepseek-r1:70b-llama-distill-q8_0")[0], _of_library("llama3.2")[0]
    ({'model': 'deepseek-r1-distill-llama-70b', 'weights': 'q8_0'}, {'model': 'llama-3.2-3b', 'weights': 'q4_k_m'})
    >>> _of_library("gemma2:27b")[0], _of_library("llama3.2:1b")[0]
    ({'model': 'gemma-2-27b', 'weights': 'q4_0'}, {'model': 'llama-3.2-1b', 'weights': 'q8_0'})
    >>> _of_library("qwen3-30b-a3b")[0], _of_library("qwen2.5:72b")[0]
    ({'model': 'qwen3-30b-a3b', 'weights': 'q4_k_m'}, {'model': 'qwen2.5-72b-instruct', 'weights': 'q4_k_m'})
    """
    name, _, tag = said.rpartition("/")[2].lower().partition(":")
    stored = re.search(r"-(q\d\w*|fp16|bf16|mxfp4)$", tag)
    size = tag.removesuffix(stored[0] if stored else "")
    size = LIBRARY["latest"].get(name, "") if size in ("", "latest") else size
    if not size:
        found, why = network_of(said, said)  # a network's own name says its size
        return (found, why) if found else (
            {}, "says no size; give its tag, as in llama3.1:8b, or name the model, and --weights")
    tagged = f"{name}:{size.partition('-')[0]}"
    kind = stored[1] if stored else LIBRARY["stored"].get(tagged, "q4_0" if name in LIBRARY["q4_0"].split() else "")
    name = LIBRARY["tuned"].get(name, name)
    joined = name.startswith(JOINED)
    spelt = re.sub(r"(?<=\d)(?=vl$)", "-", name) if joined else re.sub(r"(?<=[a-z])(?=\d)", "-", name)
    models = LIBRARY["models"]
    own = f"{spelt}-{size}"
    if "-" not in size and (tuned := by_name(f"{own}-instruct")) is not None:
        own = tuned.base  # a size alone is the tuned network, whose context may be another
    named = models.get(tagged) or models.get(f"{name}:{size.partition('-')[0]}", own)
    behind = f"-{kind}" if kind else ""
    found, why = network_of(f"{named}{behind}", None if kind else named)
    return found, why.replace(f"{named}{behind}", said, 1)


def _settings(values: Watched, network: Any) -> dict[str, Any]:
    """What the server is started with [server].

    Args:
        network: of the catalogue by its name, or a file
    """
    slots, batch = values.count("parallel") or 1, values.count("num_batch") or BATCH
    found: dict[str, Any] = {"concurrency": slots, "micro-batch": batch}
    if (context := values.count("num_ctx")) is not None:
        found["context"] = context
    model, layers, projector = None, values.get("num_gpu"), ["mmproj=auto"]
    if network and not os.path.isfile(network):  # noqa: PTH113  # as above
        model = load_model(network)
    if isinstance(layers, int) and layers >= 0:  # however many: `--fit` then moves none
        found["gpu-layers"] = layers
        projector += ["mmproj-offload=false"] if model is not None and layers <= model.num_layers else []
    if (flash := values.get("flash_attention")) is not None:
        found["attention"] = "flash" if flash in (True, 1) else "eager"
    if (stored := values.get("kv_cache_type")) is not None:
        kind = logged.cache_dtype(stored)
        if kind is None:
            values.refuse("kv_cache_type", "a type of ggml", option="kv-dtype")
        else:
            found |= {"kv-dtype": kind, "v-dtype": kind}
    threads = values.count("num_thread")
    pairs = [f"batch={batch}", *([f"threads={threads}"] if threads else [])]
    pairs += projector if model is None or sees(model) else []
    values.only("main_gpu", 0)
    return found | {"engine-option": tuple(pairs)}
