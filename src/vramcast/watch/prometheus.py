"""`--prometheus`: the last reading for Prometheus to scrape, through prometheus_client, its project's own library; and
the alert rules and the Grafana dashboard over these metrics.

Names and units follow https://prometheus.io/docs/practices/naming/. Every series of a card has gpu and uuid; what else
is known of it stands in vramcast_gpu_info. Processes have series of their own, the largest of them; the rest is summed
in one whose pid is "other", so that the number of series stays bounded. Command lines are no labels: they hold secrets.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramcast.domain.observation import EventKind, GpuSample, ProcessSample, Reading
from vramcast.errors import InvalidSpec, SourceError
from vramcast.watch.following import Expected, Followed, Following
from vramcast.watch.outputs import Output

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer


NEEDS: Final = "--prometheus needs prometheus_client: pip install 'vramcast[watch]'"
LOOPBACK: Final = "127.0.0.1"
PORTS_FAULT: Final = (errno.EADDRINUSE, errno.EACCES)
"""Of an address that cannot be served; others lie with the host."""
MOST_PROCESSES: Final = 64
"""Processes of one card with series of their own."""
CARD: Final = ("gpu", "uuid")
PROCESS: Final = (*CARD, "pid", "process", "user", "container", "holder", "partition")

Values = Iterable[tuple[tuple[str, ...], float | None]]
"""(labels beyond gpu and uuid, value) of one card; None is left out."""


class Metric(NamedTuple):
    """One metric of a card."""

    name: str
    help: str
    values: Callable[[GpuSample, Followed, Expected | None], Values]
    labels: tuple[str, ...] = ()
    counts: bool = False


def _one(field: str) -> Callable[[GpuSample, Followed, Expected | None], Values]:
    return lambda sample, followed, expected: [((), getattr(sample, field))]


def _several(**fields: str) -> Callable[[GpuSample, Followed, Expected | None], Values]:
    return lambda sample, followed, expected: [((label,), getattr(sample, field)) for label, field in fields.items()]


METRICS: Final[tuple[Metric, ...]] = (
    Metric("vramcast_gpu_memory_size_bytes", "Memory of the card.",
           lambda sample, followed, expected: [((), sample.card.memory_total_bytes)]),
    Metric("vramcast_gpu_memory_used_bytes", "Memory used by processes.", _one("memory_used_bytes")),
    Metric("vramcast_gpu_memory_free_bytes", "Memory that is free.", _one("memory_free_bytes")),
    Metric("vramcast_gpu_memory_reserved_bytes", "Memory that driver and firmware keep.",
           _one("memory_reserved_bytes")),
    Metric("vramcast_gpu_memory_unaccounted_bytes", "Used memory that no living process in sight holds.",
           _one("unaccounted_bytes")),
    Metric("vramcast_gpu_memory_growth_bytes_per_second", "Robust slope of the used memory over the window.",
           lambda sample, followed, expected: [((), followed.slope.per_s if followed.slope else None)]),
    Metric("vramcast_gpu_memory_exhaustion_seconds", "Until the memory is full, where it grows steadily.",
           lambda sample, followed, expected: [((), followed.runs_out_in_s)]),
    Metric("vramcast_gpu_expected_memory_bytes", "Device memory that was predicted.",
           lambda sample, followed, expected: _expected(expected), ("phase",)),
    Metric("vramcast_gpu_sm_busy_ratio", "Share of the time in which a kernel ran.", _one("sm_share")),
    Metric("vramcast_gpu_memory_busy_ratio", "Share of the time in which memory was read or written.",
           _one("memory_share")),
    Metric("vramcast_gpu_power_watts", "Power drawn.", _one("power_w")),
    Metric("vramcast_gpu_power_limit_watts", "Power limit in force.", _one("power_limit_w")),
    Metric("vramcast_gpu_energy_joules", "Energy used since the driver was loaded.", _one("energy_j"), counts=True),
    Metric("vramcast_gpu_clock_hertz", "Clocks.", _several(sm="sm_clock_hz", memory="memory_clock_hz"), ("clock",)),
    Metric("vramcast_gpu_temperature_celsius", "Temperatures.",
           _several(gpu="temperature_c", memory="memory_temperature_c"), ("sensor",)),
    Metric("vramcast_gpu_throttled", "1 for each reason why clocks are held back.",
           lambda sample, followed, expected: [((reason,), 1) for reason in sample.throttled], ("reason",)),
    Metric("vramcast_gpu_pcie_bytes_per_second", "Traffic over PCIe.",
           _several(sent="pcie_sent_bytes_per_s", received="pcie_received_bytes_per_s"), ("direction",)),
    Metric("vramcast_gpu_link_bytes_per_second", "Traffic over all links between cards.",
           _several(sent="link_sent_bytes_per_s", received="link_received_bytes_per_s"), ("direction",)),
    Metric("vramcast_gpu_ecc_errors", "ECC errors since the driver was loaded.",
           _several(corrected="ecc_corrected", uncorrected="ecc_uncorrected"), ("kind",), counts=True),
    Metric("vramcast_partition_memory_size_bytes", "Memory of a MIG instance.",
           lambda sample, followed, expected: _partitions(sample, "memory_total_bytes"), ("partition", "profile")),
    Metric("vramcast_partition_memory_used_bytes", "Memory used in a MIG instance.",
           lambda sample, followed, expected: _partitions(sample, "memory_used_bytes"), ("partition", "profile")),
)
"""Every metric of a card, in the order in which they are printed."""


class Exporter(Output):
    """Serves the last reading; the server's threads only read it."""

    def __init__(self, address: str, expected: dict[str, Expected]) -> None:
        try:
            from prometheus_client import start_http_server
            from prometheus_client.registry import CollectorRegistry
        except ImportError:
            raise SourceError(NEEDS) from None
        host, port = address_of(address)
        self.name = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._expected = expected
        self._last: tuple[Reading, Following] | None = None
        self._families: list[Any] = []
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            there, why = f"{host}:{port}", error.strerror
            if error.errno in PORTS_FAULT:
                raise SourceError("cannot serve metrics on {}: {}; give another port", there, why) from None
            raise SourceError("cannot serve metrics on {}: {}; give an address of this machine", there, why) from None

    def write(self, reading: Reading, following: Following) -> None:
        """What is scraped from now on: made here, so that no scrape sees half a reading."""
        self._families = list(families(reading, following, self._expected))

    def collect(self) -> Iterable[Any]:
        """What prometheus_client asks for at each scrape."""
        return self._families

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `:9400`, `9400`, `0.0.0.0:9400` or `[::]:9400`; without a host, this machine alone.

    >>> address_of(":9400"), address_of("0.0.0.0:9400"), address_of("[::1]:9400")
    (('127.0.0.1', 9400), ('0.0.0.0', 9400), ('::1', 9400))

    Raises: InvalidSpec that says how to write it
    """
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host and not host.startswith("[")):
        raise InvalidSpec("--prometheus {!r} must be [HOST]:PORT, for example :9400 or 0.0.0.0:9400", text[:60])
    return host.strip("[]") or LOOPBACK, int(port)


def families(reading: Reading, following: Following, expected: dict[str, Expected]) -> Iterator[Any]:
    """Every metric of a reading."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    info = InfoMetricFamily("vramcast_gpu", "What does not change about a card.")
    for sample in reading.gpus:
        card = sample.card
        info.add_metric([], {
            "gpu": str(card.index), "uuid": card.uuid, "model": card.model, "vendor": card.vendor, "bus": card.bus
        })
    yield info
    for metric in METRICS:
        kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=(*CARD, *metric.labels))
        for sample in reading.gpus:
            followed, predicted = following.cards[sample.card.uuid], expected.get(sample.card.uuid)
            for labels, value in metric.values(sample, followed, predicted):
                if value is not None:
                    family.add_metric([*_card(sample), *labels], value)
        yield family
    yield from _about_processes(reading, following)
    yield from _about_itself(reading, following)


