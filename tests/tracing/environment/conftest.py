"""A simulated card, unlimited so that what is needed can be learned."""

import pytest

torch = pytest.importorskip("torch")

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session


@pytest.fixture
def session():
    return Session(load_gpu("a100-sxm-80gb"))
