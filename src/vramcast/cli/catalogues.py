"""`vramcast models`, `gpus`, `instances` and `prices`: the catalogues; list, filter, compare."""

from __future__ import annotations

import json
from datetime import date

import click

from vramcast import api, catalogue, report
from vramcast.catalogue.index import find_models, summary
from vramcast.cli.options import WithHelp, plain_option
from vramcast.cli.shared import EXIT_DOES_NOT_FIT, json_option, language_option, with_cards_here
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.options import parse_count
from vramcast.report.columns import table
from vramcast.report.document import as_text, plain
from vramcast.report.messages import words_here

GPU_SORTS = ("memory", "bandwidth", "bf16", "name")
INSTANCE_SORTS = ("price", "price-per-gpu", "memory", "gpus", "name")
EXIT_NOT_UPDATED = 5


@click.command("models", cls=WithHelp)
@click.argument("text", required=False, default="")
@plain_option("--fits", "--gpus", "gpus", metavar="GPUS", help="only those that these cards hold: 4090, 2x24gb, here")
@plain_option("--for", "purpose", default="serve", show_default=True, help="with --fits: serve or train")
@plain_option("--context", metavar="TOKENS", help="with --fits: tokens of a sequence; by default 8k, to train 2k")
@json_option
@language_option
def models(
    text: str, gpus: str | None, purpose: str, context: str | None, as_json: bool, lang: str | None
) -> int:
    """Models and diffusion pipelines that vramcast knows by name; TEXT is part of a name, or a whole name.

    \b
    vramcast models qwen3
    vramcast models --fits 4090
    vramcast models llama --fits 2x3090 --for train
    """
    words = words_here(lang)
    if gpus is not None:
        named = with_cards_here({"gpus": gpus})["gpus"]
        length = None if context is None else parse_count("context", context)
        found = api.fitting_models(named, purpose=purpose, text=text, length=length)
        shown = report.document.noun_json(found) if as_json else report.catalogue.fitting_table(found, words)
        click.echo(shown, nl=as_json)
        return 0 if found.fits else EXIT_DOES_NOT_FIT
    if context is not None:
        raise InvalidSpec("--context says what --fits looks for; give --fits, for example --fits 4090")
    rows = [summary(name) for name in find_models(text)]
    if not rows:
        raise UnknownName.of("model", text, find_models(""))
    if as_json:
        click.echo(json.dumps({"schema": 1, "models": rows}, indent=1))
        return 0
    header = ("model", "family", words("parameters"), "layers", "hidden", "context")
    body = [
        (str(row["name"]), str(row["family"]), f"{row['parameters']:,}", str(row.get("layers", "")),
         str(row.get("hidden", "")), f"{row['context']:,}" if row.get("context") else "")
        for row in rows
    ]
    click.echo(table([header, *body], right=frozenset({2, 3, 4, 5})), nl=False)
    return 0


@click.command("gpus", cls=WithHelp)
@click.argument("names", nargs=-1)
@plain_option("--vendor", help="NVIDIA, AMD, Huawei, Intel ...")
@plain_option("--generation", "--arch", help="Hopper, Ada, CDNA3 ...")
@plain_option("--min-memory", metavar="GB", type=float, help="usable memory")
@plain_option(
    "--sort", type=click.Choice(GPU_SORTS), help="largest or fastest first; by default as the catalogue has them"
)
@json_option
@language_option
def gpus(
    names: tuple[str, ...], vendor: str | None, generation: str | None, min_memory: float | None, sort: str | None,
    as_json: bool, lang: str | None,
) -> int:
    """Cards that vramcast knows; NAMES are parts of a name, one whole name for its details and sources, or several
    whole names to set side by side.

    \b
    vramcast gpus --vendor nvidia --min-memory 80 --sort bandwidth
    vramcast gpus h20-96gb h100-sxm-80gb a800
    """

    words = words_here(lang)
    filtered = vendor is not None or generation is not None or min_memory is not None or sort is not None
    cards = () if filtered else catalogue.gpus.named_gpus(names)
    exact = bool(cards)
    if not exact:
        cards = catalogue.gpus.filter_gpus(
            catalogue.gpus.search_gpus(" ".join(names)), vendor=vendor, generation=generation,
            min_memory_gb=min_memory, sort=sort,
        )
    if not cards:
        for name in names if len(names) > 1 else ():
            catalogue.gpus.load_gpu(name)
        raise UnknownName.of("GPU", " ".join(names) or "of that kind", catalogue.gpus.gpu_names())
    if as_json:
        click.echo(json.dumps({"schema": 1, "gpus": plain(cards)}, indent=1))
    elif not exact:
        click.echo(report.catalogue.gpu_table(cards, words), nl=False)
    elif len(cards) == 1:
        click.echo(report.catalogue.gpu_details(cards[0]), nl=False)
    else:
        click.echo(report.catalogue.compared_gpus(cards, words), nl=False)
    return 0


