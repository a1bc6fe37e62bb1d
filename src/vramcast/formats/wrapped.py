"""What starts a tool and says on what: a manifest of Kubernetes, a task of SkyPilot, a job of PAI, a Compose service.

A wrapper is taken off before any tool's reader looks at what is inside: a command, which is read as a script is.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.gpus import resolve_gpu
from vramcast.catalogue.instances import load_instance
from vramcast.errors import Note, SourceError, Unsupported, VramcastError, joined
from vramcast.formats.containers import RUNNERS
from vramcast.formats.lexer import COUNTED
from vramcast.formats.paths import Invocation
from vramcast.formats.reading import LARGEST_FILE, NO_GPU, SECRET_NAME, Config, Reading, Unread, parsed, shown, table
from vramcast.formats.shell import KUBERNETES, SHELLS, Script, read_script
from vramcast.formats.unread import has_names

GIVE_GPUS: Final = "names no card of the catalogue; give --gpus"

MOST_INSIDE: Final = 3
"""Scripts inside each other."""

SCRIPTS: Final = (".sh", ".bash", ".env")
"""Ends of names of files that another script reads or starts."""

MOST_PARTS: Final = 200
"""Containers, roles and services of one file."""


class Inside(NamedTuple):
    """What a wrapper holds, and what it says around it."""

    kind: str  # what it is, for sentences
    words: tuple[str, ...]  # the command inside
    image: str = ""
    script: str = ""  # instead of words
    environment: Mapping[str, str] = {}
    scripts: Mapping[str, str] = {}  # that it brings along
    place: str = ""  # a card or a machine as `--gpus` takes it
    cards: int | None = None  # of one machine
    nodes: int = 1
    name: str = ""  # of this part of the file
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()  # configurations of the cluster that its environment comes from
    counting: tuple[str, ...] = ()  # variables that have the number of cards of a machine
    interpolated: bool = False  # whether variables are put into the words as the wrapper's own tool does
    has_gpu: bool = False  # whether it asks for cards, of whatever number
    share: str = ""  # the part of each card that it sees, as `--gpus` has it behind "-vgpu-"


class Wrapper(NamedTuple):
    """One kind of wrapper: how its files are told, and who takes it off."""

    name: str
    keys: tuple[str, ...]  # groups of names, "|" between names of which one is there
    module: str


OF_A_SERVICE: Final = ("command|entrypoint|deploy|gpus|runtime|ports|restart|container_name|ipc|shm_size",)
"""Names of which a service of Compose has one beside its image."""
COMPOSE: Final = Wrapper("Docker Compose", ("services", f"image {OF_A_SERVICE[0]}"), "compose")

WRAPPERS: Final = (
    Wrapper("Kubernetes", ("apiVersion kind",), "kubernetes_read"),
    Wrapper("Ray Serve", ("applications", "llm_configs", "model_loading_config"), "ray_serve"),
    Wrapper("PAI-DLC", ("JobSpecs UserCommand|JobType",), "clouds"),
    Wrapper("PAI-EAS", ("metadata containers|cloud|processor",), "clouds"),
    Wrapper("SkyPilot", ("run resources|setup|envs|num_nodes|service|accelerators",), "clouds"),
    Wrapper("dstack", ("type commands|resources|groups|replicas|entrypoint",), "dstack"),
    COMPOSE,
)


class Part(NamedTuple):
    """A file as readers take it."""

    config: Config
    inside: Inside | None = None  # what stood around it
    optional: bool = False  # whether it may be of no reader's concern
    starts: bool = False  # whether it starts another file that is given
    text: str = ""  # before scripts that it starts stand in it


def unwrapped(configs: Sequence[Config], started: Invocation, is_known: Callable[[Config], bool]) -> list[Part]:
    """Files without what they are wrapped in, and those that scripts among them write.

    Raises: SourceError or Unsupported, where a wrapper holds no command or several
    """
    scripts = {config.name: config.text for config in configs if config.table is None and not config.documents}
    found = []
    for config in configs:
        others = {name: text for name, text in scripts.items() if name != config.name}
        config = config._replace(given=replace(started, scripts=others))
        found += _parts(config, is_known)
    texts = {part.config.name: part.text or part.config.text for part in found}
    names = set(texts)
    return [
        part._replace(starts=any(_starts(part.config, name) for name in names - {part.config.name}))
        for part in found
        if not part.config.name.endswith(SCRIPTS) or not any(
            _names(text, part.config.name) for name, text in texts.items() if name != part.config.name)
    ]


def _inlined(text: str, scripts: Mapping[str, str]) -> str:
    """A script with others in the places where it starts or reads them."""
    for _ in range(MOST_INSIDE):
        for name, other in scripts.items():
            match = re.search(STARTED.format(name=re.escape(name)), text)
            if match is not None and len(text) + len(other) <= LARGEST_FILE:
                own = f"set -- {match[2]}\n" if match[2].strip() else ""
                text = f"{text[:match.start()]}\n{own}{other}\n{text[match.end():]}"
    return text


STARTED: Final = (
    r"(?m)(?:\b(?:bash|sh|source)|(?<![\w./])\.)[ \t]+([\"']?)(?:[^\s\"';&|]*/)?{name}\1([^\n;&|'\"]*)(?=$|[;&|])"
)
"""A script that is started or read, with the arguments that it is given; not inside a text."""


PYTHON: Final = (".py", ".ipynb")
"""Files whose text is no shell's, whatever commands stand in its strings."""


