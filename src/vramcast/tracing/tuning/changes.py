"""The changes that may be tried on a script, each in the words of the library that the script uses.

[ckpt] pytorch torch/utils/checkpoint.py `checkpoint`: without reentrance a forward's own inputs alone are kept
[save] torch/autograd/graph.py `save_on_cpu`: what a forward saves waits in pinned memory of the host
[compile] torch/nn/modules/module.py `Module.compile`: compiled in place, names of parameters stay
[hf] transformers training_args.py: gradient_checkpointing, optim, bf16, tf32, torch_compile,
per_device_train_batch_size, gradient_accumulation_steps
[accelerate] accelerator.py: mixed_precision
[lightning] pytorch/trainer/trainer.py: precision, accumulate_grad_batches
[amp] pytorch docs, "Automatic Mixed Precision package": autocast is around forward and loss
Only loops are rewritten whose one block of statements calls backward, then the optimizer; everything else that is done
to gradients between them goes with the step.
[accumulate] pytorch docs, "Automatic Mixed Precision examples", "Gradient accumulation": loss / N, a step every N
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.varied import TuneJob
from vramcast.errors import NOTHING, Note
from vramcast.question.varied import CALLED
from vramcast.states.optimizers import OPTIMIZERS
from vramcast.tracing.changes import repeating
from vramcast.tracing.result import Run, categorise
from vramcast.tracing.script_parts import MadeOptimizer
from vramcast.tracing.tuning.edits import Edit, Source
from vramcast.tracing.tuning.places import Part, Script, called, path_of
from vramcast.tracing.workloads import EIGHT_BIT

ACCUMULATES: Final = (
    "gradient_accumulation_steps", "grad_accumulation_steps", "accumulation_steps", "accumulate_steps",
    "grad_accum_steps", "grad_accum", "accum_steps", "accum_iter", "accumulate_grad_batches",
)
"""What scripts call the number of forwards of a step, first the likeliest."""
LIGHTNING: Final = ("lightning", "pytorch_lightning")
TRAINERS_BATCH, TRAINERS_ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"

OptimOf = Callable[[str, str | None], "tuple[str, str] | None"]
"""The Trainer's `optim` of an optimizer and the kernel of its step: `formats.tools.transformers.optim_of`."""


class Change(NamedTuple):
    """One thing done to a script."""

    group: str  # of which one at a time is made
    words: Note
    part: Part
    allowed_by: str = ""  # where it changes what is computed: a word of ALLOWED
    cost: Note = NOTHING
    is_other: bool = False  # it changes what is computed, though it need not be allowed


class Offered(NamedTuple):
    """What can be tried, and why the rest cannot."""

    light: list[Change]  # that may cost no time
    heavy: list[Change]  # the same of kernels, which tell with a micro-batch that is not too small
    sparing: list[Change]  # that pay for memory with time
    lacking: list[Note]
    withheld: list[str]  # words that would allow more


FUSED: Final = "fused kernel of the optimizer: {} has none, or it is made where no call of it is found"
NO_PLACE: Final = "{}: no line of the script is found before which its network has a name and is whole"
NO_ROW: Final = "{}: forward and backward are not called one after the other in one block of the script"


def offered(script: Script, run: Run, gpu: Gpu, asked: TuneJob, optim_of: OptimOf) -> Offered:
    """The changes of a script.

    Args:
        run: of the script as it is
        optim_of: what the Trainer calls an optimizer
    """
    found = Offered([], [], [], [], [])
    for made in (_fused(script, optim_of), _attention(script)):
        _sort(made, found.light, found, asked)
    for made in (*_precisions(script, gpu), _compiled(script)):
        _sort(made, found.heavy, found, asked)
    for made in (_eight_bit(script, optim_of), *_recomputed(script, run), _offloaded(script)):
        _sort(made, found.sparing, found, asked)
    return found


def _sort(made: Change | Note | None, into: list[Change], found: Offered, asked: TuneJob) -> None:
    if isinstance(made, Change) and made.group in asked.forbid:
        return
    if isinstance(made, Note):
        found.lacking.append(made)
    elif made is not None and (not made.allowed_by or made.allowed_by in asked.allow):
        into.append(made)
    elif made is not None:
        found.withheld.append(made.allowed_by)


