"""Kubernetes: PyTorchJob v1, TrainJob v1alpha1, and a Deployment with its Service for servers.

[PyTorchJob] kubeflow.org/v1, models of kubeflow-training; [TrainJob] trainer.kubeflow.org/v1alpha1, models of
kubeflow-trainer-api

Parts of cards that pods ask for: memory by HAMi's and Volcano's resources, devices by claims.

[hami] Project-HAMi/HAMi, website docs/userguide/nvidia-device; [Volcano] volcano-sh/volcano
docs/user-guide/how_to_use_volcano_vgpu.md; [claims] https://kubernetes.io/docs/concepts/scheduling-eviction/
dynamic-resource-allocation/, resource.k8s.io/v1; the devices of HAMi have `capacity.requests.memory` of each
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramcast.domain.device import Cluster
from vramcast.domain.serving import ServeJob
from vramcast.errors import Unsupported
from vramcast.formats.files import File, Order, Part
from vramcast.formats.launch import PORT, SERVE, copies_why, head_of, image_of, replicas_of, slug, start_command
from vramcast.formats.lines import Line, Table, yaml_documents
from vramcast.formats.reading import table
from vramcast.formats.wrapped import whole
from vramcast.units import MIB

PYTORCHJOB: Final = "pytorchjob.yaml"
TRAINJOB: Final = "trainjob.yaml"
DEPLOYMENT: Final = "deployment.yaml"
FOLDER: Final = "/workspace/vramcast"

RESOURCES: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Huawei": "huawei.com/Ascend910",
                    "Intel": "habana.ai/gaudi", "T-Head": "alibabacloud.com/ppu", "Moore Threads": "mthreads.com/gpu"}
"""Vendor -> the resource that its device plugin hands out."""


def write(order: Order) -> tuple[File, ...]:
    """A PyTorchJob for training, a Deployment and its Service for a server."""
    return _deployment(order) if isinstance(order.job, ServeJob) else _pytorchjob(order)


def _pytorchjob(order: Order) -> tuple[File, ...]:
    cluster: Cluster = order.job.cluster
    roles = [Line("Master", _replica(order, 1), "the first machine")]
    if cluster.num_nodes > 1:
        roles.append(Line("Worker", _replica(order, cluster.num_nodes - 1), "the others"))
    spec = (
        Line("nprocPerNode", str(cluster.gpus_per_node), "processes of one machine"),
        Line("runPolicy", (Line("cleanPodPolicy", "None", "logs stay readable"), Line("backoffLimit", 3))),
        Line("pytorchReplicaSpecs", tuple(roles)),
    )
    job = (Line("apiVersion", "kubeflow.org/v1"), Line("kind", "PyTorchJob"),
           Line("metadata", (Line("name", slug(order.job)),)), Line("spec", spec))
    where = (1, "spec", "pytorchReplicaSpecs")
    parts = (Part("kubernetes", "V1ConfigMap", (0,)), Part("kubernetes", "KubeflowOrgV1PyTorchJob", (1,)),
             *(Part("kubernetes", "KubeflowOrgV1ReplicaSpec", (*where, role.name)) for role in roles))
    text = yaml_documents([_config_map(order), job], head=_head(order, PYTORCHJOB))
    return (File(PYTORCHJOB, text, parts),)


def _head(order: Order, name: str) -> str:
    return head_of(order, f"kubectl apply -f {name}")


def _config_map(order: Order) -> Table:
    """The files of the folder, so that the pods find them."""
    contents = tuple(Line(file.name, file.text) for file in order.beside)
    return (Line("apiVersion", "v1"), Line("kind", "ConfigMap"),
            Line("metadata", (Line("name", f"{slug(order.job)}-files"),)), Line("data", contents))


def _replica(order: Order, count: int) -> Table:
    container = (
        Line("name", "pytorch", "the operator looks for this name"),
        Line("image", image_of(order)),
        Line("workingDir", FOLDER),
        Line("command", ["bash", "-c", start_command(order)]),
        Line("resources", _resources(order)),
        Line("volumeMounts", _mounts()),
    )
    pod = (Line("containers", [container]), Line("volumes", _volumes(order)))
    return (Line("replicas", count), Line("restartPolicy", "OnFailure"),
            Line("template", (Line("spec", pod),)))


def _resources(order: Order) -> Table:
    cluster: Cluster = order.job.cluster
    name = RESOURCES.get(cluster.gpu.vendor)
    if name is None:
        raise Unsupported("no device plugin is known for cards of {}; use --format pai-dlc", cluster.gpu.vendor)
    return (Line("limits", (Line(name, str(cluster.gpus_per_node), f"{cluster.gpu.name}, one machine"),)),)


def _mounts() -> list[Table]:
    return [(Line("name", "files"), Line("mountPath", FOLDER)), (Line("name", "shm"), Line("mountPath", "/dev/shm"))]


def _volumes(order: Order) -> list[Table]:
    return [
        (Line("name", "files"), Line("configMap", (Line("name", f"{slug(order.job)}-files"),))),
        (Line("name", "shm"), Line("emptyDir", (Line("medium", "Memory", "NCCL and data loaders share memory"),))),
    ]


def write_trainjob(order: Order) -> tuple[File, ...]:
    """A TrainJob on the runtime that Kubeflow Trainer brings for PyTorch."""
    cluster: Cluster = order.job.cluster
    trainer = (
        Line("numNodes", cluster.num_nodes, "machines in the plan"),
        Line("numProcPerNode", cluster.gpus_per_node, "processes of one machine"),
        Line("image", image_of(order)),
        Line("command", ["bash", "-c", f"cd {FOLDER} && {start_command(order)}"]),
        Line("resourcesPerNode", _resources(order)),
    )
    pod = (
        Line("containers", [(Line("name", "node"), Line("volumeMounts", _mounts()))]),
        Line("volumes", _volumes(order)),
    )
    template = (Line("spec", (Line("template", (Line("spec", pod),)),)),)
    jobset = (Line("spec", (Line("replicatedJobs", [(Line("name", "node"), Line("template", template))]),)),)
    patch = (
        Line("manager", "vramcast.dev/plan", "who asks for the change"),
        Line("trainingRuntimeSpec", (Line("template", jobset),)),
    )
    spec = (
        Line("runtimeRef", (Line("name", "torch-distributed", "comes with Kubeflow Trainer"),)),
        Line("trainer", trainer),
        Line("runtimePatches", [patch], "mounts the files and shared memory"),
    )
    job = (Line("apiVersion", "trainer.kubeflow.org/v1alpha1"), Line("kind", "TrainJob"),
           Line("metadata", (Line("name", slug(order.job)),)), Line("spec", spec))
    text = yaml_documents([_config_map(order), job], head=_head(order, TRAINJOB))
    parts = (Part("kubernetes", "V1ConfigMap", (0,)), Part("trainjob", "TrainerV1alpha1TrainJob", (1,)))
    return (File(TRAINJOB, text, parts),)


def _deployment(order: Order) -> tuple[File, ...]:
    job = order.job
    if job.cluster.num_nodes > 1:
        raise Unsupported("a Deployment's pod lives on one machine; use fewer GPUs, or start serve.sh on every machine")
    name = slug(job)
    if not any(file.name == SERVE for file in order.beside):
        raise Unsupported("a Deployment needs its server; choose its format too, for example --format vllm")
    probe = (Line("httpGet", (Line("path", "/health"), Line("port", PORT))), Line("initialDelaySeconds", 60),
             Line("failureThreshold", 120, "large checkpoints take minutes to load"))
    container = (
        Line("name", "server"), Line("image", image_of(order)),
        Line("workingDir", FOLDER),
        Line("command", ["bash", SERVE]),
        Line("ports", [(Line("containerPort", PORT),)]),
        Line("resources", _resources(order)),
        Line("readinessProbe", probe),
        Line("volumeMounts", _mounts()),
    )
    labels = Line("app", name)
    pod = (Line("metadata", (Line("labels", (labels,)),)),
           Line("spec", (Line("containers", [container]), Line("volumes", _volumes(order)))))
    spec = (Line("replicas", replicas_of(order), copies_why(order)),
            Line("selector", (Line("matchLabels", (labels,)),)), Line("template", pod))
    metadata = Line("metadata", (Line("name", name),))
    deployment = (Line("apiVersion", "apps/v1"), Line("kind", "Deployment"), metadata, Line("spec", spec))
    service = (Line("apiVersion", "v1"), Line("kind", "Service"), metadata, Line("spec", (
        Line("selector", (labels,)), Line("ports", [(Line("port", PORT), Line("targetPort", PORT))]))))
    parts = (Part("kubernetes", "V1ConfigMap", (0,)), Part("kubernetes", "V1Deployment", (1,)),
             Part("kubernetes", "V1Service", (2,)))
    text = yaml_documents([_config_map(order), deployment, service], head=_head(order, DEPLOYMENT))
    return (File(DEPLOYMENT, text, parts),)


MEMORY: Final = "nvidia.com/gpumem"
VGPUS: Final = (MEMORY, "nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage")
"""Memory of each card that HAMi's and Volcano's device plugins let a process see [MiB, %]."""
VGPU_NUMBER: Final = "volcano.sh/vgpu-number"
UNITS: Final[Mapping[str, int]] = {"Mi": MIB, "Gi": 1 << 30, "M": 10**6, "G": 10**9}


def share_of(container: Mapping[str, Any]) -> str:
    """The part of each card that a container sees, "8000mib" or "30%"; "" for whole cards.

    >>> share_of({"resources": {"limits": {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 30}}})
    '30%'
    """
    resources = table(container.get("resources"))
    given = {**table(resources.get("requests")), **table(resources.get("limits"))}
    return next((f"{count}{'%' if name.endswith('percentage') else 'mib'}" for name in VGPUS
                 if (count := whole(given.get(name)))), "")


def with_claims(value: Any, documents: Sequence[Mapping[str, Any]]) -> Any:
    """The same, devices that a pod claims by an object of the file as the resources that they are."""
    if isinstance(value, list):
        return [with_claims(inner, documents) for inner in value]
    if not isinstance(value, Mapping):
        return value
    inner = {key: with_claims(one, documents) for key, one in value.items()}
    claims = {table(one).get("name"): _devices(table(one), documents) for one in value.get("resourceClaims") or ()
              if isinstance(value.get("resourceClaims"), list)}
    if claims and isinstance(inner.get("containers"), list):
        inner["containers"] = [_claimed(one, claims) for one in inner["containers"]]
    if claims and isinstance(inner.get("model"), Mapping):
        inner["model"] = _claimed(inner["model"], claims)
    return inner


def _claimed(container: Any, claims: Mapping[Any, dict[str, str]]) -> Any:
    resources = table(table(container).get("resources"))
    named = [table(one).get("name") for one in resources.get("claims") or ()]
    found = {name: size for one in named for name, size in claims.get(one, {}).items()}
    if not found:
        return container
    rest = {name: one for name, one in resources.items() if name != "claims"}
    return {**container, "resources": {**rest, "limits": {**table(resources.get("limits")), **found}}}


def _devices(claim: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Cards of a claim, and the memory that is seen of each; {} where no object of the file says."""
    name = claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName")
    found = next((table(one.get("spec")) for one in documents if table(one.get("metadata")).get("name") == name
                  and one.get("kind") in ("ResourceClaimTemplate", "ResourceClaim")), {})
    requests = table(table(found.get("spec", found)).get("devices")).get("requests") or ()
    first = table(next(iter(requests), None))
    if len(requests) != 1:
        return {}
    asked = table(first.get("exactly")) or first
    if asked.get("selectors") or "mig" in str(asked.get("deviceClassName")):  # of which card, and what part of it
        return {}
    count = {RESOURCES["NVIDIA"]: str(whole(asked.get("count", 1)) or 1)}
    memory = str(table(table(asked.get("capacity")).get("requests")).get("memory") or "")
    size = re.fullmatch(r"(\d{1,6})(\w+)", memory)
    unit = UNITS.get(size[2], 0) if size else 0
    return count | ({MEMORY: str(int(size[1]) * unit // MIB)} if size and unit else {})
