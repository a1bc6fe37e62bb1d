"""What each route answers beside plans: texts, recordings, files, forms, words, measured cases."""

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

import vramcast
from tests.web.asking import SERVE, TRAIN, get, post, refused
from vramcast.cli.main import group
from vramcast.web.exchange import LARGEST_TEXT, LONGEST_PATH
from vramcast.web.routes.catalogue import cases_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.19 GiB of which 1.00 GiB is free."
)

SEARCHED = {"model": "qwen3-0.6b", "on": "l4", "concurrency": 2, "context": 1024}
NARROW = {"engine": "pytorch", "micro-batch": "1", "recompute": "none", "global-batch": 8}


def recording() -> bytes:
    return (EXAMPLES / "fragmented.pickle").read_bytes()


def test_a_text_with_its_job_says_what_the_job_needs() -> None:
    said = post("oom", {"text": OOM, "job": {"model": "qwen3-8b", "gpus": "rtx-4090"}})
    assert any("23.64 GiB" in why for why in said.document["findings"][0]["why"])
    served = post("oom", {"text": OOM, "job": {"model": "qwen3-32b", "gpus": "rtx-4090", "engine": "vllm"}})
    assert any(why.startswith("serve:") for why in served.document["findings"][0]["why"])


@pytest.mark.parametrize(("change", "words"), [
    ({"text": 7}, "must be a text"), ({"checks": "yes"}, "true or false"), ({"file": "x"}, "unknown key"),
    ({"lang": "fr"}, "en, zh"), ({"job": TRAIN | {"model": "/etc/passwd"}}, "names no file"),
    ({"job": TRAIN | {"prices": "x.csv"}}, "names no file"), ({"job": "job.toml"}, "must be an object"),
])
def test_bodies_of_texts_are_read_strictly(change: dict[str, Any], words: str) -> None:
    assert words in refused("oom", {"text": OOM} | change)


def test_a_text_of_more_than_a_log_is_refused_and_sentences_come_in_the_language_asked_for() -> None:
    assert post("oom", {"text": "x" * (LARGEST_TEXT + 1)}).status == 413
    english, chinese = (post("oom", {"text": OOM, "lang": lang}).document["findings"][0] for lang in ("en", "zh"))
    assert english["class"] == chinese["class"]
    assert english["text"].isascii() and not chinese["text"].isascii()


def test_a_recording_is_replayed_and_diagnosed() -> None:
    said = post("replay", recording(), query="leaks=1&all-confs=1&name=mine.pickle&top=3&device=0")
    assert said.document["snapshot"] == "mine.pickle"
    (device,) = said.document["devices"]
    assert device["variants"] and device["leaks"] is not None and len(device["peak"]["blocks"]) <= 3
    assert (
        post("replay", gzip.compress(recording())).document["devices"][0]["peak"]
        == post("replay", recording()).document["devices"][0]["peak"]
    )
    assert post("oom", recording(), query="snapshot=1").document["findings"][0]["class"] == "fragmented"


JOB = {"model": "llama-3.2-1b", "gpus": "rtx-4090", "micro-batch": "8"}


def test_a_recording_is_diagnosed_with_the_job_that_failed(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in JOB.items()), encoding="utf-8")
    alone = post("oom", recording()).document["findings"][0]
    given = post("oom", recording(), query=urlencode({"job": json.dumps(JOB)})).document["findings"][0]
    known = vramcast.diagnose(EXAMPLES / "fragmented.pickle", file=file)
    expected = json.loads(known.to_json())["findings"][0]
    assert given["fixes"] == expected["fixes"]
    assert given["fixes"] != alone["fixes"]


@pytest.mark.parametrize(("job", "words"), [
    ("model = 3", "must be an object"), ("[1]", "must be an object"),
    ('{"model": "a", "model": "b"}', "must be an object"),
    (json.dumps(JOB | {"model": "/etc/passwd"}), "names no file"), (json.dumps(JOB | {"tp": "no"}), "tp="),
])
def test_the_job_of_a_recording_is_held_to_what_a_visitor_may_ask(job: str, words: str) -> None:
    assert words in refused("oom", recording(), query=urlencode({"job": job}))
    long = urlencode({"job": json.dumps({"model": "x" * LONGEST_PATH})})
    assert post("oom", recording(), query=long).status == 414


@pytest.mark.parametrize(
    ("path", "title"), [("oom", "# Why memory ran out: mine.pickle"), ("replay", "# Memory recording: mine.pickle")]
)
def test_a_recording_comes_to_a_report_in_a_language(path: str, title: str) -> None:
    assert post(path, recording(), query="format=md&name=mine.pickle").document.startswith(title)
    name = urlencode({"name": "</title></script><script>alert(1)"})
    page = post(path, recording(), query=f"format=html&lang=zh&{name}").document
    assert page.startswith("<!doctype html>") and 'lang="zh"' in page
    assert "<script>alert" not in page


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("hacked"),))


