"""`vramcast check`: what a manifest or a batch script asks for, beside what its own command takes."""

from pathlib import Path

import pytest

from tests.cli.asking import vramcast

MANIFEST = """apiVersion: v1
kind: Service
metadata: {name: s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: qwen}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        args: [--model, Qwen/Qwen3-32B, --max-model-len, "8192"ARGS]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
SMALL = MANIFEST.replace("ARGS", "").replace("32B", "0.6B").partition("---\n")[2]
FRONT = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: web, image: nginx}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
---
"""
BESIDE = """      - name: embed
        image: of-somebody
        resources: {limits: {nvidia.com/gpu: 1}}
"""
TORCHRUN = """kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: sft}
spec: {pytorchReplicaSpecs: {Worker: {replicas: 4, template: {spec: {containers: [{name: pytorch, image: x, command:
  [torchrun, --nproc_per_node=8, sft.py, --model_name_or_path, Qwen/Qwen3-0.6B], resources: {limits:
  {nvidia.com/gpu: 8}}}]}}}}}
"""
QUEUES = """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team}
spec: {clusterQueue: all}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec: {resourceGroups: [{coveredResources: [cpu], flavors: [{name: cpu}]}, {coveredResources: [nvidia.com/gpu],
  flavors: [{name: l4}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: l4}
spec: {nodeLabels: {cloud.google.com/gke-accelerator: nvidia-l4}}
"""
QUEUED = SMALL.replace("{name: qwen}", "{name: qwen, labels: {kueue.x-k8s.io/queue-name: team}}")
CLAIM = """apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: part}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: hami-core-gpu.project-hami.io, count: 1,
  capacity: {requests: {memory: 9Gi}}}}]}}}
---
"""
CLAIMED = SMALL.replace("    spec:\n", """    spec:
      resourceClaims: [{name: g, resourceClaimTemplateName: part}]
""").replace("limits: {nvidia.com/gpu: 1}", "claims: [{name: g}]")
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:GRES\n"
SERVE = "srun vllm serve Qwen/Qwen3-8B --max-model-len 8192\n"
TRAIN = "srun torchrun --nproc_per_node 4 sft.py --model_name_or_path Qwen/Qwen3-0.6B --bf16 true\n"


SKY = """resources: {accelerators: "L40S:ASKED"}
run: vllm serve Qwen/Qwen3-14B --max-model-len 8192 --tensor-parallel-size 2
"""
DSTACK = """type: service
commands: [vllm serve Qwen/Qwen3-14B --max-model-len 8192 --tensor-parallel-size 2]
resources: {gpu: "ASKED"}
"""
COMPOSE = """services: {vllm: {image: vllm/vllm-openai:v0.11.0,
  command: --model Qwen/Qwen3-14B -tp 2 --max-model-len 8192,
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}}}
"""


