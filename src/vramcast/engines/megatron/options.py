"""A Megatron-Core job: its options, what is recomputed, and the local sizes that follow.

[mcore] modelscope/mcore-bridge f020e479 src/mcore_bridge

Of recomputation: Megatron-LM d98e8a64d core/transformer/transformer_config.py `__post_init__`, transformer_layer.py
`TransformerLayer.__init__`, moe/moe_layer.py `MoELayer.__init__`

Defaults are those of `megatron/training/arguments.py`; names follow its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import lcm
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from vramcast.blocks.megatron_attention import Kernel
from vramcast.blocks.megatron_layer import owns_norm
from vramcast.domain.cublas import workspace_bytes
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, MoE, MultiLatentAttention, Noun, Stack
from vramcast.engines.megatron.weights import Widths, check_adapters, lora_of
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.parallel.layout import Layout, uneven
from vramcast.units import MIB

DEFAULT: Final = ("core_attn",)

Has = Callable[[Layer, "Options"], bool]


def _norms(layer: Layer, options: Options) -> bool:
    te = options.transformer_impl == "transformer_engine"
    return any(owns_norm(layer, part, te=te) for part in ("mixer", "cross", "channel"))


def _shared(layer: Layer, options: Options) -> bool:
    return isinstance(layer.channel, MoE) and layer.channel.shared_width > 0 and not options.shared_expert_overlap


MODULES: Final[dict[str, tuple[Has, str]]] = {
    "core_attn": (
        lambda layer, _: isinstance(layer.mixer, (Attention, MultiLatentAttention)), "it has no softmax attention",
    ),
    "moe_act": (
        lambda layer, options: isinstance(layer.channel, MoE) and options.grouped_gemm,
        "it has no experts in grouped products",
    ),
    "layernorm": (
        _norms, "TransformerEngine makes each of its norms within the product behind it, and keeps what that reads",
    ),
    "mla_up_proj": (lambda layer, _: isinstance(layer.mixer, MultiLatentAttention), "it has no latent attention"),
    "mlp": (lambda layer, _: isinstance(layer.channel, MLP), "it has no dense MLP"),
    "moe": (lambda layer, _: isinstance(layer.channel, MoE), "it has no experts"),
    "shared_experts": (_shared, "it has no shared experts that run by themselves"),
}
"""Name -> whether a layer has it, and why a model would not."""

OF_OTHERS: Final = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Names for mixers that are not modelled."""


def check_modules(job: Job, options: Options) -> None:
    """Raise UnknownName for a name Megatron does not have, InvalidSpec for one without effect on the job's model."""
    if job.plan.recompute is not Recompute.SELECTIVE:
        return
    layers = [run.layer for stack in job.model.stacks for run in stack.runs]
    for name in job.plan.recompute_modules:
        if name in OF_OTHERS:
            raise Unsupported("recompute-modules={} is not modelled for megatron; use {}", name, ", ".join(MODULES))
        if name not in MODULES:
            raise UnknownName.of("module to recompute", name, MODULES)
        has, why = MODULES[name]
        if not any(has(layer, options) for layer in layers):
            raise InvalidSpec("recompute-modules={} changes nothing of {}: {}; leave it out", name, job.model.name, why)


Count = Annotated[int, Meta(ge=0, le=1 << 20)]


