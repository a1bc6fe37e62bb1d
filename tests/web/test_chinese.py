"""The API in Chinese: sentences and names change, keys, figures and options do not."""

import re
from typing import Any

from tests.web.asking import post
from vramcast.web.service import ROUTES, answered

CHINESE = re.compile(r"[\u4e00-\u9fff]")
SPOKEN = {"assumptions", "warnings", "sources", "source", "formula", "path", "role", "shortfall", "cost", "reasons",
          "question", "finding", "action", "name", "when", "needs", "lacks"}


def keys_and_figures(document: Any) -> Any:
    """A document without what it says in words."""
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if not (key in SPOKEN and not isinstance(value, dict))}
        return {key: keys_and_figures(value) for key, value in kept.items() if key not in NAMED}
    return [keys_and_figures(one) for one in document] if isinstance(document, list) else document


NAMED = ("startup", "kv_tokens_by_count")  # their keys are names


def test_a_search_in_chinese_gives_reasons_decisions_and_techniques_in_chinese() -> None:
    question = {"model": "llama-3.2-1b", "on": "h100", "engine": "pytorch", "seq-len": "2k", "global-batch": 8,
                "micro-batch": "1", "recompute": "none"}
    english, chinese = post("plan/train", question), post("plan/train", question, query="lang=zh")
    assert english.status == chinese.status == 200, english
    assert keys_and_figures(english.document) == keys_and_figures(chinese.document)
    for name in ("decisions", "techniques"):
        rows = chinese.document[name]
        assert rows and all(CHINESE.search(row["question" if name == "decisions" else "when"]) for row in rows)
    assert not CHINESE.search(str(english.document))


def test_refusals_before_any_question_are_read_speak_the_language_too() -> None:
    for method, path, query in (
        ("PUT", "/api/train", "lang=zh"), ("GET", "/api/nothing", "lang=zh"), ("GET", "/api/gpus", "lang=zh&lang=zh"),
        ("GET", "/api/gpus", "lang=zh&what=1"),
    ):
        reply = answered(method, path, query)
        assert reply.status >= 400
        assert b'"said"' in reply.body, reply
    assert b'"said"' not in answered("GET", "/api/nothing", "lang=fr").body
    assert answered("GET", "/api/gpus", "lang=fr").status == 422


def test_every_address_takes_a_language() -> None:
    assert all("lang" in route.parameters for route in ROUTES.values())
    for name, route in ROUTES.items():
        if route.method == "GET" and name != "accuracy":
            assert answered("GET", f"/api/{name}", "lang=zh").status == 200, name
