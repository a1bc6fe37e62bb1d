"""Start-up logs of llama.cpp and ik_llama.cpp: buffers per device, beside those of the same settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from statistics import median
from typing import Any, Final, NamedTuple

from truth.contract import Prediction, Refused
from truth.rows.names import UNSTATED_CARD, model_of
from truth.rows.serving.common import gpu_of, noted, value_of
from vramcast.blocks.parameters.model import named_parameters
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.model import Attention, Model, MoE, MultiLatentAttention
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.llamacpp.context import Context, weight_bytes, weights_on
from vramcast.estimate.serving import answer
from vramcast.states.ggml import known_mix
from vramcast.units import GB, GIB, MIB

Row = dict[str, Any]

BUFFER: Final = re.compile(r"'(CUDA\d+|CUDA_Host|CUDA_Split|CPU\w*|AMX)': ([\d.]+)")
SIZES: Final = re.compile(r"'(n_\w+)': '(\d+)'")
FILE: Final = re.compile(r"([\d.]+) GiB \(")
BITS: Final = re.compile(r"\(([\d.]+) BPW\)")
CACHE_TYPE: Final = re.compile(r"(?:K|c\^KV|K\^R) \((\w+)\)")
VALUE_TYPE: Final = re.compile(r"(?:V|kv\^T) \((\w+)\)")

UNEVEN: Final = 0.5
"""A card with less of what the middle one holds: weights were moved by -ot, which goes with builds without copies."""

LISTED: Final = (0.9, 1.1)
"""Share of its file that a complete list of buffers has: mapped files are listed whole beside what cards copied; of a
file in parts some rows keep the last line."""

UNIFORM: Final = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.5625}
"""Bits of a weight of files that hold nothing smaller."""

DEFAULT_BUILDS: Final = {"ik_llama.cpp": 3750, "llama.cpp": 5600}
"""Where a log names no build: spring 2025, when the two engines' logs of this form were written."""

DEFAULT_CONTEXT: Final = 4096
"""llama.cpp's -c 0 means as trained; loaders that print none are taken at this."""

WHOLE_PROCESS: Final = ("total_gpu_mib", "peak_vram_gb_self_reported")
"""Quantities that the card matters for."""


class Logged(NamedTuple):
    """What a row's notes say of the buffers the weights went to [MiB]."""

    cards: tuple[float, ...]
    host: float
    split: bool
    pinned: bool  # host weights are not mapped from the file: they are repacked at load

    @property
    def total(self) -> float:
        """All weights listed."""
        return sum(self.cards) + self.host


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    yield Prediction(quantity, QUANTITIES[quantity](row), value_of(row))


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    notes = str(row.get("notes") or "")
    logged = buffers_of(notes)
    cards = 0 if row["quantity"] == "compute_buffer_cpu_mib" else len(logged.cards) or _counted(row)
    fork = is_fork(row)
    engine = "ik_llama.cpp" if fork else "llama.cpp"
    kv_type = str(row.get("kv_dtype") or "f16")
    keys, values = CACHE_TYPE.search(kv_type), VALUE_TYPE.search(kv_type)
    pair = kv_type.split("/")
    k_type = keys[1] if keys else pair[0].strip()
    model = network_of(row)
    options: dict[str, str | int | float | bool] = {"kv-unified": True}
    if fork:
        options |= {"mla": noted(row, "mla") or 0, "amb": noted(row, "amb") or 0}
        options |= {"fmoe": _fused(notes), "rtr": logged.pinned and not str(_mix(row)).endswith(("_r4", "_r8"))}
    if not cards:
        options["device"] = "none"
    batch = noted(row, "n_batch")
    if batch:
        options["batch"] = batch
    plan = ServePlan(
        tp=1, kv_dtype=k_type, v_dtype=values[1] if values else (pair[1].strip() if len(pair) > 1 else k_type),
        micro_batch=noted(row, "n_ubatch") or _flag(notes, "ub"),
        max_sequences=noted(row, "n_seq_max") or _flag(notes, "np"),
        attention="flash" if _flash(notes, model) else "eager",
        gpu_layers=gpu_layers(row, model, logged), weights=_mix(row),
    )
    if logged.cards and min(logged.cards) < UNEVEN * median(logged.cards):
        options["parallel-copies"] = False
    host_layers = expert_layers_on_host(row, model, logged)
    if host_layers:
        options["n-cpu-moe"] = host_layers
    return ServeJob(
        model=model, requests=Requests(context=context_of(row)), plan=plan,
        cluster=Cluster(gpu=_card(row), gpus_per_node=max(1, cards)),
        engine=engine, version=(build_of(row, fork=fork),), engine_options=options,
    )


