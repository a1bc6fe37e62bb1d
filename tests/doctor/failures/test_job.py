"""A failure beside the job that failed."""

from vramcast.api import serve_job_of
from vramcast.doctor.failures.job import computed
from vramcast.estimate.serving import answer as serving_answer


def test_a_cache_too_small_for_the_load_is_told_in_sequences_and_so_is_every_change() -> None:
    job = serve_job_of({"model": "qwen3-32b", "gpus": "a100-sxm4-80gb", "context": 8192, "concurrency": 32})
    found = computed(job)
    assert found.cache is not None and float(found.cache.values["sequences"]) < 32 == int(found.cache.values["asked"])
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
