"""What SGLang chooses where a question leaves it open, by version and card.

Read in the wheels 0.3.0 to 0.5.23; a table's version is the first release that has the value.

[0.3, 0.4] sgl-project/sglang python/sglang/srt/server_args.py `__post_init__`: by tensor parallelism alone; 0.4.6 and
0.4.7 have rules of their own for cards above 80 GiB
[0.4.8] the same, from pull request 7054: by the size of the card
[0.5.3] `_handle_gpu_memory_settings`, from pull request 10975: by prefill chunk and graphs
[0.5.20] python/sglang/srt/arg_groups/memory_hook.py `handle_gpu_memory_settings`, `reserve_for_graph_mb`
[vlm] `adjust_mem_fraction_for_vlm`, from pull request 6881
[args] sgl-project/sglang python/sglang/srt/server_args.py `__post_init__` to 0.5.2, `_handle_gpu_memory_settings` from
0.5.3; from 0.5.20 python/sglang/srt/arg_groups/memory_hook.py `handle_gpu_memory_settings`
[capture] python/sglang/srt/model_executor/cuda_graph_runner.py `get_batch_sizes_to_capture`
[prefill] server_args.py `_handle_piecewise_cuda_graph`, from 0.5.14 arg_groups/cuda_graph_hook.py
`apply_cuda_graph_compatibility`: what prefills have no graphs with All read in the wheels 0.3.0 to 0.5.23; a table's
version is the first release that has the value.
"""

from __future__ import annotations

from itertools import chain
from math import gcd
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.model import Model, MultiLatentAttention
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.rank import shares_experts
from vramcast.engines.serving.requests import ALLOW_LONG, FLAG, Known, Value, sees, typed_options
from vramcast.errors import InvalidSpec
from vramcast.units import GIB, MIB


class Capture(NamedTuple):
    """What the reserve depends on."""

    chunk: int  # tokens of one prefill step over all ranks
    sequences: int  # largest batch with a graph; 0: no graphs
    ranks: int  # tensor- times pipeline-parallel
    data_parallel: int  # ranks that attend to sequences of their own within one group; 1: none
    latent: bool  # latent attention
    draft: str | None  # kind of a draft
    prefills: bool = True  # whether prefills have graphs


CARD_SINCE: Final[Version] = (0, 4, 8)
CHUNK_SINCE: Final[Version] = (0, 5, 3)
PREFILL_GRAPHS_SINCE: Final[Version] = (0, 5, 10)
"""Graphs of prefills became the default with pull request 16331."""
DRAFT_COUNTED_SINCE: Final[Version] = (0, 5, 14)
"""From then on a draft is there when the pools are sized, its layers are part of them, and nothing is set aside."""

BY_RANKS: Final[tuple[tuple[Version, tuple[tuple[int, float], ...]], ...]] = (
    ((0, 4), ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))),
    ((0, 0), ((16, 0.79), (8, 0.83), (4, 0.85), (2, 0.87), (1, 0.88))),
)
"""Since a version: tensor-parallel ranks -> fraction."""

BY_CARD: Final = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5), (1 << 30, 32.0, 0.0))
"""Cards below a size [GiB] -> set aside, and for each rank [GiB]."""

LARGE_CARD: Final = 60 * GIB
LARGE_RESERVE: Final = 10 * 1024  # [MiB]
"""Least that is set aside on large cards."""

LATENT_GRAPHS: Final = 1536  # [MiB] of prefill graphs with latent attention
PREFILL_GRAPH: Final = 8  # [MiB] of one prefill graph
SEQUENCE_GRAPHS: Final = 2  # [MiB] of decode graphs for each sequence of the largest
DRAFTS: Final[tuple[tuple[Version, int, int], ...]] = (
    (DRAFT_COUNTED_SINCE, 0, 0), ((0, 5, 10), 4096, 6144), ((0, 5, 2), 2048, 6144), ((0, 0), 2048, 2048),
)
"""Since a version: set aside for a draft before it was counted, and for one that is a model of its own [MiB]."""

PREFILL_SIZES: Final = tuple(
    chain(range(4, 33, 4), range(48, 257, 16), range(288, 513, 32), range(576, 1025, 64), range(1280, 4097, 256),
          range(4608, 65537, 512))
)
"""Tokens of captured prefills [arg_groups/cuda_graph_hook.py `generate_prefill_cuda_graph_batch_sizes`]."""

VISION_SINCE: Final[Version] = (0, 4, 9)
VISION_BEFORE: Final = 0.9
"""Older versions took a tenth off for every multimodal network, given or not [model_runner.py]."""
BASE_TOWER: Final = 24 * 1024**2
"""Layers times width squared of the tower that others are compared with: ViT-L/14."""


