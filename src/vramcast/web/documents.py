"""The shapes of replies, for their JSON Schema: those of nouns are read off the nouns, and only what their documents
say otherwise stands here. A test holds real replies against them, and none has room for a key that is not named."""

from __future__ import annotations

from types import GenericAlias, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, UnsetType, defstruct
from msgspec.structs import fields as fields_of

from vramcast.domain import answer, failure, planning
from vramcast.domain.answer import Fit, Fleet, HostNeed, LoadMemory, Speed, StepTime, Tried
from vramcast.domain.device import Gpu
from vramcast.domain.planning import Decision, MissedLimit, Point, Technique
from vramcast.domain.price import Price

Options = dict[str, Any]

SHAPES: Final[dict[Any, Any]] = {}
"""Noun -> the shape of its document, for nouns that hold it."""


def maybe(kind: Any) -> Any:
    """The type of a key that may be absent."""
    return kind | UnsetType


def many(kind: Any) -> Any:
    """A list of objects of a shape."""
    return GenericAlias(list, (kind,))


def shape(
    name: str, text: str, noun: type[Struct] | None = None, /, *, base: Any = Struct, without: tuple[str, ...] = (),
    needed: tuple[str, ...] = (), is_open: bool = False, **keys: Any,
) -> Any:
    """The shape of an object.

    Args:
        name: of its schema
        text: what it is
        noun: whose fields are keys; those that have a default are absent where they hold it
        base: a shape whose keys it has as well
        without: fields of the noun that the document leaves out
        needed: fields with a default that are never absent
        is_open: whether it may hold keys that are not named
        keys: more of them, by the names of fields, or other types of the noun's
    """
    rows: dict[str, Any] = {}
    hints = {} if noun is None else get_type_hints(noun)
    for field in () if noun is None else fields_of(noun):
        if field.name in without:
            continue
        kind = _shaped(hints[field.name])
        has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        rows[field.name] = maybe(kind) if has_default and field.name not in needed else kind
    rows |= keys
    found = defstruct(
        name, [(key, kind, UNSET) if UnsetType in get_args(kind) else (key, kind) for key, kind in rows.items()],
        bases=(base,), namespace={"__doc__": text}, kw_only=True, forbid_unknown_fields=not is_open,
        rename=None if noun is None else {field.name: field.encode_name for field in fields_of(noun)},
    )
    if noun is not None:
        SHAPES.setdefault(noun, found)
    return found


def _shaped(kind: Any) -> Any:
    """A field's type as documents have it: nouns in their shapes; what would be null is absent."""
    if get_origin(kind) in (Union, UnionType):
        left = [_shaped(part) for part in get_args(kind) if part is not type(None)]
        return Union[tuple(left)]  # noqa: UP007
    if get_origin(kind) in (tuple, list, dict) and get_args(kind):
        return get_origin(kind)[tuple(part if part is ... else _shaped(part) for part in get_args(kind))]
    return SHAPES.get(kind, kind)


class Host(HostNeed, frozen=True, kw_only=True):
    """What a plan keeps in each machine beside the cards, and whether there is enough."""

    fits: bool


class Looked(Tried, frozen=True, kw_only=True):
    """One plan that a search looked at, and the verdict on it."""

    verdict: Fit


SHAPES.update({HostNeed: Host, Tried: Looked})

PeakBytes = shape("PeakBytes", "One high-water mark at the three levels [bytes].", answer.Peak)
Peak = shape(
    "Peak", "The same, with the 90 % interval of its device bytes.", base=PeakBytes, interval_bytes=tuple[int, int]
)
Rank = shape(
    "Rank", "The ranks of one role.", answer.RankAnswer, without=("interval_bytes", "chance_to_fit"), peak=Peak)
