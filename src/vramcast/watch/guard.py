"""`vramcast run -- CMD`: another tool's command judged by the cards as they are now, started, watched, explained.

What it says goes to standard error before and after the command; between them the command's own streams pass as they
are: a terminal stays one for it, and its signals and exit status are its own.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import api, catalogue, formats, question, report, watch
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, Note, SourceError, Unsupported, VramcastError
from vramcast.units import MIB, ceil_div, format_bytes
from vramcast.watch.here import release_of
from vramcast.watch.tool import Channels

if TYPE_CHECKING:
    from vramcast.api.jobs import Asked
    from vramcast.domain.answer import Answer
    from vramcast.domain.observation import GpuSample
    from vramcast.question.build import Resolve
    from vramcast.report.messages import Words

EXIT_REFUSED: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127
EXIT_OF_SIGNALS: Final = 128
"""As env(1) and the shell have them; 125: not started, as it does not fit."""

LENGTHS: Final = "min-seq-len"
"""The option of trainings whose samples differ in length: steps of many lengths are played, which takes most of an
answer's time."""
WELL_WITHIN: Final = 0.8
"""Share of a card within whose upper end the longest samples alone decide: what shorter ones leave in the cache is
given back where it must be. Of 55 random trainings of nine models on seven cards with 0.5 to 0.9 of it none was found
beyond its card with all lengths, nor likely to be."""
LEAST_CHANCE: Final = 0.25
"""To fit: below it a command is refused, above it started with a warning."""
UNNOTICED_S: Final = 0.3
"""So long an answer may take before it is said how long it took."""
INTERVAL_S: Final = 1.0
TRACED_S: Final = 120
"""A script of one's own may run so long on the simulated card."""

FORWARDED: Final = tuple(
    number for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if (number := getattr(signal, name, None)))
TYPED: Final = tuple(number for name in ("SIGINT", "SIGQUIT") if (number := getattr(signal, name, None)))
"""Signals of a terminal, which the command is sent as well."""

FILES: Final = (".py", ".sh", ".bash", ".json", ".yaml", ".yml", ".toml", ".sbatch")
"""Ends of names of files that may say what a command does."""
SPREAD: Final = ("llama.cpp",)
"""Engines whose process takes every card that it sees."""
PYTHON: Final = re.compile(r"python[\d.]*")
LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed")
SCRIPT: Final = re.compile(
    r"(?m)^\s*(?:from\s+|import\s+(?:[\w.]+\s*,\s*)*)(?:torch|torchvision|lightning|pytorch_lightning|transformers|diffusers|"
    r"timm|accelerate|peft|trl)\b"
)
"""How one that runs PyTorch begins."""


