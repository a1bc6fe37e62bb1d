"""A plan that a search found, or a question, as the whole command that asks for it.

A job as the options that ask for it: what `build_job` and `build_serving` read gives the same job again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import WITHOUT_TARGETS, Job, Peft, Plan, Workload
from vramcast.domain.model import Checkpoint, Model
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.domain.version import named
from vramcast.engines.eager.releases import precision_word
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.question.build import build_job
from vramcast.question.options import OPTIONS, Option
from vramcast.question.serving import build_serving
from vramcast.question.tables import SERVE_OPTIONS

LINE: Final = "from-command"
"""The option of what stands behind "--"."""

REPEATED: Final = ("engine-option", "from", "on")
"""Options that read better one by one than with commas between their values."""


STARTERS: Final = ("bash", "sh", "source", ".", "sbatch")
SCRIPTS: Final = (".sh", ".bash", ".sbatch", ".slurm")
"""What starts a script of a shell's, and how those are called."""

ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
"""How a word begins that sets a variable of the environment."""


def train_command(job: Job, options: Mapping[str, Any], model: str | None) -> str:
    """`vramcast train` with the options that make this job.

    Args:
        job: the plan
        options: what the search was asked; a model by numbers, prices and the length of the run are passed on
        model: how the question named it; None: by numbers

    Raises: Unsupported where no options make it
    """
    return question_command("train", train_options(job, options, model=model))


def serve_command(job: ServeJob, options: Mapping[str, Any], model: str | None, label: str) -> str:
    """`vramcast serve` for one replica.

    Args:
        job: the replica
        options: what the search was asked
        model: how the question named it; None: by numbers
        label: the options of the replica, which say how its cards are named

    Raises: Unsupported where no options make it
    """
    return question_command("serve", serve_options(job, options, model=model, gpus=label.split()[1]))


def question_command(
    command: str, options: Mapping[str, Any], *, file: str | Path | None = None,
    behind: Iterable[str] = (),
) -> str:
    """What is typed to ask a question.

    Args:
        command: "train", "plan serve" ...
        options: by their names on the command line; what stands without a name is "model"; None: not given
        file: a job file beneath them
        behind: what stands behind "--"

    >>> question_command("train", {"model": "llama-3.1-8b", "gpus": "h100", "seq-len": 8192, "compile": False})
    'vramcast train llama-3.1-8b --gpus h100 --seq-len 8192 --no-compile'
    >>> question_command("serve", {"gpus": "h100", "from-command": "vllm serve m -tp 2"})
    'vramcast serve --gpus h100 -- vllm serve m -tp 2'
    """
    model = options.get("model")
    name = model.name if isinstance(model, Model) else model
    words = ["vramcast", *command.split(), *([str(name)] if name is not None else [])]
    for option, value in {**options, "file": file}.items():
        if option in ("model", LINE) or value in (None, ""):
            continue
        for one in _apart(option, value):
            words += _written(option, one)
    arguments = (*behind, *words_of(str(options.get(LINE) or "")))
    return shlex.join([*words, *(("--", *arguments) if arguments else ())])


def line_of(words: Sequence[str]) -> str:
    """The words of a command as the script of one line that has them; a single word with blanks is such a script.

    >>> print(line_of(["VLLM_USE_V1=0", "vllm", "serve", "m", "--hf-overrides", '{"a": 1}']))
    VLLM_USE_V1=0 vllm serve m --hf-overrides '{"a": 1}'
    """
    if len(words) == 1 and len(words[0].split()) > 1:
        return words[0]
    begun, found = False, []
    for word in words:
        variable = None if begun else ASSIGNED.match(word)
        begun = variable is None and word != "env"
        found.append(f"{variable[0]}{shlex.quote(word[variable.end():])}" if variable else shlex.quote(word))
    return " ".join(found)


