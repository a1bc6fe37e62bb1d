"""What each optimizer keeps per weight, and what its step makes on the way.

Symbols:  n elements of one weight   m x k its matrix form   r rank of a projection
[torch] pytorch torch/optim/{sgd,rmsprop,adagrad,adam,adamw,adadelta,adamax,nadam,radam,_muon,_adafactor}.py:
`_multi_tensor_*` makes whole lists of temporaries at once, `_single_tensor_*` one weight's, the fused kernels none
[bnb] bitsandbytes optim/optimizer.py `Optimizer2State.init_state`: 8-bit states with one fp32 constant per block of 256
elements; weights below 4,096 elements keep fp32 states; paged states live in unified memory
[torchao] torchao optim/adam.py, subclass_8bit.py, subclass_4bit.py, cpu_offload.py
[adafactor] Shazeer and Stern, arXiv:1804.04235; transformers optimization.py `Adafactor`
[lion] Chen et al., arXiv:2302.06675   [lamb] You et al., arXiv:1904.00962   [came] Luo et al., arXiv:2307.02047
[muon] Jordan et al., kellerjordan.github.io/posts/muon: momentum, and Newton-Schulz iterations in bf16; embedding, head
and vectors are AdamW's in every implementation: torch optim/_muon.py, KellerJordan/Muon muon.py, MoonshotAI/Moonlight,
deepspeed/__init__.py `set_optimizer_flags`, Megatron-LM core/optimizer/muon.py
[onebit] Tang et al., arXiv:2102.02888; deepspeed runtime/fp16/onebit/{adam,lamb,zoadam}.py, runtime/comm/nccl.py
`compressed_allreduce`: the momentum's signs as fp32, scaled, and signs apart, beside what waits to be exchanged
[shampoo] Gupta et al., arXiv:1802.09568; Shi et al., arXiv:2309.06497 (blocks of 1,024)
[soap] Vyas et al., arXiv:2409.11321   [prodigy] Mishchenko and Defazio, arXiv:2306.06101
[galore] Zhao et al., arXiv:2403.03507   [apollo] Zhu et al., arXiv:2412.05270
[lomo] Lv et al., arXiv:2306.09782; AdaLomo, arXiv:2310.10195; lomo-optim 0.1.1 `fuse_update`: gradients die in backward
States were held against what these packages keep: torch 2.13, bitsandbytes 0.50, torchao 0.18, galore-torch 1.0,
apollo-torch 1.0.3, schedulefree 1.4, lion-pytorch 0.2, came-pytorch 0.1.3, lomo-optim 0.1.1, pytorch-optimizer 4.1.
[te] TransformerEngine 2.14 transformer_engine/pytorch/optimizers/fused_adam.py `initialize_state`: moments in fp32 or
as asked, and beside each weight its fp32 copy, or the low 16 bits of it where the weight is bf16
[flash] flashoptim 0.1.3 optimizers.py `_MaybeQuantizedTensor`, `quantize`: moments of 8 bits, an fp16 scale per 32 of
them, and as many more bits of a 16-bit weight as `master_weight_bits` asks for
[adam-mini] Zhang et al., arXiv:2406.16793; zyushun/Adam-mini adam_mini/adam_mini.py `step`: biases keep both moments
[schedulefree] Defazio et al., arXiv:2405.15682   [sophia] Liu et al., arXiv:2305.14342

Shapes of the weights one rank stores, shares of the model's parameters, and sizes of states that follow from them.

Symbols:  n elements   m x k the weight as a matrix   r rank
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py `FSDPParam._init_sharded_param`: each weight is cut
along its first dimension, padded to a multiple of the group.
[TP] pytorch torch/distributed/tensor/parallel/style.py: columns, rows, or copies.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import Parameter
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.parallel.layout import Layout
from vramcast.units import FP32, ceil_div

Shape = tuple[int, ...]

SMALLEST_8BIT: Final = 4096
"""Weights below this keep fp32 states [bitsandbytes optim/optimizer.py, `min_8bit_size`]."""
BLOCK_8BIT: Final = 256
BLOCK_4BIT: Final = 128
"""Elements that share one fp32 constant [bitsandbytes optim/optimizer.py; torchao optim/subclass_4bit.py]."""


def elements(shape: Shape) -> int:
    return prod(shape)


def full(shape: Shape, width: int) -> int:
    """A tensor of the weight's shape [bytes]."""
    return elements(shape) * width


