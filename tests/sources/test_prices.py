"""Refreshing prices from a local server: real formats on small files, and what hostile ones cannot do."""

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue.clusters import Market, cluster_of
from vramcast.catalogue.prices import known_prices, user_file
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.sources import fetch
from vramcast.sources.prices import update as module
from vramcast.sources.prices.update import Found, Request, number, update

TODAY = "2026-11-21"

AWS_HEADER = (
    "SKU", "TermType", "Unit", "PricePerUnit", "Currency", "Instance Type", "Tenancy", "Operating System",
    "CapacityStatus", "Pre Installed S/W", "MarketOption",
)
AWS_PLAIN = ("OnDemand", "Hrs", "50.5", "USD", "p5.48xlarge", "Shared", "Linux", "Used", "NA", "OnDemand")


def aws_list(*rows: tuple[str, ...], header: tuple[str, ...] = AWS_HEADER) -> str:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("FormatVersion", "v1.0"), ("Disclaimer", "public, prices, may change")])
    writer.writerow(header)
    writer.writerows((f"SKU{index}", *row) for index, row in enumerate(rows))
    return text.getvalue()


def azure_item(price: float = 97.0, **changes: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD", "retailPrice": price, "unitOfMeasure": "1 Hour", "armRegionName": "eastus",
        "armSkuName": "Standard_ND96isr_H100_v5", "productName": "Virtual Machines NDsrH100v5 Series",
        "skuName": "ND96isr H100 v5", "meterName": "ND96isr H100 v5", "type": "Consumption",
        "effectiveStartDate": "2026-01-01T00:00:00Z",
    } | changes


class Lists(BaseHTTPRequestHandler):
    """Every source, in its own format."""

    files: dict[str, str | bytes | Callable[[Any], None]] = {}
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = self.files.get(urlsplit(self.path).path)
        if callable(found):
            return found(self)
        if found is None:
            self.send_error(404)
            return None
        body = found.encode() if isinstance(found, str) else found
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("VRAMCAST_DATA", str(tmp_path / "data"))
    Lists.files, Lists.asked = {}, []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Lists)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


AWS_PATH = "/offers/v1.0/aws/AmazonEC2/current/us-east-1/index.csv"
AZURE_PATH = "/api/retail/prices"
GCP_PATH = "/cloudpilot-ai/karpenter-provider-gcp/main/pkg/providers/pricing/initial-prices.json"
LAMBDA_PATH = "/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv"
ALIBABA_PAGE = "/price/ecs/ecs-pricing/zh"
ALIBABA_PATH = "/aliyun/ecs-price-info/2.0.400/price/download/instancePrice.json"


def refreshed(provider: str, server: str, **options: Any) -> module.Outcome:
    return update((provider,), bases={provider: server}, today=TODAY, **options)[0]


def test_azure_follows_pages_and_leaves_out_windows_and_low_priority(server: str) -> None:
    first = [azure_item(400, productName="Virtual Machines NDsrH100v5 Series Windows"), azure_item(97.5)]
    second = [
        azure_item(20, skuName="ND96isr H100 v5 Low Priority"), azure_item(33.0, skuName="ND96isr H100 v5 Spot"),
        azure_item(500, effectiveStartDate="2019-01-01T00:00:00Z"), azure_item(80, currencyCode="EUR"),
        azure_item(1, type="Reservation"),
    ]

    def page(handler: Lists) -> None:
        query = parse_qs(urlsplit(handler.path).query)
        more = "$skip" not in query
        link = f"{server}{AZURE_PATH}?$filter=x&$skip=100" if more else None
        body = json.dumps({"Items": first if more else second, "NextPageLink": link}).encode()
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    Lists.files[AZURE_PATH] = page
    outcome = refreshed("azure", server, regions=("eastus",))
    assert (outcome.prices, outcome.failure) == (2, "")
    assert "armRegionName%20eq%20%27eastus%27" in Lists.asked[0]
    spot = cluster_of("ND96isr_H100_v5", Market(spot=True)).price
    on_demand = cluster_of("ND96isr_H100_v5").price
    assert spot is not None and spot.per_hour == 33.0
    assert on_demand is not None and on_demand.per_hour == 97.5


