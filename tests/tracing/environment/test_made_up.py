"""Data that is not there and stands in, once a script has ended for want of it."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec
from vramcast.tracing.script_parts import run_script

pytestmark = pytest.mark.usefixtures("forked")
STEP = """
import torch
weight = torch.nn.Linear(8, 8, device="cuda")
weight(torch.zeros(4, 8, device="cuda")).sum().backward()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Traces a script in a folder where nothing else is; nothing is written there."""
    monkeypatch.chdir(tmp_path)

    def ran(text, **asked):
        script = tmp_path / "script.py"
        script.write_text(text + STEP)
        job = ScriptJob(path=str(script), gpu=load_gpu("t4"), is_sandboxed=True, time_limit_s=600, **asked)
        found = run_script(job)
        assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
        return [str(one.what) for one in found.assumptions]

    return ran


IMAGES = """
import glob, json, os, re
from pathlib import Path
from PIL import Image
["nothing", *Path("styles").glob("*")][1]  # which looks whether there is such a folder, and lists nothing
names = sorted(os.listdir("photos"))
if not names:
    raise RuntimeError("no images found in photos")
assert all(name.endswith(".png") and re.match(r"\\d+_\\d+", name) for name in names) and len(names) == 512
assert Image.open(os.path.join("photos", names[9])).size == (64, 64)
if not os.path.isdir("/coco-of-nobody"):
    raise ValueError("the dataset /coco-of-nobody does not exist")
known = json.load(open("/coco-of-nobody/instances_train2017.json"))
first = known["images"][known["annotations"][20]["image_id"]]
assert Image.open("/coco-of-nobody/train2017/" + first["file_name"]).size == (64, 64)
assert Image.open("/coco-of-nobody/masks/1.png").mode == "L"
with open(os.open("script.py", os.O_RDONLY)) as file:  # a descriptor is no path
    assert file.read()
"""


@pytest.mark.skipif(not importlib.util.find_spec("PIL"), reason="needs Pillow")
def test_folders_of_images_and_what_is_opened_below_them_stand_in(run):
    said = "\n".join(run(IMAGES, data={"image": 64}))
    assert "photos: there is no such folder; 512 files stand in" in said and "/coco-of-nobody" in said


FETCHED = """
import os
from PIL import Image
assert os.path.exists("list.txt")
if not os.path.exists("fetched/images"):
    raise OSError("Max retries exceeded")
assert len(os.listdir("fetched/images/train")) == 512
"""


@pytest.mark.skipif(not importlib.util.find_spec("PIL"), reason="needs Pillow")
def test_what_was_looked_for_before_it_would_be_fetched_stands_in(run):
    said = "\\n".join(run(FETCHED))
    assert "list.txt: there is no such file" in said and "fetched/images: there is no such folder" in said


ROWS = """
import json, wave
rows = json.load(open("alpaca.json"))
assert {"instruction", "output"} <= set(rows[0]) and len(rows) == 7, rows[0]
text = open("input.txt").read()
assert len(set(text.split())) == 500 and len(set(text)) == 65 and [row["instruction"] + row["output"] for row in rows]
assert wave.open(open("sounds/one.wav", "rb")).getframerate() == 22050
"""


def test_rows_texts_and_sounds_stand_in(run):
    said = "\n".join(run(ROWS, data={"rows": 7, "vocab": 500}))
    assert "65 different ones and 500 different words" in said
    assert "7 rows of" in said and "input.txt: there is no such file" in said and "sounds" in said


LISTS = """
import json, os, zipfile
from PIL import Image
with open("voc/sets/train.txt") as file:
    for line in file.read().splitlines():
        assert os.path.isfile("voc/images/" + line + ".jpg")
        mask = "voc/SegmentationClass/" + line + ".png"
        assert os.path.isfile(mask)
assert Image.open(mask).mode == "L"
vocabulary = {word for line in open("wikitext-2/train.txt") for word in line.split()}
assert len(vocabulary) == 33_278
if not os.path.exists("cifar10-32x32.zip"):
    raise FileNotFoundError(2, "No such file", "cifar10-32x32.zip")
with zipfile.ZipFile(open("cifar10-32x32.zip", "rb")) as archive:
    labels = dict(json.loads(archive.read("dataset.json"))["labels"])
    assert max(labels.values()) == 9 and Image.open(archive.open(next(iter(labels)))).size == (32, 32)
if not os.path.isdir("photos"):
    raise RuntimeError("dataset photos not found")
assert all(os.path.relpath(entry.path, "photos") == entry.name for entry in os.scandir("photos"))
"""


@pytest.mark.skipif(not importlib.util.find_spec("PIL"), reason="needs Pillow")
def test_lists_of_images_and_sizes_that_names_say_stand_in(run):
    said = "\n".join(run(LISTS, data={"image": 32}))
    assert "train.txt: there is no such file; a list of 512 names stands in" in said


def test_what_a_stand_in_is_not_is_never_blamed_on_the_script(run):
    with pytest.raises(InvalidSpec, match=r"data are not there, and what stands in for them \(clicks\.txt\) is not as"):
        run("int(open('clicks.txt').readline())\n")


OTHERS = """
import gzip, io, json, os, zipfile
from pathlib import Path
import numpy as np
import torch
assert len(gzip.open("data/enwik8.gz").read(int(95e6))) == 95_000_000
assert open("ETT-small/ETTh1.csv").readline() == "date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\\n"
folder = Path("checkpoints/meta-llama/Llama-2-7b-hf")
if not folder.is_dir():
    raise NotADirectoryError(f"The checkpoint directory does not exist: {folder}")
