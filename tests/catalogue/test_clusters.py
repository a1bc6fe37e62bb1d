"""What --gpus names, what it costs, and what a search is offered."""

from pathlib import Path

import pytest

from vramcast.catalogue.clusters import Market, cluster_of
from vramcast.catalogue.given import read_clusters
from vramcast.catalogue.machines import offers
from vramcast.errors import InvalidSpec, SourceError, UnknownName

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


@pytest.mark.parametrize(("name", "message"), [
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
])
def test_a_wrong_cluster_names_file_and_line(name: str, message: str) -> None:
    path = BAD / f"bad_hardware_{name}.toml"
    with pytest.raises(SourceError) as caught:
        read_clusters(path)
    assert f"{path}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_search_is_offered_what_its_text_names(boxes: str) -> None:
    assert [(o.machine.name, o.counts) for o in offers("8xh100")] == [("8xh100-sxm-80gb", (1,))]
    assert [(o.machine.name, o.counts) for o in offers("64xh100")] == [("8xh100-sxm-80gb", (8,))]
    assert [(o.machine.name, o.counts) for o in offers("4xp5.48xlarge")] == [("aws:p5.48xlarge", (4,))]
    assert [o.counts for o in offers("4xp5.48xlarge,aws:p5.48xlarge,aws:p5.48xlarge")] == [()]
    assert {o.machine.instance.split(":")[0] for o in offers("aws") if o.machine.instance} == {"aws"}
    own = offers("mybox", Market(hardware=boxes))
    assert [(o.machine.count, o.counts) for o in own] == [(8, (1, 2, 3, 4))]
    assert own[0].machine.price is not None


def test_everything_on_offer_is_one_machine_and_stands_once(boxes: str) -> None:
    found = offers("any,aws,h100", Market(hardware=boxes))
    names = [offer.machine.name for offer in found]
    assert len(names) == len(set(names)) > 250
    assert all(offer.machine.num_nodes == 1 for offer in found)
    assert {"mybox", "den"} <= set(names)


def test_offers_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="must name what to search over"):
        offers(" , ")
    with pytest.raises(UnknownName):
        offers("h100,no-such-card")
