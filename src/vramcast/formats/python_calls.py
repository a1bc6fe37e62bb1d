"""Calls of a Python script or notebook with what their arguments say: read by `ast`, never run.

Literals, and simple names that hold one where the call stands, are followed; what only a run would know stays open:
what branches and loops set differently, what a function is given, a list or a table that a method changes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import add, eq, floordiv, ge, gt, le, lt, mul, ne, sub, truediv
from typing import Any, Final, NamedTuple

from vramcast.errors import Note, SourceError

COMPARED: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Gt: gt, ast.GtE: ge, ast.Lt: lt, ast.LtE: le, ast.Eq: eq, ast.NotEq: ne, ast.Is: eq, ast.IsNot: ne,
    ast.In: lambda one, several: one in several, ast.NotIn: lambda one, several: one not in several,
}
"""What `ast` calls a comparison -> what it does."""

ORDERED: Final = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)

COMPUTED: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Div: truediv,
}

MAGIC: Final = re.compile(r"(?m)^(\s*)[!%][^\n]*(?:\\\n[^\n]*)*$")
"""Lines of a notebook that are a shell's or IPython's."""

INSTALLS: Final = re.compile(r"\b(?:pip|uv)\b.*\binstall\b")
"""Of a shell's lines those that say which release runs: they stay as comments."""

LARGEST_NUMBER: Final = 1 << 60


class Open(NamedTuple):
    """An argument that only a run knows."""

    text: str  # as the source writes it
    either: bool = False  # branches set it differently, so that it may be None


class Call(NamedTuple):
    """One call, in the order of the source."""

    name: str  # with points: "FastLanguageModel.from_pretrained"
    arguments: Mapping[str, Any]  # by name
    positional: tuple[Any, ...] = ()
    several: bool = False  # `**` of something, which may say anything
    perhaps: bool = False  # stands in a branch that only a run takes
    within: tuple[str, ...] = ()  # what `with` calls around it

    @property
    def last(self) -> str:
        """Behind the last point."""
        return self.name.rpartition(".")[2]


