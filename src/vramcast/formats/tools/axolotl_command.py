"""`axolotl train FILE`, and `axolotl.cli.train` under a launcher: the file's table with what the command says over it.

[ax] axolotl-ai-cloud/axolotl src/axolotl/cli/{main,args,config}.py, cli/utils/train.py `launch_training`
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from vramcast.formats.reading import ELSEWHERE, Config, Reading, Unread, arguments, command_of, shown
from vramcast.formats.tools import axolotl, hf_command
from vramcast.formats.tools.hf_command import Launch
from vramcast.formats.unread import unread_environment

MODULE: Final = "axolotl/cli/train.py"

OF_THE_COMMAND: Final = ("launcher", "debug", "debug_text_only", "debug_num_examples", "prompter", "shard")
"""Options that no configuration has, and that change neither memory nor time [ax cli/args.py `TrainerCliArgs`]."""

SHARDS_TOO: Final = Unread("the launcher", "shards beside axolotl's own configuration; say it there", "shards")


def read(config: Config) -> Reading:
    """The file that a command trains by, which stands beside it, and the processes that its launcher starts."""
    command = command_of(config, _score)
    launch = _taken_apart(command.words)
    named = _file(launch)
    started = hf_command.launching(launch, command) if launch.launcher else Reading("axolotl", {})
    shards = (SHARDS_TOO,) if started.options.get("shards", "nothing") != "nothing" or "zero" in started.options else ()
    unread = (*command.unread, *unread_environment(command.variables), *started.unread, *shards)
    if not config.beside:
        absent = Unread(shown(named or "the configuration"), ELSEWHERE)
        return Reading("axolotl", {}, unread=(absent, *unread), ranks=started.ranks, nodes=started.nodes)
    given = {name.removeprefix("no_"): False if name.startswith("no_") and value is True else value
             for name, value in arguments(launch.words).items() if name not in OF_THE_COMMAND}
    found = axolotl.read(Config(config.name, "", {**dict(config.beside), **given}, folder=config.folder))
    return found._replace(unread=(*found.unread, *unread), notes=(*command.notes, *found.notes), ranks=started.ranks,
                          nodes=started.nodes)


def files_of(config: Config) -> list[str]:
    """The file that a command trains by."""
    return [name for name in [_file(_taken_apart(command_of(config, _score).words))] if name]


def _score(words: tuple[str, ...]) -> int:
    """Whether a command is one that trains."""
    return int(_place(words) is not None or any(word == "axolotl.cli.train" for word in words))


def _place(words: tuple[str, ...]) -> int | None:
    """Where `axolotl train` stands."""
    return next((index for index, pair in enumerate(pairwise(words))
                 if pair[0].rpartition("/")[2] == "axolotl" and pair[1] == "train"), None)


def _taken_apart(words: tuple[str, ...]) -> Launch:
    """Its launcher's arguments stand before a module, and behind `--` of the command."""
    place = _place(words)
    if place is None:
        return hf_command.taken_apart(words)
    rest = words[place + 2 :]
    end = rest.index("--") if "--" in rest else len(rest)
    own, launching = rest[:end], rest[end + 1 :]
    launcher = str(arguments(own).get("launcher", "accelerate"))
    starts = launcher if launching and launcher in hf_command.LAUNCHERS else ""
    return Launch(starts, arguments(launching), MODULE, own)


def _file(launch: Launch) -> str:
    """The first argument that is a YAML."""
    return next((word for word in launch.words if word.endswith((".yml", ".yaml"))), "")
