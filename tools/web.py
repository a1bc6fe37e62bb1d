"""The tables of docs/web.md: routes, limits, and an example of a question with its reply."""

from __future__ import annotations

import json
from typing import Final

from vramcast.web.exchange import JSON
from vramcast.web.routes.openapi import described
from vramcast.web.service import PREFIX, ROUTES, Route, answered

QUESTION: Final = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "seq-len": "16k"}
KEPT: Final = ("fits", "peak", "needed_bytes", "capacity_bytes", "parameters")
"""Keys of the reply that the example shows, and the first change."""


def routes_table() -> str:
    """A row for each address."""
    rows = [
        f"| `{route.method} {PREFIX}{name}` | {_said(name, route)} | {_taken(route)} | {route.limit.seconds:g} s |"
        for name, route in ROUTES.items()
    ]
    return "\n".join(["| address | answers | takes | at most |", "|---|---|---|---|", *rows, ""])


def _said(name: str, route: Route) -> str:
    text: str = described()["paths"][PREFIX + name][route.method.lower()]["summary"]
    return text.removesuffix(".")


def _taken(route: Route) -> str:
    bodies = [f"{kind.partition('/')[2]} up to {_size(most)}" for kind, most in route.takes.items()]
    query = [f"?{', '.join(route.query)}"] if route.query else []
    return "; ".join([*bodies, *query])


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >> 20 else f"{num_bytes >> 10} KiB"


def example() -> str:
    """A question and the beginning of what it is answered."""
    body = json.dumps(QUESTION)
    reply = json.loads(answered("POST", f"{PREFIX}train", "", {"content-type": JSON}, body.encode()).body)
    shown = {name: reply[name] for name in KEPT} | {"changes": reply["changes"][:1]}
    wrong = json.dumps(QUESTION | {"gpus": "8xh10"})
    refused = answered("POST", f"{PREFIX}train", "", {"content-type": JSON}, wrong.encode())
    return (
        "```sh\n"
        f"curl -s localhost:8000{PREFIX}train -H 'content-type: {JSON}' \\\n  -d '{body}'\n"
        f"```\n```json\n{json.dumps(shown, indent=1)}\n```\n"
        "A question without an answer is refused in one sentence, status "
        f"{refused.status}:\n```json\n{refused.body.decode()}\n```\n"
    )
