"""DPO and KTO as TRL runs them: the reference answers between the policy's forward and its backward.

[DPO] Rafailov et al., arXiv:2305.18290   [KTO] Ethayarajh et al., arXiv:2402.01306
[TRL] huggingface/trl trl/trainer/dpo_trainer.py `_compute_loss`, `__init__`; trl/models/utils.py `prepare_fsdp`,
`prepare_deepspeed`; trl/trainer/utils.py `entropy_from_logits`, read in v0.11.0 to v1.9.0:
* policy and reference read chosen and rejected answers as one batch; the reference is a second network, or the policy
  with its adapter switched off, or nobody (`precompute_ref_log_probs`);
* since 0.29 variables hold the logits of both until the loss is there; 0.29 to 1.5 copy those that are shifted, and
  since then the entropy copies them once more, 128 rows of which are looked at together;
* FSDP1 wraps the reference as the policy, FSDP2 as one unit since 0.29 and FSDP1 instead of it before; Accelerate
  converts nothing that either returns; ZeRO-3 partitions it, the lower stages keep it whole in 16 bits.
[TRL] trl/trainer/kto_trainer.py `_compute_loss`, `_compute_kl_logps` v1.9.0: one answer a sample; its metrics copy the
logits of desirable and undesirable ones (v1.8.0: before the reference is asked), then those of completions among them.
Policy and reference are asked without autograd about other prompts, too, which takes less than what follows.
[ORPO] trl/experimental/{orpo,cpo}/*_trainer.py `concatenated_forward` v1.9.0: no reference; a cross entropy of a copy
of the chosen answers' logits goes before the log-probabilities of both, which nothing holds afterwards.
[swift] modelscope/ms-swift 3602360a5 swift/rlhf_trainers/{rlhf_mixin,dpo_trainer,kto_trainer}.py
`get_per_token_logps`: `selective_log_softmax` of all logits, of which nothing but numbers a sample is returned.
[LF] hiyouga/LLaMA-Factory src/llamafactory/train/dpo/trainer.py `concatenated_forward`, train/trainer_utils.py
`get_batch_logps`: fp32 logits, a log_softmax over all of them
[xt] InternLM/xtuner b934f462 xtuner/model/dpo.py, orpo.py: nothing is made of the policy's logits before the reference
has answered; log_softmax of all of either
[chat] deepspeedai/DeepSpeedExamples 45b4b715 applications/DeepSpeed-Chat/training/step2_dpo_finetuning/main.py: a
second network beside adapters, too; both outputs are variables of the loop, log_softmax of both is over all logits
[autocast] pytorch aten/src/ATen/autocast_mode.cpp `cached_cast`: casts of weights that ask for gradients are kept until
the context is left, without autograd, too
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Job, Loss, Phase, Precision
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.domain.version import Version
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import Around, Piece, inference
from vramcast.engines.eager.phases import Stepping, plain_phases
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.engines.eager.releases import liger_kernels, sharder
from vramcast.engines.eager.trl import LOADS_FP32_SINCE, is_trl, trl_version
from vramcast.errors import Note, Unsupported
from vramcast.operators.graph import Graph
from vramcast.operators.loss import LOGITS_ALONE
from vramcast.states.steps import weight_program
from vramcast.units import FP32, ceil_div

ENTROPY_ROWS: Final = 128
"""`entropy_from_logits` looks at so many rows together: their log-probabilities, exponentials and product."""
ENTROPY_TENSORS: Final = 3

HOLDS_SINCE: Final[Version] = (0, 29)
VIEWS_SINCE: Final[Version] = (1, 6)
BY_SAMPLE_SINCE: Final[Version] = (0, 14)
"""`selective_log_softmax` instead of a log_softmax over all logits."""

KTO_SINCE: Final[Version] = (1, 8)
"""The oldest KTOTrainer that was read."""
KTO_COPIES_LATE_SINCE: Final[Version] = (1, 9)
"""Before, the logits of both kinds of answers were copied before the reference was asked, and held from there on."""

BY_ROWS: Final = {"rows": "log_probabilities", "rows+nll": "log_probabilities_nll"}
"""`log_probs` of trainers that hold no logits -> key of the loss tables."""

BEHIND: Final = {"behind": "log_probabilities_behind", "whole+nll": "log_probabilities_whole_nll"}
"""`log_probs` of xtuner's DPO and ORPO -> the same."""

