"""A comparison of plans simulates the roles that can need most; the full answer, which simulates all, must agree."""

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from vramcast.api import job_of
from vramcast.errors import VramcastError
from vramcast.estimate.training import answer, needed_bytes

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "opt-175b", "deepseek-v2-lite")


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, object]:
    """Options of a pipeline of Megatron or torchtitan on cards large enough for most."""
    pp, tp = draw(st.sampled_from((2, 4, 8, 16))), draw(st.sampled_from((1, 2, 4, 8)))
    cards = max(8, pp * tp * draw(st.sampled_from((1, 2))))
    chunks = draw(st.sampled_from((1, 1, 2, 4)))
    return {
        "model": draw(st.sampled_from(MODELS)), "engine": draw(st.sampled_from(("megatron", "torchtitan"))),
        "gpus": f"{cards // 8}x8xh200-sxm-141gb", "tp": tp, "pp": pp,
        "virtual-stages": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b",
        "seq-len": draw(st.sampled_from(("2k", "8k"))), "micro-batch": draw(st.sampled_from((1, 2))),
        "grad-accum": draw(st.sampled_from((2, 4, 8, 16))),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "shards": draw(st.sampled_from(("nothing", "optimizer"))),
    }


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines())
@example({"model": "bloom-560m", "gpus": "4x8xquadro-p3200-max-q", "engine": "torchtitan", "pp": 2})
def test_the_roles_left_out_never_need_most(options: dict[str, object]) -> None:
    try:
        job = job_of(options)
        every = answer(job, with_changes=False)
    except VramcastError:
        assume(False)
    assert needed_bytes(job) == every.fullest.needed_bytes
