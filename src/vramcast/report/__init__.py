"""Answers as text, documents and files."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.report import catalogue as catalogue
    from vramcast.report import columns as columns
    from vramcast.report import document as document
    from vramcast.report import failure as failure
    from vramcast.report import measured as measured
    from vramcast.report import messages as messages
    from vramcast.report import picture as picture
    from vramcast.report import plan as plan
    from vramcast.report import sentences as sentences
    from vramcast.report import text as text
    from vramcast.report import written as written

__getattr__ = submodules(__name__)
