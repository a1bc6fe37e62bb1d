"""GRPO and RLOO as TRL runs them: answers are written together, rated, and learned from micro-batch by micro-batch.

[GRPO] Shao et al., arXiv:2402.03300   [RLOO] Ahmadian et al., arXiv:2402.14740
[TRL] huggingface/trl trl/trainer/{grpo,rloo}_trainer.py `_generate_single_turn`, `_generate_and_score_completions`,
`_get_per_token_logps_and_entropies`, trl/trainer/grpo_config.py `__post_init__`, read in v0.16.0 to v1.9.0:
* one process generates for per_device_train_batch_size x steps_per_generation prompts at once, which is the gradient
  accumulation where nobody says it (since 0.17; for one micro-batch before); none where a server writes;
* `logits_to_keep`: the head reads the positions of the answer and the one before;
* logits are divided by the temperature in place since 1.0, in a copy before; the entropy reads them in one piece;
* RLOO asks the policy for the log-probabilities of what it wrote, too; the reference rates micro-batch by micro-batch.
[generate] transformers generation/utils.py `_sample`, cache_utils.py `DynamicLayer`
[autocast] see preference.py

Distillation: a frozen teacher answers between the student's logits and the loss that both make.

[GKD] Agarwal et al., arXiv:2306.13649: a generalised Jensen-Shannon divergence of both distributions
[TRL] huggingface/trl f2cd5771 trl/experimental/gkd/gkd_trainer.py `compute_loss`, `generalized_jsd_loss`, `__init__`
[swift] modelscope/ms-swift 3602360a5 swift/rlhf_trainers/gkd_trainer.py `compute_loss`, gkd_loss.py `gkd_loss`,
rollout_mixin.py `_setup_teacher`
[torchtune] meta-pytorch/torchtune bd2a0fc7 recipes/knowledge_distillation_*.py `_loss_step`: a teacher sharded as the
student is, layer by layer
What the student writes itself (lmbda) it writes before the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Job, Phase, Precision, Recompute
from vramcast.domain.model import Attention
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.domain.version import Version
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import inference
from vramcast.engines.eager.phases import Stepping, cache_width, plain_phases
from vramcast.engines.eager.preference import (
    ENTROPY_ROWS,
    ENTROPY_TENSORS,
    Cached,
    Rated,
    casts_of,
    plain_loss,
    whole_reference,
)
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.eager.trl import LOADS_FP32_SINCE, beta_of, generated_at_once, is_trl, trl_version
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import Numerics
from vramcast.operators.loss import LOGITS_ALONE, distillation_loss
from vramcast.units import FP32

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


WRITTEN: Final = ("grpo", "rloo")
"""Objectives of TRL's trainers that write answers."""

IN_PLACE_SINCE: Final[Version] = (1, 0)
"""Logits are divided in place."""
SAMPLED: Final = 4
"""fp32 rows of the vocabulary beside the logits of the last position: their copy, scores, probabilities, noise."""


def writes(job: Job) -> bool:
    """Whether TRL's GRPOTrainer or RLOOTrainer runs a job.

    Raises: Unsupported where its loss is another kernel
    """
    if not is_trl(job) or job.workload.objective not in WRITTEN:
        return False
    if not plain_loss(job):
        name = job.workload.objective.upper()
        raise Unsupported(
            "{} is counted as TRL makes its loss, of the logits of all answers; leave --loss, --compile and liger out",
            name
        )
    return True


def written_loss(job: Job) -> str:
    """Key of the loss tables."""
    return "log_probabilities_divided" + "_copy" * (trl_version(job) < IN_PLACE_SINCE)


def written_together(job: Job) -> int:
    """Answers that one process writes at once [count].

    Raises: InvalidSpec for a generation batch that TRL refuses, too
    """
    micro, batch = job.workload.micro_batch, job.engine_options.get("generation_batch_size")
    if batch is not None:
        ranks = micro * job.data_parallel
        if "steps_per_generation" in job.engine_options or int(batch) % ranks:
            raise InvalidSpec(
                "generation_batch_size={} must be a multiple of micro-batch x processes = {}, and stand without "
                "steps_per_generation", batch, ranks
            )
        return int(batch) // job.data_parallel
    return micro * generated_at_once(job)


def of_answers(recipe: Recipe, job: Job) -> Recipe:
    """The recipe of a micro-batch, whose head reads the answers alone."""
    return replace(recipe, sizes=replace(recipe.sizes, last_logits=job.workload.completion_len + 1))


class Answered(NamedTuple):
    """What runs beside the micro-batches."""

    reference: Rated  # who rates
    looked_at: Rated  # between forward and backward: the metrics
    generation: Program
    own: Program  # the policy rates, too
    said: str


def answered(job: Job, recipe: Recipe) -> Answered:
    """What runs beside the micro-batches of a recipe."""
    asked = replace(recipe, sizes=replace(recipe.sizes, adapter=None), recompute=False, kept_logits=0)
    loads_fp32 = trl_version(job) >= LOADS_FP32_SINCE and job.engine_options.get("dtype", "float32") == "float32"
    own = job.plan.peft is None
    rated = Rated(asked if beta_of(job) else None, own, (), (), loads_fp32)
    again = job.workload.objective == "rloo"
    return Answered(
        rated, replace(rated, reference=None, looked_at=_looked_at(recipe)), written_ahead(recipe, job),
        _without_autograd(replace(recipe, recompute=False)) if again else (),
        _said(written_together(job)),
    )


def _said(together: int) -> str:
    if not together:
        return "a server elsewhere writes the answers"
    return Note("TRL's trainer writes {} answers at once: micro-batch x steps_per_generation", together)


