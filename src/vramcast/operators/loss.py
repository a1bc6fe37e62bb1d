"""Cross entropy over a vocabulary, from logits.

Symbols:  T tokens   V vocabulary on this rank   H hidden size   C tokens of a chunk
[hf] transformers loss/loss_utils.py `ForCausalLMLoss`: logits.float(), then F.cross_entropy
[torch] pytorch torch/nn/functional.py `cross_entropy`: log_softmax and nll_loss keep the log-probabilities
[liger] Liger-Kernel src/liger_kernel/ops/cross_entropy.py, fused_linear_cross_entropy.py
[trl] huggingface/trl v1.9.0 trl/trainer/sft_trainer.py `_chunk`, `_chunked_cross_entropy_loss`
[torchtune] meta-pytorch/torchtune torchtune/modules/loss/cross_entropy_loss.py, ce_chunked_output_loss.py
[verl] volcengine/verl b178a3c (0.8) verl/workers/actor/dp_actor.py `_forward_micro_batch`, verl/utils/
torch_functional.py
[TRL-GKD] huggingface/trl f2cd5771 trl/experimental/gkd/gkd_trainer.py `generalized_jsd_loss`
[swift] modelscope/ms-swift 3602360a5 swift/rlhf_trainers/gkd_loss.py `gkd_loss`, `jsd_loss`
[xtuner] InternLM/xtuner b934f462 xtuner/model/dpo.py `compute_loss`, orpo.py `compute_loss`
[LF] hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/train/trainer_utils.py `asft_loss_func`
[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl/integrations/diffusion/trainer.py `_compute_diffusion_loss`
[openrlhf] OpenRLHF/OpenRLHF 3c3be62 openrlhf/models/actor.py `Actor.forward`, openrlhf/models/utils.py
`log_probs_from_logits`, `compute_entropy`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.units import FP32, INT64, ceil_div


class Vocabulary(Struct, frozen=True):
    """Shape of one cross entropy on this rank."""

    tokens: int  # T
    size: int  # V
    itemsize: int  # of the logits [bytes]
    samples: int = 1  # that the tokens are of [count]

    @property
    def elements(self) -> int:
        return self.tokens * self.size

    @property
    def num_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def fp32_bytes(self) -> int:
        return self.elements * FP32

    @property
    def row_bytes(self) -> int:
        """One fp32 number a token."""
        return self.tokens * FP32


def scalar(graph: Graph, name: str = "loss") -> Value:
    return graph.value(name, FP32)


def _torch(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[torch]: log-probabilities of the logits' own type; backward makes two more tensors of their size."""
    size = logits.num_bytes
    log_probs = aten.unary(graph, logits, num_bytes=size, name="log_softmax", saves="output")
    del spec
    return graph.call("nll_loss", [log_probs], [scalar(graph)], saved=[log_probs],
                      extra=[graph.value("total_weight", FP32, gradient_bytes=0)])


