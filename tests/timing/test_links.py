"""Links between the cards of a machine, for serving steps and training steps alike."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.topology import TOPOLOGIES, used_share
from vramcast.timing.links import assumed_links, links_of
from vramcast.timing.training.fabric import LINK_SHARE, Fabric, fabric_of

LINKED = [name for name in gpu_names() if load_gpu(name).link_bytes_per_s]


def bridged(name: str) -> Gpu:
    return replace(load_gpu(name), bridged=True)


def fabric(gpu: Gpu, cards: int = 8) -> Fabric:
    return fabric_of(Cluster(gpu=gpu, gpus_per_node=cards))


def ring_bytes_per_s(gpu: Gpu, ranks: int, *, cards: int = 8, stride: int = 1) -> float:
    """Bus bandwidth of an all-gather, as nccl-tests counts it."""
    return (ranks - 1) / ranks / fabric(gpu, cards).collective("all-gather", ranks=ranks, stride=stride).s_per_byte


def test_a_bridge_is_used_only_where_somebody_says_that_it_is_fitted() -> None:
    bare, fitted = load_gpu("rtx-3090"), bridged("rtx-3090")
    for gpu, kind in ((bare, "PCIe 4"), (fitted, "NVLink3 bridge")):
        assert links_of(gpu, node_cards=2).between(2).source.startswith(kind)
    assert fabric(bare, 2).link == fabric(bare, 2).pcie < fabric(fitted, 2).link
    assert "no NVLink3 bridge" in assumed_links(bare, node_cards=2)[0]
    assert fabric(bare, 2).assumptions == assumed_links(bare, node_cards=2)
    assert assumed_links(fitted, node_cards=2) == assumed_links(bare, node_cards=1) == ()


def test_rings_of_a_cube_mesh_use_the_links_among_their_cards() -> None:
    gpu = load_gpu("v100-sxm2-32gb")
    links = [round(ring_bytes_per_s(gpu, ranks) / LINK_SHARE.value / 25e9, 6) for ranks in (2, 4, 5, 8)]
    assert links == [1, 4, 4, 6]


def test_a_rack_is_one_machine_for_serving_and_training() -> None:
    cluster = Cluster(gpu=load_gpu("gb200-186gb"), gpus_per_node=4, num_nodes=32)
    assert cluster.node_cards == fabric_of(cluster).node_cards == 72
    assert links_of(cluster.gpu, node_cards=cluster.node_cards).between(16).source.startswith("NVLink5")


@pytest.mark.parametrize("topology", TOPOLOGIES)
@given(joined=st.integers(2, 64), data=st.data())
def test_no_group_uses_more_than_a_cards_links(topology: str, joined: int, data: st.DataObject) -> None:
    cards = data.draw(st.integers(2, joined))
    hop, used = (used_share(topology, cards=number, joined=joined) for number in (1, cards))
    assert 0 < hop <= used <= 1


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(LINKED), ranks=st.integers(2, 64), stride=st.integers(1, 8), factor=st.floats(1, 8),
    cards=st.sampled_from([2, 4, 8, 16]),
)
def test_a_slower_link_is_never_faster(name: str, ranks: int, stride: int, factor: float, cards: int) -> None:
    slow = bridged(name)
    fast = replace(slow, link_bytes_per_s=round(factor * (slow.link_bytes_per_s or 0)))
    here, there = (fabric_of(Cluster(gpu=gpu, gpus_per_node=cards, num_nodes=4)) for gpu in (slow, fast))
    for pattern in ("all-reduce", "all-gather"):
        assert (
            there.collective(pattern, ranks=ranks, stride=stride).s_per_byte
            <= here.collective(pattern, ranks=ranks, stride=stride).s_per_byte
        )
    assert there.all_to_all(ranks=ranks, stride=stride).s_per_byte <= (
        here.all_to_all(ranks=ranks, stride=stride).s_per_byte
    )
    assert there.send(stride=stride).s_per_byte <= here.send(stride=stride).s_per_byte
    assert links_of(fast, node_cards=cards).between(ranks).bytes_per_s >= (
        links_of(slow, node_cards=cards).between(ranks).bytes_per_s
    )