class Options(Noun, frozen=True):
    """`engine_options` of engine `megatron`."""

    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    deterministic: bool = False
    gradient_accumulation_fusion: bool = True
    bias_gelu_fusion: bool = True
    bias_swiglu_fusion: bool = True
    bias_dropout_fusion: bool = True
    rope_fusion: bool = True
    masked_softmax_fusion: bool = True
    cross_entropy: Literal["unfused", "native", "te", "policy"] = "unfused"  # policy: log-probabilities
    attention_mask: bool = True  # the data loader builds a mask
    vocab_divisor: Annotated[int, Meta(ge=1, le=1 << 20)] = 128
    stage_layers: str = ""  # layers of every (virtual) stage, "3-4-4-3"
    interleave_group: Count = 0  # microbatch-group-size-per-virtual-pipeline-stage; 0: pp
    overlap_p2p_warmup_flush: bool = False
    accumulate_in_fp32: bool | None = None  # None: with bf16
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    optimizer_instances: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    fsdp: bool = False
    fp8_param_gather: bool = False
    fp8_recipe: Literal["", "delayed", "tensorwise", "mxfp8", "blockwise"] = ""
    fp8_transpose_cache: bool = True  # fp8 weights keep their transpose (Hopper), a second byte an element
    bf16_at_start: Count = 0  # layers that stay in bf16 beside fp8 ones: first-last-layers-bf16
    bf16_at_end: Count = 0
    tp_comm_overlap: bool = False
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"
    grouped_gemm: bool = True
    permute_fusion: bool = True
    capacity_factor: Annotated[float, Meta(gt=0, le=1000)] | None = None
    router_fp32: bool = False
    sinkhorn: bool = False
    shared_expert_overlap: bool = False
    recompute_method: Literal["uniform", "block"] = "block"
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    torch: str = "2.13"  # PyTorch release
    precision_aware: bool = False  # use-precision-aware-optimizer: moments and remainders in fewer bits
    moments: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"  # exp-avg-dtype and exp-avg-sq-dtype
    main_params: Literal["fp32", "fp16"] = "fp32"  # main-params-dtype
    te: str = ""  # TransformerEngine's release
    offload_fraction: Annotated[float, Meta(ge=0, le=1)] = 1.0  # of the states of an optimizer that is offloaded
    clip_grad: bool = True
    count_zeros: bool = False
    cuda_graphs: bool = False
    overlap_moe_comm: bool = False
    binary_head: bool = True  # BERT's sentence-order head
    defer_embedding_wgrad: Count = 0  # micro-batches whose embedding weight gradient is deferred
    mtp_layers: Annotated[int, Meta(ge=0, le=64)] = 0  # modules that predict further tokens: mtp-num-layers
    mtp_shared: bool = False  # one module's weights for all of them: mtp-use-repeated-layer
    cp_a2a: bool = False
    param_layout: bool = True  # whole matrices of Muon lie in buffers; else ranks send each other lists of tensors
    adapters: Literal["megatron-bridge", "mcore-bridge"] = "megatron-bridge"  # whose LoRA stands beside frozen linears


def release(text: str, *, name: str = "torch") -> tuple[int, int]:
    """Major and minor number of a release.

    >>> release("2.10.0a0")
    (2, 10)
    """
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal() and len(text) < 40):
        raise InvalidSpec("{}={!r} must be a release such as 2.13", name, text[:40])
    return int(major), int(minor)


READS_BF16_MOMENTS: Final = (2, 14)
"""First TransformerEngine whose FusedAdam steps bf16 moments as they are [fused_adam.py `fuse_unscale`]."""


def copies_moments(options: Options) -> bool:
    """Whether FusedAdam copies moments to fp32 to step them.

    Where no TransformerEngine is named it does: runs of August 2026 in containers still showed the copies.

    Raises: InvalidSpec for a release of TransformerEngine that is none
    """
    if options.moments != "bf16" or not options.te:
        return options.moments != "fp32"
    return release(options.te, name="te") < READS_BF16_MOMENTS


CROSS_ENTROPY: Final = {Loss.EAGER: "unfused", Loss.FUSED: "te", Loss.COMPILED: "te"}


def options_of(job: Job) -> Options:
    """The options of a job, with what its plan says put in."""
    plan = job.plan
    given = dict(job.engine_options)
    if plan.loss is not None and "cross_entropy" not in given:
        if plan.loss not in CROSS_ENTROPY:
            raise Unsupported("loss={} is not modelled for megatron; use eager or fused", plan.loss)
        given["cross_entropy"] = CROSS_ENTROPY[plan.loss]
    if plan.cp_kind == "ulysses":
        given.setdefault("cp_a2a", True)
    if plan.attention is AttentionKernel.EAGER:
        given.setdefault("attention_backend", "unfused")
    if job.engine_options.get("optimizer") is None:
        known = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "muon": "muon"}
        if plan.optimizer not in known:
            raise Unsupported("optimizer={} is not modelled for megatron; use adamw, sgd or muon", plan.optimizer)
        given["optimizer"] = known[plan.optimizer]
    try:
        options = msgspec.convert(given, Options, strict=False)  # "1.25" of a command line
    except msgspec.ValidationError as error:
        raise InvalidSpec("engine option of megatron: {}", error) from error
    _check(job, options)
    return options


