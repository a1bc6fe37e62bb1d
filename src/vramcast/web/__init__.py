"""The page and its JSON API: one transport-free service, and a server for it on this machine."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.web import exchange as exchange
    from vramcast.web import server as server
    from vramcast.web import static_site as static_site

__getattr__ = submodules(__name__)
