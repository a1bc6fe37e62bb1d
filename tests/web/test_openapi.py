"""The description of the API: whole, valid, and true of real replies."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.web.asking import SERVE, TRAIN, get, post
from vramcast.question.options import OPTIONS
from vramcast.sources.resolve import config_of
from vramcast.web.documents import REPLIES
from vramcast.web.routes.openapi import QUERY, described
from vramcast.web.service import ROUTES
from vramcast.web.visitor import FILES

jsonschema = pytest.importorskip("jsonschema")

RECORDING = Path(__file__).parents[2] / "docs" / "examples" / "fragmented.pickle"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB already allocated)"
NARROW = {"engine": "pytorch", "micro-batch": "1", "recompute": "none", "global-batch": 8}
RENTED = {"model": "llama-3.1-8b", "gpus": "2xaws:p5.48xlarge", "tokens": "1T", "offload-optimizer": "cpu"}
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
    "uid": "1", "operation": "CREATE", "object": {"kind": "Pod", "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"},
        "containers": [{"command": ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "4096"]}]}}}}

ASKED: tuple[tuple[str, Any], ...] = (
    ("train", TRAIN),
    ("train", RENTED),
    ("train", {"model": "llama-3.1-70b", "gpus": "8xh100", "engine": "megatron", "pp": 4, "tp": 2}),
    ("train", {"model": "qwen3-30b-a3b", "gpus": "rtx-4090", "peft": "lora"}),
    ("train", {}),
    ("serve", SERVE),
    ("serve", {"model": "llama-3.1-70b", "gpus": "8xaws:p5.48xlarge"}),
    ("serve", {"model": "flux.1-dev", "gpus": "t4"}),
    ("serve", {"model": "bge-m3", "gpus": "l4", "engine": "vllm"}),
    ("serve", SERVE | {"engine": "llama.cpp", "weights": "q4_k_m"}),
    ("serve", SERVE | {"find": "longest-context"}),
    ("serve", {"model": "llama-3.1-405b", "find": "smallest-gpu"}),
    ("plan/train", {"model": "llama-3.2-1b", "on": ["l40s", "aws:g6e.xlarge"], **NARROW}),
    ("plan/train", {"model": "llama-3.2-1b", "on": "2xl40s", "find": "knee"}),
    ("plan/train", {"model": "llama-3.1-8b", "on": "l4", **NARROW}),
    ("plan/train", {"model": "llama-3.2-1b", "on": "aws:g6e.xlarge", "tokens": "1T", "deadline": "1h", **NARROW}),
    ("plan/serve", {"model": "qwen3-0.6b", "on": "aws:g6.xlarge", "concurrency": 64}),
    ("plan/serve", {"model": "llama-3.1-405b", "on": "1xl4", "concurrency": 64}),
    ("oom", {"text": OOM, "job": TRAIN, "checks": True}),
    ("oom", {"text": "nothing"}),
    ("oom", RECORDING.read_bytes()),
    ("replay", RECORDING.read_bytes()),
    ("files", {"command": "train", "question": TRAIN}),
    ("matrix", {"command": "train", "question": TRAIN}),
    ("matrix", {"command": "serve", "question": SERVE}),
    ("step", {"question": TRAIN}),
    ("choices", {"command": "train", "question": TRAIN, "option": "precision"}),
    ("network", config_of("llama-3.2-1b")),
    *((name, REVIEW) for name in ("validate", "mutate")),
    ("network", b"GGUF\x03\0\0\0"),
)


def validator(path: str, method: str, status: int) -> Any:
    """What holds a reply against its schema."""
    document = described()
    schema = document["paths"][f"/api/{path}"][method]["responses"][str(status)]["content"]["application/json"][
        "schema"
    ]
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_replies_are_as_described(path: str, body: Any) -> None:
    said = post(path, body)
    validator(path, "post", said.status).validate(said.document)


@pytest.mark.parametrize("path", [name for name, route in ROUTES.items() if route.method == "GET"])
def test_replies_of_addresses_are_as_described(path: str) -> None:
    said = get(path)
    validator(path, "get", said.status).validate(said.document)


def test_a_reply_with_a_key_that_is_not_described_would_be_seen() -> None:
    document = post("train", TRAIN).document
    document["ranks"][0]["ledger"][0]["surprise"] = 1
    assert not validator("train", "post", 200).is_valid(document)
    del document["ranks"][0]["ledger"][0]["surprise"], document["peak"]
    assert not validator("train", "post", 200).is_valid(document)


def test_every_route_is_described_with_what_it_takes() -> None:
    document = get("openapi.json").document
    assert document == json.loads(json.dumps(described()))
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {f"/api/{name}" for name in ROUTES}
    assert set(REPLIES) | {"report"} == set(ROUTES)
    for name, route in ROUTES.items():
        operation = document["paths"][f"/api/{name}"][route.method.lower()]
        assert operation["summary"].endswith(".")
        assert {row["name"] for row in operation.get("parameters", ())} == set(route.parameters) <= set(QUERY)
        assert set(operation.get("requestBody", {"content": {}})["content"]) == set(route.takes)


def test_questions_are_described_by_the_table_of_options() -> None:
    question = described()["components"]["schemas"]["Question-train"]
    assert set(question["properties"]) == {"model", "gpus", *OPTIONS} - set(FILES)
    assert question["properties"]["recompute"]["enum"] == list(OPTIONS["recompute"].choices)


def test_the_description_is_valid_itself() -> None:
    for schema in described()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = json.dumps(described()).split('"$ref": "#/components/schemas/')[1:]
    assert {text.partition('"')[0] for text in references} <= set(described()["components"]["schemas"])
