"""How engines run a forward, and what one step of it does, kernel by kernel: operations, bytes, messages.

Seconds and shares are fitted: those of `transformers` on the speeds that Qwen2, Qwen2.5 and Qwen3 publish (134 runs on
A100 and H20, 0.5B to 72B, batch 1), the others on `truth/speeds.csv`. `python -m benchmarks.speed` prints what is left
of the error.

[dynamic] transformers cache_utils.py `DynamicLayer.update`: keys and values are concatenated anew in every step.
[repeat] transformers models/qwen2/modeling_qwen2.py `repeat_kv` before the attention kernel.
[experts] transformers models/qwen3_moe/modeling_qwen3_moe.py (4.51) `Qwen3MoeSparseMoeBlock.forward`: a Python loop
over all experts, those without a token included.
[vllm] vllm/model_executor/layers: QKV and gate/up projections are one product, the residual is added in the norm.
[async] vllm/config/scheduler.py `async_scheduling`, on by default since 0.14
[reserves] NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp `GuaranteedNoEvictScheduler`
[xqa] NVIDIA/TensorRT-LLM @138f96d4 (0.6) docs/source/gpt_attention.md "Generation Phase": one thread block a head;
@b57221b7 "XQA Optimization": on by default
[sent] tensorrt_llm/_torch/pyexecutor/py_executor.py `_handle_responses`: a response of every step only where it streams
[graphs] tensorrt_llm/llmapi/llm_args.py `CudaGraphConfig._generate_cuda_graph_batch_sizes` with `enable_padding`
[mmq] ggml-org/llama.cpp ggml/src/ggml-cuda/mmq.cu: quantised weights times activations in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.targets import JOINED
from vramcast.domain.model import Parameter
from vramcast.states.storage import format_for
from vramcast.units import ceil_div

Version = tuple[int, ...]


class Execution(Struct, frozen=True):
    """One engine's way of running a forward."""

    eager: bool = False  # operators one by one from Python, whatever the card does meanwhile
    launch_s: float = 6e-6  # host time of one kernel that no CUDA graph replays, where LAUNCH_S does not say [s]
    kernel_s: float = 2.5e-6  # start and end of one kernel on the card, during which it moves nothing [s]
    step_s: float = 0.5e-3  # scheduling, sampling and copies between two steps [s]
    ahead: bool = False  # the host does that for the next step while the card computes this one [async]
    scheduled_ahead: bool = False  # a step is put together while the one before runs [see timing.batching]
    sequence_s: float = 0.0  # the same for each sequence that generates [s]
    sent_s: float = 0.0  # and where each token is sent to its user at once [s] [sent]
    front_s: float = 0.0  # what a first token waits for beside the scheduler: connection, text of the answer [s]
    text_s: float = 0.0  # text is taken apart one prompt behind the other, each token of them in this time [s]
    fused: bool = True  # [vllm]
    mixed: bool = True  # prompts and sequences that generate share a step
    chunks: bool = True  # prompts are cut where the tokens of a step end
    whole_prompt: bool = False  # who is admitted has blocks for all tokens it has then [see timing.batching, full]
    reserves: bool = False  # who is admitted has blocks for its whole answer [reserves]
    pipelined: bool = True  # stages work on different sequences at the same time
    copies_cache: bool = False  # [dynamic] [repeat]
    rereads: float = 0.0  # share of a cache that each further query head of a group reads anew in generation [xqa]
    loops_experts: int = 0  # kernels beside the products in a loop over all experts, for each [experts]
    meets_experts: bool = False  # that loop leaves out experts without a token
    sequence_bytes_per_s: float | None = None  # one sequence's cache is read no faster, however fast the memory
    graph_sizes: bool = False  # fewer sequences than a graph was captured for are computed as so many [graphs]
    integer_share: float = 1.0  # of the 8-bit rate, with weights that are unpacked on the way [mmq]
    format_kernels: tuple[tuple[str, float], ...] = ()  # format -> kernels of one product with such weights
    format_shares: tuple[tuple[str, float], ...] = ()  # format -> share of the achieved bandwidth at one row

    def taken_s(self, busy_s: float, hosted_s: float, sequences: int) -> float:
        """A step whose kernels take so long on the card, and so long to start; of so many that generate [s]."""
        between_s = self.step_s + sequences * self.sequence_s
        return max(busy_s, hosted_s, between_s) if self.ahead else max(busy_s, hosted_s) + between_s

    def computed(self, sequences: int, most: int) -> int:
        """Sequences that generate, with those that fill up a graph: multiples of 8 up to 128, then powers of two.

        Args:
            most: that run at once, for which there is a graph, too

        >>> [Execution(graph_sizes=True).computed(sequences, 384) for sequences in (1, 3, 100, 200, 300)]
        [1, 4, 104, 256, 384]
        """
        if not self.graph_sizes or sequences <= 2:
            return sequences
        whole = 8 * ceil_div(sequences, 8) if 4 < sequences <= 128 else 1 << (sequences - 1).bit_length()
        return max(sequences, min(most, whole))

    def kernels_of(self, stored: str) -> float:
        """Kernels of one product with weights of that format."""
        return dict(self.format_kernels).get(stored, 1.0)

    def share_of(self, stored: str) -> float:
        """Share of the achieved bandwidth that a product with weights of that format reaches."""
        return dict(self.format_shares).get(stored, 1.0)