def default_fraction(version: Version, size: int, capture: Capture) -> float:
    """The static fraction that SGLang chooses.

    Args:
        size: what nvidia-smi shows of the card [bytes]
        capture: what the reserve depends on

    >>> default_fraction((0, 5, 6), 16376 * MIB, Capture(2048, 8, 1, 1, False, None))
    0.772
    """
    if version < CARD_SINCE:
        ranks = next(table for since, table in BY_RANKS if version >= since)
        found = next(fraction for least, fraction in ranks if capture.ranks >= least)
        return _before_cards(version, size / MIB, found, drafted=capture.draft is not None)
    reserve = _by_card(version, size, capture) if version < CHUNK_SINCE else _by_chunk(version, size, capture)
    return max(0.05, round((size / MIB - reserve) / (size / MIB), 3))


def _before_cards(version: Version, size: float, by_ranks: float, *, drafted: bool) -> float:
    """What 0.4.6 and 0.4.7 make of the fraction by ranks; older releases leave it [0.4].

    Args:
        size: of the card [MiB]
        by_ranks: the fraction by ranks
        drafted: whether a draft proposes
    """
    if version < (0, 4, 6):
        return by_ranks
    if version < (0, 4, 7):
        return by_ranks if size <= 81_920 else 1 - 13 * 1024 / size
    fraction = by_ranks if size <= 81_920 else 0.88
    if size > 180_000:
        return 0.79
    if size > 96 * 1024:
        reserve = (20 if drafted else 18) * 1024
        return min(fraction + 48 * 1024 * (1 - fraction) / size, (size - reserve) / size)
    return fraction * (0.95 if drafted else 1)


def _by_card(version: Version, size: int, capture: Capture) -> float:
    """[MiB]"""
    gib, each = next((gib, each) for below, gib, each in BY_CARD if size < below * GIB)
    reserve = (gib + each * capture.ranks) * 1024
    return reserve + draft_mib(version, capture.draft) + (4096 if capture.data_parallel > 1 else 0)


def _by_chunk(version: Version, size: int, capture: Capture) -> float:
    """[MiB]"""
    sequences, copies = capture.sequences, capture.data_parallel
    reserve = 512 + 1.5 * max(capture.chunk, 2048) + capture.ranks / 8 * 1024 + SEQUENCE_GRAPHS * sequences
    if copies > 1:
        reserve += (4.5 if sequences > 300 else 3) * sequences * copies
    reserve += prefill_mib(version, capture.chunk, capture.latent) if sequences and capture.prefills else 0
    if size > LARGE_CARD:
        reserve = max(reserve, LARGE_RESERVE)
    return reserve + draft_mib(version, capture.draft)


def draft_mib(version: Version, draft: str | None) -> int:
    """What is set aside for a draft that is loaded after the pools are sized [MiB].

    >>> draft_mib((0, 5, 9), "eagle"), draft_mib((0, 5, 10), "eagle"), draft_mib((0, 5, 23), "eagle")
    (2048, 4096, 0)
    """
    if draft is None or draft == "ngram":
        return 0
    _, each, model = next(row for row in DRAFTS if version >= row[0])
    return model if draft == "model" else each


def prefill_mib(version: Version, chunk: int, latent: bool) -> int:
    """Graphs of prefill sizes up to a whole chunk [MiB].

    >>> prefill_mib((0, 5, 10), 8192, False), prefill_mib((0, 5, 9), 8192, False)
    (464, 0)
    """
    if version < PREFILL_GRAPHS_SINCE:
        return 0
    return LATENT_GRAPHS if latent else PREFILL_GRAPH * sum(size <= chunk for size in PREFILL_SIZES)


def vision_factor(model: Model, version: Version, *, given: bool) -> float:
    """What is left of the fraction for networks that read images, which need room for their tower [vlm].

    Args:
        given: whether the fraction was asked for; then newer versions leave it alone
    """
    towers = [stack for stack in model.stacks[:-1] if stack.vision is not None]
    if not towers:
        return 1.0
    if version < VISION_SINCE:
        return VISION_BEFORE
    if given:
        return 1.0
    complexity = towers[0].num_layers * towers[0].hidden**2 / BASE_TOWER
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))


class Tier(NamedTuple):
    """Defaults of cards below a size."""

    below: int  # [bytes]
    chunk: int  # tokens of one prefill step
    graphs: int  # largest batch with a graph, tensor parallelism below 4
    graphs_wide: int  # the same, from 4 on


ANY: Final = 1 << 62

WIDE: Final = 4
"""Tensor-parallel ranks from which graphs of more sequences are captured."""


def _tiers(second: Tier) -> tuple[Tier, ...]:
    """Tiers since 0.5.3, which differ in the second."""
    return (
        Tier(20 * GIB, 2048, 8, 8), second, Tier(60 * GIB, 4096, 32, 160), Tier(160 * GIB, 8192, 256, 512),
        Tier(ANY, 16384, 512, 512),
    )