params = json.load(open(folder / "params.json"))
assert (params["dim"], params["n_layers"]) == (4096, 32)
module = torch.nn.Linear(4, 4, device="meta")
module.load_state_dict(torch.load(folder / "consolidated.00.pth"), assign=True)
module.cuda()
tokens = [np.load(os.path.join("shards", name)) for name in os.listdir("shards") if "val" in name]
assert tokens[0].dtype == "uint16"
assert os.path.getsize("speakers/p1/one.wav") > 400_000 and io.FileIO("speakers/p2/two.wav").read(4) == b"RIFF"
if not os.path.exists("splits/train.txt"):
    raise ValueError("no such split")
"""


def test_published_tables_repositories_and_tokens_stand_in(run):
    said = "\n".join(run(OTHERS))
    assert "17,420 rows of 7 zeros" in said and "the files of meta-llama/llama-2-7b-hf stand in" in said
    assert "speakers: files that are opened there" in said and "splits/train.txt: there is no such file" in said


OLDER = """
import collections
import numpy as np
import torch
from torch._six import container_abcs, inf
assert collections.Iterable is container_abcs.Iterable and np.float is float and np.Inf == inf
assert not hasattr(np, "nothing") and not hasattr(collections, "nothing")
scores, mask = torch.zeros(4, 4, device="cuda", requires_grad=True), torch.ones(4, 4, dtype=torch.uint8)
scores.masked_fill(mask.cuda(), -1e9).sum().backward()
assert torch.zeros(4, 4).masked_fill(mask, 2.0).sum() == 32 == torch.where(mask, mask + 1, mask).sum()
class Endless(torch.utils.data.Sampler):
    def __init__(self, data):
        super().__init__(data)
Endless([1])
assert torch.stft(torch.zeros(2, 100, device="cuda"), 16, window=torch.ones(16, device="cuda")).shape == (2, 9, 26, 2)
"""


def test_names_that_packages_removed_answer_and_are_told(run):
    said = "\n".join(run(OLDER))
    assert all(f"has no {name} any more" in said for name in ("container_abcs", "float", "Iterable"))
    assert "return_complex" in said and "aten.masked_fill takes masks of bool only now" in said and "Sampler" in said


LARGE = """
import torch
array = torch.zeros(1 << 25, device="cuda").cpu().numpy()  # more than is kept with data on the host
assert array.shape == (1 << 25,)
"""


def test_large_arrays_of_unknown_values_are_real(run):
    assert run(LARGE)


def test_a_check_for_a_package_is_no_failure_of_the_script(run):
    with pytest.raises(InvalidSpec, match="asks for a package which this Python does not have"):
        run("raise ImportError('to use 8-bit Adam, please pip install nothing_of_that_name')\n")


WRITTEN = """
import numpy, torch
numpy.load("made.npy")
"""


def test_what_another_script_of_the_project_writes_is_said(tmp_path, run):
    (tmp_path / "make.py").write_text("numpy.save('made.npy', numpy.zeros(3))\n")
    with pytest.raises(InvalidSpec, match=r"make\.py beside it writes"):
        run(WRITTEN)


def test_a_script_with_an_answer_to_a_missing_file_keeps_it(run):
    said = run("try:\n    open('words.txt')\nexcept FileNotFoundError:\n    pass\n")
    assert not any("words.txt" in one for one in said)


EXITS = """
import sys
try:
    open("words.txt").read()
except FileNotFoundError as error:
    sys.exit(1)
"""


def test_what_a_script_exits_for_want_of_stands_in(run):
    assert any("words.txt" in one for one in run(EXITS))


@pytest.mark.parametrize("text", [
    "import torch\ntorch.load('data.pt')[3:, :-1]\n",
    "import json\nsizes = json.load(open('params.json'))['dim']\n", "open('config.yaml')\n", "open('data.pkl', 'rb')\n",
])
def test_what_decides_sizes_and_what_nobody_knows_is_asked_for(run, text):
    with pytest.raises(InvalidSpec, match="which is not there"):
        run(text)


POOL = """
import multiprocessing
with multiprocessing.Pool(3) as pool:
    assert list(pool.imap(abs, [-1, 2])) == pool.map(abs, [1, -2]) == [1, 2]
    assert pool.starmap_async(max, [(1, 3)]).get() == [3] and pool.apply(abs, (-4,)) == 4
with multiprocessing.get_context("fork").Pool() as pool:
    assert pool.map_async(abs, [-5]).get() == [5]
"""


def test_a_pool_of_processes_works_in_the_process_itself(run):
    assert any("pool of processes" in one for one in run(POOL))
