"""`vramcast instances`: machines for rent and reference boxes; list, filter, compare."""

from __future__ import annotations

import json
from datetime import date

import click

from vramcast.cli.shared import json_option, language_option
from vramcast.errors import UnknownName
from vramcast.report.messages import words_here

SORTS = ("price", "price-per-gpu", "memory", "gpus", "name")


@click.command("instances")
@click.argument("names", nargs=-1)
@click.option("--provider", help="alibaba, pai, aws, azure, gcp, lambda, onprem")
@click.option("--gpu", help="with this card")
@click.option("--min-memory", metavar="GB", type=float, help="usable memory of all its cards together")
@click.option("--max-price", metavar="PRICE", help="98.32usd per hour; machines in other currencies are left out")
@click.option("--region", help="priced in this region")
@click.option("--spot", is_flag=True, help="spot prices")
@click.option("--currency", help="priced in this currency; none is converted")
@click.option("--prices", help="a file of your own prices (CSV)")
@click.option("--hardware", help="a file of your own clusters (TOML), listed with the others")
@click.option("--sort", type=click.Choice(SORTS), help="cheapest or largest first; else as listed")
@json_option
@language_option
def command(
    names: tuple[str, ...], provider: str | None, gpu: str | None, min_memory: float | None, max_price: str | None,
    region: str | None, spot: bool, currency: str | None, prices: str | None, hardware: str | None, sort: str | None,
    as_json: bool, lang: str | None,
) -> int:
    """Machines that vramcast knows; NAMES are parts of names, or whole names to set side by side.

    \b
    vramcast instances h100 --sort price-per-gpu
    vramcast instances --provider alibaba --min-memory 300
    vramcast instances aws:p5.48xlarge azure:Standard_ND96isr_H100_v5 alibaba:ecs.gn8v-8x.48xlarge
    """
    from vramcast.catalogue.clusters import Market
    from vramcast.catalogue.machines import Filter, compared, listed
    from vramcast.report.catalogue import compared_machines, machine_documents, machine_table

    market = Market(
        spot=spot, region=region, currency=currency.upper() if currency else None, prices=prices, hardware=hardware
    )
    chosen = Filter(provider=provider, gpu=gpu, min_memory_gb=min_memory, max_price=max_price, priced=bool(region))
    found = compared(names, market) if not chosen.asks else None
    side_by_side = found is not None
    if found is None:
        found = listed(names, chosen, market, sort=sort)
    if not found:
        if len(names) == 1 and not chosen.asks:
            from vramcast.catalogue.instances import load_instance

            load_instance(names[0])
        raise UnknownName("no machine of the catalogue is so; loosen a filter, or give --hardware FILE for your own")
    words = words_here(lang)
    if as_json:
        plain = machine_documents(found)
        click.echo(json.dumps({"schema": 1, "instances": plain}, indent=1, ensure_ascii=False))
    else:
        shown = compared_machines if side_by_side else machine_table
        click.echo(shown(found, words, date.today()), nl=False)
    return 0
