"""What every reader of a configuration file shares: bounded text, what was found, words of a command line.

Files are other people's: they are read, never run. A script's variables are put in as far as the script sets them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.catalogue.tables import NoDocument, parse_yaml
from vramcast.errors import Note, SourceError, joined
from vramcast.formats.expanding import UNSET, asked_by
from vramcast.formats.lexer import PLACEHOLDER
from vramcast.formats.paths import Invocation
from vramcast.formats.python_calls import code_of_notebook
from vramcast.formats.shell import Script, read_script

LARGEST_FILE: Final = 1 << 20
"""A configuration is a few pages; more is a mistake or an attack [bytes]."""

TOO_LARGE: Final = "{}: a configuration has at most {} bytes"

LARGEST_NOTEBOOK: Final = 16 << 20
"""A notebook keeps what its cells printed, pictures too [bytes]."""

DEEPEST: Final = 20
"""Levels of tables inside tables."""

ELSEWHERE: Final = "is a file of its own; give it with another --from"

NOT_MODELLED: Final = "may change memory or time and is not modelled"
NO_GPU: Final = "runs on no GPU of NVIDIA or AMD; vramcast answers for those"
"""Why there is no answer, whatever else is left out."""

TIME_ALONE: Final = "changes the time alone, which is that of a run without it"
LOOSE: Final = "begins a line that no backslash joins to the command; answered as if one did"
UNEXPORTED: Final = "is set without export, so that no command sees it; answered as if one did"
CONTEXT_OF_BUILD: Final = (
    "is not given: 4096 tokens, as before build 7407; later builds take all that the model has; --context or "
    "--engine llama.cpp@VERSION says which"
)
SAID: Final = (TIME_ALONE, LOOSE, UNEXPORTED, CONTEXT_OF_BUILD)
"""Why something is said and not refused."""


SHOWN: Final = 6
"""Names that a refusal says, each with its reason; the others are counted."""


class Config(NamedTuple):
    """A file as text, and as a table where it is JSON or YAML."""

    name: str
    text: str
    table: Mapping[str, Any] | None
    given: Invocation = Invocation()  # what it is started with, where it is a script
    documents: tuple[Mapping[str, Any], ...] = ()  # of a YAML with several, whose table is none of them
    beside: Mapping[str, Any] = {}  # of a script: what files say that its command reads
    folder: str = ""  # that it lies in


OF_AMD: Final = "AMD"
"""What variables are about that are read on cards of that vendor alone."""


class Unread(NamedTuple):
    """What may change the answer and is not understood."""

    name: str  # as the file writes it
    why: str = NOT_MODELLED
    option: str = ""  # of vramcast, which settles it where it is given by name
    file: str = ""  # format of another file, which settles it where it is given beside this one
    of_network: bool = False  # says what the network is, not how it is trained or split
    of_towers: bool = False  # holds only where the network has towers that see or hear
    of_sizes: bool | None = None  # of those: only where their images have one size (True), or any (False)
    about: str = ""  # part of the network without which it says nothing; key of `PARTS_READ`


class Reading(NamedTuple):
    """What a file asks."""

    format: str  # as `--from-format` names it
    options: dict[str, Any]  # of `vramcast train` or `serve`; `model` may be a Model
    weak: dict[str, Any] = {}  # options that hold where no other file says otherwise
    batch: dict[str, int] = {}  # "global", "micro", "accumulation": solved once the number of ranks is known
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out or filled in
    auto: dict[str, str] = {}  # option that the file leaves to the run -> what the file says
    ranks: int | None = None  # processes that the file starts
    nodes: int = 1  # machines that they are on
    share: str = ""  # the part of each card that they see
    parts: Mapping[str, str] = {}  # (engine) option -> part of the network without which the tool passes over it
    without_bf16: dict[str, Any] = {}  # options instead, on cards that have no bf16
    under_deepspeed: dict[str, Any] = {}  # options instead, where another file says that DeepSpeed runs it
    contexts: tuple[tuple[int, int], ...] = ()  # memory of all cards [bytes] -> context that the tool takes unasked
    alone: bool = False  # what reads it runs on one card, however many there are
    device_map: bool = False  # one process puts some layers on each of the cards that it sees
    rollout: dict[str, Any] = {}  # of a run beside whose trainer an engine generates: what `vramcast rl` is asked of it
    filled: dict[str, str] = {}  # option of `weak` -> what is said of it where it holds


def together(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Options over each other, later ones win; those of the engine add up.

    >>> together({"tp": 2, "engine-option": ("a=1",)}, {"tp": 4, "engine-option": ("b=2",)})
    {'tp': 4, 'engine-option': ('a=1', 'b=2')}
    """
    pairs = tuple(pair for part in parts for pair in part.get("engine-option", ()))
    found = {name: value for part in parts for name, value in part.items()}
    return found | ({"engine-option": pairs} if pairs else {})


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def engine_options(**values: float | bool | None) -> dict[str, Any]:
    """Options of the engine, those that are None left out.

    >>> engine_options(reentrant=True, beta=0.04), engine_options(beta=None)
    ({'engine-option': ('reentrant=true', 'beta=0.04')}, {})
    """
    words = {True: "true", False: "false"}
    pairs = tuple(f"{name}={words[value] if isinstance(value, bool) else f'{value:g}'}"
                  for name, value in without_none(values).items())
    return {"engine-option": pairs} if pairs else {}


