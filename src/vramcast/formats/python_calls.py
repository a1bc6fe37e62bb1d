"""Calls of a Python script or notebook with what their arguments say: read by `ast`, never run.

Literals, and simple names that hold one where the call stands, are followed; what only a run would know stays open.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vramcast.errors import SourceError

MAGIC: Final = re.compile(r"(?m)^(\s*)[!%][^\n]*(?:\\\n[^\n]*)*$")
"""Lines of a notebook that are a shell's or IPython's."""

LARGEST_NUMBER: Final = 1 << 60


class Open(NamedTuple):
    """An argument that only a run knows."""

    text: str  # as the source writes it


class Call(NamedTuple):
    """One call, in the order of the source."""

    name: str  # with points: "FastLanguageModel.from_pretrained"
    arguments: Mapping[str, Any]  # by name
    positional: tuple[Any, ...] = ()
    several: bool = False  # `**` of something, which may say anything

    @property
    def last(self) -> str:
        """Behind the last point."""
        return self.name.rpartition(".")[2]


def code_of_notebook(text: str, name: str) -> str:
    """The code cells of a notebook, one after the other, without what is a shell's.

    Raises: SourceError where it is no notebook
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SourceError(f"{name}: not a notebook") from None
    joined = ("".join(map(str, source)) if isinstance(source, list) else str(source) for source in sources)
    return "\n\n".join(filter(_is_python, (MAGIC.sub(r"\1pass", source) for source in joined)))


def _is_python(text: str) -> bool:
    """Whether a cell is; those of a shell are left out."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def calls_of(text: str, name: str, given: Mapping[str, Any] = {}) -> tuple[Call, ...]:
    """The calls of a script in the order of their lines; what stands under `if False` does not run.

    Args:
        given: arguments of its command line, which argparse's defaults give way to

    Raises: SourceError where it is not Python

    >>> calls_of("N = 2 * 8\\nf(a=N, b=[N, 'x'], c=g())", "x.py")[0].arguments
    {'a': 16, 'b': [16, 'x'], 'c': Open(text='g()')}
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError(f"{name}: not Python") from None
    try:
        return tuple(_Walk(given).calls(tree.body))
    except RecursionError:
        raise SourceError(f"{name}: its expressions are nested too deep") from None


def names_of(text: str, name: str) -> dict[str, Any]:
    """What the names of a module hold once it has run, as far as the source says it; what only a run knows is its text.

    Raises: SourceError where it is not Python

    >>> names_of("a = 2\\na *= 3\\nb = dict(type=AdamW, n=a, c=1 if a > 3 else 2)", "x.py")["b"]
    {'type': 'AdamW', 'n': 6, 'c': 1}
    """
    walk = _Walk()
    try:
        for _ in walk.calls(ast.parse(text).body):
            pass
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError(f"{name}: not Python") from None
    return {each: _closed(value) for each, value in walk.names.items()}


def _closed(value: Any) -> Any:
    if isinstance(value, Open):
        return value.text
    if isinstance(value, list):
        return [_closed(one) for one in value]
    return {name: _closed(one) for name, one in value.items()} if isinstance(value, dict) else value


PARSED: Final = Open("parse_args()")
"""What argparse made of the command line."""


UNASKED: Final = "the script's own defaults hold where a command line would say else"


