"""Accumulation put into a loop that has none: smaller batches, a step of the optimizer after so many of them.

Only loops are rewritten whose one block of statements calls backward, then the optimizer; everything else that is done
to gradients between them goes with the step.
[accumulate] pytorch docs, "Automatic Mixed Precision examples", "Gradient accumulation": loss / N, a step every N
"""

from __future__ import annotations

import ast
import re
from typing import Final

from vramcast.tracing.tuning.edits import Edit, Source
from vramcast.tracing.tuning.places import Part, Script, called

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