def listed(given: Any) -> list[str]:
    """A list of texts, or the one that stands for it; null, false and an empty text are none."""
    if isinstance(given, list):
        return [str(one) for one in given]
    return [] if given is None or given is False or given == "" else [str(given)]


def modules_of(given: Any) -> str | None:
    """Names of modules as `--lora-targets` takes them; one text may be a pattern, or a group of them."""
    return ",".join(one.strip() for one in listed(given)) or None


def lengths_of(*, packed: Any) -> dict[str, Any]:
    """How long samples are beside the longest: all alike where they fill the length, else any length.

    What is padded to the longest of its batch reserves up to half as much again as is allocated, for the allocator
    sees other sizes at every step [the runs of ms-swift in truth/published/recipes.jsonl].
    """
    return {} if packed else {"min-seq-len": 1}


def under_the_trainer(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of DeepSpeed's file where Transformers' Trainer runs it: sizes are as the file has them, and without
    ZeRO a step of PyTorch's own where the file makes no optimizer."""
    pairs = (*options.get("engine-option", ()), "auto=false")
    if options.get("zero") != "0":
        return {**options, "engine": "huggingface", "sharded-by": "deepspeed", "engine-option": pairs}
    steps = () if "optimizer" in options else ("torch_adam=true",)
    return {**options, "engine": "huggingface", "engine-option": (*pairs, "deepspeed=true", *steps)}


def read_config(path: Path) -> Config:
    """The file, its size and depth bounded.

    Raises: SourceError when it cannot be read
    """
    try:
        notebook = path.suffix == ".ipynb"
        most = LARGEST_NOTEBOOK if notebook else LARGEST_FILE
        if path.stat().st_size > most:
            raise SourceError(TOO_LARGE, path, most)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    except UnicodeDecodeError:
        raise SourceError("{}: not a text file", path) from None
    if notebook:
        return Config(path.name, code_of_notebook(text, path.name)[:LARGEST_FILE], None)
    return parsed(path, text)._replace(folder=str(path.absolute().parent))


def parsed(path: str | Path, text: str) -> Config:
    """A text as the file of this name.

    Raises: SourceError for what is no JSON or YAML where the name says so
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml") and SEPARATOR.search(text.strip()):
        return Config(path.name, text, None, documents=_documents(path, text))
    return Config(path.name, text, _table(path, text), folder=str(path.parent))


SEPARATOR: Final = re.compile(r"(?m)(?<=\n)---[ \t]*(?:#.*)?$")
MOST_DOCUMENTS: Final = 200
TEMPLATE: Final = re.compile(r"\{\{-?\s*(?:\.Values|\.Release|include|toYaml|if|range|with)\b")

UNFILLED: Final = re.compile(r"\{\{|\{%")
"""What Jinja and its kin leave in a file, which is no JSON or YAML then."""


def _documents(path: Path, text: str) -> tuple[Mapping[str, Any], ...]:
    """The tables of a YAML of several documents, empty ones left out."""
    texts = [part for part in SEPARATOR.split(text)[:MOST_DOCUMENTS] if re.search(r"(?m)^[^\s#]", part)]
    found = [_table(path, part) for part in texts]
    return tuple(one for one in found if one is not None)


def bounded(name: str, text: str) -> str:
    """A text that is no longer than a file may be.

    Raises: SourceError
    """
    if len(text) > LARGEST_FILE:
        raise SourceError(TOO_LARGE, name, LARGEST_FILE)
    return text


def _table(path: Path, text: str) -> Mapping[str, Any] | None:
    """JSON or YAML, None for scripts."""
    try:
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            found = json.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            if TEMPLATE.search(text):
                raise SourceError("{}: is a template of Helm; give what `helm template` writes of it", path)
            found = parse_yaml(text)
        else:
            return None
    except (ValueError, RecursionError, NoDocument) as error:
        if UNFILLED.search(text):
            raise SourceError("{}: is a template; give what it becomes once its values are filled in", path) from None
        kind = "JSON" if path.suffix == ".json" else "YAML"
        why = error if isinstance(error, NoDocument) else " ".join(str(error).split())[:200]
        raise SourceError("{}: not {}: {}", path, kind, why) from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found) or _deep(found) > DEEPEST:
        raise SourceError("{}: must be a table of names and values, at most {} deep", path, DEEPEST)
    return found


def _deep(value: Any, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return max((_deep(item, level + 1) for item in inner), default=level)


class Command(NamedTuple):
    """The command line of a script that a reader is about."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what of the script is left out
    unread: tuple[Unread, ...] = ()
    variables: Mapping[str, str] = {}  # of the environment, as the script sets them
    undecided: Mapping[str, str] = {}  # arguments and variables that hang on a branch nobody decides -> what would


def command_of(config: Config, score: Callable[[tuple[str, ...]], int]) -> Command:
    """The command with the highest score, its variables put in; where none has any, arguments that are only set.

    Args:
        config: the script
        score: how much of a command belongs to the reader

    Raises: SourceError for quotes that do not end
    """
    script = read_script(config.text, config.name, config.given)
    notes, unread = list(script.notes), [Unread(f"source {shown(name)}", ELSEWHERE) for name in script.sources]
    scored = [found for found in script.commands if score(found) > 0]
    if scored:
        best = max(scored, key=score)
        unread += [Unread(shown(one).strip("'"), LOOSE) for one in script.loose if one in best]
        unread += [Unread(f"${one}", UNEXPORTED) for one in _unexported(config) if one in script.variables]
        if others := len({found for found in scored if found != best}):
            looped = " ".join(f"--env {name}={items[0]}" for name, items in script.loops.items())
            why = (
                Note("stands in the file with {} different commands; keep one of them, as with {}", others + 1, looped)
                if looped else Note("stands in the file with {} different commands; keep one of them", others + 1)
            )
            unread.append(Unread(shown(best[0]).strip("'"), why))
        if script.unused:
            unused = ", ".join(f"${name}" for name in script.unused)
            notes.append(Note("not read, as the command does not use them: {}", unused))
    else:
        best = tuple(word for words in script.unused.values() for word in words)
    if not best and script.ends:
        why = Note("ends at {} with what it is given; --args and --env say else", shown(script.ends))
        raise SourceError("{}: {}", config.name, why)
    return Command(best, tuple(notes), tuple(unread), _environment(script), _asked(best, script))


def _asked(words: Iterable[str], script: Script) -> dict[str, str]:
    """What is not decided, and what would say the variables that nobody gives."""
    unset = {found for word in words for found in UNSET.findall(word) if re.fullmatch(r"\$\{(?:\w+|[@*#])\}", found)}
    asked = {one: Note("{} is not set in the file; give {}", one, asked_by(one[2:-1], "")) for one in sorted(unset)}
    named = {f"${{{one}}}": f"{one} is a placeholder; write what it stands for" for word in words
             for one in PLACEHOLDER.findall(word)}
    return asked | named | dict(script.undecided)


HANDED: Final = (
    "NPROC_PER_NODE", "FORCE_TORCHRUN", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OLLAMA_NUM_PARALLEL",
    "OLLAMA_CONTEXT_LENGTH", "OLLAMA_KV_CACHE_TYPE",
)
"""Variables that programs read and few scripts put into arguments."""


def _unexported(config: Config) -> Iterator[str]:
    """Of those the ones that a script sets for itself alone: on a line of their own, and never again."""
    if re.search(r"^[ \t]*set[ \t]+-(?:a|o[ \t]+allexport)", config.text, re.MULTILINE):
        return
    for name in HANDED:
        lines = re.findall(rf"^.*\b{name}\b.*$", config.text, re.MULTILINE)
        own = [line for line in lines if re.fullmatch(rf"[ \t]*{name}=[^\s\\]*[ \t]*(?:#.*)?", line)]
        if own and len(own) == len(lines) and name not in config.given.environment:
            yield name


def _environment(script: Script) -> dict[str, str]:
    """Variables that programs of the script see, as far as their names tell: capitals."""
    return {name: value for name, value in script.variables.items() if name.isupper()}


def shown(value: Any) -> str:
    """The beginning of a value for a sentence, without what may be a secret.

    >>> shown("https://me:password@hub/x"), shown("hf_abcdefghijklmnopqrstuvwx")
    ("'https://...@hub/x'", "'...'")
    """
    text = re.sub(r"(://)[^/\s@]+@", r"\1...@", str(value))
    return repr(SECRET.sub("...", text)[:60])


SECRET: Final = re.compile(
    r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[a-z]-|AKIA|LTAI|eyJ)[\w./+=-]{8,}|\b[0-9a-fA-F]{32,}\b"
)
"""What keys of hubs and clouds look like."""


