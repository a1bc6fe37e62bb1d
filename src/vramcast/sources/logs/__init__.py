"""Start-up and out-of-memory logs of serving engines: one module per engine, found by what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from vramcast.errors import SourceError
from vramcast.sources.logs import llamacpp, sglang, tensorrt_llm, vllm
from vramcast.sources.logs.options import CARDS, MESSAGES
from vramcast.sources.logs.wording import LogLine, Reader, ServingLog, Startup, facts_of, log_lines, startups

if TYPE_CHECKING:
    from pathlib import Path

READERS: Final[tuple[tuple[Reader, Callable[[Startup, str], ServingLog]], ...]] = (
    (vllm.READER, vllm.interpreted),
    (sglang.READER, sglang.interpreted),
    (tensorrt_llm.READER, tensorrt_llm.interpreted),
    (llamacpp.READER, llamacpp.interpreted),
)
"""The whole list: what each engine says, and what it means."""

MOST_LINES: Final = 50_000
"""Lines kept per engine; a real start-up has some hundreds that matter."""

SHARED: Final = (*MESSAGES, *CARDS)
"""Statements that tell no engine from another."""

LOOKED_FOR: Final = (
    "'Model loading took' and 'GPU KV cache size' (vLLM), 'Load weight end' and 'KV Cache is allocated' (SGLang), "
    "'Loaded engine size' and 'paged KV cache' (TensorRT-LLM), 'model buffer size' and 'KV buffer size' (llama.cpp)"
)


def read_log(path: Path) -> ServingLog:
    """What the last start-up in a log says.

    Raises: SourceError naming the file when it cannot be read, or is of no engine that is known
    """
    for lines in log_lines(path):
        found = parse(lines, name=path.name)
        return replace(found, cut=lines.cut)
    raise SourceError("{}: the log is empty", path)


def parse(lines: Iterable[LogLine], *, name: str) -> ServingLog:
    """What the last start-up among lines says: the engine is the one with the most statements of different kinds.

    Raises: SourceError naming the log when no engine said anything
    """
    needles = [(reader, _needles(reader)) for reader, _ in READERS]
    kept: dict[str, list[LogLine]] = {reader.engine: [] for reader, _ in READERS}
    for line in lines:
        for reader, parts in needles:
            if any(part in line.text for part in parts) and len(kept[reader.engine]) < MOST_LINES:
                kept[reader.engine].append(line)
    ranked = [(_statements(reader, kept[reader.engine]), reader, interpreted) for reader, interpreted in READERS]
    most, reader, interpreted = max(ranked, key=lambda item: item[0])
    if not most:
        raise SourceError("{}: no start-up of a known engine in it; looked for {}", name, LOOKED_FOR)
    startup, count = startups(reader, kept[reader.engine])
    return replace(interpreted(startup, name), startups=count)


def _needles(reader: Reader) -> tuple[str, ...]:
    known = (known.needle for known in (*reader.markers, *reader.wordings))
    return tuple(dict.fromkeys((*known, *reader.joins)))


def _statements(reader: Reader, lines: list[LogLine]) -> int:
    """Kinds of statements that only this engine makes."""
    own = [known for known in (*reader.markers, *reader.wordings) if known not in SHARED]
    return sum(any(facts_of(known, line.text) for line in lines) for known in own)
