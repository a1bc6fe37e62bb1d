"""Commands inside what starts them: containers, manifests, tasks of clouds, jobs of Slurm; cards, secrets."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.api import job_of, serve_job_of
from vramcast.catalogue.clusters import cluster_of
from vramcast.cli.main import group
from vramcast.errors import VramcastError
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs, Invocation, configs_in
from vramcast.formats.write import write_configs

SECRET = "hf_" + "a1b2c3d4e5f6g7h8"

DEPLOYMENT = """
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {token: SECRET}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 3
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: proxy
        image: nginx
        command: [nginx, -g, daemon off]
      - name: vllm
        image: vllm/vllm-openai:v0.8.5
        args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size=2, --max-model-len, $(LENGTH)]
        env: [{name: HF_TOKEN, value: SECRET}, {name: LENGTH, value: "8192"}]
        resources: {limits: {nvidia.com/gpu: "2"}}
"""

SHELL_IN_A_POD = """
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  containers:
  - image: lmsysorg/sglang:v0.5.6
    command: [bash, -c]
    args: ["TP=4; python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp $TP"]
    resources: {limits: {nvidia.com/gpu: 4}}
"""

GROUP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
        containers:
        - image: vllm/vllm-openai:v0.10.0
          command: [sh, -c, "bash start.sh leader --size=$(LWS_GROUP_SIZE); vllm serve Qwen/Qwen3-32B -tp 8 -pp 2"]
          resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec: {containers: [{image: vllm/vllm-openai:v0.10.0, command: [bash, start.sh, worker]}]}
"""

KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    nodeSelector: {node.kubernetes.io/instance-type: g5.8xlarge}
    model:
      modelFormat: {name: huggingface}
      storageUri: hf://Qwen/Qwen3-8B
      args: [--model_name=llama, --max_model_len=4096, --model_dir=/mnt/models]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""

LLM_SERVICE = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: qwen}
spec:
  model: {uri: "hf://Qwen/Qwen3-8B", name: q}
  parallelism: {tensor: 2}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 4096"}]
      resources: {limits: {nvidia.com/gpu: "2"}}
"""

COMPOSE = """
services:
  ui: {image: webui, command: [npm, start], environment: {API_KEY: SECRET}}
  engine:
    image: vllm/vllm-openai:v0.8.5
    command: --model ${MODEL:-Qwen/Qwen3-8B} --max-model-len 4096
    environment: [HUGGING_FACE_HUB_TOKEN=SECRET]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}
"""

SKYPILOT = """
resources: {accelerators: {L4:1, A10G:1}}
envs: {MODEL: Qwen/Qwen3-8B, HF_TOKEN: SECRET}
setup: pip install vllm==0.8.5
run: |
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 4096 | tee api.log &
"""

DSTACK = """
type: service
image: vllm/vllm-openai:v0.8.5
env: [HF_TOKEN=SECRET, MODEL=Qwen/Qwen3-8B]
commands:
  - vllm serve $MODEL --tensor-parallel-size $DSTACK_GPUS_NUM --max-model-len 4096
resources: {gpu: "A100:80GB:2"}
"""
GROUPS = DSTACK.replace("resources", "replicas: [{resources: {gpu: 80GB}}, {resources: {gpu: L4}}]\nx")

RAY = """
applications:
- import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: q, model_source: Qwen/Qwen3-32B}
      accelerator_type: A100-80G
      engine_kwargs: {tensor_parallel_size: 2, max_model_len: 8192, enforce_eager: true}
      runtime_env: {env_vars: {HF_TOKEN: SECRET}}
"""

EAS = json.dumps({
    "metadata": {"name": "q", "instance": 1},
    "cloud": {"computing": {"instances": [{"type": "ecs.gn7i-c32g1.16xlarge"}]}},
    "containers": [{
        "image": "pai-eas/vllm:0.11.2", "env": [{"name": "API_KEY", "value": SECRET}],
        "script": "vllm serve Qwen/Qwen3-8B -tp $(nvidia-smi --query-gpu=index --format=csv | wc -l)",
    }],
})

DLC = json.dumps({
    "JobType": "PyTorchJob", "Envs": {"SECRET_KEY": SECRET},
    "JobSpecs": [{"PodCount": 2, "ResourceConfig": {"GPU": "8", "GPUType": "NVIDIA-H100-80GB-HBM3"}}],
    "UserCommand": "torchrun --nnodes $WORLD_SIZE --nproc_per_node $NPROC_PER_NODE pretrain_gpt.py --num-layers 32 "
                   "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
                   "--micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 2 --vocab-size 32000 "
                   "--bf16",
})

SLURM = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:h100:4
srun vllm serve Qwen/Qwen3-32B -tp $SLURM_GPUS_ON_NODE --max-model-len 8192
"""

