"""`/api/openapi.json`: the description of the API."""

from __future__ import annotations

from typing import Any

from vramcast.web.exchange import Asked


def description(asked: Asked) -> dict[str, Any]:
    """This description, as OpenAPI 3.1."""
    from vramcast.web.openapi import described

    return described()
