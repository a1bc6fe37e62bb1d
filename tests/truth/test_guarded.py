"""Whether the guard refuses what is known to run out of memory, and starts what ran: a sample of the published runs."""

from truth.guarded import PUBLISHED, VERDICTS, run


def test_a_sample_of_runs_is_refused_or_started_as_it_ended() -> None:
    judged = [case for case in run(PUBLISHED, every=9) if case.verdict in VERDICTS]
    failing = [case.verdict for case in judged if case.kind != "ran"]
    ran = [case.verdict for case in judged if case.kind == "ran" and case.complete]
    assert len(failing) > 10 and failing.count("refused") >= 0.95 * len(failing), failing
    assert len(ran) > 20 and ran.count("refused") <= 0.02 * len(ran), ran
