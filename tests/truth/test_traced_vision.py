"""Vision rows through the trace; the fit of cuDNN's workspaces plays the same runs."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
if find_spec("timm") is None or find_spec("torchvision") is None:
    pytest.skip("timm or torchvision is not installed", allow_module_level=True)

from truth import fit_cudnn, traced_vision
from truth.score import PUBLISHED
from vramcast.catalogue.contexts import WORKSPACES as FILE
from vramcast.catalogue.contexts import read_shares, workspace_share

ROWS = PUBLISHED / "vision_nvidia_smi.jsonl"
HERE = SimpleNamespace(map=lambda function, *items, chunksize=1: map(function, *items))
"""In place of a pool of processes."""
QUESTION = traced_vision.Question("timm/seresnet18", 8, "GPUMemNet", "a100-sxm4-40gb")


def test_rows_of_small_networks_are_near_what_was_measured():
    rows = [(number, json.loads(line)) for number, line in enumerate(ROWS.read_text().splitlines(), start=1)]
    some = [
        (number, row) for number, row in rows
        if row["model"] in ("resnet18", "resnet34", "densenet121") and row["gpu"] in ("RTX 3090", "Tesla V100")
    ]
    assert len(some) > 10
    scored, refused = traced_vision.score(some, HERE)
    assert not refused and len(scored) == len(some)
    errors = sorted(abs(item.error) for item in scored)
    assert errors[len(errors) // 2] < 0.08
    assert sum(item.error < -traced_vision.FAR for item in scored) <= len(scored) / 10


def test_a_played_run_peaks_where_the_traced_one_did():
    run = fit_cudnn.recorded((QUESTION, 1000.0))
    assert run is not None
    shares = {place: workspace_share(*place, fit_cudnn.SINCE) for place in fit_cudnn.PLACES}
    fit_cudnn._remember([run])
    assert fit_cudnn.peak_mib((0, shares)) == traced_vision.reserved_mib(QUESTION)
    assert fit_cudnn.peak_mib((0, dict.fromkeys(shares, 0.0))) < fit_cudnn.peak_mib((0, dict.fromkeys(shares, 4.0)))


def test_a_written_table_is_read_back():
    score = fit_cudnn.Score(0.02, 1800.0, 0.02, 0.05)
    shares = dict.fromkeys(fit_cudnn.PLACES, 1.25)
    fitted = fit_cudnn.Fitted(shares, shares, shares, 3, score, score, [score])
    before = read_shares(FILE.read_text(encoding="utf-8"), file="before")
    after = read_shares(fit_cudnn.table(FILE.read_text(encoding="utf-8"), fitted), file="after")
    for place in fit_cudnn.PLACES:
        assert after[place] == {**before[place], fit_cudnn.SINCE: 1.25}


def test_a_network_that_fails_is_named():
    found = traced_vision.reserved_mib(QUESTION._replace(model="timm/no_such_network"))
    assert isinstance(found, str) and found.startswith("timm/no_such_network: ")
