"""Logits of every sequence while one token of each is drawn: in the profile, and once more when all is set up.

Symbols:  S sequences   V vocabulary
[sampler] vllm-project/vllm vllm/v1/sample/sampler.py, ops/topk_topp_sampler.py: logits in fp32, their softmax,
exponential noise; since 0.21 FlashInfer masks a copy instead and draws from its softmax, as many tensors
[triton] vllm/v1/sample/ops/topk_topp_triton.py: a row of V fp32 per multiprocessor, kept from the first call on
[sort] pytorch aten/src/ATen/native/cuda/Sort.cu `segmented_sort_pairs`: sorted values, 64-bit indices and their copy,
a second buffer of both for the radix sort, beside the logits and their fp32 copy: 38 B
[runner 2] vllm/v1/worker/gpu/sample/sampler.py: where nothing is asked for, it draws from the 16-bit logits; counts of
output tokens are kept for every sequence (penalties.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.model import Model
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.vllm.settings import Settings

FP32: Final = 4

SORT_BYTES: Final = 38.4
"""Bytes per sequence and vocabulary entry while the vocabulary is sorted (to 0.16); 38 are tensors [sort], the rest is
fitted on 15 start-up logs of 0.6 to 0.16: within 4 %, 11 of them within 1 %."""

SORTS_UNTIL: Final[Version] = (0, 17)
"""First version that truncates with a Triton kernel instead of a sort [triton]."""

FLASHINFER_SINCE: Final[Version] = (0, 21)
"""FlashInfer's sampler is the default from then on [vllm/envs.py VLLM_USE_FLASHINFER_SAMPLER]."""

MULTIPROCESSORS: Final = 132
"""Rows of the Triton kernel's buffer, as on H100; cards have 40 to 148, which moves a peak by 3 % at most."""

Sizes = Iterator[tuple[str, int, str]]


def sampler_tensors(model: Model, settings: Settings, *, sequences: int) -> Iterator[Tensor]:
    """Tensors alive while the profiled step draws tokens.

    Args:
        model: the network
        settings: batch and version
        sequences: that tokens are drawn for
    """
    h, width = model.hidden, settings.width
    yield _tensor("final hidden states", settings.batched_tokens * h * width, "")
    yield _tensor("hidden states of the last tokens", sequences * h * width, "")
    for name, num_bytes, formula in drawn(model.vocab, settings, sequences=sequences):
        yield _tensor(name, num_bytes, formula)
    if not settings.runner_2 and settings.version >= SORTS_UNTIL:
        yield _tensor("cuBLAS workspace", settings.blas_workspace, "")


def drawn(vocab: int, settings: Settings, *, sequences: int) -> Sizes:
    """Logits and what is made of them: name, bytes and formula."""
    per, width = f"{sequences:,} sequences x {vocab:,}", settings.width
    if settings.runner_2:
        yield "logits", sequences * vocab * width, f"{per} x {width} B"
        return
    flashinfer = uses_flashinfer(settings)
    if settings.version < SORTS_UNTIL and not flashinfer:
        yield "sampler.sort", int(SORT_BYTES * sequences * vocab), f"{SORT_BYTES} B x {per}"
        return
    yield "logits", sequences * vocab * width, f"{per} x {width} B"
    third = "masked logits" if flashinfer else "exponential noise"
    for name in ("logits in fp32", "probabilities", third):
        yield f"sampler.{name}", sequences * vocab * FP32, f"{per} x {FP32} B"
    if not flashinfer:
        rows = min(sequences, MULTIPROCESSORS)
        yield "sampler.candidates", rows * vocab * FP32, f"{rows} multiprocessors x {vocab:,} x {FP32} B"


def uses_flashinfer(settings: Settings) -> bool:
    """Whether FlashInfer draws the tokens."""
    chosen = settings.options.flashinfer_sampler
    return settings.v1 and (settings.version >= FLASHINFER_SINCE if chosen is None else chosen)


def token_counts(model: Model, settings: Settings) -> Iterator[tuple[Tensor, int]]:
    """What the second runner keeps to penalise repetition: a count and a bit per sequence and entry [runner 2]."""
    if not settings.runner_2:
        return
    sequences, vocab = settings.max_sequences, model.vocab
    yield Tensor(
        name="counts of output tokens", num_bytes=sequences * (vocab * FP32 + vocab // 8),
        category=Category.WORKSPACES, owner="sampler", formula=f"{sequences:,} sequences x {vocab:,} x (4 B + 1 bit)",
        source="vllm-project/vllm vllm/v1/worker/gpu/sample/penalties.py `PenaltiesState`",
    ), 1


def _tensor(name: str, num_bytes: int, formula: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="profiled step", formula=formula,
        source="vllm-project/vllm vllm/v1/sample/sampler.py",
    )