class Job(Struct, frozen=True):
    """A command with its environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, words: Sequence[str], environment: Mapping[str, str]) -> Job:
        """The command behind "--", with the variables that stand before it."""
        before = list(takewhile(formats.lexer.ASSIGNED.match, words))
        pairs = (word.partition("=") for word in before)
        return cls(tuple(words[len(before):]), {**environment, **{name: value for name, _, value in pairs}})

    @property
    def given(self) -> dict[str, Any]:
        """The command as a question names it: by its line, or the script that a shell starts."""
        script = question.whole_command.script_of(self.words)
        own = {name: value for name, value in self.environment.items() if name.isidentifier()}
        given = {"env": formats.paths.without_secrets(f"{name}={value}" for name, value in own.items())}
        if script is not None and Path(script[1]).is_file():
            return given | {"from": (script[1],), "args": shlex.join(script[2])}
        return given | {"from-command": question.whole_command.line_of(self.words)}

    @property
    def may_be_read(self) -> bool:
        """Whether anything in it could tell what it does."""
        line = formats.reading.Config("", shlex.join(self.words), None)
        return bool(formats.registry.known_as(line)) or any(Path(word).suffix in FILES for word in self.words)

    @property
    def is_of_torch(self) -> bool:
        """Whether it starts a script of Python that imports torch or what is built on it."""
        starter, script = Path(self.words[0]).name, next((word for word in self.words if word.endswith(".py")), "")
        if not script or not (PYTHON.fullmatch(starter) or starter in LAUNCHERS):
            return False
        with suppress(OSError, UnicodeDecodeError):
            return SCRIPT.search(Path(script).read_text(encoding="utf-8")) is not None
        return False


class Judgement(Struct, frozen=True):
    """What is known of a command before it starts."""

    command: str = ""  # of vramcast that answers it
    options: Mapping[str, Any] = {}  # of the question
    answer: Answer | None = None
    why: str = ""  # there is none, in a sentence; beside an answer: what of the command it is without
    said: tuple[str, ...] = ()  # about the cards
    doubt: str = ""  # why a job that does not fit by its answer may do so, in a sentence
    of_longest: bool = False  # the answer is that of the longest samples alone
    resolve: Resolve | None = None  # what the question calls its model

    @property
    def refuses(self) -> bool:
        """Whether it is unlikely to fit, and nothing was passed over on the way to that."""
        return self.is_beyond and not self.why and not self.doubt and self.chance < LEAST_CHANCE

    @property
    def is_beyond(self) -> bool:
        """Whether the prediction is that it does not fit."""
        return self.answer is not None and self.answer.verdict is Fit.NOT

    @property
    def chance(self) -> float:
        """That it fits all the same, where it is predicted not to."""
        return (self.answer.chance_to_fit or 0.0) if self.answer is not None else 0.0


def judged(
    job: Job, *, file: Path | None = None, gpus: str = "", calibration: str = "", with_changes: bool = False,
    in_haste: bool = False,
) -> Judgement:
    """The verdict on a command and the cards that it would see now.

    Args:
        file: a job file that says what it does, where nobody here reads the command
        gpus: the cards as `--gpus` takes them; "": those of this machine, less what others hold of them
        calibration: a file that answers learn from
        with_changes: look for what makes it fit, too
        in_haste: the command waits for it: no more is computed than decides
    """
    if file is None and not job.may_be_read:
        return Judgement()
    try:
        samples = () if gpus else watch.here.seen_here(job.environment)
        if not gpus and not samples:
            raise SourceError("no GPU is visible to it")
        kinds = tuple(map(watch.here.named, samples)) or (gpus,)
    except SourceError as error:
        return Judgement(why=str(error))
    try:
        # a kind without a number: as many as the command starts
        kind = gpus or catalogue.clusters.cluster_of(kinds[0]).gpu.name if len(set(kinds)) == 1 else "+".join(kinds)
        given = ({} if file else job.given) | {"gpus": kind} | ({"calibration": calibration} if calibration else {})
        if file is not None:
            commands = ["serve" if api.asks_serve(file) else "train"]
            said = question.files.read_job(file, question.option.table_of(commands[0]))
            if not gpus and (named := said.get("gpus")):
                cluster = catalogue.clusters.cluster_of(str(named))
                given["gpus"] = f"{cluster.num_nodes}x{cluster.gpus_per_node}x{kind}"
        else:
            commands = formats.read.commands_of(given.get("from", ()), line=given.get("from-command", ""))
        if not commands:
            return _traced(job, samples, kind)
        return _answered(commands, given, file, job, samples, with_changes=with_changes, in_haste=in_haste)
    except VramcastError as error:
        return Judgement(why=str(error))


def _answered(
    commands: Sequence[str], given: dict[str, Any], file: Path | None, job: Job, samples: Sequence[GpuSample], *,
    with_changes: bool, in_haste: bool,
) -> Judgement:
    """Of the commands that may be meant the first that answers; what is not read is left out, and said."""
    failed: VramcastError | None = None
    for command in commands:
        for lenient in ({}, {"ignore-unread": True})[: 1 if file else 2]:
            try:
                asked, of_release = _of_release(job, command, given | lenient, file)
                options, said = _on_cards(asked.options, samples)
                longest = _of_longest(command, options, asked.resolve) if in_haste else None
                found = longest or api.answer_to(command, options, resolve=asked.resolve, with_changes=with_changes)
            except VramcastError as error:
                failed = failed or error
                continue
            why = str(failed).partition("; --ignore-unread")[0] if lenient and isinstance(failed, Unsupported) else ""
            judgement = Judgement(
                command, options, asked.noted(found), why, (*of_release, *said), of_longest=longest is not None,
                resolve=asked.resolve,
            )
            return replace(judgement, doubt=_doubt(judgement, asked.resolve))
    assert failed is not None
    raise failed


def _of_longest(command: str, options: Mapping[str, Any], resolve: Resolve) -> Answer | None:
    """The answer of a training's longest samples alone, where it decides."""
    if command != "train" or LENGTHS not in options:
        return None
    alone = {name: value for name, value in options.items() if name != LENGTHS}
    found = api.answer_to(command, alone, resolve=resolve, with_changes=False)
    return found if found.fits and found.high_bytes <= WELL_WITHIN * found.capacity_bytes else None


def _doubt(found: Judgement, resolve: Resolve) -> str:
    """Why a training that does not fit by its answer may do so: it is answered as another one, or at a length that no
    sample need have. Tools take the longest sample as a limit; one beyond all positions of a model is seldom reached.
    """
    if not found.is_beyond or found.answer is None or found.command != "train":
        return ""
    if found.answer.cautions:
        return found.answer.cautions[0]
    job = api.job_of(found.options, resolve=resolve)
    limit, positions = job.workload.seq_len, job.model.context
    if positions is None or limit <= positions:
        return ""
    asked = {name: value for name, value in found.options.items() if name != LENGTHS} | {"seq-len": positions}
    _, shorter = api.train_answer(asked, resolve=resolve, with_changes=False)
    if not shorter.fits:
        return ""
    return Note("samples of up to {} tokens, all the positions of {}, do fit: the limit of {} is what does not",
                f"{positions:,}", job.model.name, f"{limit:,}")


