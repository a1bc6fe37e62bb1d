"""`vramcast gpus`: the catalogue of cards; list, filter, compare."""

from __future__ import annotations

import json

import click

from vramcast.cli.shared import json_option, language_option
from vramcast.report.messages import words_here

SORTS = ("memory", "bandwidth", "bf16", "name")


@click.command("gpus")
@click.argument("names", nargs=-1)
@click.option("--vendor", help="NVIDIA, AMD, Huawei, Intel ...")
@click.option("--generation", "--arch", help="Hopper, Ada, CDNA3 ...")
@click.option("--min-memory", metavar="GB", type=float, help="usable memory")
@click.option("--sort", type=click.Choice(SORTS), help="largest or fastest first; by default as the catalogue has them")
@json_option
@language_option
def command(
    names: tuple[str, ...], vendor: str | None, generation: str | None, min_memory: float | None, sort: str | None,
    as_json: bool, lang: str | None,
) -> int:
    """Cards that vramcast knows; NAMES are parts of a name, one whole name for its details and sources, or several
    whole names to set side by side.

    \b
    vramcast gpus --vendor nvidia --min-memory 80 --sort bandwidth
    vramcast gpus h20-96gb h100-sxm-80gb a800
    """
    from vramcast.catalogue.gpus import filter_gpus, gpu_names, load_gpu, named_gpus, search_gpus
    from vramcast.errors import UnknownName
    from vramcast.report.catalogue import compared_gpus, gpu_details, gpu_document, gpu_table

    words = words_here(lang)
    filtered = vendor is not None or generation is not None or min_memory is not None or sort is not None
    cards = () if filtered else named_gpus(names)
    exact = bool(cards)
    if not exact:
        cards = filter_gpus(
            search_gpus(" ".join(names)), vendor=vendor, generation=generation, min_memory_gb=min_memory, sort=sort
        )
    if not cards:
        for name in names if len(names) > 1 else ():
            load_gpu(name)
        raise UnknownName.of("GPU", " ".join(names) or "of that kind", gpu_names())
    if as_json:
        click.echo(json.dumps({"schema": 1, "gpus": [gpu_document(card) for card in cards]}, indent=1))
    elif not exact:
        click.echo(gpu_table(cards, words), nl=False)
    else:
        click.echo(gpu_details(cards[0]) if len(cards) == 1 else compared_gpus(cards, words), nl=False)
    return 0
