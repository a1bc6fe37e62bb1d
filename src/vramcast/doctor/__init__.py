"""Diagnosis: what servers say about themselves, held against what was predicted."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.doctor import compare as compare
    from vramcast.doctor import training_run as training_run

__getattr__ = submodules(__name__)