def _about_processes(reading: Reading, following: Following) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    memory = GaugeMetricFamily(
        "vramcast_process_memory_bytes", "Memory of the card that a process holds.", labels=PROCESS
    )
    busy = GaugeMetricFamily(
        "vramcast_process_sm_busy_ratio", "Share of the time in which its kernels ran.", labels=PROCESS
    )
    growth = GaugeMetricFamily(
        "vramcast_process_memory_growth_bytes_per_second", "Robust slope of its memory over the window.", labels=PROCESS
    )
    for sample in reading.gpus:
        for process in sample.processes[:MOST_PROCESSES]:
            labels = [*_card(sample), *_who(process)]
            slope = following.growth.get((sample.card.uuid, process.pid))
            values = (memory, process.memory_bytes), (busy, process.sm_share), (growth, slope.per_s if slope else None)
            for family, value in values:
                if value is not None:
                    family.add_metric(labels, value)
        rest = sample.processes[MOST_PROCESSES:]
        if rest:
            other = [*_card(sample), "other", *[""] * (len(PROCESS) - len(CARD) - 1)]
            memory.add_metric(other, sum(process.memory_bytes or 0 for process in rest))
    yield from (memory, busy, growth)


def _about_itself(reading: Reading, following: Following) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    up = GaugeMetricFamily("vramcast_gpu_up", "1 where the card answers, 0 where it is lost.", labels=CARD)
    answering = {sample.card.uuid for sample in reading.gpus}
    for uuid, followed in following.cards.items():
        up.add_metric([str(followed.card.index), uuid], float(uuid in answering))
    yield up
    alerts = GaugeMetricFamily("vramcast_alerts", "Alerts that are on.", labels=("alert",))
    for kind, number in following.alerts.items():
        alerts.add_metric([str(EventKind(kind))], number)
    yield alerts
    last = GaugeMetricFamily("vramcast_last_reading_timestamp_seconds", "When the cards were read.")
    last.add_metric([], reading.time_s)
    yield last
    for name, text, value in (
        ("vramcast_readings", "Readings since the watch began.", following.readings),
        ("vramcast_reader_failures", "Times a driver or tool stopped answering.", following.failures),
    ):
        counter = CounterMetricFamily(name, text)
        counter.add_metric([], value)
        yield counter


def _card(sample: GpuSample) -> tuple[str, str]:
    return str(sample.card.index), sample.card.uuid


def _who(process: ProcessSample) -> tuple[str, ...]:
    return (
        str(process.pid), process.name, process.user, process.container, str(process.holder), process.partition
    )


def _expected(expected: Expected | None) -> Values:
    if expected is None:
        return
    yield ("steady",), expected.steady_bytes
    yield ("first step",), expected.first_step_bytes
    yield ("capacity",), expected.capacity_bytes


def _partitions(sample: GpuSample, field: str) -> Values:
    return [((part.uuid, part.profile), getattr(part, field)) for part in sample.partitions]


SCHEMA: Final = 39
"""Of Grafana 10 and later [grafana] docs/sources/dashboards/build-dashboards/view-dashboard-json-model."""
WIDTH: Final = 24  # columns of a dashboard's grid


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
    """A file of alert rules for Prometheus; change the figures to what your cluster calls short."""
    return (files("vramcast.watch") / "alerts.yml").read_text(encoding="utf-8")


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
