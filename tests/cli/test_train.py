"""What a user of `vramcast train`, `rl` and `replay` meets."""

import json
import pickle
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import vramcast as replay_vramcast
from tests.cli.asking import serve, vramcast
from tests.recordings._made import FORWARD, Run, train
from tests.sources.logs.samples import FOLDER, sample
from vramcast import api
from vramcast.cli.main import group
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, SourceError
from vramcast.estimate.post_training import answer
from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.search.post_training import placements
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import MIB

# `vramcast train --snapshot` writes a recording that agrees with the answer.

TRAIN = [
    sys.executable, "-m", "vramcast", "train", "llama-3.2-1b", "--gpus", "h100-sxm-80gb", "--engine", "pytorch",
    "--seq-len", "512", "--json", "--snapshot",
]  # fmt: skip


def test_the_snapshot_replays_to_the_reserved_bytes_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    done = subprocess.run([*TRAIN, str(path)], capture_output=True, text=True, timeout=180, check=True)
    snapshot = read_snapshot(path)
    replayed = replay(RecordedDevice(snapshot, snapshot.devices[0]))
    phases = json.loads(done.stdout)["ranks"][0]["phases"].values()
    assert replayed.peak_reserved_bytes == max(phase["reserved_bytes"] for phase in phases)
    assert replayed.addresses_matched == replayed.allocations
    assert replayed.final_blocks_matched