COMPARED: Final = ("dpo", "kto")
"""Objectives whose loss is one of a reference's answers, too."""


AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)


def sentence_of(objective: str, who: str) -> str:
    """Who answers as the reference."""
    name = objective.upper()
    if not name:
        return "no reference is asked, as ORPO, CPO and SimPO have none: a cross entropy of the chosen answers instead"
    if who == "model":
        return Note("a second network answers as the reference of {}, after the policy and before its backward", name)
    if who == "adapter":
        return Note("the reference of {} is the policy with its adapter switched off", name)
    return Note(
        "the reference of {} has been asked before the run (precompute_ref_log_probs): it is not in memory", name
    )


def compares(job: Job) -> bool:
    """Whether TRL's DPOTrainer or KTOTrainer makes the loss of a job from its logits, or DeepSpeed-Chat's loop does.

    Raises: Unsupported for KTO otherwise
    """
    if in_variables(job):
        return plain_loss(job)
    if not is_trl(job) or job.workload.objective not in COMPARED:
        return False
    if job.workload.objective == "kto" and not plain_loss(job):
        raise Unsupported("KTO is counted as KTOTrainer makes its loss, of all logits; leave --loss, --compile and "
                          "liger out")
    if job.workload.objective == "kto" and trl_version(job) < KTO_SINCE and not by_rows(job):
        raise Unsupported("KTO is counted as TRL 1.8 and 1.9 run it; before, KTOTrainer may have held other copies of "
                          "the logits")
    return plain_loss(job)


def plain_loss(job: Job) -> bool:
    return job.plan.loss in (None, Loss.EAGER) and not job.plan.compile and not fuses_head(job)


def fuses_head(job: Job) -> bool:
    """Whether no logits are made: head and loss are one kernel."""
    return job.plan.loss is Loss.FUSED_LINEAR or "fused_linear_cross_entropy" in liger_kernels(job)


def refuse_fused(job: Job) -> None:
    """Raise Unsupported where a preference loss makes no logits."""
    if job.workload.objective == "dpo" and is_trl(job) and fuses_head(job):
        raise Unsupported("DPO with a fused head and loss is Liger's own preference loss, which is not modelled; leave "
                          "--loss and liger out")


def in_one(job: Job) -> bool:
    """Whether a trainer of another project asks for the log-probabilities of all logits at once."""
    return compares(job) and job.engine_options.get("log_probs") == "whole"


def by_rows(job: Job) -> bool:
    """Whether a trainer takes log-probabilities sample by sample and holds no logits, whatever TRL's own does."""
    return job.engine_options.get("log_probs") in BY_ROWS


def in_variables(job: Job) -> bool:
    """Whether a loop of its own keeps the outputs of policy and reference in variables, as DeepSpeed-Chat's does."""
    asked = job.engine_options.get("log_probs") == "outputs"
    return asked and job.engine == "deepspeed" and job.workload.objective == "dpo"


def rated_loss(job: Job) -> str | None:
    """Key of the loss tables where TRL rates answers; None: another loss."""
    if not compares(job):
        return None
    if in_variables(job):
        return "log_probabilities_whole"
    if by_rows(job):
        return BY_ROWS[str(job.engine_options["log_probs"])]
    if (asked := job.engine_options.get("log_probs")) in BEHIND:
        autocast = job.engine == "huggingface" and job.plan.precision in AUTOCAST and job.plan.sharded_by != "deepspeed"
        return BEHIND[str(asked)] + "_autocast" * autocast
    version = trl_version(job)
    if version < BY_SAMPLE_SINCE or in_one(job):
        return "log_probabilities_whole"
    if version < HOLDS_SINCE:
        return "log_probabilities"
    return "log_probabilities_shifted" if version >= VIEWS_SINCE else "log_probabilities_copied"