def _starts(config: Config, name: str) -> bool:
    """Whether a script starts what a file says, and nothing of its own."""
    named = config.table is None and _names(config.text, name)
    return named and _only_starts(read_script(config.text, config.name, config.given), [name])


def _names(text: str, name: str) -> bool:
    """Whether a script names a file."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text) is not None


def _parts(config: Config, is_known: Callable[[Config], bool]) -> list[Part]:
    part = inside(config, is_known)
    script = config if part is None else as_script(config, part)
    if script.table is not None:
        return [Part(config)]
    if script.name.endswith(PYTHON):
        return [Part(script, part)]
    before, script = script.text, script._replace(text=_inlined(script.text, script.given.scripts))
    written: list[Part] = []
    only_starts = False
    if "<<" in script.text or any(f"{runner} " in script.text for runner in (*RUNNERS, "dlc")):
        found = read_script(script.text, script.name, script.given)
        if found.jobs:
            table = import_module("vramcast.formats.tools.clouds").submitted(found.jobs[0])
            return _parts(script._replace(table=table, text=""), is_known)
        used = {word.rpartition("/")[2].rpartition("=")[2] for command in found.commands for word in command}
        for name, text in found.files.items():
            if name in (KUBERNETES, *used):
                written += _written(name, text, script, is_known)
        part = part or _of_containers(found)
        # a server's command says more of itself than the file that it is given
        is_of_a_reader = is_known(script._replace(text="\n".join(map(shlex.join, found.commands))))
        names = [one.config.name for one in written]
        only_starts = bool(written) and (KUBERNETES in names or not is_of_a_reader) and _only_starts(found, names)
    asks = import_module("vramcast.formats.tools.slurm").asked(script.text) if part is None else None
    if asks is not None:
        environment = {**asks.environment, **script.given.environment}
        script, part = script._replace(given=replace(script.given, environment=environment)), asks
    for name, text in part.scripts.items() if part is not None else ():
        if name.endswith((".yaml", ".yml", ".json")) and _names(script.text, name):
            written += _written(name, text, script, is_known)
    if only_starts:
        return [one._replace(inside=one.inside or part, optional=False) for one in written]
    return [Part(script, part, text=before), *written]


def _only_starts(script: Script, names: Sequence[str]) -> bool:
    """Whether a script does no more of a job than to start what files say."""
    if KUBERNETES in names:
        return True
    starts = [words for words in script.commands if any(_names(word, name) for word in words for name in names)]
    return bool(starts) and all(
        not word.startswith("-") or word in ALONE for words in starts for word in words if not _names(word, names[0])
    )


ALONE: Final = ("--config", "--config_file", "-m", "--config-file")
"""Options behind which a file stands that says everything."""


def _written(name: str, text: str, script: Config, is_known: Callable[[Config], bool]) -> list[Part]:
    """A file that a script writes and then names."""
    config = parsed(name, text)._replace(given=script.given)
    if config.documents or config.table is not None:
        return [part._replace(optional=name != KUBERNETES) for part in _parts(config, is_known)]
    return []


def _of_containers(script: Script) -> Inside | None:
    """What `docker run` says of cards."""
    counted = [one for one in script.containers if one.cards]
    if len({one.cards for one in counted}) != 1:
        return None
    return Inside("docker run", (), cards=counted[0].cards, has_gpu=True)


def wrapper_of(table: Mapping[str, Any]) -> Wrapper | None:
    """Whose wrapper a table is."""
    named = next((wrapper for wrapper in WRAPPERS if has_names(table, wrapper.keys)), None)
    return named or (COMPOSE if table and all(map(_is_service, table.values())) else None)


def _is_service(value: Any) -> bool:
    """Whether a table is what Compose starts."""
    return isinstance(value, Mapping) and isinstance(value.get("image"), str) and has_names(value, OF_A_SERVICE)


def inside(config: Config, is_known: Callable[[Config], bool]) -> Inside | None:
    """What stands in a wrapper; None for a file that is none.

    Args:
        config: the file
        is_known: whether a command is one that somebody here reads

    Raises: SourceError or Unsupported with one sentence, where it holds no command or several
    """
    tables = config.documents or ((config.table,) if config.table is not None else ())
    wrapper = next(filter(None, map(wrapper_of, tables)), None)
    if wrapper is None:
        return None
    take_off = import_module(f"vramcast.formats.tools.{wrapper.module}").inside
    try:
        parts: list[Inside] = [part for one in tables for part in take_off(one, tables)][:MOST_PARTS]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # a foreign file may hold anything where a format has a number, a text or a table
        raise SourceError("{}: not what {} takes: {}", config.name, wrapper.name, type(error).__name__) from None
    found = [part for part in parts if part.words or part.script]
    if not found:
        why = Note("no container of this {} file names a command or an engine's image", wrapper.name)
        raise SourceError("{}: {}", config.name, why)
    chosen = [part for part in found if part.has_gpu] or found
    if len({(part.words, part.script) for part in chosen}) > 1:
        chosen = [part for part in chosen if is_known(as_script(config, part))] or chosen
    distinct = {(part.words, part.script) for part in chosen}
    if len(distinct) > 1:
        names = ", ".join(dict.fromkeys(part.name[:40] for part in chosen))
        raise Unsupported("{}: holds {} different commands ({}); keep one of them", config.name, len(distinct), names)
    places = list(dict.fromkeys(f"{part.cards or 1}x{part.place}" for part in chosen if part.place))
    if len(places) > 1:
        why = Note("starts the same on {}; give --gpus", joined(" and ", places[:4]))
        return chosen[0]._replace(unread=(*chosen[0].unread, Unread(chosen[0].kind, why, "gpus")))
    return chosen[0]


def as_script(config: Config, part: Inside) -> Config:
    """The command of a wrapper as the script of which readers are."""
    environment = {name: value for name, value in part.environment.items() if not SECRET_NAME.search(name)}
    of_machine = cluster_of(part.place).gpus_per_node if ":" in part.place else None
    if (cards := config.given.cards or part.cards or of_machine) is not None:
        environment |= dict.fromkeys((COUNTED, *part.counting), str(cards))
    given = replace(
        config.given,
        environment={**environment, **config.given.environment}, scripts={**config.given.scripts, **part.scripts}
    )
    head = f"# {' '.join(part.image.split())}\n" if part.image else ""
    shell, options, *text = (*part.words, "", "", "")[:3]
    if part.interpolated:
        words = " ".join(map(_double_quoted, part.words))
    elif len(part.words) == 3 and shell.rpartition("/")[2] in SHELLS and OF_A_TEXT.fullmatch(options):
        words = text[0]
    else:
        words = shlex.join(part.words)
    return Config(config.name, f"{head}{part.script or words}\n", None, given)


OF_A_TEXT: Final = re.compile(r"-[a-z]*c")
"""The option of a shell behind which a script stands as a text."""


def _double_quoted(word: str) -> str:
    """A word into which a shell would put the same variables as Compose does."""
    return '"' + re.sub(r'(["\\`])', r"\\\1", word).replace("$$", r"\$") + '"'


def around(reading: Reading, part: Inside) -> Reading:
    """What a reader found inside, with what the wrapper says around it."""
    part = part._replace(nodes=max(part.nodes, reading.nodes))  # pods of one set are the machines of one server
    gpus, unread = _gpus(part), list(part.unread)
    options = reading.options
    taken = math.prod(value for option in ("tp", "pp", "dp") if isinstance(value := options.get(option, 1), int))
    whole = _cards(part, gpus)
    needs = max(taken, reading.ranks or 0)
    if whole is not None and needs > whole:
        why = Note("has {} GPUs, its command takes {}; correct one, or give --gpus", whole, needs)
        unread.append(Unread(part.kind, why, "gpus"))
    weak = {**({"gpus": gpus} if gpus else {}), **reading.weak}
    return reading._replace(
        weak=weak, unread=(*reading.unread, *unread), notes=(*part.notes, *reading.notes),
        ranks=reading.ranks or (None if gpus else whole), nodes=part.nodes, share=part.share,
    )


def unknown_command(part: Part) -> str:
    """The sentence for a wrapper whose command starts nothing that is read."""
    commands = read_script(part.config.text, part.config.name, part.config.given).commands
    last = " ".join(commands[-1]) if commands else part.config.text.strip()
    return Note("{}: the command inside, {}, starts no tool that is read", part.config.name, shown(last))


def _cards(part: Inside, gpus: str) -> int | None:
    if gpus:
        return cluster_of(gpus).count
    return part.cards * part.nodes if part.cards else None


def _gpus(part: Inside) -> str:
    """The cards as `--gpus` takes them; "" where no card is named."""
    if not part.place:
        return ""
    cluster = cluster_of(part.place)
    cards = part.cards or (cluster.gpus_per_node if cluster.instance else 1)
    if cluster.instance is not None and cards == cluster.gpus_per_node:
        return f"{part.nodes}x{part.place}" if part.nodes > 1 else part.place
    return f"{part.nodes}x{cards}x{cluster.gpu.name}" if part.nodes > 1 else f"{cards}x{cluster.gpu.name}"


CALLED: Final = {
    "a100-40g": "a100-sxm4-40gb", "a100-80g": "a100-sxm4-80gb", "nvidia-h100-mega-80gb": "h100-sxm-80gb",
    "nvidia-h100-80gb": "h100-sxm-80gb", "nvidia-tesla-a100": "a100-sxm4-40gb",
    "nvidia-a100-80gb": "a100-sxm4-80gb", "nvidia-h200-141gb": "h200-sxm-141gb", "h100_nvlink_80gb": "h100-sxm-80gb",
    "a100_nvlink_80gb": "a100-sxm4-80gb", "nvidia-tesla-v100": "v100-sxm2-16gb",
    "nvidia-rtx-pro-6000": "rtx-pro-6000-bw-se",
}
"""Names of clouds for cards that the catalogue calls otherwise
[https://cloud.google.com/kubernetes-engine/docs/how-to/gpus]."""

ELSEWHERE: Final = re.compile(r"(?i)(?:^|[-_/.])(?:tpu|trainium|inferentia|gaudi|neuron|npu)|^tpu")


def card(text: str) -> str:
    """A card of the catalogue by what a cloud or a label calls it; "" where it names none.

    >>> card("NVIDIA-H100-80GB-HBM3"), card("nvidia-tesla-t4"), card("tpu-v5-lite-podslice")
    ('h100-sxm-80gb', 't4', '')
    """
    plain = text.strip().lower()
    if plain in CALLED:
        return CALLED[plain]
    for prefix in (r"^$", r"^nvidia[-_ ]", r"^(?:nvidia[-_ ])?(?:tesla|geforce)[-_ ]", r"[-_]shared$"):
        name = re.sub(prefix, "", plain)
        try:
            return resolve_gpu(name)
        except VramcastError:
            continue
    return ""


def machine(text: str, provider: str = "") -> str:
    """A machine of the catalogue by its name at a cloud; "" where it names none."""
    try:
        found = load_instance(f"{provider}:{text}" if provider else text)
    except VramcastError:
        return ""
    return f"{found.provider}:{found.name}"


def unknown_card(name: str, value: str) -> Unread:
    """A card that the catalogue has not."""
    return Unread(f"{name} {value[:60]}", NO_GPU if ELSEWHERE.search(value) else GIVE_GPUS, "gpus")


TORCHRUN: Final = re.compile(r"(?<![\w/.-])(?:[\w./-]*/)?torchrun(?![\w.-])|(?<=-m )torch\.distributed\.run(?![\w.-])")
"""What starts the processes of one machine."""


def on_each_machine(text: str, nodes: int) -> Unread | None:
    """That torchrun starts a run of its own on each of several machines, where nothing says how many there are."""
    if TORCHRUN.search(text) is None or "nnodes" in text.lower():
        return None
    return Unread("torchrun", Note("runs on each of {} machines by itself without --nnodes; give it", nodes))


def words_of(value: Any) -> tuple[str, ...]:
    """A command as a list of words, or as one text that a shell splits."""
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError:
            return (value,)
    return tuple("" if word is None else _text(word) for word in value) if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def variables(value: Any) -> dict[str, str]:
    """Variables as a table, as a list of names with values, or of `NAME=VALUE`; secrets are left out."""
    if isinstance(value, Mapping):
        pairs: Iterator[tuple[Any, Any]] = iter(value.items())
    else:
        pairs = _listed(value if isinstance(value, Sequence) and not isinstance(value, str) else ())
    return {
        str(name): _text(text) for name, text in pairs
        if isinstance(text, (str, int, float)) and not SECRET_NAME.search(str(name))
    }


def _listed(value: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for item in value:
        if isinstance(item, Mapping) and "name" in item:
            field = table(table(item.get("valueFrom")).get("fieldRef")).get("fieldPath")  # an address, a name
            yield item["name"], item.get("value", field)
        elif isinstance(item, Mapping):
            yield next(iter(item.items()), ("", None))
        elif isinstance(item, str) and "=" in item:
            yield item.partition("=")[0], item.partition("=")[2]


def whole(value: Any) -> int | None:
    """A number of cards or machines, also as a text.

    >>> whole("8"), whole(2), whole("all"), whole(True)
    (8, 2, None, None)
    """
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,6}\s*", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**6 else None