def script_of(words: Sequence[str]) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    """The script of a shell's that a command starts: the variables before it, its path, its arguments; None for others.

    >>> script_of(["NGPU=8", "bash", "run.sh", "7b"]), script_of(["./run.sh"]), script_of(["vllm", "serve", "m"])
    (({'NGPU': '8'}, 'run.sh', ('7b',)), ({}, './run.sh', ()), None)
    """
    before = list(takewhile(ASSIGNED.match, words))
    started = words[len(before):]
    rest = started[1:] if started and started[0].rpartition("/")[2] in STARTERS else started
    if not rest or not rest[0].endswith(SCRIPTS):
        return None
    pairs = (word.partition("=") for word in before)
    return {name: value for name, _, value in pairs}, rest[0], tuple(rest[1:])


def words_of(line: str) -> list[str]:
    """The words of a command as they are typed behind "--"; what is more than words stays one.

    >>> words_of("TP=2; vllm serve m -tp $TP"), words_of("")
    (['TP=2; vllm serve m -tp $TP'], [])
    """
    try:
        words = shlex.split(line)
    except ValueError:  # quotes that do not end
        return [line]
    return words if line_of(words) == line else [line]


def _apart(name: str, value: object) -> tuple[object, ...]:
    """The values of an option that may be given several times; names stand behind one."""
    if not isinstance(value, (list, tuple)):
        return (value,)
    together = name not in REPEATED and not any("," in str(one) for one in value)
    return (",".join(map(str, value)),) if together else tuple(value)


def _written(name: str, value: object) -> Iterator[str]:
    """One option as the command line takes it."""
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    yield str(value)


WRITTEN: Final = ("seq-len", "micro-batch", "grad-accum", "precision", "context", "concurrency")
"""Written whatever their value, for people: engines and questions have defaults of their own."""

OTHERWISE: Final = ("zero", "peft", "find")
"""Options that say what another one says, or that ask for something else than one job."""

KEPT: Final = ("model", "market", "traffic")
"""Sections of options that are repeated as they were given: a job has what they led to."""

FILES: Final = ("calibration",)
"""Options that name a file, of which a job has the contents."""

CARDS: Final = ("gpu", "gpus_per_node", "num_nodes")
"""What memory and speed depend on of a cluster."""

APART: Final = ("cluster", "calibration", "traffic", "assumed")
"""Parts of a job that are compared otherwise, were given as they are, or say what was open, which options close."""


def train_options(job: Job, given: Mapping[str, Any], *, model: str | None) -> dict[str, Any]:
    """The options of `vramcast train` that ask for a job.

    Args:
        job: what is asked for
        given: options of the question that it came from: a model by numbers, prices and files are repeated
        model: how the question named it; None: by numbers

    Raises: Unsupported where no options say what the job is
    """
    engine = named(job.engine, job.engine_version)
    found: dict[str, Any] = {"model": model, "gpus": job.cluster.name, "engine": engine}
    found |= _differing(job.workload, Workload(), OPTIONS, "workload")
    found |= _differing(replace(job.plan, peft=None), Plan(), OPTIONS, "plan")
    if job.plan.peft is not None:
        peft = job.plan.peft
        always = () if peft.method in WITHOUT_TARGETS else ("lora-targets",)
        found |= {"peft": peft.method} | _differing(peft, Peft(), OPTIONS, "peft", always=always)
    if job.global_batch is not None:
        found.pop("grad-accum", None)
        found["global-batch"] = job.global_batch
    found |= {"engine-option": engine_option_words(job.engine_options), "alloc-conf": job.alloc_conf or None}
    found["tokens"] = job.run_tokens

    def asked(options: Mapping[str, Any]) -> Job:
        return build_job(worded(options), resolve=lambda _: Checkpoint(model=job.model))

    def worded(options: Mapping[str, Any]) -> dict[str, Any]:
        """Pure recipes by the name that only they have."""
        own = options.get("precision") is job.plan.precision
        return {**options, **({"precision": precision_word(job)} if own else {})}

    return worded(_completed(found, given, job, _same(asked), OPTIONS, ("workload", "plan", "plan.peft")))


