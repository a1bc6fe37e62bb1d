"""`vramcast plan train` from end to end: a search, an inverse question, a picture, and what is refused."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.asking import vramcast
from vramcast.cli.main import group
from vramcast.errors import VramcastError

pytest.importorskip("numpy")

SMALL = ["llama-3.2-1b", "--on", "4xl40s", "--seq-len", "1k", "--engine", "torchtitan", "--global-batch", "16"]


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return vramcast("plan", "train", *arguments)


def test_a_search_answers_with_plans_in_the_order_of_its_goal() -> None:
    done = plan(*SMALL, "--json", "--top", "5")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    speeds = [found["time"]["tokens_per_s"] for found in answer["plans"]]
    assert speeds == sorted(speeds, reverse=True)
    assert 0 < len(answer["plans"]) <= 5
    assert answer["num_fitting"] <= answer["num_plans"]
    assert all(found["fits"] and found["needed_bytes"] <= found["capacity_bytes"] for found in answer["plans"])
    assert answer["decisions"][0]["name"] == "one-card"
    assert {"tensor parallelism", "full recomputation"} <= {row["name"] for row in answer["techniques"]}


def test_a_price_makes_the_run_cost_money(tmp_path: Path) -> None:
    picture = tmp_path / "cost.svg"
    done = plan(
        *SMALL, "--on", "8xl40s", "--tp", "1", "--recompute", "full",
        "--price", "2usd", "--goal", "cheapest", "--tokens", "10B", "--lang", "en",
        "--picture", str(picture),
    )
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("cheapest: --gpus ")
    assert "USD per million tokens" in second
    assert "the run: " in second
    assert picture.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("options", [["--top", "1"], ["--find", "largest-batch"]])
def test_the_plan_found_is_written_as_files_of_its_engine(tmp_path: Path, options: list[str]) -> None:
    question = [option for option in SMALL if options[0] == "--top" or option not in ("--global-batch", "16")]
    done = plan(*question, *options, "--write", str(tmp_path / "configs"), "--format", "torchtitan", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    best = answer["plans"][0] if "plans" in answer else answer
    script = (tmp_path / "configs" / "run.sh").read_text(encoding="utf-8")
    assert f"--training.local_batch_size {best['question']['workload']['micro_batch']} " in script


def test_techniques_alone_need_no_search() -> None:
    done = plan("llama-3.2-3b", "--on", "8xa100-sxm4-40gb", "--techniques", "--lang", "en")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The way there\n  1. Does it fit on one card as it is? does not fit: ")
    assert "\nTechniques, each alone, computed for this case\n" in done.stdout


def test_what_no_machine_can_train_exits_one() -> None:
    done = plan("deepseek-v3", "--on", "8xt4", "--find", "smallest-box", "--lang", "en")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("none of 1 plans fits; the nearest is")


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["llama-3.2-1b"], 2, "--on"),
    (["lama-3.2-1b", "--on", "t4"], 4, "llama-3.2-1b"),
    (["llama-3.2-1b", "--on", "t4", "--budget", "5usd"], 2, "--tokens"),
    (["llama-3.2-1b", "--on", "t4", "--find", "largest-hat"], 2, "largest-batch"),
    (["llama-3.2-1b", "--on", "t4", "--find", "largest-batch", "--picture", "x.svg"], 2, "--picture"),
    (["llama-3.2-1b", "--on", "t4", "--file", "no-such-file.toml"], 5, "no-such-file.toml"),
])
def test_bad_input_gets_one_sentence_and_its_exit_code(arguments: list[str], code: int, words: str) -> None:
    done = plan(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_job_file_can_ask_for_a_search(tmp_path: Path) -> None:
    job = tmp_path / "plan.toml"
    job.write_text(
        'model = "llama-3.2-1b"\non = ["2xl40s"]\nengine = ["torchtitan"]\nglobal-batch = 8\nseq-len = 1024\ntop = 1\n',
        encoding="utf-8",
    )
    done = plan("--file", str(job), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["plans"]) == 1


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--engine", "colossalai", "--write", "DIR/new"], 3, "no configuration files are written for engine colossal"),
    (["--engine", "torchtitan", "--write", "DIR/new", "--format", "deepspeed"], 2, "not for plans of engine"),
    (["--engine", "torchtitan", "--write", "DIR/new", "--format", "no-such"], 4, "no-such"),
    (["--engine", "torchtitan", "--write", "DIR/full"], 5, "README.md is there already; --force overwrites"),
    (["--engine", "torchtitan", "--write", "DIR/full/README.md/new"], 5, "is a file"),
    (["--engine", "torchtitan", "--picture", "DIR/x.png"], 2, "must end in .svg or .html"),
    (["--engine", "torchtitan", "--picture", "DIR/no/x.svg"], 5, "name a folder that is there"),
])
def test_what_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    from vramcast.search.training import search as searching

    def never(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(searching, "search", never)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine", encoding="utf-8")
    asked = ["plan", "train", "llama-3.2-1b", "--on", "4xl40s"]
    given = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
    with pytest.raises(VramcastError, match=words) as refusal:
        group.main([*asked, *given], standalone_mode=False)
    assert refusal.value.exit_code == code
    assert (tmp_path / "full" / "README.md").read_text(encoding="utf-8") == "mine"
