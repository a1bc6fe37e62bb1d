"""Measured rows against their budgets, and what is said of them."""

import argparse
import json
import random
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from truth.coverage import coverage, held
from truth.documented import commands_in, laid, scripted
from truth.guarded import PUBLISHED as guarded_PUBLISHED
from truth.guarded import VERDICTS, run
from truth.own_words import SAME, WRITTEN, in_own_words, own_question
from truth.page import COLUMNS, PAGE, TRACED, address, document, text_of
from truth.rows.asked import question
from truth.score import PUBLISHED, PUBLISHED_FILES, group_of, level_of, main, percentile, score_row, statistics_of
from truth.tables import recorded_file
from truth.tool_files import asked, questions_of
from vramcast.api import job_of
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import elements, weights
from vramcast.errors import SourceError
from vramcast.estimate import interval
from vramcast.estimate.interval import (
    FAR,
    Case,
    Traits,
    chance_within,
    likeness,
    likest_runs,
    measured_cases,
    ratio_bounds,
)
from vramcast.question import whole_command

# No change makes the predictions worse in silence: the record of them, which `test_page` holds against the program.

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = tomllib.loads((ROOT / "truth" / "budgets.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scored() -> list[Any]:
    files = ("training", "megatron_b200", "inference")
    return [item for name in files for item in recorded_file(f"{name}.jsonl")]


@pytest.mark.parametrize(("group", "level"), [(group, level) for group in BUDGETS for level in BUDGETS[group]])
def test_errors_stay_within_their_budget(scored: list[Any], group: str, level: str) -> None:
    record = statistics_of([item for item in scored if (item.group, item.level) == (group, level)])
    budget = BUDGETS[group][level]
    assert record["median_abs_error"] <= budget["median"]
    assert record["p95_abs_error"] <= budget["p95"]


def test_no_row_breaks_an_adapter(scored: list[Any]) -> None:
    assert [item.label for item in scored if item.refused and item.refused.startswith("BUG")] == []


def test_most_rows_of_language_models_are_predicted(scored: list[Any]) -> None:
    training = [item for item in scored if item.file != "inference.jsonl"]
    language = [item for item in training if not (item.refused or "").startswith("diffusion")]
    assert sum(item.prediction is not None for item in language) / len(language) >= 0.85


# That nine intervals of ten hold what was measured, of harnesses that were measured and of those that were not.

LEAST, MOST = 0.85, 0.95
WIDEST = 0.20
"""Median width of an interval of a harness that was measured, of the prediction."""


@pytest.mark.parametrize("purpose", ["training", "serving"])
@pytest.mark.parametrize("seen", [False, True])
def test_nine_of_ten_cases_lie_within(purpose: str, seen: bool) -> None:
    found = [one for one in held(measured_cases(), seen=seen) if one.purpose == purpose]
    assert LEAST <= coverage(found) <= MOST
    if seen:
        assert median(one.width for one in found) < WIDEST


def test_b200_runs_that_are_right_to_a_percent_are_said_to_be() -> None:
    found = [one for one in held(measured_cases(), seen=True) if one.harness == "simumax_b200_megatron"]
    assert median(one.width for one in found) < 0.1


def test_a_job_like_measured_ones_has_their_misses_and_one_unlike_all_has_everyones() -> None:
    near, far = Traits("megatron", "megatron", gpu="b200"), Traits("unsloth", "eager", gpu="t4", precision="fp16")
    exact = Case("training", "exact", near, (0.99, 1.0, 1.01) * 3, 9)
    loose = Case("training", "loose", far, (0.5, 1.0, 2.0) * 3, 9)
    low, high = ratio_bounds(near, [exact, loose])
    assert (low, high) == (0.99, 1.01)
    wild = replace(loose, ratios=(0.01, 1.0, 30.0) * 3)
    assert ratio_bounds(far, [wild]) == (0.5, 2.0)  # no more than a factor of two
    unlike = Traits("torchtune", "titan", adapters="adapters", experts="experts", gpu="h100", precision="bf16")
    assert ratio_bounds(unlike, [exact, loose]) == (0.5, 2.0)
    assert ratio_bounds(near, []) == (1.0, 1.0)


def test_an_answer_rests_on_the_likest_runs_of_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Traits("megatron", "megatron", gpu="b200")
    own = Case("training", "own", asked, (0.8, 1.0, 1.25) * 3, 30)  # of more runs nine quantiles are kept
    other = Case("training", "other", Traits("unsloth", "eager", gpu="t4"), (1.0,), 1)
    for cases, said in (([own, other], (30, 30, 0.2)), ([other], (1, 0, 0.0))):
        monkeypatch.setattr("vramcast.estimate.interval.measured_cases", lambda cases=cases: cases)
        interval.weighted_for.cache_clear()
        likest_runs.cache_clear()
        found = likest_runs(asked)
        assert found is not None
        assert (found.runs, found.own_engine, found.median_miss) == (*said[:2], pytest.approx(said[2]))
        assert likest_runs(asked, "serving") is None
    interval.weighted_for.cache_clear()
    likest_runs.cache_clear()


def test_no_chance_is_certain_where_no_run_is_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = tuple(Case("training", str(number), Traits("pytorch", "eager"), (1.0,) * 20) for number in range(9))
    monkeypatch.setattr("vramcast.estimate.interval.measured_cases", lambda: cases)
    known = (interval.weighted_for, interval.misses)
    for one in known:
        one.cache_clear()
    chances = [chance_within(Traits(engine, "eager"), 10, 19) for engine in ("pytorch", "diffusers")]
    too_high = chance_within(Traits("diffusers", "eager"), 10, 9)
    for one in known:
        one.cache_clear()
    assert chances == [1.0, pytest.approx(0.95)] and too_high == pytest.approx(0.05)


def test_likeness_falls_with_every_trait_that_differs() -> None:
    one = Traits("pytorch", "eager")
    other, third = replace(one, packed="packed"), replace(one, packed="packed", experts="experts")
    assert likeness(one, one) == 1.0 > likeness(one, other) > likeness(one, third) > 0.0
    assert likeness(one, third) == pytest.approx(likeness(one, other) ** 2) and FAR > 0


# Commands that documents show, and what counts tool files asks of them.

DOCUMENT = """Write

```yaml
# sft.yaml
model_name_or_path: Qwen/Qwen3-0.6B
```

and run

```bash
export RATE=1e-5  # of yours
$ cd folder
trl sft \\
    --config sft.yaml --learning_rate $RATE  # slow
trl dpo
  --bf16
```

```python
trl sft
```
"""


def test_commands_have_their_lines_their_variables_and_the_files_above_them() -> None:
    first, second = commands_in(DOCUMENT, r"^trl ")
    assert first.command == "trl sft --config sft.yaml --learning_rate $RATE"
    assert second.command == "trl dpo --bf16"
    assert {first.variables, second.variables} == {"RATE=1e-5; "}
    assert first.files == {"sft.yaml": "model_name_or_path: Qwen/Qwen3-0.6B"}


def test_files_of_a_document_lie_beside_those_of_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "other.yaml").write_text("x: 1")
    folder = laid({"sft.yaml": "y: 2"}, checkout, tmp_path / "drafts" / "0")
    assert {one.name: one.read_text() for one in folder.iterdir()} == {"other.yaml": "x: 1", "sft.yaml": "y: 2"}
    assert laid({}, checkout, tmp_path / "drafts" / "1") == checkout


def test_a_script_of_the_shell_beside_the_document_is_asked_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch()
    assert scripted("sh run.sh dsw 7B 1", tmp_path) == ("--from", "run.sh", "--args", "dsw 7B 1")
    assert scripted("sh other.sh dsw", tmp_path) == scripted("trl sft", tmp_path) == ()


def test_what_a_document_shows_is_answered_and_asked_again_with_more_cards(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(DOCUMENT)
    given = argparse.Namespace(command="train", each=None, lines="^trl sft")
    options = ("--gpus", "2xh100-sxm-80gb", "--micro-batch", "1", "--global-batch", "7")
    drafts = tmp_path / "drafts"
    questions = questions_of([tmp_path / "README.md"], tmp_path, given, options, drafts)
    assert [asked(one)[1] for one in questions] == [2]  # 2 does not divide 7
    assert [asked(one, ["--gpus 1xh100-sxm-80gb"])[1] for one in questions] == [0]


# Rows asked by the file of their own tool and by options are one question.

ROWS = [json.loads(line) for line in (PUBLISHED / "recipes.jsonl").read_text(encoding="utf-8").splitlines()]
EACH = 3
"""Rows of a tool, from the first to the last."""


def some() -> list[dict[str, Any]]:
    by_format: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in ROWS:
        if row["config"]["format"] in WRITTEN and row["measured"]["quantity"] == "max_allocated":
            by_format[row["config"]["format"]].append(row)
    return [row for rows in by_format.values() for row in rows[:: max(1, len(rows) // EACH)][:EACH]]


@pytest.mark.parametrize("row", some(), ids=lambda row: str(row["id"]))
def test_a_file_and_options_that_say_the_same_are_answered_alike(row: dict[str, Any]) -> None:
    assert in_own_words(row, PUBLISHED) == SAME


LEARNING = [row for row in ROWS if row["config"]["format"] == "unsloth" and row["config"]["values"]["trainable"]]


def learning(options: dict[str, Any]) -> int:
    recipe = recipe_of(job_of(options), loss=None, variants="liger", autocast=True)
    return elements(weights(recipe), learning_only=True)


def test_as_much_learns_as_unsloth_printed_whether_a_file_asks_or_options(tmp_path: Path) -> None:
    found = []
    for row in LEARNING[::3]:
        try:
            asked = question(row, PUBLISHED), own_question(row, PUBLISHED, tmp_path)
            both = [learning(options) for options in asked if options is not None]
        except SourceError:
            continue  # a network that only the hub describes
        assert len(both) == 2 and both[0] == both[1], row["id"]
        found.append(both[0] == int(row["config"]["values"]["trainable"].replace(",", "")))
    assert sum(found) >= 0.6 * len(found)


def test_a_row_without_a_file_of_its_own_is_not_held_against_one() -> None:
    assert in_own_words({**ROWS[0], "config": {"format": "a script", "values": {}}}, Path()) is None


# Whether the guard refuses what is known to run out of memory, and starts what ran: a sample of the published runs.

def test_a_sample_of_runs_is_refused_or_started_as_it_ended() -> None:
    judged = [case for case in run(guarded_PUBLISHED, every=18) if case.verdict in VERDICTS]
    failing = [case.verdict for case in judged if case.kind != "ran"]
    ran = [case.verdict for case in judged if case.kind == "ran" and case.complete]
    assert len(failing) > 5 and failing.count("refused") >= 0.95 * len(failing), failing
    assert len(ran) > 10 and ran.count("refused") <= 0.02 * len(ran), ran


# The scorer counts every row.

ROW = {
    "group": "somebody", "domain": "llm", "spec_quality": "A", "model": "llama-3.2-1b", "gpu": "H100-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16-mixed", "optimizer": "AdamW",
    "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "max_memory_allocated (GiB)",
    "measured_gib": 25.0,
}


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n")
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["rows"] == 1


@pytest.mark.parametrize("text", ["{broken", "[1, 2]"])
def test_a_broken_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + text + "\n")
    assert main([str(path)]) == 2
    assert "rows.jsonl line 2" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-file.jsonl"]) == 2
    assert "no-such-file.jsonl" in capsys.readouterr().err


def test_percentiles_interpolate() -> None:
    assert percentile([0.0, 1.0], 0.95) == pytest.approx(0.95)
    assert percentile([3.0], 0.95) == 3.0


class Asked(BaseException):
    """What an adapter asks, before it is answered."""


def stop(job: Any, **_: Any) -> None:
    raise Asked(job)


def test_runs_are_asked_with_options_that_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cards apart, of which a file of one's own can say more than a name."""
    monkeypatch.setattr(whole_command, "CARDS", ())
    for name in ("colossalai", "generic", "huggingface", "litgpt", "megatron_bridge", "torchtitan"):
        monkeypatch.setattr(f"truth.rows.{name}.answer", stop)
    asked = 0
    for number, line in enumerate(PUBLISHED_FILES[1].read_text(encoding="utf-8").splitlines(), start=1):
        try:
            list(score_row(json.loads(line), file="training.jsonl", number=number))
        except Asked as found:
            (job,) = found.args
            assert whole_command.train_options(job, {}, model=job.model.name), number
            asked += 1
    assert asked > 100


# The page's measured cases are what the program prints.

FILES = tuple(sorted(PUBLISHED.glob("*.jsonl")))
SAMPLED = {"recipes": 60, "kernels": 1, "megatron_b200": 1}
"""One row of so many (24, where nothing is said) is predicted anew, of every group and level at least one: all of them
take more than a minute."""


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    return found


def unpacked(packed: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [dict(zip(packed["columns"], case, strict=True)) for case in packed["cases"]]
    lists = packed["lists"]
    return [
        {name: lists[name][value] if name in lists and value >= 0 else value for name, value in row.items()}
        for row in rows
    ]


def sampled(path: Path) -> list[str]:
    """Rows of a file, some of each group and level."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kinds.setdefault((group_of(row, path.name), level_of(row)), []).append(line)
    chosen, each = random.Random(7), SAMPLED.get(path.stem, 24)
    return [line for lines in kinds.values() for line in chosen.sample(lines, -(-len(lines) // each))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sampled_cases_are_predicted_as_the_page_says(shipped: dict[str, Any], tmp_path: Path, path: Path) -> None:
    stated = {json.dumps(row, sort_keys=True) for row in unpacked(shipped)}
    part = tmp_path / path.name
    part.write_text("\n".join(sampled(path)))
    (tmp_path / "recipe_configs").symlink_to(PUBLISHED / "recipe_configs")
    for row in unpacked(json.loads(text_of(document([part])))):
        assert json.dumps(row, sort_keys=True) in stated, f"{row}; run python -m truth.page"


def test_every_row_of_every_file_is_there(shipped: dict[str, Any]) -> None:
    lines = sum(len(path.read_text(encoding="utf-8").split("\n")) - 1 for path in FILES)
    assert len(shipped["cases"]) >= lines  # a row may measure several levels


def test_the_file_is_compact_and_says_nothing_twice(shipped: dict[str, Any]) -> None:
    assert shipped["columns"] == list(COLUMNS)
    assert PAGE.stat().st_size < 600_000
    for name, texts in shipped["lists"].items():
        assert len({json.dumps(text) for text in texts}) == len(texts), name


def test_rows_of_another_program_say_which(tmp_path: Path) -> None:
    row = {"source": "a study (some/repository x.csv)", "model": "timm/x", "gpu": "A100", "measured_peak_mib": 7685.0}
    (tmp_path / "vision_nvidia_smi.jsonl").write_text(json.dumps(row) + "\n")
    (case,) = unpacked(json.loads(text_of(document([tmp_path / "vision_nvidia_smi.jsonl"]))))
    assert case["refused"] == TRACED["vision_nvidia_smi.jsonl"]
    assert case["measured"] == 7685 << 20
    assert case["source"] == ["a study (some/repository x.csv)", "https://github.com/some/repository"]


@pytest.mark.parametrize(("text", "url"), [
    ("https://github.com/a/b/issues/7 comment", "https://github.com/a/b/issues/7"),
    ("github.com/a/b @58eb52c0 docs/x.md", "https://github.com/a/b/tree/58eb52c0"),
    ("github.com/a/b refs/pull/205 @a95ae28 x.log", "https://github.com/a/b/tree/a95ae28"),
    ("a/b@58eb52c0:docs/x.md", "https://github.com/a/b/tree/58eb52c0"),
    ("a/b:docs/x.md", "https://github.com/a/b"),
    ("a study (a/b docs/x.md, Apache-2.0)", "https://github.com/a/b"),
    ("a/b", ""), ("somebody's blog", ""), ("javascript:alert(1)", ""),
])
def test_addresses_of_sources_are_those_of_their_repositories(text: str, url: str) -> None:
    assert address(text) == url
