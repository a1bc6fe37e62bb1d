"""A question written as options, and options read into a question."""

import json
import shlex
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from tests.formats.plans import named
from tests.formats.test_random_plans import SERVE_OPTIONS, plans
from vramcast.api import job_of, serve_job_of
from vramcast.cli.main import group
from vramcast.domain.job import Job
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.table import SERVING as SERVERS
from vramcast.engines.training import DIFFUSION
from vramcast.errors import InvalidSpec, Unsupported, VramcastError
from vramcast.estimate.training import answer
from vramcast.question.files import read_job, save_job
from vramcast.question.option import Money, parse_hours, parse_money, parse_share, table_of
from vramcast.question.options import OPTIONS, Kind, Option
from vramcast.question.serving import DRAFT_KINDS
from vramcast.question.tables import SERVE_OPTIONS as SERVING
from vramcast.question.whole_command import question_command, serve_options, train_options
from vramcast.states.optimizers import OPTIMIZERS
from vramcast.states.storage import FORMATS

# A plan's command asks for that plan: typed again, its options give the same job, setting by setting.

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


# Every word that help offers is taken by some engine, on some card, for some model: what none takes is not offered.

SEVERAL: Final = {"gpus": "8xh100", "micro_batch": 8}
LORA: Final = {"peft": "lora", "engine": "huggingface", "gpus": "h100"}

TRAINED: Final[dict[str, dict[str, Any]]] = {
    "schedule": SEVERAL | {"engine": "torchtitan", "pp": 4},
    "schedule=interleaved": SEVERAL | {"engine": "torchtitan", "pp": 4, "virtual_stages": 2},
    "cp-kind": {"gpus": "8xh100", "cp": 2, "engine": "megatron"},
    "shards": {"gpus": "8xh100", "engine": "deepspeed"}, "zero": {"gpus": "8xh100", "engine": "deepspeed"},
    "shards=nothing": {"gpus": "8xh100", "engine": "pytorch"}, "zero=0": {"gpus": "8xh100", "engine": "pytorch"},
    "sharded-by": {"gpus": "8xh100", "engine": "huggingface", "shards": "everything"},
    "offload-optimizer": {"gpus": "8xh100", "engine": "deepspeed", "zero": 3},
    "offload-parameters": {"gpus": "8xh100", "engine": "deepspeed", "zero": 3},
    "objective=ppo": {"engine": "huggingface", "completion_len": 64},
    "objective=grpo": {"engine": "huggingface", "completion_len": 64},
    "objective=rloo": {"engine": "huggingface", "completion_len": 64},
    "objective=gkd": {"engine": "huggingface", "teacher": "llama-3.2-3b"},
    "objective": {"engine": "huggingface"},
    "peft=modules": {"engine": "huggingface", "modules_to_save": "lm_head"},
    "peft": LORA, "base-weights": LORA, "adapter-dtype": LORA,
    "engine": {"gpus": "8xh100"}, "engine=unsloth": {"gpus": "h100"}, "engine=colossalai": {"gpus": "8xh100"},
    "engine=deepspeed": {"gpus": "8xh100", "zero": 3},
    "engine=litgpt": {"gpus": "8xh100", "shards": "everything", "precision": "bf16"},
    "precision=fp8": {"gpus": "8xh100", "engine": "megatron"},
    "precision=mixed-fp16": {"gpus": "8xh100", "engine": "megatron"},
    "precision=mixed-bf16": {"gpus": "8xh100", "engine": "megatron"},
    "recompute=selective": {"gpus": "8xh100", "engine": "torchtitan"},
    "loss=chunked": {"gpus": "8xh100", "engine": "torchtitan"},
    "peft=adapter": {"gpus": "8xh100", "engine": "litgpt", "shards": "everything", "precision": "bf16"},
}
"""Option, or option and word, of `train` -> what is asked beside it."""

SERVED: Final[dict[str, dict[str, Any]]] = {
    "router": {"rate": 1, "input_len": 64, "output_len": 8, "num_requests": 20},
    "find": {"gpus": "2xl40s"}, "find=fewest-gpus": {"gpus": "l40s"},
    "attention": {"engine": "transformers"},
    "offload": {"model": "flux.1-dev"},
}
"""The same of `serve`."""


def offered(table: dict[str, Option]) -> Iterator[tuple[str, str]]:
    for name, option in table.items():
        if option.kind is Kind.CHOICE:
            yield from ((name, word) for word in option.choices)


def beside(asked: dict[str, dict[str, Any]], name: str, word: str) -> dict[str, Any]:
    return {"gpus": "h100"} | asked.get(f"{name}={word}", asked.get(name, {}))


