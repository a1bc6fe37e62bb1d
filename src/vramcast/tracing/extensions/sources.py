"""What compiled functions of a script's own allocate, where their C++ says that it is nothing, or one like an argument.

A function is read only where every statement that could allocate is understood: a source that calls an operator, keeps
a workspace or asks an allocator for one is left unread as a whole function.
[names] torch.utils.cpp_extension: `load_inline` is given what Python may call, `load` files that bind it
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule

COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION: Final = r"(?P<made>void|(?:at|torch)::Tensor)\s+{}\s*\((?P<taken>[^)]*)\)\s*\{{"
BOUND: Final = re.compile(r"\bm\.def\(\s*\"(\w+)\"\s*,\s*&?(?:\w+::)*(\w+)\s*[,)]")
TENSOR: Final = re.compile(r"\bTensor\s*&?\s*(\w+)\s*$")
LIKE: Final = re.compile(
    r"(?:auto|(?:at|torch)::Tensor)\s+(?P<name>\w+)\s*=\s*(?:at|torch)::(?:empty|ones|zeros)_like"
    r"\(\s*(?P<of>\w+)\s*\)\s*;"
)
ALLOCATES: Final = re.compile(
    r"\b(?:at|torch)::[a-z]\w*\s*\(|\bcudaMalloc|\bcub::|\bthrust::|\ballocate\s*\(|\bDataPtr\b|"
    r"\.\s*(?:clone|contiguous|copy_|flatten|new_\w+|repeat\w*|reshape|sum|to|toType|type_as|zeros)\s*\("
)
RETURNED: Final = re.compile(r"\breturn\s+(\w+)\s*;")


def kernels_of(given: Mapping[str, Any]) -> dict[str, Rule]:
    """By the arguments of a build."""
    files = [Path(str(name)) for name in _several(given.get("sources"))]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    texts += [*_several(given.get("cpp_sources")), *_several(given.get("cuda_sources"))]
    bound = {name: name for name in _several(given.get("functions"))} | dict(BOUND.findall("\n".join(texts)))
    return {} if len(texts) < len(files) else dict(kernels_in(bound, texts))


def _several(given: Any) -> Sequence[str]:
    return [given] if isinstance(given, str) else [*(given or ())]


def kernels_in(functions: Mapping[str, str], sources: Sequence[str]) -> Iterator[tuple[str, Rule]]:
    """Function -> what it does, of those that are understood; the whole text may not allocate but as they do."""
    text = COMMENT.sub("", "\n".join(sources))
    if ALLOCATES.search(LIKE.sub("", text)):
        return
    for name, bound in functions.items():
        found = re.search(FUNCTION.format(re.escape(bound)), text)
        if found is None:
            continue
        body = _body(text, found.end())
        taken = [(match := TENSOR.search(one)) and match[1] for one in found["taken"].split(",")]
        made = {match["name"]: match["of"] for match in LIKE.finditer(body)}
        result = "" if found["made"] == "void" else next(iter(RETURNED.findall(body)), "")
        known = {*filter(None, taken), *made}
        if known.issuperset(made.values()) and (result in known or found["made"] == "void"):
            yield name, _rule(taken, made, result)


def _body(text: str, start: int) -> str:
    """From behind a brace to the one that closes it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start:end]


def _rule(taken: Sequence[str | None], made: dict[str, str], result: str) -> Rule:
    def run(call: Call) -> Any:
        tensors: dict[str, torch.Tensor] = {
            name: value for name, value in zip(taken, call.args, strict=False) if name is not None
        }
        for name, of in made.items():
            meta = torch.empty_like(tensors[of], device="meta")
            tensors[name] = call.empty(meta.size(), dtype=meta.dtype, strides=meta.stride())
        return tensors[result] if result else None

    return run
