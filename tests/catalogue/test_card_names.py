"""Everyday names of cards: every spelling of every card is that card, and nothing is another one."""

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue import gpus
from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.gpu_texts import parse_gpus
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.errors import InvalidSpec, UnknownName

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
    ("DGX H100", "onprem:dgx-h100"), ("2 p5.48xlarge", "2xaws:p5.48xlarge"),
])
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
