"""A failure beside the job that failed."""

from __future__ import annotations

from tests.doctor.failures._statements import sizes, stated
from vramcast.api import job_of, serve_job_of
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.doctor.failures.job import computed
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Cause
from vramcast.estimate.serving import answer as serving_answer
from vramcast.estimate.training import needed_bytes

BERT = {
    "model": "bert-base-uncased", "gpus": "t4", "micro-batch": 32, "seq-len": 512, "attention": "eager",
    "engine": "huggingface",
}


def test_what_a_technique_saves_is_its_prediction_less_than_that_of_the_job() -> None:
    job = job_of(BERT)
    found = computed(job)
    assert found.predicted.verdict is Fit.NOT
    fix = next(fix for fix in found.fixes if fix.setting == "--recompute full")
    assert fix.saves_bytes == needed_bytes(job) - needed_bytes(job_of(BERT | {"recompute": "full"}))
    assert (fix.enough, fix.shown_by) == (True, "train")


def test_every_saving_is_positive_and_less_than_the_job_takes_and_what_fits_comes_first() -> None:
    found = computed(job_of(BERT))
    assert found.fixes and all(0 < fix.saves_bytes < found.predicted.device for fix in found.fixes)
    enough = [bool(fix.enough) for fix in found.fixes]
    assert enough == sorted(enough, reverse=True)


def test_a_message_agrees_with_the_job_it_came_from() -> None:
    # 17.9 GiB predicted; the T4 fails at 14 GiB live: before its peak
    statement = stated(**sizes(tried=0.19, total=14.56, free=0.1, allocated=13.9, reserved=14.1))
    finding = diagnosis("x", Told(statements=(statement,)), Given(job=job_of(BERT))).findings[0]
    assert finding.cause is Cause.TOO_BIG and finding.fixes[0].shown_by == "train"
    assert {"job.does not fit", "job.less"} <= {remark.key for remark in finding.why}


def test_a_message_of_another_card_is_said_to_be() -> None:
    statement = stated(**sizes(tried=0.19, total=79.3, free=0.1, allocated=70, reserved=78))
    finding = diagnosis("x", Told(statements=(statement,)), Given(job=job_of(BERT))).findings[0]
    assert "job.other_card" in {remark.key for remark in finding.why}


def test_a_served_model_is_answered_by_serve() -> None:
    found = computed(serve_job_of({"model": "llama-3.1-8b", "gpus": "rtx-3090", "context": 131072}))
    assert found.by == "serve" and found.predicted.verdict is Fit.NOT
    assert any(fix.setting.startswith("--context") and fix.enough for fix in found.fixes)


def test_a_cache_too_small_for_the_load_is_told_in_sequences_and_so_is_every_change() -> None:
    job = serve_job_of({"model": "qwen3-32b", "gpus": "a100-sxm4-80gb", "context": 32768, "concurrency": 8})
    found = computed(job)
    assert found.cache is not None and float(found.cache.values["sequences"]) < 8 == int(found.cache.values["asked"])
    for fix in found.fixes:
        assert fix.saves_bytes is None  # the pool takes what is saved elsewhere
        assert fix.action.key == "fix.change_holds"
    smaller = next(fix for fix in found.fixes if fix.setting == "--weights fp8")
    assert float(smaller.action.values["sequences"]) > float(found.cache.values["sequences"]) and not smaller.enough


def test_what_does_not_fit_still_saves_what_two_runs_of_serve_differ_by() -> None:
    asked = {"model": "qwen2.5-7b", "gpus": "t4", "context": 32768}
    job = serve_job_of(asked)
    changes = {
        "--no-graphs": {"graphs": False},
        "--batched-tokens 2048 --max-sequences 16": {"batched-tokens": 2048, "max-sequences": 16},
    }
    saved = {fix.setting: fix.saves_bytes for fix in computed(job).fixes if not fix.enough}
    needed = serving_answer(job, with_changes=False).fullest.needed_bytes
    for setting, change in changes.items():
        changed = serving_answer(serve_job_of(asked | change), with_changes=False).fullest.needed_bytes
        assert saved[setting] == needed - changed
