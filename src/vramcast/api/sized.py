"""What a job of a cluster takes by its own command, beside what its manifest or batch script asks for.

[gpu] https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus: cards are asked for by limits, whole ones only
[mig] https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/gpu-operator-mig.html: `nvidia.com/mig-PROFILE`
of the strategy "mixed"
[hami] Project-HAMi/HAMi docs/config.md: `nvidia.com/gpumem` is MiB of each card, which the process takes for the card's
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramcast import api, catalogue, formats
from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.verdict import Fit
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported, VramcastError
from vramcast.formats.reading import Config, table
from vramcast.formats.tools import kubernetes, kubernetes_read
from vramcast.formats.tools.kubernetes import RESOURCES
from vramcast.formats.wrapped import whole
from vramcast.question.option import table_of
from vramcast.units import MIB, ceil_div

if TYPE_CHECKING:
    from vramcast.question.build import Resolve
    from vramcast.report.messages import Words

CARD: Final = "vramcast.dev/gpus"
"""The annotation that names the card, as `--gpus` takes it, where no label of nodes does."""
SHARE: Final = "vramcast.dev/share"
"""The annotation that asks for a part of a card."""
SHARES: Final = ("mig", "hami")
COMPUTE: Final = {1: 1, 2: 2, 4: 3, 8: 7}
"""Eighths of a card's memory -> sevenths of its processors that the smallest instance with them has [mig]."""
HAMI: Final = "nvidia.com/gpumem"
MIG: Final = "nvidia.com/mig-"
SHARED: Final = "nvidia.com/gpu.shared"
"""A part of a card whose size no manifest says."""
COUNTED: Final = (*RESOURCES.values(), kubernetes.VGPU_NUMBER)
STARTS_NOTHING: Final = (
    "autoscaling", "policy", "cert-manager.io", "monitoring.coreos.com", "karpenter.sh", "karpenter.k8s.aws", "keda.sh",
    "cloud.google.com", "resource.nvidia.com", "external-secrets.io", "networking.gke.io", "networking.istio.io",
)
NO_JOBS: Final = (".k8s.io", "kueue.x-k8s.io")
"""Ends of groups of Kubernetes' own whose objects start nothing; `jobset.x-k8s.io` and its kin start jobs, and so do
Kueue's workloads."""
KUEUE: Final = "kueue.x-k8s.io"
OF_CORE: Final = ("Pod", "ReplicationController", "PodTemplate", "List")
"""Kinds of the group without a name that start something."""
BESIDE: Final = ("gpus", "from", "args", "env")
"""Options that say more of a job here; all others are those of the commands that answer."""
OBJECT: Final = "object.yaml"
"""The file in which an object is read."""


class Sized(NamedTuple):
    """One job of a cluster."""

    name: str  # "Deployment qwen"
    answer: Answer
    gpus: str  # as `--gpus` takes it, by what its command starts
    container: str = ""  # of Kubernetes, whose command it is

    @property
    def cards(self) -> int:
        """That it takes of one machine."""
        return int(catalogue.clusters.cluster_of(self.gpus).gpus_per_node)

    @property
    def nodes(self) -> int:
        return int(catalogue.clusters.cluster_of(self.gpus).num_nodes)

    @property
    def fits(self) -> bool:
        return self.answer.verdict is not Fit.NOT

    @property
    def resources(self) -> dict[str, str]:
        """What a container of it asks Kubernetes for."""
        vendor = catalogue.clusters.cluster_of(self.gpus).gpu.vendor
        if vendor not in RESOURCES:
            raise Unsupported("no device plugin is known for cards of {}; use --format pai-dlc", vendor)
        return {RESOURCES[vendor]: str(self.cards)}


class Declared(NamedTuple):
    """Cards that a file asks for, of each machine, and how many of these."""

    cards: int | None = None
    nodes: int = 1


NOTHING: Final = Declared()


