"""What starts a plan: the script of one machine, what launchers run it by, and the replicas of a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.domain.answer import Fleet
from vramcast.domain.serving import ServeJob
from vramcast.domain.version import version_text
from vramcast.engines.serving.requests import variables_of
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import PLACEHOLDER, File, Order, Part
from vramcast.formats.lines import HEAD, Line, Table, array, commented, comments, exports, quoted, words_of
from vramcast.formats.reading import (
    written,
)
from vramcast.formats.servers import QUANTISED
from vramcast.sources.logs import options

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


IMAGES: Final = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
    "tgi": "ghcr.io/huggingface/text-generation-inference:{version}",
    "lmdeploy": "openmmlab/lmdeploy:v{version}",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-b{version}",
}
"""Server -> the image its project publishes for a release."""

STARTS: Final = (
    (RUN, f"bash {RUN}"),
    ("llamafactory.yaml", "NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-${RANK:-0}} FORCE_TORCHRUN=1 llamafactory-cli "
                          "train llamafactory.yaml"),
    ("axolotl.yaml", "axolotl train axolotl.yaml"),
    ("accelerate.yaml", "accelerate launch --config_file accelerate.yaml --machine_rank ${RANK:-0} "
                        "--main_process_ip ${MASTER_ADDR:-localhost} YOUR_SCRIPT.py"),
)
"""File -> the command that starts what it holds, on every machine."""


VISIBLE: Final = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES"}
"""Vendor -> the variable that says which cards a process sees."""

COPIES: Final = "copies of the deployment"


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


def start_command(order: Order) -> str:
    """The command on every machine: of the first file there is that starts something."""
    names = [file.name for file in order.beside]
    if not names:
        return STARTS[0][1]
    for name, command in STARTS:
        if name in names:
            return command
    raise Unsupported("{} start nothing that a launcher could run; add --format transformers", ", ".join(names))


def slug(job: Any) -> str:
    """A name that Kubernetes and clouds accept: at most 40 lower-case letters, digits and dashes.

    >>> from types import SimpleNamespace as S
    >>> slug(S(model=S(name="Llama-3.1 8B cut to 4 layers"), engine="llama.cpp"))
    'llama-3-1-8b-cut-to-4-layers-llama-cpp'
    """
    text = re.sub(r"[^a-z0-9]+", "-", f"{job.model.name}-{job.engine}".lower()).strip("-")
    text = text[:40].strip("-")
    return text if text and text[0].isalpha() else f"job-{text}"[:40].strip("-")


def image_of(order: Order) -> str:
    """The image a server's project publishes; of training frameworks the user has to name one."""
    job = order.job
    if not isinstance(job, ServeJob):
        return PLACEHOLDER
    return IMAGES[job.engine].format(version=version_text(job.version))


def server_line(order: Order) -> str:
    """The server's command on one line, as serve.sh starts it.

    Raises: Unsupported where no serve.sh is written beside the launcher
    """
    script = next((file for file in order.beside if file.name == "serve.sh"), None)
    if script is None:
        raise Unsupported("a service needs its server; choose its format too, for example --format vllm")
    before = "".join(
        f"printf %s {quoted(file.text)} > {file.name} && "
        for file in order.beside if file is not script and file.name in script.text
    )
    command = before + script.text.rstrip().rpartition("\n")[2]
    return command.replace('"${ARGS[@]}"', quoted(words_of(script.text, "ARGS"))).replace(' "$@"', "")


def replicas_of(order: Order) -> int:
    return 1 if order.fleet is None else order.fleet.replicas


def shares_machine(order: Order) -> bool:
    """Whether a replica takes only some cards of the machine it is planned on."""
    cluster = order.job.cluster
    return order.fleet is not None and cluster.instance is None and order.fleet.machine != cluster.name and (
        cluster.num_nodes == 1
    )


def copies_why(order: Order, own: str = "cards of its own") -> str:
    return COPIES if replicas_of(order) == 1 else f"{COPIES}, each on {own}"


def fleet_sentence(fleet: Fleet) -> str:
    """Who carries the load.

    >>> fleet_sentence(Fleet(2, 64, "8xh100-sxm-80gb", 1, 2, 5000.0))
    '2 replicas on 1 x 8xh100-sxm-80gb carry 64 users at once.'
    """
    replicas = f"{fleet.replicas} replicas" if fleet.replicas > 1 else "1 replica"
    carries = "carry" if fleet.replicas > 1 else "carries"
    users = f"{fleet.users} users" if fleet.users > 1 else "1 user"
    return f"{replicas} on {fleet.machines} x {fleet.machine} {carries} {users} at once."


def by_hand(order: Order, script: str, port: int) -> list[str]:
    """Lines for a script that starts one replica: how to start all of them."""
    fleet, cluster = order.fleet, order.job.cluster
    if fleet is None or fleet.replicas == 1:
        return []
    found = [f"This starts one of {fleet.replicas} replicas; put a load balancer before them."]
    if fleet.replicas_per_machine > 1:
        found.append(f"Up to {fleet.replicas_per_machine} share a machine, each on cards of its own:")
        variable, cards = VISIBLE.get(cluster.gpu.vendor), cluster.gpus_per_node
        for index in range(fleet.replicas_per_machine):
            own = ",".join(str(index * cards + card) for card in range(cards))
            before = f"{variable}={own} " if variable else ""
            found.append(f"  {before}bash {script} --port {port + index} &")
    return found


