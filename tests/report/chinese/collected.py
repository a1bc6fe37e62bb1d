"""The sentences that the source holds, as templates: {} stands where a value does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import vramcast

SOURCE: Final = Path(vramcast.__file__).parent
ERRORS: Final = ("InvalidSpec", "Unsupported", "UnknownName", "SourceError", "OutOfMemory", "Refused", "VramcastError")
REASONS: Final = ("Unread", "cannot", "refuse")
"""Calls whose second argument is why something is refused."""
SENTENCE: Final = 3
"""English words of a template that is a sentence and not two names side by side."""
LISTS: Final = ("assumptions", "warnings", "notes", "found", "lines", "said", "left_out", "refusals", "notes")
"""Lists that sentences are appended to, where a function collects them."""
VARIABLES: Final = ("assumptions", "warnings", "shortfall", "reason", "note", "why", "mismatch")
"""Variables and arguments that hold sentences."""
SAYING: Final = re.compile(
    r"assum|warn|caution|note|said|shortfall|recipe|idle|ignored|mismatch|remarks|nothing_possible"
)
"""Names of functions whose texts are sentences."""


ASK: Final = "{} does not name the cards; give --gpus, for example --gpus {}"
CONDITIONAL: Final = {
    "{}{} (as much memory have {}{})": ASK + " (as much memory have {}, {})",
    "{}h100-sxm-80gb (no known card has {} bytes)": ASK + " (no known card has {} bytes)",
    "{}{}": ASK,
    "{} was recorded on {} GPU{}, the job asks for {}; give --gpus {}x{}":
        "{} was recorded on {} GPUs, the job asks for {}; give --gpus {}x{}",
    "{}: {} {} there already; --force overwrites, or name another folder":
        "{}: {} are there already; --force overwrites, or name another folder",
    "{}: no config.json {}, and weights alone do not tell the architecture":
        "{}: no config.json in it, and weights alone do not tell the architecture",
    "context={} is longer than the {} positions {} was trained with{}":
        "context={} is longer than the {} positions {} was trained with",
}
"""Templates with a gap that holds words, not a value -> one of the sentences that they make."""


class Sentence(NamedTuple):
    """A template and where it stands."""

    place: str  # "estimate/training.py:102"
    text: str

    @property
    def example(self) -> str:
        """The sentence with words in its gaps."""
        parts = CONDITIONAL.get(self.text, self.text).split("{}")
        return parts[0] + "".join(f"v{number}{part}" for number, part in enumerate(parts[1:], 1))


def words_in(text: str) -> int:
    """English words of a template."""
    return len(re.findall(r"(?<![\w.`-])[A-Za-z][a-z']+(?![\w.])", text.replace("{}", " ")))


def refusals() -> Iterator[Sentence]:
    """What errors are raised with."""
    for path, _, nodes in _files():
        for node in nodes:
            if isinstance(node, ast.Call) and _name(node.func) in (*ERRORS, *REASONS):
                place = 2 if _name(node.func) == "Refused" else 1 if _name(node.func) in REASONS else 0
                if len(node.args) > place and (text := template(node.args[place])):
                    yield Sentence(f"{path}:{node.lineno}", text)


def remarks() -> Iterator[Sentence]:
    """What answers assume, warn of and give as reasons: texts in what is called `assumptions` or `warnings`, in
    functions named for what they say, and those that a trace notes."""
    for path, tree, nodes in _files():
        constants = {
            target.id: tuple(_texts(node.value)) for node in tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            for found in _saying(node):
                for one in constants.get(found.id, ()) if isinstance(found, ast.Name) else (found,):
                    if text := template(one):
                        yield Sentence(f"{path}:{one.lineno}", text)


def _saying(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef) and SAYING.search(node.name):
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Return, ast.Yield)) and inner.value is not None:
                yield from _texts(inner.value)
            elif isinstance(inner, ast.Call) and _name(inner.func) == "append":
                yield from _texts(inner.args[0])
    elif isinstance(node, (ast.Assign, ast.keyword)) and _kept_in(node) in VARIABLES:
        yield from _texts(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = _name(node.func.value)
        if (node.func.attr == "append" and of in LISTS) or (node.func.attr == "note" and of == "assumptions"):
            yield from _texts(node.args[0])


def _kept_in(node: ast.Assign | ast.keyword) -> str | None:
    """The variable or argument that a value goes to."""
    return node.arg if isinstance(node, ast.keyword) else _name(node.targets[0])


def _texts(node: ast.expr) -> Iterator[ast.expr]:
    """The texts and constants of an expression, those of an f-string as one."""
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Name)):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _texts(one)
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        yield from _texts(node.elt)
    elif isinstance(node, ast.Starred):
        yield from _texts(node.value)
    elif isinstance(node, ast.Call) and _name(node.func) in ("tuple", "_unique", "list"):
        for one in node.args:
            yield from _texts(one)


def template(node: ast.expr) -> str | None:
    """The text of an expression; None where it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [template(part) for part in (node.left, node.right)]
        return "".join("{}" if part is None else part for part in parts) if any(parts) else None
    return None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _files() -> list[tuple[str, ast.Module, list[ast.AST]]]:
    """Files by path, parsed, and the nodes where sentences may stand."""
    trees = [(str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8")))
             for path in sorted(SOURCE.rglob("*.py"))]
    kinds = (ast.Call, ast.FunctionDef, ast.Assign, ast.keyword)
    return [(path, tree, [node for node in ast.walk(tree) if isinstance(node, kinds)]) for path, tree in trees]
