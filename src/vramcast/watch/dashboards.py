"""What Prometheus and Grafana are given: alert rules and a dashboard over the metrics of `--prometheus`."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

SCHEMA: Final = 39
"""Of Grafana 10 and later [grafana] docs/sources/dashboards/build-dashboards/view-dashboard-json-model."""
WIDTH: Final = 24  # columns of a dashboard's grid


class Rule(NamedTuple):
    """One alert of Prometheus."""

    name: str
    expression: str
    lasts: str
    summary: str
    severity: str = "warning"


RULES: Final = (
    Rule("VramcastGpuLost", "vramcast_gpu_up == 0", "1m", "GPU {{ $labels.gpu }} does not answer", "critical"),
    Rule("VramcastWatchSilent", "time() - vramcast_last_reading_timestamp_seconds > 60", "1m",
         "vramcast watch has read no card for a minute", "critical"),
    Rule("VramcastHeadroom", "vramcast_gpu_memory_free_bytes < 2 * 1024^3", "1m",
         "GPU {{ $labels.gpu }}: only {{ $value | humanize1024 }}B free"),
    Rule("VramcastExhaustion", "vramcast_gpu_memory_exhaustion_seconds < 1800", "5m",
         "GPU {{ $labels.gpu }} will be full in {{ $value | humanizeDuration }} at this rate"),
    Rule("VramcastLeak", "vramcast_process_memory_growth_bytes_per_second > 1024^3 / 3600", "15m",
         "GPU {{ $labels.gpu }}: {{ $labels.process }}[{{ $labels.pid }}] grows by {{ $value | humanize1024 }}B/s"),
    Rule("VramcastDeadHolder", 'vramcast_process_memory_bytes{holder="dead"} > 0', "5m",
         "GPU {{ $labels.gpu }}: PID {{ $labels.pid }} is dead and still holds {{ $value | humanize1024 }}B"),
    Rule("VramcastBeyondPrediction",
         "(max by (instance, uuid, gpu) (vramcast_process_memory_bytes)"
         " or max by (instance, uuid, gpu) (vramcast_gpu_memory_used_bytes)) > on (instance, uuid) "
         '1.05 * vramcast_gpu_expected_memory_bytes{phase="steady"}', "5m",
         "The job on GPU {{ $labels.gpu }} uses {{ $value | humanize1024 }}B, over 5 % more than was predicted"),
    Rule("VramcastEccUncorrected", 'increase(vramcast_gpu_ecc_errors_total{kind="uncorrected"}[1h]) > 0', "0m",
         "GPU {{ $labels.gpu }} had uncorrected memory errors", "critical"),
)
"""Every alert; change the figures to what your cluster calls short."""


class Panel(NamedTuple):
    """One picture of the dashboard."""

    title: str
    unit: str  # as Grafana names it
    queries: tuple[tuple[str, str], ...]  # (expression, legend)
    width: int = 12
    kind: str = "timeseries"


CHOSEN: Final = 'instance=~"$instance", gpu=~"$gpu"'
EACH: Final = "{{instance}} GPU {{gpu}}"


def _of(metric: str, *matchers: str) -> str:
    return f"vramcast_{metric}{{{', '.join((CHOSEN, *matchers))}}}"


PANELS: Final = (
    Panel("Cards that answer", "short", (
        ("sum(vramcast_gpu_up)", "up"), ("sum(1 - vramcast_gpu_up)", "lost"),
    ), 6, "stat"),
    Panel("Alerts", "short", (("vramcast_alerts", "{{alert}}"),), 6, "stat"),
    Panel("Least free memory", "bytes", ((f"min({_of('gpu_memory_free_bytes')})", "free"),), 6, "stat"),
    Panel("Full in, at this rate", "s", ((f"min({_of('gpu_memory_exhaustion_seconds')})", "left"),), 6, "stat"),
    Panel("Memory used, and predicted", "bytes", (
        (_of("gpu_memory_used_bytes"), EACH),
        (_of("gpu_expected_memory_bytes", 'phase="steady"'), EACH + " predicted"),
    )),
    Panel("Memory by process", "bytes", (
        (f"topk(20, {_of('process_memory_bytes')})",
         "GPU {{gpu}} {{process}}[{{pid}}] {{container}} {{holder}}"),
    )),
    Panel("Growth by process", "Bps", (
        (_of("process_memory_growth_bytes_per_second"), "GPU {{gpu}} {{process}}[{{pid}}]"),
    )),
    Panel("Held by no process in sight", "bytes", (
        (_of("gpu_memory_unaccounted_bytes"), EACH),
    )),
    Panel("SMs busy", "percentunit", ((_of("gpu_sm_busy_ratio"), EACH),)),
    Panel("Memory busy", "percentunit", ((_of("gpu_memory_busy_ratio"), EACH),)),
    Panel("Power", "watt", (
        (_of("gpu_power_watts"), EACH),
        (_of("gpu_power_limit_watts"), EACH + " limit"),
    )),
    Panel("Temperature", "celsius", (
        (_of("gpu_temperature_celsius"), EACH + " {{sensor}}"),
    )),
    Panel("Clocks", "hertz", ((_of("gpu_clock_hertz"), EACH + " {{clock}}"),)),
    Panel("Held back", "short", ((_of("gpu_throttled"), EACH + " {{reason}}"),)),
    Panel("PCIe", "Bps", ((_of("gpu_pcie_bytes_per_second"), EACH + " {{direction}}"),)),
    Panel("Links between cards", "Bps", (
        (_of("gpu_link_bytes_per_second"), EACH + " {{direction}}"),
    )),
    Panel("MIG instances", "bytes", (
        (_of("partition_memory_used_bytes"), "GPU {{gpu}} {{profile}} {{partition}}"),
    )),
    Panel("ECC errors", "short", ((_of("gpu_ecc_errors_total"), EACH + " {{kind}}"),)),
)


def rules() -> str:
    """A file of alert rules for Prometheus."""
    import yaml

    alerts = [
        {
            "alert": rule.name, "expr": rule.expression, "for": rule.lasts, "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary},
        }
        for rule in RULES
    ]
    text: str = yaml.safe_dump({"groups": [{"name": "vramcast", "rules": alerts}]}, sort_keys=False, width=160)
    return text


def dashboard() -> str:
    """A dashboard for Grafana, to be imported as JSON."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(PANELS, 1):
        height = 4 if panel.kind == "stat" else 8
        panels.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x = (x + panel.width) % WIDTH
        y += 0 if x else height
    return json.dumps({
        "uid": "vramcast", "title": "GPU memory (vramcast)", "tags": ["gpu", "vramcast"], "timezone": "browser",
        "schemaVersion": SCHEMA, "version": 1, "editable": True, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "panels": panels,
        "templating": {"list": [
            {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
            _variable("instance", "label_values(vramcast_gpu_up, instance)"),
            _variable("gpu", 'label_values(vramcast_gpu_up{instance=~"$instance"}, gpu)'),
        ]},
    }, indent=1)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number, "type": panel.kind, "title": panel.title, "datasource": source, "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": source}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "query": query, "datasource": {"type": "prometheus", "uid": "${source}"},
        "refresh": 2, "multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"},
    }