def code_of_notebook(text: str, name: str) -> str:
    """The code cells of a notebook, one after the other, without what is a shell's but for what it installs.

    Raises: SourceError where it is no notebook
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SourceError("{}: not a notebook", name) from None
    joined = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in sources]
    installed = (f"# {line.strip()}" for source in joined for line in source.splitlines() if INSTALLS.search(line))
    return "\n\n".join((*installed, *filter(_is_python, (MAGIC.sub(r"\1pass", source) for source in joined))))


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

    >>> calls_of("N = 2 * 8\\nf(a=N, b=[N, 'x'], c=g())", "x.py")[1].arguments
    {'a': 16, 'b': [16, 'x'], 'c': Open(text='g()', either=False)}
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SourceError("{}: not Python", name) from None
    try:
        return tuple(_Walk(given, {"__name__": "__main__"}).calls(tree.body))
    except RecursionError:
        raise SourceError("{}: its expressions are nested too deep", name) from None


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
        raise SourceError("{}: not Python", name) from None
    return {each: _closed(value) for each, value in walk.names.items()}


def _closed(value: Any) -> Any:
    if isinstance(value, Open):
        return value.text
    if isinstance(value, list):
        return [_closed(one) for one in value]
    return {name: _closed(one) for name, one in value.items()} if isinstance(value, dict) else value


SET: Final = " ="
"""Behind the name of what stands among the calls and is an attribute that is set, or an item."""

CHANGES: Final = ("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault")
"""Methods that change a list or a table in its place."""

ENDS: Final = (ast.Raise, ast.Return, ast.Continue, ast.Break)

CELL: Final = "app.cell"
"""Marks a cell of marimo, whose names are those of all cells [marimo _ast/app.py]."""

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

PARSED: Final = Open("parse_args()")
"""What argparse made of the command line."""


UNASKED: Final = "the script's own defaults hold where a command line would say else"


def unasked(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """What is said of a script that is read without the command that starts it."""
    return (UNASKED,) if any(call.last == "add_argument" for call in calls) else ()


class _Walk:
    """Names as they are set, and calls as they stand."""

    def __init__(self, given: Mapping[str, Any] = {}, names: Mapping[str, Any] = {}) -> None:
        self.names: dict[str, Any] = dict(names)
        self._given = given
        self._options: dict[str, Any] = {}  # of argparse -> what they are

    def calls(self, body: list[ast.stmt]) -> Iterator[Call]:
        """In the order of the source."""
        for at, node in enumerate(body):
            match node:
                case ast.If():
                    decided = self.value(node.test)
                    yield from self._inside(node.test)
                    if isinstance(decided, Open):
                        yield from self._one_of(node.body, node.orelse)
                    else:
                        yield from self.calls(node.body if decided else node.orelse)
                case ast.Try():
                    yield from self._one_of([*node.body, *node.orelse], *(one.body for one in node.handlers))
                    yield from self.calls(node.finalbody)
                case ast.Match():
                    yield from self._inside(node.subject)
                    yield from self._one_of(*(case.body for case in node.cases), [])
                case ast.For() | ast.AsyncFor() | ast.While():
                    yield from self._heads(node)
                    self._forget(_bound(node), known=True)
                    yield from self._one_of([*node.body, *node.orelse], [])
                case ast.With() | ast.AsyncWith():
                    heads = list(self._heads(node))
                    yield from heads
                    self._forget({one.id for item in node.items if item.optional_vars is not None
                                  for one in ast.walk(item.optional_vars) if isinstance(one, ast.Name)})
                    around = tuple(call.name for call in heads)
                    yield from (call._replace(within=(*around, *call.within)) for call in self.calls(node.body))
                case ast.FunctionDef(decorator_list=marks) if any(_dotted(getattr(mark, "func", mark)) == CELL
                                                                  for mark in marks):
                    yield from self.calls(node.body)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    later = set[str]().union(*map(_bound, body[at + 1:]))
                    yield from self._scope(node, later)
                case _:
                    yield from self._inside(node)
                    yield from self._assign(node)

    def _one_of(self, *bodies: list[ast.stmt]) -> Iterator[Call]:
        """Bodies of which a run takes one; what they set differently is open behind them."""
        before, ends = self.names, []
        for body in bodies:
            self.names = dict(before)
            yield from (call._replace(perhaps=True) for call in self.calls(body))
            if not body or not isinstance(body[-1], ENDS):
                ends.append(self.names)
        self.names = dict(ends[0] if ends else before)
        for other in ends[1:]:
            for name, value in other.items():
                if self.names.setdefault(name, value) != value:
                    self.names[name] = Open(name, either=True)

    def _scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, later: set[str]) -> Iterator[Call]:
        """A function, which sees its own arguments and runs when what stands behind it is set, or a class."""
        outside = dict(self.names)
        if not isinstance(node, ast.ClassDef):
            taken = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            self._forget(taken)
            self._forget(later, known=True)
        yield from self.calls(node.body)
        self.names = outside
        shared = {name for one in ast.walk(node) if isinstance(one, (ast.Global, ast.Nonlocal)) for name in one.names}
        self._forget({node.name} | shared, known=True)

    def _forget(self, names: Iterable[str], *, known: bool = False) -> None:
        """Names are what only a run knows from here on; `known`: those that hold something."""
        for name in names:
            if not known or name in self.names:
                self.names[name] = Open(name)

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
                owner, _, method = name.rpartition(".")
                if method in CHANGES and isinstance(self.names.get(owner), (list, dict)):
                    self.names[owner] = Open(owner)
                yield Call(name, words, positional, any(word.arg is None for word in call.keywords))
        for one in ast.walk(node):
            if isinstance(one, ast.NamedExpr):
                self.names[one.target.id] = self.value(one.value)

    def _option(self, words: Mapping[str, Any], flags: tuple[Any, ...]) -> None:
        """An option of argparse: as the command line has it, else as it is unasked."""
        long = next((str(flag) for flag in flags if str(flag).startswith("--")), "")
        given = self._given.get(name := long.lstrip("-").replace("-", "_"))
        switch = str(words.get("action", "")).removeprefix("store_")
        usual = words.get("default", {"true": False, "false": True}.get(switch))
        if switch == "false" and given is True:
            given = False
        if words.get("nargs") in ("+", "*") and given is not None and not isinstance(given, list):
            given = [given]
        if long:
            usual = Open(Note(
                "{}, which the command must give", long
            )) if words.get("required") and given is None else usual
            self._options[str(words.get("dest", name))] = usual if given is None else given

    def _assign(self, node: ast.stmt) -> Iterator[Call]:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, self.value(node.value)
            if isinstance(node.value, ast.Call) and _dotted(node.value.func).rpartition(".")[2] == "parse_args":
                value = PARSED
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], self.value(node.value)
        elif isinstance(node, ast.AugAssign):
            name = _dotted(node.target)
            before = self.names.get(name, Open(name))
            targets, value = [node.target], _computed(before, node.op, self.value(node.value), node.value)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._forget((alias.asname or alias.name for alias in node.names), known=True)
            return
        else:
            return
        for target in targets:
            yield from self._bind(target, value)

    def _bind(self, target: ast.expr, value: Any) -> Iterator[Call]:
        """A target takes a value; an attribute or an item that is set stands among the calls."""
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Tuple(elts=items) | ast.List(elts=items):
                each = value if isinstance(value, list) and len(value) == len(items) else [Open("") for _ in items]
                starred = any(isinstance(item, ast.Starred) for item in items)
                for item, one in zip(items, each, strict=True):
                    yield from self._bind(item, Open(_dotted(item)) if starred or one == Open("") else one)
            case ast.Starred(value=inner):
                yield from self._bind(inner, Open(_dotted(inner)))
            case ast.Attribute(value=owner, attr=name):
                if isinstance(owner, ast.Name) and self.names.get(owner.id) is PARSED:
                    self._options[name] = value
                else:
                    root = self.names.get(_dotted(owner).partition(".")[0])
                    yield Call(ast.unparse(target)[:200] + SET, {"of": root}, (value,))
            case ast.Subscript(value=owner, slice=place):
                table, key = self.names.get(_dotted(owner)), self.value(place)
                if isinstance(table, dict) and isinstance(key, str):
                    self.names[_dotted(owner)] = {**table, key: value}
                elif table is not None:
                    self.names[_dotted(owner)] = Open(_dotted(owner))
                yield Call(_dotted(owner) + SET, {}, (key, value))

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
            case ast.Call(func=ast.Name(id="len"), args=[listed], keywords=[]) if isinstance(
                    (found := self.value(listed)), list):
                return len(found)
            case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]) if isinstance(
                    (found := self.value(inner)), (int, float)) and abs(found) < LARGEST_NUMBER:
                return int(found)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(word.arg for word in words):
                return {str(word.arg): self.value(word.value) for word in words}
            case ast.IfExp(test=test, body=body, orelse=other):
                decided = self.value(test)
                if isinstance(decided, Open):
                    return Open(ast.unparse(node)[:80], either=True)
                return self.value(body if decided else other)
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


def _bound(node: ast.AST) -> set[str]:
    """Names that a statement sets, without those of the functions and classes in it."""
    if isinstance(node, SCOPES):
        return {node.name}
    own = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set[str]()
    return own.union(*map(_bound, ast.iter_child_nodes(node)))


def _negated(op: ast.unaryop, value: Any, node: ast.expr) -> Any:
    if isinstance(op, ast.Not) and not isinstance(value, Open):
        return not value
    if isinstance(op, ast.USub) and isinstance(value, (int, float)):
        return -value
    return Open(ast.unparse(node)[:80])


def _compared(left: Any, op: ast.cmpop, right: Any, node: ast.expr) -> Any:
    """Numbers against each other, and texts that are alike or not."""
    texts = isinstance(left, str) and isinstance(right, str) and isinstance(op, (ast.Eq, ast.NotEq))
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float)) and isinstance(op, ORDERED)
    return COMPARED[type(op)](left, right) if texts or numbers else Open(ast.unparse(node)[:80])


POWERS: Final = (2, 3)


def _computed(left: Any, op: ast.operator, right: Any, node: ast.expr) -> Any:
    """Sums, products and small powers of numbers, and texts put together."""
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add) and len(left + right) < 1000:
        return left + right
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (left, right))
    if numbers and max(abs(left), abs(right)) < LARGEST_NUMBER:
        if isinstance(op, ast.Pow):
            return left ** right if right in POWERS else Open(ast.unparse(node)[:80])
        if type(op) in COMPUTED and (right or not isinstance(op, (ast.FloorDiv, ast.Div))):
            return COMPUTED[type(op)](left, right)
    return Open(ast.unparse(node)[:80])


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text, "" for what is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
