"""Everyday names of cards: every spelling of every card is that card, and nothing is another one."""

from __future__ import annotations

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue import gpus
from vramcast.catalogue.card_names import CardNames
from vramcast.catalogue.clusters import cluster_of, taken
from vramcast.catalogue.gpu_texts import parse_gpus
from vramcast.catalogue.gpus import found_gpu, gpu_names, load_gpu
from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.units import GIB, MIB

ROWS = {row["name"]: row for row in csv.DictReader(gpus.FILE.read_text(encoding="utf-8").splitlines())}
NAMES = st.sampled_from(gpu_names())


def size_of(name: str) -> str:
    """The nameplate of a card, "80"."""
    return ROWS[name]["memory_nameplate"].split()[0]


def test_no_spelling_belongs_to_two_cards() -> None:
    CardNames(ROWS)  # raises where one does


def test_every_row_names_the_page_that_its_figures_are_from() -> None:
    for name in gpu_names():
        source = ROWS[name]["source"]
        assert source.startswith("https://") and "recalled" not in source, name


FORMS = st.sampled_from(["{}", "NVIDIA {}", "{} GPU", " {} ", "{}(R)"])


@given(NAMES, FORMS, st.sampled_from([str, str.upper, str.title]))
def test_the_own_name_and_product_in_any_case_are_the_card(name: str, form: str, case: object) -> None:
    assert callable(case)
    for text in (name, ROWS[name]["product"]):
        assert found_gpu(form.format(case(text)))[0].name == name


@given(NAMES, st.sampled_from(["-", " ", "_", "  "]), st.sampled_from(["gb", "GB", " GB", "G", "GiB"]))
def test_words_with_the_size_are_the_card_or_asked_for(name: str, between: str, unit: str) -> None:
    core = re.sub(r"-\d+gb$", "", name).replace("-", between)
    try:
        found = load_gpu(f"{core} {size_of(name)}{unit}")
    except InvalidSpec:
        return  # several cards are called so, and the sentence lists them
    assert found.memory_nameplate == ROWS[name]["memory_nameplate"]
    assert set(re.findall(r"\d+", core)) <= set(re.findall(r"\d+", found.name + found.product))


@given(NAMES, st.sampled_from(["48", "7", "13", "1000"]))
def test_a_size_that_a_card_does_not_have_is_never_answered(name: str, size: str) -> None:
    core = re.sub(r"-\d+gb$", "", name)
    try:
        found = load_gpu(f"{core} {size}GB")
    except (InvalidSpec, UnknownName):
        return
    assert found.memory_nameplate == f"{size} GB"


@given(NAMES)
def test_a_model_number_that_there_is_not_names_near_ones_and_never_answers(name: str) -> None:
    wrong = re.sub(r"(\d)(?!.*\d)", lambda match: match[1] + "7", re.sub(r"-\d+gb$", "", name))
    try:
        found = load_gpu(wrong)
    except (UnknownName, InvalidSpec) as error:
        assert "\n" not in str(error)
        return
    assert re.sub(r"\W", "", wrong) in re.sub(r"\W", "", found.name + found.product.lower())


@given(NAMES)
def test_what_torch_prints_of_a_card_is_the_card(name: str) -> None:
    card = load_gpu(name)
    if "(" not in card.product:
        assert load_gpu(f"{card.vendor} {card.product}").name == name


@given(NAMES, st.integers(1, 16))
def test_lines_of_nvidia_smi_are_so_many_cards(name: str, count: int) -> None:
    card = load_gpu(name)
    if card.vendor != "NVIDIA" or "(" in card.product:
        return
    lines = "\n".join(f"GPU {index}: NVIDIA {card.product} (UUID: GPU-{index}a1b2)" for index in range(count))
    cluster = parse_gpus(lines)
    assert (cluster.gpu.name, cluster.count) == (name, count)


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


@given(st.text(max_size=60))
def test_no_text_is_more_than_an_error(text: str) -> None:
    try:
        cluster = cluster_of(text)
    except VramcastError as error:
        assert str(error) and len(str(error)) < 700
    else:
        assert parse_gpus(cluster.name) if cluster.instance is None else cluster.count


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 4090 laptop", "rtx-4090-laptop"), ("NVIDIA GeForce RTX 3060 Ti 8GB", "rtx-3060-ti"),
        ("A6000", "rtx-a6000"),
        ("6000 ada", "rtx-6000-ada"), ("H100 PCIe 80G", "h100-pcie-80gb"), ("4070TiSuper", "rtx-4070-ti-super"),
        ("4090D", "rtx-4090-d"), ("7900 xtx", "rx-7900-xtx"), ("V100S", "v100s-pcie-32gb"), ("L40S", "l40s"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", "rtx-2070-max-q"), ("m3 max 64gb", "m3-max-64gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-bw-max-q"), ("thor", "jetson-t5000"),
        ("dgx spark", "gb10"), ("ryzen ai max+ 395", "strix-halo-128gb"), ("310p", "ascend-310p-48gb"),
        ("tpu v5e", "tpu-v5e"), ("B580", "arc-b580"), ("4090显卡", "rtx-4090"), ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "rtx-3050-laptop-6gb"), ("24564MiB 4090", "rtx-4090"),
        ("4090 48G", "rtx-4090-48gb"), ("rtx 3080 20gb", "rtx-3080-20gb"), ("2080ti 22g", "rtx-2080-ti-22gb"),
    ],
)
def test_everyday_names(text: str, name: str) -> None:
    assert load_gpu(text).name == name


