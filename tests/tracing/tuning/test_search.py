"""Scripts tuned: every candidate is the changed source, traced."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from vramcast.api.tracing import tune
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.tracing.tuning.edits import INCOMPLETE

pytestmark = pytest.mark.usefixtures("forked")

TRAIN = """import torch
from torch import nn

batch_size, accumulation_steps = 4, 2 * 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 64), nn.Linear(64, 512)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100):
        for _ in range(accumulation_steps):
            ids = torch.randint(0, 512, (batch_size, 256), device="cuda")
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.view(-1, 512), ids.view(-1)) / accumulation_steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
PLAIN = """import torch

model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
model.compile = None
for _ in range(20):
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tuned(text, gpu="rtx-4090", **asked):
    Path("train.py").write_text(text)
    return tune("train.py", gpu=gpu, **asked)


def without_compile(monkeypatch):
    """The compiler takes longer than all else."""
    monkeypatch.setattr("vramcast.tracing.tuning.changes._compiled", lambda script: None)


def test_the_patch_applies_and_its_script_traces_to_what_was_said(monkeypatch):
    without_compile(monkeypatch)
    found = tuned(TRAIN, allow="bf16")
    before, best = found.runs[0], found.runs[found.best]
    assert best.changes == ("micro-batch 32 x 1", "fused AdamW", "bf16 autocast")
    assert (before.samples, best.samples, best.micro_batch, best.accumulate) == (32, 32, 32, 1)
    assert best.tokens_per_s > 2 * before.tokens_per_s and found.rounds == ("bf16 autocast",)
    assert found.not_allowed == ("tf32",) and INCOMPLETE not in found.patch
    Path("tune.patch").write_text(found.patch)
    subprocess.run(["git", "apply", "tune.patch"], check=True)
    changed = Path("train.py").read_text()
    assert "batch_size, accumulation_steps = 32, 1\n" in changed and "lr=1e-3, fused=True)" in changed
    assert '            with torch.autocast("cuda", dtype=torch.bfloat16):\n                logits' in changed
    again = tuned(changed, allow="bf16").runs[0]
    assert (again.device_bytes, again.step_s) == (best.device_bytes, best.step_s)


def test_what_does_not_fit_is_made_to_fit_by_recomputation(monkeypatch):
    without_compile(monkeypatch)
    monkeypatch.setattr("vramcast.tracing.tuning.changes._offloaded", lambda script: None)
    text = TRAIN.replace("= 4, 2 * 4", "= 512, 1").replace("range(4)", "range(12)")
    text = text.replace("accumulation_steps", "parts")  # a name that no accumulation has
    found = tuned(text, gpu="rtx-3060")
    best = found.runs[found.best]
    assert not found.runs[0].fits and best.fits
    assert [one.split(" ")[0] for one in best.changes][-1] == "recompute"
    assert "for block in model.blocks" not in found.patch  # the script has that name already
    assert "for layer in model.blocks" in found.patch and "+import torch.utils.checkpoint" in found.patch


def test_a_loop_without_accumulation_gets_one_where_its_batch_does_not_fit(monkeypatch):
    without_compile(monkeypatch)
    text = PLAIN.replace("Linear(4096, 4096)", "Sequential(torch.nn.Linear(4096, 65536), torch.nn.BatchNorm1d(65536))")
    text = text.replace("(8, 4096", "(batch_size, 4096").replace("\nmodel = ", "\nbatch_size = 8192\nmodel = ")
    text = text.replace("    model(", "    loss = model(").replace(".sum().backward()", ".sum()\n    loss.backward()")
    found = tuned(text, gpu="t4", capacity="8GiB")
    best = found.runs[found.best]
    assert not found.runs[0].fits and best.fits and best.samples == 8192
    assert best.changes[0] == f"micro-batch {best.micro_batch} x {best.accumulate}" and best.changes[0] in found.rounds
    assert f"+    (loss / {best.accumulate}).backward()" in found.patch
    assert f"+    if (micro_step + 1) % {best.accumulate} == 0:\n+        optimizer.step()" in found.patch


def test_a_script_that_is_best_as_it_is_has_no_patch(monkeypatch):
    without_compile(monkeypatch)
    found = tuned(PLAIN)
    assert (found.best, found.patch) == (0, "") and "as it is" in str(found)


@pytest.mark.parametrize(("text", "asked", "error", "said"), [
    ("import torch\ntorch.nn.Linear(8, 8).cuda()(torch.ones(8, 8).cuda())\n", {}, InvalidSpec, "makes no optimizer"),
    (PLAIN, {"goal": "tokens/s"}, InvalidSpec, "use --goal samples/s"),
    (PLAIN, {"goal": "speed"}, InvalidSpec, "use tokens/s, samples/s, memory"),
    (PLAIN, {"allow": "int4"}, UnknownName, "did you mean 8bit"),
    (PLAIN, {"gpu": "2xrtx-4090"}, InvalidSpec, "tuned for one GPU"),
    (PLAIN, {"gpu": "rtx-4091"}, UnknownName, "rtx-4090"),
    (PLAIN, {"world_size": "2"}, UnknownName, "unknown option"),
])
def test_what_cannot_be_tuned_is_one_sentence(text, asked, error, said):
    with pytest.raises(error, match=said):
        tuned(text, **{"gpu": "t4", **asked})


def test_the_trainer_is_told_in_its_own_words(monkeypatch):
    if not all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
        pytest.skip("needs transformers")
    without_compile(monkeypatch)
    script = (Path(__file__).parents[1] / "scripts" / "hf_trainer.py").read_text()
    for told, instead in (
        ("adamw_torch_fused", "adamw_torch"), (" bf16=True, gradient_checkpointing=not is_sharded,", ""),
    ):
        assert told in script
        script = script.replace(told, instead)
    found = tuned(script, gpu="t4")
    best = found.runs[found.best]
    assert best.samples == 16 and "optim='adamw_torch_fused'" in found.patch
    assert "per_device_train_batch_size=16" in found.patch and "gradient_accumulation_steps=1" in found.patch


def test_what_spares_too_little_to_fit_is_tried_again_where_it_fits():
    found = tuned(TRAIN.replace("4, 2 * 4", "64, 1"), gpu="rtx-4090", capacity="1200MiB",
                  forbid="compile,checkpoint,offload")
    first, *_, best = found.runs
    assert not first.fits and best.fits and found.best == len(found.runs) - 1
    assert [str(one) for one in best.changes] == ["micro-batch 32 x 2", "fused AdamW"]


TWO = """import torch

maker, judge = torch.nn.Linear(4096, 4096).cuda(), torch.nn.Linear(4096, 4096).cuda()
of_maker = torch.optim.Adam(maker.parameters())
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
for _ in range(20):
    judge(maker(torch.randn(8, 4096, device="cuda"))).sum().backward()
    for optimizer in (of_maker, of_judge):
        optimizer.step()
        optimizer.zero_grad()
"""


def test_every_optimizer_gets_the_kernel_that_it_has():
    found = tuned(TWO, forbid="compile,checkpoint,offload,batch,precision")
    assert "of_maker = torch.optim.Adam(maker.parameters(), fused=True)" in found.patch
    assert "of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4, fused=True)" in found.patch
