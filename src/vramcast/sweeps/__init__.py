"""Thousands of questions from one file: read, answered on one machine or a Ray cluster, kept through crashes."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.sweeps import run as run

__getattr__ = submodules(__name__)