class Rated(Struct, frozen=True):
    """What runs between forward and backward."""

    reference: Recipe | None  # None: nobody is asked
    own: bool  # a network of its own; else the policy without its adapter
    held: Program  # logits of the policy that variables hold, beside what autograd saves
    looked_at: Program  # the reference's logits, and what the metrics make of the policy's
    loads_fp32: bool = True  # the reference
    one_unit: bool = True  # of FSDP2
    objective: str = "dpo"
    name: str = "reference"  # how what the second network has is owned

    def between(self, forward: Program) -> Program:
        """`forward` is the reference's."""
        return (
            *map(Alloc, self._tensors(self.held)), *forward, *self.looked_at, *map(Free, self._tensors(self.looked_at)),
            *map(Free, self._tensors(self.held)),
        )

    @staticmethod
    def _tensors(program: Program) -> list[Tensor]:
        return [node.tensor for node in program if isinstance(node, Alloc)]

    @property
    def said(self) -> str:
        """Who is asked."""
        who = "nobody" if self.reference is None else "model" if self.own else "adapter"
        return sentence_of(self.objective, who)


def rated(job: Job, recipe: Recipe) -> Rated | None:
    """The reference of a job, and what is looked at; None where no answers are compared."""
    if not compares(job):
        return None
    version, sizes = trl_version(job), recipe.sizes
    wide = recipe.outputs_fp32 or recipe.returns_fp32
    width = FP32 if wide else sizes.numerics.compute
    size = sizes.tokens * (recipe.model.vocab // sizes.tp) * width

    def tensor(name: str, num_bytes: int) -> Tensor:
        return Tensor(
            name=name, num_bytes=num_bytes, category=Category.TEMPORARIES, owner="preference",
            formula=Note(
                "{:,} tokens x {:,} x {} B", sizes.tokens, recipe.model.vocab, width
            ), source="trl dpo_trainer.py",
        )

    asked = None if job.engine_options.get("precompute_ref_log_probs") else recipe
    own = job.plan.peft is None or in_variables(job)
    if asked is not None:
        asked = replace(recipe, sizes=replace(sizes, adapter=None), recompute=False, kept_logits=0)
    loads_fp32 = version >= LOADS_FP32_SINCE and job.engine_options.get("dtype", "float32") == "float32"
    apart = own and sharder(job) in ("fsdp1", "fsdp2") and not recipe.returns_fp32
    behind = job.engine_options.get("log_probs") in BEHIND
    one_unit = version >= HOLDS_SINCE and not in_one(job) and not by_rows(job)
    if behind and asked is not None:  # its logits are handed out
        asked = replace(asked, loss=LOGITS_ALONE)
    objective = "" if str(job.engine_options.get("log_probs")).endswith("+nll") else str(job.workload.objective)
    found = Rated(asked, own, (), (), loads_fp32, one_unit, objective)
    if in_one(job):  # fp32 logits of the policy are returned with the loss; KTO's reference holds its own, too
        one = Alloc(tensor("logits of the policy", size // width * FP32))
        return replace(found, held=(one,) * (2 if job.workload.objective == "kto" and asked is not None else 1))
    if in_variables(job):  # the logits are kept by the recipe
        return replace(found, loads_fp32=False, looked_at=(Alloc(tensor("log-probabilities of the reference", size)),))
    if version < HOLDS_SINCE or by_rows(job) or behind:
        return found
    copies, held, looked_at = 0 if version >= VIEWS_SINCE else 1, [], []
    if extra := copies + (width != FP32):  # what autograd saves of fp32 logits is one of the two
        held = [tensor("logits of the policy", size)] * extra
    if asked is not None:
        if apart:
            found = replace(found, reference=replace(asked, outputs_fp32=False))
        size_of_reference = sizes.tokens * recipe.model.vocab * sizes.numerics.compute if apart else size
        looked_at = [tensor("logits of the reference", size_of_reference)] * (1 + copies)
    if job.workload.objective == "kto":  # more than the entropy, which is done by then
        most, early = ceil_div(sizes.batch, 2) * size // sizes.batch, version < KTO_COPIES_LATE_SINCE
        (held if early else looked_at).append(tensor("logits of both kinds of answers", size))
        looked_at.append(tensor("logits of completions", most))
        return replace(found, held=tuple(map(Alloc, held)), looked_at=tuple(map(Alloc, looked_at)))
    if not copies:
        looked_at.append(tensor("logits in one piece", size))
    rows = min(ENTROPY_ROWS, sizes.tokens) * size // max(1, sizes.tokens)
    looked_at += [tensor("rows of the entropy", rows)] * ENTROPY_TENSORS
    return replace(found, held=tuple(map(Alloc, held)), looked_at=tuple(map(Alloc, looked_at)))


class Cached(Around):
    """Autocast without autograd: casts of weights that learn live until forward has returned its logits."""

    def __init__(self, head: Graph, main: str, logits: int) -> None:
        self.head, self.main, self.logits = head, main, logits

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """Each layer's casts stay; the head's logits meet them all."""
        made = [(piece.count, piece.lowered.forward, casts_of(piece.graph)) for piece in pieces]
        nodes: list[Node] = [Loop(n, (*body, *map(Alloc, kept)), label="layers") for n, body, kept in made]
        if stack == self.main:
            last = [*casts_of(self.head), self.head.tensor("logits", self.logits)]
            nodes += [*map(Alloc, last), *map(Free, last)]
        return (*nodes, *(Loop(n, tuple(map(Free, kept)), label="autocast cache") for n, _, kept in made if kept))


def casts_of(graph: Graph) -> list[Tensor]:
    """Those that autocast makes of the weights of a graph."""
    values = (value for operator in graph.operators for value in operator.extra)
    return [value.tensor for value in values if value.name.endswith("weight_cast")]


def renamed(*programs: Program, prefix: str = "reference") -> tuple[Program, ...]:
    """Programs of a second network, whose tensors say that they are its own."""
    known: dict[Tensor, Tensor] = {}

    def again(tensor: Tensor) -> Tensor:
        if tensor not in known:
            known[tensor] = replace(tensor, owner=f"{prefix}.{tensor.owner}")
        return known[tensor]

    def walk(program: Program) -> Program:
        return tuple(
            Loop(node.count, walk(node.body), node.label) if isinstance(node, Loop) else type(node)(again(node.tensor))
            for node in program
        )

    return tuple(map(walk, programs))


def whole_reference(compared: Rated, *, cached: bool) -> tuple[Program, Program]:
    """Load and forward of a reference that every rank has whole.

    Args:
        compared: whose reference
        cached: autocast keeps its casts
    """
    recipe = compared.reference
    if recipe is None:
        return (), ()
    load = weight_program(weights(recipe)) if compared.own else ()
    if cached and compared.own and recipe.sizes.numerics.autocast:
        built = blocks(recipe)
        narrow = recipe.sizes.tokens * (recipe.model.vocab // recipe.sizes.tp) * recipe.sizes.numerics.compute
        around = Cached(built.head, recipe.model.main.name, narrow)
        forward = inference(recipe, built, around)
    else:
        forward = inference(recipe)
    load, forward = renamed(load, forward, prefix=compared.name)
    return load, forward


def compared_phases(recipe: Recipe, stepping: Stepping, compared: Rated) -> Mapping[Phase, Program]:
    """Phases of a run in which every rank has policy and reference whole."""
    load, forward = whole_reference(compared, cached=True)
    phases = dict(plain_phases(recipe, replace(stepping, between=compared.between(forward))))
    phases[Phase.LOAD] += load
    return phases
