"""`vramcast run`: commands judged by simulated cards, started, watched and explained."""

import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.conftest import SOON_S, Machine
from vramcast.watch.guard import EXIT_NOT_FOUND, EXIT_REFUSED, Job

RTX_4090 = "gpu 24564 300 NVIDIA GeForce RTX 4090"
SERVER = ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192")
TOO_LARGE = ("vllm", "serve", "Qwen/Qwen3-32B", "--max-model-len", "8192")
TRAINING = (*shlex.split("trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name d --bf16 true"),)
CLOSE = (*TRAINING, *shlex.split(
    "--max_length 2010 --per_device_train_batch_size 3 --gradient_checkpointing false"))
LIGER = (*TRAINING, *shlex.split(
    "--use_liger_kernel true --gradient_checkpointing true --per_device_train_batch_size"))
EMBEDDING = tuple("Qwen/Qwen3-Embedding-4B" if word == "Qwen/Qwen3-0.6B" else word for word in TRAINING)
OOM = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of "
       "23.64 GiB of which 1.20 GiB is free. Process 7 has 22.44 GiB memory in use. Of the allocated memory 20.00 GiB "
       "is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.")


def program(machine: Machine, name: str, code: str) -> None:
    """A command of that name on PATH."""
    path = machine.tools / name
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)


@pytest.fixture
def guarded(machine: Machine) -> Machine:
    machine.has(RTX_4090, RTX_4090)
    for name in ("vllm", "trl"):
        program(machine, name, "import sys; print('served', *sys.argv[1:]); sys.exit(7)")
    return machine


@pytest.mark.parametrize(("lines", "words", "environment", "code", "said"), [
    ((RTX_4090,), SERVER, {}, 7, "fits"),
    ((RTX_4090,), TOO_LARGE, {}, EXIT_REFUSED, "not started; what would fit: --"),
    ((RTX_4090, "process 1 20000 0 -1 0 C"), SERVER, {}, EXIT_REFUSED, "GPU 0: others hold 19.5"),
    ((RTX_4090, "process 1 20000 0 -1 0 C", RTX_4090), SERVER, {"CUDA_VISIBLE_DEVICES": "1"}, 7, "vramcast: fits"),
    ((RTX_4090, "process 1 20000 0 -1 0 C", RTX_4090), ("CUDA_VISIBLE_DEVICES=1", *SERVER), {}, 7, "vramcast: fits"),
    ((RTX_4090, RTX_4090, "process 1 20000 0 -1 0 C"), (*SERVER, "-tp", "2"), {}, EXIT_REFUSED, "GPU 1: others hold"),
    ((RTX_4090, RTX_4090, "process 1 20000 0 -1 0 C"), SERVER, {}, 7, "vramcast: fits"),
    ((RTX_4090,), SERVER, {"CUDA_VISIBLE_DEVICES": ""}, 7, "not judged: no GPU is visible"),
    (("gpu 81920 300 NVIDIA A100-SXM4-80GB", "mig 1 9728 1g.10gb", "mig 2 40192 3g.40gb"), SERVER, {}, EXIT_REFUSED,
     "does not fit"),
    ((RTX_4090,), (*SERVER, "--no-such-option", "3"), {}, 7, "no_such_option"),
    ((RTX_4090,), (*TOO_LARGE, "--no-such-option", "3"), {}, 7, "so it is judged without what is not read"),
    ((), SERVER, {}, 7, "not judged: no GPU"),
    ((RTX_4090,), (*TRAINING, "--max_length", "512"), {}, 7, "per GPU; that is the longest samples alone"),
    ((RTX_4090,), CLOSE, {}, 7, "; started all the same: by measured jobs like it "),
    ((RTX_4090,), (*LIGER, "1", "--max_length", "120000"), {}, 7, "of 120,000 is what does not"),
    ((RTX_4090,), (*LIGER, "8", "--max_length", "42000"), {}, EXIT_REFUSED, "not fit"),
    ((RTX_4090,), EMBEDDING, {}, 7, "started all the same: qwen3-embedding-4b makes embeddings"),
])
def test_a_command_is_started_or_refused_by_the_cards_as_they_are(
    guarded: Machine, lines: tuple[str, ...], words: tuple[str, ...], environment: dict[str, str], code: int, said: str,
) -> None:
    guarded.has(*lines)
    guarded.environment.pop("CUDA_VISIBLE_DEVICES", None)
    guarded.environment.update(environment)
    ended = guarded.ask("run", "--", *words)
    assert ended.returncode == code and said in ended.stderr, ended.stderr
    assert ("served" in ended.stdout) == (code == 7)
    if words is TOO_LARGE and code == EXIT_REFUSED:
        anyway = guarded.ask("run", "--anyway", "--", *words)
        assert anyway.returncode == 7 and said.partition("not started")[0] in anyway.stderr, anyway.stderr


def test_what_nothing_reads_starts_with_a_warning_and_keeps_its_streams(guarded: Machine) -> None:
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\r\\nout'); sys.stderr.buffer.write(b'e\\xfer'); sys.exit(3)"
    command = [sys.executable, "-m", "vramcast", "run", "--", sys.executable, "-c", code]
    ended = subprocess.run(
        command, env=guarded.environment, cwd=guarded.folder, capture_output=True, timeout=SOON_S, check=False)
    assert (ended.returncode, ended.stdout) == (3, b"\xff\r\nout")
    assert b"not judged: nothing here reads this command" in ended.stderr and ended.stderr.endswith(b"e\xfer")