def matrix(shape: Shape) -> tuple[int, int]:
    """m x k: the last two dimensions, everything before them folded into m."""
    return elements(shape[:-1]), shape[-1]


def eight_bit(shape: Shape) -> tuple[int, int]:
    """A block-quantised state and its constants [bytes]; small weights keep fp32."""
    n = elements(shape)
    return (4 * n, 0) if n < SMALLEST_8BIT else (n, 4 * ceil_div(n, BLOCK_8BIT))


def eight_bit_beside(shape: Shape, width: int = 4) -> tuple[int, int]:
    """As `eight_bit`, but states of small weights are as wide as these."""
    n = elements(shape)
    return (width * n, 0) if n < SMALLEST_8BIT else (n, 4 * ceil_div(n, BLOCK_8BIT))


def grouped_eight_bit(shape: Shape) -> int:
    """One byte an element and a 16-bit scale per 32 of them [bytes; flashoptim optimizers.py `quantize`]."""
    n = elements(shape)
    return n + 2 * ceil_div(n, 32)


def four_bit(shape: Shape, width: int = 4) -> tuple[int, int]:
    """Two elements a byte and their constants [bytes]; states of small weights are as wide as these."""
    n = elements(shape)
    return (width * n, 0) if n < SMALLEST_8BIT else (ceil_div(n, 2), 4 * ceil_div(n, BLOCK_4BIT))


def factored(shape: Shape, *, vectors: bool = True) -> tuple[int, int]:
    """Row and column means of a second moment, fp32 [bytes].

    Args:
        shape: of the weight
        vectors: a weight of one dimension keeps the whole moment; else nothing
    """
    if len(shape) < 2:
        return (4 * elements(shape) if vectors else 0), 0
    return 4 * elements(shape[:-1]), 4 * elements(shape[:-2]) * shape[-1]


def low_rank(shape: Shape, rank: int) -> int:
    """Elements of a projected gradient: r times the longer side."""
    m, k = matrix(shape)
    return min(rank, m, k) * max(m, k)


def projection(shape: Shape, rank: int) -> int:
    """Elements of the projection: r times the shorter side."""
    m, k = matrix(shape)
    return min(rank, m, k) * min(m, k)


def preconditioners(shape: Shape, largest: int) -> int:
    """Elements of one symmetric matrix per side; sides above `largest` are cut into blocks of it.

    >>> preconditioners((2048, 1024), 1024)
    4194304
    """
    m, k = matrix(shape)
    blocks = ceil_div(m, largest) * ceil_div(k, largest)
    side_m, side_k = min(m, largest), min(k, largest)
    return blocks * (side_m * side_m + side_k * side_k)


def rotations(shape: Shape, largest: int) -> int:
    """Elements of one symmetric matrix per side; sides above `largest` have none."""
    return sum(side * side for side in matrix(shape) if side <= largest)


def gram(shape: Shape) -> int:
    """Elements of X X^T over the shorter side."""
    m, k = matrix(shape)
    return min(m, k) ** 2


