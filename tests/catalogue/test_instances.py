"""Machines for rent and what they cost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue import instances as module
from vramcast.catalogue.clusters import Market, own_prices
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.instances import PROVIDERS, card_of_code, instances, load_instance, read_instances
from vramcast.catalogue.prices import (
    COLUMNS,
    FILE,
    Wanted,
    choose,
    known_prices,
    read_prices,
    shipped_prices,
    user_file,
)
from vramcast.errors import InvalidSpec, SourceError, VramcastError

# Machines: every row holds against its card and its siblings, names resolve, broken tables are refused.

BAD = Path(__file__).parent / "bad"
MACHINES = instances()


def test_the_memory_of_a_machine_is_that_of_its_card() -> None:
    for machine in MACHINES:
        nameplate = float(load_gpu(machine.gpu).memory_nameplate.split()[0])
        assert machine.memory_gb == pytest.approx(nameplate / machine.parts, rel=0.03), machine.full_name
        assert machine.source and machine.checked, machine.full_name


def test_the_link_of_a_machine_is_one_its_cards_have() -> None:
    for machine in [m for m in MACHINES if m.gpus > 1]:
        gpu = load_gpu(machine.gpu)
        assert machine.link is not None and machine.link_bytes_per_s is not None, machine.full_name
        if machine.link.startswith("PCIe"):
            assert machine.link == f"PCIe{gpu.pcie_generation}", machine.full_name
        else:
            assert gpu.link is not None and gpu.link.startswith(machine.link.split()[0]), machine.full_name
            assert machine.link_bytes_per_s == gpu.link_bytes_per_s, machine.full_name


def test_every_provider_and_every_alibaba_family_is_there() -> None:
    assert {machine.provider for machine in MACHINES} == set(PROVIDERS)
    families = {m.name.split(".")[1].split("-")[0] for m in MACHINES if m.provider == "alibaba"}
    listed = "gn8v gn8is gn7e gn7i gn7 gn6i gn6e gn6v gn7s gn5i gn5 ebmgn9g ebmgn9ge ebmgn9gc ebmgn8v ebmgn8ia ebmgn8is"
    assert set(listed.split()) | {"ebmgn7e", "ebmgn7i", "ebmgn7", "ebmgn6e", "ebmgn6v", "ebmgn6i"} <= families


def test_a_name_of_two_providers_must_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = {"p5.48xlarge": ("aws:p5.48xlarge", "onprem:p5.48xlarge")}
    monkeypatch.setattr(module, "_index", lambda: twins)
    with pytest.raises(InvalidSpec, match=r"several providers; use aws:p5\.48xlarge or onprem"):
        load_instance("p5.48xlarge")
    assert load_instance("aws:p5.48xlarge").provider == "aws"


def test_a_slice_of_a_card_keeps_its_share_of_memory_and_no_rates() -> None:
    slice_, whole = load_instance("g6f.large").card(), load_gpu("l4")
    assert slice_.visible_bytes == whole.visible_bytes // 8
    assert slice_.bandwidth_bytes_per_s is None and slice_.bf16_flops is None
    assert slice_.visible_bytes < 2861 << 20  # what the AWS API says


def test_the_fabric_of_an_azure_machine_is_its_infiniband() -> None:
    network = load_instance("ND96isr_H100_v5").network
    assert network is not None
    assert (network.bytes_per_s, network.rdma) == (8 * 400 * 10**9 // 8, "InfiniBand")


def test_card_codes_resolve_with_their_caveat_or_say_what_is_not_known() -> None:
    found = card_of_code("gu108")
    assert found is not None and found[0] == "h800-sxm-80gb" and "not published" in found[1]
    assert card_of_code("h100") is None
    for code in ("L20X", "GU60"):
        with pytest.raises(InvalidSpec, match="has not been published; name the card"):
            card_of_code(code)


@pytest.mark.parametrize(("name", "message"), [
    ("unknown_column", "line 1: unknown columns watts"),
    ("missing_column", "line 1: missing columns source"),
    ("duplicate_row", "line 3: aws, p5.48xlarge stands in line 2 already"),
    ("short_row", "line 2: 3 cells for 17 columns"),
    ("card", "line 2: unknown GPU 'h1000'"),
    ("slice", "line 2: slice='0.25' must be written like 1/4"),
    ("rdma", "line 2: rdma='Infiniband' must be one of"),
    ("rdma_without_network", "line 2: rdma='EFA' without network_gbit_per_s"),
    ("link", "line 2: link and link_gb_per_s must both be given"),
    ("provider", "line 2: provider='amazon' must be one of alibaba"),
    ("date", "line 2: checked='20.11.2026' must be a date"),
    ("number", "line 2: host_gib='-5' must be a positive number"),
    ("quote", "line 2:"),
])
def test_bad_tables_of_machines_are_refused_naming_file_and_line(name: str, message: str) -> None:
    path = BAD / f"bad_instances_{name}.csv"
    with pytest.raises(SourceError) as caught:
        read_instances(path.read_text(encoding="utf-8"), file=path.name)
    assert f"{path.name}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_look_up(text: str) -> None:
    for look_up in (load_instance, card_of_code):
        try:
            look_up(text)
        except VramcastError as error:
            assert "\n" not in str(error)


# Prices: dated and sourced, chosen as asked, never converted, never taken from a broken table.

HEADER = ",".join(COLUMNS)


def test_every_shipped_price_is_of_a_known_machine_with_source_and_date() -> None:
    count = 0
    for name, price in read_prices(FILE.read_text(encoding="utf-8"), file=FILE.name):
        assert load_instance(name).full_name == name
        assert price.source and price.date and price.region
        count += 1
    assert count > 1000


def test_published_prices_are_as_published() -> None:
    """AWS us-east-1, 2026-07-20; Alibaba's China site, 2024-10-10; Azure eastus, 2026-06-18."""
    prices = shipped_prices()
    assert [price.per_hour for price in prices.of("aws:p5.48xlarge")] == [55.04]
    cheap = choose("alibaba:ecs.gn7i-c16g1.4xlarge", prices.of("alibaba:ecs.gn7i-c16g1.4xlarge"), Wanted())
    assert cheap is not None and (cheap.per_hour, cheap.currency, cheap.region) == (10.0934, "CNY", "cn-hangzhou")
    azure = choose("azure:Standard_ND96isr_H100_v5", prices.of("azure:Standard_ND96isr_H100_v5"), Wanted())
    assert azure is not None and azure.per_hour == 98.32