def completion_phases(job: Job, recipe: Recipe, stepping: Stepping) -> tuple[Mapping[Phase, Program], str]:
    """Phases of a run in which every rank has policy and reference whole, and what there is to say."""
    found = answered(job, recipe)
    load, rating = whole_reference(found.reference, cached=True)
    stepping = replace(stepping, between=found.looked_at.between(()))
    phases = plain_phases(recipe, stepping, generation=found.generation)
    return with_answers(phases, load, (*found.generation, *rating, *found.own)), found.said


def with_answers(phases: Mapping[Phase, Program], load: Program, before: Program) -> Mapping[Phase, Program]:
    """Phases with the networks that are loaded beside, and what runs before the first micro-batch."""
    found = dict(phases)
    found[Phase.LOAD] += load
    for phase in (Phase.FIRST_STEP, Phase.STEP):
        found[phase] = before + found[phase]
    return found


def _looked_at(recipe: Recipe) -> Program:
    """What the entropy makes of the logits of the answers."""
    sizes, vocab = recipe.sizes, recipe.model.vocab
    rows = sizes.batch * min(sizes.last_logits or sizes.seq_len, sizes.seq_len)
    width = FP32 if recipe.outputs_fp32 or recipe.returns_fp32 else sizes.numerics.compute

    def tensor(name: str, count: int) -> Tensor:
        return Tensor(
            name=name, num_bytes=count * vocab * width, category=Category.TEMPORARIES, owner="answers",
            formula=Note("{:,} rows x {:,} x {} B", count, vocab, width), source="trl grpo_trainer.py",
        )

    found = [tensor("rows of the entropy", min(ENTROPY_ROWS, rows))] * ENTROPY_TENSORS
    if sizes.batch > 1:
        found.append(tensor("logits in one piece", rows))
    if width != FP32:  # variables hold what autograd has made log-probabilities of
        found.append(tensor("logits of the policy", rows))
    return tuple(map(Alloc, found))


def _without_autograd(recipe: Recipe) -> Program:
    """A forward of the policy; autocast keeps the casts of what learns until it has returned."""
    if not recipe.sizes.numerics.autocast or recipe.sizes.adapter is not None:
        return inference(recipe)
    built, sizes = blocks(recipe), recipe.sizes
    rows = sizes.batch * min(sizes.last_logits or sizes.seq_len, sizes.seq_len)
    logits = rows * recipe.model.vocab * sizes.numerics.compute
    return inference(recipe, built, Cached(built.head, recipe.model.main.name, logits))


def written_ahead(recipe: Recipe, job: Job) -> Program:
    """The prompts are read together, then one position after the other."""
    sizes = recipe.sizes
    if not (together := written_together(job)):
        return ()
    prompt, length = job.workload.seq_len, sizes.seq_len
    reading = replace(
        recipe, recompute=False, sizes=replace(sizes, batch=together, seq_len=prompt, last_logits=1),
    )
    one = replace(recipe, recompute=False, sizes=replace(sizes, batch=together, seq_len=1, last_logits=1))
    vocabulary = Tensor(
        name="scores", num_bytes=together * recipe.model.vocab * FP32, category=Category.TEMPORARIES,
        owner="generation", formula=Note("{:,} answers x {:,} x {} B", together, recipe.model.vocab, FP32),
    )
    scores = [vocabulary] * SAMPLED
    early, late = _cache(recipe, together, prompt, "prompts"), _cache(recipe, together, length, "generation.cache")
    tensors = [item.tensor for node in late if isinstance(node, Loop) for item in node.body if isinstance(item, Alloc)]
    grown = sorted(tensors, key=lambda tensor: tensor.num_bytes)[-1:] + _cast_layers(one)
    return (
        *early, *_without_autograd(reading), *_freed(early), *late, *map(Alloc, grown), *map(Free, grown),
        *_without_autograd(one), *map(Alloc, scores), *map(Free, scores), *_freed(late),
    )


def _cast_layers(recipe: Recipe) -> list[Tensor]:
    """Autocast's casts of all layers, beside which the last one's cache grows."""
    if not recipe.sizes.numerics.autocast or recipe.sizes.adapter is not None:
        return []
    casts = sum(count * tensor.num_bytes for count, graph in blocks(recipe).main.graphs for tensor in casts_of(graph))
    return [Tensor(name="casts of all layers", num_bytes=casts, category=Category.TEMPORARIES, owner="generation")]


def _cache(recipe: Recipe, together: int, positions: int, owner: str) -> Program:
    """Keys and values of all layers. Under autocast over fp32 weights rotary embeddings make keys fp32, and the first
    concatenation with an empty tensor of their type the values."""
    sizes, nodes = recipe.sizes, list[Node]()
    for run in recipe.model.main.runs:
        mixer = run.layer.mixer
        elements, width = cache_width(mixer), sizes.numerics.compute
        if not elements:
            continue
        if isinstance(mixer, Attention) and sizes.numerics.autocast and not recipe.model.main.positions:
            width = max(width, sizes.numerics.residual)
        tensor = Tensor(
            name="keys or values", num_bytes=together * positions * elements * width // 2,
            category=Category.ACTIVATIONS, owner=owner,
            formula=f"{together:,} x {positions:,} x {elements // 2:,} x {width} B",
            source="transformers cache_utils.py DynamicLayer",
        )
        nodes.append(Loop(2 * run.count, (Alloc(tensor),)))
    return tuple(nodes)


def _freed(cache: Program) -> Program:
    return tuple(
        Loop(node.count, tuple(Free(item.tensor) for item in node.body if isinstance(item, Alloc)))
        for node in cache if isinstance(node, Loop)
    )
