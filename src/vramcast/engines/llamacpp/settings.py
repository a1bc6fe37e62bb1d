"""What llama.cpp and ik_llama.cpp choose where a question leaves it open, by build.

[context] ggml-org/llama.cpp src/llama-context.cpp `llama_context`; the build number of a change is the number of
commits up to it. [ik] ikawrakow/ik_llama.cpp src/llama.cpp `llama_new_context_with_model`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.serving import ServeJob
from vramcast.engines.ggml.scheduler import CUDA, HOST, Memory
from vramcast.engines.serving.requests import FLAG, Known, Value, typed_options
from vramcast.errors import UnknownName
from vramcast.states.ggml import TYPES
from vramcast.units import round_up

SINCE: Final = {
    "ordered inputs": 4881,  # 12181: queries, keys and values of encoders are computed before anything reads them
    "sliding cache": 5429,  # pull request 13194: windows have a cache of their own
    "compressed latent": 5137,  # 12801: DeepSeek's keys and values stay compressed
    "fused gates": 5776,  # 14158: one operator for silu(gate) * up
    "streams": 5913,  # 14363: a cache per sequence unless unified
    "ordered experts": 5937,  # 14596: views of experts before their sum
    "set rows": 6073,  # 14959: the cache is written by indices
    "flash by default": 6325,  # 15434: flash attention where the cards can, all layers on the cards
    "early weights": 6583,  # 16130
    "shrinking": 6808,  # 16679: the rest of a reused tensor is given back
    "clamped weights": 6844,  # 16655
    "four slots": 6925,  # 16736: the server opens four slots over one unified cache
    "padded context": 6975,  # 17046: contexts and windows are multiples of 256
    "unpadded mask": 7350,  # 17910
    "fit": 7407,  # 16653: --fit leaves 1024 MiB of each card free
    "half mask": 9410,  # 23764: the mask is f16 from the start
    "fewer outputs": 9460,  # 23861: the server asks for one row of logits per slot
}
"""First build of llama.cpp that does so."""

CONTEXT_MULTIPLE: Final = 256
FORK_MULTIPLE: Final = 32  # without flash attention, also llama.cpp before `padded context`
MASK_MULTIPLE: Final = 64  # GGML_KQ_MASK_PAD

DEFAULT_BATCH: Final = 2048
DEFAULT_MICRO_BATCH: Final = 512

CACHE_TYPES: Final = {"auto": "f16", "fp16": "f16", "bf16": "bf16", "fp32": "f32"}
"""Names of cache types elsewhere -> ggml's."""

OPTIONS: Final[dict[str, Known]] = {
    "batch": Known(int, most=1 << 24),  # -b: tokens of a logical batch
    "kv-unified": FLAG,  # -kvu: one cache for all slots
    "swa-full": Known(bool, about="windows"),  # --swa-full: windows keep the whole context
    "cpu-moe": Known(bool, about="experts"),  # --cpu-moe: experts of all layers on the host
    "n-cpu-moe": Known(int, least=0, most=1 << 16, about="experts"),  # --n-cpu-moe: of the first layers
    "override-tensor": Known(str),  # -ot PATTERN=BUFFER[,PATTERN=BUFFER]
    "tensor-split": Known(str),  # -ts 3,1: shares of the cards
    "split-mode": Known(str, choices=("layer", "none")),  # -sm
    "device": Known(str, choices=("none",)),  # --device none: no card at all
    "fit": Known(str, choices=("off", "context")),  # --fit off; context: nothing but that, -ngl is given
    "op-offload": FLAG,  # --no-op-offload: host weights are not brought to a card for large batches
    "kv-offload": FLAG,  # -nkvo: the cache stays on the host
    "threads": Known(int, most=1 << 16),  # -t: cores that compute what lies on the host
    "host-bandwidth": Known(int, most=1 << 16),  # not the engine's: what main memory reads, as measured [GB/s]
    "mla": Known(int, least=0, most=3, about="latents"),  # ik_llama.cpp -mla 0 to 3
    "mmproj": Known(str, choices=("none", "auto", "f16", "bf16", "f32", "q8_0")),  # --mmproj: the type of its matrices;
    # auto: f16 where the network has a tower
    "mmproj-offload": FLAG,  # --no-mmproj-offload: the projector stays on the host
    "image-min-tokens": Known(int, most=1 << 16, about="towers"),  # of an image, whatever its size
    "image-max-tokens": Known(int, most=1 << 16, about="towers"),
    "parallel-copies": FLAG,  # pipeline parallelism where the engine would use it
}
"""Engine options and what their values may be."""

