"""The answer of `vramcast.trace` with all it can do: show itself and write its run."""

from __future__ import annotations

from pathlib import Path

from vramcast.domain.traced import Traced
from vramcast.report.recorded import ShownTrace


class TraceResult(ShownTrace, frozen=True):
    """An answer that shows itself and writes its run."""

    def save(self, path: str | Path) -> None:
        """The run as a memory snapshot, which memory_viz and `vramcast replay` open.

        Raises: SourceError where it cannot be written
        """
        from vramcast.emit.memory_snapshot import save_snapshot

        if self.snapshot is not None:
            save_snapshot(self.snapshot, Path(path))


def trace_result(traced: Traced) -> TraceResult:
    """The same answer, able to show itself and to write its run."""
    answer = {name: getattr(traced.answer, name) for name in traced.answer.__struct_fields__}
    return TraceResult(**answer, snapshot=traced.snapshot)
