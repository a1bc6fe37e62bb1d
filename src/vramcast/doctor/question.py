"""From a log to the question it answers: its model and cards in the catalogues' words, under what a user gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.catalogue.index import MODELS
from vramcast.domain.failure import Remark
from vramcast.domain.model import Checkpoint
from vramcast.domain.serving import ServeJob, Version
from vramcast.domain.version import version_text
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.serving import build_serving, parse_engine
from vramcast.sources.logs.wording import ServingLog
from vramcast.sources.resolve import HUB_ID, resolve_checkpoint
from vramcast.units import format_bytes

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

SAME_MEMORY: Final = 0.004
"""How far the memory a log states may lie from that of a card it means [share]."""

MOST_NAMED: Final = 5


def checkpoint_of(log: ServingLog) -> tuple[str, Checkpoint]:
    """The model of a log by a name that questions know, and what its headers say.

    Raises: InvalidSpec naming what the log says when no catalogue, path or hub has it
    """
    if not log.models:
        raise InvalidSpec("{} does not name the model; name it: vramcast serve MODEL --reconcile ...", log.name)
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
        "{} loads {!r}, which is no file here and no known model; name it: vramcast serve MODEL --reconcile ...",
        log.name, log.models[0][:120]
    )


def _exists(text: str) -> bool:
    try:
        return Path(text).exists() and ("/" in text or "\\" in text or "." in text)
    except (OSError, ValueError):
        return False


def _known(name: str) -> bool:
    try:
        MODELS.resolve(name)
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
        yield from sorted({name for alias, name in MODELS.aliases.items() if _key(alias.split("/")[-1]) == key})


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
        except (UnknownName, InvalidSpec):  # none is called so, or several
            continue
    example = f"{ranks}xh100-sxm-80gb"
    if log.card_bytes is None and not log.cards:
        raise InvalidSpec("{} does not name the cards; give --gpus, for example --gpus {}", log.name, example)
    if log.card_bytes is None:
        raise InvalidSpec(
            "{} does not name the cards; give --gpus, for example --gpus {} (it says {!r})",
            log.name, f"{ranks}x...", log.cards[0][:60]
        )
    fitting = [name for name in gpu_names() if _is_close(load_gpu(name).visible_bytes, log.card_bytes)]
    if len(fitting) == 1:
        return f"{ranks}x{fitting[0]}"
    if not fitting:
        raise InvalidSpec(
            "{} does not name the cards; give --gpus, for example --gpus {} (no known card has {:,} bytes)",
            log.name, example, log.card_bytes
        )
    more = ", ..." if len(fitting) > MOST_NAMED else ""
    raise InvalidSpec(
        "{} does not name the cards; give --gpus, for example --gpus {} (as much memory have {})",
        log.name, f"{ranks}x{fitting[0]}", ", ".join(fitting[:MOST_NAMED]) + more
    )


def _is_close(visible_bytes: int, stated_bytes: int) -> bool:
    return abs(visible_bytes / stated_bytes - 1) <= SAME_MEMORY


def counted(gpus: str, *, ranks: int) -> str:
    """Cards with their number: what a user leaves out is what the log's plan takes.

    >>> counted("l40s", ranks=2), counted("8xl40s", ranks=2)
    ('2xl40s', '8xl40s')
    """
    return gpus if re.match(r"\s*\d+\s*[x*×]", gpus) else f"{ranks}x{gpus}"


ONLINE: Final = ("fp8", "bitsandbytes")
"""Quantisations that engines apply to whole checkpoints while they load them."""

SAME_CARD: Final = 0.03
"""How far a card's stated memory may lie from the catalogue's before it must be another card [share]."""


class Question(NamedTuple):
    """A job, and what is worth knowing about how it came to be."""

    job: ServeJob
    remarks: tuple[Remark, ...]


def question_of(log: ServingLog, given: Mapping[str, Any]) -> Question:
    """The serving job of a log; options that are given win.

    Raises: InvalidSpec that names the option to give where the log does not say
    """
    given = {name: value for name, value in given.items() if value is not None}
    engine, version, remarks = _engine(log, given.get("engine"))
    options: dict[str, Any] = {**log.options, **given, "engine": f"{engine}@{version_text(version)}"}
    pairs = (*log.options.get("engine-option", ()), *given.get("engine-option", ()))
    if pairs:
        options["engine-option"] = pairs
    _without_orphans(options)
    name, checkpoint = _checkpoint(log, given.get("model"))
    options["model"] = name
    stored = stored_as(log)
    if "weights" not in options and stored is not None and _says_how(log, checkpoint):
        options["weights"] = stored
    _with_unsaid_degree(log, options)
    ranks = _ranks(log, options)
    gpus = given.get("gpus")
    options["gpus"] = gpus_of(log, ranks=ranks) if gpus is None else counted(str(gpus), ranks=ranks)
    job = build_serving(
        options, resolve=lambda text: checkpoint if text == name else resolve_checkpoint(text)
    )
    assert isinstance(job, ServeJob)  # no log of a pipeline's engine is read
    job, more = _on_stated_card(job, log)
    return Question(job, (*remarks, *more, *_assumed(log, gpus=gpus, options=options)))


def _engine(log: ServingLog, given: Any) -> tuple[str, Version, tuple[Remark, ...]]:
    """The engine and the version that is modelled nearest to the log's."""
    if given is not None:
        engine, version = parse_engine(str(given))
        if engine != log.engine:
            raise InvalidSpec("--engine {} contradicts {}, which is a log of {}", given, log.name, log.engine)
        if "@" in str(given) or not log.version:
            return engine, version, ()
    if log.engine not in SERVING:
        raise UnknownName.of("serving engine", log.engine, SERVING)
    known = SERVING[log.engine]
    if not log.version:
        shown = ".".join(map(str, known.default))
        return log.engine, known.default, (Remark(key="version_unknown", values={"version": shown}),)
    version = version_of(log.version)
    if version[: len(known.newest)] > known.newest:
        shown = ".".join(map(str, known.newest))
        values = {"version": log.version, "newest": shown, "engine": log.engine}
        return log.engine, known.newest, (Remark(key="version_newer", values=values),)
    return log.engine, version, ()


