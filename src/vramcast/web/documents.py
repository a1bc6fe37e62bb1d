"""The shapes of answers, for their JSON Schema: what the documents of `report` hold, key by key.

Nouns that documents hand on as they are stand here as themselves. A test holds real replies against these shapes, and
none of them has room for a key that is not named.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from vramcast.domain.answer import Fit, Fleet, HostNeed, LoadMemory, Speed, StepTime, Tried
from vramcast.domain.planning import Decision, MissedLimit, Point, Technique
from vramcast.domain.program import Basis

MaybeInt = int | UnsetType
MaybeFloat = float | UnsetType
MaybeText = str | UnsetType
Options = dict[str, Any]


class Document(Struct, kw_only=True, forbid_unknown_fields=True):
    """An object all of whose keys are named."""


class PeakBytes(Document):
    """One high-water mark at the three levels [bytes]."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class Peak(PeakBytes):
    """The same, with the 90 % interval of its device bytes."""

    interval_bytes: tuple[int, int]


class Entry(Document):
    """A named part of the peak; the entries of a ledger add up to it."""

    path: str
    bytes: int
    basis: Basis
    count: MaybeInt = UNSET
    formula: MaybeText = UNSET
    source: MaybeText = UNSET


class Rank(Document):
    """The ranks of one role."""

    role: str
    count: int
    peak: Peak
    phases: dict[str, PeakBytes]
    ledger: list[Entry]
    gives_back_cache: bool | UnsetType = UNSET


class Change(Document):
    """One change of the plan and what it would lead to; `apply`: the options to put into the question; `high_bytes`:
    the upper end of the 90 % interval."""

    change: str
    device_bytes: int
    fits: bool
    verdict: Fit
    cost: str
    apply: Options | UnsetType = UNSET
    concurrency: MaybeFloat = UNSET
    slowdown: MaybeFloat = UNSET
    high_bytes: MaybeInt = UNSET


class Cost(Document):
    """What the job costs, in the currency of its price."""

    per_hour: float
    currency: str
    tariff: Literal["on-demand", "spot"]
    machines: int
    machine_per_hour: float
    per_million_tokens: MaybeFloat = UNSET
    per_run: MaybeFloat = UNSET
    run_hours: MaybeFloat = UNSET
    region: MaybeText = UNSET
    date: MaybeText = UNSET
    age_days: MaybeInt = UNSET
    source: MaybeText = UNSET


class Looked(Tried, frozen=True, kw_only=True):
    """One plan that a search looked at, and the verdict on it."""

    verdict: Fit


class Found(Document):
    """What an inverse question came to."""

    goal: str
    num_tried: int
    what: MaybeText = UNSET
    value: int | str | UnsetType = UNSET
    command: MaybeText = UNSET
    nearest_failing: Looked | UnsetType = UNSET


class PlanPart(Document, kw_only=True):
    """The answer to one plan; `high_bytes`: the upper end of the 90 % interval of what the fullest card needs in its
    highest phase."""

    question: Options
    fits: bool
    verdict: Fit
    peak: Peak
    needed_bytes: int
    high_bytes: int
    capacity_bytes: int
    parameters: int
    ranks: list[Rank]
    assumptions: list[str]
    warnings: list[str]
    changes: list[Change]
    ignored: list[str] | UnsetType = UNSET
    time: StepTime | UnsetType = UNSET
    host: Host | UnsetType = UNSET
    run_hours: MaybeFloat = UNSET
    price: Cost | UnsetType = UNSET
    found: Found | UnsetType = UNSET
    tried: list[Looked] | UnsetType = UNSET


class Host(HostNeed, frozen=True, kw_only=True):
    """What a plan keeps in each machine beside the cards, and whether there is enough."""

    fits: bool


class Capacity(Document):
    """What a deployment's cache holds."""

    kv_tokens: int
    kv_tokens_by_count: dict[str, int]
    kv_bytes: int
    sequence_bytes: int
    concurrency: float
    longest_context: int
    safe_fraction: MaybeFloat = UNSET


class ServePart(PlanPart, kw_only=True):
    """The answer to one deployment."""

    time: Speed | UnsetType = UNSET  # type: ignore[assignment]
    shortfall: MaybeText = UNSET
    capacity: Capacity | UnsetType = UNSET
    startup: dict[str, int] | UnsetType = UNSET
    load: LoadMemory | UnsetType = UNSET
    fleet: Fleet | UnsetType = UNSET


class TrainAnswer(PlanPart, kw_only=True):
    """What `vramcast train --json` prints."""

    schema: Literal[1]


class ServeAnswer(ServePart, kw_only=True):
    """What `vramcast serve --json` prints."""

    schema: Literal[1]


class Search(Document):
    """What every search says beside its plans."""

    schema: Literal[1]
    question: Options
    labels: list[str]
    options: list[Options]
    num_plans: int
    num_fitting: int
    reasons: list[str]
    front: list[Point]
    decisions: list[Decision]
    techniques: list[Technique]
    assumptions: list[str]
    warnings: list[str]
    command: MaybeText = UNSET
    nearest_label: MaybeText = UNSET
    change: Change | UnsetType = UNSET
    num_in_memory: MaybeInt = UNSET
    missed: list[MissedLimit] | UnsetType = UNSET
    ignored: list[str] | UnsetType = UNSET


class TrainSearch(Search, kw_only=True):
    """What `vramcast plan train --json` prints of a search."""

    plans: list[PlanPart]
    nearest_failing: PlanPart | UnsetType = UNSET


class ServeSearch(Search, kw_only=True):
    """What `vramcast plan serve --json` prints."""

    plans: list[ServePart]
    nearest_failing: ServePart | UnsetType = UNSET


class Fix(Document):
    """What would help."""

    action: str
    setting: MaybeText = UNSET
    saves_bytes: MaybeInt = UNSET
    shown_by: MaybeText = UNSET
    enough: bool | UnsetType = UNSET


class Finding(Document, rename={"cause": "class"}):
    """One failure that a text tells of."""

    cause: str
    confidence: float
    text: str
    family: str
    wording: str
    line: int
    detail: MaybeText = UNSET
    versions: MaybeText = UNSET
    numbers: Options | UnsetType = UNSET
    why: list[str] | UnsetType = UNSET
    meaning: dict[str, str] | UnsetType = UNSET
    fixes: list[Fix] | UnsetType = UNSET
    repeats: MaybeInt = UNSET


class Check(Document):
    """One stability or compatibility check."""

    check: str
    text: str


class Diagnosis(Document):
    """What `vramcast oom --json` prints."""

    schema: Literal[1]
    name: str
    lines: int
    findings: list[Finding]
    checks: list[Check] | UnsetType = UNSET
    left_out: MaybeInt = UNSET
    cut: bool | UnsetType = UNSET


class Device(Struct, kw_only=True):
    """One device of a recording; docs/replay.md has all its keys."""

    device: int
    events: int
    allocations: int
    num_ooms: int
    peak: Options
    basis: Literal["replayed", "recorded", "simulated", "summed"]
    outcome: Literal["exact", "close", "failed", "not compared"]
    segments: list[Options]
    timeline: list[Options]
    out_of_memory: list[Options]
    unallocated: Options | UnsetType = UNSET
    about: list[str] | UnsetType = UNSET


class Replay(Document):
    """What `vramcast replay --json` prints."""

    schema: Literal[1]
    devices: list[Device]
    snapshot: MaybeText = UNSET
    format: MaybeText = UNSET
    alloc_conf: MaybeText = UNSET
    main_device: MaybeInt = UNSET
    warnings: list[str] | UnsetType = UNSET
