"""torchtitan's TOML: names of every version, what a command changes of it, what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.plans import named
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.errors import VramcastError

FILE = """
[job]
description = "a run"
[model]
name = "{model}"
flavor = "{flavor}"
[optimizer]
name = "AdamW"
lr = 3e-4
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def asked(folder: Path, text: str, *more: tuple[str, str], **options: Any) -> Job:
    paths = []
    for name, content in (("train.toml", text), *more):
        (folder / name).write_text(content, encoding="utf-8")
        paths.append(str(folder / name))
    return job_of({"gpus": "8xh100", "from": tuple(paths)} | named(options))


@pytest.mark.parametrize(("text", "version", "plan", "workload"), [
    ("[training]\nbatch_size = 2\nseq_len = 512\ndata_parallel_degree = -1\nfp8_linear = ''\n",
     (2024, 7, 16), {}, {"micro_batch": 2, "seq_len": 512}),
    ("[training]\nbatch_size = 2\ntensor_parallel_degree = 2\n[experimental]\npipeline_parallel_degree = 2\n",
     (2025, 3, 17), {"tp": 2, "pp": 2}, {"micro_batch": 2, "seq_len": 2048}),
    ("[training]\nlocal_batch_size = 4\ncompile = true\n[parallelism]\ntensor_parallel_degree = 2\n",
     (2025, 8, 19), {"tp": 2, "compile": True}, {"micro_batch": 4}),
    ("[training]\nlocal_batch_size = 4\ndtype = 'bfloat16'\n", (2026, 2, 22), {"precision": "bf16"}, {}),
    ("[compile]\nenable = true\ncomponents = ['loss']\n", (2026, 2, 22),
     {"compile": False, "loss": "compiled"}, {"micro_batch": 8}),
    ("[compile]\nenable = true\ncomponents = ['model']\n", (2026, 2, 22), {"compile": True, "loss": "eager"}, {}),
])
def test_names_of_every_version_are_read(
    tmp_path: Path, text: str, version: tuple[int, ...], plan: dict[str, Any], workload: dict[str, Any]
) -> None:
    job = asked(tmp_path, FILE.format(model="llama3", flavor="8B") + text)
    assert (job.engine, job.engine_version, job.model.name) == ("torchtitan", version, "llama-3.1-8b")
    assert {name: getattr(job.plan, name) for name in plan} == plan
    assert {name: getattr(job.workload, name) for name in workload} == workload
    assert job.plan.recompute == "selective"


def test_float8_is_what_a_converter_names(tmp_path: Path) -> None:
    text = FILE.format(model="llama3", flavor="8B").replace('"8B"', '"8B"\nconverters = ["float8"]')
    job = asked(tmp_path, text + "[float8]\nenable_fsdp_float8_all_gather = true\n")
    assert job.engine_options == {"float8": True, "float8_all_gather": True}
    assert not asked(tmp_path, FILE.format(model="llama3", flavor="8B") + "[quantize.linear.float8]\nemulate = false\n"
                     ).engine_options


def test_a_command_changes_the_file_beside_it(tmp_path: Path) -> None:
    command = ("run.sh", "NGPU=8 CONFIG_FILE=train.toml ./run_train.sh --training.seq_len 1024 "
                         "--parallelism.tensor_parallel_degree 2\n")
    job = asked(tmp_path, FILE.format(model="llama3", flavor="8B") + "[training]\nbatch_size = 2\n", command)
    assert (job.workload.seq_len, job.workload.micro_batch, job.plan.tp) == (1024, 2, 2)
    assert job.engine_version == (2025, 6, 4)


@pytest.mark.parametrize(("model", "flavor", "text", "message"), [
    ("llama3", "debugmodel", "", "is no network known here; give the model"),
    ("flux", "flux-dev", "[encoder]\nt5 = 'x'\n", "is a diffusion network"),
    ("llama3", "8B", "[compile]\nenable_async_tensor_parallel = true\n", "enable_async_tensor_parallel: may change"),
    ("llama3", "8B", "[training]\nmystery = 1\n", "training.mystery"),
    ("llama3", "8B", "[training\n", "not TOML"),
])
def test_what_may_change_the_answer_is_named(
    tmp_path: Path, model: str, flavor: str, text: str, message: str
) -> None:
    with pytest.raises(VramcastError, match=message):
        asked(tmp_path, FILE.format(model=model, flavor=flavor) + text)


def test_every_second_layer_run_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VramcastError, match="runs one layer of 2 again"):
        asked(tmp_path, FILE.format(model="llama3", flavor="8B").replace('"op"', '"2"'))
