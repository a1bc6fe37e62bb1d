"""What every launcher needs: a name, an image, the command on one machine."""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.serving import ServeJob
from vramcast.domain.version import version_text
from vramcast.emit.files import PLACEHOLDER, Order
from vramcast.emit.launch import RUN
from vramcast.emit.shell import quoted, words_of
from vramcast.errors import Unsupported

IMAGES: Final = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-b{version}",
}
"""Server -> the image its project publishes for a release."""

STARTS: Final = (
    (RUN, f"bash {RUN}"),
    ("llamafactory.yaml", "NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-${RANK:-0}} FORCE_TORCHRUN=1 llamafactory-cli "
                          "train llamafactory.yaml"),
    ("accelerate.yaml", "accelerate launch --config_file accelerate.yaml --machine_rank ${RANK:-0} "
                        "--main_process_ip ${MASTER_ADDR:-localhost} YOUR_SCRIPT.py"),
)
"""File -> the command that starts what it holds, on every machine."""


def start_command(order: Order) -> str:
    """The command on every machine: of the first file there is that starts something."""
    names = [file.name for file in order.beside]
    if not names:
        return STARTS[0][1]
    for name, command in STARTS:
        if name in names:
            return command
    raise Unsupported(f"{', '.join(names)} start nothing that a launcher could run; add --format transformers")


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
