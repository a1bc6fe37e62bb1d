"""Whole-number arithmetic of a shell, with comparisons and one choice."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Final

CHOICE: Final = re.compile(r"([^?:]+)\?([^?:]+):([^?:]+)")
"""`condition ? one : other`."""

SUMS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}


def calculated(text: str) -> int:
    """A sum, or one of two by a condition."""
    choice = CHOICE.fullmatch(text)
    if choice is not None:
        text = choice[2] if calculated(choice[1].strip()) else choice[3]
    return int(_evaluated(ast.parse(text.strip(), mode="eval").body))


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return int(SUMS[type(node.ops[0])](_evaluated(node.left), _evaluated(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        both_ = isinstance(node.op, ast.And)
        return int((all if both_ else any)(_evaluated(value) for value in node.values))
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**18:
        return node.value
    if isinstance(node, ast.BinOp):
        found = SUMS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(found) < 10**18:
            return found
    raise ValueError("not whole-number arithmetic")
