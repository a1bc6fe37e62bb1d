"""`vramcast.trace`: any module, factory, step or script on a simulated card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vramcast.errors import Unsupported

if TYPE_CHECKING:
    from vramcast.domain.traced import Traced


def require_torch() -> None:
    """Raise Unsupported, which says what to install, where torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise Unsupported("tracing runs PyTorch itself, which is not installed: pip install 'vramcast[trace]'") from None


def traced_target(
    target: str, options: Mapping[str, Any], *, arguments: Iterable[str] | Mapping[str, Any] = ()
) -> Traced:
    """The answer to the trace of a module by name.

    Raises: VramcastError of one sentence
    """
    from vramcast.question.tracing import build_trace

    goal = options.get("find")
    job = build_trace(target, options, arguments=arguments)
    require_torch()
    if goal is not None:
        from vramcast.tracing.finding import find_largest

        return find_largest(job, goal)
    from vramcast.tracing.run import answered

    return answered(job)
