"""Launchers ask for the machines of the plan."""

import msgspec
import pytest

from tests.formats.plans import files, notes, serving, training, values
from vramcast.api import planned_serving
from vramcast.domain.device import Network, Price
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.formats.files import File
from vramcast.formats.write import files_of


def rented(instance: str, **fields: object) -> Job:
    job = training("llama-3.1-8b", "2x8xa100-sxm4-80gb", engine="deepspeed", zero="3")
    return msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, instance=instance, **fields))


def test_pai_dlc_rents_the_instance_of_the_plan() -> None:
    price = Price(per_hour=100.0, currency="CNY", tariff="spot", region="cn-beijing", date="2026-11-20")
    job = rented("alibaba:ecs.gn7e-c16g1.32xlarge", price=price, network=Network(bytes_per_s=10**10, rdma="eRDMA"))
    found = values(job, "pai_dlc_job.json")
    (worker,) = found["JobSpecs"]
    assert worker["EcsSpec"] == "ecs.gn7e-c16g1.32xlarge" and worker["PodCount"] == 2
    assert worker["SpotSpec"] == {"SpotStrategy": "SpotAsPriceGo"} and "ResourceId" not in found
    assert found["Settings"]["EnableRDMA"] is True
    submitted = values(job, "pai_dlc_submit.sh")
    assert submitted["worker-spec"] == "ecs.gn7e-c16g1.32xlarge" and submitted["worker-count"] == "2"
    assert "200.00 CNY an hour" in files(job)["run.sh"].text


def test_skypilot_rents_the_instance_region_and_tariff_of_the_plan() -> None:
    price = Price(per_hour=30.0, currency="USD", tariff="spot", region="us-east-1")
    found = values(rented("aws:p4de.24xlarge", price=price), "skypilot.yaml")
    assert found["num_nodes"] == 2
    assert found["resources"] == {
        "infra": "aws/us-east-1",
        "instance_type": "p4de.24xlarge",
        "accelerators": "A100-80GB:8",
        "use_spot": True,
        "network_tier": "best",
    }
    assert "bash run.sh" in found["run"]


def test_a_launcher_alone_says_what_it_starts() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="megatron", tp=8)
    assert set(files(job, "pai-dlc")) == {"pai_dlc_job.json", "pai_dlc_submit.sh", "README.md"}
    assert "they start run.sh" in notes(job, "pai-dlc")
    with pytest.raises(Unsupported, match="choose its format too"):
        files(serving("llama-3.1-8b", "h100", engine="vllm", context="8k"), "pai-eas")


QWEN = {
    "model": "qwen3-32b", "on": "8xh100-sxm-80gb", "engine": "vllm@0.33", "concurrency": 64, "input-len": 2000,
    "output-len": 500, "tp": "4", "weights": "fp8",
}


def planned(**options: object) -> dict[str, File]:
    """The files of a search's winner."""
    found, job = planned_serving(QWEN | {name.replace("_", "-"): value for name, value in options.items()})
    assert job is not None
    return {file.name: file for file in files_of(job, answer=found.plans[0])[0]}


def test_replicas_on_one_machine_get_cards_of_their_own() -> None:
    found = planned()
    script = found["serve.sh"].text
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 bash serve.sh --port 8000" in script
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 bash serve.sh --port 8001" in script
    assert "serve.sh starts one of 2 replicas" in found["README.md"].text
    assert "SkyPilot rents a machine with 4 x h100-sxm-80gb for every replica" in found["README.md"].text
