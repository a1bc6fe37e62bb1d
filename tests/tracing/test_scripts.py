"""Unmodified scripts, each in a process of its own."""

import importlib.util
import os
import re
import shutil
import signal
import sys
from itertools import count, pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, OutOfMemory, SourceError, Unsupported
from vramcast.tracing import child, script_parts
from vramcast.tracing.environment.saving import Absent
from vramcast.tracing.packages import built_by, folder_nearby
from vramcast.tracing.run import answered_script
from vramcast.tracing.script_parts import run_script
from vramcast.tracing.script_watch import MOST_STEPS, QUIET_STEPS, Repetition, Step, Watch
from vramcast.tracing.tape import Phase, highest, play

pytestmark = pytest.mark.usefixtures("forked")
SCRIPTS = Path(__file__).parent / "scripts"
OWN_PROCESS = script_parts._wait


def run(script, *arguments, **asked):
    job = {"gpu": load_gpu("a100-sxm-80gb"), "is_sandboxed": True, "time_limit_s": 600} | asked
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
    ("hf_trainer", ("hf-out", "fsdp"), ("transformers", "accelerate"), (8, 3)),
    ("accelerate_loop", ("bf16", "fsdp2"), ("accelerate",), (16, 11)),
    ("lightning_run", ("8", "fsdp"), ("lightning",), (8, 3)),
    ("data_parallel", (), (), (8, 3)),
    ("classify", (), ("torchvision",), (1, 0)),
    ("mixture", (), ("transformers",), (1, 0)),
])
def test_a_training_script_stops_by_itself_once_its_steps_repeat(name, arguments, needs, world):
    if not all(map(importlib.util.find_spec, needs)):
        pytest.skip(f"needs {needs}")
    found = run(SCRIPTS / f"{name}.py", *arguments, world_size=world[0], rank=world[1])
    if name == "lightning_run":  # validates after every second step, so that steps differ
        assert found.steps <= 2 + QUIET_STEPS
    else:
        assert found.steps in (3, 4)  # DDP makes its buckets anew in the second
    assert f"{found.steps} optimizer steps" in found.stopped
    assert found.num_parameters > 100_000
    assert found.run.communicators == (world[0] > 1) and found.run.device == world[1] % 8
    played = play(found.run.tape)
    *_, second, third = (highest(played, *span).allocated_bytes for span in pairwise(found.run.tape.step_ends()))
    assert second == pytest.approx(third, rel=0.01)
    phases = {block.origin.phase for block in found.run.tape.blocks}
    assert {Phase.FORWARD, Phase.BACKWARD} <= phases


def test_an_inference_script_runs_to_its_end():
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers")
    found = run(SCRIPTS / "generate.py")
    assert found.stopped == "" and found.forwards == 12 and "torch.Size([2, 28])" in found.output


FROM_HUB = """
import importlib.util, json, os, pathlib, torch
os.environ["HF_ENDPOINT"] = "http://hub.invalid"
from transformers import AutoModelForCausalLM, AutoTokenizer
name = "HuggingFaceTB/SmolLM2-135M"
tokenizer = AutoTokenizer.from_pretrained(name)
tokens = tokenizer("four" * 8, return_tensors="pt").to("cuda")
assert tokens["input_ids"].shape == (1, 8) and len(tokenizer) == 49152
other = AutoTokenizer.from_pretrained("Qwen/Qwen2-0.5B")  # whose class has a way of its own, and whose config no ends
assert len(other("four" * 8)["input_ids"]) == 8 and other.eos_token and other.pad_token and other.chat_template
assert AutoTokenizer.from_pretrained("bert-base-uncased").chat_template is None
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map="cuda")
assert model.dtype is torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight
model(**tokens, labels=tokens["input_ids"]).loss.backward()
folder = pathlib.Path("alone")
folder.mkdir()
(folder / "config.json").write_text(json.dumps({
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "dtype": "float16",
}))
assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype is torch.float16
import timm, torchvision
torchvision.models.resnet18(weights="IMAGENET1K_V1").cuda()
assert timm.create_model("resnet18", pretrained=True, num_classes=7).fc.weight.shape[0] == 7
rows = timm.data.create_dataset("", root="no/such/folder")
assert (len(rows), rows[1][0].size, rows[1001][1]) == (1 << 16, (500, 375), 1)
import huggingface_hub, transformers
name = huggingface_hub.create_repo("made", exist_ok=True).repo_id
commit = huggingface_hub.upload_folder(repo_id=name, folder_path="alone", run_as_future=True)
assert name == "user/made" and commit.result().oid and huggingface_hub.whoami()["name"] == "user"
if importlib.util.find_spec("tensorboard"):
    from torch.utils.tensorboard import _pytorch_graph
    assert _pytorch_graph.graph(torch.nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda"))
folder = pathlib.Path(huggingface_hub.snapshot_download("HuggingFaceTB/SmolLM2-135M", allow_patterns=["*.json"]))
assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {file.name for file in folder.iterdir()}
assert len(transformers.AutoModel.from_pretrained("microsoft/mpnet-base").encoder.layer) == 12
images = torchvision.datasets
digits, small = images.MNIST("d", train=False, download=True), images.CIFAR100("d", download=True)
assert (len(digits), digits[0][0].size, len(small), small[99][1]) == (10_000, (28, 28), 50_000, 99)
"""


