"""`vramcast pack`: which of several jobs may share which cards."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from vramcast import api, formats, question, report
from vramcast.api.packing import DEFAULT_RISK, MOST_JOBS, packed, rooms_of
from vramcast.api.sized import sized
from vramcast.api.tracing import require_torch
from vramcast.catalogue.clusters import cluster_of
from vramcast.cli.main import group
from vramcast.cli.shared import EXIT_DOES_NOT_FIT, given_options, json_option, language_option, with_cards_here
from vramcast.domain.answer import Answer
from vramcast.domain.packing import Candidate
from vramcast.errors import InvalidSpec, Note, SourceError, Unsupported, VramcastError, joined
from vramcast.question.option import TABLES, parse_bytes, parse_share, table_of
from vramcast.report.messages import words_here
from vramcast.watch import guard

OWN: Final = "vramcast"
LISTS: Final = (".txt", ".list")
"""Ends of names of files with a job a line."""
IN_QUOTES: Final = re.compile(r"(['\"])((?:(?!\1).)+)\1")
"""A whole line of a list, as a job is written in a shell."""
SCRIPTS: Final = (".py", ".sh")
"""Ends of names of files that a command starts."""
MOST_NAMED: Final = 60
"""Characters of a command by which a job is called."""


class Asked(NamedTuple):
    """A job on one kind of card."""

    answer: Answer
    gpus: int
    caution: str = ""


@click.command("pack")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--gpus", multiple=True, required=True, metavar="[COUNTx]GPU",
              help="the cards: 4xa100-sxm4-40gb, rtx-4090+rtx-3090, here (repeatable)")
@click.option("--risk", default=f"{DEFAULT_RISK:.0%}", show_default=True, help="of each card to run out, at most")
@click.option("--used", metavar="SIZE", help="what others hold of each card")
@json_option
@language_option
def command(
    jobs: tuple[str, ...], gpus: tuple[str, ...], risk: str, used: str | None, as_json: bool, lang: str | None,
) -> int:
    """Which jobs may share cards, so that each card runs out more seldom than --risk.

    JOB is a file (a configuration or script as `--from` takes it, a job file, a manifest, a batch script), a command
    in quotes, or a .txt file with such a job on each line. Exit code 0 where every job has its cards, 1 where not.

    \b
    vramcast pack jobs.txt --gpus 4xa100-sxm4-40gb
    vramcast pack sft.yaml serve.sh "python train.py --batch-size 64" --gpus 2xl40s --risk 5%
    """
    given = with_cards_here(given_options({"gpus": gpus, "used": used}))
    rooms = rooms_of(given["gpus"], parse_bytes("used", given["used"]) if "used" in given else 0)
    share = parse_share("risk", risk)
    kinds = tuple(dict.fromkeys(room.kind for room in rooms))
    texts = [line for text in jobs for line in _lines(text)]
    if len(texts) > MOST_JOBS:
        raise InvalidSpec("{} jobs are more than {}; pack fewer at once", len(texts), MOST_JOBS)
    candidates = list(_candidates(texts, kinds))
    asked = {"jobs": list(texts), "gpus": ", ".join(given["gpus"]), "risk": share}
    found = packed(candidates, rooms, risk=share, question=asked | ({"used": given["used"]} if "used" in given else {}))
    text = report.document.noun_json(found) if as_json else report.packing.render(found, words_here(lang))
    click.echo(text, nl=as_json)
    return 0 if found.is_whole else EXIT_DOES_NOT_FIT


def _lines(text: str) -> Iterator[str]:
    """A job, or those that a file lists."""
    path = Path(text)
    if path.suffix not in LISTS:
        yield text
        return
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError("{}: {}", path, getattr(error, "strerror", None) or "not a text file") from None
    kept = (line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    yield from (quoted[2] if (quoted := IN_QUOTES.fullmatch(line)) else line for line in kept)


def _candidates(texts: Sequence[str], kinds: Sequence[str]) -> Iterator[Candidate]:
    """Each job on each kind of card; one that stands there several times is asked once."""
    known: dict[str, Candidate] = {}
    seen: Counter[str] = Counter()
    for text in texts:
        if text not in known:
            known[text] = _candidate(text, kinds)
        one = known[text]
        seen[one.name] += 1
        name = one.name if seen[one.name] == 1 else f"{one.name} ({seen[one.name]})"
        yield Candidate(name=name, gpus=one.gpus, answers=one.answers, why=one.why, cautions=one.cautions)


def _candidate(text: str, kinds: Sequence[str]) -> Candidate:
    name = Path(text).name if Path(text).is_file() else text
    name = name if len(name) <= MOST_NAMED else f"{name[: MOST_NAMED - 3]}..."
    answers: dict[str, Answer] = {}
    counts, why, cautions = {1}, "", []
    for kind in kinds:
        try:
            asked = _asked(text, kind)
        except VramcastError as error:
            why = str(error)
            continue
        answers[kind] = asked.answer
        counts.add(asked.gpus)
        cautions += [Note("{}: {}", name, asked.caution)] if asked.caution else []
    return Candidate(name=name, gpus=max(counts), answers=answers, why=why, cautions=tuple(dict.fromkeys(cautions)))


def _asked(text: str, kind: str) -> Asked:
    """The answer to one job on cards of a kind.

    Raises: VramcastError with one sentence
    """
    path = Path(text)
    if path.is_file():
        if path.suffix == ".py" and not formats.read.commands_of((path,)):
            return _asked(shlex.join(("python", text)), kind)
        if formats.read.commands_of((path,)):
            alone = sized(path, gpus=kind)
            return _counted(alone.answer, alone.gpus)
        command = "serve" if api.asks_serve(path) else "train"
        return _own(command, question.files.read_job(path, table_of(command)), kind)
    try:
        words = shlex.split(text)
    except ValueError:
        raise InvalidSpec("a quotation mark is not closed") from None
    if len(words) < 2:
        raise SourceError("no such file; a command stands in quotes")
    if Path(words[0]).name == OWN and words[1] in TABLES:
        return _own(words[1], _options_of(words[1], words[2:]), kind)
    for word in words:
        if Path(word).suffix in SCRIPTS and not Path(word).is_file():
            raise SourceError("{} is not here", word)
    job = guard.Job.of(words, os.environ)
    found = guard.judged(job, gpus=kind)
    if found.answer is None:
        if not found.why and job.is_of_torch:
            require_torch()
        raise Unsupported("{}", found.why or "nothing is known of what it does")
    if "gpus" not in found.options:
        return Asked(found.answer, sum(rank.count for rank in found.answer.ranks), found.why)
    return _counted(found.answer, str(found.options["gpus"]), found.why)


def _own(command: str, options: Mapping[str, Any], kind: str) -> Asked:
    """The answer to a question of our own, on as many of these cards as it has of its own."""
    cluster = cluster_of(str(options["gpus"])) if options.get("gpus") else None
    count = "" if cluster is None else f"{cluster.num_nodes}x{cluster.gpus_per_node}x"
    asked = api.question_of({**options, "gpus": f"{count}{kind}"}, None, command)
    answer = asked.noted(api.answer_to(command, asked.options, resolve=asked.resolve, with_changes=False))
    return _counted(answer, str(asked.options["gpus"]))


def _options_of(command: str, words: Iterable[str]) -> dict[str, Any]:
    """The options of a command line of our own."""
    found = group.get_command(click.Context(group), command)
    assert found is not None
    try:
        values = found.make_context(command, list(words)).params
    except click.UsageError as error:
        raise InvalidSpec("vramcast {}: {}", command, error.format_message()) from None
    names = {"model", "gpus", *table_of(command), *formats.paths.OPTIONS}
    given = given_options(values)
    if file := given.get("job-file"):
        given = question.files.read_job(Path(file), table_of(command)) | given
    return {name: value for name, value in given.items() if name in names}


def _counted(answer: Answer, gpus: str, caution: str = "") -> Asked:
    """An answer with the cards of one machine that it takes.

    Raises: Unsupported for a job of several machines
    """
    cluster = cluster_of(gpus)
    if cluster.num_nodes > 1:
        raise Unsupported("it takes {} machines; jobs of one machine share cards", cluster.num_nodes)
    cautions = (*answer.cautions[:1], *([caution] if caution else []))
    return Asked(answer, cluster.gpus_per_node, joined("; ", cautions) if cautions else "")
