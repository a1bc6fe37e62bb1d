"""Ollama: a Modelfile, and `ollama run` or `ollama serve` with the variables of its environment.

It starts llama.cpp's server, so its question is one about llama.cpp.

[server] ollama/ollama llm/llama_server.go at fb307609: `-c num_ctx*parallel -np parallel -b num_batch -ub num_batch`,
`--mmproj` with the projector of the model or beside it, `--no-mmproj-offload` where layers are left to the host;
LLAMA_CPP_VERSION: build 10488
[default] server/routes.go: num_ctx by the memory of all cards; api/types.go `DefaultOptions`; envconfig/config.go
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from vramcast.catalogue.models import load_model
from vramcast.engines.serving.requests import sees
from vramcast.errors import SourceError
from vramcast.formats.reading import Config, Reading, Unread, command_of, plain
from vramcast.formats.tools.llamacpp import ALL_LAYERS, network_of
from vramcast.formats.watched import Watched
from vramcast.sources.logs import options as logged

VARIABLES: Final = {
    "OLLAMA_CONTEXT_LENGTH": "num_ctx", "OLLAMA_NUM_PARALLEL": "parallel", "OLLAMA_KV_CACHE_TYPE": "kv_cache_type",
    "OLLAMA_FLASH_ATTENTION": "flash_attention",
}
"""Variable -> name of what it sets."""

SILENT: Final = (
    "OLLAMA_HOST", "OLLAMA_ORIGINS", "OLLAMA_MODELS", "OLLAMA_KEEP_ALIVE", "OLLAMA_LOAD_TIMEOUT", "OLLAMA_DEBUG",
    "OLLAMA_NOHISTORY", "OLLAMA_NOPRUNE", "OLLAMA_MAX_QUEUE", "OLLAMA_AUTH", "OLLAMA_REMOTES", "OLLAMA_NO_CLOUD",
    "OLLAMA_DEBUG_LOG_REQUESTS", "OLLAMA_EDITOR", "OLLAMA_MAX_TRANSFER_STREAMS", "OLLAMA_API_KEY",
)
"""Variables that change neither memory nor time of one model."""

DRAWN: Final = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "seed", "stop", "num_predict", "num_keep", "mirostat", "mirostat_eta", "mirostat_tau",
    "penalize_newline", "tfs_z", "use_mmap", "use_mlock", "numa",
)
"""Parameters that say how tokens are drawn, or where the file lies on the host."""

LINES: Final = re.compile(r"^[ \t]*(FROM|PARAMETER|ADAPTER|DRAFT)[ \t]+(\S.*)$", re.IGNORECASE | re.MULTILINE)
QUOTED: Final = re.compile(r'"""(?:[^"]|"(?!""))*"""')

ENGINE: Final = "llama.cpp@10488"
"""The build that it fetches [server]."""

BATCH: Final = 512
"""`num_batch` [default]."""

CONTEXTS: Final = ((47 << 30, 262144), (23 << 30, 32768), (0, 4096))
"""Memory of all cards [bytes] -> `num_ctx`, up to the network's own [default]."""

SIZES: Final = {
    "athene-v2": "72b", "codegemma": "7b", "codellama": "7b", "codeqwen": "7b", "codestral": "22b", "cogito": "8b",
    "command-r": "35b", "command-r-plus": "104b", "command-r7b": "7b", "deepscaler": "1.5b", "deepseek-coder": "1.3b",
    "deepseek-coder-v2": "16b", "deepseek-r1": "8b", "deepseek-v3": "671b", "deepseek-v3.1": "671b", "devstral": "24b",
    "dolphin-llama3": "8b", "dolphin-mistral": "7b", "dolphin-mixtral": "8x7b", "dolphin3": "8b", "falcon": "7b",
    "falcon3": "7b", "gemma": "7b", "gemma2": "9b", "gemma3": "4b", "gemma4": "e4b", "gpt-oss": "20b",
    "granite3.3": "8b", "hermes3": "8b", "llama-guard3": "8b", "llama2": "7b", "llama3": "8b", "llama3.1": "8b",
    "llama3.2": "3b", "llama3.2-vision": "11b", "llama3.3": "70b", "llama4": "16x17b", "llava": "7b",
    "magistral": "24b", "ministral-3": "8b", "mistral": "7b", "mistral-nemo": "12b", "mistral-small": "24b",
    "mistral-small3.1": "24b", "mistral-small3.2": "24b", "mixtral": "8x7b", "nemotron": "70b", "olmo2": "7b",
    "openthinker": "7b", "phi": "2.7b", "phi3": "3.8b", "phi3.5": "3.8b", "phi4": "14b", "phi4-mini": "3.8b",
    "phi4-reasoning": "14b", "qwen": "4b", "qwen2": "7b", "qwen2.5": "7b", "qwen2.5-coder": "7b", "qwen2.5vl": "7b",
    "qwen3": "8b", "qwen3-coder": "30b", "qwen3-embedding": "8b", "qwen3-next": "80b", "qwen3-vl": "8b",
    "qwen3.5": "9b", "qwq": "32b", "smollm2": "1.7b", "solar": "10.7b", "starcoder2": "3b", "tinyllama": "1.1b",
    "tulu3": "8b", "vicuna": "7b", "wizardlm2": "7b", "yi": "6b", "zephyr": "7b",
}
"""Name of the library -> size of its tag `latest` [ollama.com/library, 2025-12]."""

JOINED: Final = ("falcon", "qwen", "smollm", "starcoder")
"""Families whose own names have no dash before their number."""

TUNED: Final = {
    "athene-v2": "qwen2.5", "dolphin-llama3": "llama3", "dolphin-mistral": "mistral", "dolphin-mixtral": "mixtral",
    "dolphin3": "llama3.1", "hermes3": "llama3.1", "llama-guard3": "llama3.1", "llama2-uncensored": "llama2",
    "llama3-chatqa": "llama3", "llama3-gradient": "llama3", "nemotron": "llama3.1", "openthinker": "qwen2.5",
    "phi4-mini-reasoning": "phi4-mini", "phi4-reasoning": "phi4", "qwen": "qwen1.5", "qwen2-math": "qwen2",
    "tulu3": "llama3.1", "wizardlm2": "mistral",
}
"""Name of the library -> the one whose network it has, further trained [the models' own cards]."""

DISTILLED: Final = "deepseek-r1-distill"
NAMED: Final = {
    "deepseek-coder-v2:16b": "deepseek-coder-v2-lite", "deepseek-r1:1.5b": f"{DISTILLED}-qwen-1.5b",
    "deepseek-r1:7b": f"{DISTILLED}-qwen-7b", "deepseek-r1:8b": "deepseek-r1-0528-qwen3-8b",
    "deepseek-r1:14b": f"{DISTILLED}-qwen-14b", "deepseek-r1:32b": f"{DISTILLED}-qwen-32b",
    "deepseek-r1:70b": f"{DISTILLED}-llama-70b", "deepseek-r1:671b": "deepseek-r1", "deepseek-v3:671b": "deepseek-v3",
    "devstral:24b": "devstral-small-2507", "gemma4:26b": "gemma-4-26b-a4b", "phi3:14b": "phi-3-medium",
    "llama3.2-vision:11b": "llama-3.2-11b-vision", "llama3.2-vision:90b": "llama-3.2-90b-vision",
    "llama4:16x17b": "llama-4-scout", "llama4:128x17b": "llama-4-maverick", "llava:7b": "llava-v1.6-mistral-7b",
    "llava:13b": "llava-v1.6-vicuna-13b", "llava:34b": "llava-v1.6-34b",
    "qwen3-vl:30b": "qwen3-vl-30b-a3b", "qwen3-vl:235b": "qwen3-vl-235b-a22b", "qwen3.5:35b": "qwen3.5-35b-a3b",
    "qwen3.5:122b": "qwen3.5-122b-a10b", "phi4-mini:3.8b": "phi-4-mini", "qwen3:30b": "qwen3-30b-a3b",
    "qwen3:235b": "qwen3-235b-a22b", "qwen3-coder:30b": "qwen3-coder-30b-a3b",
    "qwen3-coder:480b": "qwen3-coder-480b-a35b",
    "codeqwen:7b": "codeqwen1.5-7b", "cogito:3b": "llama-3.2-3b", "cogito:8b": "llama-3.1-8b",
    "cogito:14b": "qwen2.5-14b", "cogito:32b": "qwen2.5-32b", "cogito:70b": "llama-3.1-70b",
    "command-r7b:7b": "command-r7b", "deepscaler:1.5b": "qwen2.5-1.5b", "deepseek-v3.1:671b": "deepseek-v3",
    "hermes3:3b": "llama-3.2-3b", "llama3.2:1b": "llama-3.2-1b", "magistral:24b": "devstral-small-2507",
    "mistral-small:22b": "mistral-small-22b", "phi:2.7b": "phi-2", "phi3.5:3.8b": "phi-3.5-mini",
    "qwen3-next:80b": "qwen3-next-80b-a3b", "nemotron-3-nano:30b": "nemotron-3-nano-30b-a3b",
    "wizardlm2:8x22b": "mixtral-8x22b",
}
"""Name and size of the library -> network, where the one does not spell the other [ollama.com/library, 2025-12]."""

OLD: Final = frozenset({
    "codegemma", "codellama", "codeqwen", "codestral", "deepseek-coder", "deepseek-coder-v2", "dolphin-llama3",
    "dolphin-mistral", "dolphin-mixtral", "falcon", "gemma", "gemma2", "hermes3", "llama2", "llama2-uncensored",
    "llama3", "llama3-chatqa", "llama3-gradient", "llava", "mistral-nemo", "mixtral", "phi", "phi3", "phi3.5", "qwen",
    "qwen2", "qwen2-math", "solar", "starcoder2", "tinyllama", "vicuna", "wizardlm2", "yi", "zephyr",
})
"""Names whose tags without a storage are q4_0, as all were before August 2024; the later ones are q4_k_m
[ollama.com/library, 2025-12: gemma2:9b 5.4 GB, mixtral:8x7b 26 GB, qwen2:7b 4.4 GB, where q4_k_m takes 5.8, 28, 4.7].
"""

STORED: Final = {"llama3.2:1b": "q8_0", "mistral-small:22b": "q4_0", "smollm2:1.7b": "q8_0"}
"""Name and size -> storage, where it is neither [as above: 1.3, 13, 1.8 GB]."""


def read(config: Config) -> Reading:
    """Options of llama.cpp.

    Raises: SourceError where no command stands in a script
    """
    values, variables = _modelfile(config) if is_modelfile(config) else _command(config)
    watched = Watched(values)
    options: dict[str, Any] = {"engine": ENGINE} | _network(watched)
    options |= _settings(watched, options.get("model"))
    watched.ignore(*DRAWN)
    unread = [*watched.unread(), *(Unread(f"${name}") for name in variables)]
    if "context" not in options and not any(one.name == "from" for one in unread):
        why = "is 4096, 32768 or 262144 by the memory of all cards, up to the network's own; give --context"
        unread.append(Unread("num_ctx", why, "context"))
    notes = ("Ollama starts llama.cpp's server, and is answered as that", *watched.assumed)
    contexts = () if "context" in options else CONTEXTS
    return Reading("ollama", options, unread=tuple(unread), notes=notes, contexts=contexts)


def is_modelfile(config: Config) -> bool:
    """A Modelfile by its name or its lines, and no Dockerfile."""
    text = QUOTED.sub("", config.text)
    named = config.name.lower().startswith("modelfile") or config.name.lower().endswith(".modelfile")
    lines = re.search(r"^[ \t]*(?:PARAMETER|TEMPLATE|SYSTEM|MESSAGE|ADAPTER)[ \t]", text, re.MULTILINE)
    return bool(re.search(r"^[ \t]*FROM[ \t]", text, re.MULTILINE | re.IGNORECASE) and (named or lines))


def _modelfile(config: Config) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    for word, text in LINES.findall(QUOTED.sub("", config.text)):
        if word.upper() == "PARAMETER":
            name, _, value = text.strip().partition(" ")
            found[name.lower()] = plain(value.strip().strip('"'))
        else:  # a second FROM is a projector
            found["projector" if word.upper() == "FROM" and "from" in found else word.lower()] = text.strip()
    return found, []


def _command(config: Config) -> tuple[dict[str, Any], list[str]]:
    """`ollama run MODEL`, or `ollama serve`, with the variables that stand before it."""
    def score(words: tuple[str, ...]) -> int:
        place = _place(words)
        return 0 if place is None else 1 + (words[place + 1 : place + 2] == ("run",))

    command = command_of(config, score)
    place = _place(command.words)
    if place is None:
        raise SourceError("{}: no command that starts ollama stands in it", config.name)
    behind = command.words[place + 2 :]
    found: dict[str, Any] = {}
    if command.words[place + 1] == "run" and (named := [word for word in behind if not word.startswith("-")]):
        found["from"] = named[0]
    set_ = dict(command.variables) | dict(re.findall(r"(?:^|\s)(?:-e|--env)[ =](OLLAMA_\w+)=(\S+)", config.text))
    found |= {name: plain(set_[variable]) for variable, name in VARIABLES.items() if variable in set_}
    left = [name for name, text in set_.items()
            if name.startswith(("OLLAMA_", "LLAMA_ARG_", "GGML_")) and name not in (*VARIABLES, *SILENT) and text]
    return found, left


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
    """
    name, _, tag = said.rpartition("/")[2].lower().partition(":")
    stored = re.search(r"-(q\d\w*|fp16|bf16|mxfp4)$", tag)
    size = tag.removesuffix(stored[0] if stored else "")
    size = SIZES.get(name, "") if size in ("", "latest") else size
    if not size:
        return {}, "says no size; give its tag, as in llama3.1:8b, or name the model, and --weights"
    tagged = f"{name}:{size.partition('-')[0]}"
    kind = stored[1] if stored else STORED.get(tagged, "q4_0" if name in OLD else "")
    name = TUNED.get(name, name)
    joined = name.startswith(JOINED)
    spelt = re.sub(r"(?<=\d)(?=vl$)", "-", name) if joined else re.sub(r"(?<=[a-z])(?=\d)", "-", name)
    named = NAMED.get(tagged) or NAMED.get(f"{name}:{size.partition('-')[0]}", f"{spelt}-{size}")
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
    if isinstance(layers, int) and 0 <= layers < ALL_LAYERS:
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
