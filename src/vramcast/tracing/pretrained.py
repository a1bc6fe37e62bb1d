"""Trained weights are never fetched: builders of torchvision run as they are, and what they would load is left out.

Builders ask for them by default (backbones of detection and segmentation), and choose by them which layers are frozen,
so the choice stays and only the download is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


class Unread(dict[str, Any]):
    """Stands for weights that were not fetched; loading it changes nothing."""


@contextmanager
def unfetched() -> Iterator[None]:
    """Within, torchvision's weights are `Unread`."""
    api = sys.modules.get("torchvision.models._api")
    if api is None:
        yield
        return
    load = torch.nn.Module.load_state_dict

    def loaded(module: torch.nn.Module, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, Unread):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(module, state, *args, **kwargs)

    with (
        patch.object(api.WeightsEnum, "get_state_dict", lambda *_args, **_kwargs: Unread()),
        patch.object(torch.nn.Module, "load_state_dict", loaded),
    ):
        yield