def test_a_snapshot_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run([*TRAIN, str(tmp_path)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1


# `vramcast rl`: its answer as text and as JSON, job files, exit codes.

ASKED = ("rl", "qwen2.5-1.5b", "--gpus", "8xh100-sxm-80gb", "--samples", "4", "--reference")


def test_a_plan_that_does_not_fit_exits_one_and_its_changes_can_be_put_into_the_question() -> None:
    asked = ("rl", "qwen2.5-7b", "--gpus", "4xa100-sxm4-80gb", "--micro-batch", "32", "--json")
    done = vramcast(*asked)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert {change["fits"] for change in found["changes"]} == {False, True}
    for change in found["changes"]:
        more = [word for name, value in change["apply"].items()
                for word in ((f"--{name}",) if value is True else (f"--{name}", value))]
        assert json.loads(vramcast(*asked, *more).stdout)["needed_bytes"] == change["device_bytes"]


def test_an_engine_that_cannot_start_is_the_reason_given_first() -> None:
    done = vramcast("rl", "qwen2.5-7b", "--gpus", "8xa100-sxm4-80gb", "--algorithm", "ppo", "--memory-fraction", "0.95",
                    "--rollout", "vllm@0.12", "--lang", "en")
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit: ") and "the engine finds" in done.stdout
    assert "-" not in done.stdout.splitlines()[0].partition("beyond")[2]


@pytest.mark.parametrize("options", [
    (), ("--peft", "lora", "--lora-rank", "32", "--no-sleep"), ("--rollout-gpus", "4", "--ahead", "--entropy"),
    ("--framework", "nemo-rl", "--tp", "2", "--memory-fraction", "0.6", "--engine-option", "kv_cache_memory_bytes=1GB"),
    ("--mean-response-len", "200", "--micro-tokens", "9k", "--alloc-conf", "expandable_segments:True"),
])
def test_a_question_that_was_saved_has_the_same_answer(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    saved = vramcast(*ASKED, *options, "--save", str(path), "--json")
    again = vramcast("rl", "--file", str(path), "--json")
    assert path.is_file() == (saved.returncode < 2) and saved.stdout == again.stdout


def test_the_text_shows_the_stages_in_both_languages() -> None:
    english, chinese = (vramcast(*ASKED, "--lang", language).stdout for language in ("en", "zh"))
    assert "reference log-probs" in english and "trainer" in english
    assert "参考模型对数概率" in chinese and "训练进程" in chinese
    assert [line.split()[-1] for line in english.splitlines() if line.endswith(" s")] == [
        line.split()[-1] for line in chinese.splitlines() if line.endswith(" s")]


def test_a_run_of_so_many_steps_has_a_length_and_a_price() -> None:
    found = json.loads(vramcast(*ASKED, "--steps", "500", "--price", "2.5usd", "--json").stdout)
    assert found["run_hours"] == pytest.approx(500 * found["time"]["step_s"] / 3600, rel=1e-3)
    assert found["price"]["per_run"] == pytest.approx(20 * found["run_hours"], rel=1e-3)


@pytest.mark.parametrize(("model", "fixed"), [
    ("qwen2.5-1.5b", {"ulysses": 1, "memory-fraction": 0.4, "samples": 4, "reference": True, "mini-batch": 1024}),
    ("qwen2.5-7b", {"memory-fraction": 0.4, "samples": 4, "micro-batch": 16, "offload-parameters": "none"}),
    ("qwen2.5-7b", {"rollout-tp": 1, "samples": 8, "micro-batch": 4, "ahead": True, "rollout-gpus": 4,
                    "offload-parameters": "cpu", "recompute": "full", "ulysses": 1}),
])
def test_the_fastest_step_is_the_fastest_of_all_that_fit_and_its_options_ask_for_it(
    model: str, fixed: dict[str, Any],
) -> None:
    asked = {"model": model, "gpus": "8xh100-sxm-80gb", **fixed}
    job = api.post_training_job_of(asked)
    found = api.post_training_answer(asked | {"find": "fastest-step"})
    assert found.found is not None and found.found.what is not None and found.time is not None
    words = found.found.what.split()
    told = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    again = api.post_training_answer(asked | told)
    assert (again.fullest.needed_bytes, again.time) == (found.fullest.needed_bytes, found.time)
    every = placements(job, fixed)
    assert len(every) == found.found.num_tried > 8
    for one in every:
        if one.step_s >= found.time.step_s - 1e-3:
            break
        rollout = replace(job.rollout, gpus=one.engine.gpus, tp=one.engine.tp, memory_fraction=one.engine.fraction)
        other = answer(replace(one.trainer.job, rollout=rollout), with_changes=False)
        assert not other.fits or other.high_bytes > other.capacity_bytes


def test_a_search_ahead_chooses_the_cards_of_the_engine_and_its_table_is_no_wider_than_a_terminal() -> None:
    asked = ("plan", "rl", "qwen2.5-1.5b", "--gpus", "4xh100-sxm-80gb", "--ahead", "--micro-batch", "4")
    done = vramcast(*asked, "--lang", "en")
    assert done.returncode == 0 and "--rollout-gpus" in done.stdout, done.stderr
    table = done.stdout.partition("Tried:")[2].partition("\n\n")[0].splitlines()[1:]
    assert table[0].startswith("  all with --") and max(map(len, table)) <= 100
    refused = vramcast("rl", "qwen2.5-1.5b", "--gpus", "4xh100-sxm-80gb", "--ahead")
    assert refused.returncode == 2 and "--ahead needs --rollout-gpus" in refused.stderr


def test_a_verdict_says_what_it_rests_on() -> None:
    trust = json.loads(vramcast(*ASKED, "--json").stdout)["trust"]
    assert trust["runs"] >= trust["own_engine"] > 0 and 0.99 < trust["chance_to_fit"] <= 1
    assert f"the {trust['runs']} measured trainings most like its update, {trust['own_engine']} with pytorch" in (
        vramcast(*ASKED, "--lang", "en").stdout)


# `vramcast replay` and `vramcast.replay`.

@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    path = tmp_path_factory.mktemp("replay") / "run.pickle"
    path.write_bytes(write_snapshot(run.dump()))
    return path


def called(*arguments: object) -> str:
    result = CliRunner().invoke(group, ["replay", *map(str, arguments), "--lang", "en"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_peak_is_told_first(recording: Path) -> None:
    assert called(recording).startswith("peak: ")


def test_every_file_is_written_and_reads_back(recording: Path, tmp_path: Path) -> None:
    page, counters, copy = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "a.pickle"
    output = called(recording, "--html", page, "--perfetto", counters, "--write-snapshot", copy)
    assert output.count("written: ") == 3
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(counters.read_text(encoding="utf-8"))
    assert read_snapshot(copy).devices[0].segments == read_snapshot(recording).devices[0].segments


def test_a_later_recording_says_what_grew(recording: Path, tmp_path: Path) -> None:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    run.make(64 * MIB, FORWARD)
    later = tmp_path / "later.pickle"
    later.write_bytes(write_snapshot(run.dump()))
    output = called(later, "--against", recording)
    assert "Against run.pickle" in output
    assert "model.py:10 forward" in output.split("Against")[1]


def test_a_recording_of_another_device_is_nothing_to_compare_with(recording: Path, tmp_path: Path) -> None:
    raw = pickle.loads(recording.read_bytes())
    raw["device_traces"] = [[], raw["device_traces"][0]]
    for segment in raw["segments"]:
        segment["device"] = 1
    del raw["vramcast"]
    other = tmp_path / "rank1.pickle"
    other.write_bytes(pickle.dumps(raw))
    with pytest.raises(InvalidSpec, match="holds no device that is looked at"):
        replay_vramcast.replay(other, against=recording)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        replay_vramcast.replay(tmp_path / "none.pickle")


def test_what_is_no_path_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidSpec, match="named by a path, not by int"):
        replay_vramcast.replay(5)  # type: ignore[arg-type]


def test_a_folder_to_write_into_is_refused_before_any_work(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        group.main(["replay", str(recording), "--perfetto", str(tmp_path)], standalone_mode=False)


# `vramcast serve --reconcile`, from a log to a calibrated question.

LOG = str(FOLDER / "vllm-v1.log")
RECONCILE_ASKED = ["--reconcile", LOG, "--gpus", "h100-sxm-80gb"]
AS_LOGGED = ["--engine", "vllm@0.19.1", "--context", "8k", "--max-sequences", "512", "--memory-fraction", "0.92"]

ENGINE_OF = {"sglang": "sglang", "tensorrt-pytorch": "tensorrt-llm", "llamacpp": "llama.cpp", "vllm-newest": "vllm"}
"""Log -> engine, where the engine is modelled."""


def test_the_report_begins_with_what_differs_most() -> None:
    done = serve(*RECONCILE_ASKED, "--lang", "en")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("largest difference: ")
    assert lines[1] == "  vllm-v1.log: vllm 0.19.1, Worker_TP1"
    assert any(line.startswith("  KV cache ") and "61.00 GiB" in line for line in lines)
    assert "--save-calibration" in lines[-1]


@pytest.mark.parametrize("name", ENGINE_OF)
def test_logs_of_every_modelled_engine_are_reconciled(name: str) -> None:
    engine = ENGINE_OF[name]
    if find_spec(SERVING[engine].module) is None:
        pytest.skip(f"{engine} is not modelled yet")
    gpus = [] if name == "llamacpp" else ["--gpus", "h100-sxm-80gb"]
    done = serve("--reconcile", str(FOLDER / f"{name}.log"), *gpus, "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["question"]["engine"].startswith(engine)
    assert {"weights", "kv cache"} <= {entry["entry"] for entry in found["reconciliation"]["entries"]}


def test_a_saved_calibration_brings_the_same_question_to_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    saved = serve(*RECONCILE_ASKED, "--save-calibration", str(path), "--lang", "en")
    assert saved.stdout.splitlines()[-1] == f"Saved: ask with --calibration {path}"
    asked = ["llama-3.1-8b", "--gpus", "2xh100-sxm-80gb", *AS_LOGGED]
    done = serve(*asked, "--calibration", str(path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["startup"]["non-torch"] == pytest.approx(2.61 * 2**30, rel=0.002)
    sentence = "calibrated by run.toml: non-torch 2.61 GiB instead"
    assert any(text.startswith(sentence) for text in found["assumptions"])
    assert found["question"]["calibration"] == "run.toml"
    assert found["capacity"]["kv_tokens"] < json.loads(serve(*asked, "--json").stdout)["capacity"]["kv_tokens"]
    again = json.loads(serve(*RECONCILE_ASKED, "--calibration", str(path), "--json").stdout)["reconciliation"]
    assert all(abs(entry["relative"]) < 0.002 for entry in again["entries"] if entry["entry"] in again["corrections"])


def test_an_out_of_memory_log_shows_the_message_beside_the_prediction() -> None:
    done = serve("--reconcile", str(FOLDER / "vllm-oom.log"), "--gpus", "h100", "--lang", "en")
    assert "Out of memory, after start-up" in done.stdout
    assert "request that failed" in done.stdout
    assert "predicted for this process" in done.stdout


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--reconcile", "none.log"], 5, "none.log"),
    (["--reconcile", LOG, "--gpus", "h1000"], 4, "h100"),
    (["--reconcile", str(FOLDER / "vllm-v0.log")], 2, "--gpus"),
    (["--reconcile", LOG, "--gpus", "h100", "--engine", "sglang"], 2, "contradicts"),
    (["--reconcile", __file__, "--gpus", "h100"], 5, "looked for"),
    (["llama-3.1-8b", "--gpus", "h100", "--save-calibration", "x.toml"], 2, "--reconcile"),
    (["llama-3.1-8b", "--gpus", "h100", "--calibration", "none.toml"], 5, "none.toml"),
    ([*RECONCILE_ASKED, "--calibration", "x.toml", "--save-calibration", "y.toml"], 2, "leave out --calibration"),
])
def test_bad_input_gets_one_sentence_and_its_exit_code(arguments: list[str], code: int, words: str) -> None:
    done = serve(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_several_startups_are_said(tmp_path: Path) -> None:
    path = tmp_path / "twice.log"
    path.write_text(sample("vllm-v1") * 2, encoding="utf-8")
    done = serve("--reconcile", str(path), "--gpus", "h100", "--lang", "en")
    assert "the log holds 2 start-ups; this is the last one" in done.stdout


# The command of another tool behind "--": it is the question, and questions are repeated with it.

VLLM = ("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "--max-model-len", "16384")


def behind(*words: str, command: str = "serve", gpus: str = "h100") -> dict[str, object]:
    options = shlex.split(f"{command} --gpus {gpus} --json")
    found = vramcast(*options, "--", *words)
    assert found.returncode in (0, 1), found.stderr
    return dict(json.loads(found.stdout))


def test_a_number_of_cards_stays(tmp_path: Path) -> None:
    question = behind(*VLLM, gpus="1x4xh100")["question"]
    assert isinstance(question, dict) and question["gpus"] == "4xh100-sxm-80gb"


@pytest.mark.parametrize(("words", "said"), [
    ((), "nothing stands behind --"), (("ls", "-l"), "the command: no tool that is read"),
    ((*VLLM, "--gpus", "4090"), "gpus: is an option of vramcast; put --gpus before --"),
    (("--gpus", "4090"), "put --gpus before --"),
    (("vllm", "serve", "m", "--max-model-len"), "max_model_len"), (("vllm serve 'm -tp 2",), "quot"),
])
def test_what_is_no_command_gets_a_sentence(words: tuple[str, ...], said: str) -> None:
    found = vramcast("serve", "--gpus", "h100", "--", *words)
    assert found.returncode > 1 and said in found.stderr


def test_a_script_that_a_command_starts_is_read_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --max-model-len $1 -tp $TP\n")
    for words in ((f"{script}", "4096"), ("bash", f"{script}", "4096"), ("sbatch", f"{script}", "4096")):
        found = behind("TP=2", *words)["question"]
        assert isinstance(found, dict) and found["gpus"] == "2xh100-sxm-80gb" and "'context': 4096" in str(found), found
    lost = vramcast("serve", "--gpus", "h100", "--", "bash", "elsewhere/run.sh")
    assert lost.returncode > 1 and "elsewhere/run.sh, which is not here; give it with --from" in lost.stderr


def test_a_default_version_is_said_and_one_that_is_named_is_not() -> None:
    assert "vllm@0.19: its defaults" in vramcast("serve", "--gpus", "h100", "--", *VLLM).stdout
    assert "its defaults" not in vramcast("serve", "--gpus", "h100", "--engine", "vllm@0.8.5", "--", *VLLM).stdout


def test_variables_count_behind_env_too() -> None:
    old = behind("env", "VLLM_USE_V1=0", *VLLM)
    assert old == behind("VLLM_USE_V1=0", *VLLM) != behind("env", *VLLM)


# `--report`: one file beside what a command prints.

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
REPORT_TRAIN = ("train", "llama-3.2-1b", "--gpus", "h100", "--seq-len", "1k")
SERVE = ("serve", "llama-3.1-8b", "--gpus", "h100", "--context", "8k")
COMMANDS = {
    "train": REPORT_TRAIN,
    "serve": SERVE,
    "rl": ("rl", "qwen2.5-7b", "--gpus", "8xh100-sxm-80gb", "--samples", "5", "--reference"),
    "plan train": ("plan", "train", "llama-3.2-1b", "--on", "4xl40s", "--global-batch", "8", "--engine", "torchtitan"),
    "plan serve": ("plan", "serve", "llama-3.1-8b", "--on", "l40s", "--concurrency", "4", "--context", "1k"),
    "oom": ("oom", str(EXAMPLES / "oom.log"), "--checks"),
    "replay": ("replay", str(EXAMPLES / "fragmented.pickle"), "--alloc-conf", "max_split_size_mb:64", "--leaks"),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, list(map(str, arguments)), standalone_mode=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_writes_the_question_that_it_was_asked(tmp_path: Path, name: str) -> None:
    if name == "plan train":
        pytest.importorskip("numpy")
    path = tmp_path / "out.md"
    done = run(*COMMANDS[name], "--report", path, "--lang", "en")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert f"written: {path}" in done.stdout
    text = path.read_text(encoding="utf-8")
    asked = re.search(r"^## Question\n\n```text\n(.*?)\n```$", text, re.M | re.S)
    assert asked is not None
    assert asked[1].replace(" \\\n ", "").split() == ["vramcast", *COMMANDS[name]]


def test_a_comparison_has_no_report(tmp_path: Path) -> None:
    done = run("serve", "--reconcile", EXAMPLES / "vllm.log", "--report", tmp_path / "out.md")
    assert isinstance(done.exception, InvalidSpec) and "--reconcile" in str(done.exception)
