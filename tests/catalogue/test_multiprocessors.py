"""Multiprocessors of the catalogue's cards."""

import csv

from vramcast.catalogue.gpus import FILE, load_gpu
from vramcast.catalogue.multiprocessors import multiprocessors, threads


def test_every_card_of_nvidia_says_how_many_it_has():
    with FILE.open(newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file) if row["vendor"] == "NVIDIA"]
    assert [name for name in names if multiprocessors(name) is None] == []


def test_cards_of_other_vendors_say_nothing():
    assert multiprocessors("mi300x") is None


def test_threads_follow_from_the_compute_capability():
    assert threads(load_gpu("rtx-3090").compute_capability) == 1536
    assert threads(load_gpu("h100-sxm-80gb").compute_capability) == 2048