TIERS: Final[tuple[tuple[Version, tuple[Tier, ...]], ...]] = (
    ((0, 5, 20), _tiers(Tier(35 * GIB, 4096, 48, 160))),
    ((0, 5, 5), _tiers(Tier(35 * GIB, 2048, 24, 80))),
    ((0, 5, 3), _tiers(Tier(35 * GIB, 2048, 16, 80))),
    ((0, 4, 8), (
        Tier(35 * GIB, 2048, 8, 80), Tier(90 * GIB, 8192, 160, 160), Tier(160 * GIB, 8192, 256, 256),
        Tier(ANY, 16384, 512, 512),
    )),
    ((0, 4, 7), (
        Tier(25_000 * MIB, 2048, 8, 80), Tier(96 * GIB, 8192, 160, 160), Tier(180_000 * MIB, 8192, 256, 256),
        Tier(ANY, 16384, 512, 512),
    )),
    ((0, 4, 6), (Tier(25_000 * MIB, 2048, 8, 80), Tier(80 * GIB, 8192, 160, 160), Tier(ANY, 8192, 256, 256))),
    ((0, 4, 1), (Tier(25_000 * MIB, 2048, 8, 80), Tier(ANY, 8192, 160, 160))),
    ((0, 4), (Tier(25_000 * MIB, 2048, 8, 8), Tier(ANY, 8192, 160, 160))),
    ((0, 0), (Tier(ANY, 8192, 160, 160),)),
)
"""Since a version: tiers, smallest first [args, capture]."""

RUNNING_LIMITS_RESERVE_SINCE: Final[Version] = (0, 5, 22)
"""From then on `--max-running-requests` lowers the largest graph that memory is set aside for [args]."""

NO_GRAPHS_NO_RESERVE_SINCE: Final[Version] = (0, 5, 15)
"""Before, memory was set aside for graphs that nobody captured [args]."""

NO_PREFILL_GRAPHS: Final[tuple[tuple[Version, frozenset[str]], ...]] = (
    ((0, 5, 19), frozenset(("images", "vendor", "stages"))),
    ((0, 5, 17), frozenset(("images", "vendor", "latent"))),
    ((0, 5, 15), frozenset(("images", "vendor", "latent", "adapters", "data parallel"))),
    ((0, 5, 11), frozenset(("images", "vendor", "stages", "adapters", "data parallel"))),
    ((0, 0), frozenset(("images", "vendor", "stages", "adapters", "data parallel", "draft"))),
)
"""Since a version: what prefills have no graphs with [prefill]; some networks with eyes have them since 0.5.17."""

DRAFT_REQUESTS: Final = 48
"""`--max-running-requests` where a draft proposes and none is given [args]."""

LATENT_PAGE: Final = 64
"""Tokens of a page where kernels for latent attention want it: on Blackwell, and sparse attention everywhere [args]."""

BLACKWELL: Final = 100
"""Compute capability from which on."""

SPARSE_FP8_SINCE: Final[Version] = (0, 5, 6)
"""From then on sparse attention keeps an FP8 cache on Blackwell by itself [args `_set_default_nsa_kv_cache_dtype`]."""

STATE_WIDTHS: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""dtype of recurrent states, --mamba-ssm-dtype -> bytes of an element; float32 where nobody says
[srt/configs/mamba_utils.py `mamba2_state_dtype`]."""

OPTIONS: Final[dict[str, Known]] = {
    ALLOW_LONG: FLAG,  # SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN
    "cuda-graph-max-bs": Known(int, most=1 << 16),  # largest batch with a graph
    "prefill-graphs": FLAG,  # false: --disable-piecewise-cuda-graph, --disable-prefill-cuda-graph
    "scheduler-recv-interval": Known(int, most=1 << 16),  # steps of generation between two looks at the queue
    "max-total-tokens": Known(int),  # at most so many tokens of full attention
    "swa-full-tokens-ratio": Known(float, least=1e-6, most=1, about="windows"),  # [args] between 0 and 1
    "mamba-full-memory-ratio": Known(float, least=1e-6, most=1000, about="states"),
    "max-mamba-cache-size": Known(int, about="states"),  # recurrent states in all
    "mamba-ssm-dtype": Known(str, choices=tuple(STATE_WIDTHS), about="states"),
    "disable-hybrid-swa-memory": Known(bool, about="windows"),  # windows are kept at full length
}
"""Engine options and what their values may be."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    fraction: float
    chunk: int  # tokens of one prefill step on a rank
    graph_sequences: int  # largest batch with a graph; 0: no graphs
    prefill_graphs: bool
    page_tokens: int
    kv_dtype: str  # "auto": as activations
    max_running: int | None  # None: follows from the tokens in the pool
    options: dict[str, Value]


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec or UnknownName for a choice that SGLang does not offer
    """
    plan, size = job.plan, card_bytes(job.cluster.gpu)
    capture = _capture(job, _tier(job.version, size))
    if plan.block_tokens is not None and capture.chunk % plan.block_tokens:
        raise InvalidSpec(
            "block-tokens={} does not divide the {} tokens of SGLang's prefill steps; use {}, or other "
            "--batched-tokens", plan.block_tokens, capture.chunk, gcd(capture.chunk, LATENT_PAGE)
        )
    fraction = plan.memory_fraction or default_fraction(job.version, size, capture)
    drafts = plan.draft is not None and plan.draft.kind != "ngram"
    running = plan.max_sequences or (DRAFT_REQUESTS if drafts else None)
    return Settings(
        fraction=fraction * vision_factor(job.model, job.version, given=plan.memory_fraction is not None),
        chunk=max(1, capture.chunk // capture.data_parallel),
        graph_sequences=_graph_sequences(job, _largest_graph(job, _tier(job.version, size)), running),
        prefill_graphs=capture.prefills and plan.graphs,
        page_tokens=plan.block_tokens or _page(job),
        kv_dtype=_cache_dtype(job),
        max_running=running,
        options=typed_options(job, OPTIONS),
    )


def card_bytes(gpu: Gpu) -> int:
    """The size that nvidia-smi shows, which SGLang's defaults go by."""
    return gpu.smi_total_bytes or gpu.visible_bytes