def _of_release(
    job: Job, command: str, given: dict[str, Any], file: Path | None
) -> tuple[Asked, tuple[str, ...]]:
    """The question about the release that is installed, where the command names none; and that it is."""
    asked = api.question_of(given, file, command)
    engine = str(asked.options.get("engine") or "")
    release = "" if file is not None or "@" in engine else release_of(engine, program_of(job), job.environment)
    if not release or command == "rl":
        return asked, ()
    installed = f"{engine}@{release}"
    with suppress(InvalidSpec):  # older than those that are known: as if nothing were
        (question.serving.parse_engine if command == "serve" else question.build.training_engine)(installed)
        asked = api.question_of(given | {"engine": installed}, file, command)
        return asked, (Note("{} {} is installed", engine, release),)
    return asked, ()


def program_of(job: Job) -> str:
    """The program beside which releases are installed; what a script starts is found by PATH, too."""
    return job.words[0] if question.whole_command.script_of(job.words) is None else "python"


def _on_cards(options: Mapping[str, Any], samples: Sequence[GpuSample]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The question on the cards that the command takes of those that it sees, less what others hold of them."""
    found, text = dict(options), str(options["gpus"])
    if not samples:
        return found, ()
    count = catalogue.clusters.cluster_of(text).gpus_per_node
    if count == 1 and str(options.get("engine")).partition("@")[0] in SPREAD and len(samples) > 1:
        count, found["gpus"] = len(samples), f"{len(samples)}x{catalogue.clusters.cluster_of(text).gpu.name}"
    held = [(one.card.index, (one.partitions[0] if one.partitions else one).memory_used_bytes or 0)
            for one in samples[:count]]
    said: tuple[str, ...] = tuple(
        Note("GPU {}: others hold {}", index, format_bytes(used)) for index, used in held if used
    )
    if count > len(samples):
        said = (*said, Note(
            "it starts {} processes on a machine where it sees {} GPUs", count, len(samples)
        ))
    if (most := max(used for _, used in held)) and not {"used", "reserve"} & found.keys():
        found["used"] = f"{ceil_div(most, MIB)}MiB"
    return found, said


def _traced(job: Job, samples: Sequence[GpuSample], gpus: str) -> Judgement:
    """A script of one's own, run on a simulated card with what others leave of this one."""
    if not job.is_of_torch or find_spec("torch") is None:
        return Judgement()
    options, said = _on_cards({"gpus": gpus}, samples)
    gpu = catalogue.clusters.cluster_of(gpus).gpu
    used = sum(int(text.removesuffix("MiB")) * MIB for text in (options.get("used"),) if text)
    given = {"gpu": gpu.name, "sandbox": True, "time-limit": TRACED_S, "capacity": f"{gpu.visible_bytes - used}B"}
    target, *arguments = job.words
    if PYTHON.fullmatch(Path(target).name):
        target = Path(target).name
    found = api.traced_target(target, given, arguments=arguments)
    return Judgement("trace", given, found.answer, said=said)


def fixed(job: Job, found: Judgement) -> tuple[Job, str]:
    """The command with the least change that makes it fit these very cards, and that change.

    Raises: Unsupported where the command cannot say one
    """
    if found.answer is None or found.command not in ("train", "serve") or "from-command" not in job.given:
        raise Unsupported("--fix changes a command of train or serve that is read; make the change by hand")
    here = tuple(change for change in found.answer.changes if "--gpus" not in change.change.split())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "command.sh"
        path.write_text(job.given["from-command"] + "\n", encoding="utf-8")
        options = {name: value for name, value in job.given.items() if name != "from-command"}
        options |= {name: found.options[name] for name in ("gpus", "used", "calibration") if name in found.options}
        options["from"] = (str(path),)
        change, texts = api.fitting_texts(options, replace(found.answer, changes=here), [path], found.command)
    return replace(job, words=tuple(shlex.split(texts[path]))), change.change


class Ended(Struct, frozen=True):
    """What is left of a command."""

    status: int  # as a shell has it
    output: bytes  # the end of what it wrote
    peaks: Mapping[str, int]  # card -> the most that was in use of it [bytes]


def started(job: Job, record: Path | None) -> Ended:
    """Run a command to its end, watching the cards; its streams, signals and exit status stay its own."""
    channels = Channels()
    try:
        process = subprocess.Popen(
            job.words, env=dict(job.environment), stdout=channels.out, stderr=channels.err, restore_signals=True)
    except OSError as error:
        channels.close()
        code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        print(f"vramcast: {job.words[0]}: {error.strerror}", file=sys.stderr)
        return Ended(code, b"", {})
    before = {number: signal.signal(number, lambda number, _: process.send_signal(number)) for number in FORWARDED}
    before |= {number: signal.signal(number, signal.SIG_IGN if _has_terminal() else (
        lambda number, _: process.send_signal(number))) for number in TYPED}
    over, peaks = threading.Event(), dict[str, int]()
    watching = threading.Thread(target=_watched, args=(over, record, peaks), daemon=True)
    watching.start()
    try:
        channels.started()
        status = process.wait()
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    output = channels.close()
    watching.join(timeout=INTERVAL_S)
    return Ended(status if status >= 0 else EXIT_OF_SIGNALS - status, output, peaks)


def _has_terminal() -> bool:
    """Whether this process is in the foreground of a terminal, which sends its signals to the command as well."""
    with suppress(OSError, AttributeError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


def _watched(over: threading.Event, record: Path | None, peaks: dict[str, int]) -> None:
    """Read the cards until it is over: the most of each, and every reading into a recording."""
    if over.wait(INTERVAL_S):
        return
    with suppress(SourceError):
        readers, _ = watch.readers.opened()
        output = None if record is None else watch.outputs.Recording(
            record, watch.session.info_of(readers, INTERVAL_S))
        following = watch.following.Following(watch.following.Rules())
        patient = [watch.readers.Patient(one) for one in readers]
        while True:
            for reading in (one.read(time.time()) for one in patient):
                followed = following.follow(reading)
                for event in followed.events:
                    if event.kind.name in ("LEAK", "GPU_LOST"):
                        print(f"vramcast: {event.text}", file=sys.stderr)
                if output is not None:
                    output.write(followed, following)
            peaks.update({f"GPU {card.card.index}": card.peak_bytes for card in following.cards.values()})
            if over.wait(INTERVAL_S):
                break
        for one in patient:
            one.close()
        if output is not None:
            output.close()


def summed_up(found: Judgement, ended: Ended, words: Words, *, record: Path | None, learn: Path | None) -> str:
    """What is to be said of a command that has ended: measured beside predicted, why it failed, what was learnt."""
    lines: list[str] = []
    if found.answer is not None and found.command != "trace" and any(ended.peaks.values()):
        gpu, most = max(ended.peaks.items(), key=lambda pair: pair[1])
        answer = found.answer
        if found.of_longest:
            answer = api.answer_to(found.command, found.options, resolve=found.resolve, with_changes=False)
        predicted = format_bytes(answer.fullest.needed_bytes)
        lines.append(words("run.measured", gpu=gpu, measured=format_bytes(most), predicted=predicted))
    if ended.status:
        text = ended.output.decode("utf-8", "replace")
        diagnosis = api.diagnosis_of(text) if text.strip() else None
        if diagnosis is not None and diagnosis.findings:
            lines.append(report.failure.render(diagnosis, words).rstrip())
    elif learn is not None and found.answer is not None:
        try:
            lines.append(_learnt(found, ended, words, record, learn))
        except VramcastError as error:
            lines.append(words.said(str(error)))
    return "\n".join(lines)


def _learnt(found: Judgement, ended: Ended, words: Words, record: Path | None, learn: Path) -> str:
    """Save what a run taught: a server by what it printed, a training by its recording."""
    plain = {name: value for name, value in found.options.items() if name != "calibration"}
    with tempfile.TemporaryDirectory() as folder:
        if found.command == "serve":
            log = Path(folder) / "server.log"
            log.write_bytes(ended.output)
            api.reconcile(log, **{name.replace("-", "_"): value for name, value in plain.items()},
                          save_calibration=learn)
        else:
            if record is None:
                raise Unsupported("a training teaches by its recording: give --record FILE, and vramcast.record_memory "
                                  "the same file")
            watch.calibrate.calibration_of([record], plain, save=learn)
    return words("run.learnt", file=learn)


def verdict(found: Judgement, words: Words) -> str:
    """What is said before a command starts, or in its place."""
    if found.answer is None:
        said = words.said(found.why) if found.why else words("run.unknown")
        return words("run.unjudged", why=said)
    lines = [report.sentences.headline(found.answer, words), *map(words.said, found.said)]
    if found.of_longest:
        lines.append(words("run.longest"))
    if found.is_beyond and found.chance >= LEAST_CHANCE:
        lines.append(words("run.chance", percent=f"{found.chance:.0%}"))
    if found.doubt:
        lines.append(words("run.doubt", doubt=words.said(found.doubt)))
    return "; ".join([*lines, *([words("run.without", what=words.said(found.why))] if found.why else [])])