@pytest.mark.parametrize(("name", "word"), [*offered(OPTIONS)])
def test_what_train_offers_some_engine_takes(name: str, word: str) -> None:
    usual = {"model": "sd-1.5"} if word in DIFFUSION else {"model": "llama-3.2-1b", "seq_len": 512}
    asked = {"micro_batch": 1} | usual | beside(TRAINED, name, word) | {name.replace("-", "_"): word}
    assert vramcast.train(asked.pop("model"), **asked).ranks


@pytest.mark.parametrize(("name", "word"), [*offered(SERVING)])
def test_what_serve_offers_some_engine_takes(name: str, word: str) -> None:
    asked = beside(SERVED, name, word) | {name.replace("-", "_"): word}
    assert vramcast.serve(asked.pop("model", "llama-3.2-1b"), **asked).ranks


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_is_some_engines(name: str) -> None:
    engine = {"engine": "deepspeed", "zero": "0"} if OPTIMIZERS[name].compressed else {}
    assert vramcast.train("llama-3.2-1b", gpus="h100", seq_len=512, micro_batch=1, optimizer=name, **engine).ranks


@pytest.mark.parametrize("stored", sorted(FORMATS))
def test_every_format_of_weights_is_some_engines(stored: str) -> None:
    engine = "ik_llama.cpp" if "_" in stored else "vllm"
    assert vramcast.serve("llama-3.2-1b", gpus="b200", engine=engine, context=4096, weights=stored).ranks


@pytest.mark.parametrize(
    ("engine", "kind"), [(name, kind) for name, engine in SERVERS.items() for kind in engine.kv_dtypes]
)
def test_every_format_of_caches_is_its_engines(engine: str, kind: str) -> None:
    assert vramcast.serve("llama-3.2-1b", gpus="b200", engine=engine, kv_dtype=kind).ranks


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_every_kind_of_draft_is_some_engines(kind: str) -> None:
    model = "deepseek-v3" if kind == "mtp" else "llama-3.1-8b"
    assert vramcast.serve(model, gpus="8xh200", context=4096, draft=kind).ranks


# What tools do unasked is counted and said; what a question says is kept, wherever the question stands.

ONE = "1xa100-sxm4-80gb"


def job(**options: Any) -> Job:
    return job_of({"model": "qwen3-0.6b", "gpus": ONE, "seq-len": 512, **options})


@pytest.mark.parametrize(("options", "dtype"), [
    ({"objective": "sft"}, "bf16"), ({"objective": "sft", "base-weights": "int8"}, "bf16"),
    ({"objective": "sft", "base-weights": "full"}, "fp32"), ({}, "fp32"), ({"objective": "dpo"}, "bf16"),
    ({"objective": "sft", "engine-option": ("trl=0.25",)}, "fp32"),
    ({"objective": "dpo", "engine-option": ("trl=0.28",)}, "fp32"),
    ({"objective": "sft", "engine-option": ("trl=0.8",)}, "bf16"),
    ({"objective": "sft", "engine-option": ("trl=0.8",), "base-weights": "int8"}, "fp32"),
    ({"objective": "sft", "adapter-dtype": "fp32"}, "fp32"), ({"objective": "sft", "engine": "unsloth"}, "fp32"),
])
def test_adapters_of_a_packed_base_are_as_trl_makes_them(options: dict[str, Any], dtype: str) -> None:
    found = job(**{"engine": "huggingface", "peft": "lora", "base-weights": "nf4", **options})
    assert found.plan.peft is not None
    assert found.plan.peft.adapter_dtype == dtype
    assert any("as TRL makes them" in text for text in found.assumed) is (dtype == "bf16")


@pytest.mark.parametrize(("options", "wide"), [
    ({}, True), ({"objective": "pretrain"}, False), ({"engine": "huggingface@4.57"}, False),
    ({"engine-option": ("trl=0.26",)}, False), ({"engine-option": ("dtype=bfloat16",)}, False),
    ({"objective": "pretrain", "engine-option": ("dtype=float32",)}, True), ({"base-weights": "nf4"}, True),
    ({"engine": "unsloth"}, False), ({"precision": "bf16"}, False),
])
def test_frozen_weights_are_loaded_as_trl_loads_them(options: dict[str, Any], wide: bool) -> None:
    asked = {"engine": "huggingface", "objective": "sft", "peft": "lora"}
    found = answer(job(**(asked | options)), with_changes=False)
    tables = next(entry for entry in found.fullest.ledger if entry.path == "weights/embedding/embedding.tokens")
    assert tables.num_bytes == (4 if wide else 2) * 151_936 * 1024
    assert any("loaded in float32" in text for text in found.assumptions) is wide