def sized(
    path: Path, *, name: str = "", gpus: str = "", declared: Declared = NOTHING, resolve: Resolve | None = None,
    beside: Mapping[str, Any] = {},
) -> Sized:
    """The answer about a file's own command on as many cards as it starts processes for.

    Args:
        path: a manifest with one job, or a batch script
        name: of the job, for sentences
        gpus: the card, without a number; "": what the file itself names
        declared: what the file asks for: a command that says no number takes what it sees
        resolve: what a model's name means; None: as on the command line
        beside: what it is started with, "args" and "env", and further files, "from"

    Raises: VramcastError with one sentence
    """
    files = {**beside, "from": (str(path), *map(str, beside.get("from", ())))}
    configs = formats.paths.configs_in(files)
    commands = [one for one in formats.read.commands_of(configs.paths, started=configs.given)
                if one in ("serve", "train")]
    if not commands:
        raise Unsupported("{}: starts nothing that is read", name or path.name)
    command = commands[0]
    given = formats.read.read_files(configs.paths, command=command, started=configs.given)
    if resolve is not None and (model := given.options.get("model")):
        resolve(str(model))  # before anything else looks for it
    engine = str(given.options.get("engine")).partition("@")[0]
    takes_all = command == "train" or (engine in SERVING and not SERVING[engine].splits)
    if gpus and gpus != "here" and (cluster := catalogue.clusters.cluster_of(gpus)).count > 1:
        gpus = cluster.gpu.name  # their number is the command's
    if gpus and takes_all and not given.ranks and declared.cards:
        gpus = f"{declared.nodes}x{declared.cards}x{gpus}"
    named = files | ({"gpus": gpus} if gpus else {})
    asked = api.question_of(named, None, command)
    if "gpus" not in asked.options:
        raise InvalidSpec("{}: names no card; give --gpus, a label of nodes or the annotation {}",
                          name or path.name, CARD)
    resolve = resolve or asked.resolve
    answer = api.answer_to(command, asked.options, resolve=resolve)
    return Sized(name or path.name, asked.noted(answer), str(asked.options["gpus"]))


def objects_of(document: Mapping[str, Any]) -> str:
    """How a person calls an object."""
    kind, metadata = document.get("kind"), table(document.get("metadata"))
    called = f"{kind or 'object'} {metadata.get('name') or metadata.get('generateName') or ''}".strip()[:120]
    return called.encode("utf-8", "replace").decode()  # JSON may hold halves of characters, which no reply can


def unjudged(name: str, error: VramcastError, words: Words) -> str:
    """The line of a job without an answer: why, without what only options of other commands change."""
    note: Note = error.args[0]
    inner = note.values[0] if note.template == formats.read.LENIENT else note
    why = words.said(inner if isinstance(inner, Note) else str(inner))
    why = re.sub(rf"(?:[^\s:：]*/)?(?:{re.escape(OBJECT)}|{re.escape(name)})(?:: |：)", "", why)
    advised = {*re.findall(r"--([a-z][a-z-]*)", why), *re.findall(r"\bMODEL\b", why)} - set(BESIDE)
    if advised & {*table_of("train"), *table_of("serve"), "MODEL"}:
        why = words("admission.elsewhere", why=why)
    return words("admission.unjudged", name=name, why=why)


def sized_object(
    document: Mapping[str, Any], maps: Sequence[Mapping[str, Any]] = (), *, gpus: str = "",
    resolve: Resolve | None = None, beside: Mapping[str, Any] = {},
) -> tuple[Sized, dict[str, str]]:
    """An object of Kubernetes, and what its containers should ask for.

    Args:
        document: the object
        maps: configuration maps that it names, claims of devices, queues
        gpus: the card, where neither an annotation nor a label of nodes names one
        resolve, beside: as `sized` takes them

    Raises: VramcastError with one sentence
    """
    notes = table(table(document.get("metadata")).get("annotations"))
    card, share = str(notes.get(CARD) or ""), str(notes.get(SHARE) or "")
    if share and share not in SHARES:
        raise UnknownName.of(SHARE, share, SHARES)
    with TemporaryDirectory() as folder:
        path = Path(folder) / OBJECT
        asked = (_without_gpus(document), *maps)  # the command says how many
        path.write_text("\n---\n".join(map(json.dumps, asked)), encoding="utf-8")
        claims = any(table(one.get("resources")).get("claims") for _, one in resource_holders(document))
        part = formats.wrapped.inside(formats.reading.read_config(path), formats.read.is_known)
        if claims and part is not None and not part.cards:
            raise InvalidSpec("resources.claims ask for devices in objects of their own, which are not in the file")
        of_node = catalogue.clusters.cluster_of(part.place).gpu.name if part is not None and part.place else ""
        container, nodes = (part.name, part.nodes) if part is not None else ("", 1)
        place, profile = card or of_node or gpus, "" if share else _profile(document, container)
        seen = {} if share else _seen(document, container)
        if place and (profile or seen):
            name = catalogue.clusters.cluster_of(place).gpu.name
            place = f"{name}-{profile}" if profile else formats.merged.with_share(name, seen.pop(""))
        declared = Declared(next((count for _, one in _holders_of(document, container)
                                  for name, size in _limits(one).items()
                                  if name in COUNTED and (count := whole(size))), None), nodes)
        found = sized(path, name=objects_of(document), gpus=place, declared=declared, resolve=resolve,
                      beside=beside)._replace(
            container=container)
        if found.nodes > nodes and not _is_pool(document):
            raise InvalidSpec("{}: has {} machines, its command takes {}; correct one", found.name, nodes, found.nodes)
        if claims:
            return found, {}
        if seen:
            is_of_volcano = any(name.startswith("volcano.sh/") for name in seen)
            number = kubernetes.VGPU_NUMBER if is_of_volcano else RESOURCES["NVIDIA"]
            return found, {number: str(found.cards)} | seen
        if not profile and (not share or not found.fits):
            return found, found.resources
        if found.cards * found.nodes != 1:
            raise InvalidSpec("{}: a part of a card is for a job on one card; this one takes {}", found.name,
                              found.cards * found.nodes)
        if profile:
            return found, {f"{MIG}{profile}": "1"}
        if share == "mig":
            return _instance(path, found, resolve, beside)
        return found, found.resources | {HAMI: str(_memory_mib(found.answer))}