def test_a_refreshed_row_wins_unless_a_newer_one_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_DATA", str(tmp_path))
    assert user_file() == tmp_path / "prices.csv"
    for day, expected in (("2026-12-01", 50.0), ("2020-01-01", 55.04)):
        row = f"aws:p5.48xlarge,us-east-1,on-demand,USD,50,{day},update"
        user_file().write_text(f"{HEADER}\n{row}\n", encoding="utf-8")
        assert [price.per_hour for price in known_prices().of("aws:p5.48xlarge")] == [expected]


@pytest.mark.parametrize(("name", "message"), [
    ("unknown_column", "line 1: unknown columns discount"),
    ("missing_column", "line 1: missing columns currency"),
    ("duplicate_row", "line 3: aws:p5.48xlarge, us-east-1, on-demand, USD stands in line 2 already"),
    ("tariff", "line 3: tariff='reserved' must be one of on-demand, spot"),
    ("currency", "line 2: currency 'usd' must be an ISO 4217 code"),
    ("empty_price", "line 2: per_hour is empty; leave out the row"),
    ("comma_price", "line 2: per_hour='55,04' must be a positive number"),
    ("date", "line 2: date='2026-13-01' must be a date"),
    ("no_source", "line 2: source is empty"),
    ("huge_price", "line 2: price per hour 5504000.0 must be more than 0 and less than 1,000,000"),
    ("unknown_machine", "line 3: unknown instance 'aws:p5.48xlarg'; did you mean"),
])
def test_a_wrong_row_of_own_prices_names_file_and_line(name: str, message: str) -> None:
    path = BAD / f"bad_prices_{name}.csv"
    with pytest.raises(SourceError) as caught:
        own_prices(Market(prices=str(path)))
    assert f"{path}: {message}" in str(caught.value)


def test_files_that_are_none_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        own_prices(Market(prices=str(tmp_path / "none.csv")))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="not a text file"):
        own_prices(Market(prices=str(tmp_path / "binary.csv")))