def is_latent(model: Model) -> bool:
    """Whether keys and values are compressed (MLA)."""
    return any(isinstance(run.layer.mixer, MultiLatentAttention) for run in model.main.runs)


def is_sparse(model: Model) -> bool:
    """Whether latent attention reads a choice of tokens through an index (DSA)."""
    mixers = (run.layer.mixer for run in model.main.runs)
    return any(isinstance(mixer, MultiLatentAttention) and mixer.indexer_dim for mixer in mixers)


def _tier(version: Version, size: int) -> Tier:
    tiers = next(tiers for since, tiers in TIERS if version >= since)
    return next(tier for tier in tiers if size < tier.below)


def _largest_graph(job: ServeJob, tier: Tier) -> int:
    """Sequences of the largest graph that is planned, whether it is captured or not."""
    named = typed_options(job, OPTIONS).get("cuda-graph-max-bs")
    wide = job.plan.tp * (job.plan.dp if shares_experts(job) else 1) >= WIDE
    return int(named) if named is not None else tier.graphs_wide if wide else tier.graphs


def _graph_sequences(job: ServeJob, largest: int, running: int | None) -> int:
    """Sequences of the largest graph that is captured: no more than may run [capture]."""
    return min(largest, running or largest) if job.plan.graphs else 0


def _capture(job: ServeJob, tier: Tier) -> Capture:
    plan = job.plan
    copies = plan.dp if shares_experts(job) else 1
    planned = _largest_graph(job, tier)
    if job.version >= RUNNING_LIMITS_RESERVE_SINCE:
        planned = min(planned, plan.max_sequences or planned)
    without = next(found for since, found in NO_PREFILL_GRAPHS if job.version >= since)
    return Capture(
        chunk=plan.batched_tokens or tier.chunk,
        sequences=planned if plan.graphs or job.version < NO_GRAPHS_NO_RESERVE_SINCE else 0,
        ranks=plan.tp * copies * plan.pp,
        data_parallel=copies,
        latent=is_latent(job.model),
        draft=plan.draft.kind if plan.draft is not None else None,
        prefills=plan.graphs and job.engine_options.get("prefill-graphs") is not False
        and not without & _traits(job, copies),
    )


def _traits(job: ServeJob, copies: int) -> frozenset[str]:
    """What of a job graphs of prefills may not go with, in the words of NO_PREFILL_GRAPHS."""
    plan, model = job.plan, job.model
    found = {
        "images": sees(model),
        "vendor": job.cluster.gpu.vendor != "NVIDIA", "stages": plan.pp > 1, "latent": is_latent(model),
        "adapters": plan.lora_slots > 0, "data parallel": copies > 1, "draft": plan.draft is not None,
    }
    return frozenset(name for name, there in found.items() if there)


def _is_blackwell(gpu: Gpu) -> bool:
    return (gpu.sm or 0) >= BLACKWELL


def _page(job: ServeJob) -> int:
    latent = is_latent(job.model) and _is_blackwell(job.cluster.gpu) and job.version >= (0, 5)
    return LATENT_PAGE if latent or is_sparse(job.model) else 1


def _cache_dtype(job: ServeJob) -> str:
    dtype = job.plan.kv_dtype
    chosen = is_sparse(job.model) and _is_blackwell(job.cluster.gpu) and job.version >= SPARSE_FP8_SINCE
    return "fp8" if dtype == "auto" and chosen else dtype
