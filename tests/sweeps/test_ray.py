"""A sweep on a real Ray cluster of this machine; skipped where Ray is not installed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.sweeps.test_run import MANY, SECONDS, children_of, command, lines_of, wait_for
from vramcast.errors import SourceError
from vramcast.sweeps.engines import answer_on_node

ROOT = Path(__file__).parents[2]


def test_without_ray_the_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SourceError, match=r"pip install 'vramcast\[ray\]'"):
        vramcast.sweep({"rows": [{"command": "train", "model": "llama-3.2-1b", "gpus": "h100"}]}, engine="ray")


def test_a_machine_with_another_version_is_refused() -> None:
    with pytest.raises(SourceError, match=r"has vramcast .*, this one 0\.0\.1; install the same"):
        answer_on_node((), "0.0.1")


@pytest.mark.libraries
@pytest.mark.parametrize(("address", "says"), [
    ("127.0.0.1:1", "Ray at 127.0.0.1:1 cannot be used"), ("auto", "Could not find any running Ray instance"),
])
def test_a_cluster_that_is_not_there_is_named(address: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SourceError, match=says):
        vramcast.sweep(
            {"rows": [{"command": "train", "model": "llama-3.2-1b", "gpus": "h100"}]}, engine="ray", address=address
        )


@pytest.mark.libraries
def test_no_question_is_blamed_where_processes_cannot_start_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("vramcast.sweeps.engines.RETRIES", 0)
    tables = {"rows": [{"command": "train", "model": "llama-3.2-1b", "gpus": "h100"}]}
    ray.init(
        address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
        runtime_env={"worker_process_setup_hook": _dead, "env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}},
    )
    try:
        with pytest.raises(SourceError, match="die before they answer anything"):
            vramcast.sweep(tables, engine="ray")
    finally:
        ray.shutdown()


def _dead() -> None:
    """In every worker: it ends when it has begun."""
    os._exit(9)


def title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.libraries
def test_a_worker_of_a_cluster_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    many, out, whole = tmp_path / "many.toml", tmp_path / "out.csv", tmp_path / "whole.csv"
    many.write_text(MANY)
    journal = tmp_path / "out.csv.journal"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        command(many, "--out", out, "--engine", "ray", "--address", "local", "--workers", 2, "--quiet"),
        env=environment,
    )
    wait_for(lambda: len(lines_of(journal)) > 5)
    wait_for(lambda: any(b"ray::answer_on_node" in title(pid) for pid in children_of(process.pid)))
    victim = next(pid for pid in children_of(process.pid) if b"ray::answer_on_node" in title(pid))
    os.kill(victim, signal.SIGKILL)
    done_before = len(lines_of(journal))
    assert process.wait(timeout=SECONDS) == 0
    lines = lines_of(journal)
    assert done_before < len(lines)
    assert sorted(json.loads(line)["place"] for line in lines[1:]) == list(range(60))
    vramcast.sweep(many, out=whole, workers=1)
    assert out.read_bytes() == whole.read_bytes()


def _deadly() -> None:
    """In every worker: one model kills the process that asks for it."""
    from vramcast.sweeps import engines

    resolve = engines.resolve_checkpoint
    engines._models._resolve = lambda name: os._exit(9) if name == "deadly" else resolve(name)


@pytest.mark.libraries
def test_a_question_that_kills_every_process_of_a_cluster_gets_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("vramcast.sweeps.engines.RETRIES", 1)
    tables: dict[str, Any] = {
        "defaults": {"command": "train", "gpus": "h100", "engine": "megatron", "seq-len": 512},
        "axes": {"model": ["llama-3.2-1b", "deadly", "qwen3-4b"]},
    }
    ray.init(
        address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
        runtime_env={"worker_process_setup_hook": _deadly, "env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}},
    )
    try:
        rows = list(vramcast.sweep(tables, engine="ray"))
        assert ray.is_initialized()  # a connection that was there before stays
    finally:
        ray.shutdown()
    assert [row.get("error") for row in rows] == [None, "WorkerDied", None]