def unasked(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """What is said of a script that is read without the command that starts it."""
    return (UNASKED,) if any(call.last == "add_argument" for call in calls) else ()


class _Walk:
    """Names as they are set, and calls as they stand."""

    def __init__(self, given: Mapping[str, Any] = {}) -> None:
        self.names: dict[str, Any] = {}
        self._given = given
        self._options: dict[str, Any] = {}  # of argparse -> what they are

    def calls(self, body: list[ast.stmt]) -> Iterator[Call]:
        """In the order of the source."""
        for node in body:
            if isinstance(node, ast.If):
                decided = self.value(node.test)
                yield from self._inside(node.test)
                taken = [*node.body, *node.orelse] if isinstance(decided, Open) else (
                    node.body if decided else node.orelse)
                yield from self.calls(taken)
                continue
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            if any(inner) and not isinstance(node, ast.Lambda):
                yield from self._heads(node)
                for part in inner:
                    yield from self.calls([one for one in part if isinstance(one, ast.stmt)])
                for handler in getattr(node, "handlers", []):
                    yield from self.calls(handler.body)
                continue
            yield from self._inside(node)
            self._assign(node)

    def _heads(self, node: ast.stmt) -> Iterator[Call]:
        """Calls in what a block begins with: `with`, `for`."""
        for field in ("items", "iter", "test"):
            value = getattr(node, field, None)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    yield from self._inside(one)

    def _inside(self, node: ast.AST) -> Iterator[Call]:
        """Calls inside of calls come first, as they run first."""
        found = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        for call in sorted(found, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0)):
            name = _dotted(call.func)
            if name:
                words = {word.arg: self.value(word.value) for word in call.keywords if word.arg is not None}
                positional = tuple(self.value(one) for one in call.args)
                if name.endswith(".add_argument"):
                    self._option(words, positional)
                yield Call(name, words, positional, any(word.arg is None for word in call.keywords))

    def _option(self, words: Mapping[str, Any], flags: tuple[Any, ...]) -> None:
        """An option of argparse: as the command line has it, else as it is unasked."""
        long = next((str(flag) for flag in flags if str(flag).startswith("--")), "")
        given = self._given.get(name := long.lstrip("-").replace("-", "_"))
        switch = str(words.get("action", "")).removeprefix("store_")
        usual = words.get("default", {"true": False, "false": True}.get(switch))
        if switch == "false" and given is True:
            given = False
        if long:
            usual = Open(f"{long}, which the command must give") if words.get("required") and given is None else usual
            self._options[str(words.get("dest", name))] = usual if given is None else given

    def _assign(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, self.value(node.value)
            if isinstance(node.value, ast.Call) and _dotted(node.value.func).rpartition(".")[2] == "parse_args":
                value = PARSED
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], self.value(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before = self.names.get(node.target.id, Open(node.target.id))
            targets, value = [node.target], _computed(before, node.op, self.value(node.value), node.value)
        else:
            return
        for target in targets:
            if isinstance(target, ast.Name):
                self.names[target.id] = value
            elif isinstance(target, ast.Tuple):
                for one in target.elts:
                    if isinstance(one, ast.Name):
                        self.names[one.id] = Open(one.id)

    def value(self, node: ast.expr) -> Any:
        """What an expression is, as far as the source says it."""
        match node:
            case ast.Constant(value=value) if value is None or isinstance(value, (bool, int, float, str)):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self.value(item) for item in items]
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                return {str(getattr(key, "value", "")): self.value(value)
                        for key, value in zip(keys, values, strict=True)}
            case ast.UnaryOp(op=op, operand=inner):
                return _negated(op, self.value(inner), node)
            case ast.BinOp(left=left, op=op, right=right):
                return _computed(self.value(left), op, self.value(right), node)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(word.arg for word in words):
                return {str(word.arg): self.value(word.value) for word in words}
            case ast.IfExp(test=test, body=body, orelse=other) if not isinstance(self.value(test), Open):
                return self.value(body if self.value(test) else other)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _compared(self.value(left), op, self.value(right), node)
            case ast.BoolOp(op=ast.Or(), values=[first, *_]) if self.value(first) and not isinstance(
                    self.value(first), Open):
                return self.value(first)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
                    self.names.get(owner) is PARSED and name in self._options):
                return self._options[name]
            case ast.Attribute():
                return Open(_dotted(node) or ast.unparse(node)[:80])
        return Open(ast.unparse(node)[:80])


def _negated(op: ast.unaryop, value: Any, node: ast.expr) -> Any:
    if isinstance(op, ast.Not) and not isinstance(value, Open):
        return not value
    if isinstance(op, ast.USub) and isinstance(value, (int, float)):
        return -value
    return Open(ast.unparse(node)[:80])


def _compared(left: Any, op: ast.cmpop, right: Any, node: ast.expr) -> Any:
    """Numbers against each other, and texts that are alike or not."""
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, (ast.Eq, ast.NotEq)):
        return (left == right) is isinstance(op, ast.Eq)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        how = {ast.Gt: left > right, ast.Lt: left < right, ast.GtE: left >= right, ast.LtE: left <= right,
               ast.Eq: left == right, ast.NotEq: left != right}
        if type(op) in how:
            return how[type(op)]
    return Open(ast.unparse(node)[:80])


def _computed(left: Any, op: ast.operator, right: Any, node: ast.expr) -> Any:
    """Sums and products of whole numbers, and texts put together."""
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add) and len(left + right) < 1000:
        return left + right
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in (left, right))
    if numbers and max(abs(left), abs(right)) < LARGEST_NUMBER:
        if isinstance(op, ast.Add):
            return left + right
        if isinstance(op, ast.Sub):
            return left - right
        if isinstance(op, ast.Mult):
            return left * right
        if isinstance(op, ast.FloorDiv) and right:
            return left // right
    return Open(ast.unparse(node)[:80])


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text, "" for what is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
