"""Edits of a source file, and the patch that they are."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from vramcast.errors import InvalidSpec
from vramcast.tracing.tuning.edits import Source, applied, patch_of

LOOP = """import torch

def make(model):
    if not model:
        return None
    elif torch:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return optimizer
"""


def source_of(folder, text, name="train.py"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Source(str(path))


def call_in(source, name="AdamW"):
    return next(node for node in ast.walk(source.tree)
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name)


@pytest.mark.parametrize(("call", "changed"), [
    ("o.AdamW()", "o.AdamW(fused=True)"),
    ("o.AdamW(p)", "o.AdamW(p, fused=True)"),
    ("o.AdamW(p, fused=False, lr=1)", "o.AdamW(p, fused=True, lr=1)"),
    ("o.AdamW(p, **more)", "o.AdamW(p, **more, fused=True)"),
    ("o.AdamW(\n    p,\n    lr=1,\n)", "o.AdamW(\n    p,\n    lr=1,\n    fused=True,\n)"),
    ("o.AdamW(  # of all\n    p, lr=1)", "o.AdamW(  # of all\n    p, lr=1, fused=True)"),
])
def test_an_argument_stands_as_those_before_it(tmp_path, call, changed):
    source = source_of(tmp_path, call)
    assert applied({source.path: source}, [source.argument(call_in(source), "fused", "True")]) == {source.path: changed}


@pytest.mark.parametrize("text", [
    LOOP, LOOP.replace("\n", "\r\n"), LOOP.rstrip("\n"), "\ufeff" + LOOP,
    LOOP.replace("lr", "# größer 学习率\n            lr"),
])
def test_git_and_patch_apply_what_is_written(tmp_path, text):
    source = source_of(tmp_path, text)
    call = call_in(source)
    edits = [
        source.argument(call, "fused", "True"), source.import_module("functools"),
        source.before(source.statement(call.lineno), ["model.compile()"]),
    ]
    [changed] = applied({source.path: source}, edits).values()
    assert "fused=True" in changed and "import functools" in changed and "        model.compile()" in changed
    patch = tmp_path / "tune.patch"
    patch.write_bytes(patch_of({"train.py": source.data.decode()}, {"train.py": changed}).encode())
    for tool in (["git", "apply", str(patch)], ["patch", "--binary", "-p1", "-i", str(patch)]):
        if shutil.which(tool[0]):
            Path(source.path).write_bytes(source.data)
            subprocess.run(tool, cwd=tmp_path, check=True, capture_output=True)
            assert Path(source.path).read_bytes().decode() == changed


def test_no_line_is_put_before_an_elif_or_into_a_line(tmp_path):
    source = source_of(tmp_path, LOOP + "if LOOP: make(1)\n")
    [elif_] = [one for one in source.statements if isinstance(one, ast.If) and source.text(one).startswith("elif")]
    assert source.before(elif_, ["pass"]) is None
    assert source.before(source.statement(9), ["pass"]) is None


def test_edits_of_one_place_and_what_is_no_python_are_refused(tmp_path):
    source = source_of(tmp_path, LOOP)
    call = call_in(source)
    both = [source.replaced(call, "a"), source.replaced(call.func, "b")]
    assert applied({source.path: source}, both) is None
    assert applied({source.path: source}, [source.replaced(call, "a b")]) is None
    with pytest.raises(InvalidSpec, match="cannot be read as Python"):
        source_of(tmp_path, b"caf\xe9 = 1\n")