@pytest.mark.parametrize("text", ["a100", "h100", "3060", "v100 32g", "rtx pro 6000", "4060"])
def test_a_name_of_several_cards_says_which_is_taken(text: str) -> None:
    (said,) = taken(text)
    assert f"is taken as {load_gpu(text).name}; there are also" in said


@pytest.mark.parametrize("text", ["h100-sxm-80gb", "NVIDIA A100-SXM4-40GB", "l40s", "aws:p5.48xlarge", "nonsense"])
def test_a_name_of_one_card_says_nothing(text: str) -> None:
    assert taken(text) == ()


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


@pytest.mark.parametrize(
    ("text", "near"),
    [("gtx 4090", "rtx-4090"), ("rtx 4095", "rtx-4090"), ("h101", "h100"), ("3090 48gb", "--gpus 48gb"),
     ("m3 max 65gb", "m3-max-64gb")],
)
def test_near_misses_name_what_may_be_meant(text: str, near: str) -> None:
    with pytest.raises((UnknownName, InvalidSpec), match=re.escape(near)):
        load_gpu(text)


@pytest.mark.parametrize(
    ("text", "count", "usable_gib"),
    [("24gb", 1, 21.83), ("2x24gb", 2, 21.83), ("8 x 16 GB", 8, 14.42), ("24564MiB", 1, 23.45)],
)
def test_a_size_is_an_unknown_card(text: str, count: int, usable_gib: float) -> None:
    cluster = parse_gpus(text)
    assert cluster.count == count and cluster.gpu.visible_bytes / GIB == pytest.approx(usable_gib, abs=0.01)
    assert cluster.gpu.has_bf16 and not cluster.gpu.has_fp8 and cluster.gpu.bandwidth_bytes_per_s is None
    assert "time and price need the card's name" in cluster.cautions[0]
    assert parse_gpus(cluster.name) == cluster


def test_an_unknown_card_has_no_more_than_every_known_one_of_its_size() -> None:
    for card in map(load_gpu, gpu_names()):
        size = card.memory_nameplate.removesuffix(" GB")
        if card.vendor == "NVIDIA" and float(size) >= 1:
            assert parse_gpus(f"{size}gb").gpu.visible_bytes <= card.visible_bytes, card.name


@pytest.mark.parametrize(
    ("text", "seen_mib"),
    [("a100-40gb-1g.5gb", 4864), ("a100-40gb-2g.10gb", 9856), ("h100-1g.10gb", 9984), ("h100-2g.20gb", 20090),
     ("H100 MIG 3g.40gb", 40448), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728)],
)
def test_a_mig_instance_has_at_most_what_nvidia_smi_shows(text: str, seen_mib: int) -> None:
    cluster = parse_gpus(text)
    assert 0.93 * seen_mib * MIB <= cluster.gpu.visible_bytes <= seen_mib * MIB
    assert cluster.gpu.bf16_flops is None and parse_gpus(cluster.name) == cluster


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4 nodes of 8 A100 80GB", "4x8xa100-sxm4-80gb"), ("2 machines, 8 gpus each, h200", "2x8xh200-sxm-141gb"),
        ("two nodes with eight B200 each", "2x8xb200-180gb"), ("2台8卡H800", "2x8xh800-sxm-80gb"),
        ("两台八卡A100", "2x8xa100-sxm4-80gb"),
        ("a single 4090", "1xrtx-4090"), ("双卡4090", "2xrtx-4090"), ("四卡 L40S", "4xl40s"), ("dual L40S", "2xl40s"),
        ("一张4090", "1xrtx-4090"), ("十六卡4090", "2x8xrtx-4090"),
        ("dual 3090s", "2xrtx-3090"), ("Colab T4", "1xt4"), ("kaggle 2xT4", "2xt4"), ("v5e-8", "8xtpu-v5e"),
        ("v5p-8", "4xtpu-v5p"), ("MacBook Pro M4 Max 128GB", "1xm4-max-128gb"), ("RTX™ 4090", "1xrtx-4090"),
        ("DGX H100", "onprem:dgx-h100"), ("2 p5.48xlarge", "2xaws:p5.48xlarge"),
    ],
)
def test_everyday_numbers_and_machines(text: str, name: str) -> None:
    assert cluster_of(text).name == name


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