def _profile(document: Mapping[str, Any], container: str) -> str:
    """The MIG profile that a job asks for; "" where it asks for whole cards.

    Raises: InvalidSpec: it asks for another part of a card
    """
    limits = [name for _, one in _holders_of(document, container) for name in _limits(one)]
    if SHARED in limits:
        raise InvalidSpec("{} is a part of a card that is not sized; give the annotation {}: {}", SHARED, SHARE, "hami")
    return next((name.removeprefix(MIG) for name in limits if name.startswith(MIG)), "")


def _seen(document: Mapping[str, Any], container: str) -> dict[str, str]:
    """What it asks HAMi or Volcano for of each card's memory, by name, and under "" as `with_share` takes it; {} where
    it asks for whole cards."""
    for _, one in _holders_of(document, container):
        if share := kubernetes.share_of(one):
            return {"": share} | {name: str(value) for name, value in _limits(one).items()
                                  if name in kubernetes.VGPUS}
    return {}


def _without_gpus(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_gpus(inner) for key, inner in value.items() if not _is_of_gpus(str(key))}
    return [_without_gpus(inner) for inner in value] if isinstance(value, list) else value


def _instance(
    path: Path, found: Sized, resolve: Resolve | None, beside: Mapping[str, Any]
) -> tuple[Sized, dict[str, str]]:
    """The smallest MIG instance on which it fits with its interval; the whole card where none does."""
    gpu = catalogue.clusters.cluster_of(found.gpus).gpu
    size = float(gpu.memory_nameplate.split()[0])
    for eighths, sevenths in COMPUTE.items():
        profile = f"{sevenths}g.{int(size * eighths / 8 + 0.5)}gb"
        try:
            part = sized(path, name=found.name, gpus=f"{gpu.name}-{profile}", resolve=resolve,
                         beside=beside)._replace(
                container=found.container)
        except InvalidSpec:  # not one of this card
            continue
        if part.answer.verdict in (Fit.FITS, Fit.CLOSELY):
            return part, {f"{MIG}{profile}": "1"}
    return found, found.resources


def _memory_mib(answer: Answer) -> int:
    """What of a card's memory it is enough to have: of a server what its requests need, as a share of which it counts;
    of a training the upper end of its interval [MiB]."""
    if isinstance(answer, ServeAnswer) and answer.load is not None:
        fraction = float(table(answer.question.get("plan")).get("memory_fraction") or 1.0)
        likely = answer.load.per_gpu_bytes * max(1.0, answer.high_bytes / answer.fullest.needed_bytes)
        return ceil_div(int(likely / fraction), MIB)
    return ceil_div(answer.high_bytes, MIB)


def patch_of(document: Mapping[str, Any], found: Sized, resources: Mapping[str, str]) -> list[dict[str, Any]]:
    """The JSON patch that makes the containers of a job ask for these [RFC 6902]; [] where they do.

    Annotations and labels, those of Kueue and Volcano among them, stay as they are.
    """
    patch: list[dict[str, Any]] = []
    if not resources:
        return patch
    is_counted = document.get("kind") == "Workload"  # by Kueue, of a job that says itself what it asks for
    for pointer, holder in () if is_counted or _is_pool(document) else _holders_of(document, found.container):
        key = "resourcesPerNode" if pointer.endswith("/trainer") else "resources"
        old = table(holder.get(key))
        limits = {name: value for name, value in _limits(holder).items() if not _is_of_gpus(name)} | dict(resources)
        requests = {name: value for name, value in table(old.get("requests")).items() if not _is_of_gpus(name)}
        new = {**old, "limits": limits, **({"requests": requests} if "requests" in old else {})}
        if {name: str(value) for name, value in _limits(holder).items()} != {
                name: str(value) for name, value in limits.items()}:
            patch.append({"op": "replace" if key in holder else "add", "path": f"{pointer}/{key}", "value": new})
    return patch


