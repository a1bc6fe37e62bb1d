"""Unmodified scripts, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, SourceError, Unsupported
from vramcast.tracing.played import highest, play
from vramcast.tracing.record import pack_tape, unpack_tape
from vramcast.tracing.run import answered_script
from vramcast.tracing.scripts import run_script
from vramcast.tracing.tape import Phase

SCRIPTS = Path(__file__).parent / "scripts"


def run(script, *arguments, **asked):
    job = {"gpu": load_gpu("a100-sxm-80gb"), "is_sandboxed": True, "time_limit_s": 100} | asked
    return run_script(ScriptJob(path=str(script), arguments=arguments, **job))


def written(folder, text):
    script = folder / "script.py"
    script.write_text(text)
    return script


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Scripts write to where they run."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not {path.name for path in tmp_path.iterdir()} - {"script.py", "written.txt", "helper.py"}


@pytest.mark.parametrize(("name", "arguments", "needs"), [
    ("amp_loop", ("--batch", "32"), ()),
    ("nanogpt", (), ()),
    ("hf_trainer", (), ("transformers", "accelerate")),
    ("accelerate_loop", ("fp16",), ("accelerate",)),
    ("lightning_run", (), ("lightning",)),
    ("classify", (), ("torchvision",)),
    ("mixture", (), ("transformers",)),
])
def test_a_training_script_stops_by_itself_once_its_steps_repeat(name, arguments, needs):
    if not all(map(importlib.util.find_spec, needs)):
        pytest.skip(f"needs {needs}")
    found = run(SCRIPTS / f"{name}.py", *arguments)
    assert found.steps == 3 and "3 optimizer steps" in found.stopped
    assert found.num_parameters > 100_000
    steps = found.run.tape.step_ends()
    played = play(found.run.tape)
    second, third = (highest(played, *span).allocated_bytes for span in pairwise(steps))
    assert second == pytest.approx(third, rel=0.01)
    phases = {block.origin.phase for block in found.run.tape.blocks}
    assert {Phase.FORWARD, Phase.BACKWARD} <= phases
    check_journey(found.run.tape)


def check_journey(tape):
    """A tape packed and unpacked is the same."""
    again = unpack_tape(pack_tape(tape))
    assert again.events == tape.events and again.marks == tape.marks
    names = ("num_bytes", "stream", "operator", "origin", "kind", "name", "born", "died")
    for one, other in zip(tape.blocks, again.blocks, strict=True):
        assert all(getattr(one, name) == getattr(other, name) for name in names)


def test_an_inference_script_runs_to_its_end():
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers")
    found = run(SCRIPTS / "generate.py")
    assert found.stopped == "" and found.forwards == 12 and "torch.Size([2, 28])" in found.output


def test_forwards_that_bring_nothing_new_end_an_inference_script(own_folder):
    script = written(own_folder, (
        "import torch\nmodel = torch.nn.Linear(512, 512).cuda()\nwith torch.no_grad():\n"
        "    while True:\n        model(torch.randn(64, 512, device='cuda'))\n"
    ))
    found = run(script)
    assert "no new peak" in found.stopped and found.forwards < 40


def test_a_script_that_never_ends_meets_its_time_limit():
    with pytest.raises(Unsupported, match=r"endless.py was still running after 6 s: 0 optimizer steps.*endless.py:\d"):
        run(SCRIPTS / "endless.py", time_limit_s=6)


@pytest.mark.parametrize(("text", "message"), [
    ("x = 1\nraise ValueError('wrong\\n shape')", r"script.py:2: ValueError: wrong shape"),
    ("import no_such_module", r"script.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
    ("def f(:\n  pass", r"script.py:1: SyntaxError"),
    ("raise SystemExit(3)", r"script.py exited with 3$"),
    ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])", r"with 2 after printing: .*arguments: --no"),
    ("import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')", r"script.py:2: RuntimeError: incon"),
])
def test_a_script_that_fails_is_one_sentence_with_its_line(own_folder, text, message):
    with pytest.raises(Unsupported, match=message):
        run(written(own_folder, text))


def test_a_script_that_needs_data_says_where_and_takes_it(own_folder):
    script = written(own_folder, (
        "import torch\nlengths = torch.empty(4, dtype=torch.int64, device='cuda')\nlongest = lengths.max().item()\n"
        "print(torch.zeros(longest, device='cuda').shape)\n"
    ))
    with pytest.raises(InvalidSpec, match=r"script.py:3: .* give the integer with --value script.py:3="):
        run(script)
    assert "torch.Size([77])" in run(script, values={"script.py:3": "77"}).output


def test_a_script_sees_its_arguments_its_folder_and_a_card(own_folder):
    (own_folder / "helper.py").write_text("NAME = 'helped'\n")
    script = written(own_folder, (
        "import os, sys, helper, torch\nassert __name__ == '__main__'\n"
        "print(sys.argv, helper.NAME, os.getcwd(), torch.cuda.get_device_name())\nsys.exit(0)\n"
    ))
    before = dict(os.environ), list(sys.path), set(sys.modules)
    found = run(script, "--epochs", "3")
    assert f"['{script}', '--epochs', '3'] helped {own_folder} NVIDIA A100-SXM4-80GB" in found.output
    assert before == (dict(os.environ), list(sys.path), set(sys.modules))


def test_without_a_sandbox_a_script_writes_its_files(own_folder):
    script = written(own_folder, "open('written.txt', 'w').write('1')\n")
    run(script)
    assert not (own_folder / "written.txt").exists()
    run(script, is_sandboxed=False)
    assert (own_folder / "written.txt").read_text() == "1"


def test_a_script_that_tries_again_with_a_smaller_batch_finds_the_one_that_fits(own_folder):
    script = written(own_folder, (
        "import torch\nbatch = 1 << 10\nwhile True:\n    try:\n        torch.zeros(batch, 1 << 20, device='cuda')\n"
        "        break\n    except torch.cuda.OutOfMemoryError as error:\n        print(error)\n        batch //= 2\n"
        "        torch.cuda.empty_cache()\nprint('fits', batch)\n"
    ))
    found = run(script, capacity_bytes=1 << 30, enforces_capacity=True)
    assert "fits 256" in found.output and "CUDA out of memory. Tried to allocate 2.00 GiB." in found.output


def test_the_answer_to_a_script_that_catches_and_goes_on_is_what_it_settles_on(own_folder):
    script = written(own_folder, (
        "import torch\nbatch = 1 << 10\nwhile True:\n    try:\n        torch.zeros(batch, 1 << 20, device='cuda')\n"
        "        break\n    except torch.cuda.OutOfMemoryError:\n        batch //= 2\n"
    ))
    job = ScriptJob(path=str(script), gpu=load_gpu("a100-sxm-80gb"), capacity_bytes=2 << 30)
    answer = answered_script(job).answer
    assert answer.fits and answer.failure is None and answer.peak.allocated_bytes == 1 << 30
    assert any("catches that" in one for one in answer.assumptions)


def test_a_script_that_gives_up_when_memory_runs_out_does_not_fit(own_folder):
    script = written(own_folder, (
        "import torch\nmodel = torch.nn.Linear(1024, 1024).cuda()\ntry:\n"
        "    model(torch.zeros(1 << 20, 1024, device='cuda'))\nexcept torch.cuda.OutOfMemoryError:\n    pass\n"
    ))
    job = ScriptJob(path=str(script), gpu=load_gpu("a100-sxm-80gb"), capacity_bytes=1 << 30)
    answer = answered_script(job).answer
    assert not answer.fits and answer.failure is not None


def test_what_leaves_the_process_is_said(own_folder):
    found = run(written(own_folder, "import subprocess\nsubprocess.run(['true'])\n"))
    assert "a child process of the script is not traced" in {one.what for one in found.assumptions}


def test_main_memory_can_be_limited(own_folder):
    script = written(own_folder, "import numpy\nnumpy.ones(8 << 30, dtype='u1')\n")
    with pytest.raises(Unsupported, match=r"script.py:2: .*(Unable to allocate|MemoryError)"):
        run(script, memory_limit_bytes=4 << 30)


def test_a_script_that_is_not_there_is_a_sentence():
    with pytest.raises(SourceError, match=r"there is no script 'nowhere\.py'"):
        run("nowhere.py")
