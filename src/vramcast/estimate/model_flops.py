"""Operations of one token of a training job, forward and backward.

Stable: `model_flops`.

[autograd] y = x W^T: backward multiplies once for x and once for W; a frozen weight has no gradient.
"""

from __future__ import annotations

from vramcast.domain.job import Job, Peft
from vramcast.engines import eager
from vramcast.estimate.variants import of_plain_layers
from vramcast.timing.training.operators import forward_flops


def model_flops(job: Job) -> float:
    """Operations of one token that the model needs: a property of its weights, its length and of what learns.

    Recomputation, the masked half of attention and what a kernel computes beside are not counted. Forward once,
    backward once more for the gradients of inputs and once for those of weights that learn [autograd]. Attention has
    no weights: its backward is twice its forward. Adapters count six operations a weight.
    """
    found, peft = forward_flops(job.model, job.workload.seq_len), job.plan.peft
    if peft is None:
        return 3 * sum(found)
    head = 3 if "head" in peft.modules_to_save else 2
    return 2 * found.products + head * found.output + 3 * found.attention + 6 * _adapter_elements(job, peft)


def _adapter_elements(job: Job, peft: Peft) -> int:
    """Weights that learn beside frozen ones, as the memory program has them."""
    weights = eager.recipe.weights(eager.question.recipe_of(of_plain_layers(job)))
    corrections = tuple(weight for weight in weights if f".{peft.method}." in weight.path)
    return eager.recipe.elements(corrections, learning_only=True)
