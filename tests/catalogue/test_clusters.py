"""What --gpus names, what it costs, and what a search is offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue.clusters import Market, cluster_of
from vramcast.catalogue.given import parse_price, read_clusters
from vramcast.catalogue.offers import offers
from vramcast.domain.device import Cluster
from vramcast.errors import InvalidSpec, SourceError, UnknownName, VramcastError

BAD = Path(__file__).parent / "bad"

BOXES = """
[clusters.mybox]
gpu = "h100"
gpus_per_node = 8
num_nodes = 4
network_gb_per_s = 400
rdma = "InfiniBand"
link = "NVLink4"
link_gb_per_s = 900
host_memory_gib = 2048
nvme_gb = 30000
price = "2.10usd"
price_date = "2026-10-01"

[clusters.den]
gpu = "rtx-3090"
gpus_per_node = 2
link = "PCIe4"
link_gb_per_s = 64
"""


@pytest.fixture
def boxes(tmp_path: Path) -> str:
    path = tmp_path / "boxes.toml"
    path.write_text(BOXES, encoding="utf-8")
    return str(path)


def test_a_price_that_is_not_public_is_absent_and_can_be_given() -> None:
    h20 = cluster_of("ecs.gn8v-8x.48xlarge")
    assert h20.price is None and any("give --price" in note for note in h20.notes)
    given_price = cluster_of("ecs.gn8v-8x.48xlarge", Market(price="9.5cny")).price
    assert given_price is not None and (given_price.per_hour, given_price.currency) == (76.0, "CNY")


@pytest.mark.parametrize(
    ("text", "per_hour", "currency"),
    [("2.5usd", 20.0, "USD"), ("98.32USD/node", 98.32, "USD"), ("1 cny/gpu", 8.0, "CNY"), ("7eur/machine", 7.0, "EUR")],
)
def test_prices_are_per_card_unless_they_say_per_node(text: str, per_hour: float, currency: str) -> None:
    price = parse_price(text, gpus_per_node=8)
    assert (price.per_hour, price.currency) == (per_hour, currency)


@pytest.mark.parametrize(
    "text", ["", "2.5", "usd", "$2.5", "-1usd", "0usd", "1e9usd", "2.5usd/rack", "9999999usd", "nanusd"]
)
def test_prices_that_read_like_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="price"):
        parse_price(text, gpus_per_node=8)


def test_a_given_price_is_not_converted() -> None:
    with pytest.raises(InvalidSpec, match="not in CNY, and nothing is converted"):
        cluster_of("h100", Market(price="2.5usd", currency="CNY"))
    with pytest.raises(InvalidSpec, match="ISO 4217"):
        Market(currency="yuan")


def test_own_clusters_carry_what_their_file_says(boxes: str) -> None:
    cluster = cluster_of("mybox", Market(hardware=boxes))
    assert (cluster.count, cluster.num_nodes, cluster.name) == (32, 4, "4xmybox")
    assert cluster.price is not None and (cluster.price.per_hour, cluster.price.date) == (16.8, "2026-10-01")
    assert cluster.network is not None and cluster.network.bytes_per_s == 400 * 10**9
    assert cluster_of("2xmybox", Market(hardware=boxes)).count == 16
    assert cluster_of(cluster.name, Market(hardware=boxes)) == cluster
    assert cluster_of("den", Market(hardware=boxes)).gpu.link is None
    with pytest.raises(InvalidSpec, match="mybox has 4 machines, 5 are asked for"):
        cluster_of("5xmybox", Market(hardware=boxes))
    assert cluster_of("aws:p5.48xlarge", Market(hardware=boxes)).price is not None


def test_own_clusters_say_whether_bridges_are_fitted_and_what_links_join(tmp_path: Path) -> None:
    path = tmp_path / "boxes.toml"
    path.write_text(
        """
        [clusters.pair]
        gpu = "rtx-3090"
        gpus_per_node = 2
        link = "NVLink3 bridge"
        link_gb_per_s = 112.5
        [clusters.bare]
        gpu = "rtx-3090"
        gpus_per_node = 2
        [clusters.board]
        gpu = "a100-sxm4-80gb"
        gpus_per_node = 4
        link = "NVLink3"
        link_gb_per_s = 600
        link_topology = "mesh"
        link_cards = 4
        """,
        encoding="utf-8",
    )
    found = read_clusters(path)
    assert found["pair"].gpu.is_linked and not found["bare"].gpu.is_linked
    board = found["board"].gpu
    assert (board.link_topology, board.link_cards, board.is_linked) == ("mesh", (4,), True)


def test_an_own_table_of_prices_wins_over_the_known_ones(tmp_path: Path, boxes: str) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "instance,region,tariff,currency,per_hour,date,source\n"
        "p5.48xlarge,us-west-2,on-demand,USD,30,2026-11-01,contract\n"
        "mybox,,on-demand,EUR,12,2026-11-01,own reckoning\n",
        encoding="utf-8",
    )
    market = Market(prices=str(table), hardware=boxes)
    cloud, own = cluster_of("aws:p5.48xlarge", market).price, cluster_of("mybox", market).price
    assert cloud is not None and (cloud.per_hour, cloud.source) == (30.0, "contract")
    assert own is not None and (own.per_hour, own.currency) == (12.0, "EUR")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_cluster", "no cluster in it; begin with"),
        ("toml", "not TOML:"),
        ("unknown_key", "line 4: cluster a: Object contains unknown field `gpu_count`"),
        ("missing_key", "line 1: cluster a: Object missing required field `gpus_per_node`"),
        ("card", "line 2: cluster a: unknown GPU 'h1000'"),
        ("type", "line 3: cluster a: Expected `int`, got `str`"),
        ("price", "line 1: cluster a: price='cheap' must read like 2.5usd"),
        ("rdma", "line 1: cluster a: rdma='RoCE' must be one of"),
        ("name", "line 1: cluster 8x: a cluster's name has letters"),
        ("other_table", "line 1: only [clusters.NAME] tables are read"),
        ("network", "line 1: cluster a: network_gb_per_s=-1.0 must be more than 0"),
        ("date", "line 1: cluster a: price_date='May' must be a date"),
        ("topology", "line 1: cluster a: link_topology='ring' must be one of switch, mesh"),
        ("link_cards", "line 1: cluster a: link_cards must be at least 2 and stand with a link_topology"),
    ],
)
def test_a_wrong_cluster_names_file_and_line(name: str, message: str) -> None:
    path = BAD / f"bad_hardware_{name}.toml"
    with pytest.raises(SourceError) as caught:
        read_clusters(path)
    assert f"{path}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=50), st.integers(0, 12))
def test_no_text_breaks_the_reading_of_gpus(text: str, count: int) -> None:
    for word in (text, f"{count}x{text}"):
        try:
            assert isinstance(cluster_of(word), Cluster)
        except VramcastError as error:
            assert "\n" not in str(error) and len(str(error)) < 400


def test_a_search_is_offered_what_its_text_names(boxes: str) -> None:
    assert [(o.machine.name, o.counts) for o in offers("8xh100")] == [("8xh100-sxm-80gb", (1,))]
    assert [(o.machine.name, o.counts) for o in offers("64xh100")] == [("8xh100-sxm-80gb", (8,))]
    assert [(o.machine.name, o.counts) for o in offers("4xp5.48xlarge")] == [("aws:p5.48xlarge", (4,))]
    assert [o.counts for o in offers("4xp5.48xlarge,aws:p5.48xlarge,aws:p5.48xlarge")] == [()]
    assert {o.machine.instance.split(":")[0] for o in offers("aws") if o.machine.instance} == {"aws"}
    own = offers("mybox", Market(hardware=boxes))
    assert [(o.machine.count, o.counts) for o in own] == [(8, (1, 2, 3, 4))]
    assert own[0].machine.price is not None


def test_a_card_is_offered_in_boxes_and_in_every_machine_that_has_it() -> None:
    found = {offer.machine.name for offer in offers("h100")}
    assert {"1xh100-sxm-80gb", "8xh100-sxm-80gb", "aws:p5.48xlarge", "onprem:dgx-h100"} <= found
    assert not any("p4d" in name for name in found)


def test_everything_on_offer_is_one_machine_and_stands_once(boxes: str) -> None:
    found = offers("any,aws,h100", Market(hardware=boxes))
    names = [offer.machine.name for offer in found]
    assert len(names) == len(set(names)) > 250
    assert all(offer.machine.num_nodes == 1 for offer in found)
    assert {"mybox", "den"} <= set(names)


def test_offers_in_another_currency_have_no_price() -> None:
    found = {o.machine.name: o.machine.price for o in offers("p5.48xlarge,gn7e-c16g1.32xlarge", Market(currency="CNY"))}
    assert found["aws:p5.48xlarge"] is None
    price = found["alibaba:ecs.gn7e-c16g1.32xlarge"]
    assert price is not None and price.currency == "CNY"


def test_an_offer_without_the_price_asked_for_says_which_there_are() -> None:
    offered = offers("aws:p5.48xlarge,gn7e-c16g1.32xlarge", Market(currency="CNY"))
    (note,) = offered[0].machine.notes[-1:]
    assert "known are on-demand in USD" in note


def test_offers_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="must name what to search over"):
        offers(" , ")
    with pytest.raises(UnknownName):
        offers("h100,no-such-card")
