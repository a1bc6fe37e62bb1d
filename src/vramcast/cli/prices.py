"""`vramcast prices`: what machines cost and how old the figures are; `vramcast prices update` reads new ones."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import click

from vramcast.cli.shared import json_option, language_option
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.report.messages import words_here

EXIT_NOT_UPDATED = 5


class ShowByDefault(click.Group):
    """A group whose first word may be left out: `vramcast prices p5` is `vramcast prices show p5`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in the word that was left out."""
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("prices", cls=ShowByDefault)
def command() -> None:
    """What machines cost per hour, with the region, the tariff and the age of every price.

    \b
    vramcast prices p5.48xlarge
    vramcast prices alibaba --region cn-beijing
    vramcast prices update --provider azure --region eastus

    Own prices go into a CSV with the columns instance, region, tariff (on-demand or spot), currency, per_hour, date,
    source; `--prices FILE` of train, serve and plan reads it. No currency is ever converted.
    """


@command.command("show")
@click.argument("text", required=False, default="")
@click.option("--region", help="of this region only")
@click.option("--spot/--on-demand", default=None, help="of one tariff only")
@click.option("--currency", help="in this currency only")
@click.option("--older-than", type=click.IntRange(min=0), metavar="DAYS", help="only prices older than so many days")
@click.option("--prices", "file", help="a file of your own prices instead of the known ones")
@json_option
@language_option
def show(
    text: str, region: str | None, spot: bool | None, currency: str | None, older_than: int | None, file: str | None,
    as_json: bool, lang: str | None,
) -> int:
    """Prices of machines; TEXT is part of a name such as aws, p5 or gn7i."""
    from vramcast.catalogue.clusters import Market, own_prices
    from vramcast.catalogue.prices import known_prices
    from vramcast.report.catalogue import price_documents, price_table
    from vramcast.report.price import age_days

    today = date.today()
    tariff = None if spot is None else "spot" if spot else "on-demand"
    listed = own_prices(Market(prices=file)) if file else known_prices()
    rows = [
        (name, price)
        for name, price in listed
        if text.lower() in name.lower()
        and region in (None, price.region)
        and tariff in (None, price.tariff)
        and currency in (None, price.currency, price.currency.lower())
        and (older_than is None or (age_days(price, today) or 0) > older_than)
    ]
    if not rows and older_than is None:
        raise UnknownName.of("price of", text or region or currency or "any machine", {name for name, _ in listed})
    if as_json:
        click.echo(json.dumps({"schema": 1, "prices": price_documents(rows, today)}, indent=1, ensure_ascii=False))
    else:
        click.echo(price_table(rows, words_here(lang), today), nl=False)
    return 0


@command.command("update")
@click.option("--provider", "providers", multiple=True, help="alibaba, aws, azure, gcp, lambda (repeatable); all")
@click.option("--region", "regions", multiple=True, help="of this region only (repeatable)")
@click.option(
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
    from vramcast.catalogue.prices import user_file
    from vramcast.report.catalogue import update_report
    from vramcast.sources.prices.update import update as refresh

    outcomes = refresh(providers, regions=regions, bases=_bases(mirrors), today=date.today().isoformat())
    if as_json:
        plain: list[dict[str, Any]] = [
            {name: value for name, value in outcome._asdict().items() if value} for outcome in outcomes
        ]
        click.echo(json.dumps({"schema": 1, "file": str(user_file()), "updated": plain}, indent=1, ensure_ascii=False))
    else:
        click.echo(update_report(outcomes, words_here(lang), path=str(user_file())), nl=False)
    return EXIT_NOT_UPDATED if any(outcome.failure for outcome in outcomes) else 0


def _bases(mirrors: tuple[str, ...]) -> dict[str, str]:
    pairs = [mirror.partition("=") for mirror in mirrors]
    for provider, equals, address in pairs:
        if not provider or not equals or not address:
            raise InvalidSpec(f"mirror={provider[:60]!r} must be written PROVIDER=ADDRESS")
    return {provider: address for provider, _, address in pairs}
