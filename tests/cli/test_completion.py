"""What shells are offered, asked as their own scripts ask."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.asking import vramcast


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