def test_a_terminal_stays_one_and_stdout_and_stderr_keep_their_order(guarded: Machine) -> None:
    ours, end = pty.openpty()
    code = "import os, sys; os.write(1, b'%d %d.' % (sys.stdout.isatty(), sys.stderr.isatty())); os.write(2, b'e\\n')"
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", "run", "--", sys.executable, "-c", code], env=guarded.environment,
        cwd=guarded.folder, stdin=end, stdout=end, stderr=end)
    assert process.wait(SOON_S) == 0
    os.close(end)
    assert os.read(ours, 1 << 16).endswith(b"1 1.e\r\n")  # the real terminal makes the line's end


def test_a_signal_reaches_the_command_and_its_death_is_told_as_a_shell_does(guarded: Machine) -> None:
    code = "import time; print('up', flush=True); time.sleep(300)"
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", "run", "--", sys.executable, "-c", code], env=guarded.environment,
        cwd=guarded.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 128 + signal.SIGTERM
    assert guarded.ask("run", "--", "no-such-command").returncode == EXIT_NOT_FOUND


def test_a_crash_is_explained_and_what_was_measured_stands_beside_the_prediction(guarded: Machine) -> None:
    guarded.has(RTX_4090, "process 1 100 9000 -1 0 C")
    program(guarded, "vllm", f"import sys, time; time.sleep(2.5); print({OOM!r}, file=sys.stderr); sys.exit(1)")
    ended = guarded.ask("run", "--record", "run.sqlite", "--", *SERVER)
    assert ended.returncode == 1 and "GPU 0 held " in ended.stderr
    assert "Tried to allocate" in ended.stderr and "1.96 GiB" in ended.stderr.partition("GPU 0 held")[2]
    assert (guarded.folder / "run.sqlite").is_file()


def test_a_command_is_judged_by_the_release_that_lies_beside_its_program(guarded: Machine) -> None:
    assert "vllm 0.11.0 is installed" not in guarded.ask("run", "--", *SERVER).stderr
    for release in ("0.11.0", "0.0.1"):  # one that is not covered is as none
        packages = guarded.folder / "lib" / "python3.12" / "site-packages"
        shutil.rmtree(packages, ignore_errors=True)
        (packages / f"vllm-{release}.dist-info").mkdir(parents=True)
        said = guarded.ask("run", "--", *SERVER).stderr
        assert (f"vllm {release} is installed" in said) == (release == "0.11.0") and "fits" in said, said


def test_a_run_teaches_the_next_one(guarded: Machine) -> None:
    guarded.has(*["gpu 81559 700 NVIDIA H100 80GB HBM3"] * 2)
    log = Path(__file__).parents[1] / "sources" / "logs" / "data" / "vllm-v1.log"
    program(guarded, "vllm", f"print(open({str(log)!r}).read())")
    words = ("--learn", "run.toml", "--", "vllm", "serve", "llama-3.1-8b", "-tp", "2", "--max-model-len", "8192")
    first, second = (guarded.ask("run", *words) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert "run.toml: what this run taught" in first.stderr, first.stderr
    assert (guarded.folder / "run.toml").read_text() and first.stderr.partition("GiB")[0] != second.stderr.partition(
        "GiB")[0]


def test_fix_starts_the_command_with_the_least_change(guarded: Machine) -> None:
    ended = guarded.ask("run", "--fix", "--", *SERVER[:3])  # its whole context does not fit
    assert ended.returncode == 7 and "started with --" in ended.stderr, ended.stderr
    assert "--max-num-seqs 16" in ended.stdout
    assert "parallel" not in guarded.ask("run", "--fix", "--gpus", "t4", "--", *SERVER).stdout  # no card is added
    assert guarded.ask("run", "--check", "--", *SERVER[:3]).returncode == EXIT_REFUSED


def test_a_script_that_nothing_reads_is_traced(guarded: Machine) -> None:
    pytest.importorskip("torch")
    (guarded.folder / "train.py").write_text(
        "import torch\nlayer = torch.nn.Linear(1024, 1, device='cuda')\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\nfor _ in range(3):\n"
        "    layer(torch.empty(7 << 20, 1024, device='cuda')).sum().backward()\n    optimizer.step()\n")
    ended = guarded.ask("run", "--check", "--", sys.executable, "train.py")
    assert ended.returncode == EXIT_REFUSED and "vramcast: does not fit: " in ended.stderr, ended.stderr


@pytest.mark.parametrize(("line", "runs"), [
    ("import argparse, torch", True), ("import torch.nn as nn", True), ("from transformers import Trainer", True),
    ("import torchmetrics", False), ("# import torch", False), ("import numpy as np", False),
])
def test_scripts_that_run_pytorch_are_known_by_what_they_import(tmp_path: Path, line: str, runs: bool) -> None:
    (tmp_path / "train.py").write_text(f'"""A script."""\n{line}\n')
    assert Job.of(("python", str(tmp_path / "train.py")), {}).is_of_torch is runs
