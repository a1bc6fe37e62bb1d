"""Containers: what an image starts by itself, the cards that it is given, and `docker run`.

[vllm] vllm-project/vllm docker/Dockerfile, target vllm-openai; [llama.cpp] ggml-org/llama.cpp .devops/cuda.Dockerfile;
[tgi] huggingface/text-generation-inference Dockerfile; [ollama] ollama/ollama Dockerfile; [docker] docker/cli
cli/command/container/opts.go
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

ENTRIES: Final[tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]] = (
    (re.compile(r"(?:.*/)?vllm-(?:openai(?:-\w+)?|tpu|xpu)(?:[:@].*)?"), ("vllm", "serve")),
    (re.compile(r"(?:.*/)?llama\.cpp:server.*"), ("llama-server",)),
    (re.compile(r"(?:.*/)?llama\.cpp:light.*"), ("llama-cli",)),
    (re.compile(r"(?:.*/)?(?:huggingface-text-generation-inference-cu.*|text-generation-inference(?:[:@].*)?)"),
     ("text-generation-launcher",)),
    (re.compile(r"(?:.*/)?ollama/ollama(?:[:@].*)?"), ("ollama",)),
)
"""Image -> the words that its own entry point puts before a container's arguments; others start a shell or nothing."""

FULL: Final = re.compile(r"(?:.*/)?llama\.cpp:full.*")
DISPATCHED: Final = {"--server": "llama-server", "-s": "llama-server", "--run": "llama-cli", "-r": "llama-cli",
                     "--run-legacy": "llama-completion", "-l": "llama-completion", "--bench": "llama-bench",
                     "-b": "llama-bench", "--quantize": "llama-quantize", "-q": "llama-quantize"}
"""First argument of the image that has them all -> the program it starts [ggml-org/llama.cpp .devops/tools.sh]."""

RUNNERS: Final = ("docker", "podman", "nerdctl")

FLAGS: Final = frozenset((
    "rm", "detach", "interactive", "tty", "privileged", "init", "publish-all", "read-only", "no-healthcheck", "quiet",
    "oom-kill-disable", "sig-proxy", "disable-content-trust", "use-api-socket", "d", "i", "t", "P", "q", "replace",
))
"""Options of `docker run` that take no word."""

VISIBLE: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                  "ASCEND_RT_VISIBLE_DEVICES")
"""Variables that say which cards a process sees."""


class Container(NamedTuple):
    """One container."""

    image: str
    words: tuple[str, ...]  # what runs in it
    environment: Mapping[str, str] = {}
    cards: int | None = None  # that it is given; None: all, or nobody says
    files: tuple[str, ...] = ()  # of `--env-file`


def started(image: str, command: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The words that run in a container.

    Args:
        image: its name
        command: what stands in place of the image's entry point
        arguments: what stands behind it

    >>> started("vllm/vllm-openai:v0.10.0", (), ("--model", "m"))
    ('vllm', 'serve', '--model', 'm')
    >>> started("vllm/vllm-openai", (), ("vllm", "serve", "m")), started("lmsysorg/sglang", (), ("sglang", "serve"))
    (('vllm', 'serve', 'm'), ('sglang', 'serve'))
    >>> started("ollama/ollama:latest", (), ())
    ('ollama', 'serve')
    >>> started("ghcr.io/ggml-org/llama.cpp:full-cuda", (), ("--server", "-c", "512"))
    ('llama-server', '-c', '512')
    """
    words = (*command, *arguments)
    if command:
        return words
    if words and words[0] in DISPATCHED and FULL.fullmatch(image[:300]):
        return (DISPATCHED[words[0]], *words[1:])
    entry = next((entry for pattern, entry in ENTRIES if pattern.fullmatch(image[:300])), ())
    if entry == ("ollama",) and not words:
        return ("ollama", "serve")  # the image's CMD
    return words if words[: len(entry)] == entry else (*entry, *words)


def docker_run(words: Sequence[str]) -> Container | None:
    """The container of a `docker run`; None for every other command.

    >>> docker_run(("docker", "run", "--gpus", "2", "-e", "A=1", "vllm/vllm-openai:v0.9.0", "--model", "m")).words
    ('vllm', 'serve', '--model', 'm')
    """
    place = next((place for place, word in enumerate(words[:8]) if word.rpartition("/")[2] in RUNNERS), None)
    if place is None or "run" not in words[place + 1 : place + 3]:
        return None
    begin = words.index("run", place) + 1
    given, image_at = _options(words, begin)
    if image_at >= len(words):
        return None
    environment: dict[str, str] = {}
    for name, value in given:
        if name in ("e", "env"):
            variable, equals, text = value.partition("=")
            environment |= {variable: text} if equals else {}
    entry = next((value for name, value in given if name == "entrypoint"), None)
    command = entry.split() if entry else ()
    image, files = words[image_at], tuple(value for name, value in given if name == "env-file")
    inside = started(image, command, words[image_at + 1 :])
    return Container(image, inside, environment, _cards(given, environment), files)


def _options(words: Sequence[str], place: int) -> tuple[list[tuple[str, str]], int]:
    """Options with their values, and where the image stands."""
    found = []
    while place < len(words) and words[place].startswith("-"):
        name, equals, value = words[place].lstrip("-").partition("=")
        single = not words[place].startswith("--")
        place += 1
        if single and len(name) > 1 and not set(name) <= set("ditPq"):
            name, value, equals = name[0], name[1:] + equals + value, "="
        if not equals and name not in FLAGS and not (single and set(name) <= set("ditPq")):
            value = words[place] if place < len(words) else ""
            place += 1
        found.append((name, value))
    return found, place


def _cards(given: Sequence[tuple[str, str]], environment: Mapping[str, str]) -> int | None:
    counts = [count for name, value in given if name == "gpus" and (count := _of_request(value)) is not None]
    return min((*counts, *visible(environment)), default=None)


def _of_request(text: str) -> int | None:
    """Cards of `--gpus`.

    >>> _of_request("all"), _of_request("2"), _of_request('"device=0,3"'), _of_request("count=4,capabilities=gpu")
    (None, 2, 2, 4)
    """
    text = text.strip("'\" ")
    if text.isdecimal() and len(text) < 4:
        return int(text)
    if (count := re.search(r"count=(\d{1,3})", text)) is not None:
        return int(count[1])
    devices = re.search(r"device=([\w,:-]+)", text)
    return len(devices[1].strip(",").split(",")) if devices is not None else None


def visible(environment: Mapping[str, str]) -> Iterator[int]:
    """Cards that variables let a process see, one number for each that names them."""
    for name in VISIBLE:
        value = environment.get(name, "").strip("'\" ")
        if re.fullmatch(r"[\d,]+|(?:GPU-[\w-]+,?)+", value):
            yield len(value.strip(",").split(","))