@click.command("instances", cls=WithHelp)
@click.argument("names", nargs=-1)
@plain_option("--provider", help="alibaba, pai, aws, azure, gcp, lambda, onprem")
@plain_option("--gpu", help="with this card")
@plain_option("--min-memory", metavar="GB", type=float, help="usable memory of all its cards together")
@plain_option("--max-price", metavar="PRICE", help="98.32usd per hour; machines in other currencies are left out")
@plain_option("--region", help="priced in this region")
@plain_option("--spot", is_flag=True, help="spot prices")
@plain_option("--currency", help="priced in this currency; none is converted")
@plain_option("--prices", help="a file of your own prices (CSV)")
@plain_option("--hardware", help="a file of your own clusters (TOML), listed with the others")
@plain_option("--sort", type=click.Choice(INSTANCE_SORTS), help="cheapest or largest first; else as listed")
@json_option
@language_option
def instances(
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

    market = catalogue.clusters.Market(
        spot=spot, region=region, currency=currency.upper() if currency else None, prices=prices, hardware=hardware
    )
    chosen = catalogue.machines.Filter(
        provider=provider, gpu=gpu, min_memory_gb=min_memory, max_price=max_price, priced=bool(region)
    )
    found = catalogue.machines.compared(names, market) if not chosen.asks else None
    side_by_side = found is not None
    if found is None:
        found = catalogue.machines.listed(names, chosen, market, sort=sort)
    if not found:
        if len(names) == 1 and not chosen.asks:
            catalogue.instances.load_instance(names[0])
        raise UnknownName("no machine of the catalogue is so; loosen a filter, or give --hardware FILE for your own")
    words = words_here(lang)
    if as_json:
        click.echo(as_text({"schema": 1, "instances": found}))
    else:
        shown = report.catalogue.compared_machines if side_by_side else report.catalogue.machine_table
        click.echo(shown(found, words, date.today()), nl=False)
    return 0


class ShowByDefault(click.Group):
    """A group whose first word may be left out: `vramcast prices p5` is `vramcast prices show p5`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in the word that was left out."""
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("prices", cls=ShowByDefault)
def prices() -> None:
    """What machines cost per hour, with the region, the tariff and the age of every price.

    \b
    vramcast prices p5.48xlarge
    vramcast prices alibaba --region cn-beijing
    vramcast prices update --provider azure --region eastus

    Own prices go into a CSV with the columns instance, region, tariff (on-demand or spot), currency, per_hour, date,
    source; `--prices FILE` of train, serve and plan reads it. No currency is ever converted.
    """


@prices.command("show")
@click.argument("text", required=False, default="")
@plain_option("--region", help="of this region only")
@plain_option("--spot/--on-demand", default=None, help="of one tariff only")
@plain_option("--currency", help="in this currency only")
@plain_option("--older-than", type=click.IntRange(min=0), metavar="DAYS", help="only prices older than so many days")
@plain_option("--prices", "file", help="a file of your own prices instead of the known ones")
@json_option
@language_option
def show(
    text: str, region: str | None, spot: bool | None, currency: str | None, older_than: int | None, file: str | None,
    as_json: bool, lang: str | None,
) -> int:
    """Prices of machines; TEXT is part of a name such as aws, p5 or gn7i."""

    today = date.today()
    tariff = None if spot is None else "spot" if spot else "on-demand"
    own = catalogue.clusters.Market(prices=file)
    listed = catalogue.clusters.own_prices(own) if file else catalogue.prices.known_prices()
    rows = [
        (name, price)
        for name, price in listed
        if text.lower() in name.lower()
        and region in (None, price.region)
        and tariff in (None, price.tariff)
        and currency in (None, price.currency, price.currency.lower())
        and (older_than is None or (report.sentences.age_days(price, today) or 0) > older_than)
    ]
    if not rows and older_than is None:
        raise UnknownName.of("price of", text or region or currency or "any machine", {name for name, _ in listed})
    if as_json:
        click.echo(as_text({"schema": 1, "prices": report.catalogue.price_documents(rows, today)}))
    else:
        click.echo(report.catalogue.price_table(rows, words_here(lang), today), nl=False)
    return 0


@prices.command("update")
@plain_option("--provider", "providers", multiple=True, help="alibaba, aws, azure, gcp, lambda (repeatable); all")
@plain_option("--region", "regions", multiple=True, help="of this region only (repeatable)")
@plain_option(
    "--mirror", "mirrors", multiple=True, metavar="PROVIDER=ADDRESS", help="another address of a source (repeatable)"
)
@json_option
@language_option
def update(
    providers: tuple[str, ...], regions: tuple[str, ...], mirrors: tuple[str, ...], as_json: bool, lang: str | None
) -> int:
    """Read the public price lists that need no key into $VRAMCAST_DATA/prices.csv.

    The list of an AWS region has some 300 MB, so by default only that of us-east-1 is read. A source that fails leaves
    what was known as it is.
    """
    from vramcast.sources.prices.update import update as refresh

    outcomes = refresh(providers, regions=regions, bases=_bases(mirrors), today=date.today().isoformat())
    file = str(catalogue.prices.user_file())
    if as_json:
        updated = [{name: value for name, value in outcome._asdict().items() if value} for outcome in outcomes]
        click.echo(as_text({"schema": 1, "file": file, "updated": updated}))
    else:
        click.echo(report.catalogue.update_report(outcomes, words_here(lang), path=file), nl=False)
    return EXIT_NOT_UPDATED if any(outcome.failure for outcome in outcomes) else 0


def _bases(mirrors: tuple[str, ...]) -> dict[str, str]:
    pairs = [mirror.partition("=") for mirror in mirrors]
    for provider, equals, address in pairs:
        if not provider or not equals or not address:
            raise InvalidSpec("mirror={!r} must be written PROVIDER=ADDRESS", provider[:60])
    return {provider: address for provider, _, address in pairs}
