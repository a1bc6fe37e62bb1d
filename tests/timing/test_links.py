"""Links between the cards of a machine, for serving steps and training steps alike."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.device import Cluster, Gpu
from vramcast.timing.rates import assumed_links, links_of
from vramcast.timing.training.fabric import Fabric, fabric_of

LINKED = [name for name in gpu_names() if load_gpu(name).link_bytes_per_s]


def bridged(name: str) -> Gpu:
    return replace(load_gpu(name), bridged=True)


def fabric(gpu: Gpu, cards: int = 8) -> Fabric:
    return fabric_of(Cluster(gpu=gpu, gpus_per_node=cards))


def test_a_bridge_is_used_only_where_somebody_says_that_it_is_fitted() -> None:
    bare, fitted = load_gpu("rtx-3090"), bridged("rtx-3090")
    for gpu, kind in ((bare, "PCIe 4"), (fitted, "NVLink3 bridge")):
        assert links_of(gpu, node_cards=2).between(2).source.startswith(kind)
    assert fabric(bare, 2).link == fabric(bare, 2).pcie < fabric(fitted, 2).link
    assert "no NVLink3 bridge" in assumed_links(bare, node_cards=2)[0]
    assert fabric(bare, 2).assumptions == assumed_links(bare, node_cards=2)
    assert assumed_links(fitted, node_cards=2) == assumed_links(bare, node_cards=1) == ()


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