def test_pretrained_models_need_no_weights_and_no_network(own_folder):
    if not all(map(importlib.util.find_spec, ("transformers", "accelerate", "timm", "torchvision"))):
        pytest.skip("needs transformers and timm")
    found = run(written(own_folder, FROM_HUB))
    assert found.forwards == 1 and found.num_parameters == 134_515_008
    assert sum("SmolLM2-135M: " in one.what for one in found.assumptions) == 3


WITHOUT_PACKAGES = """
import tensorboard_logger
import torch, wandb
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func
from flash_attn.bert_padding import pad_input, unpad_input
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter()
open(f"{writer.log_dir}/training.log", "w").close()
wandb.init(config={"lr": 1})
qkv = torch.randn(2, 256, 3, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
before = torch.cuda.memory_allocated()
flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()
assert qkv.grad.shape == qkv.shape
apart = [part.detach().requires_grad_() for part in qkv.unbind(2)]
out = flash_attn_func(*apart, causal=True)
out.sum().backward()
writer.add_scalar("loss", out.float().mean().item(), 0)
rows, indices, *_ = unpad_input(torch.ones(2, 4, 8), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
assert pad_input(rows, indices, 2, 4).sum() == 48
"""


def test_loggers_and_flash_attention_that_are_not_installed_are_stood_in_for(own_folder):
    if importlib.util.find_spec("flash_attn") or importlib.util.find_spec("wandb"):
        pytest.skip("they are installed")
    found = run(written(own_folder, WITHOUT_PACKAGES))
    said = [one.what for one in found.assumptions]
    assert {"wandb", "flash-attn"} <= {what.partition(" is not installed: ")[0] for what in said}
    held = [block.num_bytes for block in found.run.tape.blocks if "flash_attn" in block.operator]
    assert held.count(3 * 2 * 256 * 8 * 64 * 2) <= 1  # one gradient of a packed input, as flash-attn makes it
    gradients = [block.num_bytes for block in found.run.tape.blocks]
    assert gradients.count(3 * 2 * 256 * 8 * 64 * 2) >= 2


@pytest.mark.parametrize(("text", "said"), [
    ("import cv2_of_nobody", r"imports cv2_of_nobody, which this Python does not have, .*: pip install cv2-of-nobody"),
    ("import socket\nraise OSError('[Errno -2] Name or service not known')", "fetches something that does not answer"),
    ("assert 1 == 2", r"AssertionError: assert 1 == 2"),
    ("raise FileNotFoundError('no checkpoint')", r"needs files that are not there: no checkpoint"),
    ("open('data/train.json')", r"needs 'data/train.json', which is not there"),
    ("from click.testing import nothing_of_it", r"click \d[\d.]* is installed, and the script wants another version"),
    ("try:\n  import nobodys\nexcept ImportError as it:\n  raise RuntimeError(f'failed: {it}') from it",
     "imports nobodys, which this Python does not have"),
])
def test_what_a_script_lacks_is_one_sentence(own_folder, text, said):
    with pytest.raises(InvalidSpec, match=said):
        run(written(own_folder, text))