def _check(job: Job, options: Options) -> None:
    plan = job.plan
    check_modules(job, options)
    if options.te:
        release(options.te, name="te")
    if options.moments != "fp32" and not options.precision_aware:
        raise InvalidSpec("moments={} needs precision_aware=true", options.moments)
    if options.main_params != "fp32" and not (options.precision_aware and plan.precision is Precision.MIXED_BF16):
        raise InvalidSpec("main_params={} needs precision_aware=true and precision mixed-bf16", options.main_params)
    wide = options.bf16_at_start + options.bf16_at_end
    if wide and (plan.precision is not Precision.FP8 or not options.fp8_transpose_cache):
        raise InvalidSpec("bf16_at_start and bf16_at_end are for precision fp8 whose weights keep their transpose")
    if plan.precision not in (Precision.MIXED_BF16, Precision.MIXED_FP16, Precision.FP32, Precision.FP8):
        raise Unsupported(
            "precision={} is not modelled for megatron; use mixed-bf16, mixed-fp16, fp8 or fp32", plan.precision
        )
    if plan.peft is not None:
        check_adapters(job, options.fsdp)
    if options.mtp_layers and (job.model.head is not Head.LM or plan.shards is Shards.EVERYTHING or options.fsdp):
        raise Unsupported("multi-token prediction is modelled for Megatron's language models without its FSDP; leave "
                          "mtp_layers out")
    if plan.offload_parameters != "none":
        raise Unsupported("megatron keeps its weights on the GPU; use engine deepspeed to offload parameters")
    if plan.offload_optimizer != "none" and plan.shards is Shards.NOTHING:
        raise InvalidSpec(  # training/arguments.py asks for the precision-aware optimizer, which is a distributed one
            "megatron offloads a distributed optimizer only; add --shards optimizer"
        )
    if plan.offload_optimizer != "none" and options.optimizer == "muon":
        raise InvalidSpec("megatron keeps Muon's states on the GPU; leave out --offload-optimizer, or use adamw")
    if options.offload_fraction != 1 and plan.offload_optimizer == "none":
        raise InvalidSpec("offload_fraction says nothing without --offload-optimizer cpu; add that, or leave it out")
    if plan.precision is Precision.FP8 and {"layernorm", "mla_up_proj"} <= set(plan.recompute_modules):
        raise Unsupported("recomputing layernorm and mla_up_proj together is not modelled with fp8; leave one out")
    if plan.offload_activations:
        raise Unsupported("activation offload is not modelled for megatron; use --recompute full")
    if options.cuda_graphs:
        raise Unsupported("the private pools of CUDA graphs are not modelled for megatron; leave cuda_graphs out")
    if plan.compile:
        raise Unsupported("megatron is not compiled as a whole; leave compile out")
    if plan.schedule not in ("1f1b", "interleaved"):
        raise Unsupported("schedule={} is not part of megatron; use 1f1b or interleaved", plan.schedule)
    if plan.shards is Shards.OPTIMIZER_AND_GRADIENTS and not options.fsdp:
        raise Unsupported("megatron shards optimizer states (optimizer) or everything (its FSDP); use one of these")
    objective = job.workload.objective
    decoder = job.model.main.causal and len(job.model.stacks) == 1 + len(towers_of(job))
    if objective in COMPARED and (not decoder or options.fsdp or plan.virtual_stages > 1 or (
            plan.pp > 1 and objective == "kto")):
        raise Unsupported("{} is modelled for Megatron's decoders without its FSDP and without stages, of dpo without "
                          "virtual ones; use --pp 1", objective)
    if objective not in ("pretrain", "sft", *COMPARED) and not decoder:
        raise Unsupported("{} is modelled for Megatron's decoders; use --engine huggingface", objective)
    if any(part not in (*towers_of(job), "projector") for part in plan.freeze):
        raise Unsupported("freeze={} is not modelled for megatron but of towers; leave it out", ",".join(plan.freeze))


COMPARED: Final = ("dpo", "kto")
"""Objectives that ask a reference, too."""

PAIRED: Final = ("dpo", "reward")
"""Objectives whose samples are two answers, in one forward."""


def towers_of(job: Job) -> dict[str, Stack]:
    """Stacks that see, each whole on every rank of the first stage [mcore model/mm_gpt_model.py `MultimodalGPTModel`,
    mm_gpts/utils.py `HuggingFaceVit`]."""
    return {stack.name: stack for stack in job.model.stacks[:-1] if stack.vision is not None}


