"""What one function of a recipe in Python sets, followed by its syntax and never run.

A function is walked in order: names, functions of the same file that it calls, branches that literals, parameters'
defaults and what is set already decide. What only a run knows stays as its syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from copy import deepcopy
from operator import getitem
from typing import Any, Final, NamedTuple

from vramcast.formats.python_calls import COMPARED, COMPUTED


def imports_of(module: ast.Module) -> dict[str, list[str]]:
    """Other files of recipes -> the names that are taken from each."""
    return {
        node.module: [each.name for each in node.names if each.asname is None] for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OTHERS) and not node.level
        and not node.module.startswith(SHARED)
    }


DEEPEST: Final = 6
"""Functions of a file inside each other."""

MOST_STEPS: Final = 20_000

DTYPES: Final = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}

KNOWN: Final = {"DEFAULT_NULL_TOKENIZER_VOCAB_SIZE": 32000, "squared_relu": "squared_relu"}
"""Constants of other files [Megatron-Bridge recipes/utils/tokenizer_utils.py], and functions by their names."""

LONGEST: Final = 4096
"""Of a list that is added up, as layouts of stages are."""

LARGEST: Final = 1 << 40

UNSAID: Final = {"context_parallel_size": 1, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
"""Degrees that nobody has set yet."""

USUAL_PRECISION: Final = "bf16_mixed"
"""Of every base [Megatron-Bridge recipes/common.py]."""


class Unknown(Exception):  # caught where it is raised, never shown
    """Only a run knows it."""


class Recipe(NamedTuple):
    """One function: what it starts from, and what it sets in order."""

    base: str
    values: dict[str, Any]  # "model.seq_length" -> value; a syntax where nobody here knows it
    others: tuple[str, ...]  # statements that may change more


def functions_of(module: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


OTHERS: Final = "megatron.bridge.recipes."
SHARED: Final = (f"{OTHERS}common", f"{OTHERS}utils")
"""What all recipes start from and call, whose meaning is known here."""


def read_recipe(module: ast.Module, name: str, others: Mapping[str, ast.Module] = {}) -> Recipe:
    """What the function of this name sets.

    Args:
        module: its file
        name: "" for the file itself
        others: files of recipes that it takes functions from
    """
    walk = _Walk(module, others)
    if name:
        walk.run(walk.functions[name], (), {}, 0)
    else:
        walk.function(module.body, {}, 0)
    return Recipe(walk.base, walk.values, tuple(walk.others))


def read_calls(module: ast.Module, name: str) -> Recipe:
    """The object that a function returns, as the calls that make it: keywords below each call, what has none by its
    number; what later lines set on it is part of it."""
    walk = _Calls(module, {})
    made = walk.run(walk.functions[name], (), {}, 0)
    start = f"{made.path}." if isinstance(made, Place) else None
    found = {path[len(start):]: value for path, value in walk.values.items() if start and path.startswith(start)}
    return Recipe(made.path.lstrip("@") if isinstance(made, Place) else "", found, tuple(walk.others))


class _Walk:
    """One recipe on its way."""

    def __init__(self, module: ast.Module, others: Mapping[str, ast.Module]) -> None:
        self.base = ""
        self.values: dict[str, Any] = {}
        self.others: list[str] = []
        self.steps = self.deep = 0
        self.homes: dict[int, tuple[dict[str, ast.FunctionDef], dict[str, Any]]] = {}  # of functions
        for each in (*others.values(), module):
            self.functions, self.globals = self._scope(each, others)
            self.homes |= {id(node): (self.functions, self.globals) for node in functions_of(each).values()}

    def _scope(
        self, module: ast.Module, others: Mapping[str, ast.Module]
    ) -> tuple[dict[str, ast.FunctionDef], dict[str, Any]]:
        """Functions that a file's lines can call, and its own constants."""
        self.globals = {}
        self.functions = functions_of(module)
        for place, names in imports_of(module).items():
            there = functions_of(others[place]) if place in others else {}
            self.functions = {name: there[name] for name in names if name in there} | self.functions
        for node in module.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else (
                node.target if isinstance(node, ast.AnnAssign) else None)
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
                self.globals[target.id] = self.value(node.value, {})
        return self.functions, self.globals

    def run(self, function: ast.FunctionDef, given: tuple[Any, ...], named: Mapping[str, Any], depth: int) -> Any:
        """What a call of a function returns, once its lines are done; NOTHING without a `return`."""
        before = self.functions, self.globals
        self.functions, self.globals = self.homes[id(function)]
        found = self.function(function.body, self.parameters(function, given, named), depth)
        self.functions, self.globals = before
        return found

    def parameters(
        self, node: ast.FunctionDef, given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A function's parameters: what the call gives, else their defaults."""
        arguments = [*node.args.posonlyargs, *node.args.args]
        usual = dict(zip([each.arg for each in reversed(arguments)], reversed(node.args.defaults), strict=False))
        usual |= {each.arg: default for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                  if default is not None}
        found = {name: self.value(default, {}) for name, default in usual.items()}
        return found | dict(zip([each.arg for each in arguments], given, strict=False)) | dict(named)

    def function(self, body: list[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        """What it returns, once it does; NOTHING before."""
        for node in body:
            self.steps += 1
            if self.steps > MOST_STEPS or depth > DEEPEST:
                self.others.append("functions inside each other")
                return None
            if (found := self.statement(node, names, depth)) is not NOTHING:
                return found
        return NOTHING

    def statement(self, node: ast.stmt, names: dict[str, Any], depth: int) -> Any:
        ignored = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass, ast.Assert)
        if isinstance(node, ignored) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return NOTHING
        match node:
            case ast.Return(value=ast.Call() as call) if self._is_own(call):
                return self.call(call, names, depth)
            case ast.Return():
                return None if node.value is None else self.returned(node.value, names)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, value, names, depth)
            case ast.Expr(value=ast.Call() as call):
                self.call(call, names, depth)
            case ast.If():
                return self.branch(node, names, depth)
            case ast.Try():
                return self.function(node.body, names, depth)
            case ast.Raise():
                pass
            case _:
                self.others.append(_short(node))
        return NOTHING

    def returned(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """A value; an object that a call makes with what its keywords say, here where their names are known."""
        found = self.argument(node, names)
        if not isinstance(found, ast.Call):
            return found
        place = Place(f"@{ast.unparse(node.func) if isinstance(node, ast.Call) else ''}")
        self.set(place.path, node, names)
        return place

    def assign(self, target: ast.expr, value: ast.expr, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Call) and self._is_own(value):
                names[target.id] = self.call(value, names, depth)
            elif target.id in ("cfg", "config") and isinstance(value, ast.Call):
                names[target.id] = Place("")
                self.base = ast.unparse(value.func)[:60]
                self.values.setdefault("mixed_precision", USUAL_PRECISION)
            elif isinstance(value, ast.Call) and self.value(value, names) is value:
                names[target.id] = place = Place(f"@{target.id}")  # an object that later lines may change
                self.set(place.path, value, names)
            else:
                names[target.id] = self.value(value, names)
            return
        path = self.path(target, names)
        if path is None:
            inner = self.path(target.value, names) if isinstance(target, ast.Subscript) else None
            if inner is not None and inner.partition(".")[0] in SAYING_NOTHING:
                return
            if not isinstance(target, ast.Tuple):
                self.others.append(_short(target))
            else:
                for each in target.elts:
                    if isinstance(each, ast.Name):
                        names[each.id] = value
            return
        held = names.get(value.id) if isinstance(value, ast.Name) else None
        if isinstance(value, ast.Call) and self._is_own(value):
            held = self.call(value, names, depth)
            if not isinstance(held, Place):
                self.values[path] = held
                return
        if isinstance(held, Place):
            self.move(held.path, path)
        else:
            self.set(path, value, names)

    def set(self, path: str, node: ast.expr, names: dict[str, Any]) -> None:
        """A value, and with an object made by a call what its keywords say; what stood below it is gone."""
        for each in [one for one in self.values if one.startswith(f"{path}.")]:
            del self.values[each]
        self.values[path] = self.value(node, names)
        if isinstance(node, ast.Call):
            self.values[path] = _Filled(self, names).visit(deepcopy(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for word in node.keywords:
                if word.arg:
                    self.values[f"{path}.{word.arg}"] = self.value(word.value, names)

    def move(self, source: str, path: str) -> None:
        for each in [one for one in self.values if one == path or one.startswith(f"{path}.")]:
            del self.values[each]
        for each, value in list(self.values.items()):
            if each == source or each.startswith(f"{source}."):
                self.values[path + each[len(source):]] = value

    def call(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        """A function of the file is followed; what another file's does is asked for by its name.

        Returns: what it returns
        """
        arguments = tuple(self.argument(each, names) for each in node.args)
        named = {word.arg: self.argument(word.value, names) for word in node.keywords if word.arg}
        name, first = ast.unparse(node.func), arguments[0] if arguments else None
        if self._is_own(node) and name not in CALLS:
            found = self.run(self.functions[name], arguments, named, depth + 1)
            return None if found is NOTHING else found
        if name in CALLS:
            if isinstance(first, Place):
                settings = CALLS[name]((*arguments[1:], *named.values()))
                self.values |= {f"{first.path}.{key}".strip("."): value for key, value in settings.items()}
            return None
        path = self.path(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
        if path is None or path.partition(".")[0] in SAYING_NOTHING:
            if not name.startswith(("logger.", "logging.", "print", "warnings.")) and path is None:
                self.others.append(_short(node))
            return None
        self.others.append(_short(node))
        return None

    def branch(self, node: ast.If, names: dict[str, Any], depth: int) -> Any:
        try:
            taken = node.body if self.evaluate(node.test, names) else node.orelse
        except Unknown:
            inner = [each for each in ast.walk(node) if isinstance(each, (ast.Assign, ast.Expr))]
            paths = [self.path(each.targets[0], names) if isinstance(each, ast.Assign) else None for each in inner]
            if not all(path is not None and path.partition(".")[0] in SAYING_NOTHING for path in paths):
                self.others.append(f"if {_short(node.test)}")
            return NOTHING
        return self.function(taken, names, depth)

    def _is_own(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id in self.functions

    def argument(self, node: ast.expr, names: dict[str, Any]) -> Any:
        path = self.path(node, names)
        is_object = path is not None and isinstance(self.values.get(path, node), ast.AST)
        return Place(path or "") if is_object else self.value(node, names)

    def path(self, node: ast.expr, names: Mapping[str, Any]) -> str | None:
        """`cfg.model.seq_length` as "model.seq_length", "" of the configuration itself; None for other things."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = names.get(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(root, Place):
            return None
        return ".".join((*([root.path] if root.path else []), *reversed(parts)))

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """What a syntax stands for; itself where only a run knows."""
        try:
            return self.evaluate(node, names)
        except Unknown:
            return node

    def evaluate(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unknown
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._named(node.id, names)
            case ast.Tuple():
                return tuple(self.evaluate(each, names) for each in node.elts)
            case ast.List(elts=elements) | ast.Set(elts=elements):
                return [self.evaluate(each, names) for each in elements]
            case ast.ListComp(generators=[ast.comprehension(iter=source, ifs=[])]) if _copies(node):
                return self.evaluate(source, names)
            case ast.Subscript():
                return self._tried(getitem, self.evaluate(node.value, names), self.evaluate(node.slice, names))
            case ast.Dict() if None not in node.keys:
                return {self.evaluate(key, names): self.evaluate(value, names)
                        for key, value in zip(node.keys, node.values, strict=True) if key is not None}
            case ast.Attribute():
                return self._attribute(node, names)
            case ast.UnaryOp(op=ast.Not()):
                return not self.evaluate(node.operand, names)
            case ast.UnaryOp(op=ast.USub()):
                return -self._number(node.operand, names)
            case ast.BoolOp():
                found, goes_on = None, isinstance(node.op, ast.And)
                for each in node.values:  # the last that was looked at
                    found = self.evaluate(each, names)
                    if bool(found) is not goes_on:
                        break
                return found
            case ast.IfExp():
                return self.evaluate(node.body if self.evaluate(node.test, names) else node.orelse, names)
            case ast.Compare(ops=[operator], comparators=[other]) if type(operator) in COMPARED:
                how = COMPARED[type(operator)]
                return self._tried(how, self.evaluate(node.left, names), self.evaluate(other, names))
            case ast.BinOp() if type(node.op) in COMPUTED and not isinstance(node.op, ast.Div):
                return self._computed(node, self.evaluate(node.left, names), self.evaluate(node.right, names))
            case ast.Call():
                return self._called(node, names)
        raise Unknown

    def _computed(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        """Numbers, and lists and texts that are added or repeated, of bounded size."""
        numbers = all(isinstance(each, (int, float)) and abs(each) <= LARGEST for each in (left, right))
        several = isinstance(left, (list, str))
        joined = isinstance(node.op, ast.Add) and several and type(left) is type(right)
        repeated = isinstance(node.op, ast.Mult) and several and isinstance(right, int)
        if (repeated and len(left) * right > LONGEST) or (joined and len(left) + len(right) > LONGEST):
            raise Unknown
        if not (numbers or joined or repeated) or (isinstance(node.op, ast.FloorDiv) and not right):
            raise Unknown
        return COMPUTED[type(node.op)](left, right)

    def _tried(self, how: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        try:
            return how(left, right)
        except (TypeError, KeyError, IndexError):
            raise Unknown from None

    def _number(self, node: ast.expr, names: Mapping[str, Any]) -> int | float:
        found = self.evaluate(node, names)
        if not isinstance(found, (int, float)) or abs(found) > LARGEST:
            raise Unknown
        return found

    def _named(self, name: str, names: Mapping[str, Any]) -> Any:
        for table in (names, self.globals, KNOWN):
            if name in table:
                found = table[name]
                if isinstance(found, (Place, ast.AST)):
                    raise Unknown
                return found
        raise Unknown

    def _attribute(self, node: ast.Attribute, names: Mapping[str, Any]) -> Any:
        text = ast.unparse(node)
        if text in DTYPES:
            return DTYPES[text]
        path = self.path(node, names)
        found = self.values.get(path, UNSAID.get(node.attr, node)) if path is not None else node
        if isinstance(found, ast.AST):
            raise Unknown
        return found

    def _called(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        """`isinstance(x, str)`, `x.lower()` and constructors of plain things."""
        name = ast.unparse(node.func)
        if name == "isinstance" and len(node.args) == 2:
            return self._is_instance(node.args[0], node.args[1], names)
        if name == "getattr" and len(node.args) > 1 and isinstance(attribute := node.args[1], ast.Constant):
            return self._attribute(ast.Attribute(node.args[0], str(attribute.value)), names)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "lower" and not node.args:
            return str(self.evaluate(node.func.value, names)).lower()
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and len(node.args) == 1:
            return str(self.evaluate(node.func.value, names)).join(map(str, self.evaluate(node.args[0], names)))
        if name in ("list", "int", "float") and len(node.args) == 1:
            return self.evaluate(node.args[0], names)
        if name in ("set", "list", "tuple", "dict") and not node.args and not node.keywords:
            return []
        if self._is_own(node):
            return self._returned(self.functions[name], node, names)
        raise Unknown

    def _is_instance(self, node: ast.expr, kind: ast.expr, names: Mapping[str, Any]) -> bool:
        path = self.path(node, names)
        if path is not None and isinstance(self.values.get(path), ast.Call):
            return False  # an object of a class, and what is asked for are texts and numbers
        return isinstance(self.evaluate(node, names), str) is (ast.unparse(kind) == "str")

    def _returned(self, function: ast.FunctionDef, node: ast.Call, names: Mapping[str, Any]) -> Any:
        """What a function of the file computes of plain values."""
        held, others = dict(self.values), list(self.others)
        given = tuple(self.evaluate(each, names) for each in node.args)
        named = {word.arg: self.evaluate(word.value, names) for word in node.keywords if word.arg}
        self.deep += 1
        found = NOTHING if self.deep > DEEPEST else self.run(function, given, named, self.deep)
        self.deep -= 1
        self.values, self.others = held, others
        if found is NOTHING or isinstance(found, (Place, ast.AST)):
            raise Unknown
        return found


class _Calls(_Walk):
    """One object on its way, with everything that the calls inside its calls say."""

    def set(self, path: str, node: ast.expr, names: dict[str, Any]) -> None:
        super().set(path, node, names)
        if not isinstance(node, ast.Call):
            return
        for place, each in (*((str(at), one) for at, one in enumerate(node.args)),
                            *((word.arg, word.value) for word in node.keywords if word.arg)):
            held = names.get(each.id) if isinstance(each, ast.Name) else None
            if isinstance(held, Place):
                self.move(held.path, f"{path}.{place}")
            else:
                self.set(f"{path}.{place}", each, names)


NOTHING: Final = object()
"""That a function goes on."""


def _copies(node: ast.ListComp) -> bool:
    """`[list(x) for x in y]`"""
    return isinstance(node.elt, ast.Call) and ast.unparse(node.elt.func) == "list"


class _Filled(ast.NodeTransformer):
    """A call with the texts that its names stand for."""

    def __init__(self, walk: _Walk, names: Mapping[str, Any]) -> None:
        self.walk, self.names = walk, names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.walk.value(node, self.names)
        return ast.Constant(found) if isinstance(found, str) else node


class Place(NamedTuple):
    """A part of the configuration that a name stands for; "" is all of it."""

    path: str


def _flex(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """[Megatron-Bridge training/flex_dispatcher_backend.py `apply_flex_dispatcher_backend`]"""
    if not arguments or arguments[0] not in ("deepep", "hybridep"):
        return {}
    return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": arguments[0],
            "moe_shared_expert_overlap": False}


CALLS: Final[Mapping[str, Callable[[tuple[Any, ...]], dict[str, Any]]]] = {
    "apply_flex_dispatcher_backend": _flex,
    "apply_determinism_overrides": lambda _: {  # [Megatron-Bridge recipes/utils/determinism_utils.py]
        "model.deterministic_mode": True, "model.cross_entropy_loss_fusion": False},
    "warn_deprecated_model": lambda _: {}, "_adjust_gemma2_vocab_size": lambda _: {},
    "_adjust_gemma3_vocab_size": lambda _: {"vocab_size": 262145},
    "clear_cuda_graph_modules": lambda _: {"cuda_graph_modules": None},
    "set_cuda_graph_modules": lambda found: {"cuda_graph_modules": found[0] if found else None},
}
"""Functions of other files -> what they set on their first argument; Gemma 2's tokenizer has no more
words than it, that of Gemma 3 has one more."""

SAYING_NOTHING: Final = (
    "dataset", "tokenizer", "checkpoint", "logger", "rng", "dist", "scheduler", "validation", "env_vars", "profiling",
    "nvrx_straggler", "ft", "straggler", "rerun_state_machine", "inprocess_restart", "tensor_inspect",
)
"""Parts of a recipe that say how samples, checkpoints and processes are."""


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:60]