DOCKER = ("docker run --rm -it --gpus '\"device=0,1\"' -v ~/.cache:/root/.cache --env HF_TOKEN=SECRET -p 8000:8000 "
          "--ipc=host vllm/vllm-openai:v0.9.0 --model Qwen/Qwen3-32B -tp 2\n")

HERE = "cat <<EOF | kubectl apply -f -\n" + DEPLOYMENT.replace("$(LENGTH)", "8192") + "EOF\n"


def read(tmp_path: Path, name: str, text: str, options: dict[str, Any] | None = None, **started: Any) -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(text.replace("SECRET", SECRET))
    command = "train" if "pretrain" in text else "serve"
    merged, said = with_configs(
        options or {}, Configs((path,), given=Invocation(**started)), command=command)
    assert SECRET not in str((merged, said))
    return merged


CASES = [
    ("d.yaml", DEPLOYMENT, "2xh100-sxm-80gb", "vllm@0.8.5", {"tp": 2, "context": 8192, "model": "Qwen/Qwen3-32B"}),
    ("p.yaml", SHELL_IN_A_POD, None, "sglang@0.5.6", {"tp": 4}),
    ("g.yaml", GROUP, "2x8xh100-sxm-80gb", "vllm@0.10.0", {"tp": 8, "pp": 2}),
    ("k.yaml", KSERVE, "aws:g5.8xlarge", "vllm", {"model": "Qwen/Qwen3-8B", "context": 4096}),
    ("l.yaml", LLM_SERVICE, None, "vllm", {"model": "Qwen/Qwen3-8B", "tp": 2, "context": 4096}),
    ("compose.yaml", COMPOSE, None, "vllm@0.8.5", {"model": "Qwen/Qwen3-8B", "context": 4096}),
    ("ids.yaml", COMPOSE.replace("count: 1", "device_ids: ['0,1']").replace("4096", "4096 --tensor-parallel-size 2"),
     None, "vllm@0.8.5", {"tp": 2}),
    ("part.yaml", COMPOSE.partition("start]")[2].partition("\n")[2], None, "vllm@0.8.5", {"context": 4096}),
    ("one.yaml", "image: vllm/vllm-openai:v0.8.5\ncommand: --model Qwen/Qwen3-8B\n", None, "vllm@0.8.5", {"tp": 1}),
    ("full.sh", "docker run --gpus all ghcr.io/ggml-org/llama.cpp:full-cuda-b7000 --server -c 4096 "
     "-hf Qwen/Qwen3-8B-GGUF:Q4_K_M", None, "llama.cpp@7000", {"weights": "q4_k_m", "context": 4096}),
    ("sky.yaml", SKYPILOT.replace("{L4:1, A10G:1}", "A10G:1"), "1xa10g", "vllm@0.8.5", {"tp": 1}),
    ("dstack.yml", DSTACK, "2xa100-sxm4-80gb", "vllm@0.8.5", {"model": "Qwen/Qwen3-8B", "tp": 2}),
    (".dstack.yml", DSTACK.replace("A100:80GB:2", "24GB..:4"), "4x24gb", "vllm@0.8.5", {"tp": 4}),
    ("ray.yaml", RAY, "2xa100-sxm4-80gb", "vllm", {"model": "Qwen/Qwen3-32B", "tp": 2, "graphs": False}),
    ("eas.json", EAS, "alibaba:ecs.gn7i-c32g1.16xlarge", "vllm", {"model": "Qwen/Qwen3-8B"}),
    ("job.json", DLC, "2x8xh100-sxm-80gb", "megatron", {"tp": 2, "seq-len": 4096}),
    ("run.sh", SLURM, "4xh100-sxm-80gb", "vllm", {"tp": 4}),
    ("docker.sh", DOCKER, None, "vllm@0.9.0", {"tp": 2}),
    ("apply.sh", HERE, "2xh100-sxm-80gb", "vllm@0.8.5", {"tp": 2, "context": 8192}),
]


@pytest.mark.parametrize(("name", "text", "gpus", "engine", "options"), CASES, ids=[case[0] for case in CASES])
def test_the_command_inside_is_answered_on_the_cards_that_are_named(
    tmp_path: Path, name: str, text: str, gpus: str | None, engine: str, options: dict[str, Any]
) -> None:
    found = read(tmp_path, name, text)
    assert found.get("gpus") == gpus
    assert str(found["engine"]).startswith(engine)
    assert {option: found.get(option) for option in options} == options


