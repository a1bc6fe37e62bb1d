"""Kubernetes' admission reviews: jobs sized by their own commands, over TLS as an API server asks."""

import base64
import http.client
import json
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.web.asking import post

VLLM = "vllm/vllm-openai:v0.11.0"
SERVER = ["--model", "Qwen/Qwen3-32B", "--max-model-len", "8192"]
TRAINING = ["torchrun", "--nproc_per_node", "4", "sft.py", "--model_name_or_path", "Qwen/Qwen3-0.6B", "--bf16", "true"]
SPREAD = ["torchrun", "--nnodes=$(WORLD_SIZE)", *TRAINING[1:]]
GPU = "nvidia.com/gpu"


def pod(words: list[str], count: str | None, card: str = "NVIDIA-L40S", image: str = VLLM) -> dict[str, Any]:
    resources = {} if count is None else {"resources": {"limits": {GPU: count, "cpu": "8"}}}
    of_command = {"args": words} if image == VLLM else {"command": words}
    return {"nodeSelector": {"nvidia.com/gpu.product": card},
            "containers": [{"name": "main", "image": image, **of_command, **resources}]}


def made(kind: str, spec: dict[str, Any], **notes: str) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": kind, "spec": spec, "metadata": {
        "name": "mine", "labels": {"kueue.x-k8s.io/queue-name": "team"}, "annotations": notes}}


def of_pod(kind: str, spec: dict[str, Any], **notes: str) -> dict[str, Any]:
    return made(kind, {"template": {"spec": spec}}, **notes)


def deployment(*words: str, count: str | None = "1", **notes: str) -> dict[str, Any]:
    return of_pod("Deployment", pod([*SERVER, *words], count), **notes)


def asks_for(document: dict[str, Any], resource: str, card: str = "") -> dict[str, Any]:
    """The same with another resource, and perhaps another card."""
    document["metadata"]["annotations"] |= {"vramcast.dev/gpus": card} if card else {}
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    return document


def with_limits(document: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = limits
    return document


def review(document: Any, operation: str = "CREATE") -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "705ab4f5", "operation": operation, "object": document}}


def asked(path: str, document: Any, operation: str = "CREATE") -> dict[str, Any]:
    said = post(path, review(document, operation), query="timeout=10s")
    assert said.status == 200, said
    assert said.document["response"]["uid"] == "705ab4f5"
    return dict(said.document["response"])


def patched(document: Any) -> Any:
    found = asked("mutate", document)
    return json.loads(base64.b64decode(found["patch"])) if "patch" in found else found


