"""What Kubernetes starts: pods of every kind, KServe's services, groups of leaders and workers.

[KServe] kserve/kserve pkg/apis/serving/v1beta1 and v1alpha2, config/llmisvcconfig/config-llm-template.yaml (its
command), config/runtimes/kserve-huggingfaceserver.yaml; [LWS] kubernetes-sigs/lws api/leaderworkerset/v1; [Volcano]
volcano-sh/volcano docs/user-guide/how_to_use_{pytorch,mpi,volcano_vgpu}*.md, batch/v1alpha1 Job; [Kueue]
kubernetes-sigs/kueue apis/kueue/v1beta2, site/content/en/docs/concepts/resource_flavor.md; names of PyTorchJob and
TrainJob as in their snapshots
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vramcast.errors import Note, SourceError
from vramcast.formats.containers import started
from vramcast.formats.reading import ELSEWHERE, LARGEST_FILE, NO_GPU, TOO_LARGE, Unread, table
from vramcast.formats.tools.kubernetes import RESOURCES, VGPU_NUMBER, share_of, with_claims
from vramcast.formats.wrapped import (
    TORCHRUN,
    Inside,
    card,
    machine,
    on_each_machine,
    unknown_card,
    variables,
    whole,
    words_of,
)

NAMES_A_CARD: Final = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator", "aliyun.accelerator/nvidia_name", "alibabacloud.com/gpu-card-model-series",
    "alibabacloud.com/gpu-model-series", "gpu.nvidia.com/class", "gpu.nvidia.com/model", "amd.com/gpu.product-name",
    "nvidia.com/gpu.machine-type",
)
"""Labels of nodes that name the card: of NVIDIA's device discovery, and of clouds."""

NAMES_A_MACHINE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

NOT_OF_GPUS: Final = re.compile(r"google\.com/tpu|aws\.amazon\.com/neuron(?:core)?|huawei\.com/Ascend\w+|"
                                r"habana\.ai/gaudi|cambricon\.com/mlu|alibabacloud\.com/ppu")
"""Resources whose cards an engine's commands here are not computed for."""

SLICE: Final = re.compile(r"nvidia\.com/mig-|tencent\.com/vcuda|aliyun\.com/gpu-mem|gpu-mem|vgpu")

REPEATED: Final = {
    "PyTorchJob": "pytorchReplicaSpecs", "MPIJob": "mpiReplicaSpecs", "TFJob": "tfReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs",
}
"""Kind of Kubeflow's training operator -> where its roles stand."""

FIRST: Final = ("Master", "Launcher", "Chief", "Worker")
"""Roles in the order in which their command is the job's."""


LEADERS: Final = re.compile(r"(?:pytorch|mpi)?(?:master|launcher|leader|head|chief)(?:-\d+)?", re.IGNORECASE)
"""Tasks of Volcano's jobs and sets of Kueue's workloads whose command is that of all of them."""

QUEUE: Final = "kueue.x-k8s.io/queue-name"


class Pod(NamedTuple):
    """One pod's specification, and how many machines run it together."""

    spec: Mapping[str, Any]
    name: str
    nodes: int = 1
    environment: Mapping[str, str] = {}  # that its operator sets
    elastic: Mapping[str, str] = {}  # options of torchrun whose defaults its operator sets