FORK_OPTIONS: Final[dict[str, Known]] = OPTIONS | {
    "amb": Known(int, least=0, most=1 << 24),  # -amb: largest piece of attention scores [MiB]
    "fmoe": Known(bool, about="experts"),  # -fmoe: fused experts
    "rtr": FLAG,  # -rtr: host weights are repacked at load
}
"""Those of ik_llama.cpp."""


class Settings(NamedTuple):
    """One context's settings, every default filled in."""

    build: int
    fork: bool  # ik_llama.cpp
    context: int  # cells of the cache over all slots
    slots: int
    unified: bool
    micro_batch: int
    outputs: int  # rows of logits a reserved graph computes
    flash: bool
    k_type: str
    v_type: str
    swa_full: bool
    latent: int  # MLA mode: 0 decompressed, 1 to 3 as ik_llama.cpp numbers them; llama.cpp: 0 or 1
    score_batch: int  # largest piece of scores computed at once [MiB], 0: all
    fused_experts: bool
    op_offload: bool
    cache_on_cards: bool
    repacked: bool

    def has(self, change: str) -> bool:
        """Whether this build does what a key of SINCE names."""
        return not self.fork and self.build >= SINCE[change]

    @property
    def streams(self) -> int:
        """Caches beside each other."""
        return self.slots if self.has("streams") and not self.unified else 1

    @property
    def tokens(self) -> int:
        """Tokens of the largest graph: a micro-batch, a multiple of the sequences it is made of."""
        tokens = min(self.context, self.micro_batch)
        return round_up(tokens, self.slots) if self.has("streams") else tokens

    @property
    def mask_rows(self) -> int:
        """Rows of the attention mask over all streams."""
        return self.tokens if self.has("unpadded mask") else round_up(self.tokens, MASK_MULTIPLE)

    @property
    def memories(self) -> tuple[Memory, Memory]:
        """What buffers of a card and of the host are like."""
        return (
            CUDA._replace(shrinks=self.has("shrinking")),
            HOST._replace(shrinks=self.has("shrinking")),
        )


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: UnknownName for an engine option or cache type, InvalidSpec for a value of the wrong type
    """
    options = checked_options(job)
    plan, fork, build = job.plan, job.engine == "ik_llama.cpp", job.version[0]
    slots = plan.max_sequences or job.requests.concurrency
    base = Settings(
        build=build, fork=fork, context=job.context * job.requests.concurrency, slots=slots,
        unified=bool(options.get("kv-unified", slots == 1)), micro_batch=plan.micro_batch or DEFAULT_MICRO_BATCH,
        outputs=0, flash=_flash(job), k_type=cache_type(plan.kv_dtype),
        v_type=cache_type(plan.v_dtype or plan.kv_dtype),
        swa_full=bool(options.get("swa-full", False)), latent=int(options.get("mla", 3 if fork else 1)),
        score_batch=int(options.get("amb", 0)), fused_experts=fork and bool(options.get("fmoe", False)),
        op_offload=bool(options.get("op-offload", True)), cache_on_cards=bool(options.get("kv-offload", True)),
        repacked=fork and bool(options.get("rtr", False)),
    )
    batch = int(options.get("batch", DEFAULT_BATCH))
    settings = base._replace(context=_padded(base), micro_batch=min(base.micro_batch, batch))
    if not fork and build < SINCE["compressed latent"]:
        settings = settings._replace(latent=0)
    outputs = min(settings.tokens, slots) if settings.has("fewer outputs") else settings.tokens
    return settings._replace(outputs=outputs)


def _flash(job: ServeJob) -> bool:
    """Flash attention: as asked, else on where the build chooses it by itself."""
    if job.plan.attention is not None:
        return job.plan.attention == "flash"
    if job.engine == "ik_llama.cpp":
        return False
    return job.version[0] >= SINCE["flash by default"]


def _padded(settings: Settings) -> int:
    """The context as allocated, over all streams [cells]."""
    multiple = CONTEXT_MULTIPLE if settings.flash or settings.has("padded context") else FORK_MULTIPLE
    per_stream = -(-settings.context // settings.streams)
    return round_up(per_stream, multiple) * settings.streams


def cache_type(name: str) -> str:
    """ggml's name of a cache type."""
    found = CACHE_TYPES.get(name, name)
    if found not in TYPES:
        raise UnknownName.of("cache dtype", name, (*CACHE_TYPES, "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"))
    return found


def checked_options(job: ServeJob) -> dict[str, Value]:
    """The engine options, each known and of its type."""
    return typed_options(job, FORK_OPTIONS if job.engine == "ik_llama.cpp" else OPTIONS)
