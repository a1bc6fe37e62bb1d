"""Text Generation Inference's launcher, whose every argument is a variable of the environment, too.

[launcher] huggingface/text-generation-inference launcher/src/main.rs `Args`, v2.0.0 to v3.3.7
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.catalogue.formats import load_format
from vramcast.domain.serving import ServeJob
from vramcast.domain.version import read_version
from vramcast.engines.text_generation_inference import EDGE, FREELY_SINCE, IN_PLACE_SINCE, LONGEST, settings_of
from vramcast.errors import Note
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import DTYPES, PORT, SERVE, one_of_several, script_text, weights_note
from vramcast.formats.lines import Line, when
from vramcast.formats.reading import Config, Reading
from vramcast.formats.servers import Server, read_server, refuses_stored, several
from vramcast.formats.watched import Known, Watched
from vramcast.sources.logs import options

ARGUMENTS: Final = Known("tgi", "options")

TARGETS: Final[dict[str, options.Target]] = {
    "num_shard": ("tp", int),
    "max_total_tokens": ("context", int),
    "max_batch_prefill_tokens": ("batched-tokens", int),
    "max_batch_size": ("max-sequences", int),
    "cuda_memory_fraction": ("memory-fraction", float),
    "dtype": ("dtype", options.dtype),
    "kv_cache_dtype": ("kv-dtype", options.cache_dtype),
}
"""Argument of the launcher -> option of a question, and how its value is read."""

MADE: Final = {"bitsandbytes": "int8-bnb", "bitsandbytes-nf4": "nf4", "bitsandbytes-fp4": "nf4", "eetq": "int8",
               "fp8": "fp8"}
STORED: Final = ("awq", "gptq", "marlin", "compressed-tensors")
"""`quantize` -> what weights are packed to while they load; those that are stored so, which the checkpoint says."""


def _own(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    method = values.text("quantize")
    if method in MADE:
        found["weights"] = MADE[method]
    elif refuses_stored(values, "quantize", [text for text in (values.text("model_id"),) if text]):
        pass  # the launcher ends where weights are not stored so
    elif method is not None and method not in STORED:
        values.cannot("quantize", "{} is not modelled; --weights names what is", method[:30], option="weights")
    if values.flag("sharded") is False:
        found["tp"] = 1
    for name in ("max_input_tokens", "max_input_length"):
        if (prompt := values.count(name)) and values.count("max_batch_prefill_tokens") is None:
            found["input"] = prompt
    if tokens := values.whole("speculate"):
        found |= {"draft": "ngram", "draft-tokens": tokens}
        values.assumed.append("speculate: n-grams propose, as they do where the network has no heads of its own")
    sizes = [size for size in several(values.get("cuda_graphs", [])) if isinstance(size, int) and size > 0]
    if values.get("cuda_graphs") is not None:
        found |= {"engine-option": (f"largest-graph={max(sizes)}",)} if sizes else {"graphs": False}
    for name in ("lora_adapters", "rope_scaling", "rope_factor"):
        values.must_be_unset(name)
    return found


SHORT: Final = {"p": "port", "e": "env"}

SERVER: Final = Server(
    "tgi", ARGUMENTS, TARGETS, SHORT,
    start=re.compile(r"(?:\S*/)?text-generation-launcher"),
    image=re.compile(r"text-generation-inference(?::v?(\d[\w.]*)|-cu\d+\.(\d+-\d+))"),  # Google's own says 2-3
    own=_own, slots=0,
    arguments={name.upper(): name for name in load_format("tgi").sections["options"]},
)


def read(config: Config) -> Reading:
    """Options of the launcher, and what the version makes of what nobody says."""
    reading = read_server(config, SERVER)
    given = dict(reading.options)
    prompt, notes = given.pop("input", None), list(reading.notes)
    version = read_version(str(given["engine"]).partition("@")[2]) or FREELY_SINCE
    if version < FREELY_SINCE and "context" not in given:
        given["context"] = LONGEST
        notes.append(Note("max_total_tokens is not given: {}, as versions before 3.0 have it", LONGEST))
    if version < IN_PLACE_SINCE and prompt is not None:
        given["batched-tokens"] = prompt + EDGE
        notes.append(Note("max_batch_prefill_tokens is not given: {}, as versions before 2.4 have it", prompt + EDGE))
    return reading._replace(options=given, notes=tuple(notes))


def write(order: Order) -> tuple[File, ...]:
    """`text-generation-launcher` with every setting of the plan."""
    job: ServeJob = order.job
    ask, settings = order.ask, settings_of(order.job)
    ask.also("context", "concurrency", "input_len", "output_len", "images", "image_size", "prefix_caching",
             "batched_tokens", "memory_fraction", "option.wiggle-room", "option.largest-graph", "pp", "dp")
    made = {stored: name for name, stored in reversed(MADE.items())}
    kept = {"auto": None, "fp8_e5m2": "fp8_e5m2"}.get(ask("kv_dtype"), "fp8_e4m3fn")
    lines = (
        Line("model-id", hub_id(job.model)),
        Line("num-shard", ask("tp"), "ranks that divide every layer"),
        Line("max-total-tokens", job.context, "longest sequence, prompt and answer"),
        Line("max-input-tokens", job.requests.input_len or job.context - 1, "longest prompt"),
        Line("max-batch-prefill-tokens", settings.tokens, "tokens of one prefill"),
        Line("cuda-memory-fraction", settings.fraction, "share of the card"),
        Line("cuda-graphs", ",".join(map(str, settings.graphs)) if ask("graphs") and settings.graphs else 0),
        Line("max-batch-size", ask("max_sequences"), "sequences at once"),
        Line("dtype", DTYPES.get(ask("dtype") or "")),
        Line("kv-cache-dtype", kept),
        Line("quantize", made.get(ask("weights") or ""), "made while the checkpoint loads"),
        *when(ask("draft.kind"), Line("speculate", ask("draft.tokens"), "tokens that n-grams propose")),
        Line("hostname", "0.0.0.0"), Line("port", PORT),
    )
    notes = (*weights_note(order), *one_of_several(order, SERVE))
    text = script_text(order, "text-generation-launcher", lines)
    return (order.file(SERVE, text, (Part("tgi", "options"),), notes, executable=True),)
