"""Metrics, rules and dashboard, as Prometheus itself sees them where it is installed."""

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tests.watch.conftest import SOON_S, Machine, until
from tests.watch.samples import CARD, LIVING, SAMPLE
from vramcast.domain.observation import Reading
from vramcast.errors import InvalidSpec
from vramcast.units import GIB
from vramcast.watch import prometheus
from vramcast.watch.following import Expected, Following, Rules

pytest.importorskip("prometheus_client")

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
H100 = "gpu 81559 551 NVIDIA H100 80GB HBM3"
EXPECTED = Expected(
    gpu_uuid=CARD.uuid, role="all", steady_bytes=60 * GIB, capacity_bytes=79 * GIB, first_step_bytes=62 * GIB
)


def printed(reading: Reading) -> str:
    """What a scrape of one reading returns."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    following = Following(Rules())
    followed = following.follow(reading)

    class Last(Collector):
        def collect(self) -> Any:
            return prometheus.families(followed, following, {CARD.uuid: EXPECTED})

    registry = CollectorRegistry()
    registry.register(Last())
    return generate_latest(registry).decode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def asked(address: str) -> str:
    with urllib.request.urlopen(address, timeout=SOON_S) as answer:
        text: str = answer.read().decode()
    return text


def series(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values of one metric."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return [(sample.labels, sample.value) for sample in samples if sample.name == name]


def test_names_units_and_labels() -> None:
    text = printed(Reading(time_s=2.5, gpus=(SAMPLE,)))
    card = {"gpu": "0", "uuid": CARD.uuid}
    assert series(text, "vramcast_gpu_memory_used_bytes") == [(card, 40 * GIB)]
    assert series(text, "vramcast_gpu_throttled") == [(card | {"reason": "power cap"}, 1)]
    assert (card | {"phase": "first step"}, 62 * GIB) in series(text, "vramcast_gpu_expected_memory_bytes")
    (info,) = series(text, "vramcast_gpu_info")
    assert info[0] == card | {"model": CARD.model, "vendor": "nvidia", "bus": CARD.bus}
    alive, dead = series(text, "vramcast_process_memory_bytes")
    assert alive[0] == card | {
        "pid": "4242", "process": "python3", "user": "ada", "container": "docker/3f2a9c", "holder": "alive",
        "partition": "",
    }
    assert (dead[0]["pid"], dead[0]["holder"], dead[1]) == ("3111", "dead", 8 * GIB)
    assert series(text, "vramcast_gpu_memory_busy_ratio") == []  # unknown is absent, not 0
    assert "train.py" not in text  # command lines are no labels
    names = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    assert {metric.name for metric in prometheus.METRICS} <= {name.removesuffix("_total") for name in names}


def test_processes_beyond_the_largest_are_one_series() -> None:
    many = tuple(replace(LIVING, pid=pid, memory_bytes=GIB) for pid in range(1, 501))
    text = printed(Reading(time_s=1.0, gpus=(replace(SAMPLE, processes=many),)))
    found = series(text, "vramcast_process_memory_bytes")
    assert len(found) == prometheus.MOST_PROCESSES + 1
    assert found[-1][0]["pid"] == "other" and found[-1][1] == (500 - prometheus.MOST_PROCESSES) * GIB


@pytest.mark.parametrize("address", ["", "9400x", ":0", ":70000", "::1:9400", "host"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidSpec, match=r"must be \[HOST\]:PORT"):
        prometheus.address_of(address)


def test_rules_and_dashboard_ask_only_for_metrics_that_there_are() -> None:
    text = printed(Reading(time_s=2.5, gpus=(SAMPLE,)))
    there = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    for asking in (prometheus.rules(), prometheus.dashboard()):
        assert set(re.findall(r"\bvramcast_[a-z_]+", asking)) <= there


def test_the_dashboard_is_one_grafana_takes() -> None:
    board = json.loads(prometheus.dashboard())
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places
        for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and all(x < 24 for x, _ in cells)  # no panel over another
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["refId"] and target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_metrics_are_served_to_this_machine_alone(machine: Machine) -> None:
    machine.has(H100, "process 1 30000 0 -1 90 C")
    port = free_port()
    machine.start("--interval", "100ms", "--prometheus", f":{port}")
    until(lambda: "vramcast_gpu_up" in _tried(f"http://127.0.0.1:{port}/metrics"))
    text = asked(f"http://127.0.0.1:{port}/metrics")
    assert 'vramcast_gpu_up{gpu="0",uuid="GPU-00000001-1111-4222-8333-444444444444"} 1.0' in text
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    addresses = re.findall(rf"^\s*\d+: ([0-9A-F]+):{port:04X} \S+ 0A", listening, re.M)
    assert addresses == ["0100007F"]  # 127.0.0.1


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool")
def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    text = printed(Reading(time_s=2.5, gpus=(SAMPLE,)))
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, text=True, capture_output=True, timeout=SOON_S)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    (tmp_path / "rules.yml").write_text(prometheus.rules())
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", tmp_path / "rules.yml"], text=True, capture_output=True, timeout=SOON_S
    )
    count = prometheus.rules().count("alert:")
    assert checked.returncode == 0 and f"{count} rules found" in checked.stdout, checked.stderr


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus")
def test_prometheus_scrapes_answers_and_alerts(machine: Machine, dead_pid: int, tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    machine.has(H100, "process 1 30000 10 -1 90 C", f"process {dead_pid} 8000 0 -1 0 C", H100, "lost 4 9999")
    port, own = free_port(), free_port()
    machine.start("--interval", "200ms", "--prometheus", f":{port}")
    rules = re.sub(r"for: \d+m", "for: 0s", prometheus.rules())  # alert at once
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms", "scrape_timeout": "400ms"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "gpus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }))
    server = subprocess.Popen(
        [PROMETHEUS, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        def value(query: str) -> list[Any]:
            address = f"http://127.0.0.1:{own}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            text = _tried(address)
            found: list[Any] = json.loads(text)["data"]["result"] if text else []
            return found

        until(lambda: bool(value("vramcast_gpu_memory_used_bytes > 0")))
        (dead,) = value('vramcast_process_memory_bytes{holder=~"dead|invisible"}')
        assert float(dead["value"][1]) == 8000 * (1 << 20) and dead["metric"]["pid"] == str(dead_pid)
        until(lambda: [row["metric"]["gpu"] for row in value("vramcast_gpu_up == 0")] == ["1"])
        until(lambda: bool(value('ALERTS{alertname="VramcastGpuLost", alertstate="firing", gpu="1"}')))
        growth = 'deriv(vramcast_process_memory_bytes{pid="1"}[10s]) > 0'
        until(lambda: len(value(growth)) == 1)
    finally:
        server.terminate()
        server.wait(SOON_S)


def _tried(address: str) -> str:
    """What an address answers, "" where nothing listens yet."""
    try:
        return asked(address)
    except OSError:
        return ""
