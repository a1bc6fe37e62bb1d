"""One SGLang deployment: weights, pools, a prefill chunk, graphs.

[pool] sgl-project/sglang python/sglang/srt/mem_cache/kv_cache_configurator.py `_profile_available_bytes` (before
0.5.20 model_executor/model_runner.py `profile_max_num_token`): the pools get what the driver shows free after the load
less (1 - fraction) of what was free before it; ranks of all stages take the fewest tokens of any
[images] `mm_runtime_reservation_gb`: newer versions keep the cache of image embeddings out of the pools

How SGLang divides what the static fraction leaves, and what its process takes beside weights and pools.

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

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, Mixer, Model, MultiLatentAttention
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServePlan, ServingRank, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.rank import (
    EAGLE,
    corrected_tensor,
    draft_mixers,
    dtype_of,
    forward_step,
    job_formats,
    layout_of,
    load_program,
    shares_experts,
)
from vramcast.engines.serving.requests import refuse_encoders, sees
from vramcast.engines.serving.stages import (
    Contents,
    Pools,
    Stage,
    contents_of,
    even_stages,
    fewest_tokens,
    has_fabric,
    reserved_bytes,
    without_draft,
)
from vramcast.engines.sglang.settings import (
    DRAFT_COUNTED_SINCE,
    SEQUENCE_GRAPHS,
    STATE_WIDTHS,
    Settings,
    is_latent,
    prefill_mib,
    settings_of,
)
from vramcast.errors import Note, joined
from vramcast.states.storage import cache_bytes, local_kv_heads, state_elements
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
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=dtype, windows=has_window_pool(job, settings),
                           state_width=state_width(settings))
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


def state_width(settings: Settings) -> int:
    """Of an element of a recurrent state [bytes]."""
    return STATE_WIDTHS[str(settings.options.get("mamba-ssm-dtype", "float32"))]


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
                convolution, recurrent = convolution + 2 * elements[0], recurrent + state_width(settings) * elements[1]
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


SOURCE: Final = "sgl-project/sglang python/sglang/srt/mem_cache/kv_cache_configurator.py"

VOCAB_MULTIPLE: Final = 64

TABLE_WIDTH: Final = 2
"""Bytes of an element of a draft's tables: they are made in 16 bits."""

WIDE_ROTARY_SINCE: Final[Version] = (0, 4)
"""From then on rotary tables stay in fp32 [python/sglang/srt/layers/rotary_embedding.py]."""

IMAGES_SINCE: Final[Version] = (0, 5, 20)
IMAGE_CACHE: Final = 100 * MIB
"""SGLANG_VLM_CACHE_SIZE_MB [images]."""


class _Worker(NamedTuple):
    """What one pipeline stage's ranks find when they start."""

    stage: Stage
    weights: Program
    loaded: int  # by the driver, of what is there while the pools are sized [bytes]
    outside: tuple[Tensor, ...]
    before: int  # free before the load [bytes]
    left: int  # for the pools [bytes]
    sized: Sized