@pytest.mark.skipif(not importlib.util.find_spec("diffusers"), reason="needs diffusers")
def test_parts_of_a_diffusion_pipeline_come_without_its_hub_in_their_own_dtypes(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = run(SCRIPTS / "diffusion_parts.py")
    assert found.num_parameters == 859_520_964
    assert "without a safety checker" in " ".join(one.what for one in found.assumptions)


NOT_THERE = """
import glob, urllib.request
import torch, torchvision
from pathlib import Path
from torchvision.transforms.functional import to_tensor

kinds = torchvision.datasets
pets = kinds.OxfordIIITPet("none", target_types="segmentation", transform=to_tensor, target_transform=to_tensor)
faces = kinds.CelebA("none", split="valid", transform=to_tensor, download=True)
assert [*pets[0][0].shape, *pets[0][1].shape, *faces[1][1].shape] == [3, 375, 500, 1, 375, 500, 40]
assert kinds.STL10("none", "unlabeled")[1][0].size == (96, 96) and len(kinds.SVHN("none").labels) == 1 << 16
torch.save([1], "none/kept.pt")  # as the folder is there that fetching makes
assert glob.glob("none/*.txt") == []
file, = glob.glob("none/train_*.bin")[:1]
assert torch.from_file(file, False, 256, dtype=torch.int32)[0] == 20240520 and len([*Path().glob("none/x_*.bin")]) == 2
urllib.request.urlretrieve("https://example.org/weights.pth", "weights.pth")
found, module = torch.load("weights.pth"), torch.nn.Linear(8, 8).cuda()
module.load_state_dict({name[7:]: value for name, value in found["state_dict"].items()})
module(torch.ones(1, 8, device="cuda"))
for unknown in (lambda: found["args"], lambda: found["model"].float(), lambda: found["model"]["head.weight"].shape):
    try:
        unknown()
    except FileNotFoundError:
        continue
    raise AssertionError(unknown)
print(found["args"])
"""


@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="needs torchvision")
def test_data_and_weights_that_are_not_there_are_stood_in_for_and_what_only_a_file_says_is_asked_for(own_folder):
    with pytest.raises(InvalidSpec, match=r"script.py:26: it needs 'weights.pth', which is not there"):
        run(written(own_folder, NOT_THERE))


