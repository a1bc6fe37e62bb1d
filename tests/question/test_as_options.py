"""A plan's command asks for that plan: typed again, its options give the same job, setting by setting."""

import shlex
from typing import Any

import click
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.formats.plans import named
from tests.formats.test_random_plans import SERVE_OPTIONS, plans
from vramcast.api import job_of, serve_job_of
from vramcast.cli.main import group
from vramcast.domain.serving import ServeJob
from vramcast.errors import VramcastError
from vramcast.question.options import OPTIONS
from vramcast.question.tables import SERVE_OPTIONS as SERVING
from vramcast.question.whole_command import question_command, serve_options, train_options

MORE = {
    "lora_targets": st.sampled_from(["all-linear", "q_proj,v_proj", "layers.0.mlp.up", r".*\.(q|v)_proj"]),
    "lora_rank": st.integers(1, 64),
    "engine_option": st.sampled_from([("reentrant=true",), ("padded=true", "reentrant=false"), ()]),
    "alloc_conf": st.sampled_from(["expandable_segments:True", "max_split_size_mb:128,roundup_power2_divisions:4"]),
    "global_batch": st.sampled_from([64, 256]),
    "tokens": st.sampled_from(["1B", "3T"]),
    "sharded_by": st.sampled_from(["fsdp1", "fsdp2", "deepspeed"]),
    "price": st.sampled_from(["2.5usd", "90usd/node"]),
    "layers": st.integers(1, 4),
    "first_stage_layers": st.integers(1, 4),
    "etp": st.sampled_from([1, 2]),
}
"""Options that random plans are without."""

QUIETLY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def typed(command: str) -> dict[str, Any]:
    """The question that a command line asks."""
    _, name, *words = shlex.split(command)
    sub = group.get_command(click.Context(group), name)
    assert sub is not None
    table = {"train": OPTIONS, "serve": SERVING}[name]
    given = {key.replace("_", "-"): value for key, value in sub.make_context(name, words).params.items()}
    return {key: value for key, value in given.items() if key in ("model", "gpus", *table) and value not in (None, ())}


@QUIETLY
@given(plans(), st.lists(st.sampled_from(list(MORE)), max_size=3, unique=True), st.data())
def test_a_training_job_is_asked_again_by_its_command(
    options: dict[str, Any], names: list[str], data: st.DataObject
) -> None:
    options |= named({name: data.draw(MORE[name]) for name in names})
    try:
        job = job_of(options)
    except VramcastError:
        assume(False)
    command = question_command("train", train_options(job, options, model=options["model"]))
    event(options["engine"])
    assert job_of(typed(command)) == replace(job, assumed=()), command  # nothing is left open


@QUIETLY
@given(
    st.sampled_from(["vllm", "sglang@0.5.5", "tensorrt-llm", "llama.cpp", "transformers", "lmdeploy"]),
    st.sampled_from(["llama-3.2-1b", "qwen3-30b-a3b"]),
    st.sampled_from(["h100", "4xh100", "2x8xh100", "aws:g6.12xlarge"]),
    st.lists(st.sampled_from(list(SERVE_OPTIONS)), max_size=4, unique=True),
    st.data(),
)
def test_a_served_job_is_asked_again_by_its_command(
    engine: str, model: str, gpus: str, names: list[str], data: st.DataObject
) -> None:
    options = named({name: data.draw(SERVE_OPTIONS[name]) for name in names})
    options |= {"model": model, "gpus": gpus, "engine": engine, "context": 4096}
    try:
        job = serve_job_of(options)
    except VramcastError:
        assume(False)
    assert isinstance(job, ServeJob)
    command = question_command("serve", serve_options(job, options, model=model))
    event(engine)
    assert serve_job_of(typed(command)) == job, command