EAGER_FORMATS: Final = (("awq-int4", 3.0), ("gptq-int8", 2.5), ("fp8", 10.0), ("fp8-block", 10.0))

EAGER_SHARES: Final = (
    ("bf16", 0.66), ("fp16", 0.66), ("awq-int4", 0.28), ("gptq-int4", 0.28), ("gptq-int8", 0.37), ("fp8", 0.06),
    ("fp8-block", 0.06),
)

EAGER: Final = Execution(
    eager=True, launch_s=15e-6, step_s=1e-3, fused=False, pipelined=False, copies_cache=True, loops_experts=5,
    sequence_bytes_per_s=0.48e12, format_kernels=EAGER_FORMATS, format_shares=EAGER_SHARES,
)

GGML: Final = Execution(step_s=0.2e-3, pipelined=False, integer_share=0.33)

VLLM: Final = Execution(step_s=1.5e-3, front_s=13e-3, text_s=9e-6)
VLLM_AHEAD: Final = replace(VLLM, step_s=0.8e-3, ahead=True, scheduled_ahead=True)
TENSORRT: Final = Execution(
    chunks=False, reserves=True, scheduled_ahead=True, launch_s=60e-6, sent_s=8e-6, front_s=2e-3, text_s=2e-6,
    graph_sizes=True,
)
SGLANG: Final = Execution(
    mixed=False, whole_prompt=True, scheduled_ahead=True, launch_s=140e-6, sequence_s=20e-6, front_s=9e-3, text_s=9e-6,
)
"""Fitted beside the kernels: one half of the configurations of `benchmarks.serving_times`, which scores the other.
Forwards of prompts are started operator by operator, from Python, where vLLM compiles them."""

PYTORCH_SINCE: Final[Version] = (1,)
"""TensorRT-LLM's PyTorch backend is the default. What its host does for every sequence between two steps was 8 us in
runs that stream; 5 of them are left where it sends nothing (80 full loads of H100, H200 and B200 in
`truth/speeds.csv`)."""

TENSORRT_AHEAD_SINCE: Final[Version] = (1, 1)
"""From then on runs show nothing of the host between two steps, which the overlap scheduler does meanwhile
[tensorrt_llm/_torch/pyexecutor/py_executor.py `_executor_loop_overlap`]; 285 runs of 1.0.0rc3 show it. Decided on one
half of the configurations of `benchmarks.serving_times`; on the other, B200 went from 11.0 to 7.7 % between tokens."""

BUILT: Final = replace(
    TENSORRT, scheduled_ahead=False, graph_sizes=False, launch_s=Execution().launch_s, sent_s=0.0, front_s=10e-3)
"""Engines that TensorRT built, under a runtime in C++."""

SHARED_HEADS_SINCE: Final[Version] = (0, 8)
"""From then on query heads that share keys and values read them once [xqa]. Before, a thread block of each reads them
itself and the second cache serves the rest: 70 % go to memory on H100 (fitted on 8 rows of `truth/speeds.csv`; five of
A100, which nothing was fitted on, went from 58 % too fast at worst to 20 % too slow)."""

VLLM_AHEAD_SINCE: Final[Version] = (0, 14)
"""From then on the scheduler runs a step ahead of the card by default [async]."""

VLLM_WHOLE_PROMPT_SINCE: Final[Version] = (0, 19)
"""`scheduler_reserve_full_isl` [vllm/config/scheduler.py]."""

EXECUTIONS: Final[dict[str, tuple[tuple[Version, Execution], ...]]] = {
    "vllm": (
        (VLLM_WHOLE_PROMPT_SINCE, replace(VLLM_AHEAD, whole_prompt=True)),
        (VLLM_AHEAD_SINCE, VLLM_AHEAD),
        ((0, 8), replace(VLLM, step_s=0.8e-3, sent_s=40e-6)),
        ((0,), VLLM),
    ),
    "sglang": (((0,), SGLANG),),
    "tensorrt-llm": (
        (TENSORRT_AHEAD_SINCE, replace(TENSORRT, ahead=True)),
        (PYTORCH_SINCE, replace(TENSORRT, sequence_s=5e-6, sent_s=3e-6)),
        (SHARED_HEADS_SINCE, BUILT),
        ((0,), replace(BUILT, rereads=0.7)),
    ),
    "tgi": (((0,), Execution()),),
    "lmdeploy": (((0,), Execution()),),
    "llama.cpp": (((0,), GGML),),
    "ik_llama.cpp": (((0,), GGML),),  # on cards the fork starts the same kernels
    "transformers": (
        ((4, 50), replace(EAGER, format_kernels=EAGER_FORMATS[1:])),
        ((0,), EAGER),
    ),
}
"""Engine -> first version -> how it runs, newest first. An engine that is not here has no speed."""

