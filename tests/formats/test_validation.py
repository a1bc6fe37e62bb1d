"""Emitted files through the parsers of their own tools, where they are installed: `pip install .[validate]`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.formats.plans import files, serving, training, write_all
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.formats.files import File, read_back
from vramcast.formats.lines import words_of

if importlib.util.find_spec("torchvision"):  # of another build of PyTorch, where traces are tested
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    prepare_torchvision()

TRAINING: dict[str, Job] = {
    "zero3": training(
        "llama-3.1-8b",
        "2x8xh100",
        engine="deepspeed",
        zero="3",
        recompute="full",
        offload_optimizer="cpu",
        offload_parameters="nvme",
        micro_batch=2,
        grad_accum=4,
    ),
    "zero2": training(
        "qwen3-8b", "4xa100", engine="deepspeed", zero="2", precision="mixed-fp16", optimizer="adamw-8bit"
    ),
    "zero1": training(
        "gpt2", "2xt4", engine="deepspeed", zero="1", precision="fp32", optimizer="adam", compile=True, seq_len=1024
    ),
    "trainer": training(
        "llama-3.1-8b", "8xa100", engine="huggingface", recompute="full", peft="lora", base_weights="nf4"
    ),
    "liger": training("qwen3-0.6b", "h100", engine="huggingface", optimizer="adafactor", loss="fused_linear"),
    "fsdp1": training("llama-3.2-1b", "4xa10", engine="litgpt", zero="3"),
    "ddp": training("qwen3-0.6b", "8xh100", engine="pytorch", precision="amp-fp16"),
    "megatron": training("llama-3.1-70b", "8x8xh100", engine="megatron", tp=8, pp=4, grad_accum=8, recompute="full"),
    "fsdp2": training("llama-3.1-8b", "2x8xh100", engine="torchtitan", shard_group=8, recompute="full"),
}
SERVING: dict[str, ServeJob] = {
    engine: serving("llama-3.1-8b", "2xl40s", engine=engine, context="16k")
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
}
JOBS: dict[str, Job | ServeJob] = {**TRAINING, **SERVING}
NAMES = {key: files(job).keys() for key, job in JOBS.items()}


def having(name: str) -> list[Any]:
    """Jobs whose plan has a file of that name, as parameters."""
    return [pytest.param(job, id=key) for key, job in JOBS.items() if name in NAMES[key]]


def document(file: File, index: int = 0) -> Any:
    return list(yaml.safe_load_all(file.text))[index]


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config

    return config


@pytest.mark.parametrize("job", having("ds_config.json"))
def test_deepspeed_takes_its_file(job: Job, deepspeed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(deepspeed.dist, "get_world_size", lambda *_, **__: job.data_parallel)
    values = read_back(files(job)["ds_config.json"])
    read = deepspeed.DeepSpeedConfig(values)
    assert read.train_batch_size == job.workload.micro_batch * job.workload.grad_accum * job.data_parallel
    assert read.zero_config.stage == values["zero_optimization"]["stage"]


@pytest.mark.parametrize("job", having("accelerate.yaml"))
def test_accelerate_takes_its_file(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    write_all(files(job), tmp_path)
    monkeypatch.chdir(tmp_path)
    read = config_args.ClusterConfig.from_yaml_file("accelerate.yaml")
    assert (read.num_machines, read.num_processes) == (job.cluster.num_nodes, job.cluster.count)


@pytest.mark.parametrize("job", having("training_args.yaml"))
def test_transformers_takes_its_arguments(job: Job) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    values = read_back(files(job)["training_args.yaml"]) | {"use_cpu": True}
    for name in ("tf32", "deepspeed"):  # asks for a GPU, and for the other file where it runs
        values.pop(name, None)
    (read,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_dict(values)
    assert read.per_device_train_batch_size == job.workload.micro_batch
    assert read.gradient_checkpointing == (job.plan.recompute == "full")


@pytest.mark.parametrize("job", having("pytorchjob.yaml"))
def test_kubeflow_takes_pytorchjobs(job: Job) -> None:
    models, client = pytest.importorskip("kubeflow.training.models"), pytest.importorskip("kubernetes.client")
    assert_typed(client, document(files(job)["pytorchjob.yaml"], 1), models.KubeflowOrgV1PyTorchJob, models)


@pytest.mark.parametrize("job", having("trainjob.yaml"))
def test_kubeflow_takes_trainjobs(job: Job) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    values = document(files(job)["trainjob.yaml"], 1)
    assert models.TrainerV1alpha1TrainJob.from_dict(values).to_dict() == values


@pytest.mark.parametrize("job", having("deployment.yaml"))
def test_kubernetes_takes_deployments_and_services(job: ServeJob) -> None:
    client = pytest.importorskip("kubernetes.client")
    for index, name in enumerate(("V1ConfigMap", "V1Deployment", "V1Service")):
        assert_typed(client, document(files(job)["deployment.yaml"], index), getattr(client, name), client)


def assert_typed(client: Any, values: dict[str, Any], model: Any, models: Any) -> None:
    """The typed models read the values and write the same: what they do not know they would drop."""
    import kubernetes.client.models as known

    for name in dir(models):
        if isinstance(getattr(models, name), type) and not hasattr(known, name):
            setattr(known, name, getattr(models, name))

    class Response:
        data = json.dumps(values)

    api = client.ApiClient()
    assert api.sanitize_for_serialization(api.deserialize(Response, model)) == values


@pytest.mark.parametrize("job", having("pai_dlc_job.json"))
def test_the_pai_sdk_keeps_every_name(job: Job) -> None:
    models = pytest.importorskip("alibabacloud_pai_dlc20201203.models")
    values = read_back(files(job)["pai_dlc_job.json"])
    assert without_nothing(models.CreateJobRequest().from_map(values).to_map()) == values


def without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nothing(inner) for name, inner in value.items() if inner not in (None, [])}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("job", having("skypilot.yaml"))
def test_skypilot_takes_its_tasks(job: Job | ServeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sky = pytest.importorskip("sky")
    monkeypatch.chdir(tmp_path)
    task = sky.Task.from_yaml_config(read_back(files(job)["skypilot.yaml"]))
    assert task.num_nodes == job.cluster.num_nodes


def test_torchtitan_takes_its_command_line(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    found = files(TRAINING["fsdp2"])
    write_all(found, tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.'); from torchtitan.config import ConfigManager; "
        "print(ConfigManager().parse_args(sys.argv[1:]).parallelism.data_parallel_replicate_degree)"
    )
    words = words_of(found["run.sh"].text, "ARGS")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"


PYTORCH: dict[str, Job] = {
    "one": training("qwen3-0.6b", "h100", engine="pytorch", precision="amp-bf16", recompute="full", grad_accum=2),
    "partly": training("qwen3-0.6b", "h100", engine="pytorch", precision="bf16", recompute="full", recompute_layers=1),
    "eager": training(
        "qwen3-0.6b", "h100", engine="pytorch", precision="fp32", attention="eager", optimizer="sgd-momentum"
    ),
    "ddp": training("qwen3-0.6b", "2xh100", engine="pytorch", precision="amp-fp16", grad_accum=2),
    "fsdp2": training("qwen3-0.6b", "2xh100", engine="torchtitan", recompute="full"),
    "hsdp": training("qwen3-0.6b", "2xh100", engine="torchtitan", shard_group=1, loss="eager"),
    "fsdp1": training("qwen3-0.6b", "2xh100", engine="pytorch", zero="3", sharded_by="fsdp1", recompute="full"),
    "autocast": training("qwen3-0.6b", "2xh100", engine="pytorch", zero="3", sharded_by="fsdp2"),
}

# One process for all of them imports the libraries; of it each rank of each job is a fork, as torchrun would start it.
TOY = """
import json, os, socket, sys, traceback, torch, transformers
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor
from importlib.util import find_spec
if find_spec('torchvision'):
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision
    prepare_torchvision()