def serve_options(job: ServeJob, given: Mapping[str, Any], *, model: str | None, gpus: str = "") -> dict[str, Any]:
    """The options of `vramcast serve` that ask for a job; `gpus`: how its cards are named, where the cluster's own name
    means others.

    Raises: Unsupported where no options say what the job is
    """
    found: dict[str, Any] = {"model": model, "gpus": gpus or job.cluster.name, "engine": named(job.engine, job.version)}
    found |= _differing(job.requests, Requests(), SERVE_OPTIONS, "requests")
    found |= _differing(replace(job.plan, draft=None), ServePlan(), SERVE_OPTIONS, "plan")
    draft = job.plan.draft
    if draft is not None:
        name = draft.model.name if draft.model is not None else draft.kind
        found |= {"draft": name, "draft-tokens": draft.tokens}
    found |= {"engine-option": engine_option_words(job.engine_options)}
    if job.traffic is not None:
        found.pop("concurrency", None)
        searched = {"replicas": job.traffic.replicas, "num-requests": job.traffic.num_requests}
        given = {**given, **{name: value for name, value in searched.items() if value not in (None, 1)}}
    networks = {} if draft is None or draft.model is None else {draft.model.name: draft.model}

    def asked(options: Mapping[str, Any]) -> ServeJob:
        def resolve(name: str) -> Checkpoint:
            return Checkpoint(model=networks.get(name, job.model))

        again = build_serving(options, resolve=resolve)
        return replace(again, weights=job.weights) if isinstance(again, ServeJob) else job

    return _completed(found, given, job, _same(asked), SERVE_OPTIONS, ("requests", "plan"))


def _completed(
    found: Mapping[str, Any], given: Mapping[str, Any], job: Any, asked: Callable[[Mapping[str, Any]], Any],
    table: Mapping[str, Option], nouns: Iterable[str],
) -> dict[str, Any]:
    """The options with those that say what the engine or the number of cards would otherwise settle.

    Args:
        found: options of what is not as usual
        given: the question's, of which some are repeated
        job: what is asked for
        asked: what options ask for, the network apart
        table: of the command
        nouns: parts of the job that options are about
    """
    repeated = {
        name: value for name, value in given.items()
        if name in table and value is not None and (table[name].section in KEPT or name in FILES)
    }
    options = {name: value for name, value in found.items() if value not in (None, ())} | repeated
    bare = {name: value for name, value in options.items() if name not in table or table[name].section != "model"}
    bare["model"] = job.model.name
    for noun in nouns:
        again, own = (_part(one, noun) for one in (asked(bare), job))
        if own is None:
            continue
        for name, option in table.items():
            if option.section != noun.rpartition(".")[2] or name in OTHERWISE:
                continue
            value = getattr(own, option.field)
            if getattr(again, option.field) != value and value is not None:
                bare[name] = options[name] = value
    _check(asked(bare), job)
    return options


def _same(ask: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    """What options ask for, where the table of options does not even take them: that no options ask for it."""

    def asked(options: Mapping[str, Any]) -> Any:
        try:
            return ask(options)
        except (InvalidSpec, UnknownName) as reason:
            raise Unsupported("no options ask for this plan again: {}", reason) from None

    return asked


def _check(again: Any, job: Any) -> None:
    """Raise Unsupported where two jobs are not the same."""
    pairs = [(field, getattr(again, field), getattr(job, field)) for field in job.__struct_fields__]
    pairs += [(f"cluster.{name}", getattr(again.cluster, name), getattr(job.cluster, name)) for name in CARDS]
    pairs.append(("calibration", again.calibration is None, job.calibration is None))
    while pairs:
        field, one, other = pairs.pop(0)
        if field in APART or one == other or (field == "engine_options" and engine_option_words(one) == (
                engine_option_words(other))):
            continue
        if isinstance(one, Struct) and isinstance(other, Struct):
            pairs += [(f"{field}.{name}", getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
            continue
        raise Unsupported("no options ask for this plan again: {} is {}", field, other)


def _part(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = getattr(job, name)
    return job


def _differing(
    noun: Struct, usual: Struct, table: Mapping[str, Option], section: str, *, always: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Options of the fields that are not as usual."""
    found = {}
    for name, option in table.items():
        if option.section != section or name in OTHERWISE:
            continue
        value = getattr(noun, option.field)
        if value is not None and (value != getattr(usual, option.field) or name in (*WRITTEN, *always)):
            found[name] = value
    return found


def engine_option_words(options: Mapping[str, object]) -> tuple[str, ...]:
    """Engine options as the command line and job files write them."""
    return tuple(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()
    )
