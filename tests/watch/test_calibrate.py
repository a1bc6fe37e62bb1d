"""A recording beside the prediction of its job, and what later answers make of it."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from tests.cli.asking import vramcast as called
from tests.watch.runs import MIB, OPTIONS, recorded, watched
from vramcast.api import job_of
from vramcast.domain.failure import Compared, Reconciliation
from vramcast.domain.observation import RunInfo
from vramcast.errors import InvalidSpec, SourceError, VramcastError
from vramcast.estimate.training import answer
from vramcast.report.measured import render_run as render
from vramcast.report.measured import run_json as to_json
from vramcast.report.messages import Words
from vramcast.watch.recording import Recorder


def asked(recording: Path, **given: Any) -> Reconciliation:
    options = {name.replace("-", "_"): value for name, value in OPTIONS.items()}
    return vramcast.calibrate(recording, **{**options, **given})


def peak(found: Reconciliation) -> dict[str, Compared]:
    return {one.entry: one for one in found.compared if one.group == "peak"}


@pytest.mark.parametrize("changes", [
    {"rest": 900 * MIB}, {"weights": 300 * MIB, "kept": -100 * MIB}, {"optimizer": -400 * MIB}, {"outside": 200 * MIB},
    {"rest": -700 * MIB, "kept": 500 * MIB}, {"rest": 3 * MIB},
])
def test_parts_add_up_to_the_levels_and_the_corrected_answer_is_the_run(tmp_path: Path, changes: Any) -> None:
    job = recorded(tmp_path / "run.sqlite", **changes)
    saved = tmp_path / "calibration.toml"
    found = peak(asked(tmp_path / "run.sqlite", save=saved))
    for figure in ("measured", "predicted"):
        size = {name: getattr(one, figure) for name, one in found.items()}
        parts = sum(size[name] for name in ("weights", "gradients", "optimizer", "rest"))
        assert parts == size["level.allocated"]
        assert parts + size["allocator"] == size["level.reserved"]
        assert size["level.reserved"] + size["outside"] == size["level.device"]
    again = answer(job_of({**OPTIONS, "calibration": str(saved)}))
    assert again.peak.device_bytes == pytest.approx(found["level.device"].measured, rel=0.001)
    assert again.peak.reserved_bytes == pytest.approx(found["level.reserved"].measured, rel=0.001)
    assert again.peak.allocated_bytes == pytest.approx(found["level.allocated"].measured, rel=0.006)
    assert sum(entry.num_bytes for entry in again.fullest.ledger) == again.peak.device_bytes
    low, high = again.interval_bytes
    assert low <= again.peak.device_bytes <= high
    before = answer(job)
    assert (high - low) / again.peak.device_bytes == pytest.approx(
        (before.interval_bytes[1] - before.interval_bytes[0]) / before.peak.device_bytes, rel=0.001
    )  # one run says nothing of the next one: the interval is as wide as it was


def test_an_underestimate_is_said_before_a_larger_overestimate(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", rest=-2000 * MIB, outside=300 * MIB)
    found = asked(tmp_path / "run.sqlite")
    assert found.largest is not None and found.largest.entry == "outside"
    text = render(found, Words("en"))
    assert text.startswith("underestimated: context and communicators, 300.00 MiB more than predicted")
    assert text.index("context and communicators: more kernels") < text.index("activations and temporaries: the run")
    assert render(found, Words("zh")).startswith("低估：上下文与通信库")


@pytest.mark.parametrize(("change", "holds", "warning"), [
    ({"gpus": "1xa100-sxm4-80gb"}, (), "measured on h100-sxm-80gb, not a100-sxm4-80gb"),
    ({"engine": "pytorch"}, (), "measured with huggingface, not pytorch"),
    ({"model": "smollm-360m"}, ("outside",), "weights was measured with model=smollm-135m and is ignored here"),
    ({"recompute": "full"}, ("outside", "weights", "optimizer"), "activations was measured with recompute=default"),
    ({"optimizer": "sgd"}, ("outside", "weights"), "optimizer was measured with optimizer=default"),
    ({"gpus": "2xh100-sxm-80gb"}, (), "beside torch's allocator was measured with dp=1 and is ignored here"),
])
def test_it_is_used_where_it_holds_and_refused_with_a_sentence_elsewhere(
    tmp_path: Path, change: Any, holds: tuple[str, ...], warning: str
) -> None:
    recorded(tmp_path / "run.sqlite", weights=300 * MIB, rest=900 * MIB, outside=200 * MIB, optimizer=200 * MIB)
    saved = tmp_path / "box.toml"
    asked(tmp_path / "run.sqlite", save=saved)
    plain = answer(job_of({**OPTIONS, **change}))
    found = answer(job_of({**OPTIONS, **change, "calibration": str(saved)}))
    assert any(warning in text for text in found.warnings)
    fitted = {entry.category for entry in found.fullest.ledger if entry.basis.value == "fitted"}
    assert fitted == {"workspaces" if name == "outside" else name for name in holds}
    assert (found.peak == plain.peak) is (not holds)


def test_another_length_is_corrected_in_proportion_and_says_so(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", rest=900 * MIB)
    saved = tmp_path / "box.toml"
    asked(tmp_path / "run.sqlite", save=saved)
    longer = {**OPTIONS, "seq-len": 1024}
    plain, found = answer(job_of(longer)), answer(job_of({**longer, "calibration": str(saved)}))
    assert found.peak.allocated_bytes - plain.peak.allocated_bytes == pytest.approx(1800 * MIB, rel=0.05)
    assert any("in proportion to a run with seq_len=512" in text for text in found.assumptions)
    assert any("reserved, not allocated was measured with seq_len=512" in text for text in found.warnings)


def test_another_process_on_the_card_is_said_and_not_learned_from(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", outside=20_000 * MIB)
    found = asked(tmp_path / "run.sqlite")
    assert "another process was on the card" in render(found, Words("en"))
    assert found.calibration is not None and "outside" not in found.calibration.corrections


def test_a_recording_without_what_was_counted_compares_levels_alone(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", attached=False, rest=900 * MIB)
    found = asked(tmp_path / "run.sqlite")
    assert list(peak(found)) == ["level.allocated", "allocator", "level.reserved", "outside", "level.device"]
    assert "attach(model, optimizer)" in render(found, Words("en"))
    with pytest.raises(InvalidSpec, match="tells no entries apart"):
        asked(tmp_path / "run.sqlite", save=tmp_path / "box.toml")


def test_a_server_that_was_watched_is_compared_at_the_level_of_the_driver(tmp_path: Path) -> None:
    watched(tmp_path / "run.sqlite", 70_000 * MIB)
    job = tmp_path / "serve.toml"
    job.write_text('model = "llama-3.1-8b"\ngpus = "h100-sxm-80gb"\nengine = "vllm"\ncontext = 8192\n')
    found = vramcast.calibrate(tmp_path / "run.sqlite", file=job)
    assert peak(found)["level.device"].measured == 70_000 * MIB
    assert found.answer.question["engine"].startswith("vllm")


def test_the_time_of_a_step_is_compared_and_never_learned(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", step_s=0.05)
    found = asked(tmp_path / "run.sqlite")
    time = next(one for one in found.compared if one.unit == "s")
    assert time.measured == 0.05 and found.answer.time is not None
    assert time.predicted == found.answer.time.step_s
    assert re.search(r"step time +50(\.0)? ms", render(found, Words("en")))


def test_of_several_ranks_the_one_that_needs_most_counts(tmp_path: Path) -> None:
    recorded(tmp_path / "a.sqlite")
    recorded(tmp_path / "b.sqlite", rest=500 * MIB)
    options = {name.replace("-", "_"): value for name, value in OPTIONS.items()}
    found = vramcast.calibrate([tmp_path / "a.sqlite", tmp_path / "b.sqlite"], **options)
    assert found.log == "b.sqlite"


def nothing(path: Path) -> None:
    Recorder.open(path, RunInfo(started_s=0, host="box")).close()


@pytest.mark.parametrize(("make", "change", "kind", "sentence"), [
    (lambda path: None, {}, SourceError, "no recording"),
    (lambda path: path.write_text("some text"), {}, SourceError, "cannot use .* as a recording|not a recording"),
    (nothing, {}, SourceError, "holds no step and no reading"),
    (recorded, {"gpus": "1xa100-sxm4-80gb"}, InvalidSpec, "recorded on NVIDIA H100 .* the job asks for a100-sxm4-80gb"),
    (recorded, {"gpus": "1xh200"}, InvalidSpec, "the job asks for h200"),
    (recorded, {"gpus": "8xh100-sxm-80gb"}, InvalidSpec, "recorded on 1 GPU, the job asks for 8"),
    (lambda path: recorded(path, world_size=2), {}, InvalidSpec, "recorded on 2 GPUs, the job asks for 1"),
    (recorded, {"calibration": "x.toml"}, VramcastError, "x.toml"),
])
def test_bad_input_gets_one_sentence(
    tmp_path: Path, make: Any, change: Any, kind: type[VramcastError], sentence: str
) -> None:
    path = tmp_path / "run.sqlite"
    make(path)
    with pytest.raises(kind, match=sentence) as raised:
        asked(path, **change)
    assert "\n" not in str(raised.value)


COLUMNS = {
    "torch_samples": (
        "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "device_total_bytes", "step_s", "num_ooms",
        "step", "rank",
    ),
    "torch_runs": (
        "weight_bytes", "gradient_bytes", "optimizer_bytes", "num_parameters", "world_size", "dtypes", "batch", "gpu",
        "optimizer", "simulated",
    ),
    "runs": ("versions",),
}
VALUES = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(max_size=20), st.binary(max_size=8),
    st.just("[]"), st.just("{}"),
)
PLACES = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "run.sqlite"
    recorded(path, rest=900 * MIB)
    return path.read_bytes()


@settings(max_examples=30, deadline=None)
@given(place=PLACES, value=VALUES)
def test_whatever_a_recording_holds_the_answer_is_a_table_or_one_sentence(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, place: tuple[str, str], value: Any
) -> None:
    path = tmp_path_factory.mktemp("made") / "run.sqlite"
    path.write_bytes(sound)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE {place[0]} SET {place[1]} = ?", (value,))
    try:
        found = asked(path)
    except VramcastError as error:
        assert "\n" not in str(error)
        return
    assert render(found, Words("en")) and to_json(found)


def test_the_document_has_the_answer_and_every_entry(tmp_path: Path) -> None:
    recorded(tmp_path / "run.sqlite", rest=900 * MIB)
    done = called(
        "calibrate", str(tmp_path / "run.sqlite"), "--model", "smollm-135m", "--gpus", "1xh100-sxm-80gb", "--engine",
        "huggingface", "--seq-len", "512", "--micro-batch", "8", "--json",
    )
    document = json.loads(done.stdout)
    found = document["calibration"]
    assert found["largest"] == {"entry": "rest", "share": 1.0, "underestimated": True}
    assert {one["entry"] for one in found["entries"]} > {"weights", "rest", "allocator", "outside", "level.device"}
    assert set(found["corrections"]) == {"activations", "temporaries", "allocator"}
    assert document["ranks"]