def _plain(script: Script) -> str:
    """The optimizer as tables know it: "adamw"; "" for none of torch.optim."""
    return _known(script.made) if script.made else ""


def _known(made: MadeOptimizer) -> str:
    name = made.class_name
    return name.rpartition(".")[2].lower() if name.startswith("torch.optim.") else ""


def _has_kernel(made: MadeOptimizer) -> bool:
    """Whether torch.optim has a fused kernel for it that it does not use."""
    rule = OPTIMIZERS.get(_known(made))
    return rule is not None and rule.fused and not rule.loops and not made.is_fused


def _fused(script: Script, optim_of: OptimOf) -> Change | Note | None:
    """The kernels of all optimizers that have one: networks that play against each other have one each."""
    plain = [one for one in script.parts.optimizers if _has_kernel(one)]
    if not plain:
        return None
    words = Note("fused {}", ", ".join(dict.fromkeys(one.class_name.rpartition(".")[2] for one in plain)))
    if script.is_trainer:
        return _of_optim(script, "optimizer", words, optim_of(_known(plain[0]), "fused"))
    places = script.optimizer_calls(plain)
    if places is None:
        return Note(FUSED, plain[0].class_name)
    return Change("optimizer", words, Part(tuple(source.argument(call, "fused", "True") for source, call in places)))


def _of_optim(
    script: Script, group: str, words: Note, optim: tuple[str, str] | None, allowed_by: str = "", cost: Note = NOTHING
) -> Change | Note | None:
    part = script.field("optim", optim[0]) if optim else None
    return Change(group, words, part, allowed_by, cost) if part else Note(NO_PLACE, words)


def _eight_bit(script: Script, optim_of: OptimOf) -> Change | Note | None:
    name = f"{_plain(script)}-8bit"
    if name not in EIGHT_BIT:
        return None
    words, cost = Note("8-bit {} of bitsandbytes", EIGHT_BIT[name]), Note("moments in 8 bits")
    if find_spec("bitsandbytes") is None:
        return Note("{}: bitsandbytes is not installed here, and a trace runs it", words)
    if script.is_trainer:
        return _of_optim(script, "optimizer", words, optim_of(name, None), "8bit", cost)
    places = script.optimizer_calls([one for one in script.parts.optimizers if _known(one) == _plain(script)])
    if places is None or any(word.arg in ("fused", "foreach") for _, call in places for word in call.keywords):
        return Note(NO_PLACE, words)
    imports = [edit for source in dict(places) if (edit := source.import_module("bitsandbytes"))]
    edits = [source.replaced(call.func, f"bitsandbytes.optim.{EIGHT_BIT[name]}") for source, call in places]
    return Change("optimizer", words, Part((*imports, *edits)), "8bit", cost)


def _attention(script: Script) -> Change | None:
    """`attn_implementation="eager"` of transformers."""
    for source in script.sources.values():
        for node in ast.walk(source.tree):
            for word in node.keywords if isinstance(node, ast.Call) else ():
                if word.arg == "attn_implementation" and getattr(word.value, "value", "") == "eager":
                    return Change("attention", Note("attention by scaled_dot_product_attention"),
                                  Part((source.replaced(word.value, '"sdpa"'),)))
    return None


def _precisions(script: Script, gpu: Gpu) -> Iterator[Change | Note | None]:
    if script.parts.has_autocast or script.parts.dtypes != ("float32",) or not gpu.has_bf16:
        return
    words, cost = Note("bf16 autocast"), Note("products in bf16")
    accelerator, trainer = script.call_of("Accelerator"), script.call_of("Trainer")
    if script.is_trainer:
        part = script.field("bf16", True)
        yield Change("precision", words, part, "bf16", cost) if part else Note(NO_PLACE, words)
    elif accelerator is not None:
        part = Part((script.main.argument(accelerator, "mixed_precision", '"bf16"'),))
        yield Change("precision", words, part, "bf16", cost)
    elif script.runs_in(*LIGHTNING) and trainer is not None:
        part = Part((script.main.argument(trainer, "precision", '"bf16-mixed"'),))
        yield Change("precision", words, part, "bf16", cost)
    else:
        context = 'torch.autocast("cuda", dtype=torch.bfloat16)'
        fits = script.within((context,)) is not None
        yield Change("precision", words, Part(contexts=(context,)), "bf16", cost) if fits else Note(NO_ROW, words)
    words = Note("tf32 products")
    tf32 = script.field("tf32", True) if script.is_trainer else script.before_optimizer(
        ['torch.set_float32_matmul_precision("high")']
    )
    yield Change("precision", words, tf32, "tf32", Note("products in tf32")) if tf32 else Note(NO_PLACE, words)


