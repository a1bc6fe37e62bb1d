"""Statements of a text as findings; nothing that a text can hold raises."""

from math import isnan

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast import diagnose
from vramcast.doctor.failures.case import Facts
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis, joined
from vramcast.domain.failure import Cause, Statement
from vramcast.report.failure import diagnosis_document, headline, render
from vramcast.report.messages import LANGUAGES, Words
from vramcast.sources.failures import FAMILIES, NUMBERS
from vramcast.units import GIB

PHASES = ("backward", "optimizer", "load", "generate", "loader", "attention", "loss", "capture", "checkpoint")
SIZES = st.integers(-(1 << 70), 1 << 70) | st.integers(0, 1 << 38) | st.floats() | st.text(max_size=5)


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    names = st.sampled_from(list(NUMBERS))
    return Statement(
        family=draw(st.sampled_from([*FAMILIES, "", "unheard-of"])), wording=draw(st.text(max_size=8)),
        text=draw(st.sampled_from(["", "KV cache", "DataLoader worker", "gallocr_reserve", "pin memory", "{x}"])),
        line=draw(st.integers(1, 10**9)), numbers=draw(st.dictionaries(names, SIZES, max_size=10)),
    )


@st.composite
def surroundings(draw: st.DrawFn) -> Facts:
    return Facts(
        phases=frozenset(draw(st.sets(st.sampled_from(PHASES)))),
        steps=tuple(draw(st.lists(st.integers(0, 10**9), max_size=3))),
        torch=draw(st.sampled_from([(), (1, 4), (2, 3), (2, 13)])), fraction=draw(st.none() | st.floats(0, 1)),
        words=frozenset(draw(st.sets(st.sampled_from(["leak", "gpu_memory_utilization", "fsdp", "deepspeed"])))),
    )


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(statements(), max_size=3), surroundings())
def test_any_statement_has_a_diagnosis_and_a_report_in_every_language(told: list[Statement], facts: Facts) -> None:
    found = diagnosis("x", Told(statements=tuple(told), whole=facts), Given(every_check=True))
    assert bool(found.findings) == bool(told)
    for finding in found.findings:
        assert 0 <= finding.confidence <= 1
        numbers = (value for value in finding.statement.numbers.values() if isinstance(value, (int, float)))
        figures = [value for value in numbers if not isnan(value)]
        for fix in finding.fixes:
            assert fix.saves_bytes is None or 0 <= fix.saves_bytes <= max(figures)
    assert diagnosis_document(found)["schema"] == 1
    for language in LANGUAGES:
        assert render(found, Words(language))


def test_echoes_of_a_failure_are_one_finding() -> None:
    first = stated(line=10, **FRAGMENTED)
    echo = stated(text="torch.OutOfMemoryError: CUDA out of memory.", line=40)
    again = stated(line=80, **FRAGMENTED)
    ((index, kept),) = joined((first, echo, again))
    assert (index, kept.repeats) == (0, 2)


def test_a_failure_without_figures_far_from_others_stands_alone() -> None:
    assert len(joined((stated(line=10, **FRAGMENTED), stated(text="CUDA error: out of memory", line=5000)))) == 2


def test_ranks_that_fail_with_other_figures_are_findings_of_their_own() -> None:
    other = FRAGMENTED | {"device": 1, "free_bytes": 1 << 20}
    assert len(joined((stated(line=1, **FRAGMENTED), stated(line=2, **other)))) == 2


def test_tensorflows_request_and_the_dump_far_behind_it_are_one_failure() -> None:
    asked = replace(stated("tensorflow", **sizes(tried=2.38)), wording="bfc-ran-out")
    dump = stated("tensorflow", line=390, **sizes(limit=13.68, allocated=13.21))
    found = diagnosis("x", Told(statements=(asked, dump))).findings
    assert len(found) == 1 and {"tried_bytes", "limit_bytes"} <= set(found[0].statement.numbers)


TABLE = """| NVIDIA-SMI 410.48                 Driver Version: 410.48                    |
|   0  Tesla V100-SXM2...  On   | 00000000:00:08.0 Off |                    0 |
| N/A   54C    P0   246W / 300W |  15514MiB / 16130MiB |    100%      Default |
|   1  Tesla V100-SXM2...  On   | 00000000:00:09.0 Off |                    0 |
| N/A   38C    P0    39W / 300W |      0MiB / 16130MiB |      0%      Default |
"""


def test_a_table_beside_a_failure_without_figures_does_not_hide_it_and_speaks_for_others() -> None:
    (finding,) = diagnose(TABLE + "\nRuntimeError: CUDA error: out of memory\n").findings
    assert (finding.statement.family, finding.cause) == ("torch-cuda", Cause.OTHER_PROCESS)
    idle = TABLE.replace("15514MiB", "    0MiB")
    assert diagnose(idle + "\nRuntimeError: CUDA error: out of memory\n").findings[0].cause is Cause.TOO_BIG


def test_a_table_alone_is_no_failure() -> None:
    table = stated("nvidia-smi", total_bytes=40 * GIB, used_bytes=38 * GIB)
    (finding,) = diagnosis("x", Told(statements=(table,))).findings
    assert (finding.cause, finding.detail) == (Cause.UNKNOWN, "no_failure")
    assert headline(finding, Words("en")).startswith("no failure in this text")
    assert not any(remark.key == "why.second" for remark in finding.why)
