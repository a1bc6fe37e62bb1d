"""`vramcast check`: manifests and batch scripts, sized by their own commands before a cluster takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from vramcast.api.sized import (
    KUEUE,
    Declared,
    Sized,
    asks_enough,
    is_no_job,
    objects_of,
    patch_of,
    sized,
    sized_object,
    takes_no_card,
    unjudged,
)
from vramcast.catalogue.clusters import cluster_of
from vramcast.cli.shared import FILE, given_options, language_option
from vramcast.domain.device import Cluster
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.formats.read import is_known
from vramcast.formats.reading import read_config
from vramcast.formats.tools.clouds import accelerators
from vramcast.formats.tools.dstack import gpu_asked
from vramcast.formats.tools.slurm import asked as asked_of_slurm
from vramcast.formats.tools.slurm import gres
from vramcast.formats.wrapped import Inside, inside, wrapper_of
from vramcast.report.messages import Words, words_here
from vramcast.report.sentences import headline


class Asking(NamedTuple):
    """How files of a kind ask for cards."""

    line: Callable[[Cluster], str]  # for those of a machine
    machines: str = ""  # the name of their number, where it stands apart


ASKS: Final[Mapping[str, Asking]] = {
    "SkyPilot": Asking(accelerators, "num_nodes"), "dstack": Asking(gpu_asked, "nodes"),
    "Docker Compose": Asking(lambda cluster: f"count: {cluster.gpus_per_node}"),
    "Ray Serve": Asking(lambda cluster: f"tensor_parallel_size: {cluster.gpus_per_node}"),
}
"""Wrapper -> how it asks."""

READ_BESIDE: Final = ("ConfigMap", "ResourceClaim", "ResourceClaimTemplate")
"""Kinds of objects that say more of a job in the same file."""


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--gpus", default="", metavar="GPU", help="the card, where a file names none; a number is the command's")
@click.option("--from", "others", multiple=True, type=FILE, help="a file that the jobs' commands read, beside them")
@click.option("--args", metavar="TEXT", help="what batch scripts are started with")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="a variable in the environment of the jobs")
@language_option
def command(
    files: tuple[Path, ...], gpus: str, others: tuple[Path, ...], args: str | None, env: tuple[str, ...],
    lang: str | None,
) -> int:
    """Whether jobs of a cluster fit, and ask for the cards that their own commands take.

    FILE is a manifest of Kubernetes (Deployment, StatefulSet, Job, PyTorchJob, TrainJob, InferenceService,
    LeaderWorkerSet ...), a batch script of Slurm, a task of SkyPilot or dstack, a Compose file, Ray Serve's YAML. Exit
    code 0 where all fit and ask for enough cards; 1 where one does not; 3 where one cannot be judged.

    \b
    vramcast check deployment.yaml --gpus l40s
    vramcast check train.sbatch
    """
    given = given_options({"from": others, "args": args, "env": env})
    words, code = words_here(lang), 0
    for path in files:
        try:
            found = _checked(path, gpus, given, words)
        except VramcastError as error:
            click.echo(unjudged(path.name, error, words))
            found = 3
        code = _worse(code, found)
    return code


def _worse(code: int, other: int) -> int:
    return max(code, other, key=(0, 3, 1).index)


def _checked(path: Path, gpus: str, beside: Mapping[str, Any], words: Words) -> int:
    """Say what is to be said of a file, and its exit code."""
    config, code = read_config(path), 0
    if not config.documents and config.table is None:
        return _of_slurm(path, config.text, gpus, beside, words)
    if config.table is not None and (wrapper := wrapper_of(config.table)) is not None and wrapper.name in ASKS:
        asks = inside(config, is_known)
        assert asks is not None
        return _of_script(path, asks, ASKS[wrapper.name], gpus, beside, words)
    whole = config.documents or (config.table or {},)
    documents = [one for each in whole for one in (
        (each.get("items") or ()) if each.get("kind") == "List" else (each,)) if isinstance(one, Mapping)]
    jobs = [one for one in documents if one.get("kind") and not is_no_job(one)]
    maps = [one for one in documents if one.get("kind") in READ_BESIDE or KUEUE in str(one.get("apiVersion"))]
    if not jobs:
        raise InvalidSpec("{}: holds no job of Kubernetes, SkyPilot, dstack, Compose or Ray Serve", path.name)
    for document in jobs:
        code = _worse(code, _of_object(document, maps, gpus, beside, words))
    return code


def _of_object(
    document: Mapping[str, Any], maps: Sequence[Mapping[str, Any]], gpus: str, beside: Mapping[str, Any], words: Words,
) -> int:
    """Say what is to be said of an object, and its exit code."""
    try:
        found, resources = sized_object(document, maps, gpus=gpus, beside=beside)
    except VramcastError as error:
        if takes_no_card(document):
            click.echo(words("check.none", name=objects_of(document)))
            return 0
        click.echo(unjudged(objects_of(document), error, words))
        return 3
    _say(found, words)
    if not found.fits:
        return 1
    enough = asks_enough(document, found, resources)
    if not enough or patch_of(document, found, resources):
        wanted = ", ".join(f"{name}: {value}" for name, value in resources.items())
        click.echo(f"  {words('admission.asks', name=found.name, resources=wanted)}")
    return 0 if enough else 1


def _of_slurm(path: Path, text: str, gpus: str, beside: Mapping[str, Any], words: Words) -> int:
    """A batch script of Slurm's."""
    asks = asked_of_slurm(text)
    if asks is None:
        raise InvalidSpec("{}: neither a manifest of Kubernetes nor a script with #SBATCH lines", path)
    return _of_script(path, asks, Asking(gres), gpus, beside, words)


def _of_script(
    path: Path, asks: Inside, written: Asking, gpus: str, beside: Mapping[str, Any], words: Words,
) -> int:
    """A script or a task: whether it fits, and the line that asks for its cards."""
    found = sized(path, name=path.name, gpus=gpus or asks.place, declared=Declared(asks.cards, asks.nodes),
                  beside=beside)
    _say(found, words)
    if not found.fits:
        return 1
    takes_all = asks.cards is None and asks.has_gpu  # whatever number there is
    enough = (takes_all or (asks.cards or 0) >= found.cards) and asks.nodes >= found.nodes
    if not enough or asks.cards not in (None, found.cards):
        machines = f"{written.machines}: {found.nodes}, " if written.machines and asks.nodes < found.nodes else ""
        click.echo(f"  {words('check.gres', line=machines + written.line(cluster_of(found.gpus)))}")
    return 0 if enough else 1


def _say(found: Sized, words: Words) -> None:
    click.echo(words("check.line", name=found.name, verdict=headline(found.answer, words)))
    if changes := [one.change for one in found.answer.changes if one.fits][:3]:
        click.echo(f"  {words('check.changes', changes=', '.join(changes))}")
