"""One question as transformers runs it, every default filled in, and weights as its modules register them.

[bnb] transformers integrations/bitsandbytes.py `replace_with_bnb_linear`: every nn.Linear but the head, which experts
stacked in one parameter are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parts import Sizes, norm_variant
from vramcast.domain.cublas import workspace_bytes
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Model, Stack, StoredWeights
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.requests import FLAG, Known, generates, typed_options
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import CHECKPOINT_FORMATS, Formats, on_stage, stage_of
from vramcast.engines.transformers.versions import CONTEMPORARY, Behaviour, behaviour, left_whole
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import Numerics
from vramcast.states.storage import BITSANDBYTES, format_of
from vramcast.units import DTYPE_BITS, ceil_div

if TYPE_CHECKING:
    from vramcast.engines.serving.weights import Part

SOURCE: Final = "the model's modules in transformers models/*/modeling_*.py"


class Owned(NamedTuple):
    """One tensor, how often it is there, and the module it belongs to."""

    tensor: Tensor
    repeats: int


def formats_of(model: Model, *, weights: str | None, dtype: str | None, version: Version) -> Formats:
    """The formats a question names, else the checkpoint's own: nothing is converted on loading."""
    left = left_whole(model.family, version)
    whole = dtype or (model.dtype if model.dtype in ("bf16", "fp16", "fp32") else "bf16")
    if weights is not None:
        return Formats(weights, whole, left_whole=left)
    if model.quantisation is None:
        return Formats(whole, whole)
    return Formats(CHECKPOINT_FORMATS.get(model.quantisation, model.quantisation), whole, left_whole=left)


def weights(
    model: Model, formats: Formats, stage: Stage, *, stored: StoredWeights | None = None
) -> Iterator[Owned]:
    """The weights of one GPU, in the order of its modules; as large as the checkpoint's headers say, where there are
    any."""
    found = _by_format(model, formats, stage)
    if stored is None:
        yield from found
        return
    from vramcast.engines.serving.weights import factors, part_of_owner

    def part(owned: Owned) -> Part:
        return part_of_owner(owned.tensor.owner, owned.tensor.name, model)

    everything = _by_format(model, formats, Stage(0, model.num_layers, first=True, last=True))
    scale = factors(model, stored, ((part(owned), owned.tensor.num_bytes * owned.repeats) for owned in everything))
    for owned in found:
        top, bottom = scale.get(part(owned), (1, 1))
        tensor = replace(
            owned.tensor, num_bytes=ceil_div(owned.tensor.num_bytes * top, bottom),
            formula=Note("{}, as its header says", owned.tensor.formula),
        )
        yield owned._replace(tensor=tensor)


def _by_format(model: Model, formats: Formats, stage: Stage) -> Iterator[Owned]:
    for owned in named_parameters(stage_of(model, stage)):
        owner, parameter, repeats = owned.owner, owned.parameter, owned.repeats
        if not on_stage(owner, model, stage):
            continue
        tower = any(owner.startswith(stack.name) for stack in model.stacks[:-1] if stack.vision is not None)
        # GPTQ, AWQ and FP8 checkpoints quantise the language model's layers only
        stored = formats.whole if tower and formats.quantised not in BITSANDBYTES else formats.of(parameter)
        sizes = " x ".join(f"{size:,}" for size in parameter.shape)
        for name, num_bytes in format_of(stored).parts(parameter.shape):
            path = f"{parameter.path}.{name}" if name else parameter.path
            tensor = Tensor(
                name=path, num_bytes=num_bytes, category=Category.WEIGHTS, owner=owner, formula=f"{sizes} in {stored}",
                source=SOURCE,
            )
            yield Owned(tensor, repeats)


CACHES: Final = ("dynamic", "static", "quantized", "offloaded")
"""`cache_implementation` of generate."""

OPTIONS: Final[dict[str, Known]] = {
    "cache": Known(str, choices=CACHES), "beams": Known(int, most=1 << 16), "padded": FLAG, "prefill_chunk": Known(int),
}
"""Engine options and the type of their values."""

QUANTISED_CACHES: Final[dict[str, int]] = {"int8": 8, "int4": 4, "int2": 2}
"""Cache dtypes of QuantizedCache -> bits."""


