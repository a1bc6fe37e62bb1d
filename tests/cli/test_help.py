"""Help begins with what most questions need, and leaves nothing out."""

import shlex

import pytest
from click.testing import CliRunner, Result

from vramcast.cli.main import EXAMPLES, group
from vramcast.question.options import OPTIONS
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.question.post_training_options import POST_TRAINING_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS

COMMANDS = {
    "train": OPTIONS, "serve": SERVE_OPTIONS, "rl": POST_TRAINING_OPTIONS, "plan train": PLAN_OPTIONS,
    "plan serve": PLAN_SERVE_OPTIONS,
    "plan rl": {name: option for name, option in POST_TRAINING_OPTIONS.items() if name != "find"},
}


def help_of(*words: str, lang: str = "C.UTF-8") -> Result:
    return CliRunner(env={"LC_ALL": lang}).invoke(group, words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_and_all_of_it_explains_each(command: str) -> None:
    short, whole = (help_of(*command.split(), option).output for option in ("--help", "--help-all"))
    assert len(short) < len(whole) and len(short.splitlines()) < 110 and ",," not in short
    for name, option in COMMANDS[command].items():
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
