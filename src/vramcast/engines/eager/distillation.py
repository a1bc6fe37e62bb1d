"""Distillation: a frozen teacher answers between the student's logits and the loss that both make.

[GKD] Agarwal et al., arXiv:2306.13649: a generalised Jensen-Shannon divergence of both distributions
[TRL] huggingface/trl f2cd5771 trl/experimental/gkd/gkd_trainer.py `compute_loss`, `generalized_jsd_loss`, `__init__`
[swift] modelscope/ms-swift 3602360a5 swift/rlhf_trainers/gkd_trainer.py `compute_loss`, gkd_loss.py `gkd_loss`,
rollout_mixin.py `_setup_teacher`
[torchtune] meta-pytorch/torchtune bd2a0fc7 recipes/knowledge_distillation_*.py `_loss_step`: a teacher sharded as the
student is, layer by layer
What the student writes itself (lmbda) it writes before the step.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Precision, Recompute
from vramcast.domain.program import Program
from vramcast.engines.eager.completions import written_ahead
from vramcast.engines.eager.preference import Rated
from vramcast.engines.eager.recipe import Recipe
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import Numerics
from vramcast.operators.loss import LOGITS_ALONE, distillation_loss

DIVERGENCES: Final = {0.0: "forward", 1.0: "reverse"}
"""Weight of the mixture where it is one of the two distributions alone [TRL `beta`]."""

BETA: Final = 0.5
"""[TRL gkd_config.py `beta`]."""


def distils(job: Job) -> bool:
    """Whether a teacher answers beside a job's model."""
    return job.workload.objective == "gkd"


def distilled_loss(job: Job) -> str:
    """Key of the loss tables as a trainer makes the divergence.

    Raises: Unsupported for other losses
    """
    if job.plan.loss is not None or job.plan.compile or job.engine_options.get("liger"):
        raise Unsupported("gkd is counted as trainers make its loss, of all logits; leave --loss, --compile and liger "
                          "out")
    if job.engine_options.get("log_probs") == "asft":
        return distillation_loss("asft")
    divergence = DIVERGENCES.get(float(job.engine_options.get("beta", BETA)), "mixture")
    return distillation_loss(divergence, by_rows=job.engine_options.get("log_probs") == "rows")


def student_of(job: Job) -> Job:
    """The teacher's own question: its network, frozen, as the student's trainer runs it.

    Raises: InvalidSpec where both say their words by other numbers
    """
    assert job.teacher is not None
    if job.teacher.vocab != job.model.vocab:
        raise InvalidSpec(
            "gkd compares distributions over one vocabulary: {} has {:,} words and its teacher {} {:,}; use a teacher "
            "of the same family", job.model.name, job.model.vocab, job.teacher.name, job.teacher.vocab
        )
    plan = replace(job.plan, peft=None, freeze=(), recompute=Recompute.NONE, recompute_layers=None)
    return replace(job, model=job.teacher, teacher=None, plan=plan)


def loaded_wide(job: Job) -> bool:
    """Whether the teacher's weights are fp32 beside autocast, as `from_pretrained` was asked to load them; Accelerate's
    `prepare_model` casts none, where DeepSpeed casts all."""
    beside = job.plan.precision in (Precision.AMP_BF16, Precision.AMP_FP16)
    return beside and job.engine_options.get("teacher_dtype") == "float32"


def taught(student: Recipe, teacher: Recipe, *, wide: bool = False) -> Rated:
    """What runs between the student's logits and its loss.

    Args:
        student: the model that learns
        teacher: of `student_of`
        wide: `loaded_wide`
    """
    width = student.sizes.numerics.compute
    sizes = replace(teacher.sizes, adapter=None) if wide else replace(
        teacher.sizes, frozen=True, adapter=None, numerics=Numerics(width, width, width, width), norm_weights=None,
    )
    asked = replace(
        teacher, sizes=sizes, loss=LOGITS_ALONE, returns_fp32=student.returns_fp32, outputs_fp32=student.outputs_fp32,
        recompute=False, kept_logits=0, learning=(), offloads=False,
    )
    return Rated(asked, own=True, held=(), looked_at=(), loads_fp32=False, one_unit=False, objective="gkd",
                 name="teacher")


def own_answers(job: Job, student: Recipe) -> Program:
    """What the student writes before a step, where it does."""
    return written_ahead(replace(student, loss=LOGITS_ALONE), job) if job.workload.completion_len else ()


ALL_POSITIONS: Final = (
    "logits and their divergence are of all positions: ms-swift leaves those of prompts out where the model's code "
    "can, which is less"
)


def teacher_sentences(job: Job) -> tuple[str, ...]:
    """Who answers, and what is counted of it."""
    return (_who(job), *((ALL_POSITIONS,) if job.engine_options.get("log_probs") == "rows" else ()))


def _who(job: Job) -> str:
    assert job.teacher is not None
    if loaded_wide(job):
        return Note(
            "{} answers as the teacher between the student's logits and their loss, its weights in float32 beside "
            "autocast", job.teacher.name
        )
    return Note(
        "{} answers as the teacher between the student's logits and their loss, its weights frozen in the type that "
        "the step computes in", job.teacher.name
    )
