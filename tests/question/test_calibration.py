"""Calibration files: written, read back, and refused where they make no sense."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from vramcast.domain.calibration import Calibration, Correction, Plan
from vramcast.errors import SourceError
from vramcast.question.files import read_calibration, write_calibration

SAVED = Calibration(
    engine="vllm", oldest=(0, 19), newest=(0, 20, 1), gpu="h100-sxm-80gb",
    plan=Plan(model="a \"b\"\\c", weights="fp8", tp=2),
    corrections={"kv cache": Correction(measured_bytes=3, predicted_bytes=2, apportioned=True)}, log="x\n.log",
    date="2026-11-20",
)

GOOD = """
engine = "vllm"
oldest = "0.19"
newest = "0.19"
gpu = "h100-sxm-80gb"
[plan]
model = "llama-3.1-8b"
[corrections.weights]
measured_bytes = 2
predicted_bytes = 1
"""


def test_a_saved_calibration_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_calibration(path, SAVED)
    assert read_calibration(path) == replace(SAVED, source="run.toml")


@pytest.mark.parametrize(("text", "words"), [
    ("engine = ", "not TOML"),
    ("", "no calibration: .*engine"),
    (GOOD + "extra = 1\n", "no calibration: .*extra"),
    ("speed = 3\n" + GOOD, "no calibration: .*speed"),
    (GOOD.replace("measured_bytes = 2", "measured_bytes = -2"), "must measure 0 or more"),
    (GOOD.replace("predicted_bytes = 1", "predicted_bytes = 0"), "predicted at least 1"),
    (GOOD.replace("predicted_bytes = 1", "predicted_bytes = 1.5"), "no calibration"),
    (GOOD.replace("corrections.weights", "corrections.wieghts"), "did you mean weights"),
    (GOOD.replace('oldest = "0.19"', 'oldest = "new"'), "must be written like 0.19"),
    (GOOD.replace('newest = "0.19"', 'newest = "0.11"'), "oldest=0.19 is newer"),
])
def test_a_bad_calibration_gets_one_sentence_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=rf"run\.toml: .*{words}") as caught:
        read_calibration(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\0x", b"x" * 100_000])
def test_a_file_that_is_no_calibration_at_all_gets_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"run\.toml"):
        read_calibration(path)
    with pytest.raises(SourceError, match=r"none\.toml"):
        read_calibration(tmp_path / "none.toml")
