"""Which release of an engine a command would start: as the package's own records beside its program say.

An environment keeps of every package a folder `NAME-VERSION.dist-info` beside its modules
[packaging.python.org/specifications/recording-installed-packages]. Nothing is imported or started for it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vramcast.domain.version import read_version, version_text

DISTRIBUTIONS: Final = {
    "huggingface": "transformers", "pytorch": "torch", "megatron": "megatron_core", "tensorrt-llm": "tensorrt_llm",
    **{name: name for name in (
        "colossalai", "deepspeed", "lmdeploy", "sglang", "torchtune", "transformers", "unsloth", "vllm")},
}
"""Engine -> the package whose releases its versions are, as wheels spell it. Those counted by date are none of them."""
PACKAGES: Final = (
    "lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3/dist-packages",
    "lib/python3*/dist-packages", "local/lib/python3*/dist-packages", "Lib/site-packages",
)
"""Where an environment keeps them [python sysconfig; Debian's and Windows' own]."""
SHEBANG_BYTES: Final = 256


def release_of(engine: str, program: str, environment: Mapping[str, str]) -> str:
    """The release of an engine that a program would run; "" where its environment does not tell.

    Args:
        engine: as a question names it, without a version
        program: the first word of the command
        environment: the variables it is started with; its PATH says where the program lies
    """
    found = shutil.which(program, path=environment.get("PATH"))
    name = DISTRIBUTIONS.get(engine)
    if found is None or name is None:
        return ""
    for prefix in _prefixes(Path(found)):
        versions = {
            folder.name.removesuffix(".dist-info").rpartition("-")[2]
            for place in PACKAGES for packages in prefix.glob(place) for folder in packages.glob(f"{name}-*.dist-info")
        }
        if versions:  # several Pythons with different ones: which of them runs is not known
            version = read_version(versions.pop())
            return "" if versions or version is None else version_text(version)
    return ""


def _prefixes(program: Path) -> Iterator[Path]:
    """The environments a program may belong to: that of the Python its first line names, its own folder's, and where
    a link leads."""
    with program.open("rb") as file:
        line = file.read(SHEBANG_BYTES).partition(b"\n")[0]
    if interpreter := re.match(rb"#!\s*(/\S+/bin)/python[\d.]*\s*$", line):
        yield Path(interpreter[1].decode("utf-8", "replace")).parent
    yield program.parent.parent
    yield program.resolve().parent.parent
