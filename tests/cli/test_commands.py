"""What a user of any command meets: help, languages, completion, waiting, machines without cards, full devices."""

import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from tests.cli.asking import vramcast
from vramcast.cli import shared as module
from vramcast.cli.main import COMMANDS, EXAMPLES, group
from vramcast.cli.shared import ERASE, waiting
from vramcast.question.option import TABLES, table_of
from vramcast.report.messages import Words

# What a user of the command line meets.

MEGATRON = ["--engine", "megatron", "--seq-len", "2k"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = vramcast(name, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


def test_the_report_exists_in_chinese() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--lang", "zh")
    assert done.stdout.startswith("放得下")


def test_explain_gives_formula_and_source_of_entries() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--explain", "--lang", "en")
    assert "formula: " in done.stdout
    assert "source: " in done.stdout


@pytest.mark.parametrize(("name", "text", "code", "words"), [
    ("job.toml", "model = 'x'\nsequence-len = 3\n", 4, "seq-len"),
    ("job.toml", "model = ", 5, "not TOML"),
    ("job.yaml", "a: &x [1]\nb: *x\n", 4, "unknown option 'a'"),
    ("job.yaml", "- 1\n- 2\n", 5, "table of options"),
    ("job.yaml", "!!python/object/apply:os.system ['true']\n", 5, "not YAML"),
    ("job.toml", "model = 'llama-3.2-1b'\ngpus = 'h100'\ntp = true\n", 2, "tp"),
])
def test_a_bad_job_file_gets_one_sentence(tmp_path: Path, name: str, text: str, code: int, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    done = vramcast("train", "--file", str(path))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


HEAVY: Final = {
    "torch", "transformers", "numpy", "rich", "yaml", "urllib.request", "http.client", "ssl", "difflib", "sqlite3",
    "multiprocessing", "vramcast.formats.read", "vramcast.formats.reading",
    "vramcast.formats.shell", "vramcast.formats.expanding", "vramcast.question.whole_command",
    "vramcast.engines.megatron", "vramcast.sources.logs", "vramcast.report.chinese",
}
"""What no everyday question needs to know."""


@pytest.mark.parametrize(("question", "most"), [
    ("train llama-3.1-8b --gpus 8xh100-sxm-80gb", 130), ("serve qwen3-32b --gpus 2xh100-sxm-80gb", 129),
    ("oom -", 70), ("models", 43), ("--help", 9),
])
def test_a_question_imports_nothing_heavy_and_little(question: str, most: int) -> None:
    code = (
        "import sys; sys.argv = ['vramcast', *sys.argv[1:]]; import vramcast.cli, io, contextlib\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()): from vramcast.cli.main import main; main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *question.split()], capture_output=True, text=True, timeout=180, check=False,
        input="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    )
    loaded = set(done.stdout.split())
    assert "vramcast.cli.main" in loaded and not HEAVY & loaded, sorted(HEAVY & loaded) or done.stderr
    own = [name for name in loaded if name.startswith("vramcast.")]
    assert len(own) <= most, f"{len(own)} modules: each takes time before the answer"


# Help begins with what most questions need, and leaves nothing out.

HELP_COMMANDS = {
    **{command: table_of(command) for command in TABLES},
    "plan rl": {name: option for name, option in table_of("rl").items() if name != "find"},
}


def help_of(*words: str, lang: str = "C.UTF-8") -> Result:
    return CliRunner(env={"LC_ALL": lang}).invoke(group, words)


@pytest.mark.parametrize("command", HELP_COMMANDS)
def test_help_names_every_option_and_all_of_it_explains_each(command: str) -> None:
    short, whole = (help_of(*command.split(), option).output for option in ("--help", "--help-all"))
    assert len(short) < len(whole) and len(short.splitlines()) < 110 and ",," not in short
    for name, option in HELP_COMMANDS[command].items():
        assert f"--{name}" in short
        assert option.help[:12] in whole


def test_the_first_screen_shows_questions_that_are_answered() -> None:
    found = help_of()
    assert all(line in found.output for line in EXAMPLES.values())
    for line in (EXAMPLES["finetune"], EXAMPLES["serve"]):
        assert help_of(*shlex.split(line)[1:]).exit_code in (0, 1)


def test_help_is_in_the_language_of_the_locale() -> None:
    assert "示例" in help_of(lang="zh_CN.UTF-8").output
    assert "流水线" in help_of("train", "--help-all", lang="zh_CN.UTF-8").output


# `--lang zh` and the locale: reports and errors in Chinese, JSON always in English.

QUESTION = ("train", "llama-3.2-1b", "--gpus", "t4", "--seq-len", "4k")


def run(*arguments: str, locale: str = "C") -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LC_MESSAGES")}
    done = subprocess.run(
        [sys.executable, "-m", "vramcast", *arguments], capture_output=True, text=True, encoding="utf-8", check=False,
        env=environment | {"LANG": locale, "PYTHONIOENCODING": "utf-8"},
    )
    return done.returncode, done.stdout, done.stderr


def test_an_error_is_in_the_language_asked_for_wherever_the_option_stands() -> None:
    for arguments in (("--lang", "zh"), ("--lang=zh",)):
        code, _, said = run("train", "nosuch", "--gpus", "h100", *arguments)
        assert code == 4 and said.startswith("UnknownName: 未知的模型：'nosuch'；`vramcast models` 可列出全部；由代码")
    asked = ("train", "nosuch", "--gpus", "h100")
    assert run(*asked, locale="zh_CN.UTF-8")[2].startswith("UnknownName: 未知的模型")
    assert run(*asked, "--lang", "en", locale="zh_CN.UTF-8")[2].startswith("UnknownName: unknown model")


def test_json_is_the_same_in_every_language() -> None:
    english, chinese = run(*QUESTION, "--json"), run(*QUESTION, "--json", "--lang", "zh")
    assert english == chinese
    assert json.loads(english[1])["assumptions"]


def test_a_report_has_its_warnings_in_chinese_and_an_english_one_loads_no_table() -> None:
    _, text, _ = run(*QUESTION, "--lang", "zh")
    assert "假设" in text and "没有 bf16 张量核心" in text and "tensor cores" not in text
    code = "import sys; from vramcast.cli.main import main\ntry: main()\nfinally: print('loaded', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *QUESTION, "--lang", "en"], capture_output=True, text=True, check=False,
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded" and not [name for name in loaded if "report.chinese" in name or "spoken" in name]


# What shells are offered, asked as their own scripts ask.

def words_at_tab(line: str, folder: Path) -> list[str]:
    """What bash would offer at the end of a line, by the script that `vramcast completion bash` prints."""
    program = folder / "vramcast"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramcast "$@"\n')
    program.chmod(0o755)
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = vramcast("completion", "bash").stdout + (
        f'\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n_vramcast_completion "{program}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(("line", "offered"), [
    ("vramcast ser", {"serve"}),
    ("vramcast plan t", {"train"}),
    ("vramcast train qwen3-0", {"qwen3-0.6b"}),
    ("vramcast train gpt2 --gpus 2x8xrtx-409", {"2x8xrtx-4090"}),
    ("vramcast train gpt2 --zer", {"--zero"}),
])
def test_bash_completes_commands_models_cards_and_options(line: str, offered: set[str], tmp_path: Path) -> None:
    assert offered <= set(words_at_tab(line, tmp_path))


@pytest.mark.parametrize(("shell", "first"), [("zsh", "#compdef vramcast"), ("fish", "function _vramcast_completion")])
def test_other_shells_have_a_script_of_their_own(shell: str, first: str) -> None:
    assert vramcast("completion", shell).stdout.startswith(first)


# A search on a terminal says how far it is, and leaves nothing behind.

class Terminal(io.StringIO):
    """An error stream that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_count_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    with waiting(Words("en")) as progress:
        assert progress is not None
        progress(1234567, ())
    assert "1,234,567 plans" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASE)


# A question without --gpus: which cards hold it, the smallest first, with what they cost.

def test_the_table_has_a_line_per_card() -> None:
    found = vramcast("serve", "qwen3-8b", "--context", "4k", "--weights", "fp8")
    assert "the fewest of each card that hold qwen3-8b" in found.stdout and "  1xl4 " in found.stdout
    assert " USD " in found.stdout and max(map(len, found.stdout.splitlines())) <= 140


def test_nothing_large_enough_says_what_is_nearest() -> None:
    found = vramcast("serve", "deepseek-v3", "--dtype", "fp32", "--tp", "1", "--dp", "1", "--context", "1k")
    assert found.returncode == 1 and "nothing that was looked at holds deepseek-v3" in found.stdout


def test_what_a_command_leaves_to_the_cards_is_asked_of_each() -> None:
    """Ollama's num_ctx follows the memory of the cards."""
    rows = json.loads(vramcast("serve", "--json", "--", "ollama", "run", "llama3.1:8b").stdout)["cards"]
    needed = {row["gpus"]: row["needed_bytes"] for row in rows}
    assert needed["1xrtx-4060"] < needed["1xl40s"]  # 4,096 tokens and 32,768


def test_cards_of_a_job_file_are_no_question(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('model = "qwen3-0.6b"\ngpus = "rtx-4090"\n')
    assert "on 1xrtx-4090" in vramcast("train", "--file", str(file)).stdout


@pytest.mark.parametrize("option", ["--save", "--snapshot", "--report", "--write"])
def test_files_of_a_plan_need_its_cards(option: str, tmp_path: Path) -> None:
    found = vramcast("train", "qwen3-0.6b", option, str(tmp_path / "it.html"))
    assert found.returncode == 2 and "which GPUs?" in found.stderr


def test_a_wrong_question_is_refused_as_with_cards() -> None:
    found = vramcast("train", "nosuch")
    assert found.returncode == 4 and "unknown model 'nosuch'" in found.stderr


# A full disk ends in one sentence, and leaves nothing half written.

RUN = [sys.executable, "-B", "-m", "vramcast"]  # bytecode that is cut off at a limit would stay
TRAIN = ["train", "llama-3.2-1b", "--gpus", "h100"]
FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [TRAIN, [*TRAIN, "--json"], ["serve", "qwen3-8b", "--gpus", "h100"], ["gpus"], ["--help"], ["layers", "gpt2"],
     ["train", "--help"], ["completion", "bash"]],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_said(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*RUN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@needs_full
def test_where_nobody_can_be_told_the_code_says_it() -> None:
    with FULL.open("w") as full:
        assert subprocess.run([*RUN, *TRAIN], stdout=full, stderr=full, check=False).returncode == 5
        assert subprocess.run([*RUN, "train", "gpt2", "--gpus", "no"], stderr=full, check=False).returncode == 4
        assert subprocess.run([*RUN, "train", "--no"], stderr=full, check=False).returncode == 2


def small_files() -> None:
    """No file may grow beyond a kilobyte from here on, as where a disk is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


WRITERS = {
    "--write": ["plan", "train", "llama-3.2-1b", "--on", "h100", "--top", "1", "--engine", "pytorch",
                "--micro-batch", "1", "--recompute", "none", "--global-batch", "8", "--write", "OUT"],
    "--report": [*TRAIN, "--report", "OUT.html"],
    "sweep": ["sweep", "many.toml", "--out", "OUT.csv"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_left_half_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text(
        '[defaults]\ncommand = "train"\ngpus = "h100"\nmodel = "gpt2"\n[axes]\nmicro-batch = [1, 2, 3, 4, 5, 6, 7, 8]\n'
    )
    done = subprocess.run(
        [*RUN, *WRITERS[name]], cwd=tmp_path, preexec_fn=small_files, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert not [one for one in tmp_path.rglob("*") if one.suffix != ".journal" and one.name != "many.toml"]