def _compiled(script: Script) -> Change | Note | None:
    if script.parts.is_compiled:
        return None
    words = Note("torch.compile")
    part = script.field("torch_compile", True) if script.is_trainer else script.before_optimizer(["NETWORK.compile()"])
    return Change("compile", words, part) if part else Note(NO_PLACE, words)


FORWARD_MORE: Final = Note("about one forward more")
CHECKPOINT: Final = (
    "EACH.forward = functools.partial(torch.utils.checkpoint.checkpoint, EACH.forward, use_reentrant=False)"
)


def _recomputed(script: Script, run: Run) -> Iterator[Change | Note]:
    """The modules that repeat, all of them and every other one."""
    if any(block.origin.phase.value == "backward" and block.origin.module
           and block.origin.stack == block.origin.forward_stack for block in run.tape.blocks):
        return  # something is recomputed already
    words = Note("recompute every block")
    if script.is_trainer:
        part = script.field("gradient_checkpointing", True)
        yield Change("checkpoint", words, part, cost=FORWARD_MORE) if part else Note(NO_PLACE, words)
        return
    for offer, call in (("gradient_checkpointing_enable", "()"), ("set_grad_checkpointing", "()")):
        if offer in script.parts.offers:
            part = script.before_optimizer([f"NETWORK.{offer}{call}"])
            yield Change("checkpoint", words, part, cost=FORWARD_MORE) if part else Note(NO_PLACE, words)
            return
    names = [name.removesuffix(".*").removeprefix("_orig_mod.") for name in repeating(run.tape, categorise(run.tape))]
    if not names or "*" in names:
        return
    for words, every, cost in (
        (Note("recompute {}", ", ".join(names)), "", FORWARD_MORE),
        (Note("recompute every other of {}", ", ".join(names)), "[::2]", Note("about half a forward more")),
    ):
        listed = [f"NETWORK.{path_of(name)}{every}" for name in names]
        loop = listed[0] if len(listed) == 1 else f"[{', '.join(f'*{one}' for one in listed)}]"
        part = script.before_optimizer(
            [f"for EACH in {loop}:", f"    {CHECKPOINT}"], imports=("functools", "torch.utils.checkpoint")
        )
        yield Change("checkpoint", words, part, cost=cost) if part else Note(NO_PLACE, words)


def _offloaded(script: Script) -> Change | Note | None:
    words, cost = Note("activations wait on the host"), Note("they cross PCIe twice")
    if script.is_trainer:
        return None
    context = "torch.autograd.graph.save_on_cpu(pin_memory=True)"
    fits = script.within((context,)) is not None
    return Change("offload", words, Part(contexts=(context,)), cost=cost) if fits else Note(NO_ROW, words)


def batch_change(script: Script, micro: int, accumulate: int, *, rows: int, forwards: int) -> Change | None:
    """Another micro-batch, and as much accumulation; None where the script has no number for one of them.

    Args:
        rows: of a forward as it is
        forwards: of a step as it is
    """
    part = Part()
    for called_so, field, now, new in (
        (CALLED["batch"], TRAINERS_BATCH, rows, micro), (ACCUMULATES, TRAINERS_ACCUMULATION, forwards, accumulate),
    ):
        if now == new:
            continue
        found = script.number(called_so, now, new) or (script.field(field, new) if script.is_trainer else None)
        if found is None and called_so is ACCUMULATES and now == 1:
            found = _accumulated(script, new)
        if found is None:
            return None
        part += found
    cost = Note("BatchNorm's statistics are of {} samples", micro) if script.parts.has_batch_norm else NOTHING
    return Change("batch", Note("micro-batch {} x {}", micro, accumulate), part, cost=cost, is_other=bool(cost))


