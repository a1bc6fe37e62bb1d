"""Unmodified scripts, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, SourceError, Unsupported
from vramcast.tracing import child
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


@pytest.mark.parametrize(("name", "arguments", "needs", "world"), [
    ("amp_loop", ("--batch", "32"), (), (1, 0)),
    ("nanogpt", (), (), (1, 0)),
    ("hf_trainer", (), ("transformers", "accelerate"), (1, 0)),
    ("hf_trainer", ("hf-out", "fsdp"), ("transformers", "accelerate"), (8, 3)),
    ("accelerate_loop", ("fp16",), ("accelerate",), (1, 0)),
    ("accelerate_loop", ("bf16", "fsdp2"), ("accelerate",), (16, 11)),
    ("lightning_run", (), ("lightning",), (1, 0)),
    ("lightning_run", ("8", "fsdp"), ("lightning",), (8, 3)),
    ("data_parallel", (), (), (8, 3)),
    ("classify", (), ("torchvision",), (1, 0)),
    ("mixture", (), ("transformers",), (1, 0)),
])
def test_a_training_script_stops_by_itself_once_its_steps_repeat(name, arguments, needs, world):
    if not all(map(importlib.util.find_spec, needs)):
        pytest.skip(f"needs {needs}")
    found = run(SCRIPTS / f"{name}.py", *arguments, world_size=world[0], rank=world[1])
    assert found.steps == 3 and "3 optimizer steps" in found.stopped
    assert found.num_parameters > 100_000
    assert found.run.communicators == (world[0] > 1) and found.run.device == world[1] % 8
    played = play(found.run.tape)
    second, third = (highest(played, *span).allocated_bytes for span in pairwise(found.run.tape.step_ends()))
    assert second == pytest.approx(third, rel=0.01)
    phases = {block.origin.phase for block in found.run.tape.blocks}
    assert {Phase.FORWARD, Phase.BACKWARD} <= phases
    check_journey(found.run.tape)


def check_journey(tape):
    """A tape packed and unpacked is the same."""
    again = unpack_tape(pack_tape(tape))
    assert again.events == tape.events and again.marks == tape.marks and again.asides == tape.asides
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


def test_a_script_may_evaluate_long_before_it_trains_and_needs_no_optimizer(own_folder):
    script = written(own_folder, (
        "import torch\nfrom torch import nn\nscale = nn.Hardtanh()\nmodel = nn.Linear(512, 512).cuda()\n"
        "def batch():\n    return scale(torch.randn(64, 512)).cuda()\n"
        "for _ in range(60):\n    with torch.no_grad():\n        model(batch())\n"
        "while True:\n    model(batch()).sum().backward()\n    with torch.no_grad():\n"
        "        for weight in model.parameters():\n            weight -= 0.1 * weight.grad\n"
        "            weight.grad = None\n"
    ))
    found = run(script)
    assert found.stopped == "stopped after 3 calls of backward" and found.steps == 3
    assert found.forwards == 63  # what happens to data on the host is none
    assert len(found.run.tape.step_ends()) == 3


def test_a_script_that_never_ends_meets_its_time_limit():
    with pytest.raises(Unsupported, match=r"endless.py was still running after 2 s: 0 optimizer steps.*endless.py:\d"):
        run(SCRIPTS / "endless.py", time_limit_s=2)


@pytest.mark.parametrize(("text", "message"), [
    ("x = 1\nraise ValueError('wrong\\n shape')", r"script.py:2: ValueError: wrong shape"),
    ("import no_such_module", r"script.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
    ("def f(:\n  pass", r"script.py:1: SyntaxError"),
    ("raise SystemExit(3)", r"script.py exited with 3$"),
    ("import deepspeed", r"script.py:1: the script needs DeepSpeed, which is not installed and cannot be simulated"),
])
def test_a_script_that_fails_is_one_sentence_with_its_line(own_folder, monkeypatch, text, message):
    if "deepspeed" in text and importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is installed")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    said = []

    class Watched:
        def write(self, error="", **_known):
            said.append(error)

    child._run(ScriptJob(path=str(written(own_folder, text))), Watched())
    assert re.search(message, said[0])


def test_a_script_that_exits_is_told_with_what_it_printed(own_folder):
    script = written(own_folder, "import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n")
    with pytest.raises(Unsupported, match=r"with 2 after printing: .*arguments: --no"):
        run(script)


def test_an_error_of_torch_is_one_of_the_script(own_folder):
    script = written(own_folder, "import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')\n")
    with pytest.raises(Unsupported, match=r"script.py:2: RuntimeError: incon"):
        run(script)


def test_a_script_that_needs_data_takes_it_and_says_where_more_is_needed(own_folder):
    script = written(own_folder, (
        "import torch\nlengths = torch.empty(4, dtype=torch.int64, device='cuda')\nlongest = lengths.max().item()\n"
        "assert torch.zeros(longest, device='cuda').shape == (77,)\ntorch.zeros(lengths.min().item())\n"
    ))
    with pytest.raises(InvalidSpec, match=r"script.py:5: .* give the integer with --value script.py:5="):
        run(script, values={"script.py:3": "77"})


def test_a_script_sees_its_arguments_its_folder_and_a_card_and_leaves_nothing(own_folder):
    (own_folder / "helper.py").write_text("NAME = 'helped'\n")
    script = written(own_folder, (
        "import os, subprocess, sys, helper, torch\nassert __name__ == '__main__'\nsubprocess.run(['true'])\n"
        "open('written.txt', 'w').write('1')\n"
        "print(sys.argv, helper.NAME, os.getcwd(), torch.cuda.get_device_name())\nsys.exit(0)\n"
    ))
    before = dict(os.environ), list(sys.path), set(sys.modules)
    found = run(script, "--epochs", "3")
    assert f"['{script}', '--epochs', '3'] helped {own_folder} NVIDIA A100-SXM4-80GB" in found.output
    assert before == (dict(os.environ), list(sys.path), set(sys.modules))
    assert not (own_folder / "written.txt").exists()
    places = {one.what: one.place for one in found.assumptions}
    assert places["a child process of the script is not traced"] == f"{script}:3"


def test_without_a_sandbox_a_script_writes_its_files_and_main_memory_can_be_limited(own_folder):
    script = written(own_folder, "open('written.txt', 'w').write('1')\nimport numpy\nnumpy.ones(8 << 30, dtype='u1')\n")
    with pytest.raises(Unsupported, match=r"script.py:3: .*(Unable to allocate|MemoryError)"):
        run(script, is_sandboxed=False, memory_limit_bytes=4 << 30)
    assert (own_folder / "written.txt").read_text() == "1"


def test_a_script_that_tries_again_with_a_smaller_batch_finds_the_one_that_fits(own_folder):
    script = written(own_folder, (
        "import torch\nbatch = 1 << 10\nwhile True:\n    try:\n        torch.zeros(batch, 1 << 20, device='cuda')\n"
        "        break\n    except torch.cuda.OutOfMemoryError as error:\n        print(error)\n        batch //= 2\n"
        "        torch.cuda.empty_cache()\nprint('fits', batch)\n"
    ))
    found = run(script, capacity_bytes=2 << 30, enforces_capacity=True)  # a part of which is the context's
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


def test_a_script_that_is_not_there_is_a_sentence():
    with pytest.raises(SourceError, match=r"there is no script 'nowhere\.py'"):
        run("nowhere.py")