def test_azure_pages_do_not_lead_to_another_host(server: str) -> None:
    Lists.files[AZURE_PATH] = json.dumps({"Items": [azure_item()], "NextPageLink": "https://evil.example/x"})
    assert "leads on to another host" in refreshed("azure", server).failure
    assert not user_file().exists()


def test_gcp_reads_whole_machines_on_demand_and_spot(server: str) -> None:
    Lists.files[GCP_PATH] = json.dumps(
        {"prices": {"us-east4": {"on_demand": {"a3-megagpu-8g": 90.0, "e2-small": 1}, "spot": {"a3-megagpu-8g": 20.0}},
                    "us-west8": {"on_demand": {"a3-megagpu-8g": 95.0}}}}
    )
    outcome = refreshed("gcp", server)
    assert (outcome.prices, outcome.regions) == (3, 2)
    assert refreshed("gcp", server, regions=("us-west8",)).prices == 1


def test_lambda_reads_skypilots_catalogue(server: str) -> None:
    rows = ["InstanceType,AcceleratorName,Price,Region,SpotPrice", "gpu_8x_h100_sxm5,H100,30.0,us-east-1,",
            "gpu_8x_h100_sxm5,H100,30.0,us-west-1,", "cpu_4x_general,,0.2,us-east-1,", "gpu_1x_gh200,GH200,,us-east-1,"]
    Lists.files[LAMBDA_PATH] = "\n".join(rows)
    assert refreshed("lambda", server).prices == 2


def test_alibaba_finds_its_list_on_the_price_page(server: str) -> None:
    Lists.files[ALIBABA_PAGE] = f"<script src='{server}/aliyun/ecs-price-info/2.0.400/app.js'>"
    prices = {"cn-beijing::ecs.gn7i-c16g1.4xlarge::vpc::linux::optimized": {"hours": [{"price": "9.9"}]},
              "cn-beijing::ecs.gn7i-c16g1.4xlarge::vpc::windows::optimized": {"hours": [{"price": "11"}]},
              "cn-beijing::ecs.gn7-c12g1.3xlarge::vpc::linux::optimized": {"hours": []},
              "cn-beijing::ecs.g7.large::vpc::linux::optimized": {"hours": [{"price": "oops"}]}}
    Lists.files[ALIBABA_PATH] = json.dumps({"pricingInfo": prices})
    outcome = refreshed("alibaba", server)
    assert (outcome.prices, outcome.failure) == (1, "")
    price = cluster_of("gn7i-c16g1.4xlarge", Market(region="cn-beijing")).price
    assert price is not None and (price.per_hour, price.currency) == (9.9, "CNY")


def test_alibabas_page_does_not_lead_to_another_host(server: str) -> None:
    Lists.files[ALIBABA_PAGE] = "https://evil.example/aliyun/ecs-price-info/2.0.400"
    assert "unknown host, 'evil.example'" in refreshed("alibaba", server).failure


def test_a_failing_source_loses_nothing_and_the_others_are_kept(server: str) -> None:
    Lists.files[AWS_PATH] = aws_list(AWS_PLAIN)
    refreshed("aws", server)
    before = user_file().read_bytes()
    Lists.files[AWS_PATH] = "an error page"
    assert "no header with" in refreshed("aws", server).failure
    assert user_file().read_bytes() == before
    Lists.files[LAMBDA_PATH] = "InstanceType,Price,Region\ngpu_8x_h100_sxm5,30,us-east-1\n"
    both = update(("aws", "lambda"), bases={"aws": server, "lambda": server}, today="2026-12-01")
    assert [bool(one.failure) for one in both] == [True, False]
    kept = {name: price for name, price in known_prices() if price.date >= TODAY}
    assert kept["aws:p5.48xlarge"].per_hour == 50.5 and kept["lambda:gpu_8x_h100_sxm5"].date == "2026-12-01"
    assert [path.name for path in user_file().parent.iterdir()] == ["prices.csv"]


