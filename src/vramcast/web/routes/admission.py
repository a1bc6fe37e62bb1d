"""Kubernetes asks before it takes an object: admission.k8s.io/v1, validating and mutating.

[review] https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/: a review goes back
with the uid it came with; a patch is base64; a warning of more than 120 characters may be cut off

What is not known to run out is let through, with a warning that says what was not read.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from vramcast.errors import InvalidSpec, Note, VramcastError
from vramcast.formats.reading import table
from vramcast.web.exchange import Asked, Refused
from vramcast.web.visitor import resolver

VERSION: Final = "admission.k8s.io/v1"
JUDGED: Final = ("CREATE", "UPDATE")
LONGEST_MESSAGE: Final = 1000
NAMED: Final = re.compile(r"[\w./-]{1,200}\.(?:json|toml|ya?ml|py|sh)\b")
"""What in a command may name a file that readers look for."""


def validate(asked: Asked) -> dict[str, Any]:
    """An AdmissionReview answered: what does not fit, or takes more cards than it asks for, is refused."""
    return _reviewed(asked, mutates=False)


def mutate(asked: Asked) -> dict[str, Any]:
    """An AdmissionReview answered: the object asks for what its own command takes; what does not fit is refused."""
    return _reviewed(asked, mutates=True)


def _reviewed(asked: Asked, *, mutates: bool) -> dict[str, Any]:
    review = asked.fields
    request = table(review.get("request"))
    uid, document = request.get("uid"), request.get("object")
    if review.get("apiVersion") != VERSION or review.get("kind") != "AdmissionReview" or not isinstance(uid, str):
        raise Refused(422, "InvalidSpec", Note("the body is no AdmissionReview of {}", VERSION))
    response: dict[str, Any] = {"uid": uid[:128], "allowed": True}
    if isinstance(document, dict) and request.get("operation") in JUDGED:
        found = _judged(asked, document, mutates=mutates)
        response |= _let_through(found) if _is_going_on(request, document) else found
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def _is_going_on(request: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether an update leaves the containers as they were: Kueue starts a suspended job or puts it on other nodes, a
    controller takes its mark off an object that is deleted."""
    from vramcast.api.sized import resource_holders

    old = request.get("oldObject")
    return request.get("operation") == "UPDATE" and isinstance(old, dict) and (
        list(resource_holders(old)) == list(resource_holders(document)))


def _let_through(found: Mapping[str, Any]) -> dict[str, Any]:
    """What an object is told that was taken before: its pods cannot be changed, and a queue that is refused tries for
    ever, with the cards in its hands."""
    message = table(found.get("status")).get("message")
    return {"warnings": [message]} if message else {}


def _judged(asked: Asked, document: dict[str, Any], *, mutates: bool) -> dict[str, Any]:
    from vramcast.api.sized import asks_enough, is_no_job, objects_of, patch_of, sized_object, unjudged
    from vramcast.report.sentences import headline

    if is_no_job(document):
        return {}
    words = asked.words
    try:
        _refuse_files(document)
        found, resources = sized_object(document, resolve=resolver(asked.sources))
    except VramcastError as error:
        return {"warnings": [unjudged(objects_of(document), error, words)[:LONGEST_MESSAGE]]}
    patch = patch_of(document, found, resources)
    wanted = ", ".join(f"{name}: {value}" for name, value in resources.items())
    if not found.fits:
        return _denied(words("check.line", name=found.name, verdict=headline(found.answer, words)))
    if not patch:
        return {}
    if not mutates and asks_enough(document, found, resources):
        return {"warnings": [words("admission.asks", name=found.name, resources=wanted)[:LONGEST_MESSAGE]]}
    if not mutates:
        return _denied(words("admission.asks", name=found.name, resources=wanted))
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"patchType": "JSONPatch", "patch": encoded,
            "warnings": [words("admission.patched", name=found.name, resources=wanted)[:LONGEST_MESSAGE]]}


def _denied(message: str) -> dict[str, Any]:
    return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": message[:LONGEST_MESSAGE]}}


def _refuse_files(document: Mapping[str, Any]) -> None:
    """Readers look for files that a command names; none of this machine is anybody's to read.

    Raises: InvalidSpec of one sentence
    """
    for text in _texts(document):
        for name in NAMED.findall(text):
            if any(Path(folder, name).exists() for folder in (Path.cwd(), *Path.cwd().parents, Path(gettempdir()))):
                raise InvalidSpec("{} names a file of this machine, which is not read for it", name[:80])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
