"""Releases of engines whose versions are dates."""

import pytest

import vramcast
from vramcast.domain.version import named
from vramcast.engines.training import MADE
from vramcast.question.build import training_engine


@pytest.mark.parametrize("engine", MADE)
@pytest.mark.parametrize("release", ["0.9", "3", "0.5.999"])
def test_a_release_newer_than_all_is_the_newest_known_with_a_warning(engine: str, release: str) -> None:
    options = {"gpus": "8xh100-sxm-80gb", "shards": "everything", "precision": "mixed-bf16"}
    if engine == "litgpt":
        options = {"gpus": "h100", "precision": "bf16"}
    newest, newer = (vramcast.train("llama-3.2-1b", engine=f"{engine}{at}", **options) for at in ("", f"@{release}"))
    assert newer.peak == newest.peak
    assert any(f"what {engine} {release} changed" in text for text in newer.ignored)
    assert training_engine(named(*training_engine(f"{engine}@{release}"))) == training_engine(f"{engine}@{release}")