@pytest.mark.parametrize(("body", "query"), [
    (b"", ""), (b"hello", ""), (b"\x80\x04", ""), (pickle.dumps(Hostile()), ""),
    (pickle.dumps({"device_traces": 7}), ""), (b'{"segments": ' + b"[" * 50_000, ""),
    (gzip.compress(bytes(1 << 20)), ""), (b"PK\x03\x04junk", ""), (b"ok", "top=0"), (b"ok", "top=99999"),
    (b"ok", "device=-1"), (b"ok", "format=exe"), (b"ok", "capacity=lots"), (recording(), "device=7"),
    (recording(), "alloc-conf=nonsense"),
])
def test_hostile_recordings_and_settings_end_in_a_sentence(
    body: bytes, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused("replay", body, query=query)
    assert not Path("hacked").exists()


def test_a_recording_that_unpacks_to_more_than_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vramcast.web.routes import reports

    monkeypatch.setattr(reports, "LARGEST_UNPACKED", 1 << 10)
    assert "unpacked it has more than 1,024 bytes" in refused("replay", gzip.compress(recording()))


def test_files_of_a_plan_are_those_of_the_command_line(tmp_path: Path) -> None:
    arguments = ["train", "qwen3-8b", "--gpus", "8xh100", "--engine", "deepspeed", "--write", str(tmp_path / "out")]
    CliRunner().invoke(group, arguments, standalone_mode=False)
    asked = {"command": "train", "question": {"model": "qwen3-8b", "gpus": "8xh100", "engine": "deepspeed"}}
    files = {file["name"]: file["text"] for file in post("files", asked).document["files"]}
    assert files == {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    chosen = post("files", asked | {"formats": ["deepspeed"]}).document["files"]
    assert {file["name"] for file in chosen} == {"ds_config.json", "README.md"}
    for command, question in (("serve", SERVE), ("plan serve", SEARCHED)):
        found = post("files", {"command": command, "question": question}).document["files"]
        assert "serve.sh" in {file["name"] for file in found}


@pytest.mark.parametrize(("path", "body", "words"), [
    ("files", {"command": "rm"}, "is not known"),
    ("files", {"question": "x"}, "must be an object"),
    ("files", {"formats": "deepspeed"}, "list of names"),
    ("files", {"formats": ["../../etc"]}, "unknown format"),
    ("files", {"question": TRAIN | {"model": "/etc/passwd"}}, "names no file"),
    ("files", {"command": "serve", "question": SERVE | {"find": "fewest-gpus"}}, "without find"),
    ("files", {"command": "serve", "question": {"model": "sdxl", "gpus": "l4"}}, "no configuration files"),
    ("files", {"directory": "/tmp"}, "unknown key"),
    ("files", {"command": "plan train", "question": {"model": "llama-3.1-8b", "on": "t4", "zero": "0", **NARROW}},
     "nothing that was looked"),
    ("report", {"command": "trace", "question": {}}, "is not known"),
    ("report", {"format": "pdf"}, "is not known"),
    ("report", {"lang": "fr"}, "is not known"),
    ("report", {"question": TRAIN | {"prices": "x"}}, "names no file"),
    ("report", {"command": "oom", "question": {"text": OOM, "job": {"model": "/etc/passwd", "gpus": "l4"}}},
     "names no file"),
])
def test_files_and_reports_that_cannot_be_written_are_refused(path: str, body: dict[str, Any], words: str) -> None:
    assert words in refused(path, {"command": "train", "question": TRAIN} | body)


def test_forms_of_searches_have_a_place_for_every_option() -> None:
    for name in ("plan-train", "plan-serve"):
        rows = get(f"options/{name}").document["options"]
        assert {"on", "goal"} <= {row["name"] for row in rows}
        assert "advanced" not in {row["group"] for row in rows}


def test_changes_can_be_applied_as_they_stand() -> None:
    question = {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-40gb", "seq-len": "16k"}
    changes = post("train", question).document["changes"]
    assert any(change["fits"] for change in changes) and len(changes) > 3
    for change in changes:
        after = post("train", question | change["apply"]).document
        assert after["fits"] == change["fits"], change
        if change["fits"]:  # of others it is the least that they need
            assert after["needed_bytes"] == pytest.approx(change["device_bytes"], rel=0.01), change
    served = {"model": "llama-3.1-70b", "gpus": "h100"}
    for change in post("serve", served).document["changes"]:
        assert post("serve", served | change["apply"]).document["fits"] == change["fits"], change


def test_plans_of_a_search_can_be_asked_as_they_stand() -> None:
    question = {"model": "llama-3.2-1b", "on": "2xl40s", "seq-len": 2048, **NARROW}
    found = post("plan/train", question).document
    assert found["plans"]
    for plan, options in list(zip(found["plans"], found["options"], strict=True))[:3]:
        alone = post("train", {"model": "llama-3.2-1b", "seq-len": 2048, **options}).document
        assert alone["peak"] == plan["peak"]


def test_measured_cases_say_what_was_measured_predicted_and_where() -> None:
    found = get("accuracy").document
    assert len(found["cases"]) > 2000
    predicted = [case for case in found["cases"] if "predicted" in case]
    assert len(predicted) > 1000
    for case in predicted:
        if case["measured"]:
            assert case["error"] == pytest.approx(case["predicted"] / case["measured"] - 1, abs=1e-4)
        assert "refused" not in case
    assert all(case["refused"] for case in found["cases"] if "predicted" not in case)
    assert all(case["source"] for case in found["cases"])
    assert sum("url" in case for case in found["cases"]) > 0.95 * len(found["cases"])


def test_cases_are_unpacked_by_their_columns() -> None:
    packed = {
        "schema": 1,
        "columns": ["group", "name", "measured", "predicted", "source", "refused"],
        "lists": {"group": ["g"], "source": [["somebody's blog"]], "refused": ["too few fields"]},
        "groups": [],
        "cases": [[0, "a", 2.0, 3.0, 0, -1], [0, "b", None, None, 0, 0]],
    }
    assert cases_of(json.dumps(packed).encode())["cases"] == [
        {"group": "g", "name": "a", "measured": 2.0, "predicted": 3.0, "source": "somebody's blog", "error": 0.5},
        {"group": "g", "name": "b", "source": "somebody's blog", "refused": "too few fields"},
    ]


@pytest.mark.parametrize(("command", "question"), [
    ("train", TRAIN), ("serve", SERVE), ("plan train", {"model": "llama-3.2-1b", "on": "l40s", **NARROW}),
    ("plan serve", SEARCHED), ("oom", {"text": OOM}),
])
def test_a_report_is_a_file_in_a_language(command: str, question: dict[str, Any]) -> None:
    asked = {"command": command, "question": question}
    page = post("report", asked | {"lang": "zh"})
    assert page.status == 200
    assert page.document.startswith("<!doctype html>") and 'lang="zh"' in page.document
    text = post("report", asked | {"format": "md"})
    assert text.document.startswith("# ")
    if command != "oom":
        assert f"vramcast {command} {question['model']}" in text.document


def test_what_a_visitor_says_is_text_in_a_report() -> None:
    question = {"text": OOM + " <script>alert(1)</script> <img src=x onerror=alert(1)>"}
    page = post("report", {"command": "oom", "question": question}).document
    assert "<script>alert" not in page and "<img src=x" not in page
    named = {"command": "train", "question": TRAIN | {"alloc-conf": "max_split_size_mb:<b>128"}}
    said = post("report", named)
    assert said.status == 422 or "<b>128" not in said.document


def test_changes_to_a_plan_that_a_search_found_are_not_for_its_question() -> None:
    question = {"model": "llama-3.1-70b", "gpus": "rtx-4090", "find": "longest-context"}
    reply = post("serve", question).document
    assert not reply["fits"]
    assert reply["changes"]
    assert not any("apply" in change for change in reply["changes"])


def test_a_browser_without_numpy_is_sent_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    search = {"model": "llama-3.2-1b", "on": "l40s"}
    assert "pip install" in refused("plan/train", search)
    monkeypatch.setattr(sys, "platform", "emscripten")
    said = refused("plan/train", search)
    assert said == "a search over training plans needs NumPy, which this page does not have; ask the command line"
    assert "命令行" in post("plan/train", search, query="lang=zh").document["said"]


@pytest.mark.parametrize(("command", "question"), [
    ("train", {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq-len": "20k"}),
    ("serve", {"model": "llama-3.1-70b", "gpus": "h100-sxm-80gb", "context": "32k", "concurrency": "64",
               "memory-fraction": "0.95"}),
])
def test_a_change_that_fits_is_as_close_as_the_plan_it_makes(command: str, question: dict[str, Any]) -> None:
    fitting = [change for change in post(command, question).document["changes"] if change["fits"]]
    applied = [post(command, question | change["apply"]).document for change in fitting]
    assert [change["high_bytes"] for change in fitting] == [plan["peak"]["interval_bytes"][1] for plan in applied]
    assert any(plan["peak"]["interval_bytes"][1] > plan["capacity_bytes"] for plan in applied)


WITHOUT_NUMPY = """
import json, sys
sys.modules["numpy"] = None
from vramcast.web.service import answered
for path, question in json.loads(sys.argv[1]):
    said = answered("POST", f"/api/{path}", "", {"content-type": "application/json"}, json.dumps(question).encode())
    assert said.status == 200, (path, said.body)
"""


def test_whatever_needs_no_numpy_is_answered_without_it() -> None:
    """The static site has none, nor has `pip install vramcast`: one module that fetches it takes every answer along."""
    asked = [("train", TRAIN), ("serve", {"model": "qwen3-0.6b", "gpus": "l40s"}),
             ("plan/serve", {"model": "qwen3-0.6b", "on": "l40s"}), ("oom", {"text": OOM})]
    subprocess.run([sys.executable, "-c", WITHOUT_NUMPY, json.dumps(asked)], check=True, timeout=120)
