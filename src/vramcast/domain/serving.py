"""What is asked of a serving plan, and how an engine answers: rank programs and the cache that requests fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import Struct

from vramcast.domain.calibration import Calibration
from vramcast.domain.device import Cluster
from vramcast.domain.job import RankProgram, require_count, require_counts
from vramcast.domain.model import Model, Noun, StoredWeights
from vramcast.domain.version import Version as Version
from vramcast.errors import InvalidSpec

if TYPE_CHECKING:
    from vramcast.domain.pipeline import Pipeline


LONGEST_SIDE: Final = 2**14
"""Of a generated image: 1,024 patches of 16 pixels [diffusers WanTransformer3DModel rope_max_seq_len]."""
MOST_FRAMES: Final = 2**12
"""The same of a video: 1,024 latent frames, four frames each."""
MOST_PIXELS: Final = 2**29
"""Of all frames: 1,344 of 480 x 832, 291 of 1280 x 1440."""


class Requests(Noun, frozen=True):
    """The load: how long sequences are and how many run at once."""

    context: int | None = None  # longest sequence served, prompt and answer [tokens]; None: as the model was trained
    concurrency: int = 1  # sequences in flight [count]
    input_len: int | None = None  # tokens of a prompt; None: the context less the output
    output_len: int | None = None  # tokens of an answer
    images: int = 0  # images in a prompt
    image_size: int | None = None  # pixels per side
    height: int | None = None  # of a generated image or video [pixels]
    width: int | None = None
    frames: int = 1  # of a generated video

    def __post_init__(self) -> None:
        counts = ("context", "concurrency", "input_len", "output_len", "image_size", "height", "width", "frames")
        require_counts(self, *counts, zero=("images",))


class Traffic(Noun, frozen=True):
    """Requests that arrive by themselves, and what is promised to those who send them."""

    rate: float | None = None  # requests a second, of all replicas; None: as in `arrivals`
    arrivals: tuple[tuple[float, int, int], ...] = ()  # second, tokens of the prompt, of the answer
    burstiness: float = 1.0  # shape of the gamma distribution between two of them; 1: Poisson, less: in bursts
    num_requests: int | None = None  # that are simulated; None: ten minutes of them, at least a thousand
    seed: int = 0
    shared_prefix: int = 0  # tokens that all prompts begin with
    replicas: int = 1  # deployments behind one router
    router: str = "round-robin"
    slo: dict[str, float] = {}  # latency -> most seconds

    def __post_init__(self) -> None:
        require_counts(self, "num_requests", "replicas", zero=("shared_prefix", "seed"))
        for name in ("rate", "burstiness"):
            value = getattr(self, name)
            if value is not None and not 1e-6 <= value <= 1e6:
                raise InvalidSpec("{}={:g} must lie between 0.000001 and 1000000", name, value)


class Draft(Noun, frozen=True):
    """Speculative decoding: what proposes tokens, and how many at once."""

    kind: Literal["model", "eagle", "eagle3", "mtp", "ngram", "medusa"] = "model"
    tokens: int = 1
    model: Model | None = None  # MODEL: a network of its own; EAGLE: None means one layer like the target's

    def __post_init__(self) -> None:
        require_count("draft-tokens", self.tokens)


class ServePlan(Noun, frozen=True):
    """How the network is split over cards, stored, and given room. None leaves a choice to the engine's default."""

    tp: int = 1
    pp: int = 1
    dp: int = 1  # whole copies; attention is data-parallel where experts are shared
    attention_dp: bool = False  # copies attend apart and share experts, each divided over tp x dp
    expert_parallel: bool = False  # experts over tp x dp instead of split inside
    dcp: int = 1  # decode context parallelism: the cache divided over ranks of a tensor-parallel group
    weights: str | None = None  # key of `states.storage.FORMATS` or a GGUF mix; None: as the checkpoint stores them
    dtype: str | None = None  # of activations and unquantised weights
    kv_dtype: str = "auto"
    v_dtype: str | None = None  # llama.cpp: of values, when not as keys
    memory_fraction: float | None = None  # vLLM gpu_memory_utilization, SGLang mem_fraction_static, TRT-LLM fraction
    cache_bytes: int | None = None  # an absolute size of the cache instead of a fraction [bytes]
    max_sequences: int | None = None  # vLLM max_num_seqs, SGLang max_running_requests, TRT-LLM max_batch_size
    batched_tokens: int | None = None  # vLLM max_num_batched_tokens, SGLang chunked prefill, TRT-LLM max_num_tokens
    micro_batch: int | None = None  # llama.cpp -ub
    block_tokens: int | None = None  # tokens of one cache block
    graphs: bool = True  # CUDA graphs
    prefix_caching: bool | None = None
    lora_slots: int = 0  # adapters on the card at once
    lora_rank: int = 16
    draft: Draft | None = None
    gpu_layers: int | None = None  # llama.cpp: layers on cards, the rest on the host
    attention: str | None = None  # "eager", "sdpa", "flash": implementation, where the engine lets one choose
    offload: Literal["none", "model", "sequential", "group"] = "none"  # diffusers: what waits on the host
    tiling: bool = False  # diffusers: the VAE decodes in tiles
    slicing: bool = False  # diffusers: the VAE decodes one image after the other

    def __post_init__(self) -> None:
        limits = ("cache_bytes", "max_sequences", "batched_tokens", "micro_batch", "block_tokens")
        require_counts(self, "tp", "pp", "dp", "dcp", "lora_rank", *limits, zero=("lora_slots", "gpu_layers"))
        fraction = self.memory_fraction
        if fraction is not None and not 0.0 < fraction <= 1.0:
            raise InvalidSpec("memory-fraction={} must lie above 0 and up to 1, for example 0.9", fraction)

    @property
    def num_ranks(self) -> int:
        """Cards one deployment takes."""
        return self.tp * self.pp * self.dp


