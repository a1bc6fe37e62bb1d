"""The step vLLM profiles before it sizes the cache: a forward of the largest batch, then the sampler.

Symbols:  T batched tokens   H hidden   F feed-forward width of one rank   V vocabulary   S sequences
[runner] vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`, `_dummy_sampler_run`: what the encoder is
fed and what it returns stays alive beside the forward; logits are those of every rank, whatever the tensor parallelism
[sampler] vllm/v1/sample/sampler.py, ops/topk_topp_sampler.py: logits in fp32, their softmax, exponential noise
[triton] vllm/v1/sample/ops/topk_topp_triton.py: a row of V fp32 per multiprocessor, kept from the first call on
[experts] vllm/model_executor/layers/fused_moe/fused_moe.py `fused_experts`: two workspaces and an output, kept
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from vramcast.domain.model import MLP, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Node, Program, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.encoder import encoder_layer, encoder_tensors
from vramcast.engines.vllm.settings import Settings
from vramcast.units import MIB, ceil_div

FP32: Final = 4

SORT_BYTES: Final = 38.4
"""Bytes per sequence and vocabulary entry while the vocabulary is sorted (to 0.16): fp32 logits, sorted values, 64-bit
indices and the buffers of the sort. Fitted on 15 start-up logs of 0.6 to 0.16: within 4 %, 11 of them within 1 %."""

SORTS_UNTIL: Final[Version] = (0, 17)
"""First version that truncates with a Triton kernel instead of a sort [triton]."""

MULTIPROCESSORS: Final = 132
"""Rows of the Triton kernel's buffer, as on H100; cards have 40 to 148, which moves a peak by 3 % at most."""

BLAS_WORKSPACE: Final = 32 * MIB
"""cuBLAS workspace of the sampling stream on Hopper [pytorch aten/src/ATen/cuda/CublasHandlePool.cpp]."""

WORKSPACES_KEPT_SINCE: Final[Version] = (0, 12)
"""Before, experts' workspaces were freed after each layer [vllm/v1/worker/workspace.py came then]."""

HIDDEN_COPIES: Final = 4.25
"""Tensors of T x H alive while the widest layer runs: residuals before and after, attention output, normed states and a
quarter for rotary embeddings. The quarter was fitted on one log of 0.19 and met a second one to 0.01 GiB."""


def profiled_step(
    model: Model, settings: Settings, stage: Stage, *, tp: int, experts_divided: int, eight_bit: bool
) -> Program:
    """The step whose peak vLLM subtracts from the cache.

    Args:
        model: the network
        settings: batch and versions
        stage: layers of the rank
        tp: ranks that share a layer's matrices
        experts_divided: ranks that share one expert's matrices
        eight_bit: whether activations are quantised to 8 bits before each product
    """
    workspaces = tuple(_expert_workspaces(model, settings, stage, experts_divided))
    keeps = settings.version >= WORKSPACES_KEPT_SINCE
    kept = [*encoder_tensors(model, settings, stage), *(workspaces if keeps else ())]
    nodes: list[Node] = [Alloc(tensor) for tensor in kept]
    nodes += _transient(encoder_layer(model, settings, stage, tp=tp))
    forward = _forward(model, settings, stage, tp=tp, eight_bit=eight_bit)
    sent = () if stage.last else _handed_on(model, settings)
    nodes += _transient(chain(forward, sent, () if keeps else workspaces))
    nodes += _transient(_sampler(model, settings)) if stage.last else ()
    return (*nodes, *(Free(tensor) for tensor in kept))


def _transient(tensors: Iterable[Tensor]) -> Iterator[Node]:
    alive = tuple(tensors)
    yield from map(Alloc, alive)
    yield from map(Free, alive)


def _forward(model: Model, settings: Settings, stage: Stage, *, tp: int, eight_bit: bool) -> Iterator[Tensor]:
    """The widest moment of the widest layer: up projections and their product beside the residual stream."""
    tokens, width = settings.batched_tokens, settings.width
    inner = max((_inner(run.layer.channel, tp) for run in stage.runs(model)), default=0)
    yield tensor("hidden states", int(HIDDEN_COPIES * tokens * model.hidden * width),
                 f"{HIDDEN_COPIES} x {tokens:,} tokens x {model.hidden:,} x {width} B")
    yield tensor("mlp.gate_up", 2 * tokens * inner * width, f"2 x {tokens:,} tokens x {inner:,} x {width} B")
    yield tensor("mlp.product", tokens * inner * width, f"{tokens:,} tokens x {inner:,} x {width} B")
    if eight_bit:
        yield tensor("mlp.product in 8 bits", tokens * inner, f"{tokens:,} tokens x {inner:,} B")


def _inner(channel: MLP | MoE | None, tp: int) -> int:
    """Width of the dense part of a layer's channel mixer on one rank."""
    match channel:
        case MLP():
            return ceil_div(channel.width, tp)
        case MoE():
            return ceil_div(channel.shared_width, tp)
        case None:
            return 0


def _handed_on(model: Model, settings: Settings) -> Iterator[Tensor]:
    """Hidden states and residual that the next stage gets while its sender still holds its own."""
    size = 2 * settings.batched_tokens * model.hidden * settings.width
    yield tensor("sent to the next stage", size)


def _expert_workspaces(model: Model, settings: Settings, stage: Stage, divided: int) -> Iterator[Tensor]:
    """The largest layer's workspaces; all layers use the same ones."""
    layers = [run.layer.channel for run in stage.runs(model) if isinstance(run.layer.channel, MoE)]
    if not layers or model.quantisation == "mxfp4":  # its Triton kernels bring none [fused_moe/gpt_oss_triton_kernels]
        return
    moe = max(layers, key=lambda channel: channel.top_k * channel.expert.width)
    tokens, width, h = settings.batched_tokens, settings.width, moe.latent_width or model.hidden
    inner, rows = ceil_div(moe.expert.width, divided), tokens * moe.top_k
    up = (2 if moe.expert.gated else 1) * inner
    yield tensor("experts.up or down", rows * max(up, h) * width, f"{rows:,} rows x {max(up, h):,} x {width} B")
    yield tensor("experts.product", rows * inner * width, f"{rows:,} rows x {inner:,} x {width} B")
    yield tensor("experts.output", tokens * h * width, f"{tokens:,} tokens x {h:,} x {width} B")


def _sampler(model: Model, settings: Settings) -> Iterator[Tensor]:
    """Logits of every sequence while one token of each is drawn."""
    sequences, vocab, h, width = settings.max_sequences, model.vocab, model.hidden, settings.width
    yield tensor("final hidden states", settings.batched_tokens * h * width)
    per = f"{sequences:,} sequences x {vocab:,}"
    if settings.version < SORTS_UNTIL:
        yield tensor("sampler.sort", int(SORT_BYTES * sequences * vocab), f"{SORT_BYTES} B x {per}")
        return
    yield tensor("hidden states of the last tokens", sequences * h * width)
    yield tensor("logits", sequences * vocab * width, f"{per} x {width} B")
    for name in ("logits in fp32", "probabilities", "exponential noise"):
        yield tensor(f"sampler.{name}", sequences * vocab * FP32, f"{per} x {FP32} B")
    rows = min(sequences, MULTIPROCESSORS)
    yield tensor("sampler.candidates", rows * vocab * FP32, f"{rows} multiprocessors x {vocab:,} x {FP32} B")
    yield tensor("cuBLAS workspace", BLAS_WORKSPACE)


def tensor(name: str, num_bytes: int, formula: str = "") -> Tensor:
    """An activation of the profiled step."""
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="profiled step", formula=formula,
        source="vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`",
    )