def inside(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[Inside]:
    """The commands of one object.

    Args:
        document: the object
        documents: all of the file, for what its configuration maps hold
    """
    kind, spec = str(document.get("kind")), table(document.get("spec"))
    name = str(table(document.get("metadata")).get("name") or kind)
    maps = {
        str(table(one.get("metadata")).get("name")): table(one.get("data"))
        for one in documents if one.get("kind") == "ConfigMap"
    }
    scripts = {str(file): text for data in maps.values() for file, text in data.items() if isinstance(text, str)}
    spec = table(with_claims(_with_values(spec, maps) if maps else spec, documents))
    offered = list(_offered(document, documents))
    for part in _parts(kind, spec, name, scripts):
        if offered and not part.place:
            place, unread = _of_labels(offered)
            part = part._replace(place=place, unread=(*part.unread, *unread))
        environment = {**_mapped(part.maps, maps), **part.environment}
        yield part._replace(
            words=_substituted(part.words, environment), environment=environment,
            notes=(*part.notes, *_copies(kind, spec)),
            unread=(*part.unread, *(Unread(f"envFrom {one[:40]}", ELSEWHERE) for one in part.maps if one not in maps)),
        )


def _offered(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Labels of the nodes that the queue of a job has cards of, where Kueue's objects stand in the file."""
    metadata, spec = table(document.get("metadata")), table(document.get("spec"))
    queue = table(metadata.get("labels")).get(QUEUE) or spec.get("queueName")
    specs = {(str(one.get("kind")), table(one.get("metadata")).get("name")): table(one.get("spec"))
             for one in documents if "kueue.x-k8s.io" in str(one.get("apiVersion"))}
    found = specs.get(("ClusterQueue", specs.get(("LocalQueue", queue), {}).get("clusterQueue")), {})
    for group in found.get("resourceGroups") or ():
        if any(name in (*RESOURCES.values(), VGPU_NUMBER) for name in table(group).get("coveredResources") or ()):
            for flavor in table(group).get("flavors") or ():
                labels = specs.get(("ResourceFlavor", table(flavor).get("name")), {}).get("nodeLabels")
                yield from ((str(name), str(value)) for name, value in table(labels).items())


def _with_values(value: Any, maps: Mapping[str, Mapping[str, Any]]) -> Any:
    """The same with the variables that name an entry of a configuration map in the file."""
    if isinstance(value, Mapping):
        source = table(table(value.get("valueFrom")).get("configMapKeyRef"))
        text = maps.get(str(source.get("name")), {}).get(str(source.get("key")))
        if isinstance(text, str):
            return {"name": value.get("name"), "value": text}
        return {key: _with_values(inner, maps) for key, inner in value.items()}
    return [_with_values(inner, maps) for inner in value] if isinstance(value, list) else value


def _parts(kind: str, spec: Mapping[str, Any], name: str, scripts: Mapping[str, str]) -> Iterator[Inside]:
    """The commands of an object by its kind."""
    if kind == "InferenceService":
        yield from _inference_service(spec, name, scripts)
    elif kind == "LLMInferenceService":
        yield from _llm_service(spec, name)
    elif kind == "TrainJob":
        yield from _train_job(spec, name, scripts)
    elif kind == "AppWrapper":
        for component in spec.get("components") or ():
            one = table(table(component).get("template"))
            yield from _parts(str(one.get("kind")), table(one.get("spec")), name, scripts)
    elif kind == "RayService" and isinstance(spec.get("serveConfigV2"), str):
        yield from _ray_service(spec)
    elif kind == "RayJob":
        yield from _ray_job(spec, name, scripts)
    else:
        for pod in _pods(kind, spec, name):
            yield from containers(pod, f"{kind} {name}", scripts)


def _ray_service(spec: Mapping[str, Any]) -> Iterator[Inside]:
    from vramcast.catalogue.tables import NoDocument, parse_yaml
    from vramcast.formats.tools import ray_serve

    try:
        inner = parse_yaml(spec["serveConfigV2"])
    except NoDocument:
        return
    if isinstance(inner, Mapping):
        yield from ray_serve.inside(inner, ())


def _ray_job(spec: Mapping[str, Any], name: str, scripts: Mapping[str, str]) -> Iterator[Inside]:
    """The entry point, on the cards of the first group of workers that has some, or of the head
    [ray-project/kuberay ray-operator/apis/ray/v1/rayjob_types.go, raycluster_types.go]."""
    cluster = table(spec.get("rayClusterSpec"))
    groups = (*(cluster.get("workerGroupSpecs") or ()), cluster.get("headGroupSpec"))
    entry = spec.get("entrypoint")
    parts = [(part, whole(table(group).get("replicas")) or 1) for group in groups
             for part in containers(Pod(_template(table(group)), name), f"RayJob {name}", scripts)]
    if isinstance(entry, str) and parts:
        part, nodes = next((one for one in parts if one[0].has_gpu), parts[0])
        yield part._replace(words=(), script=entry, nodes=nodes, scripts=scripts)


def _mapped(names: Sequence[str], maps: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Variables that configuration maps of the file give."""
    return {variable: text for name in names for variable, text in variables(maps.get(name)).items()}


def _copies(kind: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    count = whole(spec.get("replicas")) or 1
    return (Note("{} has {} replicas, of which one is answered", kind, count),) if count > 1 else ()


def _pods(kind: str, spec: Mapping[str, Any], name: str) -> Iterator[Pod]:
    """The pods of an object; of several roles the one whose command is the job's."""
    if kind in REPEATED:
        roles = table(spec.get(REPEATED[kind]))
        counts = {role: whole(table(roles[role]).get("replicas", 1)) or 0 for role in FIRST if role in roles}
        nodes = sum(count for role, count in counts.items() if role != "Launcher")
        first = next(iter(counts), None)
        if first is not None:
            of_torch = {"nnodes": str(nodes), "nproc-per-node": str(spec.get("nprocPerNode") or "")}
            yield Pod(_template(table(roles[first])), name, max(1, nodes),
                      elastic=of_torch if kind == "PyTorchJob" and nodes > 1 else {})
    elif kind == "LeaderWorkerSet":
        group = table(spec.get("leaderWorkerTemplate"))
        leader = table(group.get("leaderTemplate")) or table(group.get("workerTemplate"))
        size = whole(group.get("size", 1)) or 1
        yield Pod(table(leader.get("spec")), name, size, {"LWS_GROUP_SIZE": str(size)})
    elif kind == "JobSet":
        for one in spec.get("replicatedJobs") or ():
            job = table(table(table(one).get("template")).get("spec"))
            count = (whole(table(one).get("replicas", 1)) or 1) * (whole(job.get("parallelism", 1)) or 1)
            yield Pod(_template(job), str(table(one).get("name") or name), count)
    elif isinstance(listed := spec.get("tasks") if kind == "Job" else spec.get("podSets"), list):
        yield from _roles([(str(one.get("name")), whole(one.get("replicas", one.get("count", 1))) or 0, _template(one))
                           for one in map(table, listed)], name)
    elif kind == "CronJob":
        yield Pod(_template(table(table(spec.get("jobTemplate")).get("spec"))), name)
    elif kind == "Pod":
        yield Pod(spec, name)
    else:
        indexed = kind == "Job" and spec.get("completionMode") == "Indexed"
        yield Pod(_template(spec), name, (whole(spec.get("parallelism")) or 1) if indexed else 1)


def _roles(roles: Sequence[tuple[str, int, Mapping[str, Any]]], name: str) -> Iterator[Pod]:
    """The pods of Volcano's job or Kueue's workload: what leads has the command of all, others have their own."""
    leader = next((spec for role, _, spec in roles if LEADERS.fullmatch(role)), None)
    if leader is None:
        yield from (Pod(spec, role or name, max(1, count), {"WORLD_SIZE": str(count), "RANK": "0"})
                    for role, count, spec in roles)
        return
    takes = [(count, spec) for _, count, spec in roles
             if any(_cards(table(one))[0] for one in spec.get("containers") or ())]
    nodes = max(1, sum(count for count, _ in takes))
    cards = next((spec for _, spec in takes), leader)
    # a launcher without cards starts processes on the workers', and is asked about theirs
    pod = leader if any(leader is spec for _, spec in takes) or not takes else {**cards, "containers": [
        {**table(one), "resources": table(table(cards["containers"][0]).get("resources"))}
        for one in leader.get("containers") or ()]}
    yield Pod(pod, name, nodes, {"WORLD_SIZE": str(nodes), "RANK": "0"})


def _template(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return table(table(spec.get("template")).get("spec"))


def containers(pod: Pod, kind: str, scripts: Mapping[str, str]) -> Iterator[Inside]:
    """The containers of a pod that start something."""
    place, unread = _place(pod.spec)
    for container in pod.spec.get("containers") or ():
        one = table(container)
        count, more = _cards(one)
        environment = {**variables(one.get("env")), **pod.environment}
        image = str(one.get("image") or "")
        command, arguments = (_substituted(words_of(one.get(part)), environment) for part in ("command", "args"))
        words = _of_elastic(started(image, command, arguments), pod.elastic)
        if pod.nodes > 1 and (alone := on_each_machine(" ".join(words), pod.nodes)):
            more = (*more, alone)
        yield Inside(
            kind, words, image, environment=environment, scripts=scripts,
            place=place if count or not more else "", cards=count, nodes=pod.nodes,
            name=str(one.get("name") or pod.name), unread=(*unread, *more), has_gpu=bool(count), share=share_of(one),
            maps=tuple(str(table(table(source).get("configMapRef")).get("name")) for source in one.get("envFrom") or ()
                       if table(source).get("configMapRef")),
        )


def _of_elastic(words: Sequence[str], options: Mapping[str, str]) -> tuple[str, ...]:
    """A command with what torchrun takes from `PET_NNODES` and `PET_NPROC_PER_NODE` where it does not say it itself
    [pytorch torch/distributed/argparse_util.py; kubeflow/training-operator pkg/controller.v1/pytorch/envvar.go].

    >>> _of_elastic(("torchrun", "--nproc_per_node=8", "t.py"), {"nnodes": "4", "nproc-per-node": "2"})
    ('torchrun', '--nnodes=4', '--nproc_per_node=8', 't.py')
    """
    line = " ".join(words).replace("_", "-")
    added = [f"--{name}={value}" for name, value in options.items() if value and f"--{name}" not in line]
    spread: list[str] = []
    for word in words:
        if TORCHRUN.fullmatch(word):
            spread += [word, *added]
        else:
            spread.append(TORCHRUN.sub(lambda match: " ".join((match[0], *added)), word) if " " in word else word)
    return tuple(spread)


def _substituted(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """`$(NAME)` as Kubernetes puts variables of a container's environment in.

    Raises: SourceError: they become longer than a configuration may be
    """
    left = LARGEST_FILE

    def put(match: re.Match[str]) -> str:
        nonlocal left
        value = environment.get(match[1], match[0])
        if (left := left - len(value)) < 0:  # each may stand for a text in which it stands a thousand times
            raise SourceError(TOO_LARGE, "$(...)", LARGEST_FILE)
        return value

    return tuple(re.sub(r"\$\(([A-Za-z_]\w{0,80})\)", put, word) for word in words)


def _cards(container: Mapping[str, Any]) -> tuple[int | None, tuple[Unread, ...]]:
    """Cards of a container, and what of its resources is none that is modelled."""
    resources = table(container.get("resources"))
    given = {**table(resources.get("requests")), **table(resources.get("limits"))}
    elsewhere = [name for name, value in given.items() if NOT_OF_GPUS.fullmatch(str(name)) and whole(value)]
    slices = [name for name in map(str, given) if SLICE.search(name) and not name.startswith("volcano.sh/vgpu-")]
    if elsewhere:
        return None, (Unread(elsewhere[0], NO_GPU),)
    if slices:
        return None, (Unread(slices[0], "is a part of a card; give --gpus", "gpus"),)
    if resources.get("claims"):
        return None, (Unread("resources.claims", "ask for devices in objects of their own; give --gpus", "gpus"),)
    names = ("gpu.intel.com/i915", VGPU_NUMBER, *RESOURCES.values())
    counts = [count for name in names if (count := whole(given.get(name)))]
    return (counts[0] if counts else None), ()


def _place(spec: Mapping[str, Any]) -> tuple[str, tuple[Unread, ...]]:
    """The card or machine that a pod asks its node for."""
    return _of_labels(_labels(spec))


def _of_labels(labels: Iterable[tuple[str, str]]) -> tuple[str, tuple[Unread, ...]]:
    """The card or machine that labels of nodes name."""
    named = [(name, value) for name, value in labels if name in (*NAMES_A_CARD, *NAMES_A_MACHINE)]
    cards = {value for name, value in named if name in NAMES_A_CARD}
    machines = {value for name, value in named if name in NAMES_A_MACHINE}
    wanted = cards if cards and not (len(machines) == 1 and machine(next(iter(machines)))) else machines or cards
    if len(wanted) > 1:
        return "", (Unread("nodeAffinity", Note("names {} kinds of nodes; give --gpus", len(wanted)), "gpus"),)
    if not wanted:
        return "", ()
    value = next(iter(wanted))
    found = machine(value) if value in machines else card(value)
    name = next(name for name, one in named if one == value)
    return found, () if found else (unknown_card(name, value),)


def _labels(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Labels that a node must have, one each."""
    yield from ((str(name), str(value)) for name, value in table(spec.get("nodeSelector")).items())
    affinity = table(table(spec.get("affinity")).get("nodeAffinity"))
    required = table(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in required.get("nodeSelectorTerms") or ():
        for rule in table(term).get("matchExpressions") or ():
            if table(rule).get("operator") == "In":
                yield from ((str(rule.get("key")), str(value)) for value in rule.get("values") or ())


def _train_job(spec: Mapping[str, Any], name: str, scripts: Mapping[str, str]) -> Iterator[Inside]:
    trainer = table(spec.get("trainer"))
    container = {**trainer, "resources": trainer.get("resourcesPerNode")}
    nodes = whole(trainer.get("numNodes")) or 1
    each = trainer.get("numProcPerNode") or "auto"
    pod = Pod({"containers": [container]}, name, nodes, elastic={"nnodes": str(nodes), "nproc-per-node": str(each)})
    yield from containers(pod, f"TrainJob {name}", scripts)


MOUNT: Final = "/mnt/models"
"""Where KServe puts a model of a hub."""
MODEL_AT: Final = re.compile(r"(?:hf|ms|modelscope)://([\w.-]+/[\w.-]+?)(?::[\w.-]+)?")

HUGGING_FACE_SERVER: Final = {"model_id": "model", "model_dir": "model"}
"""Arguments of KServe's server -> vLLM's [kserve python/huggingfaceserver/huggingfaceserver/__main__.py]."""

OF_TRANSFORMERS: Final = ("--task", "--return_probabilities", "--return_raw_logits", "--tensor_input_names")
"""Arguments that it takes where vLLM does not run [kserve python/huggingfaceserver/huggingfaceserver/__main__.py]."""

OWN: Final = (
    "model_name", "backend", "task", "return_raw_logits", "tensor_input_names", "http_port", "grpc_port", "workers",
    "max_length", "enable_docs_url", "disable_lower_case", "disable_special_tokens", "return_token_type_ids",
    "model_revision", "tokenizer_revision", "return_probabilities", "disable_log_requests", "request_logger",
)
"""Arguments that are KServe's own, and change no memory of vLLM's; `max_length` is of the other backend."""


def _inference_service(spec: Mapping[str, Any], name: str, scripts: Mapping[str, str]) -> Iterator[Inside]:
    predictor = table(spec.get("predictor"))
    kind = f"InferenceService {name}"
    worker = table(predictor.get("workerSpec"))
    nodes = whole(worker.get("pipelineParallelSize")) or (1 if not worker else 2)
    yield from containers(Pod(predictor, name, nodes), kind, scripts)
    model = table(predictor.get("model"))
    if not model:
        return
    if table(model.get("modelFormat")).get("name") not in ("huggingface", "vLLM"):
        return
    place, unread = _place(predictor)
    count, more = _cards(model)
    environment = variables(model.get("env"))
    given = _substituted(words_of(model.get("args")), environment)
    given = (*words_of(model.get("command")), *given)
    words, notes = _of_hugging_face_server(given)
    at = MODEL_AT.fullmatch(str(model.get("storageUri") or ""))
    words = tuple(word for word in words if at is None or not re.fullmatch(r"--model=/mnt/models/?", word))
    named = any(word in ("--model", "--model_id") or word.startswith(("--model=", "--model_id=")) for word in words)
    if at is not None and not named:
        words = (at[1], *words)
    elif not named:
        unread = (*unread, Unread("storageUri", "names no model of a hub; give MODEL", "model"))
    tensor = whole(worker.get("tensorParallelSize"))
    words = (*words, *(("--tensor-parallel-size", str(tensor)) if tensor else ()),
             *(("--pipeline-parallel-size", str(nodes)) if worker else ()))
    if any(word.partition("=")[0] in OF_TRANSFORMERS for word in given):
        unread = (*unread, Unread("--task", "runs Transformers, which is not modelled as a server"))
    elif "--backend=huggingface" in given or _after(given, "--backend") == "huggingface":
        unread = (*unread, Unread("--backend huggingface", "runs Transformers, which is not modelled as a server"))
    yield Inside(
        kind, ("vllm", "serve", *words), environment=environment, place=place, cards=count, nodes=nodes, name=name,
        share=share_of(model),
        unread=(*unread, *more), notes=notes, has_gpu=True,
    )


def _after(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""


def _of_hugging_face_server(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that KServe's server hands to vLLM, and a line that says so."""
    found: list[str] = []
    skipped = False
    for word in words:
        if not word.startswith("--"):
            found += [] if skipped else [word]
            skipped = False
            continue
        name, equals, value = word[2:].partition("=")
        plain = name.replace("-", "_")
        skipped = plain in OWN and not equals
        if plain not in OWN:
            found.append(f"--{HUGGING_FACE_SERVER.get(plain, plain).replace('_', '-')}{equals}{value}")
    return tuple(found), ("KServe's server hands its arguments to vLLM, whose version is that of KServe's image",)


OF_A_LLM_SERVICE: Final = (
    "model", "parallelism", "template", "worker", "prefill", "baseRefs", "replicas", "router", "scaling", "labels",
    "annotations", "tracing", "storageInitializer",
)
"""What of its specification is read, or changes no card's memory."""


def _llm_service(spec: Mapping[str, Any], name: str) -> Iterator[Inside]:
    """`vllm serve` as KServe's template has it: the template's own arguments, the model, the degrees."""
    kind = f"LLMInferenceService {name}"
    unread: tuple[Unread, ...] = ()
    if spec.get("prefill") is not None:
        why = "serves prompts on other machines, which is not modelled; give the decoder's command"
        unread = (Unread("prefill", why),)
    if spec.get("baseRefs"):
        unread = (*unread, Unread("baseRefs", "are configurations of their own, which are not in the file"))
    unread = (*unread, *(Unread(f"spec.{name}") for name in spec if name not in OF_A_LLM_SERVICE))
    model, degrees = table(spec.get("model")), table(spec.get("parallelism"))
    if model.get("lora"):
        unread = (*unread, Unread("model.lora", "adds adapters; give --lora-slots and --lora-rank", "lora-slots"))
    if whole(degrees.get("pipeline")) not in (None, 1):
        unread = (*unread, Unread("parallelism.pipeline"))
    at = MODEL_AT.fullmatch(str(model.get("uri") or ""))
    if at is None:
        unread = (*unread, Unread("model.uri", "names no model of a hub; give MODEL", "model"))
    pod = table(spec.get("template"))
    place, more = _place(pod)
    listed: Sequence[Any] = pod.get("containers") or ({},)
    for container in listed:
        one = table(container)
        if one.get("name", "main") != "main":
            continue
        count, slices = _cards(one)
        environment = variables(one.get("env"))
        words = [at[1]] if at is not None else []
        passed = (("tensor", "tensor-parallel-size"), *([("data", "data-parallel-size")] if "worker" in spec else []))
        for field, option in passed:
            if (size := whole(degrees.get(field))) is not None:
                words += [f"--{option}", str(size)]
        words += ["--enable-expert-parallel"] if degrees.get("expert") is True else []
        own = _own_command(one)
        added = environment.pop("VLLM_ADDITIONAL_ARGS", "")
        local = whole(degrees.get("dataLocal"))
        data = whole(degrees.get("data"))
        nodes = data // local if data and local and data % local == 0 else 1
        image = str(one.get("image") or "")
        script = own or " ".join(("vllm serve", *words, *words_of(one.get("args")), added))
        if at is not None:  # the model is mounted there
            script = re.sub(rf"{MOUNT}(?![\w/])", at[1], script)
        yield Inside(
            kind, (), image, script=script, environment=environment, place=place, cards=count, nodes=nodes, name=name,
            unread=(*unread, *more, *slices), has_gpu=True, share=share_of(one),
        )


def _own_command(container: Mapping[str, Any]) -> str:
    """A command that stands in place of the template's."""
    command = words_of(container.get("command"))
    return shlex.join((*command, *words_of(container.get("args")))) if command else ""