def local_shape(parameter: Parameter, layout: Layout) -> Shape:
    """Shape of a weight after tensor and expert parallelism, leading dimension first."""
    if layout.tp == layout.ep == layout.etp == 1 and layout.vocab_divisor == 1:
        return parameter.shape
    local = layout.local_elements(parameter)
    if parameter.expert:
        experts = ceil_div(parameter.shape[0], layout.ep)
        inner = local // experts
        columns = parameter.shape[-1]
        return (experts, inner) if len(parameter.shape) < 3 else (experts, inner // columns, columns)
    if len(parameter.shape) == 1:
        return (local,)
    rest = parameter.elements // parameter.shape[0]
    return (ceil_div(local, rest), *parameter.shape[1:])


def sharded_shape(shape: Shape, ranks: int) -> Shape:
    """The padded share of one of `ranks` data-parallel ranks [FSDP2].

    >>> sharded_shape((4096, 14336), 8)
    (512, 14336)
    """
    return (ceil_div(shape[0], ranks), *shape[1:]) if shape else shape


DEFAULT_RANK: Final = 128
"""Rank of GaLore's projection where none is given [galore, section 5]."""


class StateTensor(NamedTuple):
    """One tensor an optimizer keeps for one weight."""

    name: str
    num_bytes: int


class State(Struct, frozen=True):
    """How a kind of state follows from a weight: bytes of (shape, bytes of a weight's element, rank)."""

    name: str
    num_bytes: Callable[[Shape, int, int], int]


class OptimizerRule(Struct, frozen=True):
    """One optimizer. Temporaries are counted in copies of the gradient."""

    states: tuple[State, ...]
    foreach_temporaries: int = 0  # copies of all gradients alive at once; 0 with `loops`: no foreach form
    loop_temporaries: int = 1  # copies of one gradient alive at once
    carried: int = 0  # of those, what the loop's variables still hold while the next weight is stepped
    wide_temporaries: int = 0  # copies in fp32 that a weight of 16 bits needs instead
    loops: bool = False  # steps one weight after the other, whatever is asked
    orthogonalises: bool = False  # Newton-Schulz temporaries beside the copies
    matrix_rule: str = ""  # non-matrices (norms, biases) follow this rule instead
    hidden_only: bool = False  # so do embeddings and heads
    in_fp32: str = ""  # the same with states of 32 bits
    wide_embeddings: bool = False  # which embeddings follow
    gradients_in_backward: bool = False  # each gradient is used and freed inside backward
    paged: bool = False  # states live in unified memory, outside the allocator
    compressed: int = 0  # copies in fp32 of all weights that an exchange in single bits makes
    flat: bool = True  # whether that steps one flat weight in 16 bits (Adam's kin)
    fused: bool = True  # a fused kernel exists
    source: str = "[torch]"
    rank: int = DEFAULT_RANK

    def rule_of(self, shape: Shape, kind: str = "") -> OptimizerRule:
        """The rule that a weight follows: this one, or another for what is no matrix to it.

        Args:
            shape: of the weight
            kind: "embedding", "head", "matrix" ...; empty: what its dimensions say
        """
        if self.wide_embeddings and kind == "embedding":
            return OPTIMIZERS[self.in_fp32]
        other = len(shape) < 2 or (self.hidden_only and kind in ("embedding", "head"))
        return OPTIMIZERS[self.matrix_rule] if self.matrix_rule and other else self

    def state_tensors(self, shape: Shape, *, width: int = 4, kind: str = "") -> tuple[StateTensor, ...]:
        """States of one weight, in the order the first step makes them.

        Args:
            shape: of the weight, as this rank holds it
            width: bytes of one element of the weight
            kind: of the weight, as for `rule_of`

        >>> optimizer("adamw").state_tensors((4096, 4096), width=4)[0]
        StateTensor(name='exp_avg', num_bytes=67108864)
        """
        if self.paged:
            return ()
        rule = self.rule_of(shape, kind)
        if rule is not self:
            return rule.state_tensors(shape, width=width)
        made = ((state.name, state.num_bytes(shape, width, self.rank)) for state in self.states)
        return tuple(StateTensor(name, size) for name, size in made if size)

    def state_bytes(self, shape: Shape, *, width: int = 4) -> int:
        """Sum of the states of one weight [bytes]."""
        return sum(tensor.num_bytes for tensor in self.state_tensors(shape, width=width))

    def temporaries(
        self, shape: Shape, *, width: int = 4, kernel: str = "foreach", kind: str = ""
    ) -> tuple[int, ...]:
        """Bytes of what the step makes of one weight: alive together with all other weights' under foreach,
        alone otherwise."""
        rule = self.rule_of(shape, kind)
        if rule is not self:
            return rule.temporaries(shape, width=width, kernel=kernel)
        if kernel == "fused" and self.fused:
            return ()
        looped = self.loops or kernel == "loop"
        copies = self.loop_temporaries if looped else self.foreach_temporaries
        if looped and self.wide_temporaries and width < FP32:
            copies, width = self.wide_temporaries, FP32
        made = [elements(shape) * width] * copies
        if self.orthogonalises and len(shape) > 1:
            made += [2 * elements(shape)] * 2 + [2 * gram(shape)] * 2
        return tuple(made)

    @property
    def has_own_kernel(self) -> bool:
        """Whether one kernel of its library steps a weight, whichever of PyTorch's is asked for."""
        return self.loops and not self.loop_temporaries

    def steps_together(self, kernel: str) -> bool:
        """Whether the temporaries of all weights are alive at once."""
        return kernel == "foreach" and not self.loops and self.foreach_temporaries > 0


def _same(name: str) -> State:
    """A state of the weight's shape and dtype (`zeros_like`)."""
    return State(name, lambda shape, width, rank: full(shape, width))


def _fp32(name: str) -> State:
    return State(name, lambda shape, width, rank: full(shape, 4))


def _eight(name: str) -> tuple[State, State]:
    return (
        State(name, lambda shape, width, rank: eight_bit(shape)[0]),
        State(f"{name} block constants", lambda shape, width, rank: eight_bit(shape)[1]),
    )


def _eight_beside(name: str) -> tuple[State, State]:
    return (
        State(name, lambda shape, width, rank: eight_bit_beside(shape, width)[0]),
        State(f"{name} block constants", lambda shape, width, rank: eight_bit_beside(shape, width)[1]),
    )


def _flash(name: str) -> State:
    return State(name, lambda shape, width, rank: grouped_eight_bit(shape))


def _beside_narrow(name: str, num_bytes: int) -> State:
    """What a weight of 16 bits lacks [bytes of an element]."""
    return State(name, lambda shape, width, rank: full(shape, num_bytes) if width < FP32 else 0)


def _four(name: str) -> tuple[State, State]:
    return (
        State(name, lambda shape, width, rank: four_bit(shape, width)[0]),
        State(f"{name} block constants", lambda shape, width, rank: four_bit(shape, width)[1]),
    )


_FACTORED: Final = (
    State("exp_avg_sq_row", lambda shape, width, rank: factored(shape)[0]),
    State("exp_avg_sq_col", lambda shape, width, rank: factored(shape)[1]),
)
_ADAM: Final = (_same("exp_avg"), _same("exp_avg_sq"))
_LOW_RANK: Final = (
    State("exp_avg", lambda shape, width, rank: low_rank(shape, rank) * width),
    State("exp_avg_sq", lambda shape, width, rank: low_rank(shape, rank) * width),
    State("projection", lambda shape, width, rank: projection(shape, rank) * width),
)
_GALORE: Final = OptimizerRule(
    _LOW_RANK, loop_temporaries=1, loops=True, matrix_rule="adamw", hidden_only=True, source="[galore]",
)


_FP32_ADAM: Final = (_fp32("exp_avg"), _fp32("exp_avg_sq"))
_BF16_ADAM: Final = tuple(State(name, lambda shape, width, rank: full(shape, 2)) for name in ("exp_avg", "exp_avg_sq"))
_REMAINDER: Final = State(
    "master_param", lambda shape, width, rank: full(shape, 2 if width < FP32 else FP32))
_TE_ADAM: Final = OptimizerRule((), loop_temporaries=0, loops=True, source="[te]")
_FLASH_ADAM: Final = OptimizerRule(
    (_flash("exp_avg"), _flash("exp_avg_sq")), loop_temporaries=0, loops=True, source="[flash]",
)


def _blocked(name: str) -> State:
    """Shampoo: one symmetric matrix per side of every block of 1,024."""
    return State(name, lambda shape, width, rank: 4 * preconditioners(shape, 1024))


def _rotation(name: str) -> State:
    """SOAP: one symmetric matrix per side of at most 10,000 (`max_precond_dim`)."""
    return State(name, lambda shape, width, rank: 4 * rotations(shape, 10_000))


OPTIMIZERS: Final[dict[str, OptimizerRule]] = {
    "sgd": OptimizerRule((), loop_temporaries=0),
    "sgd-momentum": OptimizerRule((_same("momentum_buffer"),), loop_temporaries=0),
    "rmsprop": OptimizerRule((_same("square_avg"),), foreach_temporaries=1, carried=1, fused=False),
    "rmsprop-momentum": OptimizerRule(
        (_same("square_avg"), _same("momentum_buffer")), foreach_temporaries=1, carried=1, fused=False,
    ),
    "adagrad": OptimizerRule((_same("sum"),), foreach_temporaries=2, carried=1),
    "adadelta": OptimizerRule(
        (_same("square_avg"), _same("acc_delta")), foreach_temporaries=2, loop_temporaries=2, carried=1, fused=False,
    ),
    **dict.fromkeys(("adam", "adamw"), OptimizerRule(_ADAM, foreach_temporaries=1, loop_temporaries=2, carried=1)),
    "adamw-amsgrad": OptimizerRule(
        (*_ADAM, _same("max_exp_avg_sq")), foreach_temporaries=1, loop_temporaries=2, carried=1,
    ),
    "adamax": OptimizerRule((_same("exp_avg"), _same("exp_inf")), foreach_temporaries=1, fused=False),
    "nadam": OptimizerRule(_ADAM, foreach_temporaries=1, loop_temporaries=2, carried=1, fused=False),
    "radam": OptimizerRule(_ADAM, foreach_temporaries=1, loop_temporaries=2, fused=False),
    "adamw-fp32": OptimizerRule(
        _FP32_ADAM, loop_temporaries=0, loops=True, source="fused CPU/GPU Adam",
    ),
    "lion-fp32": OptimizerRule((_fp32("exp_avg"),), loop_temporaries=0, loops=True, source="[bnb]"),
    **dict.fromkeys(("adam-8bit", "adamw-8bit"), OptimizerRule(
        (*_eight("state1"), *_eight("state2")), loop_temporaries=0, loops=True, in_fp32="adamw-fp32", source="[bnb]",
    )),
    "lion-8bit": OptimizerRule(
        _eight("state1"), loop_temporaries=0, loops=True, in_fp32="lion-fp32", source="[bnb]",
    ),
    "sgd-8bit": OptimizerRule(_eight("state1"), loop_temporaries=0, loops=True, source="[bnb]"),
    # moments in bf16 are read as they are since 2.14, and one launch steps all weights [te]
    "adamw-te-master": replace(_TE_ADAM, states=(*_FP32_ADAM, _fp32("master_param"))),
    "adamw-te-remainders": replace(_TE_ADAM, states=(*_FP32_ADAM, _REMAINDER)),
    "adamw-te-remainders-bf16": replace(_TE_ADAM, states=(*_BF16_ADAM, _REMAINDER)),
    "flash-adamw": replace(_FLASH_ADAM, states=(*_FLASH_ADAM.states, _beside_narrow("error_bits", 1))),
    "flash-adamw-32": replace(_FLASH_ADAM, states=(*_FLASH_ADAM.states, _beside_narrow("error_bits", 2))),
    # one byte a number, whether that holds an 8-bit code or an fp8 number [torchao optim/subclass_{8bit,fp8}.py]
    "adamw-8bit-torchao": OptimizerRule(
        (*_eight_beside("exp_avg"), *_eight_beside("exp_avg_sq")), loop_temporaries=2, loops=True, source="[torchao]",
    ),
    "adamw-4bit": OptimizerRule(
        (*_four("exp_avg"), *_four("exp_avg_sq")), loop_temporaries=2, loops=True, source="[torchao]",
    ),
    "adafactor": OptimizerRule(
        _FACTORED, loop_temporaries=2, carried=1, wide_temporaries=4, loops=True, source="[adafactor]",
    ),
    "came": OptimizerRule(
        (
            _fp32("exp_avg"), *_FACTORED,
            State("exp_avg_res_row", lambda shape, width, rank: factored(shape, vectors=False)[0]),
            State("exp_avg_res_col", lambda shape, width, rank: factored(shape, vectors=False)[1]),
        ),
        loop_temporaries=4, carried=1, wide_temporaries=5, loops=True, source="[came]",
    ),
    # one mean for every row, of queries and keys for a head: counted as rows, too [adam-mini]
    "adam-mini": OptimizerRule(
        (_same("exp_avg"), State("vmean", lambda shape, width, rank: full(shape[: len(shape) - 1] or (1,), width))),
        loop_temporaries=2, carried=1, loops=True, fused=False, source="[adam-mini]",
    ),
    "lion": OptimizerRule((_same("exp_avg"),), loop_temporaries=2, loops=True, source="[lion]"),
    # where it began, and one number a weight beside Adam's [prodigy-opt prodigyopt/prodigy.py, slice_p=1]
    "prodigy": OptimizerRule(
        (_same("s"), _same("p0"), *_ADAM), loop_temporaries=1, loops=True, fused=False, source="[prodigy]",
    ),
    "lamb": OptimizerRule(_ADAM, loop_temporaries=2, loops=True, source="[lamb]"),
    # after their freeze_step, which is where they need most; the server's error is another share [onebit]
    "onebit-adam": OptimizerRule((*_ADAM, _fp32("worker_error")), compressed=2, fused=False, source="[onebit]"),
    "zero-one-adam": OptimizerRule(
        (*_ADAM, _fp32("worker_error"), _same("momentum_accumulator")), compressed=2, fused=False, source="[onebit]",
    ),
    "onebit-lamb": OptimizerRule(
        (*_ADAM, _same("exp_avg_sq_fresh"), _fp32("worker_error")), compressed=3, flat=False, fused=False,
        source="[onebit]",
    ),
    "lars": OptimizerRule((_same("momentum_buffer"),), loop_temporaries=1, loops=True, source="[lamb]"),
    "muon": OptimizerRule(
        (_same("momentum_buffer"),), loops=True, orthogonalises=True, matrix_rule="adamw", hidden_only=True,
        fused=False, source="[muon]",
    ),
    "shampoo": OptimizerRule(
        (_same("momentum_buffer"), _same("grafting_exp_avg_sq"), _blocked("factors"), _blocked("inverse roots")),
        loop_temporaries=2, loops=True, matrix_rule="adamw", source="[shampoo]",
    ),
    "soap": OptimizerRule(
        (*_ADAM, _rotation("gram matrices"), _rotation("eigenvectors")),
        loop_temporaries=3, loops=True, matrix_rule="adamw", source="[soap]",
    ),
    "galore": _GALORE,
    "apollo": replace(_GALORE, source="[apollo]", rank=256),
    # a hook on each weight steps it [transformers trainer_optimizer.py `_setup_low_rank_optimizer`]
    "galore-layerwise": replace(_GALORE, gradients_in_backward=True),
    "apollo-layerwise": replace(_GALORE, gradients_in_backward=True, source="[apollo]", rank=256),
    "apollo-mini": OptimizerRule(
        _LOW_RANK, loop_temporaries=1, loops=True, matrix_rule="adamw", hidden_only=True, source="[apollo]", rank=1,
    ),
    "lomo": OptimizerRule(
        (), loop_temporaries=0, wide_temporaries=2, loops=True, gradients_in_backward=True, source="[lomo]",
    ),
    "adalomo": OptimizerRule(
        _FACTORED, loop_temporaries=2, wide_temporaries=3, loops=True, gradients_in_backward=True, source="[lomo]",
    ),
    "schedulefree-adamw": OptimizerRule(
        (_same("z"), _same("exp_avg_sq")), foreach_temporaries=1, carried=1, source="[schedulefree]",
    ),
    "schedulefree-sgd": OptimizerRule((_same("z"),), source="[schedulefree]"),
    "sophia": OptimizerRule((_same("exp_avg"), _same("hessian")), loop_temporaries=1, loops=True, source="[sophia]"),
}
"""Every optimizer. `paged-` before a name puts states into unified memory; `:rank` behind one is its projection's."""

ALIASES: Final[dict[str, str]] = {
    "momentum": "sgd-momentum",
    "adam8bit": "adam-8bit",
    "adamw8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "lion8bit": "lion-8bit",
    "galore-adamw": "galore",
    "schedulefree": "schedulefree-adamw",
}
"""Other spellings."""


def canonical(name: str) -> str:
    """An optimizer by the name of its rule.

    >>> canonical("AdamW_8bit"), canonical("paged_lion8bit"), canonical("galore-adamw:64")
    ('adamw-8bit', 'paged-lion-8bit', 'galore:64')
    """
    base, colon, rank = name.lower().partition(":")
    paged = base.startswith(("paged-", "paged_"))
    base = base[len("paged-") :] if paged else base
    return ("paged-" if paged else "") + ALIASES.get(base, base) + colon + rank


def optimizer(name: str) -> OptimizerRule:
    """The rule called `name`: 'adamw', 'paged-adamw-8bit', 'galore:256'.

    Raises: UnknownName with the nearest names; InvalidSpec for a rank that is not a positive number.
    """
    base, _, rank = canonical(name).partition(":")
    paged = base.startswith("paged-")
    rule = OPTIMIZERS.get(base.removeprefix("paged-"))
    if rule is None:
        raise UnknownName.of("optimizer", name, OPTIMIZERS)
    if rank:
        if not rank.isdecimal() or not 1 <= len(rank) <= 9 or int(rank) < 1:
            raise InvalidSpec("optimizer {!r} has no usable rank; use a positive number, as in 'galore:128'", name[:80])
        rule = replace(rule, rank=int(rank))
    return replace(rule, paged=paged)