PROCESSORS = """
import numpy, PIL.Image, torch, transformers

image = PIL.Image.new("RGB", (500, 375))
asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]
for name, tokens in (
    ("llava-hf/llava-1.5-7b-hf", (336 // 14) ** 2), ("Qwen/Qwen2-VL-7B-Instruct", 18 * 13),
    ("google/gemma-3-4b-it", 256),
):
    processor = transformers.AutoProcessor.from_pretrained(name)
    text = processor.apply_chat_template(asked, tokenize=False)
    made = processor(text=[text], images=[image], return_tensors="pt")
    config = transformers.AutoConfig.from_pretrained(name)
    assert (made["input_ids"] == config.image_token_id).sum() == tokens, (name, made["input_ids"].shape)
heard = transformers.AutoProcessor.from_pretrained("openai/whisper-large-v3").feature_extractor(
    numpy.zeros(16000), sampling_rate=16000, return_tensors="pt"
)
assert heard["input_features"].shape == (1, 128, 3000)
torch.nn.Linear(1, 1).cuda()(torch.ones(1, 1, device="cuda"))
"""


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_processors_without_their_hub_make_as_many_tokens_of_an_image_as_its_patches(own_folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = run(written(own_folder, PROCESSORS))
    assert "LlavaProcessor has its defaults" in " ".join(one.what for one in found.assumptions)


def test_a_package_of_the_scripts_own_project_is_found_as_if_on_the_path(tmp_path):
    sibling = tmp_path / "project" / "parts" / "sibling_of_script"
    sibling.mkdir(parents=True)
    (sibling / "__init__.py").touch()
    (sibling / "size.py").write_text("SIZE = 1 << 20\n")
    (tmp_path / "project" / "tools").mkdir()
    assert folder_nearby("sibling_of_script", tmp_path / "project" / "tools" / "train.py") == ""  # another's, may be
    (tmp_path / "project" / "pyproject.toml").touch()
    (tmp_path / "project" / "tools" / "requirements.txt").touch()
    try:
        found = run(written(tmp_path / "project" / "tools", (
            "import torch\nfrom sibling_of_script.size import SIZE\nx = torch.nn.Linear(SIZE, 1).cuda()\n"
            "x(torch.ones(1, SIZE, device='cuda'))\n"
        )))
    finally:
        shutil.rmtree(tmp_path / "project")
    assert found.num_parameters == (1 << 20) + 1
    assert f"{sibling.parent} holds modules" in " ".join(one.what for one in found.assumptions)


def test_a_script_that_never_ends_meets_its_time_limit_whichever_start_it_is():
    with pytest.raises(Unsupported, match=r"endless.py was still running after 90 s: 0 optimizer steps.*endless.py:\d"):
        run(SCRIPTS / "endless.py", time_limit_s=90, spent_s=88)


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("raise ModuleNotFoundError('Requirement x not met')", InvalidSpec, "does not have: Requirement x not met"),
    ("x = 1\nraise ValueError('wrong\\n shape')", InvalidSpec, r"script.py:2: .* failed with ValueError: wrong shape"),
    ("import no_such_module", InvalidSpec, r"script.py:1: it imports no_such_module, .*: pip install no-such-module"),
    ("def f(:\n  pass", InvalidSpec, r"script.py:1: the script itself failed with SyntaxError"),
    ("raise SystemExit(3)", InvalidSpec, r"script.py exited with 3$"),
    ("import deepspeed", Unsupported, r"script.py:1: the script needs DeepSpeed, which is not installed and cannot"),
    ("class PipeliningMetadataError(Exception): ...\n\nraise PipeliningMetadataError", Unsupported,
     r"script.py:3: stages of a pipeline ask each other .* give PipelineStage input_args"),
    ("import torch\n\nraise RuntimeError('PyTorch is not linked with support for cuda devices')", Unsupported,
     r"script.py:3: the simulated card, not the script, stops here: RuntimeError"),
    ("import re\nre.nothing_of_it", InvalidSpec, r"script.py:2: Python \d.* wants another version of it: module 're'"),
    ("x = b''\nraise MemoryError", Unsupported, r"script.py:2: this machine's main memory, not the card's, is too"),
    ("from vramcast.errors import Unsupported\nraise Unsupported('not known')", Unsupported, "^not known$"),
])
def test_a_script_that_fails_is_one_sentence_with_its_line(own_folder, monkeypatch, text, kind, message):
    if "deepspeed" in text and importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is installed")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    said = []

    class Watched:
        def write(self, error="", kind=InvalidSpec, **_known):
            said.append((kind, error))

        def goes_on_after(self, error):
            return False

        finish = write

    child._run(ScriptJob(path=str(written(own_folder, text)), gpu=load_gpu("t4")), Watched())
    assert said[0][0] is kind and re.search(message, said[0][1])


@pytest.mark.parametrize(("file", "kind"), [(child.__file__, Unsupported), ("script.py", InvalidSpec)])
def test_a_defect_of_the_simulation_is_no_failure_of_the_script(file, kind):
    try:
        exec(compile("{}['key']", file, "exec"))
    except KeyError as error:
        found, said = child._failed(error, ScriptJob(path="script.py", gpu=load_gpu("t4")))
    assert found is kind and said.endswith("KeyError: 'key'")