def _card(row: Row) -> Gpu:
    """The first card named; buffers do not depend on it, only the CUDA context of whole processes does."""
    text = str(row.get("gpu") or "").split(",")[0]
    try:
        return gpu_of({"gpu": text})
    except Refused:
        if row["quantity"] in WHOLE_PROCESS and text:
            raise
        return load_gpu(UNSTATED_CARD)


def _counted(row: Row) -> int:
    """Cards a row counts in front of their name."""
    found = re.match(r"(\d+)\s*x\s", str(row.get("gpu") or ""))
    return int(found[1]) if found else 1


def context_of(row: Row) -> int:
    """Tokens of context; a log that only matches a length says so in words."""
    stated = row.get("max_model_len") or noted(row, "n_ctx")
    return int(stated) if stated else DEFAULT_CONTEXT


def _flag(notes: str, name: str) -> int | None:
    long = {"np": "-parallel", "ub": "-ubatch-size"}[name]
    found = re.search(rf"(?<!\S)-(?:{name}|{long}) (\d+)", notes)
    return int(found[1]) if found else None


def _flash(notes: str, model: Model) -> bool:
    return bool(re.search(r"flash[-_]attn(?: auto->|=| )?\s*(?:1|on)\b|-fa (?:1|on)\b", notes))


def _fused(notes: str) -> bool:
    """Fused experts; where a log of ik_llama.cpp with -mla 3 does not say, as its guides recommend."""
    stated = re.search(r"f(?:used_)?moe[ =](\d)", notes)
    return stated[1] == "1" if stated else "mla=3" in notes or "qwen3moe" in notes


def _mix(row: Row) -> str | None:
    """The mix a row names; ollama's library serves Q4_K_M where a tag says nothing."""
    found = known_mix(str(row.get("quant_dtype") or ""))
    return found or ("q4_k_m" if row.get("engine") == "ollama" else None)


def is_fork(row: Row) -> bool:
    """ik_llama.cpp prints MLA settings and file sizes with three digits; logs it is compared with do not."""
    if "ik_llama" not in str(row.get("engine")):
        return False
    return "mla=None" not in str(row.get("notes"))


def build_of(row: Row, *, fork: bool) -> int:
    """The build a row names; ik_llama.cpp before -amb prints none."""
    if fork:
        return 3575 if "amb=None" in str(row.get("notes")) else DEFAULT_BUILDS["ik_llama.cpp"]
    text = str(row.get("engine_version") or "")
    named = re.search(r"\bb(\d{4})\b", text)
    if named:
        return int(named[1])
    year = re.search(r"(20\d\d)-(\d\d)", text)
    if year:
        return next(build for since, build in BUILDS_BY_DATE if (int(year[1]), int(year[2])) >= since)
    return DEFAULT_BUILDS["llama.cpp"] if "ik_llama" in str(row.get("engine")) else 9000


BUILDS_BY_DATE: Final = (
    ((2026, 1), 7600), ((2025, 11), 6950), ((2025, 8), 6100), ((2025, 5), 5300), ((2025, 1), 4600), ((0, 0), 4000)
)
"""First month -> a build of that time."""


def buffers_of(notes: str) -> Logged:
    """The model buffers a row lists."""
    part = notes.partition("model buffers MiB={")[2].partition("}")[0]
    found = {name: float(size) for name, size in BUFFER.findall(part)}
    numbers = [int(name.removeprefix("CUDA")) for name in found if re.fullmatch(r"CUDA\d+", name)]
    cards = tuple(found.get(f"CUDA{number}", 0.0) for number in range(max(numbers, default=-1) + 1))
    host = sum(size for name, size in found.items() if name in ("CPU", "CUDA_Host", "CPU_Mapped", "AMX"))
    return Logged(cards, host + found.get("CUDA_Split", 0.0), "CUDA_Split" in found, "CUDA_Host" in found)


def network_of(row: Row) -> Model:
    """The network by its name, else the one whose sizes the log prints."""
    sizes = {name: int(value) for name, value in SIZES.findall(str(row.get("notes") or ""))}
    try:
        model = model_of(re.sub(r"^unsloth_", "", str(row["model"])))
    except Refused:
        if not sizes:
            raise
    else:
        if not sizes or _has(model, sizes):
            return model
    found = [name for name in MODELS.names() if _has(load_model(name), sizes)]
    if not found:
        raise Refused(f"no network of the catalogue has the sizes of {str(row['model'])[:60]!r}")
    return load_model(found[0])


@cache
def _shape(name: str) -> dict[str, int]:
    return sizes_of(load_model(name))