@pytest.mark.parametrize(("model", "options", "base"), [
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {"peft": "lora"}, "nf4"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {"peft": "lora", "base-weights": "nf4-dq"}, "nf4-dq"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", {"peft": "lora", "base-weights": "awq-int4"}, "awq-int4"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", {"peft": "lora"}, "give --base-weights gptq-int4 or awq-int4"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", {}, "beside which adapters alone learn"),
])
def test_adapters_lie_over_weights_as_the_checkpoint_packs_them(
    model: str, options: dict[str, Any], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if " " not in base:
        peft = job(model=model, **options).plan.peft
        assert peft is not None and peft.base == base
        return
    with pytest.raises(VramcastError, match=base):
        job(model=model, **options)


# The command of a winner, typed, asks for the winner; tests/search/test_lines_again.py asks more plans again.

def run(command: str) -> dict[str, Any]:
    program, *arguments = shlex.split(command)
    assert program == "vramcast"
    result = CliRunner().invoke(group, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize(("model", "options"), [
    ("qwen3-8b", {"on": "2x4xh100-sxm-80gb", "engine": "megatron", "pp": "2", "cp": "2"}),
    ("qwen3-8b", {"on": "2xa100-sxm4-40gb", "engine": "deepspeed", "allow": "offload", "precision": "mixed-fp16"}),
    ("qwen3-8b", {"on": "lambda:gpu_1x_b200_sxm6", "engine": "megatron", "price": "2usd", "tokens": "1B"}),
    (None, {"params": "3B", "layers": 32, "hidden": 2560, "on": "2xa100-sxm4-80gb", "engine": "torchtitan",
            "compile": True, "goal": "least-memory"}),
])
def test_a_training_command_reproduces_its_plan(model: str | None, options: dict[str, Any]) -> None:
    found = vramcast.plan("train", model, seq_len=2048, global_batch=64, top=1, **options)
    assert isinstance(found, PlanAnswer) and found.plans
    again, best = run(found.command), found.plans[0]
    assert best.time is not None
    assert again["peak"]["device_bytes"] == best.peak.device_bytes
    assert again["time"]["step_s"] == pytest.approx(best.time.step_s, rel=1e-9)


# Amounts as users write them: what is written is what is read, and everything else is one sentence.

PARSERS = (parse_money, parse_hours, parse_share)


@given(amount=st.integers(1, 10**9), currency=st.sampled_from(("usd", "CNY", "Eur")), space=st.sampled_from(("", " ")))
def test_money_is_read_as_it_is_written(amount: int, currency: str, space: str) -> None:
    assert parse_money("budget", f"{amount}{space}{currency}") == Money(float(amount), currency.upper())


@given(days=st.integers(1, 10**5))
def test_durations_agree_across_units(days: int) -> None:
    assert parse_hours("deadline", f"{days}d") == parse_hours("deadline", f"{24 * days}h") == 24.0 * days
    assert parse_hours("deadline", f"{7 * days}d") == parse_hours("deadline", f"{days}w")


@given(percent=st.integers(0, 99))
def test_a_percentage_is_the_share_it_names(percent: int) -> None:
    assert parse_share("headroom", f"{percent}%") == percent / 100 == parse_share("headroom", percent / 100)


@pytest.mark.parametrize(("parse", "text"), [
    (parse_money, "100000"), (parse_money, "usd"), (parse_money, "1tusd"), (parse_money, "-5usd"),
    (parse_money, "1e5usd"), (parse_money, "0usd"), (parse_money, "5 dollars"),
    (parse_hours, "30"), (parse_hours, "30y"), (parse_hours, "0h"), (parse_hours, "-1d"), (parse_hours, "1d12h"),
    (parse_share, "100%"), (parse_share, "1"), (parse_share, "-5%"), (parse_share, "5 pct"), (parse_share, "nan"),
    (parse_hours, True),
])
def test_what_is_no_amount_is_refused_by_name_in_one_sentence(parse: Callable[..., Any], text: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^limit=.* must be ") as raised:
        parse("limit", text)
    assert "\n" not in str(raised.value)


@given(text=st.text(max_size=30), parse=st.sampled_from(PARSERS))
def test_any_text_is_read_or_refused(text: str, parse: Callable[..., Any]) -> None:
    try:
        parse("limit", text)
    except InvalidSpec as error:
        assert len(str(error)) < 200


# No option that counts takes less than it can mean, or more than can be answered, whoever asks.

MAY_BE_ZERO: Final = {"completion-len", "virtual-tokens", "images", "lora-slots", "gpu-layers", "rank"}
TRAIN: Final[tuple[dict[str, Any], ...]] = (
    {"model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "megatron"},
    {"model": "mixtral-8x7b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan"},
    {"model": "qwen2.5-vl-7b", "gpus": "h100", "engine": "pytorch"},
    {"model": "llama-3.2-1b", "gpus": "h100", "engine": "huggingface", "peft": "lora"},
)
SERVE: Final[tuple[dict[str, Any], ...]] = (
    *({"model": "llama-3.1-8b", "gpus": "2xh100-sxm-80gb", "engine": engine}
      for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers")),
    {"model": "llama-3.1-8b", "gpus": "h100", "draft": "llama-3.2-1b", "context": 4096},
    {"model": "wan2.1-t2v-1.3b", "gpus": "h100", "engine": "diffusers", "tiling": True},
)
RL: Final[tuple[dict[str, Any], ...]] = (
    {"model": "qwen2.5-0.5b", "gpus": "8xh100-sxm-80gb"},
    {"model": "olmoe-1b-7b", "gpus": "8xh100-sxm-80gb", "framework": "nemo-rl", "ep": 4},
)


def counts(table: Any) -> list[str]:
    return [name for name, option in table.items() if option.kind is Kind.COUNT]


BASES: Final = {"train": TRAIN, "serve": SERVE, "rl": RL}
CASES: Final = [(command, name) for command in BASES for name in counts(table_of(command))]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_counts_below_what_they_mean_are_refused(command: str, name: str) -> None:
    for base, value in product(BASES[command], (0, -1, "0", True, 2**41)):
        question = {**base, name.replace("-", "_"): value}
        if value in (0, "0") and name in MAY_BE_ZERO:
            continue
        with pytest.raises(VramcastError):
            getattr(vramcast, command)(question.pop("model"), **question)


@pytest.mark.parametrize(("command", "name"), CASES)
def test_any_count_is_answered_or_refused_in_one_sentence(command: str, name: str) -> None:
    """Of two jobs in turn: each answer may take seconds. Of large ones the largest that is answered: what needs less is
    answered in the same way."""
    bases, place = BASES[command], CASES.index((command, name))
    first, second = (bases[(place + step) % len(bases)] for step in (0, 1))
    for base, value in ((first, 0), (first, 1), (second, 7)):
        if (name, value) != ("min-seq-len", 7):  # steps of many lengths
            is_answered(command, base, name, value)
    for base in (first, second):
        any(is_answered(command, base, name, value) for value in (2**40, 2**30))


def is_answered(command: str, base: dict[str, Any], name: str, value: int) -> bool:
    question = {**base, name.replace("-", "_"): value}
    try:
        getattr(vramcast, command)(question.pop("model"), **question)
    except VramcastError as error:
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_stages_that_keep_nothing_of_a_sequence_do_not_limit_it(engine: str) -> None:
    try:
        answer = vramcast.serve("nemotron-h-56b", gpus="8x8xh100-sxm-80gb", engine=engine, tp=1, pp=59, context=1024)
    except Unsupported:
        return
    assert answer.capacity is not None
    assert answer.capacity.concurrency >= 1
    assert answer.fits


@pytest.mark.parametrize(
    "question",
    [{"frames": 131072}, {"frames": 4096}, {"height": 2**20, "width": 2**20}, {"height": 32768}, {"width": 2**30}],
)
def test_more_pixels_than_anything_generates_are_refused(question: dict[str, int]) -> None:
    with pytest.raises(InvalidSpec, match="than any pipeline generates at once"):
        vramcast.serve("wan2.1-t2v-1.3b", gpus="h100", tiling=True, **question)


# Job files read back what was written.

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=30), st.lists(st.text(max_size=10), max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(sorted(OPTIONS)), VALUES, min_size=1, max_size=6),
    st.sampled_from(["job.toml", "job.TOML", "job.yaml", "job.yml", "job"]),
)
def test_a_saved_question_reads_back_equal(options: dict[str, object], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save_job(path, options, file=None, table=OPTIONS)
        assert read_job(path) == options


# Prompts and answers go into the longest sequence, or the question is refused in one sentence.

def serve(**options: Any) -> Any:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "2xh100"} | options))


def test_a_context_that_a_command_limits_is_no_load_where_prompts_and_answers_are_named() -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32768"
    whole = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32)
    assert not whole.fits and "of 32 sequences of 32,768 tokens" in whole.shortfall
    asked = vramcast.serve(from_command=line, gpus="2xh100", concurrency=32, input_len=1024, output_len=1024)
    assert asked.fits and asked.capacity == whole.capacity
    assert not vramcast.serve(from_command=line, gpus="2xh100", concurrency=999, input_len=1024, output_len=1024).fits
