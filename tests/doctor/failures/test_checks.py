"""Stability and compatibility checks: what gives reason for them, and their figures for a job."""

from vramcast.api import job_of
from vramcast.doctor.failures.case import Facts
from vramcast.doctor.failures.job import CHECKS, checks_of
from vramcast.report.messages import rare_messages


def values(key: str, **options: object) -> dict[str, str]:
    job = job_of({name.replace("_", "-"): value for name, value in options.items()})
    return {check.key: check.values for check in checks_of(Facts(), job)}[key]


def test_a_flat_unit_gathers_the_model_and_a_layer_only_itself() -> None:
    found = values("check.wrapping.job", model="llama-3.1-8b", gpus="8xh100", engine="torchtitan", shards="everything")
    # 8,030,261,248 parameters of 2 bytes; a layer has 218,112,000
    assert found == {"whole": "14.96 GiB", "layer": "416.02 MiB"}


def test_every_check_has_its_words_and_those_of_its_figures() -> None:
    for check in CHECKS:
        assert check.key in rare_messages()
    computed = ("check.loss_scale", "check.buckets", "check.wrapping", "check.offload")
    assert {f"{key}.job" for key in computed} <= set(rare_messages())