def _accumulated(script: Script, count: int) -> Part | None:
    """Accumulation where the script has no number for it."""
    trainer = script.call_of("Trainer")
    if script.runs_in(*LIGHTNING) and trainer is not None:
        return Part((script.main.argument(trainer, "accumulate_grad_batches", str(count)),))
    return None if script.is_trainer else accumulated(script, count)


OF_STEP: Final = frozenset({
    "step", "update", "unscale_", "zero_grad", "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm",
})
"""Calls that belong to the optimizer's step, of it, its scheduler and its scaler, which alone has an `update`."""
COUNTER: Final = "micro_step"


def accumulated(script: Script, count: int) -> Part | None:
    """The loop with a step after every so many of its batches; None where it is not such a loop."""
    found = _loop(script)
    if found is None:
        return None
    source, loop, backward = found
    index = loop.body.index(backward)
    steps = [place for place, one in enumerate(loop.body) if place > index and _is_of_step(one)]
    before = [one for one in loop.body[:index] if _is_of_step(one)]
    if not any(_calls(loop.body[place]) & {"step"} for place in steps):
        return None
    rest = loop.body[steps[0]:steps[-1] + 1]
    if not all(map(_is_of_step, rest)) or any(_calls(one) - {"zero_grad"} for one in before):
        return None
    divided = _divided(source, backward, count)
    counter, counting = _counter(source, loop)
    if divided is None or counting is None:
        return None
    edits = [divided, *counting]
    of_last, of_first = f"if ({counter} + 1) % {count} == 0:", f"if {counter} % {count} == 0:"
    for statements, head in ((rest, of_last), *(([one], of_first) for one in before)):
        under = source.indented(statements, head)
        if under is None:
            return None
        edits += under
    return Part(tuple(edits))


def _loop(script: Script) -> tuple[Source, ast.For, ast.Expr] | None:
    """The innermost loop whose own statements call backward, as a run did."""
    for site in script.parts.backward:
        source = script.source(site.filename)
        backward = source.statement(site.line)
        loops = [one for one in source.statements if isinstance(one, ast.For) and backward in one.body]
        if isinstance(backward, ast.Expr) and len(loops) == 1:
            return source, loops[0], backward
    return None


def _calls(statement: ast.stmt) -> set[str]:
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return {called(node) for node in calls if called(node) != "update" or "scaler" in ast.unparse(node.func)} & OF_STEP


def _is_of_step(statement: ast.stmt) -> bool:
    simple = isinstance(statement, (ast.Expr, ast.Assign))
    return simple and bool(_calls(statement))


def _divided(source: Source, backward: ast.Expr, count: int) -> Edit | None:
    """`loss.backward()` or `scaler.scale(loss).backward()` of a part of the loss."""
    call = backward.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    of = call.func.value
    if call.args:
        return None
    if isinstance(of, ast.Call) and called(of) == "scale" and len(of.args) == 1:
        of = of.args[0]
        return source.replaced(of, f"{source.text(of)} / {count}")
    return source.replaced(of, f"({source.text(of)} / {count})")


def _counter(source: Source, loop: ast.For) -> tuple[str, list[Edit] | None]:
    """What counts the batches of a loop, and what it takes to count them."""
    iterated = loop.iter
    is_counted = isinstance(iterated, ast.Call) and called(iterated) == "enumerate" and len(iterated.args) == 1
    if is_counted and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return loop.target.elts[0].id, []
    if re.search(rf"\b{COUNTER}\b", source.data.decode()):
        return COUNTER, None
    return COUNTER, [
        source.replaced(loop.target, f"{COUNTER}, {_bracketed(source, loop.target)}"),
        source.replaced(iterated, f"enumerate({source.text(iterated)})"),
    ]


def _bracketed(source: Source, target: ast.expr) -> str:
    text = source.text(target)
    return f"({text})" if isinstance(target, ast.Tuple) and not text.startswith("(") else text