@pytest.mark.parametrize(("name", "text", "said"), [
    ("compose.yaml", COMPOSE, "MODEL hold what the file or --env says; no .env file is read"),
    ("docker.sh", DOCKER.replace("--rm", "--rm --env-file .env"), "--env-file .env is not read"),
])
def test_files_of_variables_are_not_read_and_that_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    _, found = with_configs({}, Configs((tmp_path / name,)), command="serve")
    assert any(said in str(one) for one in found.assumptions)


def test_configuration_maps_of_the_file_are_read(tmp_path: Path) -> None:
    maps = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  LENGTH: "4096"
  conf.yaml: |
    max-num-seqs: 32
---"""
    from_map = DEPLOYMENT.replace("- name: vllm", "- envFrom: [{configMapRef: {name: settings}}]\n        name: vllm")
    text = maps + from_map.replace(', {name: LENGTH, value: "8192"}', "").replace(
        "$(LENGTH)", "$(LENGTH), --config, /c/conf.yaml")
    found = read(tmp_path, "d.yaml", text)
    assert (found["context"], found["max-sequences"]) == (4096, 32)
    with pytest.raises(VramcastError, match="envFrom settings: is a file of its own"):
        read(tmp_path, "e.yaml", from_map)


@pytest.mark.parametrize(("name", "text", "sentence"), [
    ("d.yaml", DEPLOYMENT.replace('"2"', '"1"'), "has 1 GPUs, its command takes 2; correct one, or give --gpus"),
    ("sky.yaml", SKYPILOT, "accelerators: is L4:1 or A10G:1; give --gpus"),
    (".dstack.yml", DSTACK.replace("A100:80GB:2", "L4,A10G:1"), "gpu: is L4 or A10G; give --gpus"),
    (".dstack.yml", DSTACK.replace("A100:80GB:2", "v5litepod-4"), "gpu v5litepod-4: runs on no GPU"),
    (".dstack.yml", DSTACK.replace("A100:80GB:2", "1..8"), "${DSTACK_GPUS_NUM} is not set in the file"),
    (".dstack.yml", GROUPS, "starts the same on 1x80gb and 1xl4; give --gpus"),
    (".dstack.yml", "type: dev-environment\nresources: {gpu: 24GB}\n", "no container of this dstack file"),
    ("d.yaml", DEPLOYMENT.replace("nvidia.com/gpu: ", "huawei.com/Ascend910B3: "), "runs on no GPU"),
    ("d.yaml", DEPLOYMENT.replace('limits: {nvidia.com/gpu: "2"}', "claims: [{name: a}]"), "resources.claims: ask"),
    ("k.yaml", KSERVE.replace("args:", "args: [--task, fill_mask]\n      x:"), "--task: runs Transformers"),
    ("d.yaml", DEPLOYMENT + DEPLOYMENT.replace("Qwen3-32B", "Qwen3-8B"), "holds 2 different commands"),
    ("d.yaml", DEPLOYMENT.replace("name: server", "name: {{ .Values.name }}"), "is a template of Helm"),
    ("values.yaml", "servingEngineSpec: {modelSpec: []}", "Helm (values of a chart"),
    ("d.yaml", DEPLOYMENT.replace("nvidia.com/gpu: ", "google.com/tpu: "), "runs on no GPU"),
    ("d.yaml", DEPLOYMENT.replace("NVIDIA-H100-80GB-HBM3", "quantum-9"), "gpu.product quantum-9: names no card"),
    ("l.yaml", LLM_SERVICE.replace("  template:", "  prefill: {}\n  template:"), "prefill: serves prompts"),
    ("l.yaml", LLM_SERVICE.replace("  template:", "  kvCache: 1\n  template:"), "spec.kvCache: may change"),
    ("d.yaml", DEPLOYMENT.replace("args:", "command: [sleep]\n        x:"), "no command that starts vllm"),
    ("compose.yaml", COMPOSE.replace(":-Qwen/Qwen3-8B", ""), "${MODEL} is not set in the file; give --env"),
    ("a.sh", "text-generation-launcher --model-id x/Mistral-7B --quantize awq", "no checkpoint in awq"),
    ("a.sh", "source common.sh\nvllm serve Qwen/Qwen3-8B\n", "source 'common.sh': is a file of its own"),
    ("a.sh", "for m in a/b c/d; do vllm serve $m; done", "keep one of them, as with --env m=a/b"),
])
def test_what_is_not_one_answer_is_refused_by_its_name(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(VramcastError) as error:
        read(tmp_path, name, text)
    assert sentence in str(error.value)
    assert SECRET not in str(error.value)


SIZES = """MODEL_SIZE=$1
case $MODEL_SIZE in
  7B) MODEL=Qwen/Qwen3-8B;;
  32B) MODEL=Qwen/Qwen3-32B;;
