"""What can be asked of a trace, and the sentences for what cannot."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.api import tracing
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.question.tracing import (
    DEFAULT_GPU,
    build_script,
    build_trace,
    is_command,
    notebook_code,
    parse_arguments,
    parse_input,
)


@given(st.text(max_size=40))
def test_any_text_is_an_input_or_one_sentence(text: str) -> None:
    try:
        assert all(isinstance(dim, (int, str)) for dim in parse_input(text).dims)
    except VramcastError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["", "x", "3x", "0x4", "4x-1", "4x5:notatype", "a b=3", "9" * 30])
def test_wrong_inputs_are_refused(text: str) -> None:
    with pytest.raises((InvalidSpec, UnknownName)):
        parse_input(text)


def test_arguments_of_factories_are_literals_where_they_read_as_such() -> None:
    assert parse_arguments(["a=1", "b=[1, 2]", "c=None", "d=text", "e=a=b"]) == {
        "a": 1, "b": [1, 2], "c": None, "d": "text", "e": "a=b",
    }
    with pytest.raises(InvalidSpec, match="name=value"):
        parse_arguments(["12"])


def test_the_cpu_is_not_simulated() -> None:
    with pytest.raises(Unsupported, match="traces are of cards"):
        build_trace("m:f", {"device": "cpu"})
    assert build_trace("m:f", {"device": "cuda"}).gpu.name == DEFAULT_GPU


@pytest.mark.parametrize(("options", "words"), [
    ({"nosuch": 1}, "unknown option"),
    ({"sandbox": True}, "scripts"),
    ({"eval": True, "optimizer": "adam"}, "--optimizer"),
    ({"world-size": 4, "rank": 4}, "0 to 3"),
    ({"parallel": "fsdp"}, "--world-size"),
    ({"input": ("BxS",)}, "--batch"),
    ({"input": ("x=3", "x=4")}, "twice"),
    ({"steps": 1000}, "at most 100"),
    ({"batch": 0}, "whole number"),
    ({"amp": "fp8"}, "bf16, fp16"),
    ({"capacity": "much"}, "24GiB"),
])
def test_contradictions_get_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(VramcastError, match=words):
        build_trace("m:f", options)


def test_scripts_take_their_own_options(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("pass")
    job = build_script(str(path), {"value": ("train.py:3=0.5",), "sandbox": True}, arguments=["--lr", "1"])
    assert job.values == {"train.py:3": "0.5"} and job.is_sandboxed and job.arguments == ("--lr", "1")
    for options, words in (
        ({"amp": "bf16"}, "itself"), ({"value": ("3=4",)}, "FILE:LINE"), ({"time-limit": 10**6}, "a day"),
    ):
        with pytest.raises(InvalidSpec, match=words):
            build_script(str(path), options)
    with pytest.raises(SourceError, match="no such script"):
        build_script(str(tmp_path / "other.py"), {})


@pytest.mark.parametrize(("target", "arguments", "path", "rest", "is_module"), [
    ("python", ("-u", "-m", "pkg.train", "--lr", "1"), "pkg.train", ("--lr", "1"), True),
    ("python3.11", ("run.py", "--lr", "1"), "run.py", ("--lr", "1"), False),
    ("run.py", ("-m",), "run.py", ("-m",), False),
])
def test_a_command_of_python_is_its_script(tmp_path, monkeypatch, target, arguments, path, rest, is_module):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").touch()
    job = build_script(target, {}, arguments=arguments)
    assert (job.path, job.arguments, job.is_module, job.is_command) == (path, rest, is_module, False)


def test_a_notebook_is_its_cells_of_python(tmp_path):
    cells = [["%matplotlib inline\n", "import torch"], ["%%bash\n", "ls"], ["if True:\n", "    !pip install x\n"]]
    given = [{"cell_type": "code", "source": cell} for cell in cells]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [*given, {"cell_type": "markdown", "source": ["x"]}]}))
    job = build_script(str(tmp_path / "a.ipynb"), {})
    assert job.text == "pass\nimport torch\nif True:\n    pass\n"
    with pytest.raises(SourceError, match="no notebook"):
        notebook_code("{}", "a.ipynb")


@pytest.mark.parametrize(("words", "path", "behind", "ranks"), [
    (("deepspeed", "--num_gpus", "4", "t.py", "-b", "2"), "t.py", ("--local_rank=0", "-b", "2"), 4),
    (("deepspeed", "t.py"), "t.py", ("--local_rank=0",), 1),
])
def test_a_launcher_of_which_only_the_words_are_read(monkeypatch, words, path, behind, ranks):
    asked = []
    monkeypatch.setattr(tracing, "_traced_by", lambda *given: asked.append(given[-1]))
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    tracing.traced_target(words[0], {"gpu": "t4", "data": ("seq=2k", "rows=64")}, arguments=words[1:])
    job, = asked
    assert (job.path, job.arguments, job.world_size) == (path, behind, ranks)
    assert job.data == {"seq": 2048, "rows": 64}


@pytest.mark.parametrize("name", ["torchrun", "accelerate"])
def test_a_launcher_is_known_where_no_environment_is_activated(monkeypatch, name):
    monkeypatch.setenv("PATH", "")
    job = build_script(name, {"gpu": "t4"}, arguments=["x.py"])
    assert is_command(name) and job.is_command and job.is_module


def test_data_has_sizes_alone():
    with pytest.raises(InvalidSpec, match="must be seq=COUNT, rows=COUNT, image=COUNT"):
        build_script("-m", {"data": ("len=3",)}, is_module=True)


def test_python_without_a_script_is_refused():
    with pytest.raises(InvalidSpec, match="python of -c print"):
        build_script("python", {}, arguments=("-c", "print()"))