SHORT_ANSWER: Final = 2
"""Tokens of an answer of unknown length: one from the prompt, one from the first step [tokens]."""


class Product(NamedTuple):
    """How matrix products read weights of a format."""

    stored: str  # key of operators.linear.QUANTISED from that many rows on; below, packed weights are read in place
    rows: int = 1
    buffer: bool = False  # one 16-bit copy of the largest weight is kept to unpack into


PRODUCTS: Final[dict[str, Product]] = {
    "gptq-int4": Product("full", buffer=True),  # AutoGPTQ modeling/_utils.py `autogptq_post_init`: exllama's temp_dq
    **dict.fromkeys(("gptq-int2", "gptq-int3", "gptq-int8"), Product("gptq-int8", 128)),  # qlinear_cuda_old.py
    "awq-int4": Product("awq-int4", 1024),  # AutoAWQ awq/modules/linear/gemm.py `FP16_MATMUL_HEURISTIC_CONDITION`
    "nf4": Product("nf4", 2),  # bitsandbytes autograd/_functions.py `matmul_4bit`: one row goes through gemv
    "nf4-dq": Product("nf4-dq", 2),
    "int8-bnb": Product("int8-bnb"),
    "fp8-block": Product("fp8-block"),
    # compressed-tensors unpacks before every product
    **dict.fromkeys(("int4", "int4-g32", "int4-experts"), Product("awq-int4")),
}
"""Format -> its products; formats that are not here are multiplied as they are."""


