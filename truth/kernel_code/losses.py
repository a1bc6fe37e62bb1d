"""Losses over logits, probabilities and output projections."""

from __future__ import annotations

from typing import Any, Final

import torch

from truth.kernel_code.bench import CUDA, Run, constant, dtype_of, labels, leaf, of_loss, with_given_gradient
from truth.rows.kernels.harness import Case
from truth.rows.kernels.preference import LEFT_BY_COMPILED, UPCAST_SINCE
from truth.rows.kernels.probabilities import random_gradient

IGNORED: Final = -100


def cross_entropy(case: Case) -> Run:
    """torch.nn.CrossEntropyLoss of fp32 logits."""
    tokens, classes = case.size("B") * case.size("T"), case.size("V")
    loss = torch.nn.CrossEntropyLoss()
    logits, target = leaf(tokens, classes, dtype=dtype_of(case)), labels(classes, tokens)
    return of_loss(lambda: loss(logits, target))


def _distributions(case: Case, function: Any, target_function: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if case.x_name == "BT":
        rows, classes = case.size("BT"), case.size("vocab_size")
    else:
        rows, classes = case.size("B") * case.size("T"), case.size("V")
    return function(leaf(rows, classes), dim=-1), target_function(constant(rows, classes), dim=-1)


def _of_distance(case: Case, forward: Any) -> Run:
    """Since 0.8.0 the gradient of the loss is drawn."""
    if random_gradient(case):
        return Run(forward, lambda y: y.backward(torch.randn_like(y), retain_graph=True))
    return of_loss(forward, retain_graph=True)


def kl_div(case: Case) -> Run:
    """torch.nn.KLDivLoss of log-probabilities to probabilities."""
    student, target = _distributions(case, torch.log_softmax, torch.softmax)
    loss = torch.nn.KLDivLoss(reduction="batchmean")
    return _of_distance(case, lambda: loss(student, target))


def _jensen_shannon(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Half the divergences of both to their mean."""
    kl = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    mean = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    return 0.5 * kl(torch.log(mean), log_p) + 0.5 * kl(torch.log(mean), log_q)


def jsd(case: Case) -> Run:
    """Jensen-Shannon divergence of log-probabilities."""
    student, target = _distributions(case, torch.log_softmax, torch.log_softmax)
    return _of_distance(case, lambda: _jensen_shannon(student, target))


def tvd(case: Case) -> Run:
    """Total variation distance of probabilities."""
    student, target = _distributions(case, torch.softmax, torch.softmax)
    return _of_distance(case, lambda: torch.sum(torch.abs(student - target) / 2.0) / student.size(0))


def sparsemax(case: Case) -> Run:
    """A projection onto the simplex by sorting."""
    rows, width = case.size("B") * case.size("T"), case.size("V")
    x = leaf(rows, width, dtype=dtype_of(case))
    return with_given_gradient(lambda: _sparsemax(x, -1), torch.randn_like(x))


def _sparsemax(x: torch.Tensor, dim: int) -> torch.Tensor:
    values, _indices = torch.sort(x, dim=dim, descending=True)
    cumulative = torch.cumsum(values, dim=dim)
    steps = torch.arange(1, x.size(dim) + 1, device=x.device, dtype=x.dtype)
    bound = 1 + steps * values
    support = bound > cumulative
    count = support.sum(dim=dim, keepdim=True)
    total = (values * support).sum(dim=dim, keepdim=True)
    tau = (total - 1) / count
    return torch.clamp(x - tau, min=0)


def _projections(case: Case, count: int, *, dtype: torch.dtype) -> list[Any]:
    """Output projections of every module that the script sets up."""
    size = case.size("H"), case.size("V")
    return [torch.nn.Linear(*size, bias=False, dtype=dtype, device=CUDA) for _ in range(count)]


def fused_linear_cross_entropy(case: Case) -> Run:
    """A projection and its cross entropy, in the type of the logits."""
    dtype, rows = dtype_of(case), case.size("BT")
    heads = _projections(case, 2, dtype=dtype)
    loss = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
    x, target = leaf(rows, case.size("H"), dtype=dtype), labels(case.size("V"), rows)

    def forward() -> torch.Tensor:
        logits = heads[0](x)
        return loss(logits, target)

    return of_loss(forward)


def preference(case: Case) -> Run:
    """ORPO and CPO after TRL: likelihood of the chosen half, log-probabilities of the labels of both."""
    dtype, sequences, tokens = dtype_of(case), case.size("B"), case.size("T")
    heads = _projections(case, 2, dtype=dtype)
    x = leaf(sequences, tokens, case.size("H"), dtype=dtype)
    target = labels(case.size("V"), sequences, tokens)
    left = _left_by_compiled(case, heads[0].weight)
    upcast = case.timestamp >= UPCAST_SINCE

    def forward() -> torch.Tensor:
        assert left is not None
        logits = heads[0](x)
        scores = logits.float() if upcast else logits
        half = sequences // 2
        chosen = scores[:half].reshape(-1, scores.size(-1))
        loss = torch.nn.functional.cross_entropy(chosen, target[:half].reshape(-1), ignore_index=IGNORED)
        log_probs = scores.log_softmax(-1)
        picked = torch.gather(log_probs, dim=2, index=target.unsqueeze(2)).squeeze(2)
        kept = target != IGNORED
        means = (picked * kept).sum(-1) / kept.sum(-1)
        odds = means[:half] - means[half:]
        return loss - torch.nn.functional.logsigmoid(odds).mean()

    return of_loss(forward)


def fused_linear_jsd(case: Case) -> Run:
    """The script's `TorchLMHeadJSD`: both projections are in the graph, the teacher's states are constants."""
    dtype, rows = dtype_of(case), case.size("BT")
    student, teacher = _projections(case, 2, dtype=dtype)
    x, seen = leaf(rows, case.size("H"), dtype=dtype), constant(rows, case.size("H"), dtype=dtype)

    def forward() -> torch.Tensor:
        student_logits, teacher_logits = student(x), teacher(seen)
        log_q = torch.log_softmax(student_logits / 1.0, dim=-1)
        log_p = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return _jensen_shannon(log_q, log_p).to(dtype)

    return of_loss(forward)


def _left_by_compiled(case: Case, weight: torch.Tensor) -> list[torch.Tensor]:
    """What compiled calls of the same script, before the measured ones, were seen to leave."""
    weights, chunks = LEFT_BY_COMPILED
    pair = (2, case.size("T"), case.size("H"))
    left = [torch.empty_like(weight) for _ in range(weights)]
    return left + [torch.empty(pair, dtype=weight.dtype, device=CUDA) for _ in range(chunks)]


def _jensen_shannon_of_logits(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Of two sets of logits [distill]."""
    log_q, log_p = torch.log_softmax(student, dim=-1), torch.log_softmax(teacher, dim=-1)
    mean = (0.5 * log_q.exp() + 0.5 * log_p.exp()).log()
    of_student = torch.nn.functional.kl_div(mean, log_q, reduction="batchmean", log_target=True)
    of_teacher = torch.nn.functional.kl_div(mean, log_p, reduction="batchmean", log_target=True)
    return 0.5 * of_teacher + 0.5 * of_student


def _cosine_of_logits(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """One less the cosine of two sets of normed logits [distill]."""
    student = torch.nn.functional.normalize(student, p=2, dim=-1)
    teacher = torch.nn.functional.normalize(teacher, p=2, dim=-1)
    similarity = torch.nn.functional.cosine_similarity(student, teacher, dim=-1)
    loss = 1.0 * (1 - similarity)  # beta
    return loss.mean()


DISTANCES: Final = {"distill_jsd_loss": _jensen_shannon_of_logits, "distill_cosine_loss": _cosine_of_logits}


def distillation(case: Case) -> Run:
    """A student of half the width against a teacher: cross entropy and a distance, on fp32 logits.

    [distill] Liger-Kernel test/utils.py `HFDistillationLoss`, test/chunked_loss/test_jsd_loss.py
    """
    dtype, rows, hidden, classes = dtype_of(case), case.size("BT"), case.size("H"), case.size("V")
    options = {"bias": bool(case.config["bias"]), "dtype": dtype, "device": CUDA}
    students = [torch.nn.Linear(hidden // 2, classes, **options) for _ in range(2)]
    teachers = [torch.nn.Linear(hidden, classes, **options) for _ in range(2)]
    drawn = constant(rows, hidden // 2, dtype=dtype)
    x, of_other = (drawn.clone().requires_grad_() for _ in range(2))
    seen, target = constant(rows, hidden, dtype=dtype), labels(classes, rows)
    distance = DISTANCES[case.kernel]

    def logits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        student = x @ students[0].weight.t()
        with torch.no_grad():
            teacher = seen @ teachers[0].weight.t()
        wide, wide_teacher = student.view(rows, -1).float(), teacher.view(rows, -1).float()
        return wide, wide_teacher, torch.nn.functional.cross_entropy(wide, target, ignore_index=IGNORED)

    def forward() -> torch.Tensor:
        assert drawn is not None and of_other is not None
        student, teacher, hard = logits()
        student /= 1.0
        teacher /= 1.0
        soft = distance(student, teacher)
        return case.config["weight_hard_loss"] * hard + case.config["weight_soft_loss"] * soft

    return of_loss(forward)


def grpo(case: Case) -> Run:
    """Log-probabilities of the chosen tokens under the model and under a reference, in fp32."""
    dtype, sequences, tokens = dtype_of(case), case.size("B"), case.size("T")
    heads = _projections(case, 4, dtype=dtype)
    x = leaf(sequences, tokens, case.size("H"), dtype=dtype)
    reference = constant(sequences, tokens, case.size("H"), dtype=dtype)
    chosen = labels(case.size("V"), sequences, tokens)
    mask = torch.ones(sequences, tokens, device=CUDA)
    advantages = constant(sequences, dtype=dtype)

    def forward() -> torch.Tensor:
        logits = x @ heads[0].weight.t()
        log_probs = torch.log_softmax((logits / 1.0).float(), dim=-1)
        picked = log_probs.gather(dim=-1, index=chosen.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            ref_logits = reference @ heads[1].weight.t()
            ref_log_probs = torch.log_softmax((ref_logits / 1.0).float(), dim=-1)
            ref_picked = ref_log_probs.gather(dim=-1, index=chosen.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(picked - picked.detach())
        gain = torch.min(ratio * advantages.unsqueeze(1), torch.clamp(ratio, 0.8, 1.2) * advantages.unsqueeze(1))
        divergence = torch.exp(ref_picked - picked) - (ref_picked - picked) - 1.0
        loss = -gain + 0.04 * divergence
        return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)

    return of_loss(forward)


__all__ = [
    "cross_entropy", "distillation", "fused_linear_cross_entropy", "fused_linear_jsd", "grpo", "jsd", "kl_div",
    "preference", "sparsemax", "tvd",
]
