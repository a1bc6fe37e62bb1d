"""What a script asks Slurm for: machines, their cards, and the variables that Slurm then sets.

[slurm] SchedMD/slurm src/sbatch/opt.c; sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"
"""

from __future__ import annotations

import re
from typing import Final

from vramcast.domain.device import Cluster
from vramcast.formats.reading import Unread
from vramcast.formats.wrapped import Inside, card, on_each_machine, unknown_card, whole

DIRECTIVE: Final = re.compile(r"^[ \t]*#SBATCH[ \t]+(.+?)(?:[ \t]#.*)?$", re.MULTILINE)
COMMAND: Final = re.compile(r"^[ \t]*[^#\s]", re.MULTILINE)
"""The first line that is no comment: sbatch reads no directive behind it."""
OPTION: Final = re.compile(r"(?:^|\s)(?:--([a-z][\w-]*)(?:[= \t]+([^\s-]\S*))?|-([NnGp])[ \t=]*(\S+))")
SHORT: Final = {"N": "nodes", "n": "ntasks", "G": "gpus", "p": "partition"}


def asked(text: str) -> Inside | None:
    """What a script asks Slurm for; None for a script that asks for nothing.

    >>> one = asked("#SBATCH --nodes=2\\n#SBATCH --gres=gpu:h100:8\\nsrun x")
    >>> one.place, one.cards, one.nodes, one.environment["SLURM_NNODES"]
    ('h100-sxm-80gb', 8, 2, '2')
    """
    given: dict[str, str] = {}
    for line in DIRECTIVE.findall(text[: first.start() if (first := COMMAND.search(text)) else None]):
        for long, value, short, text_of in OPTION.findall(line[:500]):
            given[long or SHORT[short]] = value or text_of
    if not given:
        return None
    nodes = whole(given.get("nodes", "1").partition("-")[0]) or 1
    tasks = whole(given.get("ntasks-per-node")) or 1
    name, cards = _cards(given, nodes, tasks)
    place = card(name) if name else ""
    unread: tuple[Unread, ...] = (unknown_card("gres", name),) if name and not place else ()
    if nodes > 1 and (alone := on_each_machine(text, nodes)):
        unread = (*unread, alone)
    environment = {
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODEID": "0", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NTASKS": given.get("ntasks") or str(nodes * tasks),
    }
    if cards:
        environment |= {"SLURM_GPUS_ON_NODE": str(cards), "SLURM_GPUS_PER_NODE": str(cards)}
    environment |= _exported(given.get("export", ""))
    return Inside(
        "sbatch", (), environment=environment, place=place if cards else "", cards=cards, nodes=nodes, unread=unread,
        has_gpu=bool(cards),
    )


def _exported(text: str) -> dict[str, str]:
    """What `--export` sets; names alone and ALL take what the shell has.

    >>> _exported("ALL,MODEL=qwen3-8b,TP='2',HOME"), _exported("NONE")
    ({'MODEL': 'qwen3-8b', 'TP': '2'}, {})
    """
    pairs = (part.strip("\"'").partition("=") for part in text.split(","))
    return {name: value.strip("\"'") for name, equals, value in pairs if equals and re.fullmatch(r"[A-Za-z_]\w*", name)}


def _cards(given: dict[str, str], nodes: int, tasks: int) -> tuple[str, int | None]:
    """The card's name and how many of them a machine gives.

    >>> _cards({"gpus": "h100:16"}, 2, 1), _cards({"gres": "gpu:8"}, 1, 1), _cards({"gpus-per-task": "1"}, 1, 4)
    (('h100', 8), ('', 8), ('', 4))
    """
    for option, of_all in (("gres", False), ("gpus-per-node", False), ("gpus", True), ("gpus-per-task", False)):
        texts = given.get(option, "").split(",")
        text = next((part for part in texts if option != "gres" or part.startswith("gpu")), "")
        parts = text.removeprefix("gpu:").split("(")[0].split(":") if text else []
        count = whole(parts[-1]) if parts else None
        if text and count is None:
            count = 1
        if count is not None:
            each = tasks if option == "gpus-per-task" else 1
            return parts[0] if len(parts) > 1 else "", count // nodes if of_all and count % nodes == 0 else count * each
    return "", None


def gres(cluster: Cluster) -> str:
    """The line of a batch script that asks Slurm for its cards."""
    return f"#SBATCH --nodes={cluster.num_nodes} --gres=gpu:{cluster.gpus_per_node}"