def _compiled(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """torch.compile: keeps the logits, the maximum and the logarithm of the sum of each row."""
    rows = [graph.value(f"loss.{name}", spec.row_bytes, gradient_bytes=0) for name in ("amax", "log_sum")]
    return graph.call("cross_entropy", [logits], [scalar(graph)], saved=[logits], extra=rows)


def _liger(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[liger]: forward writes the gradient over the logits; counting the targets makes a mask and its int64 copy."""
    return graph.call(
        "cross_entropy", [logits], [scalar(graph)], saved=[logits], gradient_storages=[(logits, logits)],
        temporaries=[
            graph.tensor("loss.rows", spec.tokens * spec.itemsize),
            graph.tensor("loss.target_mask", spec.tokens),
            graph.tensor("loss.target_mask.int64", spec.tokens * INT64),
        ],
    )


Kernel = Callable[[Graph, Value, Vocabulary], Value]


def _prepared(kernel: Kernel, *, upcast: bool = False, shifted: bool = False, autocast: bool = False) -> Kernel:
    """What model code does to the logits before the kernel reads them; its variables hold the last of it.

    Args:
        kernel: of the loss
        upcast: `logits.float()`, as [hf] does
        shifted: `logits[..., :-1, :].contiguous()`, as [hf] until 4.48, Qwen 1 and GPT-2 of old copy several samples
        autocast: `F.cross_entropy` makes what it reads fp32 [autocast_mode.h, fp32 list], which no variable holds
    """
    def build(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
        held: tuple[Value, ...] = ()
        if upcast:
            logits = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
            held = (logits,)
        if shifted:
            copy = aten.unary(graph, logits, num_bytes=logits.num_bytes, name="logits.shifted")
            held, logits = (logits, copy), copy
        if autocast:
            logits = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
        loss = kernel(graph, logits, replace(spec, itemsize=FP32) if upcast or autocast else spec)
        graph.hold(*held)
        return loss

    return build


def _divided(graph: Graph, logits: Value, how: str) -> Value:
    """The logits divided by a temperature in a "copy", "in place", or, where `how` is empty, not at all.

    In place goes through a view, `squeeze(0)`: autograd's CopySlices fills in a gradient of all, and divides a clone.
    """
    size = logits.num_bytes
    if how == "copy":
        return aten.unary(graph, logits, num_bytes=size, name="logits.divided")
    if not how:
        return logits
    filled = [graph.tensor(f"grad.logits.{name}", size) for name in ("clone", "divided")]
    return graph.call("div_", [logits], [graph.view(logits, "logits.divided")], backward_temporaries=filled)


def _log_probabilities(
    graph: Graph, logits: Value, spec: Vocabulary, *, shifted: bool = False, copied: bool = False, divided: str = ""
) -> Value:
    """[trl] `selective_log_softmax`: sample by sample, and a score of the sums.

    Of fp32 logits a sample's backward makes two tensors beside its gradient, and `unbind` stacks all of them; `gather`
    makes a gradient of all logits, too. Of 16 bits a sample's log-probabilities are kept instead of the logits.

    Args:
        graph, logits, spec: as of the other variants
        shifted: `logits[..., :-1, :]`, whose backward fills in the last position
        copied: `.contiguous()` behind it
        divided: by a temperature, as of `_divided`
    """
    size, one, returned = logits.num_bytes, ceil_div(spec.num_bytes, spec.samples), logits
    logits = _divided(graph, logits, divided)
    if shifted:
        logits = graph.call("slice", [logits], [graph.view(logits, "logits.shifted")])
    if copied:
        logits = aten.unary(graph, logits, num_bytes=size, name="logits.contiguous")
    score, rows = graph.value("log_probabilities", spec.row_bytes), [graph.tensor("log_probabilities.sample", one)]
    if spec.itemsize == FP32:
        chosen, summed = (graph.value(f"logits.{name}", spec.row_bytes) for name in ("gathered", "logsumexp"))
        graph.call("gather", [logits], [chosen], saved=[logits])
        samples = [graph.tensor("grad.logits.samples", max(size, 2 * one))]
        graph.call("logsumexp", [logits], [summed], saved=[logits, summed], temporaries=rows,
                   backward_temporaries=samples)
        graph.call("subtract", [chosen, summed], [score], passes_gradient=True)
    else:
        kept = graph.value("log_softmax", size, gradient_bytes=0)
        samples = [graph.tensor("grad.logits.samples", max(0, 2 * one - size))]
        graph.call("log_softmax", [logits], [score], extra=[kept], backward_temporaries=samples)
    if divided:
        graph.hold(returned)
    return graph.call("score", [score], [scalar(graph)], saved=[score])


def _chosen_and_compared(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[trl] ORPO and CPO: the cross entropy of a copy of the first half's logits, then the log-probabilities of all."""
    half = replace(spec, tokens=ceil_div(spec.tokens, 2), samples=ceil_div(spec.samples, 2))
    filled = [graph.tensor("grad.logits.filled", logits.num_bytes)]
    copy = graph.value("logits.chosen", half.num_bytes)
    graph.call("contiguous", [logits], [copy], backward_temporaries=filled)
    losses = [_torch(graph, copy, half), _log_probabilities(graph, logits, spec, shifted=True)]
    return graph.call("add", losses, [scalar(graph)], passes_gradient=True)


def _all_log_probabilities(graph: Graph, logits: Value, spec: Vocabulary, *, divided: bool = False) -> Value:
    """[trl] until 0.13, LLaMA-Factory's `get_batch_logps`: log_softmax over all logits but the last, then `gather`; of
    fp32 logits NeMo-RL's `get_next_token_logprobs_from_logits`; torchtune's `logits_to_logprobs`
    divides them before."""
    returned = logits
    logits = graph.call("slice", [logits], [graph.view(logits, "logits.shifted")])
    if divided:
        logits = aten.unary(graph, logits, num_bytes=logits.num_bytes, name="logits.divided")
    made = aten.unary(graph, logits, num_bytes=logits.num_bytes, name="log_softmax", saves="output")
    score = graph.call("gather", [made], [graph.value("log_probabilities", spec.row_bytes)], saved=[made])
    if divided:
        graph.hold(returned)
    return graph.call("score", [score], [scalar(graph)], saved=[score])


def _rated_behind(graph: Graph, logits: Value, spec: Vocabulary, *, autocast: bool = False) -> Value:
    """[xtuner] DPO: both networks have answered before anything is made of the logits, which the function holds; the
    reference's log-probabilities die as they are made. Autocast runs log_softmax in fp32."""
    reference = _asks_teacher(graph, logits.num_bytes)
    read, width = logits, FP32 if autocast else spec.itemsize
    if autocast:
        read = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
    made = aten.unary(graph, read, num_bytes=spec.elements * width, name="log_softmax", saves="output")
    score = graph.call("gather", [made], [graph.value("log_probabilities", spec.row_bytes)], saved=[made])
    kinds = ("fp32", "log_softmax")[not autocast:]
    again = [graph.tensor(f"reference.{kind}", spec.elements * width) for kind in kinds]
    graph.call("log_softmax", [reference], [], temporaries=again, differentiable=False)
    graph.hold(logits, reference)
    return graph.call("score", [score], [scalar(graph)], saved=[score])


def _whole_and_chosen(graph: Graph, logits: Value, spec: Vocabulary, *, autocast: bool = False) -> Value:
    """[xtuner] ORPO: log-probabilities of all logits, then the cross entropy of a copy of the chosen answers'; the
    function holds the logits."""
    width = FP32 if autocast else spec.itemsize
    half = replace(spec, tokens=ceil_div(spec.tokens, 2), itemsize=width)
    filled = [graph.tensor("grad.logits.filled", logits.num_bytes)]
    copy = graph.value("logits.chosen", ceil_div(logits.num_bytes, 2))
    read = [logits, copy]
    if autocast:
        read[0] = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
    made = aten.unary(graph, read[0], num_bytes=spec.elements * width, name="log_softmax", saves="output")
    score = graph.call("gather", [made], [graph.value("log_probabilities", spec.row_bytes)], saved=[made])
    graph.call("contiguous", [logits], [copy], backward_temporaries=filled)
    if autocast:
        read[1] = cast(graph, copy, elements=half.elements, to_bytes=FP32, name="logits.chosen.fp32")
    chosen = _torch(graph, read[1], half)
    graph.hold(logits, copy)
    odds = graph.call("score", [score], [scalar(graph, "odds")], saved=[score])
    return graph.call("add", [chosen, odds], [scalar(graph)], passes_gradient=True)


ENTROPY_CHUNK: Final = 2048
"""Rows of a chunk [verl] `entropy_from_logits_with_chunking`."""

ENTROPIES: Final = ("", "compiled", "eager", "chunked")


def policy_loss(divided: str, entropy: str = "") -> str:
    """Key of the loss of a policy gradient: log-probabilities of what was chosen, and an entropy.

    Args:
        divided: by the temperature, "in place" or in a "copy"
        entropy: one of ENTROPIES
    """
    return f"log_probabilities of a policy, divided {divided}, entropy {entropy}"


def upcast_policy_loss(entropy: str = "") -> str:
    """The same of logits that are made fp32 first, and not divided; `entropy`: one of ENTROPIES."""
    return f"log_probabilities of a policy in fp32, entropy {entropy}"


def _policy(
    graph: Graph, logits: Value, spec: Vocabulary, *, divided: str = "", entropy: str, overwrites: bool = True
) -> Value:
    """[verl] `_forward_micro_batch`: flash-attn's cross entropy, whose backward overwrites the logits where nobody else
    reads them, and the entropy of the same logits. [openrlhf] does not ask it to overwrite them."""
    logits = _divided(graph, logits, divided)
    rows = graph.value("log_probabilities", spec.row_bytes)
    log_sum = graph.value("loss.log_sum_exp", spec.row_bytes, gradient_bytes=0)
    graph.call("cross_entropy", [logits], [rows], saved=[logits], extra=[log_sum],
               gradient_storages=[(logits, logits)] if overwrites and not entropy else [])
    found = [rows, _entropy(graph, logits, spec, entropy)] if entropy else [rows]
    return graph.call("score", found, [scalar(graph)], saved=found)


def _entropy(graph: Graph, logits: Value, spec: Vocabulary, kind: str) -> Value:
    """[verl] `entropy_from_logits`: `logsumexp(logits) - sum(softmax(logits) * logits)`, in fp32 under autocast.

    torch.compile keeps the logits and three numbers a row, and makes the rest again in backward: its graphs, which
    torch 2.13 partitions, hold no more.
    """
    entropy = graph.value("entropy", spec.row_bytes)
    if kind == "compiled":
        kept = [graph.value("entropy.rows", 3 * spec.row_bytes, gradient_bytes=0)]
        return graph.call("entropy", [logits], [entropy], saved=[logits], extra=kept)
    if kind == "chunked":  # three copies of a chunk; for backward two of all are kept
        chunk = min(spec.tokens, ENTROPY_CHUNK) * spec.size * FP32
        kept = [graph.value("entropy.chunks", 2 * spec.fp32_bytes, gradient_bytes=0)]
        return graph.call("entropy", [logits], [entropy], extra=kept,
                          temporaries=[graph.tensor("entropy.chunk", 3 * chunk)])
    wide = [cast(graph, logits, elements=spec.elements, to_bytes=FP32, name=f"entropy.fp32.{n}") for n in (1, 2)]
    chances = aten.unary(graph, wide[0], num_bytes=spec.fp32_bytes, name="softmax", saves="output")
    summed, weighted = (graph.value(f"entropy.{name}", spec.row_bytes) for name in ("logsumexp", "sum"))
    graph.call("logsumexp", [wide[1]], [summed], saved=[wide[1], summed],
               temporaries=[graph.tensor("entropy.exp", spec.fp32_bytes)])
    product = graph.value("entropy.product", spec.fp32_bytes)
    graph.call("mul", [chances, logits], [product], saved=[chances, logits])
    graph.call("sum", [product], [weighted])
    graph.hold(chances)
    return graph.call("subtract", [summed, weighted], [entropy], passes_gradient=True)


WAITS: Final = "another network answers"
"""A tensor that nobody reads: before it is there, what the loss waits for has run."""

LOGITS_ALONE: Final = "log_probabilities of nobody"
"""No loss: the logits are handed out as they are."""

DIVERGENCE_ROWS: Final = 512
"""[swift] `jsd_loss` `chunk_size`."""


def distillation_loss(divergence: str, *, by_rows: bool = False) -> str:
    """Key of the loss of a student whose teacher is another network.

    Args:
        divergence: of the teacher from the student, "forward", the other way round, "reverse", or of a "mixture"
        by_rows: as [swift] makes it, of the positions that count, 512 together, and not as [TRL-GKD] does, of all
    """
    return f"log_probabilities of a teacher, {divergence}{', by rows' * by_rows}"


def _logits_alone(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """The logits are there, and nothing is made of them."""
    del spec
    return graph.call("return", [logits], [scalar(graph)])


def _asks_teacher(graph: Graph, size: int) -> Value:
    """Logits of the teacher, which come without a gradient."""
    done = graph.value("teacher.asked", FP32, gradient_bytes=0)
    graph.call("ask", [], [done], temporaries=[graph.tensor(WAITS, FP32)], differentiable=False)
    return graph.call("teacher", [done], [graph.value("teacher.logits", size, gradient_bytes=0)], differentiable=False)


def _divergence(graph: Graph, own: Value, other: Value, size: int, kind: str, rows: int) -> Value:
    """`kl_div` of log-probabilities, each of `size` bytes, of which `rows` are there at once beside what is kept.

    Kept are the student's log-probabilities; where the teacher's are the target, their exponential, which the
    difference is multiplied by; where the student's are, theirs and the difference; of a mixture the stack of both,
    the logarithm of its sum, and all three. The rest dies with the function, or with the turn of its loop: the
    teacher's log-probabilities, products, their weighted forms and their sum.
    """
    name, saved = f"divergence.{kind}", {"forward": 1, "reverse": 2, "mixture": 6}[kind]
    temporaries = {"forward": 3, "reverse": 2 if rows < size else 3, "mixture": 3 if rows < size else 6}[kind]
    kept = graph.value(f"{name}.kept", saved * size, gradient_bytes=0)
    made = [graph.tensor(f"{name}.rows", temporaries * rows)]
    back = [graph.tensor(f"grad.{name}.rows", 2 * rows)]
    log_probs = aten.unary(graph, own, num_bytes=size, name="log_softmax", saves="output")
    graph.hold(own)
    return graph.call("kl_div", [log_probs, other], [scalar(graph)], extra=[kept], temporaries=made,
                      backward_temporaries=back)


def _distilled(graph: Graph, logits: Value, spec: Vocabulary, *, kind: str, by_rows: bool = False) -> Value:
    """Both distributions divided by a temperature, their logarithms, and a divergence of all positions; the variables
    of the caller hold the logits. [swift] copies the positions that count before: all of them, here."""
    size, first = logits.num_bytes, logits
    teacher = _asks_teacher(graph, size)
    whole = [first, teacher]
    if by_rows:
        logits = aten.unary(graph, logits, num_bytes=size, name="logits.active")
        taken = graph.value("teacher.logits.active", size, gradient_bytes=0)
        whole += [logits, graph.call("index", [teacher], [taken], differentiable=False)]
    own = aten.unary(graph, logits, num_bytes=size, name="logits.divided")
    other = graph.value("teacher.logits.divided", size, gradient_bytes=0)
    graph.call("div", [teacher], [other], differentiable=False)
    rows = ceil_div(min(spec.tokens, DIVERGENCE_ROWS) * size, spec.tokens) if by_rows else size
    loss = _divergence(graph, own, other, size, kind, rows)
    graph.hold(*whole, own, other)
    return loss


def _anchored(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[LF] ASFT: a cross entropy weighed by its own chance, and `kl_div` from the chances that the model as it was
    gives. The model code made a loss of its own, too, which nobody uses and `outputs` holds with the logits."""
    size, wide_bytes, whole = logits.num_bytes, spec.fp32_bytes, [logits]
    unused = graph.value("loss that nobody uses", wide_bytes, gradient_bytes=0)
    graph.call("cross_entropy", [], [unused], differentiable=False)
    teacher = _asks_teacher(graph, size)
    whole += [unused, teacher]
    wide = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
    read, other = wide, teacher
    if spec.samples > 1:  # `.contiguous()` of the positions that have a next one
        read = aten.unary(graph, wide, num_bytes=wide_bytes, name="logits.shifted")
        other = graph.value("reference.shifted", size, gradient_bytes=0)
        graph.call("contiguous", [teacher], [other], differentiable=False)
    weighed = _torch(graph, read, replace(spec, itemsize=FP32))
    log_probs = aten.unary(graph, read, num_bytes=wide_bytes, name="log_softmax", saves="output")
    chances = graph.value("reference.softmax", size, gradient_bytes=0)
    graph.call("softmax", [other], [chances], differentiable=False)
    made = [graph.tensor(f"divergence.{name}", num) for name, num in (
        ("entropy", size), ("product", wide_bytes), ("difference", wide_bytes))]
    divergence = graph.call("kl_div", [log_probs, chances], [scalar(graph, "divergence")], saved=[chances],
                            temporaries=made, backward_temporaries=[graph.tensor("grad.divergence", wide_bytes)])
    graph.hold(*whole, wide, read, other)
    return graph.call("add", [weighed, divergence], [scalar(graph)], passes_gradient=True)


def _of_masked(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[ax] A masked-diffusion network: logits moved on by a position, a copy of those that are masked, here all, and
    their cross entropy; the trainer's variables hold all three."""
    size = logits.num_bytes
    filled = [graph.tensor(f"grad.logits.{name}", size) for name in ("first", "others")]
    moved, taken = (graph.value(f"logits.{name}", size) for name in ("moved", "masked"))
    graph.call("cat", [logits], [moved], backward_temporaries=filled)
    graph.call("index", [moved], [taken])
    wide = taken if spec.itemsize == FP32 else cast(
        graph, taken, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
    loss = _torch(graph, wide, replace(spec, itemsize=FP32))
    graph.hold(logits, moved, taken)
    return loss


def _torchtune_distilled(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[torchtune] `ForwardKLWithChunkedOutputLoss`, then `CEWithChunkedOutputLoss`: of every chunk the teacher's
    chances and the student's log-probabilities in fp32 are kept, and a mask of a byte; the loop holds both logits."""
    teacher = _asks_teacher(graph, logits.num_bytes)
    kept = graph.value("divergence.kept", 2 * spec.fp32_bytes + spec.elements, gradient_bytes=0)
    chunk = ceil_div(spec.fp32_bytes, TORCHTUNE_CHUNKS)
    rows = [graph.tensor(f"divergence.chunk.{name}", chunk) for name in ("product", "filled")]
    back = [graph.tensor(f"grad.divergence.chunk.{name}", chunk) for name in ("filled", "product", "log_softmax")]
    divergence = graph.call("kl_div", [logits], [scalar(graph, "divergence")], extra=[kept], temporaries=rows,
                            backward_temporaries=back)
    entropy = _chunked_output(graph, logits, spec)
    graph.hold(logits, teacher)
    return graph.call("add", [entropy, divergence], [scalar(graph)], passes_gradient=True)


MASKED: Final = "log_probabilities of masked positions"

TORCHTUNE_DISTILLED: Final = "log_probabilities of torchtune's teacher"

TORCHTUNE_CHUNKS: Final = 8
"""[torchtune] `num_output_chunks`."""


def _chunked_output(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[torchtune] `CEWithChunkedOutputLoss`: all logits in 16 bits, their cross entropy in fp32 chunk by chunk.

    The chunks' backwards run one after the other: each gradient takes the place of its log-probabilities.
    """
    log_probs = graph.value("loss.log_probabilities", spec.fp32_bytes, gradient_bytes=0)
    chunk = spec.fp32_bytes // TORCHTUNE_CHUNKS
    return graph.call(
        "chunked_cross_entropy", [logits], [scalar(graph)], extra=[log_probs],
        temporaries=[graph.tensor("logits_chunk.fp32", chunk)],
        gradient_storages=[(logits, log_probs)], backward_temporaries=[graph.tensor("logits_chunk.gradient", chunk)],
    )


CROSS_ENTROPY_VARIANTS: Final[dict[str, Kernel]] = {
    "chunked_output": _chunked_output,
    "torch": _torch,
    "eager": _prepared(_torch, upcast=True),
    "huggingface_shifted": _prepared(_torch, upcast=True, shifted=True),
    "shifted": _prepared(_torch, shifted=True),
    "shifted_autocast": _prepared(_torch, shifted=True, autocast=True),
    "compiled": _compiled,
    "liger": _liger,
    "liger_upcast": _prepared(_liger, upcast=True),
    "liger_shifted": _prepared(_liger, shifted=True),
    "liger_upcast_shifted": _prepared(_liger, upcast=True, shifted=True),
    "log_probabilities_whole": _all_log_probabilities,
    "log_probabilities_whole_divided": partial(_all_log_probabilities, divided=True),
    "log_probabilities_whole_upcast": _prepared(_all_log_probabilities, upcast=True),
    "log_probabilities": _log_probabilities,
    "log_probabilities_nll": _chosen_and_compared,
    "log_probabilities_shifted": partial(_log_probabilities, shifted=True),
    "log_probabilities_copied": partial(_log_probabilities, shifted=True, copied=True),
    "log_probabilities_divided": partial(_log_probabilities, shifted=True, divided="in place"),
    "log_probabilities_divided_copy": partial(_log_probabilities, shifted=True, divided="copy"),
    **{f"log_probabilities_{name}{'_autocast' * autocast}": partial(kernel, autocast=autocast)
       for autocast in (False, True)
       for name, kernel in (("behind", _rated_behind), ("whole_nll", _whole_and_chosen))},
    LOGITS_ALONE: _logits_alone,
    TORCHTUNE_DISTILLED: _torchtune_distilled,
    distillation_loss("asft"): _anchored,
    MASKED: _of_masked,
    **{distillation_loss(kind, by_rows=by_rows): partial(_distilled, kind=kind, by_rows=by_rows)
       for kind in ("forward", "reverse", "mixture") for by_rows in (False, True)},
    **{policy_loss(divided, entropy): partial(_policy, divided=divided, entropy=entropy)
       for divided in ("in place", "copy") for entropy in ENTROPIES},
    **{upcast_policy_loss(entropy): _prepared(partial(_policy, entropy=entropy, overwrites=False), upcast=True)
       for entropy in ENTROPIES},
}


def cross_entropy(graph: Graph, logits: Value, spec: Vocabulary, variant: str = "eager") -> Value:
    """Append the loss of given logits; `variant` is a key of CROSS_ENTROPY_VARIANTS."""
    return CROSS_ENTROPY_VARIANTS[variant](graph, logits, spec)