@pytest.mark.parametrize(("document", "allowed", "said"), [
    (deployment(), False, "Deployment mine: does not fit: 64."),
    (deployment("-tp", "2", count="2"), True, ""),
    (deployment("-tp", "2"), False, "nvidia.com/gpu: 2 would do"),
    (deployment("-tp", "2", count=None), False, "nvidia.com/gpu: 2 would do"),
    (deployment("-tp", "2", count="4"), True, "nvidia.com/gpu: 2 would do"),
    (deployment("--no-such-option"), True, "not judged"),
    (asks_for(deployment(), "nvidia.com/mig-1g.10gb", "h100"), False, "usable per GPU"),
    (asks_for(deployment(), "nvidia.com/gpu.shared"), True, "is a part of a card"),
    (with_limits(deployment(), {GPU: "1", "nvidia.com/gpumem": "8000"}), False, "7.81 GiB usable"),
    (with_limits(deployment("-tp", "2"), {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": 44000}), False,
     "volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 44000 would do"),
    (made("Job", {"schedulerName": "volcano", "queue": "team", "plugins": {"pytorch": []}, "tasks": [
        {"name": "master", "replicas": 1, "template": {"spec": pod(SPREAD, "4", image="pytorch")}},
        {"name": "worker", "replicas": 1, "template": {"spec": pod(SPREAD, "4", image="pytorch")}}]}), True, ""),
    (made("Job", {"tasks": [{"name": "main", "replicas": 1, "template": {"spec": pod(SERVER, "1")}}]}), False,
     "Job mine: does not fit"),
    (made("Workload", {"queueName": "team", "podSets": [
        {"name": "main", "count": 1, "template": {"spec": pod(SERVER, "1")}}]}) | {
            "apiVersion": "kueue.x-k8s.io/v1beta2"}, False, "Workload mine: does not fit"),
    (made("AppWrapper", {"components": [{"template": of_pod("Job", pod(TRAINING, "1", image="pytorch"))}]}), False,
     "nvidia.com/gpu: 4 would do"),
    (of_pod("Deployment", {"containers": [{"name": "web", "image": "nginx"}]}), True, "not judged"),
    (of_pod("Job", pod(TRAINING, "1", image="pytorch")), False, "nvidia.com/gpu: 4 would do"),
    (of_pod("Job", pod(["auto" if word == "4" else word for word in TRAINING], "8", image="pytorch")), True, ""),
    (made("PyTorchJob", {"pytorchReplicaSpecs": {
        "Master": {"template": {"spec": pod(TRAINING, "4", image="pytorch")}}}}), True, ""),
    (made("LeaderWorkerSet", {"leaderWorkerTemplate": {"workerTemplate": {"spec": pod([*SERVER, "-tp", "2"], "2")}}}),
     True, ""),
    (made("RayJob", {"entrypoint": " ".join(TRAINING), "rayClusterSpec": {"workerGroupSpecs": [
        {"replicas": 1, "template": {"spec": pod(["ray"], "1", image="ray")}}]}}), False, "nvidia.com/gpu: 4 would do"),
    (made("TrainJob", {"trainer": {"command": TRAINING, "resourcesPerNode": {"limits": {GPU: "1"}}}},
          **{"vramcast.dev/gpus": "l40s"}), False, "nvidia.com/gpu: 4 would do"),
    (made("InferenceService", {"predictor": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}, "model": {
        "modelFormat": {"name": "huggingface"}, "storageUri": "hf://Qwen/Qwen3-32B", "args": ["--max-model-len=8192"],
        "resources": {"limits": {GPU: "1"}}}}}), False, "does not fit"),
])
def test_jobs_are_let_through_or_refused_by_their_own_commands(document: Any, allowed: bool, said: str) -> None:
    found = asked("validate", document)
    assert found["allowed"] is allowed, found
    text = " ".join(found.get("warnings", ())) if allowed else found["status"]["message"]
    assert said in text and bool(said) == bool(text), found


def test_resources_become_what_the_command_takes_and_all_else_stays() -> None:
    limits = {GPU: "2", "cpu": "8"}
    where = "/spec/template/spec/containers/0/resources"
    assert patched(deployment("-tp", "2")) == [{"op": "replace", "path": where, "value": {"limits": limits}}]
    assert patched(deployment("-tp", "2", count=None)) == [
        {"op": "add", "path": where, "value": {"limits": {GPU: "2"}}}]
    assert patched(deployment("-tp", "2", count="2")) == {"uid": "705ab4f5", "allowed": True}
    assert patched(deployment())["allowed"] is False
    two = deployment("-tp", "2")
    two["spec"]["template"]["spec"]["containers"].insert(0, {
        "name": "embed", "image": "of-somebody", "resources": {"limits": {GPU: "1"}}})
    assert [one["path"] for one in patched(two)] == [where.replace("0", "1")]
    pool = {"serveConfigV2": json.dumps({"llm_configs": [{
        "model_loading_config": {"model_id": "Qwen/Qwen3-0.6B"}, "accelerator_type": "L4"}]}), "rayClusterConfig": {
        "workerGroupSpecs": [{"replicas": 1, "template": {"spec": pod(["ray"], "4", image="ray")}}]}}
    for path in ("mutate", "validate"):  # whose replicas share them
        assert asked(path, made("RayService", pool)) == {"uid": "705ab4f5", "allowed": True}
    assert asked("validate", deployment(), "DELETE")["allowed"] is True


def test_a_queue_that_starts_a_suspended_job_is_told_and_not_held_back() -> None:
    """Kueue puts the labels of its flavor on the pods, whose containers nobody may change any more."""
    suspended = of_pod("Job", {name: one for name, one in pod(SERVER, "1").items() if name != "nodeSelector"})
    suspended["spec"]["suspend"] = True
    assert "names no card" in asked("validate", suspended)["warnings"][0]
    started = of_pod("Job", pod(SERVER, "1"))
    started["spec"]["suspend"] = False
    for path in ("validate", "mutate"):
        body = review(started, "UPDATE")
        body["request"]["oldObject"] = suspended
        found = post(path, body, query="timeout=10s").document["response"]
        assert found["allowed"] is True and "does not fit" in found["warnings"][0] and "patch" not in found
        body["request"]["oldObject"] = of_pod("Job", pod(TRAINING, "1", image="pytorch"))
        assert post(path, body, query="timeout=10s").document["response"]["allowed"] is False