def asks_enough(document: Mapping[str, Any], found: Sized, resources: Mapping[str, str]) -> bool:
    """Whether the containers of a job ask for as much of these as there should be, or more."""
    if not resources:  # it claims its devices, which are what it is answered on
        return True
    if _is_pool(document):
        groups = table(table(document.get("spec")).get("rayClusterConfig")).get("workerGroupSpecs") or ()
        cards = sum((whole(table(group).get("replicas")) or 1) * (whole(table(group).get("numOfHosts")) or 1) * count
                    for group in groups for _, one in resource_holders(group) for name, size in _limits(one).items()
                    if name in resources and (count := whole(size)))
        return cards >= found.cards * found.nodes
    holders = [limits for _, one in _holders_of(document, found.container)
               if any(map(_is_of_gpus, limits := _limits(one)))]
    return bool(holders) and all(
        (whole(limits.get(name)) or 0) >= int(count) for limits in holders for name, count in resources.items())


def is_no_job(document: Mapping[str, Any]) -> bool:
    """Whether an object of Kubernetes' own and of the well-known operators starts nothing."""
    group, slash, _ = str(document.get("apiVersion")).partition("/")
    if group == KUEUE and document.get("kind") == "Workload":
        return False
    return (group in STARTS_NOTHING or group.endswith(NO_JOBS)) if slash else document.get("kind") not in OF_CORE


def takes_no_card(document: Mapping[str, Any]) -> bool:
    """Whether its containers ask for no card, and none starts what is read."""
    try:
        parts = [part for part in kubernetes_read.inside(document, ()) if part.words or part.script]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):  # a foreign object may hold anything anywhere
        return False
    is_read = any(formats.read.is_known(formats.wrapped.as_script(Config("", "", None), part)) for part in parts)
    return not is_read and any(resource_holders(document)) and _asks_for_no_device(document)


def _asks_for_no_device(value: Any) -> bool:
    """Whether nothing of it asks for an extended resource or a claim: a card always is one."""
    if isinstance(value, Mapping):
        limits = [*table(value.get("limits")), *table(value.get("requests"))]
        return not (value.get("resourceClaims") or any("/" in str(name) for name in limits)) and all(
            map(_asks_for_no_device, value.values()))
    return not isinstance(value, list) or all(map(_asks_for_no_device, value))


def _is_pool(document: Mapping[str, Any]) -> bool:
    """Whether its containers are nodes of Ray that any number of replicas and models share, as autoscaling has it."""
    return document.get("kind") == "RayService"


def _holders_of(document: Mapping[str, Any], container: str) -> list[tuple[str, Mapping[str, Any]]]:
    """What of an object asks for the cards of the command in one of its containers, with its JSON pointer.

    A leader and its workers ask for the same; what stands beside the container in its pod, or in another job of a
    set, has cards of its own.
    """
    holders = list(resource_holders(document))
    mine = [one for one in holders if one[1].get("name") == container]
    named = [(at, one) for at, one in holders if any(map(_is_of_gpus, _limits(one)))]
    if not named:
        return mine[:1] or holders[:1]
    if mine and (document.get("kind") == "JobSet" or len({at.rpartition("/")[0] for at, _ in named}) < len(named)):
        return mine
    return named


def _limits(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = table(holder.get("resources")) or table(holder.get("resourcesPerNode"))
    return {**table(resources.get("requests")), **table(resources.get("limits"))} if any(
        map(_is_of_gpus, table(resources.get("requests")))) else table(resources.get("limits"))


def _is_of_gpus(name: str) -> bool:
    return name in COUNTED or name in kubernetes.VGPUS or name.startswith(MIG)


def resource_holders(value: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Whatever has resources in an object, with its JSON pointer [RFC 6901]."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            at = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if key == "containers" and isinstance(inner, list):
                yield from ((f"{at}/{index}", one) for index, one in enumerate(inner) if isinstance(one, Mapping))
            elif at in ("/spec/trainer", "/spec/predictor/model") and isinstance(inner, Mapping):
                yield at, inner
            else:
                yield from resource_holders(inner, at)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from resource_holders(inner, f"{pointer}/{index}")


__all__ = ["CARD", "SHARE", "Sized", "asks_enough", "is_no_job", "objects_of", "patch_of", "resource_holders", "sized",
           "sized_object", "takes_no_card", "unjudged"]
