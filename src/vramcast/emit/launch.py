"""The script that starts one machine's processes: what every launcher runs."""

from __future__ import annotations

from typing import Final

from vramcast.emit.files import Order
from vramcast.emit.lines import Line, Table
from vramcast.emit.replicas import fleet_sentence
from vramcast.emit.shell import HEAD, array, commented, comments, exports

RUN: Final = "run.sh"

IN_THE_FOLDER: Final = 'cd "$(dirname "${BASH_SOURCE[0]}")"'
"""Files are named as they lie beside the script."""

TORCHRUN: Final = (
    'torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$GPUS_PER_NODE" \\\n'
    '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\\n'
)
"""The line; what runs comes behind it."""


ACCELERATE: Final = (
    'accelerate launch --config_file accelerate.yaml --num_machines "$NNODES" --machine_rank "$NODE_RANK" \\\n'
    '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\\n'
)
"""The same where Accelerate's file says how weights are shared."""


def run_script(
    order: Order, program: str, options: Table = (), *, starter: str = TORCHRUN, variables: Table = ()
) -> str:
    """The whole script: where this machine stands, the environment, the options, the command."""
    parts = [HEAD + comments(head_of(order)) + "set -euo pipefail", IN_THE_FOLDER, _place(order)]
    given = environment(order)
    named = {line.name for line in given}
    variables = (*given, *(line for line in variables if line.name not in named))
    if variables:
        parts.append(exports(variables))
    if options:
        parts.append(array("ARGS", options))
    parts.append(starter + f"  {program}" + (' "${ARGS[@]}" "$@"' if options else ' "$@"'))
    return "\n\n".join(parts) + "\n"


def head_of(order: Order, *more: str) -> str:
    """What a file is for, a line for every sentence."""
    cluster = order.job.cluster
    what = [f"{order.job.model.name} on {cluster.name}, planned for {order.job.engine}."]
    if cluster.price is not None:
        price = cluster.price
        where = ", ".join(part for part in (cluster.instance, price.region, price.tariff, price.date) if part)
        machines = cluster.num_nodes if order.fleet is None else order.fleet.machines
        what.append(f"{price.per_hour * machines:.2f} {price.currency} an hour for all machines ({where}).")
    if order.fleet is not None:
        what.append(fleet_sentence(order.fleet))
    return "\n".join((*what, *more))


def _place(order: Order) -> str:
    """Launchers say which machine this is by different variables; alone it is the first of one."""
    cluster = order.job.cluster
    nodes = f"{cluster.num_nodes} machine{'s' if cluster.num_nodes > 1 else ''} in the plan"
    rows = (
        (f'NNODES="${{NNODES:-${{PET_NNODES:-{cluster.num_nodes}}}}}"', nodes),
        ('NODE_RANK="${NODE_RANK:-${PET_NODE_RANK:-${RANK:-0}}}"', "PyTorchJob and PAI-DLC set RANK"),
        ('MASTER_ADDR="${MASTER_ADDR:-${PET_MASTER_ADDR:-localhost}}"', "the first machine"),
        ('MASTER_PORT="${MASTER_PORT:-${PET_MASTER_PORT:-29500}}"', ""),
        (f"GPUS_PER_NODE={cluster.gpus_per_node}", f"cards of one machine, {cluster.gpu.name}"),
    )
    return "\n".join(commented(text, why) for text, why in rows)


def environment(order: Order) -> list[Line]:
    """Variables that decide over memory."""
    ask = order.ask
    found = []
    if ask("alloc_conf"):
        found.append(Line("PYTORCH_CUDA_ALLOC_CONF", ask("alloc_conf"), "the allocator the plan was computed with"))
    names = [name for name in ask.settings if name.startswith("env.")]
    for name in names:
        variable = name.removeprefix("env.")
        if variable != "PYTORCH_CUDA_ALLOC_CONF":
            found.append(Line(variable, ask(name), "as the plan was computed with"))
        else:
            ask(name)
    return found