def test_what_a_volcano_job_asks_for_becomes_what_its_command_takes() -> None:
    spec = pod([*SERVER, "-tp", "2"], "1")
    job = made("Job", {"tasks": [{"name": "main", "replicas": 1, "template": {"spec": spec}}]})
    spec["containers"][0]["resources"]["limits"] = {
        "volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 44000, "volcano.sh/vgpu-cores": 50}
    assert patched(job) == [{"op": "replace", "path": "/spec/tasks/0/template/spec/containers/0/resources", "value": {
        "limits": {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "44000", "volcano.sh/vgpu-cores": 50}}}]


@pytest.mark.parametrize(("share", "expected"), [("mig", {"nvidia.com/mig-2g.20gb": "1"}), ("hami", {GPU: "1"})])
def test_a_part_of_a_card_is_asked_for_by_its_own_name(share: str, expected: dict[str, str]) -> None:
    small = of_pod("StatefulSet", pod(["--model", "Qwen/Qwen3-0.6B", "--max-model-len", "4096"], "1"), **{
                 "vramcast.dev/gpus": "a100-80gb", "vramcast.dev/share": share})
    limits = patched(small)[0]["value"]["limits"]
    memory = int(limits.pop("nvidia.com/gpumem", 0))
    assert limits == {"cpu": "8", **expected}
    assert (2_000 < memory < 10_000) == (share == "hami")


@pytest.mark.parametrize("body", [
    {}, [], {"kind": "AdmissionReview"}, review({})["request"],
    {**review({}), "apiVersion": "admission.k8s.io/v1beta1"}, b"\xff", {**review({}), "request": {"uid": 7}},
])
def test_what_is_no_review_is_refused_in_a_sentence(body: Any) -> None:
    assert 400 <= post("validate", body).status < 500


@pytest.mark.parametrize("document", [
    {}, None, 7, {"kind": []}, {"apiVersion": "x/v1", "kind": "\ud800"},
    {"kind": "Deployment", "spec": []}, of_pod("Deployment", {"containers": 7}),
    of_pod("Job", {"containers": [{"command": {"a": 1}, "resources": []}]}),
    of_pod("Deployment", pod(["--model", "/etc/passwd"], "1")),
    of_pod("Deployment", pod(["--model", "http://169.254.169.254/latest"], "1")),
    of_pod("Job", pod(["deepspeed", "t.py", "--deepspeed", str(Path(__file__))], "1", image="x")),
    of_pod("Deployment", {"containers": [{"name": "a", "image": VLLM, "args": ["$(A)"] * 999, "env": [
        {"name": "A", "value": "$(A)" * 9999}]}]}),
    deployment(**{"vramcast.dev/share": "half"}), deployment(**{"vramcast.dev/gpus": "x" * 5000}),
])
def test_hostile_objects_are_let_through_unread(document: Any) -> None:
    for path in ("validate", "mutate"):
        found = asked(path, document)
        assert found["allowed"] is True and "object.yaml" not in str(found)


def test_an_api_server_asks_over_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    pytest.importorskip("uvicorn")
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate], check=True,
                   capture_output=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", "web", "--port", "0", "--no-open", "--processes", "1", "--tls-cert",
         certificate, "--tls-key", key], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "https://localhost:" in line
        port = int(line.partition("localhost:")[2].partition("/")[0])
        connection = http.client.HTTPSConnection(
            "localhost", port, timeout=60, context=ssl.create_default_context(cafile=str(certificate)))
        connection.request("POST", "/api/mutate?timeout=10s", json.dumps(review(deployment("-tp", "2"))),
                           {"content-type": "application/json"})
        response = json.loads(connection.getresponse().read())["response"]
        assert response["patchType"] == "JSONPatch" and response["allowed"] is True
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
