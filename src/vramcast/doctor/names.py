"""The model and the cards that a log means, in the catalogues' words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.catalogue.models import known_names, resolve_name
from vramcast.domain.checkpoint import Checkpoint
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.sources.logs.found import ServingLog
from vramcast.sources.resolve import HUB_ID, resolve_checkpoint

CACHED: Final = re.compile(r"models--([\w.-]{1,96}?)--([\w.-]{1,96})")
"""A model in the hub's cache on disk."""

SHARD: Final = re.compile(r"-\d{5}-of-\d{5}")
SEPARATORS: Final = re.compile(r"[^a-z0-9.]+|(?<!\d)\.|\.(?!\d)")

LEFT_OUT: Final = frozenset(
    ("instruct", "chat", "hf", "base", "it", "meta", "pretrained", "full", "gguf", "safetensors", "unsloth", "bnb",
     "awq", "gptq", "int4", "int8", "4bit", "8bit", "fp8", "fp16", "bf16", "f16", "w8a8", "w4a16", "w8a16", "dynamic",
     "quantized", "mxfp4", "nvfp4", "fp4", "ud", "imat", "i1", "mtp")
)
"""Words of a name that do not tell one network from another."""

GGUF_MIX: Final = re.compile(r"[-._](?:ud-)?(?:i?q\d\w*|tq\d_\d)$")
"""The end of a file's name that says how it is quantised."""

STORED: Final[dict[str, str]] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8-channel", "ptpc_fp8": "fp8-channel", "modelopt": "fp8", "awq": "awq-int4",
    "awq_marlin": "awq-int4", "gptq": "gptq-int4", "gptq_marlin": "gptq-int4", "bitsandbytes": "nf4", "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "w8a8_int8": "int8", "w8a8_fp8": "fp8-channel",
}
"""`quantization` of an engine -> storage format of a question."""

GGUF_TYPE: Final = re.compile(
    r"(?<![a-z0-9])(i?q\d_(?:\d|k_?[sml]?l?|x?xs|nl|[sm])|tq\d_0|bf16|f16|f32|mxfp4)(?![a-z0-9])"
    r"(?: - (small|medium|large))?"
)
GGUF_WHOLE: Final = {"f16": "fp16", "f32": "fp32"}
GGUF_SIZES: Final = {"small": "_s", "medium": "_m", "large": "_l"}

SAME_CARD: Final = 0.004
"""How far the memory a log states may lie from that of a card it means [share]."""

MOST_NAMED: Final = 5


def checkpoint_of(log: ServingLog) -> tuple[str, Checkpoint]:
    """The model of a log by a name that questions know, and what its headers say.

    Raises: InvalidSpec naming what the log says when no catalogue, path or hub has it
    """
    if not log.models:
        raise InvalidSpec(f"{log.name} does not name the model; name it: vramcast serve MODEL --reconcile ...")
    for text in log.models:
        if _exists(text):
            return text, resolve_checkpoint(text)
    exact = next((name for text in log.models for name in _exact(text) if _known(name)), None)
    if exact is not None:
        return exact, resolve_checkpoint(exact)
    for text in log.models:
        if HUB_ID.fullmatch(text):
            try:
                return text, resolve_checkpoint(text)
            except (SourceError, UnknownName):
                continue
    loose = next((name for text in log.models for name in _loose(text)), None)
    if loose is not None:
        return loose, resolve_checkpoint(loose)
    raise InvalidSpec(
        f"{log.name} loads {log.models[0][:120]!r}, which is no file here and no known model; name it: vramcast serve "
        "MODEL --reconcile ..."
    )


def _exists(text: str) -> bool:
    try:
        return Path(text).exists() and ("/" in text or "\\" in text or "." in text)
    except (OSError, ValueError):
        return False


def _known(name: str) -> bool:
    try:
        resolve_name(name)
    except UnknownName:
        return False
    return True


def _exact(text: str) -> Iterator[str]:
    """A name as it stands, as the hub's cache has it, and its last parts as a path."""
    yield text
    cached = CACHED.search(text)
    if cached is not None:
        yield f"{cached[1]}/{cached[2]}"
    parts = [part for part in re.split(r"[/\\]", text) if part]
    if len(parts) > 1:
        yield "/".join(parts[-2:])
        yield parts[-1]


def _loose(text: str) -> Iterator[str]:
    """Models whose name has the same words, without those that say how or by whom it is stored."""
    last = SHARD.sub("", re.split(r"[/\\]", text)[-1].lower().removesuffix(".gguf"))
    key = _key(GGUF_MIX.sub("", last))
    if key:
        yield from sorted({name for alias, name in known_names().items() if _key(alias.split("/")[-1]) == key})


def _key(text: str) -> str:
    words = SEPARATORS.split(text.lower())
    return "".join(word for word in words if word and word not in LEFT_OUT)


def stored_as(log: ServingLog) -> str | None:
    """The storage format that a log's words name; None where they name none.

    >>> stored_as(ServingLog(name="x", engine="llama.cpp", quantisation="Q4_K - Medium"))
    'q4_k_m'
    """
    if not (log.engine in SERVING and SERVING[log.engine].is_ggml):
        return STORED.get(log.quantisation.lower())
    for text in (log.quantisation, *log.models):
        match = GGUF_TYPE.search(text.lower())
        if match is not None:
            return GGUF_WHOLE.get(match[1], match[1] + GGUF_SIZES.get(match[2], ""))
    return None


def gpus_of(log: ServingLog, *, ranks: int) -> str:
    """The cards of a log as `--gpus` writes them.

    Raises: InvalidSpec when the log names no card, and none or several have the memory it states
    """
    for card in log.cards:
        try:
            return f"{ranks}x{load_gpu(card).name}"
        except UnknownName:
            continue
    ask = f"{log.name} does not name the cards; give --gpus, for example --gpus {ranks}x"
    if log.card_bytes is None:
        raise InvalidSpec(ask + ("h100-sxm-80gb" if not log.cards else f"... (it says {log.cards[0][:60]!r})"))
    fitting = [name for name in gpu_names() if _is_close(load_gpu(name).visible_bytes, log.card_bytes)]
    if len(fitting) == 1:
        return f"{ranks}x{fitting[0]}"
    if not fitting:
        raise InvalidSpec(f"{ask}h100-sxm-80gb (no known card has {log.card_bytes:,} bytes)")
    more = ", ..." if len(fitting) > MOST_NAMED else ""
    raise InvalidSpec(f"{ask}{fitting[0]} (as much memory have {', '.join(fitting[:MOST_NAMED])}{more})")


def _is_close(visible_bytes: int, stated_bytes: int) -> bool:
    return abs(visible_bytes / stated_bytes - 1) <= SAME_CARD


def counted(gpus: str, *, ranks: int) -> str:
    """Cards with their number: what a user leaves out is what the log's plan takes.

    >>> counted("l40s", ranks=2), counted("8xl40s", ranks=2)
    ('2xl40s', '8xl40s')
    """
    return gpus if re.match(r"\s*\d+\s*[x*×]", gpus) else f"{ranks}x{gpus}"
