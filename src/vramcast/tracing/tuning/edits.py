"""A source file, edits of it, and the patch that they are: a unified diff that `git apply` and `patch -p1` take.

Positions are bytes, as columns of Python's syntax trees are.
[diff] GNU diffutils manual, "Detailed Description of Unified Format", "Incomplete Lines"
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.errors import InvalidSpec

BOM: Final = b"\xef\xbb\xbf"
INCOMPLETE: Final = "\\ No newline at end of file\n"
Node = ast.expr | ast.stmt | ast.keyword
LARGEST: Final = 4_000_000  # of a file that is looked into [bytes]


class Edit(NamedTuple):
    """What stands between two positions of a file is replaced."""

    path: str
    start: int
    end: int
    text: str


class Source:
    """One file of Python, and where things stand in it."""

    def __init__(self, path: str) -> None:
        """Reads it.

        Raises: InvalidSpec where it is no Python in UTF-8
        """
        self.path, self.data = path, Path(path).read_bytes()
        if len(self.data) > LARGEST:
            raise InvalidSpec("{} has more than {} bytes; name the script itself", path, LARGEST)
        try:
            self.data.decode()
            self.tree = ast.parse(self.data)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise InvalidSpec("{} cannot be read as Python in UTF-8: {}", path, str(error)) from None
        self._starts = [len(BOM) if self.data.startswith(BOM) else 0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        if self._starts[0]:
            self._starts[1:] = [start - len(BOM) for start in self._starts[1:]]
        self.newline = "\r\n" if b"\r\n" in self.data else "\n"
        self.names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        self.statements = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    def at(self, line: int, column: int) -> int:
        """A position of a tree."""
        return self._starts[line - 1] + column

    def line(self, number: int) -> bytes:
        return self.data[self._starts[number - 1]:self._starts[number]]

    def start(self, node: Node) -> int:
        return self.at(node.lineno, node.col_offset)

    def end(self, node: Node) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: Node) -> str:
        return self.data[self.start(node):self.end(node)].decode()

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that a line is of."""
        found = [one for one in self.statements if one.lineno <= line <= (one.end_lineno or 0)]
        return max(found, key=lambda one: (one.lineno, -(one.end_lineno or 0), one.col_offset), default=None)

    def indentation(self, statement: ast.stmt) -> str | None:
        """What stands before a statement that begins its line; None where lines cannot be put before it."""
        before = self.data[self._starts[statement.lineno - 1]:self.start(statement)].decode()
        is_elif = isinstance(statement, ast.If) and self.data[self.start(statement):].startswith(b"elif")
        return None if before.strip() or is_elif else before

    def before(self, statement: ast.stmt, lines: Iterable[str]) -> Edit | None:
        """Lines put before a statement, as far in as it is."""
        indentation = self.indentation(statement)
        if indentation is None:
            return None
        start = self._starts[statement.lineno - 1]
        return self.edit(start, start, "".join(f"{indentation}{line}\n" for line in lines))

    def indented(self, statements: Sequence[ast.stmt], head: str) -> list[Edit] | None:
        """Statements of one row under a head; None where they do not begin their lines, or a text goes over lines."""
        indentation = self.indentation(statements[0])
        strings = [node for one in statements for node in ast.walk(one)
                   if isinstance(node, (ast.JoinedStr, ast.Constant)) and node.lineno != node.end_lineno]
        if indentation is None or strings:
            return None
        deeper = "\t" if "\t" in indentation else "    "
        first, last = statements[0].lineno, statements[-1].end_lineno or 0
        starts = [self.at(line, 0) for line in range(first, last + 1) if self.line(line).strip()]
        begin = self.edit(starts[0], starts[0], f"{indentation}{head}\n")
        return [begin, *(self.edit(start, start, deeper) for start in starts)]

    def replaced(self, node: ast.expr, text: str) -> Edit:
        return self.edit(self.start(node), self.end(node), text)

    def edit(self, start: int, end: int, text: str) -> Edit:
        return Edit(self.path, start, end, text.replace("\n", self.newline))

    def argument(self, call: ast.Call, name: str, value: str) -> Edit:
        """A call with one more argument by name, or another value of it; as the arguments before it are written."""
        known = next((word for word in call.keywords if word.arg == name), None)
        if known is not None:
            return self.replaced(known.value, value)
        given: list[Node] = [*call.args, *call.keywords]
        if not given:
            place = self.end(call) - 1
            return self.edit(place, place, f"{name}={value}")
        last = max(given, key=self.end)
        place, before = self.end(last), self.data[self._starts[last.lineno - 1]:self.start(last)].decode()
        joint = f",\n{before}" if not before.strip() else ", "
        return self.edit(place, place, f"{joint}{name}={value}")

    def import_module(self, name: str) -> Edit | None:
        """`import NAME` behind that of torch; None where the file has it, or not that of torch."""
        imports = [one for one in self.tree.body if isinstance(one, ast.Import)]
        if any(part.name == name and part.asname is None for one in imports for part in one.names):
            return None
        after = next((one for one in imports if any(part.name == "torch" for part in one.names)), None)
        if after is None or self.indentation(after) is None:
            return None
        start = self._starts[after.end_lineno or after.lineno]
        text = f"import {name}\n"
        if start and not self.data[:start].endswith((b"\n", b"\r")):
            text = f"\n{text}"
        return self.edit(start, start, text)

    def has_torch(self) -> bool:
        """Whether `torch` is the module in the whole file."""
        return any(
            isinstance(one, ast.Import) and any(part.name == "torch" and part.asname is None for part in one.names)
            for one in self.tree.body
        )


def applied(sources: Mapping[str, Source], edits: Iterable[Edit]) -> dict[str, str] | None:
    """Path -> text of every file that edits change; None where two of them are of the same place, or leave no Python.

    Insertions at one place stand in the order in which they are given.
    """
    of_path: dict[str, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        of_path.setdefault(edit.path, []).append(edit)
    found: dict[str, str] = {}
    for path, some in of_path.items():
        data, done, parts = sources[path].data, 0, list[bytes]()
        for edit in sorted(some, key=lambda one: (one.start, one.end)):
            if edit.start < done:
                return None
            parts += [data[done:edit.start], edit.text.encode()]
            done = edit.end
        changed = b"".join((*parts, data[done:]))
        try:
            ast.parse(changed)
        except (SyntaxError, ValueError):
            return None
        if changed != data:
            found[path] = changed.decode()
    return found


def patch_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The unified diff of files, by the names that a patch has for them."""
    return "".join(line for name in sorted(after) for line in _diff(name, before[name], after[name]))


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    old, new = (text.encode().splitlines(keepends=True) for text in (before, after))
    lines = unified_diff(
        [line.decode() for line in old], [line.decode() for line in new], f"a/{name}", f"b/{name}"
    )
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n{INCOMPLETE}"
