"""An engine newer than any that is known is answered as the newest, and says so."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.domain.version import version_text
from vramcast.engines.serving.table import SERVING

TEXT = {"model": "llama-3.1-8b", "gpus": "h100", "context": 8192}
IMAGE = {"model": "stable-diffusion-xl-base", "gpus": "rtx-4090"}


@pytest.mark.parametrize(
    ("engine", "version", "options"),
    [
        ("vllm", "9.9", TEXT), ("sglang", "9.9", TEXT), ("tensorrt-llm", "9.0", TEXT), ("llama.cpp", "b99999", TEXT),
        ("ik_llama.cpp", "99999", TEXT), ("transformers", "9.0", TEXT), ("diffusers", "9.9", IMAGE),
        ("stable-diffusion.cpp", "999", IMAGE),
    ],
)
def test_it_is_the_newest_and_the_first_lines_say_so(engine: str, version: str, options: dict[str, Any]) -> None:
    given = dict(options)
    model = given.pop("model")
    found = vramcast.serve(model, engine=f"{engine}@{version}", **given)
    known = SERVING[engine].newest
    newest = vramcast.serve(model, engine=f"{engine}@{version_text(known)}", **given)
    assert found.fullest.needed_bytes == newest.fullest.needed_bytes
    assert len(found.ignored) == 1 and "changed since" in found.ignored[0]
    assert not newest.ignored