class ServingQuestion(Noun, frozen=True, kw_only=True):
    """What questions about language models and about pipelines share."""

    requests: Requests
    plan: ServePlan
    cluster: Cluster
    engine: str
    version: Version  # of the engine
    engine_options: dict[str, str | int | float | bool] = {}


class PipelineJob(ServingQuestion, frozen=True, kw_only=True):
    """One question about a diffusion pipeline, complete."""

    pipeline: Pipeline

    def __post_init__(self) -> None:
        height, width = self.size
        for name, value, most in (("height", height, LONGEST_SIDE), ("width", width, LONGEST_SIDE),
                                  ("frames", self.frames, MOST_FRAMES)):
            if value > most:
                raise InvalidSpec(
                    "{}={} is more than any pipeline generates at once; use at most {}", name, value, most
                )
        if height * width * self.frames > MOST_PIXELS:
            raise InvalidSpec(
                "height={} x width={} x frames={} are more pixels than any pipeline generates at once; use at most "
                "{:,}", height, width, self.frames, MOST_PIXELS
            )

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what is generated [pixels]."""
        return self.requests.height or self.pipeline.height, self.requests.width or self.pipeline.width

    @property
    def frames(self) -> int:
        """Of what is generated."""
        return self.requests.frames if self.requests.frames > 1 else self.pipeline.frames


class ServeJob(ServingQuestion, frozen=True, kw_only=True):
    """One serving question, complete."""

    model: Model
    weights: StoredWeights | None = None  # tensors of the checkpoint, where headers were at hand
    calibration: Calibration | None = None  # what a measured run taught; engines apply it where they size things
    traffic: Traffic | None = None  # None: a closed load of `requests.concurrency` users

    def __hash__(self) -> int:  # options of an engine are a table, which has none
        return hash((self.requests, self.plan, self.cluster, self.engine, self.version, self.model.name))

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        said = (self.requests.input_len or 0) + (self.requests.output_len or 0)
        return self.requests.context or self.model.context or max(DEFAULT_CONTEXT, said)


DEFAULT_CONTEXT = 4096
"""Where neither the question nor the model names a longer one [tokens]."""


class Cache(Protocol):
    """What requests are kept in on one rank: keys and values, recurrent states."""

    @property
    def num_bytes(self) -> int:
        ...

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence of so many tokens takes of it, rounded as the engine rounds [bytes]."""
        ...

    @property
    def reported_tokens(self) -> dict[str, int]:
        """How many tokens the cache holds, by what is counted; the first is the figure the engine logs."""
        ...


class Budget(Struct, frozen=True):
    """The share of some memory that an engine takes for its cache and what it counts beside it."""

    fraction: float
    of_bytes: int


class ServingRank(Struct, frozen=True, kw_only=True):
    """Ranks of one role of a deployment."""

    program: RankProgram  # phases load, (warm-up,) serving
    cache: Cache | None = None  # None: nothing is generated (embedding and reranking models)
    budget: Budget | None = None  # None: the cache is not sized by a fraction
    startup: dict[str, int] = {}  # figures the engine prints when it starts, by what it calls them [bytes]
    grows: bool = False  # the cache is what the card leaves, taken as sequences come; else it is allocated as a whole


class Deployment(Struct, frozen=True, kw_only=True):
    """An engine's answer to a serving question."""

    ranks: tuple[ServingRank, ...]
    assumptions: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()  # what changes how the answer is to be read
    warnings: tuple[str, ...] = ()
    fitting_context: Callable[[], int] | None = None  # of a cache allocated as asked that does not fit: tokens that do
    advice: Callable[[], tuple[str, ...]] = tuple  # more warnings, that take work: for an answer that is shown