esac
vllm serve $MODEL -tp ${2:-1}
"""


def test_arguments_and_environment_decide_branches(tmp_path: Path) -> None:
    with pytest.raises(VramcastError, match=r"model: \$MODEL_SIZE decides; give --env MODEL_SIZE=... or --args"):
        read(tmp_path, "a.sh", SIZES)
    assert read(tmp_path, "a.sh", SIZES, arguments=("32B", "2"))["model"] == "Qwen/Qwen3-32B"
    assert read(tmp_path, "a.sh", SIZES, arguments=("32B", "2"))["tp"] == 2
    assert read(tmp_path, "a.sh", SIZES, environment={"MODEL_SIZE": "7B"})["model"] == "Qwen/Qwen3-8B"


def test_scripts_beside_are_read_where_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("TP=4\n")
    main = tmp_path / "main.sh"
    main.write_text("source $(dirname $0)/common.sh\nvllm serve Qwen/Qwen3-8B -tp $TP\n")
    found, _ = with_configs({}, Configs((main, tmp_path / "common.sh")), command="serve")
    assert found["tp"] == 4


def test_a_file_that_a_script_writes_is_read_where_a_command_names_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    written = {"base_model": "Qwen/Qwen3-8B", "sequence_len": "$LEN", "adapter": "lora", "datasets": "[]",
               "micro_batch_size": 1, "lora_r": 8, "lora_target_linear": "true", "optimizer": "adamw_torch"}
    lines = "".join(f"{name}: {value}\n" for name, value in written.items())
    script.write_text(f"LEN=2048\ncat > conf.yaml <<EOF\n{lines}EOF\naxolotl train conf.yaml\n")
    found, _ = with_configs({}, Configs((script,)), command="train")
    assert (found["seq-len"], found["peft"], found["model"]) == (2048, "lora", "Qwen/Qwen3-8B")


def test_secrets_of_the_environment_are_forgotten() -> None:
    found = configs_in({"from": "x.sh", "env": ("HF_TOKEN=" + SECRET, "CUDA_VISIBLE_DEVICES=0", "1", "M=7B")})
    assert dict(found.given.environment) == {"CUDA_VISIBLE_DEVICES": "0,1", "M": "7B"}


def test_secrets_of_the_environment_are_not_saved(tmp_path: Path) -> None:
    script, saved = tmp_path / "a.sh", tmp_path / "job.toml"
    script.write_text(SIZES)
    words = ["serve", "--from", str(script), "--env", "MODEL_SIZE=7B", "--env", f"HF_TOKEN={SECRET}", "--gpus", "h100"]
    done = CliRunner().invoke(group, [*words, "--save", str(saved), "--explain"])
    assert done.exit_code == 0, done.output
    assert "MODEL_SIZE=7B" in saved.read_text()
    assert SECRET not in saved.read_text() + done.output


WORDS = st.sampled_from([
    "for i in 1 2 3; do ", "while true; do ", "while [ $# -gt 0 ]; do ", "done; ", "if [ $A = 1 ]; then ", "else ",
    "fi; ", "f() { ", "} ", "f $A; ", "A=$A$A$A ", "A=${A//a/bb} ", "A=${B:-$A} ", "eval $A; ", "bash -c \"$A\"; ",
    "shift; ", "case $A in a*) ", ";; esac ", "cat <<E > a.yaml\n", "\nE\n", "source a.sh; ", "set -- $A $A; ",
    "A=$((A*9)) ", "exit; ", "docker run --gpus 2 i ", "vllm serve m -tp $1\n", "${A%%*a*b*c}",
    "[[ a == *a*a*a*a*b && ", " ]] ", "\n", "'", '"', "a",
])


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=60).map("".join), st.lists(st.text(max_size=5), max_size=3))
def test_hostile_scripts_take_bounded_time(text: str, arguments: list[str]) -> None:
    from vramcast.errors import SourceError
    from vramcast.formats.shell import read_script

    begin = time.process_time()
    try:
        script = read_script("A=aaaa\n" + text, "a.sh", Invocation(tuple(arguments), {}, {"a.sh": text}))
    except SourceError as error:
        assert len(str(error)) < 300
    else:
        assert sum(len(word) for command in script.commands for word in command) < 1 << 23
    assert time.process_time() - begin < 10


NAMES = (
    "spec", "template", "containers", "resources", "limits", "nvidia.com/gpu", "args", "command", "image", "env", "run",
    "predictor", "model", "name", "size", "accelerators", "any_of", "llm_configs", "model_loading_config", "instances",
    "engine_kwargs", "nodeSelector", "affinity", "replicas", "PodCount", "cloud", "computing", "deploy",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["vllm serve m", "8", "H100:8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)
KINDS = ("Pod", "PyTorchJob", "JobSet", "LLMInferenceService", "InferenceService", "LeaderWorkerSet", "TrainJob")
TABLES = st.sampled_from([
    *({"apiVersion": "v1", "kind": kind} for kind in KINDS), {"run": "x"}, {"services": {}}, {"llm_configs": []},
    {"JobSpecs": [], "UserCommand": "x"}, {"metadata": {}, "containers": []},
])
PARTS = st.sampled_from(["spec", "resources", "services", "applications", "JobSpecs", "containers", "cloud"])


@settings(max_examples=200, deadline=None)
@given(TABLES, st.dictionaries(PARTS, VALUES, max_size=3))
def test_tables_of_any_shape_lead_to_an_answer_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any], more: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "x.json"
    path.write_text(json.dumps(table | more))
    try:
        with_configs({"gpus": "h100"}, Configs((path,)), command="serve")
    except VramcastError as error:
        assert str(error)


SERVED = {"model": "qwen3-32b", "gpus": "2xh100", "engine": "vllm", "tp": 2, "context": 8192}
TRAINED = {"model": "qwen3-8b", "gpus": "2x8xh100", "engine": "megatron", "tp": 2, "seq-len": 4096, "micro-batch": 2}
RENTED = {**SERVED, "gpus": "alibaba:ecs.gn8v-4x.8xlarge", "tp": 4}


@pytest.mark.parametrize(("asked", "files"), [
    (SERVED, ("deployment.yaml",)), (SERVED, ("skypilot.yaml", "serve.sh")), (SERVED, (".dstack.yml", "serve.sh")),
    (RENTED, ("pai_eas_service.json",)),
    (TRAINED, ("pytorchjob.yaml",)), (TRAINED, ("trainjob.yaml",)), (TRAINED, ("skypilot.yaml", "run.sh")),
    (TRAINED, (".dstack.yml", "run.sh")),
    (TRAINED, ("pai_dlc_job.json", "run.sh")), (TRAINED, ("pai_dlc_submit.sh", "run.sh")),
], ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_launchers_that_are_written_are_read_back(
    tmp_path: Path, asked: dict[str, Any], files: tuple[str, ...]
) -> None:
    command = "train" if asked is TRAINED else "serve"
    job = (job_of if command == "train" else serve_job_of)(asked)
    formats = ("kubernetes", "trainjob", "skypilot", "dstack", "pai-dlc", "megatron") if command == "train" else (
        "kubernetes", "skypilot", "dstack", "pai-eas", "vllm")
    write_configs(job, tmp_path, formats=formats)
    found, _ = with_configs({}, Configs(tuple(tmp_path / name for name in files)), command=command)
    script = tmp_path / ("run.sh" if command == "train" else "serve.sh")
    plain, _ = with_configs({}, Configs((script,)), command=command)
    apart = ("gpus", "model", "engine")  # a network is called as its file is, and an image names a version
    assert {name: value for name, value in found.items() if name not in apart} == {
        name: value for name, value in plain.items() if name not in apart}
    assert str(found["engine"]).partition("@")[0] == plain["engine"]
    if "gpus" in found:
        assert cluster_of(found["gpus"]).count == job.cluster.count
        assert cluster_of(found["gpus"]).gpu.name == job.cluster.gpu.name


def test_what_slurms_launcher_is_told_is_none_of_the_trainings(tmp_path: Path) -> None:
    """Pyxis' options stand before the program, as arguments that Megatron has not."""
    command = json.loads(DLC)["UserCommand"].replace("$WORLD_SIZE", "1").replace("$NPROC_PER_NODE", "8")
    plain, told = (read(tmp_path, "job.sbatch", f"#!/bin/bash\n#SBATCH --gres=gpu:h100:8\n{start} {command}\n")
                   for start in ("srun", "srun -l --container-image $IMAGE --container-mounts /fsx:/fsx"))
    assert plain == told


def test_what_sbatch_exports_is_the_commands(tmp_path: Path) -> None:
    asks = "#!/bin/bash\n#SBATCH --gres=gpu:h100:2\n#SBATCH --export=ALL,TP=2,MODEL=qwen3-8b\n"
    found = read(tmp_path, "job.sbatch", f"{asks}vllm serve $MODEL -tp $TP\n")
    assert (found["model"], found["tp"]) == ("qwen3-8b", 2)
