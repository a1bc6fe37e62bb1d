"""Each number explained."""

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import HOST, LIBRARIES, LLAMA, NOT_MEMORY, SERVERS, TABLES, TORCH, case_of
from vramcast.doctor.failures.causes import ORDER, meaning_of
from vramcast.report.messages import rare_messages
from vramcast.sources.failures import FAMILIES
from vramcast.sources.failures.wording import NUMBERS
from vramcast.units import MIB


def keys(**numbers: int | float | str) -> dict[str, str]:
    return {name: remark.key for name, remark in meaning_of(case_of(stated(**numbers))).items()}


def test_two_mebibytes_mean_a_small_tensor_and_twenty_a_larger_one() -> None:
    card = sizes(total=24, free=0, allocated=23, reserved=23.5)
    assert keys(tried_bytes=2 * MIB, **card)["tried_bytes"] == "means.tried.small"
    assert keys(tried_bytes=20 * MIB, **card)["tried_bytes"] == "means.tried.large"
    assert keys(tried_bytes=64 * MIB, **card)["tried_bytes"] == "means.tried_bytes"


def test_every_number_of_the_worked_example_is_explained_and_two_follow() -> None:
    told = meaning_of(case_of(stated(**FRAGMENTED)))
    assert told["unallocated_bytes"].values["value"] == "3.87 GiB"
    assert told["outside_bytes"].values["value"] == "1.12 GiB"
    assert set(FRAGMENTED) <= set(told)


def test_free_memory_that_would_have_been_enough_is_explained_as_such() -> None:
    assert keys(**sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14))["free_bytes"] == "means.free.enough"


def test_families_named_by_rules_are_those_of_the_readers() -> None:
    assert {name for name, family in FAMILIES.items() if family.about == "host"} <= {*HOST, *LIBRARIES, *TORCH}
    assert {name for name, family in FAMILIES.items() if family.about == "other"} == set(NOT_MEMORY)
    assert {name for name, family in FAMILIES.items() if family.about == "support"} == set(TABLES)
    named = {*TORCH, *SERVERS, *LLAMA, *LIBRARIES, *HOST, *NOT_MEMORY} - {"torch-snapshot", "host", "vllm-tpu"}
    assert named <= set(FAMILIES)


def test_every_number_that_readers_give_has_its_sentence() -> None:
    told = {name for name, figure in NUMBERS.items() if figure.unit not in ("text",)} - {
        "pid", "signal", "other_processes",
    }
    assert told <= set(ORDER)
    assert {f"means.{name}" for name in ORDER} | {f"short.{name}" for name in ORDER} <= set(rare_messages())