Change = shape(
    "Change",
    "One change of the plan and what it would lead to; `apply`: the options to put into the question; `high_bytes`:\n"
    "    the upper end of the 90 % interval.",
    answer.Change, needed=("cost",), verdict=Fit, apply=maybe(Options),
)
Cost = shape(
    "Cost", "What the job costs, in the currency of its price.",
    per_hour=float, currency=str, tariff=Literal["on-demand", "spot"], machines=int, machine_per_hour=float,
    per_million_tokens=maybe(float), per_run=maybe(float), run_hours=maybe(float), region=maybe(str), date=maybe(str),
    age_days=maybe(int), source=maybe(str),
)
Found = shape(
    "Found", "What an inverse question came to.", answer.Found, without=("tried",), what=maybe(str),
    value=maybe(int | str),
)
Capacity = shape("Capacity", "What a deployment's cache holds.", answer.Capacity, kv_tokens=int)
PlanPart = shape(
    "PlanPart",
    "The answer to one plan; `high_bytes`: the upper end of the 90 % interval of what the fullest card needs in its\n"
    "    highest phase.",
    answer.Answer, without=("cautions", "cost"), needed=("assumptions", "warnings", "changes"),
    verdict=Fit, peak=Peak, needed_bytes=int, high_bytes=int, price=maybe(Cost), tried=maybe(list[Looked]),
)
ServePart = shape(
    "ServePart", "The answer to one deployment.", base=PlanPart,
    time=maybe(Speed), shortfall=maybe(str), capacity=maybe(Capacity), startup=maybe(dict[str, int]),
    load=maybe(LoadMemory), fleet=maybe(Fleet),
)
TrainAnswer = shape("TrainAnswer", "What `vramcast train --json` prints.", base=PlanPart, schema=Literal[1])
ServeAnswer = shape("ServeAnswer", "What `vramcast serve --json` prints.", base=ServePart, schema=Literal[1])
Search = shape(
    "Search", "What every search says beside its plans.", planning.PlanAnswer,
    without=("plans", "nearest_failing"),
    needed=("reasons", "front", "decisions", "techniques", "assumptions", "warnings"),
    schema=Literal[1], options=list[Options], reasons=list[str],
)
TrainSearch = shape(
    "TrainSearch", "What `vramcast plan train --json` prints of a search.", base=Search, plans=many(PlanPart),
    nearest_failing=maybe(PlanPart),
)
ServeSearch = shape(
    "ServeSearch", "What `vramcast plan serve --json` prints.", base=Search, plans=many(ServePart),
    nearest_failing=maybe(ServePart),
)

Fix = shape("Fix", "What would help.", failure.Fix, action=str)
Finding = shape(
    "Finding", "One failure that a text tells of.", failure.Statement, confidence=float, detail=maybe(str),
    numbers=maybe(Options), why=maybe(list[str]), meaning=maybe(dict[str, str]), fixes=maybe(many(Fix)),
    **dict[str, Any]({"class": str}),
)
Check = shape("Check", "One stability or compatibility check.", check=str, text=str)
Diagnosis = shape(
    "Diagnosis", "What `vramcast oom --json` prints.", failure.Diagnosis, needed=("lines",), schema=Literal[1],
    findings=many(Finding), checks=maybe(many(Check)),
)
Device = shape(
    "Device", "One device of a recording; docs/replay.md has all its keys.", is_open=True,
    device=int, events=int, allocations=int, num_ooms=int, peak=Options, segments=list[Options],
    basis=Literal["replayed", "recorded", "simulated", "summed"],
    outcome=Literal["exact", "close", "failed", "not compared"], timeline=list[Options], out_of_memory=list[Options],
    unallocated=maybe(Options), about=maybe(list[str]),
)
Replay = shape(
    "Replay", "What `vramcast replay --json` prints.", schema=Literal[1], devices=many(Device), snapshot=maybe(str),
    format=maybe(str), alloc_conf=maybe(str), main_device=maybe(int), warnings=maybe(list[str]),
)

