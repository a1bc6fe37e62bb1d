"""`--gpus here`: the cards of this machine as a question takes them, and what others hold of them now.

Which release of an engine a command would start: as the package's own records beside its program say.

An environment keeps of every package a folder `NAME-VERSION.dist-info` beside its modules
[packaging.python.org/specifications/recording-installed-packages]. Nothing is imported or started for it.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.catalogue.gpu_texts import parse_gpus, taken
from vramcast.domain.device import Gpu
from vramcast.domain.observation import Card, GpuSample
from vramcast.domain.version import read_version, version_text
from vramcast.errors import Note, SourceError, VramcastError
from vramcast.formats.launch import VISIBLE
from vramcast.units import GIB, MIB, ceil_div, format_bytes
from vramcast.watch.readers import Patient, opened

SAME_SIZE: Final = 0.08
"""What error correction and drivers keep of a nameplate: an A10 shows 23028 of 24576 MiB."""
MOST_NAMED: Final = 3
"""Processes that are named."""


class Here(Struct, frozen=True):
    """What this machine has."""

    gpus: str  # as `--gpus` takes it
    used: str  # of the card of which others hold most, as `--used` takes it; "": nothing
    said: tuple[str, ...]


def cards_here(environment: Mapping[str, str]) -> Here:
    """Cards as a question takes them: those that a process with this environment would see, of one vendor.

    Raises: SourceError in one sentence where there are none, or none that can be named
    """
    samples = seen_here(environment)
    if not samples:
        raise SourceError("no GPU answers here; name cards, for example --gpus 4090 or --gpus 24gb")
    names = Counter(map(named, samples))
    texts = "+".join(f"{count}x{name}" for name, count in names.items())
    cluster = parse_gpus(texts)
    held = [(sample, _held(sample)) for sample in samples]
    said = [Note("here: {}", cluster.name), *taken(texts)]
    said += [_told(sample, used) for sample, used in held if used]
    silent = [sample.card.index for sample, used in held if used is None]
    said += [Note("GPU {}: the driver does not say what others hold", index) for index in silent]
    most = max(used or 0 for _, used in held)
    return Here(cluster.name, f"{ceil_div(most, MIB)}MiB" if most else "", tuple(said))


def seen_here(environment: Mapping[str, str]) -> tuple[GpuSample, ...]:
    """The cards of this machine as they are now, in the order in which a process with this environment counts them.

    Raises: SourceError in one sentence where none can be read
    """
    readers, _ = opened()
    try:
        samples = tuple(sample for reader in readers for sample in Patient(reader).read(0.0).gpus)
    finally:
        for reader in readers:
            reader.close()
    visible = next((environment[name] for name in VISIBLE.values() if name in environment), None)
    return samples if visible is None else visible_of(samples, visible)


def visible_of(samples: Sequence[GpuSample], visible: str) -> tuple[GpuSample, ...]:
    """The cards that CUDA_VISIBLE_DEVICES names by number or by the beginning of a uuid, a MIG instance by its own.

    Leaves out: CUDA counts unequal cards the fastest first where CUDA_DEVICE_ORDER does not say PCI_BUS_ID.
    [env] https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    found: list[GpuSample] = []
    for name in map(str.strip, visible.split(",")):
        parts = (replace(one, partitions=(part,)) for one in samples for part in one.partitions
                 if name.startswith("MIG-") and part.uuid.startswith(name))
        whole = (one for one in samples if name == str(one.card.index) or (name[:1].isalpha() and (
            one.card.uuid.startswith(name))))
        one = next(chain(parts, whole), None)
        if one is None:  # CUDA sees none behind the first that is not there
            break
        found.append(one)
    return tuple(found)


def named(sample: GpuSample) -> str:
    """A card as `--gpus` takes it: by name, by name and size, or by its size alone; divided, its first instance."""
    card = sample.card
    total = "" if card.memory_total_bytes is None else f"{card.memory_total_bytes // MIB}MiB"
    if sample.partitions and sample.partitions[0].profile:
        return f"{card.model} {sample.partitions[0].profile}"
    for text in (card.model, f"{card.model} {total}", total if card.vendor == "nvidia" else ""):
        if not text:
            continue
        try:
            cluster = parse_gpus(text)
        except VramcastError:
            continue
        if not taken(text) and _is_of(cluster.gpu, card):
            return text
    try:
        parse_gpus(card.model)
    except VramcastError as error:
        raise SourceError("GPU {} of this machine: {}", card.index, error) from None
    return card.model


def _is_of(gpu: Gpu, card: Card) -> bool:
    """Whether a card of the catalogue has as much memory as this one shows."""
    size = float(gpu.memory_nameplate.split()[0]) * GIB
    return card.memory_total_bytes is None or abs(card.memory_total_bytes / size - 1) <= SAME_SIZE


def _held(sample: GpuSample) -> int | None:
    """What others hold of a card, or of its first instance [bytes]."""
    if sample.partitions:
        return sample.partitions[0].memory_used_bytes
    return sample.memory_used_bytes


def _told(sample: GpuSample, used: int | None) -> str:
    holders = [
        f"{process.name or 'a process'} {process.pid} {format_bytes(process.memory_bytes or 0)}"
        for process in sample.processes[:MOST_NAMED]
    ]
    by = f": {', '.join(holders)}" if holders else ""
    return Note("GPU {}: others hold {}{}", sample.card.index, format_bytes(used or 0), by)


__all__ = ["Here", "cards_here", "named", "seen_here"]


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
