"""What a user of `vramcast trace` meets."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.asking import vramcast
from vramcast.sources.snapshots import read_snapshot

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="tracing needs torch")
LINEAR = ["torch.nn:Linear", "--arg", "in_features=1024", "--arg", "out_features=1024", "--input", "64x1024"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)


@needs_torch
def test_the_answer_comes_first_and_files_hold_the_run(tmp_path: Path) -> None:
    page, snapshot, report = tmp_path / "run.html", tmp_path / "run.pickle", tmp_path / "run.md"
    done = vramcast(
        "trace", *LINEAR, "--gpu", "t4", "--lang", "en", "--html", str(page), "--snapshot", str(snapshot),
        "--report", str(report),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits: ")
    assert "By source line at that peak" in done.stdout
    assert "<html" in page.read_text()
    assert done.stdout.splitlines()[0] in report.read_text() and LINEAR[0] in report.read_text()
    found = read_snapshot(snapshot)
    assert {"weights", "optimizer"} <= set(found.labels)
    again = vramcast("replay", str(snapshot), "--json")
    assert again.returncode == 0, again.stderr


@needs_torch
def test_json_has_the_documented_keys_and_adds_up(tmp_path: Path) -> None:
    snapshot = tmp_path / "run.pickle"
    done = vramcast("trace", *LINEAR, "--gpu", "t4", "--json", "--snapshot", str(snapshot))
    answer = json.loads(done.stdout)
    assert answer["schema"] == 1 and answer["fits"] is True and answer["timeline"] == str(snapshot)
    assert answer["peak"]["interval_bytes"][0] <= answer["peak"]["device_bytes"] <= answer["peak"]["interval_bytes"][1]
    for rank in answer["ranks"]:
        assert sum(entry["bytes"] for entry in rank["ledger"]) == rank["peak"]["device_bytes"]
    assert isinstance(answer["unknown_operators"], list)
    assert answer["parameters"] == 1024 * 1025


@needs_torch
def test_what_does_not_fit_exits_one_with_the_message_of_torch_and_changes() -> None:
    done = vramcast("trace", *LINEAR, "--batch", "64k", "--gpu", "t4", "--capacity", "740MiB", "--lang", "en")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("does not fit: ")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in done.stdout
    assert "Changes, each computed" in done.stdout


@needs_torch
def test_the_peak_is_cut_as_asked() -> None:
    done = vramcast("trace", *LINEAR, "--gpu", "t4", "--by", "operator", "--lang", "en")
    assert "By operator at that peak" in done.stdout
    assert "By module" not in done.stdout and "Ledger" not in done.stdout


@needs_torch
def test_the_report_exists_in_chinese() -> None:
    done = vramcast("trace", *LINEAR, "--gpu", "t4", "--lang", "zh")
    assert done.stdout.startswith("放得下")


@needs_torch
def test_the_largest_batch_is_found() -> None:
    done = vramcast("trace", *LINEAR, "--gpu", "t4", "--capacity", "400MiB", "--find", "batch", "--json")
    found = json.loads(done.stdout)["found"]
    assert found["goal"] == "batch" and found["what"] == f"--batch {found['value']}"


@needs_torch
def test_layers_of_any_module() -> None:
    done = vramcast("layers", "torch.nn:Linear", "--arg", "in_features=8", "--arg", "out_features=4", "--input", "2x8",
                    "--json")
    layers = json.loads(done.stdout)
    assert layers["parameters"] == 36
    assert layers["layers"][0]["flops"] == 2 * 2 * 8 * 4
    assert layers["layers"][0]["output_shape"] == [2, 4]


@needs_torch
@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["torch.nn:Linea"], 4, "Linear"),
    (["torch.nn:Linear"], 2, "--arg"),
    (["nosuch:thing"], 5, "not installed"),
    (["torch:pi"], 2, "float"),
    ([*LINEAR, "--input", "3x5"], 2, "raised"),
])
def test_a_target_that_cannot_run_gets_one_sentence(arguments: list[str], code: int, words: str) -> None:
    _refused(arguments, code, words)


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["m:f", "--gpu", "h1000"], 4, "h100"),
    (["m:f", "--input", "axb"], 2, "32x3x224x224"),
    (["m:f", "--html", "/nosuch/x.html"], 5, "folder"),
    (["m:f", "--", "--lr", "1"], 2, "no script"),
    (["m:f", "--sandbox"], 2, "scripts"),
    (["nosuch.py"], 5, "no such script"),
    (["nosuch.py", "--amp", "bf16"], 5, "no such script"),
    (["m:f", "--alloc-conf", "nosuch:1"], 4, "nosuch"),
])
def test_a_question_that_contradicts_itself_needs_no_torch(arguments: list[str], code: int, words: str) -> None:
    _refused(arguments, code, words)


def _refused(arguments: list[str], code: int, words: str) -> None:
    done = vramcast("trace", *arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_without_torch_one_sentence_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['vramcast', 'trace', 'm:f']\n"
        "from vramcast.cli.main import main; main()"
    )
    done = run_python(code)
    assert done.returncode == 3
    assert "vramcast[trace]" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["train", "llama-3.2-1b", "--gpus", "h100"], ["trace", "--help"]])
def test_neither_torch_nor_tracing_is_imported_where_nothing_is_traced(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = {['vramcast', *arguments]!r}\n"
        "from vramcast.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not [name for name in sys.modules if name == 'torch' or name.startswith('vramcast.tracing')]"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