LAUNCH_S: Final[dict[str, float]] = {"Ampere": 19e-6, "Hopper": 11e-6}
"""Host time of one eager operator by the card's generation, which stands for that of its host: the A100 servers of
Qwen2 and Qwen2.5, the H20 servers of Qwen3 [s]."""


def execution_of(engine: str, version: Version, *, arch: str) -> Execution | None:
    """How a version of an engine runs on a host of a card's generation; None for an engine without speeds."""
    found = next((run for since, run in EXECUTIONS.get(engine, ()) if version >= since), None)
    if found is None or not found.eager:
        return found
    return replace(found, launch_s=LAUNCH_S.get(arch, found.launch_s))


FUSED: Final[dict[str, str]] = {
    part: parts[0] for parts in (*JOINED.values(), ("attention.q_a", "attention.kv_a")) for part in parts[1:]
}
"""Products that engines compute in one kernel with another, where the layer has that other one."""

SCAN_CHUNK: Final = 64
"""Tokens of a chunk in linear-attention kernels [fla-org/flash-linear-attention]."""


class Sizes(Struct, frozen=True):
    """What measured kernels of one kind are looked up by; see `timing.kernels`."""

    kind: str  # key of `kernels.LAWS`
    point: tuple[float, ...]  # of the axes of its tables
    fixed: Mapping[str, float]  # what else its law takes
    stored: str = ""  # format of weights, or of a cache


class Work(Struct, frozen=True):
    """One operator on one rank."""

    name: str  # "attention.q", "norm"
    flops: float = 0.0
    operands: str = ""  # storage format of the weights, which decides the rate of the products; "": the model's dtype
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0  # keys, values and recurrent states, read and written
    activation_bytes: float = 0.0
    bytes_per_s: float | None = None  # where the kernel itself moves no more, however fast the memory
    message_bytes: float = 0.0  # of one rank's part in a collective
    ranks: int = 1  # of that collective
    pattern: str = ""  # key of `links.PATTERNS`
    kernels: float = 1.0
    sizes: Sizes | None = None  # None: nobody measured such kernels

    @property
    def num_bytes(self) -> float:
        """Everything moved between the card's memory and its processors [bytes]."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


class Step(Struct, frozen=True):
    """One forward on one rank: sequences, the tokens each brings, and those already cached."""

    sequences: int
    tokens: int  # new ones of each sequence
    cached: int = 0  # of each sequence, before this step
    head_rows: int = 1  # positions of each sequence whose logits are computed
    proposed: int = 0  # tokens of a draft beside each sequence's own, all at once
    computed: int = 0  # sequences with those that fill up a graph; 0: there are none

    @property
    def rows(self) -> int:
        """Rows of every matrix product."""
        return (self.computed or self.sequences) * (self.tokens + self.proposed)

    @property
    def decodes(self) -> bool:
        """Whether every sequence brings one token, and what was proposed behind it."""
        return self.tokens == 1 and self.cached > 0


class Placement(Struct, frozen=True):
    """How the network lies on the ranks, and in which formats."""

    quantised: str = "bf16"  # key of `states.storage.FORMATS` for the weights that quantisers convert
    whole: str = "bf16"  # of all others, and the dtype of activations
    k_dtype: str = "bf16"
    v_dtype: str | None = None
    tp: int = 1
    ep: int = 1  # ranks over which whole experts are spread
    dcp: int = 1  # ranks over which a sequence's cache is spread
    left_whole: tuple[str, ...] | None = None  # see `states.storage.format_for`
    experts_by: str = ""  # behind their format, where tables tell one library's products of experts from another's

    def stored_as(self, parameter: Parameter) -> str:
        """Key of FORMATS: how a weight is stored."""
        return format_for(parameter, quantised=self.quantised, whole=self.whole, left_whole=self.left_whole)

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return 4 if self.whole == "fp32" else 2


class Setting(Struct, frozen=True):
    """What a step's work depends on beside the network."""

    step: Step
    placement: Placement
    execution: Execution


ROUTING: Final = "routing"
"""The choice of experts by their logits, and the order of tokens by expert."""

MEASURED: Final = ("all-reduce", "all-gather", "all-to-all")
"""Collectives that tables hold."""


def collective(pattern: str, num_bytes: float, *, ranks: int) -> Work:
    """A message between ranks; no kernel of its own is counted, its latency holds the launch."""
    sizes = Sizes("collective", (float(ranks), max(1.0, num_bytes)), {}, pattern) if pattern in MEASURED else None
    return Work(pattern, message_bytes=num_bytes, ranks=ranks, pattern=pattern, kernels=0.0, sizes=sizes)
