"""Everything a block builder asks: the job, its options and the local sizes that follow."""

from __future__ import annotations

from functools import cached_property
from math import lcm

from vramcast.blocks.megatron_shape import Kernel
from vramcast.domain.cublas import workspace_bytes
from vramcast.domain.job import Job, Precision, Shards
from vramcast.domain.model import Model
from vramcast.engines.megatron.options import Options, options_of, release
from vramcast.errors import Unsupported
from vramcast.parallel.layout import Layout, uneven
from vramcast.units import MIB


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
        if len(job.model.stacks) > 2 or any(stack.vision for stack in job.model.stacks):
            raise Unsupported(
                f"{job.model.name}: megatron models text decoders and encoder-decoders; use engine pytorch"
            )
        if len(job.model.stacks) > 1 and plan.pp > 1:
            raise Unsupported("pipeline stages of encoder-decoders are not modelled for megatron; use pp=1")
        self.layout = Layout(
            tp=plan.tp,
            pp=plan.pp,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp if plan.etp is not None else plan.tp,
            dp=job.data_parallel,
            sequence_parallel=bool(plan.sequence_parallel if plan.sequence_parallel is not None else plan.tp > 1)
            and plan.tp > 1,
            vocab_divisor=self.options.vocab_divisor,
        )
        self.tp = plan.tp
        self.batch = job.workload.micro_batch
        self.encoder = job.model.stacks[0] if len(job.model.stacks) > 1 else None
        self.encoder_seq = job.workload.seq_len // plan.cp
        decoder_seq = job.workload.decoder_seq_len if self.encoder is not None else None
        self.seq = (decoder_seq or job.workload.seq_len) // plan.cp  # positions of the stack with the head
        self._refuse_uneven()
        self.element = 4 if plan.precision is Precision.FP32 else 2  # activations and 16-bit weights [bytes]
        self.fp8 = plan.precision is Precision.FP8
        self.te = self.options.transformer_impl == "transformer_engine"
        self.sm = job.cluster.gpu.sm or 80

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

    @property
    def fp32_gradients(self) -> bool:
        """Whether gradients accumulate in fp32 buffers."""
        given = self.options.accumulate_in_fp32
        return self.job.plan.precision is not Precision.MIXED_FP16 if given is None else given

    @property
    def distributed_optimizer(self) -> bool:
        """Whether optimizer states are divided over the data-parallel group."""
        return self.job.plan.shards is not Shards.NOTHING

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