def sizes_of(model: Model) -> dict[str, int]:
    """A network's sizes under llama.cpp's names."""
    runs = [run.layer for run in model.main.runs]
    mixers = [layer.mixer for layer in runs]
    headed = [mixer for mixer in mixers if isinstance(mixer, (Attention, MultiLatentAttention))]
    heads = max((mixer.num_heads for mixer in headed), default=0)
    kv_heads = max((mixer.num_kv_heads for mixer in mixers if isinstance(mixer, Attention)), default=heads)
    experts = max((layer.channel.num_experts for layer in runs if isinstance(layer.channel, MoE)), default=0)
    return {
        "n_layer": model.num_layers, "n_embd": model.hidden, "n_head": heads, "n_head_kv": kv_heads,
        "n_vocab": model.vocab, "n_expert": experts,
    }


def _has(model: Model, sizes: dict[str, int]) -> bool:
    own = _shape(model.name) if model.name in MODELS.names() else sizes_of(model)
    return all(own[name] == sizes[name] for name in own if name in sizes)


def gpu_layers(row: Row, model: Model, logged: Logged) -> int | None:
    """Layers on cards: all where weights went to cards, none where only the host holds some."""
    flag = re.search(r"-ngl (\d+)", str(row.get("notes") or ""))
    if flag:
        return int(flag[1])
    if logged.total and not any(logged.cards):
        return 0
    return model.num_layers + 1


def expert_layers_on_host(row: Row, model: Model, logged: Logged) -> int:
    """Layers whose experts the host holds: what cards hold beyond everything else at 8.5 bits is experts."""
    file = FILE.search(str(row.get("quant_dtype") or ""))
    whole = float(file[1]) * GIB if file else logged.total * MIB
    routed = [index for index, layer in enumerate(model.main.layers) if isinstance(layer.channel, MoE)]
    on_cards = sum(logged.cards) * MIB
    if not routed or not on_cards or on_cards > 0.8 * whole:
        return 0
    named = tuple(named_parameters(model))
    others = sum(one.parameter.elements * one.repeats for one in named if not one.parameter.expert) * 8.5 / 8
    beside = min(others, whole / 4)
    moved = round(max(0.0, on_cards - beside) / ((whole - beside) / len(routed)))
    return routed[-1] + 1 - min(moved, len(routed))


def _context(row: Row) -> Context:
    return Context(job_of(row))


def _kv(row: Row) -> float:
    return sum(cache.num_bytes for cache in _context(row).caches) / MIB


def _compute_cards(row: Row) -> float:
    return max(_context(row).reserved.cards) / MIB


def _compute_host(row: Row) -> float:
    return _context(row).reserved.host / MIB


def _weights_total(row: Row) -> float:
    """By the mix's rule: no row carries the header of its file, which would say the bytes themselves."""
    written = str(row.get("quant_dtype") or "")
    file, bits = FILE.search(written), BITS.search(written)
    if file is not None:
        share = value_of(row) * MIB / (float(file[1]) * GIB)
        if not LISTED[0] <= share <= LISTED[1]:
            raise Refused(f"the row's buffers are {share:.2f} of the file it names")
    if bits is not None and float(bits[1]) < 0.9 * UNIFORM.get(_mix(row) or "", 0.0):
        raise Refused(f"{bits[1]} bits a weight are no file of type {_mix(row)}; no header is at hand")
    return _weights(row, card=True) + _weights(row, card=False)


def _weights(row: Row, *, card: bool) -> float:
    if _mix(row) is None:
        raise Refused(f"the mix {str(row.get('quant_dtype'))[:40]!r} has no rule, and no header is at hand")
    context = _context(row)
    devices = range(context.placement.cards) if card else (context.placement.host,)
    parts = (weight for device in devices for kept in weights_on(context, device).values() for weight in kept)
    return sum(weight_bytes(weight, card=card) for weight in parts) / MIB


def _device(row: Row) -> float:
    found = answer(job_of(row))
    return sum(rank.peak.device_bytes * rank.count for rank in found.ranks)


QUANTITIES: Final[dict[str, Callable[[Row], float]]] = {
    "kv_self_size_mib": _kv,
    "compute_buffer_max_gpu_mib": _compute_cards,
    "compute_buffer_cpu_mib": _compute_host,
    "compute_buffer_host_mib": _compute_host,
    "model_buffer_total_mib": _weights_total,
    "model_buffer_gpu_mib": lambda row: _weights(row, card=True),
    "model_buffer_host_mib": lambda row: _weights(row, card=False),
    "total_gpu_mib": lambda row: _device(row) / MIB,
    "peak_vram_gb_self_reported": lambda row: _device(row) / GB,
}
"""Quantity of a row -> the same of a deployment."""
