"""Taking an operator apart as torch does for every device."""

from __future__ import annotations

from typing import Any, Final

import torch

IMPLICIT: Final = torch._C.DispatchKey.CompositeImplicitAutograd


def apart(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator's own composite kernel."""
    return operator._op_dk(IMPLICIT, *args, **kwargs)


__all__ = ["apart"]