from transformers.models.qwen3 import modeling_qwen3
torch.set_num_threads(1)

def train(key, dtype):
    sys.path.insert(0, os.path.abspath(key))
    import train
    train.SEQ_LEN, train.MICRO_BATCH = 16, 2
    torch.manual_seed(0)
    config = transformers.Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        attn_implementation='eager' if key == 'eager' else 'sdpa')
    losses = train.main(transformers.Qwen3ForCausalLM(config).to(getattr(torch, dtype)), steps=2, device='cpu')
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses), losses
    train.finish()

for key, (dtype, count) in json.loads(sys.argv[1]).items():
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = str(free.getsockname()[1])
    ranks = []
    for rank in map(str, range(count)):
        if not (process := os.fork()):
            if count > 1:
                os.environ |= {'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': str(count), 'MASTER_PORT': port,
                               'MASTER_ADDR': '127.0.0.1'}
            try:
                train(key, dtype)
                said = ''
            except BaseException:
                said = traceback.format_exc()
            with open(f'{key}.{rank}', 'w') as file:
                file.write(said)
            os._exit(0)  # gloo's threads may abort a process that ends by itself
        ranks.append(process)
    for process in ranks:
        os.waitpid(process, 0)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each job and rank: how its script failed, or nothing."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("trained")
    asked = {}
    for key, job in PYTORCH.items():
        (folder / key).mkdir()
        write_all(files(job, "pytorch"), folder / key)
        asked[key] = ("bfloat16" if job.plan.precision == "bf16" else "float32", job.cluster.count)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", TOY, json.dumps(asked)], cwd=folder, timeout=300, check=True, env=environment)
    return folder


@pytest.mark.parametrize("key", PYTORCH)
def test_the_pytorch_script_trains_a_small_model_on_cpu(key: str, trained: Path) -> None:
    ranks = range(PYTORCH[key].cluster.count)
    assert {path.name: path.read_text() for path in trained.glob(f"{key}.*")} == {f"{key}.{rank}": "" for rank in ranks}
