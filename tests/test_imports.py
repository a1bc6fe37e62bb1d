"""The package: imports that name modules, lazy ones, errors, notes."""

import pickle
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest

from vramcast.errors import InvalidSpec, Note, UnknownName, VramcastError, joined, listed, text_of
from vramcast.lazy import lazy_pattern
from vramcast.report.chinese import in_chinese

# Imports name modules that are there: a package that loads its modules when asked hides a missing one from mypy.

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"^ *from (vramcast(?:\.\w+)*) import", re.M)


def test_every_import_of_the_package_names_a_module() -> None:
    folders = ("src", "tests", "tools", "truth", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    modules = {
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / "src" / "vramcast").rglob("*.py")
    }
    missing = {
        f"{file.relative_to(ROOT)}: {module}" for file in files
        for module in NAMED.findall(file.read_text(encoding="utf-8")) if module not in modules
    }
    assert not missing


# What is made when it is first asked for.

DEFERRED = """
import sys
from vramcast.lazy import defer
defer("json")
import json
assert "json.decoder" not in sys.modules and json.__name__ == "json"
assert json.loads("[1]") == [1] and not hasattr(json, "nothing")
assert "json.decoder" in sys.modules and type(json) is type(sys)
defer("json")
from json import dumps
assert sys.modules["json"] is json and dumps is json.dumps
"""


def test_a_module_is_loaded_when_something_of_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", DEFERRED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_expression_is_what_re_compiles() -> None:
    lazy, eager = lazy_pattern(r"(?P<count>\d+)x", re.IGNORECASE), re.compile(r"(?P<count>\d+)x", re.IGNORECASE)
    assert lazy.fullmatch("8X") is not None and lazy.sub("-", "a4xb") == eager.sub("-", "a4xb") == "a-b"
    assert (lazy.pattern, lazy.flags, lazy.groups) == (eager.pattern, eager.flags, eager.groups)


def test_a_question_loads_none_of_what_help_texts_are_cleaned_with() -> None:
    code = (
        "import sys; sys.modules['typing_extensions'] = None  # which needs them itself, where it is there\n"
        "from vramcast.cli.main import answered; answered(['gpus', 'h100-sxm-80gb'], 'vramcast');"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and not {"ast", "dis", "tokenize"} & set(done.stderr.split())


# What an unknown name is answered with.

@pytest.mark.parametrize(("kind", "name", "known", "message"), [
    ("loss", "mes", ["mse", "sum"], "unknown loss 'mes'; did you mean mse?"),
    ("loss", "zzzzz", ["mse", "sum"], "unknown loss 'zzzzz'; known: mse, sum"),
    ("GPU", "zzzzz", ["h100"], "unknown GPU 'zzzzz'; `vramcast gpus` lists all"),
    ("module", "zzzzz", ["layer"] * 100, "unknown module 'zzzzz'"),
])
def test_an_unknown_name_says_what_would_work(kind, name, known, message):
    assert str(UnknownName.of(kind, name, known)) == message


# A sentence keeps what it was made of, through processes and encoders.

INNER = Note("ep={}: {} has no experts to divide; use ep=1", 8, "gpt2")
OUTER = Note("{}: {}", "job.toml", INNER)


@pytest.mark.parametrize("copied", [deepcopy(OUTER), pickle.loads(pickle.dumps(OUTER))])
def test_a_copy_of_a_note_speaks_chinese(copied: Note) -> None:
    assert copied == OUTER == "job.toml: ep=8: gpt2 has no experts to divide; use ep=1"
    assert in_chinese(copied) == "job.toml：ep=8：gpt2 没有可切分的专家；请用 ep=1"


def test_an_error_keeps_its_note_through_a_process() -> None:
    error: VramcastError = pickle.loads(pickle.dumps(InvalidSpec(INNER.template, 8, "a: b")))
    assert in_chinese(str(error)) == "ep=8：a: b 没有可切分的专家；请用 ep=1"
    assert in_chinese(str(InvalidSpec(OUTER))) == in_chinese(OUTER)


def test_lists_and_several_sentences_are_notes() -> None:
    assert in_chinese(joined("; ", (INNER, INNER))) == "；".join([in_chinese(INNER)] * 2)
    assert in_chinese(listed(("tp", "pp", "ep"), "and")) == "tp、pp 与 ep"
    assert listed(["tp"]) == "tp"


def test_braces_of_a_text_without_values_stay() -> None:
    assert str(InvalidSpec("{'a': 1} is no plan")) == "{'a': 1} is no plan"


def test_encoders_write_the_text() -> None:
    assert msgspec.json.encode([OUTER], enc_hook=text_of) == msgspec.json.encode([str(OUTER)])
    with pytest.raises(NotImplementedError):
        msgspec.json.encode(object(), enc_hook=text_of)