class Settings(NamedTuple):
    """One batch of sequences, from prompt to answer."""

    version: Version
    behaviour: Behaviour
    formats: Formats
    batch: int  # samples of one call
    beams: int  # hypotheses of a sample: rows of the cache are batch x beams
    prompt: int  # tokens of a prompt, images' included
    chunk: int  # tokens of it that are read at once
    total: int  # tokens of a sequence at its end
    width: int  # bytes of an activation
    bf16: bool
    cache_width: int  # bytes of a cached element
    cache: str  # one of CACHES
    cache_bits: int  # of a quantised cache; 0: not quantised
    attention: AttentionKernel
    images: int
    image_size: int | None
    padded: bool
    workspace: int  # of cuBLAS [bytes]
    source: int = 0  # positions of an encoder that every layer reads

    @property
    def rows(self) -> int:
        """Sequences that generate."""
        return self.batch * self.beams

    @property
    def generates(self) -> bool:
        """Whether a token follows the prompt."""
        return self.total > self.prompt


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: Unsupported or InvalidSpec for what transformers does not do
    """
    _refuse(job)
    model, plan, requests = job.model, job.plan, job.requests
    formats = formats_of(model, weights=plan.weights, dtype=plan.dtype, version=job.version)
    format_of(formats.quantised)
    dtype = activation_dtype(formats)
    flash = plan.attention == "flash"
    found = behaviour(model.family, job.version, flash=flash)
    prompt, total = lengths(job)
    total = total if generates(model) else prompt
    options = typed_options(job, OPTIONS)
    kind, bits = _cache(job, str(options.get("cache", "dynamic")))
    return Settings(
        version=job.version,
        behaviour=found,
        formats=formats,
        batch=requests.concurrency,
        beams=int(options.get("beams", 1)),
        prompt=prompt,
        chunk=min(prompt, int(options.get("prefill_chunk", prompt))),
        total=total,
        width=DTYPE_BITS[dtype] // 8,
        bf16=dtype == "bf16",
        cache_width=DTYPE_BITS[dtype if plan.kv_dtype == "auto" or bits else plan.kv_dtype] // 8,
        cache=kind,
        cache_bits=bits,
        attention=_attention(plan.attention, found, dtype),
        images=requests.images,
        image_size=requests.image_size,
        padded=bool(options.get("padded", False)),
        workspace=workspace_bytes(
            job.cluster.gpu.compute_capability,
            torch=next(torch for since, torch, _ in CONTEMPORARY if job.version >= since),
        ),
        source=source_len(model, prompt),
    )


def activation_dtype(formats: Formats) -> str:
    """The dtype activations have: of unquantised weights; AutoGPTQ's and AutoAWQ's kernels are written for fp16."""
    return "fp16" if formats.quantised.startswith(("gptq", "awq")) and formats.whole == "bf16" else formats.whole


def _refuse(job: ServeJob) -> None:
    plan = job.plan
    for name in ("tp", "dp", "dcp"):
        if getattr(plan, name) > 1:
            raise Unsupported(
                "{}={} is not modelled for --engine transformers, which spreads layers over GPUs (device_map); use "
                "--pp {}, or --engine vllm", name, getattr(plan, name), plan.num_ranks
            )
    if plan.draft is not None or plan.lora_slots:
        raise Unsupported("drafts and LoRA slots are not modelled for --engine transformers; use --engine vllm")
    if plan.offload != "none":
        raise Unsupported("offloaded weights are not modelled for --engine transformers; use --engine llama.cpp")
    if not job.model.stacks or not job.model.main.runs:
        raise Unsupported("{} has no transformer layers to build; trace it instead", job.model.name)


def lengths(job: ServeJob) -> tuple[int, int]:
    """Tokens of the prompt, and of prompt and answer; an answer of unknown length is short: the worst case."""
    requests = job.requests
    answer = requests.output_len or SHORT_ANSWER
    total = job.context
    if requests.input_len is not None and requests.context is None:
        total = requests.input_len + answer
    prompt = requests.input_len or max(1, total - answer)
    if prompt > total:
        raise InvalidSpec("input-len={} is longer than context={}; give a longer --context", prompt, total)
    return prompt, min(total, prompt + (requests.output_len or total - prompt))


def _cache(job: ServeJob, kind: str) -> tuple[str, int]:
    bits = QUANTISED_CACHES.get(job.plan.kv_dtype, 0)
    if kind == "quantized" and not bits:
        bits = 4  # QuantizedCacheConfig.nbits
    if bits:
        return "quantized", bits
    if job.plan.kv_dtype not in ("auto", "bf16", "fp16", "fp32"):
        names = ", ".join(("auto", "bf16", "fp16", "fp32", *QUANTISED_CACHES))
        raise InvalidSpec("kv-dtype={!r} is none that transformers caches in; use {}", job.plan.kv_dtype, names)
    return kind, 0


def _attention(asked: str | None, found: Behaviour, dtype: str) -> AttentionKernel:
    """Fused kernels for 16 bits are flash's; PyTorch's for fp32 is the memory-efficient one."""
    if asked == "eager" or (asked is None and not found.sdpa):
        return AttentionKernel.EAGER
    return AttentionKernel.EFFICIENT if dtype == "fp32" else AttentionKernel.FLASH


def sizes_of(model: Model, stack: Stack, settings: Settings, *, rows: int, queries: int, keys: int) -> Sizes:
    """Local sizes of a stack that reads `rows` sequences of `queries` tokens and attends to `keys`.

    Args:
        stack: which of its stacks
        rows: sequences
        queries: tokens of each that are new
        keys: tokens of each that are attended to
    """
    width, found = settings.width, settings.behaviour
    product = PRODUCTS.get(settings.formats.quantised, Product("full"))
    return Sizes(
        batch=rows,
        seq_len=queries,
        hidden=stack.hidden,
        numerics=Numerics(width, width, width, width),
        attention=settings.attention,
        norm=norm_variant(model),
        fp32_softmax=stack.causal,
        copies_scores=settings.bf16,
        masked=settings.padded and settings.attention is not AttentionKernel.EAGER,
        grouped=not found.repeats_keys,
        keys=keys,
        frozen=True,
        stored=product.stored if rows * queries >= product.rows else "full",
        left_whole=(settings.formats.left_whole or ()) if settings.formats.quantised in BITSANDBYTES else (),
        fused_gate=found.fused_gate,
        expert_loop=found.expert_loop,
        every_expert=found.every_expert,
    )


def source_len(model: Model, prompt: int) -> int:
    """Positions of the encoder that every layer of the main stack reads: an audio window, or the prompt; else 0."""
    if len(model.stacks) == 1 or not all(layer.cross_attention for layer in model.main.layers):
        return 0
    encoder = model.stacks[-2]
    if encoder.vision is None:
        return prompt
    return encoder.positions or encoder.vision.positions
