"""Help begins with what most questions need, and leaves nothing out."""

import shlex

import pytest
from click.testing import CliRunner, Result

from vramcast.cli.main import EXAMPLES, group
from vramcast.question.option import TABLES, table_of

COMMANDS = {
    **{command: table_of(command) for command in TABLES},
    "plan rl": {name: option for name, option in table_of("rl").items() if name != "find"},
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