def learns_towers(job: Job) -> bool:
    """Whether a part that sees learns: its weights, gradients and states are there, whole on the first stage's ranks.
    Its pass is modelled for text alone, where there is none."""
    parts = [*towers_of(job), "projector"]
    return bool(towers_of(job)) and job.plan.peft is None and any(part not in job.plan.freeze for part in parts)


def _check_towers(job: Job) -> None:
    """Raise Unsupported for towers that learn of images."""
    towers, freeze = towers_of(job), job.plan.freeze
    parts = [*towers, *(["projector"] if towers else [])]
    adapted = [target for target in (job.plan.peft.targets if job.plan.peft else ()) for name in towers
               if target.startswith(f"{name}.")]
    if job.model.main.vision is not None or adapted or (
            learns_towers(job) and (job.workload.images != 0 or any(part in freeze for part in parts))):
        raise Unsupported("{}: megatron models towers that do not learn, or prompts of text; use --freeze "
                          "towers,projectors, --images 0, or engine huggingface", job.model.name)


def divides_positions(length: int, *, tp: int, cp: int, sequence_parallel: bool) -> bool:
    """Whether sequence and context parallelism leave each rank the same number of positions.

    Context parallelism gives each rank two pieces. Source: training/arguments.py `validate_args` "seq-length should be
    a multiple of 2 * context-parallel-size"; core/tensor_parallel/mappings.py `_split_along_first_dim`
    """
    return length % (2 * cp if cp > 1 else 1) == 0 and length // cp % (tp if sequence_parallel else 1) == 0


