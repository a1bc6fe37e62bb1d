"""From declarations to the names of a snapshot: kinds, choices and defaults as plain data."""

from __future__ import annotations

import ast
import enum
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

KINDS: Final = {
    "bool": "bool", "int": "int", "float": "number", "str": "text", "Path": "text", "pathlib.Path": "text",
    "dict": "map", "Dict": "map", "Mapping": "map", "list": "list", "List": "list", "tuple": "list", "set": "list",
}
"""Name of a type -> kind of a snapshot."""

Section = dict[str, dict[str, Any]]


def entry(
    *, kind: str = "any", default: Any = None, choices: Iterable[Any] = (), section: str = "",
    aliases: Iterable[str] = (), deprecated: bool = False, required: bool = False,
) -> dict[str, Any]:
    """One name as the snapshot holds it: only what says something."""
    found: dict[str, Any] = {} if kind == "any" else {"kind": kind}
    plain = default.value if isinstance(default, enum.Enum) else default
    if isinstance(plain, (bool, int, float, str)) and plain == plain and abs_size(plain) < 1e18:
        found["default"] = plain
    more = {"choices": list(choices), "section": section, "aliases": list(aliases)}
    found |= {name: value for name, value in more.items() if value}
    found |= {name: True for name, value in (("deprecated", deprecated), ("required", required)) if value}
    return found


def abs_size(value: bool | float | str) -> float:
    """Size of a number; 0 for a text."""
    return 0.0 if isinstance(value, str) else abs(value)


def of_type(annotation: Any) -> tuple[str, list[Any]]:
    """Kind and choices of a type at run time; None is left out of unions."""
    if isinstance(annotation, str):
        return of_text(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return of_type(arguments[0])
    if origin is typing.Literal:
        return _of_values(list(arguments))
    if origin in (typing.Union, types.UnionType):
        found = [of_type(part) for part in arguments if part is not type(None)]
        kinds = {kind for kind, _ in found}
        kinds = {"number"} if kinds == {"int", "number"} else kinds
        return (kinds.pop(), found[0][1] if len(found) == 1 else []) if len(kinds) == 1 else ("any", [])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _of_values([member.value for member in annotation])
    name = getattr(origin or annotation, "__name__", "")
    return KINDS.get(name, "any"), []


def _of_values(values: list[Any]) -> tuple[str, list[Any]]:
    plain = [value for value in values if isinstance(value, (str, int, float))]
    kinds = {"bool" if isinstance(v, bool) else "text" if isinstance(v, str) else "int" for v in plain}
    return (kinds.pop() if len(kinds) == 1 else "any"), plain


def of_text(text: str, aliases: Mapping[str, str] | None = None) -> tuple[str, list[Any]]:
    """Kind and choices of an annotation as source text.

    >>> of_text("Literal['a', 'b'] | None")
    ('text', ['a', 'b'])
    >>> of_text("Optional[List[str]]")
    ('list', [])
    """
    known = aliases or {}
    return _of_node(ast.parse(text.strip(), mode="eval").body, known)


def _of_node(node: ast.expr, aliases: Mapping[str, str]) -> tuple[str, list[Any]]:
    parts = [part for part in _union(node) if ast.unparse(part) not in ("None", "Callable")]
    found = [_of_part(part, aliases) for part in parts]
    kinds = {kind for kind, _ in found}
    kinds = {"number"} if kinds == {"int", "number"} else kinds
    if len(kinds) != 1:
        return "any", []
    return kinds.pop(), found[0][1] if len(found) == 1 else []


def _union(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union(node.left), *_union(node.right)]
    if isinstance(node, ast.Subscript):
        head = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head in ("Optional", "Union"):
            return [part for item in inner for part in _union(item)]
        if head in ("A", "Annotated", "ClassVar"):
            return _union(inner[0])
    return [node]


def _of_part(node: ast.expr, aliases: Mapping[str, str]) -> tuple[str, list[Any]]:
    text = ast.unparse(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return of_text(node.value, aliases)
    if isinstance(node, ast.Subscript):
        head = ast.unparse(node.value).rpartition(".")[2]
        if head == "Literal":
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return _of_values([item.value for item in inner if isinstance(item, ast.Constant)])
        return KINDS.get(head, "any"), []
    if text in aliases:
        return of_text(aliases[text], {name: value for name, value in aliases.items() if name != text})
    return KINDS.get(text.rpartition(".")[2], "any"), []


def literal_aliases(folder: Path) -> dict[str, str]:
    """`Name = Literal[...]` and string enumerations of a package's source, by name."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = ast.unparse(node.value)
                if re.match(r"(typing\.)?Literal\[", text):
                    found[node.targets[0].id] = text
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                values = [
                    item.value.value for item in node.body
                    if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
                ]
                if values and all(isinstance(value, str) for value in values):
                    found[node.name] = f"Literal{values!r}"
    return found


def of_class(node: ast.ClassDef, aliases: Mapping[str, str] | None = None) -> Section:
    """The annotated fields of a class read as source."""
    found: Section = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
            kind, choices = of_text(ast.unparse(item.annotation), aliases)
            found[item.target.id] = entry(kind=kind, choices=choices, default=_default(item.value))
    return found


def _default(node: ast.expr | None) -> Any:
    """A plain default, `field(default=...)` looked into; what is computed is none."""
    if isinstance(node, ast.Call):
        node = next((word.value for word in node.keywords if word.arg == "default"), None)
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def classes(path: Path) -> dict[str, ast.ClassDef]:
    """The classes of one source file, inner ones as `Outer.Inner`."""
    found: dict[str, ast.ClassDef] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
            found |= {f"{node.name}.{n.name}": n for n in node.body if isinstance(n, ast.ClassDef)}
    return found