@pytest.mark.parametrize(("text", "options", "code", "said"), [
    (SKY.replace("ASKED", "2"), (), 0, "job.yaml: fits"),
    (SKY.replace("ASKED", "1"), (), 1, "accelerators: L40S:2 would do"),
    (SKY.replace("ASKED", "8"), (), 0, "accelerators: L40S:2 would do"),
    (DSTACK.replace("ASKED", "A100:40GB:1"), (), 1, "gpu: A100:40GB:2 would do"),
    (DSTACK.replace("ASKED", "48GB:4"), (), 0, "gpu: 48GB:2 would do"),
    (DSTACK.replace("ASKED", "T4:2"), (), 1, "does not fit"),
    (COMPOSE, ("--gpus", "l40s"), 1, "count: 2 would do"),
    (COMPOSE.replace("count: 1", "count: 2"), (), 3, "names no card; give --gpus"),
    (SKY.replace("L40S:ASKED", "H100:8").replace("size 2", "size 16").replace("14B", "235B-A22B"), (), 1,
     "num_nodes: 2, accelerators: H100:8 would do"),
    (MANIFEST.replace("ARGS", ""), ("--gpus", "h100"), 0, "Deployment qwen: fits"),
    (MANIFEST.replace("ARGS", ""), ("--gpus", "l40s"), 1, "what would fit: --"),
    (MANIFEST.replace("ARGS", ", -tp, '2'"), ("--gpus", "l40s"), 1, "nvidia.com/gpu: 2 would do"),
    (MANIFEST.replace("ARGS", ""), (), 3, "Deployment qwen: not judged: names no card"),
    (MANIFEST.replace("ARGS", ""), ("--gpus", "l40s", "--lang", "zh"), 1, "Deployment qwen：放不下"),
    (MANIFEST.replace("ARGS", "") + "---\n" + SMALL, ("--gpus", "t4"), 1, "Deployment qwen: fits"),
    (FRONT + SMALL, ("--gpus", "8xh100"), 0, "Deployment web: asks for no GPU"),
    (SMALL.replace("Qwen/Qwen3-0.6B", "$(M)") + "        env: [{name: M, valueFrom: {configMapKeyRef: {name: m, "
     "key: n}}}]\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {n: Qwen/Qwen3-8B}\n",
     ("--gpus", "rtx-3060"), 1, "does not fit: 18.11 GiB"),
    (MANIFEST.replace("vllm/vllm-openai:v0.11.0", "gcr.io/huggingface-text-generation-inference-cu124.2-3").replace(
        '--model, Qwen/Qwen3-32B, --max-model-len, "8192"ARGS', "--model-id, google/gemma-2b"), ("--gpus", "l4"), 0,
     "Deployment qwen: fits"),
    (FRONT, ("--lang", "zh"), 0, "Deployment web：不申请 GPU"),
    ("kind: List\napiVersion: v1\nitems:\n- " + SMALL.replace("\n", "\n  "), ("--gpus", "h100"), 0, "qwen: fits"),
    (MANIFEST.replace("ARGS", ", -tp, '2'").replace("gpu: 1", "gpu: 2") + BESIDE, ("--gpus", "h100"), 0, "qwen: fits"),
    (MANIFEST.replace("ARGS", "").replace("gpu: 1", "gpu: 2"), ("--gpus", "h100"), 0, "nvidia.com/gpu: 1 would do"),
    (QUEUED.replace("0.6B", "32B") + QUEUES, (), 1, "22.03 GiB usable"),
    (QUEUED.replace("team", "other") + QUEUES, (), 3, "names no card"),
    (SMALL.replace("gpu: 1", "gpu: 1, nvidia.com/gpumem-percentage: 50"), ("--gpus", "l4"), 0, "of 11.2"),
    (CLAIM + CLAIMED, ("--gpus", "l4"), 1, "9.00 GiB usable"),
    (CLAIMED, ("--gpus", "l4"), 3, "not judged: resources.claims ask"),
    (TORCHRUN, ("--gpus", "h100"), 0, "PyTorchJob sft: fits"),
    (TORCHRUN.replace("torchrun,", "torchrun, --nnodes=6,"), ("--gpus", "h100"), 3, "has 4 machines"),
    (SCRIPT.replace("GRES", "h100:1") + SERVE, (), 0, "job.sh: fits"),
    (SCRIPT.replace("GRES", "h100:1") + SERVE + "#SBATCH --gres=gpu:t4:8\n", (), 0, "job.sh: fits"),
    (SCRIPT.replace("GRES", "h100:4").replace("=1", "=2") + TRAIN, (), 3, "runs on each of 2 machines by itself"),
    (SCRIPT.replace("GRES", "t4:1") + "vllm serve $M --nosuch 1\n", ("--lang", "zh"), 3, "model：文件中未设置 ${M}"),
    (SCRIPT.replace("GRES", "t4:1") + SERVE, (), 1, "job.sh: does not fit"),
    (SCRIPT.replace("GRES", "t4:1") + SERVE.replace("8192", "auto"), (), 3, "an option of `vramcast serve --from"),
    (SCRIPT.replace("GRES", "1") + SERVE, ("--gpus", "h100"), 0, "job.sh: fits"),
    (SCRIPT.replace("GRES", "h100:2") + TRAIN, (), 1, "#SBATCH --nodes=1 --gres=gpu:4 would do"),
    (SCRIPT.replace("GRES", "h100:8") + TRAIN, (), 0, "#SBATCH --nodes=1 --gres=gpu:4 would do"),
    (SCRIPT.replace("GRES", "h100:8") + TRAIN.replace(" 4 ", " gpu "), (), 0, "job.sh: fits"),
    (SCRIPT.replace("GRES", "h100:4") + SERVE, (), 0, "#SBATCH --nodes=1 --gres=gpu:1 would do"),
    (SCRIPT.replace("GRES", "h100:1") + "vllm serve $1 --max-model-len $LENGTH\n",
     ("--args", "Qwen/Qwen3-8B", "--env", "LENGTH=8192"), 0, "job.sh: fits"),
    (SCRIPT.replace("GRES", "l40s:2") + "llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0 -c 4096\n", (), 0, "job.sh: fits"),
])
def test_a_job_is_held_against_what_it_asks_for(
    text: str, options: tuple[str, ...], code: int, said: str, tmp_path: Path,
) -> None:
    path = tmp_path / ("job.sh" if text.startswith("#!") else "job.yaml")
    path.write_text(text)
    found = vramcast("check", str(path), "--lang", "en", *options)
    assert "ignore-unread" not in found.stdout and "object.yaml" not in found.stdout
    assert "would do" not in found.stdout or "would do" in said, found.stdout
    assert said in found.stdout and found.returncode == code, (found.stdout, found.stderr)


def test_a_file_that_a_command_reads_is_given_beside_it(tmp_path: Path) -> None:
    path, config = tmp_path / "job.sh", tmp_path / "elsewhere" / "config.yml"
    config.parent.mkdir()
    path.write_text(SCRIPT.replace("GRES", "h100:1") + "axolotl train config.yml\n")
    config.write_text("base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\n"
                      "gradient_accumulation_steps: 4\nsample_packing: true\nflash_attention: true\n"
                      "optimizer: adamw_torch_fused\ndatasets: [{path: x, type: alpaca}]\n")
    assert "give it with another --from" in vramcast("check", str(path)).stdout
    assert "job.sh: fits" in vramcast("check", str(path), "--from", str(config)).stdout
