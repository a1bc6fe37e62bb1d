"""Every sentence that the source makes has its Chinese form: templates are looked up, so a row must hold each."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import vramcast
from vramcast.report.chinese import in_chinese, rows, shape

ENGLISH = re.compile(r"(?<![\w/.`'-])[A-Za-z][a-z']+(?:,? [a-z][a-z']+){2,}")
"""Three words in a row that are no name."""
COMMANDS = re.compile(r"`[^`]*`|pip install [\w, ]+|npm \w+ [\w@]+|zstd -d|sysctl [\w.]+|truth/[^ ]*")

SOURCE: Final = Path(vramcast.__file__).parent
MAKERS: Final = {
    "Note": 0, "InvalidSpec": 0, "Unsupported": 0, "UnknownName": 0, "SourceError": 0, "OutOfMemory": 0, "Absent": 0,
    "Unread": 1, "cannot": 1, "refuse": 1, "must_be_off": 1, "must_be_unset": 1, "must_be_empty": 1,
    "wrong": 1, "Refused": 2,
}
"""What makes a sentence -> which of its arguments is the template."""
LISTS: Final = ("assumptions", "warnings", "notes", "found", "lines", "said", "left_out", "refusals", "shortfall",
                "reason", "note", "why", "mismatch")
"""What holds sentences: lists that are appended to, variables, arguments."""
SAYING: Final = re.compile(
    r"assum|warn|caution|note|said|shortfall|recipe|idle|ignored|mismatch|remarks|nothing_possible"
)
"""Names of functions whose texts are sentences."""
RULE: Final = "{}={} of {} "
"""What stands before the rule of a field of a configuration."""
READ_BY_US: Final = (
    "allocator/caching.py", "allocator/failure.py", "allocator/heap.py", "allocator/search.py",
    "allocator/views.py", "catalogue/contexts.py", "catalogue/cudnn.py", "catalogue/gpus.py",
    "catalogue/instances.py", "catalogue/index.py", "catalogue/models.py", "catalogue/multiprocessors.py",
    "catalogue/pipelines.py", "catalogue/prices.py", "catalogue/tables.py", "sources/prices/",
)
"""Files whose sentences no visitor reads: defects of the catalogue's own tables and of a simulation driven by hand, and
replies of price lists to an update."""


Constants = Mapping[str, ast.expr]
"""Name -> what a module keeps under it."""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(node: ast.expr, constants: Constants) -> Iterator[ast.Constant | ast.JoinedStr]:
    """The texts that an expression may be."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, constants), *_texts(node.orelse, constants))
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _texts(one, constants)
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        yield from _texts(node.elt, constants)
    elif isinstance(node, ast.Starred):
        yield from _texts(node.value, constants)
    elif isinstance(node, ast.Call) and _name(node.func) in ("tuple", "list", "_unique"):
        for one in node.args:
            yield from _texts(one, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _texts(constants[node.id], {})


def _templates(node: ast.AST, constants: Constants) -> Iterator[tuple[str, ast.Constant | ast.JoinedStr]]:
    """What stands before a template, and the template, of what a node of the source says."""
    if isinstance(node, ast.Call) and (place := MAKERS.get(_name(node.func))) is not None and len(node.args) > place:
        before = RULE if _name(node.func) == "wrong" else ""
        yield from ((before, text) for text in _texts(node.args[place], constants))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "note"):
        if _name(node.func.value) in LISTS:
            yield from (("", text) for text in _texts(node.args[0], constants))
    elif isinstance(node, ast.FunctionDef) and SAYING.search(node.name):
        found = (one.value for one in ast.walk(node) if isinstance(one, (ast.Return, ast.Yield)) and one.value)
        yield from (("", text) for value in found for text in _texts(value, constants))
    elif isinstance(node, ast.keyword) and node.arg in LISTS:
        yield from (("", text) for text in _texts(node.value, constants))


def _words(text: str) -> int:
    return len(re.findall(r"(?<![\w.`-])[A-Za-z][a-z']+(?![\w.])", text.replace("{}", " ")))


def _said() -> Iterator[tuple[str, str, bool]]:
    """Place, shape and whether it is an f-string, of every sentence of the source that a visitor may read."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith(READ_BY_US):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            for before, text in _templates(node, constants):
                if isinstance(text, ast.JoinedStr):
                    parts = (str(one.value) if isinstance(one, ast.Constant) else "{}" for one in text.values)
                    english = before + "".join(parts)
                else:
                    english = before + (shape(text.value)[0] if "{" in text.value else text.value)
                if _words(english) >= 3:
                    yield f"{name}:{text.lineno}", english, isinstance(text, ast.JoinedStr)


SAID: Final = list(_said())

IN_FILES: Final = ("formats/launch.py", "formats/write.py", "formats/tools/torchtitan.py", "formats/tools/torchtune.py")
"""Write comments into files, in English for whoever runs them."""


def test_the_source_is_searched() -> None:
    assert len(SAID) > 1500
    known = {english for _, english, _ in SAID}
    assert "every expert receives the same number of tokens" in known  # a text that a function returns
    assert "{} with a loss scale: {} has no bf16 tensor cores" in known  # yielded
    assert "no plan of {} is known here" in known  # in a variable


def test_every_sentence_keeps_its_template() -> None:
    """An f-string is English for good: write Note("... {} ...", value), or the error with the same."""
    assert [one for one in SAID if one[2] and not one[0].startswith(IN_FILES)] == []


def test_every_template_has_a_chinese_row() -> None:
    """Each that has none is to get a row in a catalogue of report/words/zh."""
    assert {place: english for place, english, _ in SAID if not place.startswith(IN_FILES)
            and english not in rows() and ("{}" in english or in_chinese(english) == english)} == {}


def test_every_kind_of_name_that_may_be_unknown_has_a_chinese_row() -> None:
    sources = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    kinds = {kind for source in sources for kind in re.findall(r'UnknownName\.of\(\s*(?:Note\()?"([^"]+)"', source)}
    assert len(kinds) > 40
    assert kinds - rows().keys() == set()


def test_no_row_is_half_english() -> None:
    assert [row.chinese for row in rows().values() if ENGLISH.search(COMMANDS.sub("", row.chinese))] == []
