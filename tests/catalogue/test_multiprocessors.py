"""Multiprocessors of the catalogue's cards."""


from vramcast.catalogue.gpus import load_gpu, threads


def test_threads_follow_from_the_compute_capability():
    assert threads(load_gpu("rtx-3090").compute_capability) == 1536
    assert threads(load_gpu("h100-sxm-80gb").compute_capability) == 2048