SECRET_NAME: Final = re.compile(
    r"(?i)TOKEN(?!IZ|S?_PER|S$)|SECRET|PASSW|API_?KEY|ACCESS_?KEY|CREDENTIAL|(?:^|_)KEY(?:$|_ID)|AUTH"
)
"""What variables are called that hold keys of hubs and clouds: no question needs them."""


def sentence(found: Iterable[Unread]) -> Note:
    """Names with their reasons, those of one reason together.

    >>> sentence([Unread("a", "is odd"), Unread("b"), Unread("c", "is odd")])
    'a, c: is odd; b: may change memory or time and is not modelled'
    """
    by_reason: dict[str, list[str]] = {}
    for one in found:
        by_reason.setdefault(one.why, []).append(one.name)
    return joined("; ", (Note("{}: {}", ", ".join(names), why) for why, names in by_reason.items()))


def arguments(found: Iterable[str], *, short: bool = False) -> dict[str, Any]:
    """`--name value` pairs; a name alone is True, several values are a list, dashes stand for underscores.

    Args:
        found: words of a command line
        short: names with one dash count as well

    >>> arguments(["vllm", "serve", "m", "--tp", "2", "--fast", "--x=3", "--list", "a", "b"])
    {'tp': 2, 'fast': True, 'x': 3, 'list': ['a', 'b']}
    """
    result: dict[str, Any] = {}
    name: str | None = None
    bare = False  # no value yet
    for word in found:
        if re.match(r"^--?[A-Za-z]" if short else r"^--[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            result[name], bare = plain(value) if equals else True, not equals
        elif name is not None:
            before = result[name]
            values = [] if bare else before if isinstance(before, list) else [before]
            result[name], bare = plain(word) if not values else [*values, plain(word)], False
    return result


def plain(text: str) -> Any:
    """A word as a number or truth value where it is one.

    >>> plain(".5"), plain("5e8"), plain("7."), plain("007"), plain("1_000"), plain("nan")
    (0.5, 500000000.0, 7.0, 7, '1_000', 'nan')
    """
    named = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if NUMBER.fullmatch(text):
        return float(text)
    return text


NUMBER: Final = re.compile(r"[-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,2})?")


def written(words: Mapping[Any, Any]) -> dict[Any, Any]:
    """How a meaning is written, from the words that are read: the first that has it.

    >>> written({"fa2": "flash", "fa3": "flash", "disabled": "eager"})
    {'flash': 'fa2', 'eager': 'disabled'}
    """
    found: dict[Any, Any] = {}
    for word, meaning in words.items():
        found.setdefault(meaning, word)
    return found


def count(value: Any) -> int | None:
    """A positive whole number, None for "auto" and everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None


def table(values: Any) -> Mapping[str, Any]:
    """A table inside a table, empty where there is none."""
    return values if isinstance(values, Mapping) else {}


class Given(NamedTuple):
    """What files say, put together; later ones win."""

    options: dict[str, Any]
    batch: dict[str, int]
    assumptions: tuple[str, ...]
    auto: dict[str, str] = {}  # option that no file says -> which one leaves it open, and how
    unread: tuple[tuple[str, Unread], ...] = ()  # file, and what of it may change the answer and is not understood
    ranks: dict[str, int] = {}  # file -> processes it starts
    nodes: int = 1  # machines that they are on, where a file says so
    share: str = ""  # the part of each card that they see, "8000mib"
    parts: Mapping[str, str] = {}  # (engine) option -> part of the network without which the tool passes over it
    ignored: tuple[str, ...] = ()  # what the answer is without, one sentence a file
    without_bf16: Mapping[str, Any] = {}  # options instead, on cards that have no bf16
    contexts: tuple[tuple[int, int], ...] = ()  # memory of all cards [bytes] -> context that the tool takes unasked
    alone: str = ""  # the file of a run on one card, however many there are
    device_map: str = ""  # the file of a run whose one process puts some layers on each card
    rollout: Mapping[str, Any] = {}  # what `vramcast rl` is asked of the engine that generates beside a trainer
