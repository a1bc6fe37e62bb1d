"""How SGLang divides what the static fraction leaves, and what its process takes beside weights and pools.

[cell] sgl-project/sglang python/sglang/srt/model_executor/pool_configurator.py: bytes of a token in all layers; a
draft's layers count like the target's
[swa] `HybridSWAPoolConfigurator`: windows have a pool of 0.8 times the tokens of full attention
[mamba] python/sglang/srt/mem_cache/kv_cache_configurator.py `_handle_max_mamba_cache`: recurrent states get 0.9 times
the bytes of keys and values; a drafted sequence keeps a state for every proposed token
[ratio] `_calculate_mamba_ratio`: states of a running request: its own, a checkpoint and one being written, and two to
take turns with where the scheduler runs ahead
[padding] python/sglang/srt/mem_cache/memory_pool.py: a page of slots, and a state, that padded batches write to
[init] sgl-project/sglang python/sglang/srt/model_executor/model_runner.py `init_torch_distributed`: the free memory
that the static fraction is a fraction of is read after the communicators are set up
[requests] python/sglang/srt/mem_cache/memory_pool.py `ReqToTokenPool`; `init_memory_pool`: how many run at once
[workspace] python/sglang/srt/layers/attention/flashinfer_backend.py, SGLANG_FLASHINFER_WORKSPACE_SIZE
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.pools import Contents, Pools, contents_of
from vramcast.engines.serving.rank import draft_mixers, dtype_of, shares_experts
from vramcast.engines.serving.stages import Stage, has_fabric
from vramcast.engines.sglang.settings import DRAFT_COUNTED_SINCE, SEQUENCE_GRAPHS, Settings, is_latent, prefill_mib
from vramcast.errors import Note
from vramcast.states.cache import cache_bytes, local_kv_heads, state_elements
from vramcast.units import GIB, MIB

WINDOW_RATIO: Final = 0.8
STATE_RATIO: Final = 0.9
"""`--swa-full-tokens-ratio` and `--mamba-full-memory-ratio` [swa, mamba]."""

WINDOWS_SINCE: Final[Version] = (0, 5, 3)
"""From then on windows have a pool of their own; before, every layer kept the whole context."""

WHOLE_WINDOWS: Final = frozenset(("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"))
"""Families whose windows are kept at full length all the same [arg_groups/model_overrides/gemma2_gemma3.py]."""

STATES_PER_REQUEST: Final[tuple[tuple[Version, int], ...]] = (((0, 5, 14), 5), ((0, 5, 4), 3), ((0, 0), 1))
"""Since a version: states a running request takes while prefixes are kept [ratio]."""

SCALE_CHANNELS: Final = 128
"""Channels of an fp8 latent that share an fp32 scale in sparse attention [NSATokenToKVPool]."""


class Sized(NamedTuple):
    """The pools of one stage."""

    pools: Pools
    draft_token_bytes: int  # of a draft's own pool, as long as the first one; 0: counted with the target's
    beside_bytes: int  # states of proposed tokens


def sized(job: ServeJob, settings: Settings, stage: Stage, num_bytes: int) -> Sized:
    """The pools that so many bytes give.

    Args:
        num_bytes: what the static fraction leaves after the load; below 0: nothing [bytes]
    """
    target = kept(job, settings, (layer.mixer for layer in stage.layers(job.model)))
    draft = kept(job, settings, draft_mixers(job) if stage.last else ())
    counted = job.version >= DRAFT_COUNTED_SINCE
    contents = replace(
        target, full_token_bytes=target.full_token_bytes + (draft.full_token_bytes if counted else 0)
    )
    states, rest, beside = _states(job, settings, target.state_bytes, bool(target.full_token_bytes), max(0, num_bytes))
    ratio = float(settings.options.get("swa-full-tokens-ratio", WINDOW_RATIO))
    tokens = _tokens(settings, contents, ratio, rest)
    page = settings.page_tokens
    pools = Pools(
        contents=contents,
        full_tokens=tokens,
        window_tokens=int(ratio * tokens) // page * page if contents.window_token_bytes else 0,
        states=states,
        states_per_sequence=states_per_request(job),
        page_tokens=page,
        in_flight=settings.chunk,
        logged="tokens",
    )
    return Sized(pools, 0 if counted else draft.full_token_bytes, beside)


def padding_bytes(pools: Pools) -> int:
    """A page of slots in every pool and a state that no request uses [padding, bytes]."""
    contents = pools.contents
    slots = contents.full_token_bytes + (contents.window_token_bytes if pools.window_tokens else 0)
    return pools.page_tokens * slots + contents.state_bytes if pools.full_tokens else 0


def kept(job: ServeJob, settings: Settings, mixers: Iterable[Mixer | None]) -> Contents:
    """What layers keep on one rank; sparse attention in FP8 keeps scales, and the rotary part in 16 bits."""
    mixers, dtype = tuple(mixers), dtype_of_cache(job, settings)
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=dtype, windows=has_window_pool(job, settings))
    sparse = [mixer for mixer in mixers if isinstance(mixer, MultiLatentAttention) and mixer.indexer_dim]
    extra = sum(4 * (mixer.kv_lora_rank // SCALE_CHANNELS) + mixer.qk_rope_dim for mixer in sparse)
    return replace(contents, full_token_bytes=contents.full_token_bytes + (extra if dtype.startswith("fp8") else 0))


def dtype_of_cache(job: ServeJob, settings: Settings) -> str:
    """FP8 weights do not imply an FP8 cache."""
    return settings.kv_dtype if settings.kv_dtype != "auto" else dtype_of(job.model, job.plan.dtype)


def has_window_pool(job: ServeJob, settings: Settings) -> bool:
    """Whether sliding windows have a pool of their own: only beside layers of full attention."""
    layers = job.model.main.layers
    windowed = [_is_windowed(layer) for layer in layers if isinstance(layer.mixer, Attention)]
    wanted = not settings.options.get("disable-hybrid-swa-memory", False)
    able = job.version >= WINDOWS_SINCE and job.model.family not in WHOLE_WINDOWS
    return wanted and able and any(windowed) and not all(windowed)


def states_per_request(job: ServeJob) -> int:
    """Recurrent states that a running request takes [ratio]."""
    if job.plan.prefix_caching is False:
        return 1
    return next(states for since, states in STATES_PER_REQUEST if job.version >= since)


def halves(job: ServeJob, settings: Settings, stage: Stage, pools: Pools) -> dict[str, int]:
    """Pools as SGLang prints them: keys and values apart, convolution and recurrent states apart [bytes]."""
    keys, values = [0, 0], [0, 0]
    convolution = recurrent = 0
    for layer in stage.layers(job.model):
        match layer.mixer:
            case Attention(shared_kv=False) as mixer:
                pool = int(_is_windowed(layer) and has_window_pool(job, settings))
                heads, dtype = local_kv_heads(mixer.num_kv_heads, job.plan.tp), dtype_of_cache(job, settings)
                keys[pool] += cache_bytes(heads * mixer.head_dim, dtype)
                values[pool] += cache_bytes(heads * (mixer.v_head_dim or mixer.head_dim), dtype)
            case Mamba() | LinearAttention() as recurring:
                elements = state_elements(recurring, tp=job.plan.tp)
                convolution, recurrent = convolution + 2 * elements[0], recurrent + 4 * elements[1]
    full = pools.full_tokens + pools.page_tokens if pools.full_tokens else 0
    window = pools.window_tokens + pools.page_tokens if pools.window_tokens else 0
    states = pools.states + 1 if pools.states else 0
    printed = {
        "keys": keys[0] * full, "values": values[0] * full,
        "keys of windows": keys[1] * window, "values of windows": values[1] * window,
        "convolution states": convolution * states, "recurrent states": recurrent * states,
    }
    return {name: size for name, size in printed.items() if size}


def _is_windowed(layer: Layer) -> bool:
    return isinstance(layer.mixer, Attention) and layer.mixer.window is not None


def _tokens(settings: Settings, contents: Contents, ratio: float, rest: int) -> int:
    """Tokens of full attention, each bringing its share of window tokens, in whole pages [cell]."""
    cell = contents.full_token_bytes + int(ratio * contents.window_token_bytes)
    tokens = rest // cell if cell else 0
    tokens = min(tokens, int(settings.options.get("max-total-tokens", tokens)))
    return tokens // settings.page_tokens * settings.page_tokens


def _states(job: ServeJob, settings: Settings, each: int, attends: bool, rest: int) -> tuple[int, int, int]:
    """Recurrent states that fit, what is left for keys and values, and states of proposed tokens [mamba].

    With K states, r of them for a running request and D proposed tokens, states of the proposed tokens included:
    (K + 1) x each + (K / r + 1) x D x each = share of the rest
    """
    if not each:
        return 0, rest, 0
    ratio = float(settings.options.get("mamba-full-memory-ratio", STATE_RATIO))
    budget = round(rest * ratio / (1 + ratio)) if attends else rest
    proposed = job.plan.draft.tokens if job.plan.draft is not None and job.plan.draft.kind != "ngram" else 0
    requests = states_per_request(job)
    count = int((budget - each * (1 + proposed)) // (each * (1 + proposed / requests)))
    if "max-mamba-cache-size" in settings.options:
        count = int(settings.options["max-mamba-cache-size"])
    elif job.plan.prefix_caching is False and job.plan.max_sequences is not None:
        count = job.plan.max_sequences
    count = max(0, count)
    running = min(count // requests, settings.max_running or count)
    beside = (running + 1) * proposed * each if proposed else 0
    return count, max(0, rest - count * each - beside), beside


FABRIC_BYTES: Final = round(1.25 * GIB)
"""NCCL, custom all-reduce and their buffers on a rank whose cards share a fabric: one start-up log, 4 x H100, whose
pool fixes it to 0.1 GiB."""

PCIE_BYTES: Final = 100 * MIB
"""A communicator over PCIe; bridges that join two cards do not change it for more [catalogue/contexts.csv]."""

MOST_RUNNING: Final = 4096
FEWEST_RUNNING: Final = 2048
RUNNING_PER_CONTEXT: Final = 512
"""Requests that may run at once: so many for each longest sequence in the pool, within these bounds [requests]."""

EXTRA_TOKENS: Final = 4
"""Positions of a request beyond the longest context [requests]."""

ATTENTION_WORKSPACE: Final = 384 * MIB


def communication(job: ServeJob) -> tuple[Tensor, ...]:
    """Communicators, set up before a rank looks at its free memory [init]."""
    plan = job.plan
    if plan.tp * plan.pp * (plan.dp if shares_experts(job) else 1) == 1:
        return ()
    gpu = job.cluster.gpu
    fabric = has_fabric(gpu)
    return (Tensor(
        name="communicators and custom all-reduce", num_bytes=FABRIC_BYTES if fabric else PCIE_BYTES,
        category=Category.COMMUNICATION, owner="process", basis=Basis.MEASURED,
        formula=f"tp={plan.tp}, {gpu.link or 'PCIe'}",
        source="start-up log on 4 x H100" if fabric else "catalogue/contexts.csv, NCCL rows",
    ),)


def running_requests(tokens: int, context: int, asked: int | None) -> int:
    """Requests that may run at once on one rank [count].

    >>> running_requests(298_447, 40_960, None)  # as a start-up log prints
    3730
    """
    if asked is not None:
        return max(1, asked)
    return max(FEWEST_RUNNING, min(MOST_RUNNING, int(tokens / context * RUNNING_PER_CONTEXT)))


def request_table(requests: int, context: int, draft_tokens: int) -> Tensor:
    """Where every token of every running request lies."""
    width = context + EXTRA_TOKENS + draft_tokens
    return Tensor(
        name="table of running requests", num_bytes=4 * requests * width, category=Category.WORKSPACES, owner="process",
        formula=Note("{:,} requests x {:,} positions x 4 B", requests, width),
        source="sgl-project/sglang python/sglang/srt/mem_cache/memory_pool.py `ReqToTokenPool`",
    )


def attention_workspace() -> Tensor:
    """Scratch of the attention kernels."""
    return Tensor(
        name="attention workspace", num_bytes=ATTENTION_WORKSPACE, category=Category.WORKSPACES, owner="process",
        formula=f"{ATTENTION_WORKSPACE // MIB} MiB", source="SGLang environ.py SGLANG_FLASHINFER_WORKSPACE_SIZE",
    )


def graphs(job: ServeJob, settings: Settings) -> Tensor:
    """CUDA graphs, as large as SGLang itself reckons when it sets memory aside for them."""
    sequences = settings.graph_sequences
    decodes, prefills = sequences * SEQUENCE_GRAPHS, 0
    if settings.prefill_graphs:
        prefills = prefill_mib(job.version, settings.chunk, is_latent(job.model))
    return Tensor(
        name="captured graphs", num_bytes=(decodes + prefills if sequences else 0) * MIB, category=Category.GRAPHS,
        stream="graphs", basis=Basis.ASSUMED,
        formula=Note(
            "{} sequences x {} MiB + {} MiB of prefills", sequences, SEQUENCE_GRAPHS, prefills
        ) if sequences else "none",
        source="sgl-project/sglang python/sglang/srt/arg_groups/memory_hook.py `reserve_for_graph_mb`",
    )