def deploy(job: ServeJob) -> Deployment:
    """The ranks of an SGLang deployment.

    Engine options: `settings.OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks that SGLang does not serve
    """
    check_degrees(job)
    refuse_encoders(job)
    job = replace(job, version=last_patch(job.version))
    settings = settings_of(job)
    workers = [_worker(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    tokens = fewest_tokens(worker.sized.pools for worker in workers)
    running = running_requests(tokens, job.context, settings.max_running)
    ranks = tuple(_rank(job, settings, worker, worker.sized.pools.shortened(tokens), running) for worker in workers)
    given = job.plan.memory_fraction is not None
    return Deployment(
        ranks=ranks,
        assumptions=(Note(
            "mem-fraction-static {:.3f}, as asked" if given else
            "mem-fraction-static {:.3f}, SGLang's own choice for the card and the arguments", settings.fraction
        ),),
        warnings=() if settings.max_running is not None else _warnings(job, running),
    )


def _warnings(job: ServeJob, running: int) -> tuple[str, ...]:
    each = -(-job.requests.concurrency // job.plan.dp)
    if each <= running:
        return ()
    return (Note("SGLang runs at most {} requests at once here, the others wait; raise --max-sequences", running),)


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    plan = job.plan
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    rotary = 4 if job.version >= WIDE_ROTARY_SINCE else None
    weights = load_program(job, stage, layout, formats, rotary_width=rotary)
    counted = job.version >= DRAFT_COUNTED_SINCE
    loaded = reserved_bytes(weights if counted else without_draft(weights))
    # what a process sees free before it loads anything: the card less its context and its communicators
    outside = tuple(corrected_tensor(job, tensor) for tensor in communication(job))
    before = job.cluster.gpu.free_bytes - (job.cluster.gpu.context_bytes or 0)
    before -= sum(tensor.num_bytes for tensor in outside)
    left = round(settings.fraction * before) - loaded
    if counted and stage.last:
        left -= unused_draft_bytes(job.model, plan, apart=layout.apart)
    if job.version >= IMAGES_SINCE and sees(job.model):
        left -= IMAGE_CACHE
    left = left if plan.cache_bytes is None else plan.cache_bytes
    return _Worker(stage, weights, loaded, outside, before, left, sized(job, settings, stage, left))


def _rank(job: ServeJob, settings: Settings, worker: _Worker, pools: Pools, running: int) -> ServingRank:
    stage, plan = worker.stage, job.plan
    proposed = plan.draft.tokens if plan.draft is not None else 0
    kept: tuple[Tensor, ...] = (
        Tensor(name="token pools", num_bytes=pools.num_bytes, category=Category.CACHE, source=SOURCE,
               formula=joined(", ", (Note("{:,} " + name, count) for name, count in pools.reported_tokens.items()))),
        *_beside_pools(worker.sized, pools),
        corrected_tensor(job, graphs(job, settings)),
        request_table(running, job.context, proposed),
        attention_workspace(),
    )
    # one prefill chunk, then the logits of as many sequences as graphs are captured for
    rows = max(1, settings.graph_sequences)
    step = forward_step(job, stage, tokens=settings.chunk, sequences=rows, source=SOURCE)
    serving = (*map(Alloc, kept), *step)
    program = RankProgram(
        role=stage.role,
        count=plan.tp * plan.dp,
        phases={Phase.LOAD: worker.weights, Phase.SERVING: serving},
        outside=worker.outside,
    )
    return ServingRank(
        program=program,
        cache=pools,
        budget=Budget(settings.fraction, worker.before) if plan.cache_bytes is None else None,
        startup={"weights": worker.loaded, "KV cache": worker.left, **halves(job, settings, stage, pools)},
    )


def _beside_pools(sizes: Sized, pools: Pools) -> tuple[Tensor, ...]:
    """What no request fills, and what a draft keeps apart from the target's pools."""
    slots = pools.full_tokens + pools.page_tokens
    tensors = (
        Tensor(name="padding of the pools", num_bytes=padding_bytes(pools), category=Category.CACHE, source=SOURCE),
        Tensor(name="draft pool", num_bytes=slots * sizes.draft_token_bytes, category=Category.DRAFT, owner="draft",
               formula=Note("{:,} tokens x {:,} B", slots, sizes.draft_token_bytes), source=SOURCE),
        Tensor(name="states of proposed tokens", num_bytes=sizes.beside_bytes, category=Category.DRAFT, owner="draft",
               source=f"{SOURCE} `_handle_max_mamba_cache`"),
    )
    return tuple(tensor for tensor in tensors if tensor.num_bytes)


def unused_draft_bytes(model: Model, plan: ServePlan, *, apart: int = 1) -> int:
    """Embedding and head of a draft that the target's take the place of: there while the pools are sized [bytes].

    Source: github.com/sgl-project/sglang/issues/36452; EAGLE-3 drafts use a head of their own
    """
    draft, tp = plan.draft, plan.tp
    if draft is None or not (draft.kind in EAGLE or draft.kind == "mtp"):
        return 0
    table = TABLE_WIDTH * model.vocab * model.hidden
    embedding, head = table // tp if apart == 1 else table, table // (tp * apart)
    return embedding + (head if draft.kind != "eagle3" else 0)