def version_of(text: str) -> Version:
    """The release that a version belongs to.

    >>> version_of("0.11.1rc2.dev123+g1a2b3c"), version_of("0.6.4.post1"), version_of("5200")
    ((0, 11, 1), (0, 6, 4), (5200,))
    """
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits[:9]))
        if digits != part:
            break
    return tuple(numbers[:3]) or (0,)


def _without_orphans(options: dict[str, Any]) -> None:
    """Leave out what only makes sense beside another option that a user has taken away."""
    if "draft" not in options:
        options.pop("draft-tokens", None)


def _with_unsaid_degree(log: ServingLog, options: dict[str, Any]) -> None:
    """Tensor parallelism where the arguments leave it out: what the ranks that spoke make of it, else the default."""
    if log.over_devices or "tp" in options:
        return
    others = max(1, options.get("pp", 1)) * max(1, options.get("dp", 1))
    if len(log.ranks) > others or log.models:
        options["tp"] = max(1, len(log.ranks) // others)


def _checkpoint(log: ServingLog, given: Any) -> tuple[str, Checkpoint]:
    if given is None:
        return checkpoint_of(log)
    return str(given), resolve_checkpoint(str(given))


def _says_how(log: ServingLog, checkpoint: Checkpoint) -> bool:
    """Whether the log knows better than the checkpoint how weights are stored on the card."""
    if SERVING[log.engine].is_ggml:
        return checkpoint.weights is None
    if checkpoint.model.quantisation is not None:
        return False
    return checkpoint.weights is None or log.quantisation.lower() in ONLINE


def _ranks(log: ServingLog, options: Mapping[str, Any]) -> int:
    """Cards that the plan takes."""
    if log.over_devices:
        return max(1, len(log.ranks))
    degrees = [options.get(name, 1) for name in ("tp", "pp", "dp")]
    product = 1
    for degree in degrees:
        product *= degree if isinstance(degree, int) and degree > 0 else 1
    return product


def _on_stated_card(job: ServeJob, log: ServingLog) -> tuple[ServeJob, tuple[Remark, ...]]:
    """The job on a card of just the memory that the log states, unless that is another card."""
    gpu = job.cluster.gpu
    if log.card_bytes is None:
        return job, ()
    if abs(log.card_bytes / gpu.visible_bytes - 1) > SAME_CARD:
        values = {"stated": format_bytes(log.card_bytes), "gpu": gpu.name, "visible": format_bytes(gpu.visible_bytes)}
        return job, (Remark(key="other_card", values=values),)
    cluster = replace(job.cluster, gpu=replace(gpu, visible_bytes=log.card_bytes))
    return replace(job, cluster=cluster), ()


def _assumed(log: ServingLog, *, gpus: Any, options: Mapping[str, Any]) -> Iterator[Remark]:
    if gpus is None and not log.cards:
        yield Remark(key="card_by_memory", values={"gpus": str(options["gpus"])})
    if log.startups > 1:
        yield Remark(key="last_of_startups", values={"count": str(log.startups)})
    if log.cut:
        yield Remark(key="log_cut")
    if log.quantisation and "weights" not in options and stored_as(log) is None:
        yield Remark(key="storage_unknown", values={"quantisation": log.quantisation[:60]})