def test_what_a_project_compiles_and_what_a_file_of_tensors_would_hold_is_asked_for(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("lib")
    (folder / "setup.py").write_text("Extension('model.utils.cython_boxes', ['boxes.pyx'])")
    monkeypatch.syspath_prepend(str(folder))
    job = ScriptJob(path="script.py", gpu=load_gpu("t4"))
    missing = ModuleNotFoundError("No module named 'model.utils.cython_boxes'", name="model.utils.cython_boxes")
    assert "/setup.py compiles: build that first" in child._failed(missing, job)[1]
    assert built_by(ModuleNotFoundError(name="model.utils.others")) == ""
    monkeypatch.setattr(Absent, "last", FileNotFoundError(2, "No such file", "train.pt"))
    unpacked = ValueError("not enough values to unpack (expected 2, got 0)")
    assert child._failed(unpacked, job)[1].startswith("it needs 'train.pt', which is not there")


def test_a_script_that_exits_is_told_with_what_it_printed(own_folder):
    script = written(own_folder, "import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n")
    with pytest.raises(InvalidSpec, match=r"with 2 after printing: .*arguments: --no"):
        run(script)


def test_an_error_of_torch_is_one_of_the_script(own_folder):
    script = written(own_folder, "import torch\ntorch.ones(2, device='cuda') @ torch.ones(3, device='cuda')\n")
    with pytest.raises(InvalidSpec, match=r"script.py:2: the script itself failed with RuntimeError: incon") as raised:
        run(script)
    assert raised.type is InvalidSpec


def test_a_script_that_meets_the_capacity_and_does_not_catch_it_ran_out_of_memory(own_folder):
    script = written(own_folder, "import torch\ntorch.zeros(1 << 30, device='cuda')\n")
    with pytest.raises(OutOfMemory, match=r"script.py:2: .*CUDA out of memory"):
        run(script, capacity_bytes=2 << 30, enforces_capacity=True)


@pytest.mark.parametrize(("text", "message"), [
    ("class Net(torch.nn.Linear):\n    pass\n", r"^nothing of .*script.py ran on the card; .* as script:build,"),
    (
        "weight = torch.ones(8, requires_grad=True)\noptimizer = torch.optim.SGD([weight], 0.1)\n"
        "weight.sum().backward()\noptimizer.step()\n",
        r"script.py computes on the CPU alone .*, as script:build$",
    ),
])
def test_a_script_that_takes_nothing_of_the_card_is_no_answer(own_folder, text, message):
    script = written(own_folder, f"import torch\n{text}")
    with pytest.raises(InvalidSpec, match=message):
        answered_script(ScriptJob(path=str(script), gpu=load_gpu("a100-sxm-80gb")))


OF_ONE_PROCESS = """
import os, torch
{}
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({}):
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    optimizer.step()
model(torch.randn(2, 8, device="cuda"))
print("no data")
"""


def test_an_answer_without_a_step_of_training_is_none_unless_asked_for(own_folder):
    job = ScriptJob(path=str(written(own_folder, OF_ONE_PROCESS.format("", 0))), gpu=load_gpu("t4"), is_sandboxed=True)
    with pytest.raises(Unsupported, match=r"without a step of an optimizer, after 1 forwards and 0 .* last: no data; "):
        answered_script(job)
    assert answered_script(replace(job, is_training=False)).answer.steps == 0


@pytest.mark.parametrize(("line", "is_told"), [
    ("assert 'LOCAL_RANK' not in os.environ", False), ("assert os.environ['LOCAL_RANK'] == '0'", True),
])
def test_one_process_has_the_variables_of_torchrun_only_if_it_needs_them(own_folder, line, is_told):
    found = run(written(own_folder, OF_ONE_PROCESS.format(line, 4)))
    assert found.steps == 3
    assert any(one.what == child.LAUNCHED for one in found.assumptions) == is_told


def test_a_module_file_is_offered_as_the_module_that_it_is(own_folder):
    written(own_folder, "import torch\n")
    job = ScriptJob(path=os.path.relpath(own_folder / "script.py", own_folder.parent), gpu=load_gpu("t4"))
    os.chdir(own_folder.parent)
    with pytest.raises(InvalidSpec, match=rf"as {re.escape(own_folder.name)}\.script:build"):
        answered_script(job)


def test_what_data_would_choose_is_said_with_how_to_give_it(own_folder):
    script = written(own_folder, (
        "import torch\nkept = torch.empty(1 << 20, device='cuda')\nmask = kept > 0\nkept[mask]\n"
    ))
    job = ScriptJob(path=str(script), gpu=load_gpu("t4"), assumptions=("no --gpu given: t4",))
    _, chosen, hint = answered_script(job).answer.assumptions
    assert chosen == "data decides which elements aten.index takes: all are counted as taken (script.py:4)"
    assert "--value script.py:4=..." in hint and "share" in hint
    given = answered_script(replace(job, values={"script.py:4": "0.5"})).answer
    assert given.assumptions == job.assumptions


def test_a_script_sees_its_arguments_its_folder_and_a_card_and_leaves_nothing(own_folder, monkeypatch):
    monkeypatch.setattr(script_parts, "_wait", OWN_PROCESS)
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
    with pytest.raises(InvalidSpec, match=r"script.py:3: .*(Unable to allocate|MemoryError)"):
        run(script, is_sandboxed=False, memory_limit_bytes=4 << 30)
    assert (own_folder / "written.txt").read_text() == "1"


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


MIB = 1 << 20
PLAIN = "stopped after 3 optimizer steps"


def steady(step_of, *, least=3):
    """The steps until a run is steady, and what is said of them."""
    repetition = Repetition()
    for number in count(1):
        repetition.add("optimizer", step_of(number))
        if number >= least and repetition.is_steady:
            return number, repetition.end_after(number)
    raise AssertionError


def test_equal_steps_are_enough_once_the_optimizer_has_its_states():
    requested = [200, 100, 100]
    assert steady(lambda number: Step(requested[number - 1] * MIB, 30 * MIB, (60 + (number > 1)) * MIB)) == (3, PLAIN)


def test_a_loss_printed_now_and_then_makes_no_difference():
    assert steady(lambda number: Step(100 * MIB + 512 * (number % 2), 30 * MIB, 60 * MIB)) == (3, PLAIN)


def test_steps_that_differ_go_on_until_a_while_brought_no_new_peak():
    sizes = [10, 20, 15, 40, 30, *[12, 18] * 10]
    steps, said = steady(lambda number: Step(sizes[number - 1] * MIB, 5 * MIB, max(sizes[:number]) * MIB))
    assert steps == 4 + QUIET_STEPS and f"the last {QUIET_STEPS} brought no new peak" in said


def test_what_every_step_leaves_behind_is_told():
    steps, said = steady(lambda number: Step(100 * MIB, (30 + 4 * number) * MIB, (60 + 4 * number) * MIB))
    assert steps <= QUIET_STEPS + 1 and "each of which leaves 4.00 MiB more allocated" in said


def test_a_run_that_rises_for_ever_ends_and_says_so():
    steps, said = steady(lambda number: Step(100 * MIB * number, 30 * MIB, 60 * MIB * number))
    assert steps == MOST_STEPS and "may take more" in said


def test_a_script_that_logs_what_nvidia_smi_says_finds_one(own_folder, monkeypatch):
    monkeypatch.setattr(child.shutil, "which", lambda name: None)
    script = written(own_folder, (
        "import subprocess, torch\nassert b'simulated' in subprocess.check_output(['nvidia-smi'])\n"
        "layer = torch.nn.Linear(64, 64).cuda()\nlayer(torch.ones(8, 64).cuda())\n"
    ))
    assert run(script).forwards == 1


def test_a_text_and_modules_given_in_place_of_files_run_as_files_do(own_folder):
    (own_folder / "helper.py").write_text("ROWS = 8\n")
    script = written(own_folder, "")
    text = (
        "from dataclasses import dataclass\nimport torch\nfrom helper import ROWS\n@dataclass\nclass Sizes:\n"
        "    rows: int = 4\nassert Sizes.__dataclass_fields__['rows'].type is int  # no future of our own\n"
        "torch.nn.Linear(64, 64).cuda()(torch.ones(ROWS, 64).cuda()).sum().backward()\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.ones(1).cuda())])\n"
    )
    found = run(script, text=text, texts={str(own_folder / "helper.py"): "ROWS = 3\n"}, is_training=False)
    assert found.parts.rows == 3 and found.parts.optimizers[0].sites[0].line == 9


def test_the_time_limit_does_not_interrupt_the_record(tmp_path):
    signal.setitimer(signal.ITIMER_REAL, 100)
    session = child.Session(load_gpu("t4"))
    with session.active():
        watch = Watch(ScriptJob(path="script.py", gpu=load_gpu("t4")), session, tmp_path)
        watch._loaders.backwards = 0  # as its start sets it, which changes torch for good
        watch.write()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0 and (tmp_path / script_parts.RECORD).is_file()
    (tmp_path / script_parts.RECORD).unlink()