def one_of_several(order: Order, script: str) -> tuple[str, ...]:
    """What a reader of the folder has to know of a script that starts one replica."""
    copies = replicas_of(order)
    if copies == 1:
        return ()
    return (Note("{} starts one of {} replicas; its first lines say how to start all of them", script, copies),)


SERVE: Final = "serve.sh"


PORT: Final = 8000


DTYPES: Final = written(options.DTYPES)
"""How vLLM, SGLang and TensorRT-LLM call a dtype; others have one name everywhere."""


MADE: Final = {format_: written(QUANTISED)[format_] for format_ in ("fp8", "nf4")}
"""Format that vLLM and SGLang can make of a 16-bit checkpoint while loading -> their name for that."""


PLACE: Final = (
    ('NODE_RANK="${NODE_RANK:-0}"', "which machine this is"),
    ('MASTER_ADDR="${MASTER_ADDR:-localhost}"', "the first machine"),
    ('MASTER_PORT="${MASTER_PORT:-29500}"', ""),
)


def adapters(order: Order, slots_option: str) -> list[Line]:
    slots, rank = order.ask("lora_slots"), order.ask("lora_rank")
    if not slots:
        return []
    return [Line("enable-lora", True), Line(slots_option, slots, "adapters on the card at once"),
            Line("max-lora-rank", rank, "largest rank")]


def degrees(order: Order, names: tuple[str, ...]) -> list[Line]:
    reasons = ("ranks that divide every layer", "stages", "copies")
    fields = ("tp", "pp", "dp")
    return [Line(name, order.ask(field), why) for name, field, why in zip(names, fields, reasons, strict=False)]


def dtypes(order: Order, names: Mapping[str, str]) -> list[Line]:
    ask, job = order.ask, order.job
    ask.also("context", "concurrency", "input_len", "output_len", "image_size")
    lines = []
    if ask("dtype") is not None:
        lines.append(Line(names["dtype"], DTYPES[job.plan.dtype], "activations and unquantised weights"))
    if job.plan.weights in MADE:
        lines.append(Line(names["quantisation"], MADE[ask("weights")], "made while the checkpoint loads"))
    kv = ask("kv_dtype")
    if kv != "auto":
        named = "fp8_e4m3" if kv == "fp8" and job.engine == "sglang" else DTYPES.get(kv, kv)
        lines.append(Line(names["kv-dtype"], named, "keys and values"))
    return lines


def weights_note(order: Order) -> tuple[str, ...]:
    """A format that no engine makes while it loads must be in the checkpoint."""
    job: ServeJob = order.job
    weights = job.plan.weights
    if weights is None or (job.engine in ("vllm", "sglang") and weights in QUANTISED):
        return ()
    return (Note("{}: name a checkpoint of {} stored as {}; the one named is not", SERVE, job.model.name, weights),)


def nodes_of(job: ServeJob, *, vllm: bool = False) -> Table:
    """Which machine this is, where there are several."""
    if job.cluster.num_nodes == 1:
        return ()
    if vllm:
        return (Line("nnodes", job.cluster.num_nodes), Line("node-rank", "$NODE_RANK"),
                Line("master-addr", "$MASTER_ADDR"), Line("master-port", "$MASTER_PORT"))
    return (Line("nnodes", job.cluster.num_nodes), Line("node-rank", "$NODE_RANK"),
            Line("dist-init-addr", "$MASTER_ADDR:$MASTER_PORT"))


def serve_script(
    order: Order, command: str, lines: Table, part: Part, nodes: Table, variables: Table = ()
) -> tuple[File, ...]:
    lines = (*lines, Line("host", "0.0.0.0"), Line("port", PORT))
    text = script_text(order, command, lines, nodes, variables)
    notes = (*weights_note(order), *one_of_several(order, SERVE))
    return (order.file(SERVE, text, (part,), notes, executable=True),)


def script_text(order: Order, command: str, lines: Table, nodes: Table = (), variables: Table = ()) -> str:
    known = variables_of(order.job.engine)
    exported = [
        *(line for line in variables if line.value is not None),
        *(Line(known[name.removeprefix("option.")], int(bool(value)), "as planned")
          for name, value in order.ask.settings.items() if name.removeprefix("option.") in known),
    ]
    head = head_of(order, *by_hand(order, SERVE, PORT))
    parts = [HEAD + comments(head) + "set -euo pipefail", IN_THE_FOLDER]
    if nodes:
        parts.append("\n".join(commented(text, why) for text, why in PLACE))
    if exported:
        parts.append(exports(exported))
    parts.append(array("ARGS", lines))
    more = "".join(f' --{line.name} "{line.value}"' for line in nodes)
    parts.append(f'{command} "${{ARGS[@]}}"{more} "$@"')
    return "\n\n".join(parts) + "\n"
