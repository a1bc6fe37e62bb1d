"""The shapes of replies, for their JSON Schema: those of nouns by the keys that these declare, and what the web alone
answers. A test holds real replies against them, and none has room for a key that is not named.
"""

from __future__ import annotations

from types import GenericAlias, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, UnsetType, defstruct
from msgspec.structs import fields as fields_of

from vramcast.catalogue.machines import Machine
from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.device import Gpu
from vramcast.domain.failure import Diagnosis, Remark
from vramcast.domain.model import Noun
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.verdict import Fit
from vramcast.report.document import Key, keys_of

Options = dict[str, Any]


def maybe(kind: Any) -> Any:
    """The type of a key that may be absent."""
    return kind | UnsetType


def many(kind: Any) -> Any:
    """A list of objects of a shape."""
    return GenericAlias(list, (kind,))


def shape(name: str, text: str, /, *, base: Any = Struct, is_open: bool = False, **keys: Any) -> Any:
    """The shape of an object; `base`: one whose keys it has as well; `is_open`: it may hold keys that are not named."""
    rows = [(key, kind, UNSET) if UnsetType in get_args(kind) else (key, kind) for key, kind in keys.items()]
    return defstruct(
        name, rows, bases=(base,), namespace={"__doc__": text}, kw_only=True, forbid_unknown_fields=not is_open
    )


SHAPES: Final[dict[Any, Any]] = {Remark: str}  # which reports word
"""Noun -> the shape of its JSON."""


def shape_of(noun: type[Noun], known: dict[Any, Any] = SHAPES, *, name: str = "") -> Any:
    """The shape of a noun's JSON; `known`: those there are, and where it is added; `name`: of its own."""
    if noun not in known:
        keys = {key.name: _type_of(noun, key, known) for key in keys_of(noun)}
        known[noun] = shape(name or noun.__name__, noun.__doc__ or "", **keys)
    return known[noun]


def _type_of(noun: Any, key: Key, known: dict[Any, Any]) -> Any:
    """The type of what a key shows; it may be absent where that, or what holds it, is a default or not known."""
    kind, lacks = noun, False
    for name in key.path:
        field = next((field for field in fields_of(kind) if field.name == name), None)
        kind = get_type_hints(kind)[name] if field else get_type_hints(getattr(kind, name).fget)["return"]
        has_default = field is not None and not (field.default is field.default_factory is NODEFAULT)
        lacks = lacks or type(None) in get_args(kind) or (has_default and not key.is_shown)
        kind = _without_none(kind)
    return maybe(_shaped(kind, known)) if lacks else _shaped(kind, known)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return Union[tuple(part for part in get_args(kind) if part is not type(None))]  # noqa: UP007


def _shaped(kind: Any, known: dict[Any, Any]) -> Any:
    """A type as documents have it: nouns in their shapes."""
    if get_origin(kind) in (tuple, list, dict) and get_args(kind):
        return get_origin(kind)[tuple(part if part is ... else _shaped(part, known) for part in get_args(kind))]
    if kind in known:
        return known[kind]
    return shape_of(kind, known) if isinstance(kind, type) and issubclass(kind, Noun) else kind


def reply_of(own: Any) -> Any:
    """A shape as a whole reply."""
    return shape(f"{own.__name__}Reply", own.__doc__, base=own, schema=Literal[1])


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
Place = shape(
    "Place", "What a question comes to with two of its options changed, or why it has no answer; `apply`: both, null\n"
    "    where one is left out.",
    apply=dict[str, str | None], verdict=maybe(Fit), needed_bytes=maybe(int), concurrency=maybe(float), said=maybe(str),
)
Matrix = shape(
    "Matrix", "The same question over two of its options, by rows; `rows`: the values down and across.",
    schema=Literal[1], down=str, across=str, rows=list[list[str | None]], cells=GenericAlias(list, (many(Place),)),
)
RefusedChoice = shape(
    "RefusedChoice", "A choice that a question cannot have; `cure`: what to set with it where that is enough.",
    value=str, said=str, cure=maybe(dict[str, str]),
)
Choices = shape(
    "Choices", "The choices of an option that a question cannot have.", schema=Literal[1], option=str,
    refused=many(RefusedChoice),
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
Gpus = shape("Gpus", "Cards of the catalogue.", schema=Literal[1], gpus=many(shape_of(Gpu)))
Instances = shape("Instances", "Machines of the catalogue.", schema=Literal[1], instances=many(shape_of(Machine)))
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

TRAIN, SERVE, SEARCH = (reply_of(shape_of(noun)) for noun in (Answer, ServeAnswer, PlanAnswer))
OF_SERVING: Final = {**SHAPES, Answer: SHAPES[ServeAnswer]}
del OF_SERVING[PlanAnswer]
SERVE_SEARCH: Final = reply_of(shape_of(PlanAnswer, OF_SERVING, name="ServePlanAnswer"))

REPLIES: Final[dict[str, tuple[Any, ...]]] = {
    "train": (TRAIN,), "serve": (SERVE,), "plan/train": (SEARCH, TRAIN), "plan/serve": (SERVE_SEARCH,),
    "oom": (reply_of(shape_of(Diagnosis)),), "replay": (Replay,), "files": (Files,),
    "choices": (Choices,), "matrix": (Matrix,), "step": (Replay,),
    "network": (Network,), "validate": (AdmissionReview,), "mutate": (AdmissionReview,), "words": (Named,),
    **dict.fromkeys(
        ("options/train", "options/serve", "options/plan-train", "options/plan-serve"), (AskedOptions,)
    ),
    "models": (Models,), "gpus": (Gpus,), "instances": (Instances,), "accuracy": (Accuracy,), "version": (Version,),
    "openapi.json": (Description,),
}
"""Path of a route -> what it answers, one of them; a report is a text."""
