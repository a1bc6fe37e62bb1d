"""Out-of-memory texts diagnosed: why memory ran out, how sure that is, what would help and by how much."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.doctor.failures import diagnose as diagnose

__getattr__ = submodules(__name__)