class Context:
    """One Megatron job, resolved."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model: Model = job.model
        self.options: Options = options_of(job)
        plan = job.plan
        _check_towers(job)
        encoders = [stack for stack in job.model.stacks[:-1] if stack.vision is None]
        if len(encoders) > 1:
            raise Unsupported("{}: megatron models decoders and encoder-decoders; use engine pytorch", job.model.name)
        if encoders and plan.pp > 1:
            raise Unsupported("pipeline stages of encoder-decoders are not modelled for megatron; use pp=1")
        self.layout = Layout(
            tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, etp=plan.etp if plan.etp is not None else plan.tp,
            dp=job.data_parallel,
            sequence_parallel=bool(plan.sequence_parallel if plan.sequence_parallel is not None else plan.tp > 1)
            and plan.tp > 1,
            vocab_divisor=self.options.vocab_divisor,
        )
        self.tp = plan.tp
        self.batch = job.workload.micro_batch * (2 if job.workload.objective in PAIRED else 1)
        self.encoder = encoders[0] if encoders else None
        self.encoder_seq = job.workload.seq_len // plan.cp
        decoder_seq = job.workload.decoder_seq_len if self.encoder is not None else None
        self.seq = (decoder_seq or job.workload.seq_len) // plan.cp  # positions of the stack with the head
        self._refuse_uneven()
        self.element = 4 if plan.precision is Precision.FP32 else 2  # activations and 16-bit weights [bytes]
        self.fp8 = plan.precision is Precision.FP8
        self.te = self.options.transformer_impl == "transformer_engine"
        self.sm = job.cluster.gpu.sm or 80
        self.lora = lora_of(job, self.layout, self.options.adapters == "mcore-bridge")

    def _refuse_uneven(self) -> None:
        """Raise InvalidSpec where a stack's positions would not divide over the ranks that share them."""
        plan, workload = self.job.plan, self.job.workload
        lengths = {"seq-len": workload.seq_len}
        if self.encoder is not None and workload.decoder_seq_len is not None:
            lengths["decoder-seq-len"] = workload.decoder_seq_len
        for name, length in lengths.items():
            if not divides_positions(length, tp=plan.tp, cp=plan.cp, sequence_parallel=self.sp):
                divisor = lcm(2 * plan.cp if plan.cp > 1 else 1, plan.cp * (plan.tp if self.sp else 1))
                raise uneven("megatron", plan, f"{name}={length}", length, divisor)

    @cached_property
    def predictions(self) -> tuple[Layer, ...]:
        """A layer of each module that predicts further tokens; of a network that has none it is as the last one."""
        known = self.model.mtp_layers or self.model.main.layers[-1:]
        return tuple(known[min(place, len(known) - 1)] for place in range(self.options.mtp_layers))

    @property
    def sp(self) -> bool:
        """Whether activations between blocks are divided along the sequence."""
        return self.layout.sequence_parallel

    @property
    def tokens(self) -> int:
        """Positions of one micro-batch inside tensor-parallel regions [tokens]."""
        return self.seq * self.batch

    @property
    def tokens_between(self) -> int:
        """Positions of one micro-batch between blocks [tokens]."""
        return self.tokens // self.tp if self.sp else self.tokens

    @cached_property
    def in_bf16(self) -> frozenset[int]:
        """Places of the layers that stay in bf16 beside those in fp8."""
        total, options = self.model.num_layers, self.options
        return frozenset((*range(options.bf16_at_start), *range(total - options.bf16_at_end, total)))

    @property
    def fp32_gradients(self) -> bool:
        """Whether gradients accumulate in fp32 buffers."""
        given = self.options.accumulate_in_fp32
        return self.job.plan.precision is not Precision.MIXED_FP16 if given is None else given

    @property
    def distributed_optimizer(self) -> bool:
        """Whether optimizer states are divided over the data-parallel group."""
        return self.job.plan.shards is not Shards.NOTHING

    @cached_property
    def fsdp_widths(self) -> Widths | None:
        """Bytes of what Megatron's FSDP gathers and reduces; None without it."""
        shards = self.job.plan.shards
        if shards not in (Shards.OPTIMIZER_AND_GRADIENTS, Shards.EVERYTHING):
            return None
        narrow = self.options.fp8_param_gather and not self.options.fp8_transpose_cache
        weight = (1 if narrow else self.element) if shards is Shards.EVERYTHING else 0
        return Widths(weight, 4 if self.fp32_gradients else 2)

    @property
    def dropout(self) -> bool:
        """Whether hidden states pass through dropout."""
        return self.model.hidden_dropout > 0

    @property
    def attention_dropout(self) -> bool:
        """Whether attention probabilities pass through dropout."""
        return self.model.attention_dropout > 0

    @cached_property
    def attention_kernel(self) -> Kernel:
        """The kernel TransformerEngine picks: flash, cudnn, unfused; or local.

        Source: TransformerEngine `dot_product_attention/utils.py`, get_attention_backend: FlashAttention on Ampere,
        cuDNN from Hopper on; deterministic runs take cuDNN on Hopper only, and with dropout FlashAttention elsewhere.
        """
        if any(getattr(run.layer.mixer, "softcap", False) for run in self.model.main.runs):
            return self._capped_kernel()
        if not self.te:
            return "local"
        match self.options.attention_backend:
            case "unfused" | "local":
                return "unfused"
            case "flash":
                return "flash"
            case "fused":
                return "cudnn"
        if self.sm < 90 or (self.sm >= 100 and self.options.deterministic and self.attention_dropout):
            return "flash"
        return "cudnn"

    def _capped_kernel(self) -> Kernel:
        """PyTorch's FlexAttention keeps what FlashAttention keeps, and its output is copied to sequence first.

        Raises: Unsupported where it is not taken
        Source: Megatron-Bridge 067f987d models/gemma/gemma2_provider.py `Gemma2FlexDotProductAttention.forward`
        """
        if self.options.attention_mask or self.attention_dropout:
            raise Unsupported(
                "attention whose scores are capped is modelled without a mask of the data loader and without dropout; "
                "use --engine-option attention_mask=false"
            )
        return "flash"

    @property
    def cublas_workspace_bytes(self) -> int:
        """Workspace PyTorch gives each cuBLAS handle and stream [bytes].

        Deterministic runs set 4096 x 8 themselves [Megatron-LM training/determinism.py].
        """
        own = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if self.options.deterministic else {}
        return workspace_bytes(
            self.job.cluster.gpu.compute_capability, torch=release(self.options.torch), environment=own | self.job.env
        )

    @property
    def te_workspace_bytes(self) -> int:
        """TransformerEngine's cuBLAS workspace [bytes].

        Source: TransformerEngine pytorch/cpp_extensions/gemm.py, get_cublas_workspace_size_bytes.
        """
        return 32 * MIB + 1024 if self.sm >= 90 else 4 * MIB