File = shape("File", "One file of a plan.", name=str, text=str)
Files = shape(
    "Files", "The files of the tools that run a plan, and what is to be said of them.",
    schema=Literal[1], files=many(File), notes=list[str],
)
AskedOption = shape(
    "AskedOption", "One option of a form.", name=str, kind=str, choices=list[str], help=str, group=str,
    default=maybe(Any),
)
AskedOptions = shape(
    "AskedOptions", "The options of a command that a visitor may give, group by group.",
    schema=Literal[1], options=many(AskedOption),
)
ModelRow = shape(
    "ModelRow", "One model or diffusion pipeline.", name=str, family=str, parameters=int,
    active_parameters=maybe(int), layers=maybe(int), hidden=maybe(int), vocabulary=maybe(int), context=maybe(int),
    components=maybe(dict[str, int]),
)
Models = shape("Models", "Models and pipelines of the catalogue.", schema=Literal[1], models=many(ModelRow))
Gpus = shape("Gpus", "Cards of the catalogue.", schema=Literal[1], gpus=list[Gpu])
InstancePrice = shape("InstancePrice", "What a machine costs an hour.", Price, tariff=str)
Instance = shape(
    "Instance", "One machine for rent, or a reference box.", name=str, gpu=str, gpus=int, visible_bytes=int, link=str,
    machines=maybe(int), slices_of_a_card=maybe(int), link_bytes_per_s=maybe(int), network_bytes_per_s=maybe(int),
    rdma=maybe(str), host_bytes=maybe(int), nvme_bytes=maybe(int), vcpus=maybe(int), price=maybe(InstancePrice),
    note=maybe(str), source=maybe(str), checked=maybe(str), confidence=maybe(str),
)
Instances = shape("Instances", "Machines of the catalogue.", schema=Literal[1], instances=many(Instance))
Case = shape(
    "Case", "One measured case beside its prediction; what is unknown is absent.",
    group=str, level=str, name=str, source=str, unit=maybe(str), card=maybe(str), measured=maybe(float),
    predicted=maybe(float), error=maybe(float), mark=maybe(Literal["scope", "suspect"]), refused=maybe(str),
    url=maybe(str),
)
Peer = shape(
    "Peer", "Errors of another tool on the same rows, as shares of what was measured.", median=float, worst=float
)
CaseGroup = shape(
    "CaseGroup",
    "What the cases of one group and level come to, those marked left out; errors are shares of what was measured.",
    group=str, level=str, cases=int, predicted=int, median=maybe(float), p95=maybe(float), worst=maybe(float),
    under=maybe(float), peers=maybe(GenericAlias(dict, (str, Peer))),
)
Accuracy = shape(
    "Accuracy", "Every measured case beside its prediction.", schema=Literal[1], groups=many(CaseGroup),
    cases=many(Case),
)
Network = shape(
    "Network", "The model of the catalogue that a file describes.", schema=Literal[1], model=str, exact=bool,
)
Decided = shape(
    "Decided", "What becomes of an object; `patch`: operations on it in base64.", uid=str, allowed=bool,
    status=maybe(Options), warnings=maybe(list[str]), patchType=maybe(Literal["JSONPatch"]), patch=maybe(str),
)
AdmissionReview = shape(
    "AdmissionReview", "The answer to Kubernetes.", apiVersion=Literal["admission.k8s.io/v1"],
    kind=Literal["AdmissionReview"], response=Decided,
)
Named = shape(
    "Named", "What reports call things, in one language.", schema=Literal[1], lang=Literal["en", "zh"],
    words=dict[str, str],
)
Version = shape(
    "Version", "What answers, and how many measured figures it was held against.", schema=Literal[1], version=str,
    hubs=list[str], today=str, measured=int,
)
Description = shape(
    "Description", "An OpenAPI description.", is_open=True, openapi=str, info=Options, paths=Options,
    components=Options,
)
Error = shape(
    "Error",
    "Why there is no answer: the class of the error, and one sentence; the same in the language asked for.",
    error=str, message=str, said=maybe(str),
)

REPLIES: Final[dict[str, tuple[Any, ...]]] = {
    "train": (TrainAnswer,), "serve": (ServeAnswer,), "plan/train": (TrainSearch, TrainAnswer),
    "plan/serve": (ServeSearch,), "oom": (Diagnosis,), "replay": (Replay,), "files": (Files,),
    "network": (Network,), "validate": (AdmissionReview,), "mutate": (AdmissionReview,), "words": (Named,),
    **dict.fromkeys(
        ("options/train", "options/serve", "options/plan-train", "options/plan-serve"), (AskedOptions,)
    ),
    "models": (Models,), "gpus": (Gpus,), "instances": (Instances,), "accuracy": (Accuracy,), "version": (Version,),
    "openapi.json": (Description,),
}
"""Path of a route -> what it answers, one of them; a report is a text."""

DROPPED: Final = (StepTime, Speed, Host, Looked, Point, Decision, Technique, MissedLimit, Gpu)
"""Nouns of which documents leave out what is None or an empty text."""