def test_a_folder_that_cannot_be_written_is_one_sentence(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("VRAMCAST_DATA", str(tmp_path / "file" / "below"))
    Lists.files[AWS_PATH] = aws_list(AWS_PLAIN)
    with pytest.raises(SourceError, match=r"prices\.csv: "):
        refreshed("aws", server)


def test_a_price_that_moved_by_more_than_ten_times_is_left_out(server: str) -> None:
    Lists.files[AWS_PATH] = aws_list(("OnDemand", "Hrs", "5504", *AWS_PLAIN[3:]))
    outcome = refreshed("aws", server)
    assert outcome.prices == 0 and "more than 10 times away from the 55.04" in outcome.left_out[0]
    assert not user_file().exists()


def test_no_region_of_a_source_reaches_the_table_unchecked(server: str) -> None:
    Lists.files[GCP_PATH] = json.dumps({"prices": {"a,b\n=cmd()": {"on_demand": {"a3-megagpu-8g": 90.0}}}})
    assert "is no region" in refreshed("gcp", server).failure


@pytest.mark.parametrize(("path", "provider", "content"), [
    (GCP_PATH, "gcp", "[]"),
    (GCP_PATH, "gcp", "{"),
    (GCP_PATH, "gcp", '{"prices": {"us-east4": 7}}'),
    (GCP_PATH, "gcp", "[" * 100_000),
    (GCP_PATH, "gcp", '{"prices": {}}'),
    (LAMBDA_PATH, "lambda", "a,b\n1,2\n"),
    (AZURE_PATH, "azure", '{"Items": 3}'),
    (AZURE_PATH, "azure", '{"Items": [3]}'),
    (ALIBABA_PAGE, "alibaba", "nothing here"),
    (AWS_PATH, "aws", aws_list(header=("a", "b"))),
])
def test_changed_formats_are_one_sentence(server: str, path: str, provider: str, content: str) -> None:
    Lists.files[path] = content
    failure = refreshed(provider, server).failure
    assert failure and "\n" not in failure and len(failure) < 400
    assert not user_file().exists()


def test_no_source_can_send_without_end(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWS_BYTES", 100_000)
    Lists.files[AWS_PATH] = aws_list(*[AWS_PLAIN] * 5000)
    assert "sends more than 100000 bytes" in refreshed("aws", server).failure
    Lists.files[AWS_PATH] = b"x" * (3 << 20)
    monkeypatch.setattr(module, "AWS_BYTES", 1 << 30)
    assert "in one line" in refreshed("aws", server).failure
    monkeypatch.setattr(fetch, "SILENCE_SECONDS", 0.3)
    Lists.files[GCP_PATH] = lambda handler: threading.Event().wait(1)
    assert "cannot be reached" in refreshed("gcp", server).failure or "broke off" in refreshed("gcp", server).failure


def test_unknown_providers_and_odd_regions_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean azure"):
        update(("azzure",), today=TODAY)
    with pytest.raises(InvalidSpec, match="must read like us-east-1"):
        update(("aws",), regions=("../../etc",), today=TODAY)


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_no_value_is_a_price_by_accident(value: Any) -> None:
    request = Request("https://x", frozenset({"p5.48xlarge"}), (), TODAY)
    found = Found("aws", "USD", request, "https://x")
    try:
        found.add("p5.48xlarge", "us-east-1", "on-demand", value)
        assert 0 <= number(value, "x") < 1e6
    except SourceError as error:
        assert "\n" not in str(error)


def test_every_source_is_a_provider_of_the_catalogue() -> None:
    from vramcast.catalogue.instances import PROVIDERS

    assert set(module.SOURCES) | set(module.WITHOUT) == set(PROVIDERS)
