"""`vramcast oom` and `vramcast.diagnose`."""

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from tools.docs import ROOT
from vramcast.cli.main import group
from vramcast.errors import SourceError
from vramcast.report.failure import render
from vramcast.report.messages import Words

EXAMPLES = ROOT / "docs" / "examples"
LOG, SNAPSHOT = EXAMPLES / "fragmented.log", EXAMPLES / "fragmented.pickle"
MESSAGE = (
    "CUDA out of memory. Tried to allocate 30.00 GiB (GPU 0; 24.00 GiB total capacity; 1.00 GiB already allocated; "
    "22.00 GiB free; 1.10 GiB reserved in total by PyTorch)"
)
KV = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in "
    "KV cache (40000). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
    "engine."
)


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(group, ["oom", *map(str, arguments)], input=text, standalone_mode=False)


def document(*arguments: str | Path, text: str | None = None) -> dict[str, object]:
    return json.loads(run(*arguments, "--json", text=text).output)


def test_a_pasted_message_is_the_text() -> None:
    assert run(MESSAGE, "--json").output == run("-", "--json", text=MESSAGE).output
    assert isinstance(run("no such file").exception, SourceError)


def test_a_snapshot_is_recognised_as_the_text_even_packed(tmp_path: Path) -> None:
    packed = tmp_path / "dump"
    packed.write_bytes(gzip.compress(SNAPSHOT.read_bytes()))
    assert document(packed)["findings"][0]["class"] == document(SNAPSHOT)["findings"][0]["class"] == "fragmented"


def test_a_job_file_computes_what_every_technique_saves() -> None:
    fixes = document(EXAMPLES / "oom.log", "--file", EXAMPLES / "oom-job.toml")["findings"][0]["fixes"]
    assert fixes[0]["shown_by"] == "train" and fixes[0]["enough"] and fixes[0]["saves_bytes"] > 0


def test_a_job_file_of_a_server_is_answered_by_serve(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('model = "llama-3.1-8b"\ngpus = "rtx-3090"\ncontext = 131072\n', encoding="utf-8")
    fixes = document("--file", job, "-", text=KV)["findings"][0]["fixes"]
    assert "serve" in {fix.get("shown_by") for fix in fixes}
    assert "--max-model-len 40000" in {fix.get("setting") for fix in fixes}


def test_a_text_without_failures_gets_one_sentence_and_its_own_exit_code() -> None:
    result = run("-", text="epoch 1: loss 0.3\n")
    assert result.return_value == 1 and len(result.output.splitlines()) == 1
    assert document("-", text="epoch 1: loss 0.3\n")["findings"] == []


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_bytes(b"")
    for path in (empty, tmp_path / "missing.log", tmp_path):
        assert isinstance(run(path).exception, SourceError)


def test_both_languages_say_it() -> None:
    assert "碎片" in run(LOG, "--lang", "zh").output


def test_a_pipe_is_read_as_a_file_is() -> None:
    command = [sys.executable, "-m", "vramcast", "oom", "--json"]
    done = subprocess.run(command, input=MESSAGE, capture_output=True, text=True, check=False, encoding="utf-8")
    assert json.loads(done.stdout)["findings"][0]["class"] == "too_big"


def test_python_takes_a_text_or_a_path() -> None:
    assert vramcast.diagnose(MESSAGE).findings[0].cause == "too_big"
    shown = vramcast.diagnose(LOG)
    assert vramcast.diagnose(str(LOG)) == shown
    assert json.loads(shown.to_json()) == document(LOG)
    assert str(shown).startswith("enough memory") and "<li>" in shown._repr_html_()


PIECES = (
    MESSAGE, KV, LOG.read_text(encoding="utf-8"), "CUDA out of memory. ", "Tried to allocate ",
    "9999999999999 GiB", "nan",
    "CUBLAS_STATUS_ALLOC_FAILED", "exit code 137", "{}", "%s",
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating ",
    "memory leak", "loss: nan", "\n", "\x1b[31m", "显存", "-1.00 GiB", "(GPU 0; ", "; 0 bytes free; ",
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=12).map("".join))
def test_any_text_has_an_answer_in_both_languages(text: str) -> None:
    shown = vramcast.diagnose(text)
    assert str(shown) and shown._repr_html_() is not None and json.loads(shown.to_json())["schema"] == 1
    assert render(shown, Words("zh"))


@pytest.mark.parametrize("line", ["a" * 1000, MESSAGE, "{" * 500, "CUDA out of memory. " * 40, "\x00\x01"])
def test_the_cost_of_a_text_grows_with_its_length_only(line: str) -> None:
    text = (line + "\n") * (1_000_000 // (len(line) + 1))
    began = time.process_time()
    vramcast.diagnose(text)
    assert time.process_time() - began < 8  # quadratic reading takes minutes of longer ones


def test_a_path_that_is_not_there_is_no_text() -> None:
    with pytest.raises(SourceError, match=r"crash\.log: No such file"):
        vramcast.diagnose("crash.log")
    assert vramcast.diagnose("CUDA out of memory, see crash.log").findings
