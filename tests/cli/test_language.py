"""`--lang zh` and the locale: reports and errors in Chinese, JSON always in English."""

import json
import os
import subprocess
import sys

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
