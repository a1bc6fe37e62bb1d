"""What a plan is written as reads back as that plan: the same settings, the same bytes, the same step.

A file answers for the settings that it claims to say; the others are given as options, as its notes ask for.
"""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named, saying_all, write_all
from tests.formats.test_random_plans import COMMON, ENGINES
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.engines.eager.releases import optimizer_kernel, runs_deepspeed, sharder, with_its_loss
from vramcast.errors import VramcastError
from vramcast.estimate.host_memory import offload_of
from vramcast.estimate.training import answer
from vramcast.formats.files import File, settings_of
from vramcast.formats.write import files_of
from vramcast.question.options import OPTIONS
from vramcast.question.whole_command import train_options
from vramcast.states.optimizers import optimizer

MORE: dict[str, Any] = COMMON | {
    "sharded_by": st.sampled_from(["fsdp1", "fsdp2", "deepspeed"]),
    "lora_rank": st.sampled_from([4, 64]),
    "lora_targets": st.sampled_from(["all-linear", "attention.q,mlp.down"]),
    "lora_dropout": st.sampled_from([0.0, 0.05]),
    "modules_to_save": st.sampled_from(["head", "embedding"]),
    "adapter_dtype": st.sampled_from(["fp32", "bf16"]),
    "optimizer": st.sampled_from(
        ["adamw", "adam", "sgd", "sgd-momentum", "adamw-8bit", "paged-adamw-8bit", "lion", "muon", "adafactor",
         "galore", "galore:64", "galore-layerwise", "apollo", "lomo"]
    ),
    "optimizer_kernel": st.sampled_from(["foreach", "fused", "loop"]),
    "reshard_after_forward": st.booleans(),
    "alloc_conf": st.just("expandable_segments:True"),
    "objective": st.sampled_from(["pretrain", "sft", "dpo", "reward"]),
}
FOR_TRAINERS = ("objective", "optimizer_kernel", "lora_rank", "lora_targets", "lora_dropout", "modules_to_save",
                "adapter_dtype", "alloc_conf", "recompute_layers", "offload_parameters", "engine_option")
TRAINERS: dict[str, tuple[str, ...]] = {
    "huggingface": (*ENGINES["huggingface"], "sharded_by", "offload_optimizer", "reshard_after_forward", *FOR_TRAINERS),
    "deepspeed": (*ENGINES["deepspeed"], *FOR_TRAINERS),
    "unsloth": (*ENGINES["unsloth"], *FOR_TRAINERS),
}
OWN: dict[str, tuple[str, ...]] = {
    "huggingface": (
        "reentrant=true", "reentrant=false", "liger=true", "liger=rope+swiglu", "liger=fused_linear_cross_entropy",
        "prepare_kbit=peft", "prepare_kbit=norms", "prepare_kbit=none", "padded=true", "shifted_loss=true",
        "backward_prefetch=none", "reduce_bucket_size=50000000", "overlap_comm=false", "auto=false", "autocast=true",
        "accelerate=0.29", "torch=2.6",
    ),
    "deepspeed": ("reduce_bucket_size=50000000", "sub_group_size=1000000", "overlap_comm=false", "reentrant=true",
                  "grad_accum_dtype=fp32", "stage3_param_persistence_threshold=0"),
    "unsloth": ("reentrant=true",),
}
"""Options of the engines that some file says, or none."""

SETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "huggingface": (
        ("training_args.yaml",), ("training_args.yaml", "accelerate.yaml"), ("training_args.yaml", "ds_config.json"),
        ("llamafactory.yaml",), ("llamafactory.yaml", "ds_config.json"), ("llamafactory.yaml", "accelerate.yaml"),
    ),
    "deepspeed": (
        ("ds_config.json",), ("accelerate.yaml", "ds_config.json"), ("training_args.yaml", "ds_config.json"),
        ("training_args.yaml", "accelerate.yaml", "ds_config.json"), ("llamafactory.yaml", "ds_config.json"),
    ),
    "unsloth": (("llamafactory.yaml",),),
}
"""Engine -> files that are read together."""

INCOMPLETE = ("is a file of its own", "no samples of the planned length")
"""What a reader says of a file without those beside it."""


class Read(NamedTuple):
    """One set of files, read."""

    names: tuple[str, ...]
    job: Job


@st.composite
def plans(draw: st.DrawFn, engine: str) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(TRAINERS[engine]), max_size=6, unique=True))
    options = {name: draw(MORE[name]) for name in names if name != "engine_option"}
    if "engine_option" in names:
        options["engine_option"] = (draw(st.sampled_from(OWN[engine])),)
    if options.keys() & {"base_weights", "lora_rank", "lora_targets", "lora_dropout", "modules_to_save",
                         "adapter_dtype"}:
        options.setdefault("peft", "lora")
    if "sharded_by" in options:
        options.setdefault("zero", "3")
    gpus = "h100" if engine == "unsloth" else draw(st.sampled_from(["h100", "8xh100", "2x8xh100"]))
    model = draw(st.sampled_from(["llama-3.2-1b", "qwen3-0.6b", "olmoe-1b-7b", "gpt2"]))
    version = draw(st.sampled_from(["", "", "@4.57", "@4.30"])) if engine == "huggingface" else ""
    return {"model": model, "gpus": gpus, "engine": engine + version} | named(options)


def supplied(job: Job, options: Mapping[str, Any], said: Iterable[str]) -> dict[str, Any]:
    """Options for what files do not say."""
    full, said = train_options(job, options, model=options["model"]), set(said)
    found = {"model": options["model"], "gpus": options["gpus"]}
    found |= {"engine": options["engine"]} if "@" in options["engine"] else {}  # which no file says
    for name, option in OPTIONS.items():
        field = {"peft": f"peft.{option.field}"}.get(option.section, option.field)
        if name in full and option.section in ("workload", "plan", "peft") and field not in said and name != "zero":
            found[name] = full[name]
    if any(OPTIONS[name].section == "peft" for name in found if name in OPTIONS):
        found["peft"] = full["peft"]
    pairs = tuple(pair for pair in full.get("engine-option", ()) if f"option.{pair.partition('=')[0]}" not in said)
    found |= {"engine-option": pairs} if pairs else {}
    return found | ({"alloc-conf": job.alloc_conf} if job.alloc_conf and "alloc_conf" not in said else {})


def plain(job: Job) -> dict[str, Any]:
    """A job's settings, those that are other words for the same as one of them."""
    found = {name: value for name, value in settings_of(job).items() if not name.startswith("option.")}
    found |= {"engine": job.engine, "model": job.model, "cluster": job.cluster}
    found["peft.targets"] = frozenset(found.get("peft.targets", ()))
    usual = "compiled" if job.plan.compile else "eager"
    loss = with_its_loss(job).plan.loss
    found["loss"] = None if loss == usual else loss
    found["objective"] = found["objective"].replace("pretrain", "sft")  # the next token, of whatever text
    found["optimizer"] = optimizer(found["optimizer"])
    found["offload_optimizer"], found["offload_parameters"] = offload_of(job)
    if runs_deepspeed(job):  # under the Trainer or without, its own step, 16-bit weights with or without autocast
        found.pop("peft.adapter_dtype", None)  # cast with the rest
        shards = "optimizer" if found["shards"] == "nothing" else found["shards"]
        precision = found["precision"].replace("amp-", "mixed-")
        return found | {"engine": "deepspeed", "sharded_by": None, "optimizer_kernel": None, "shards": shards,
                        "precision": precision}
    if sharder(job) in ("fsdp1", "fsdp2"):  # weights that stay gathered are all that sharding less than all means
        found["reshard_after_forward"] = found["reshard_after_forward"] and found["shards"] == "everything"
        found["shards"] = "everything"
        if job.engine == "huggingface":  # what is asked to compute in 16 bits learns in fp32 either way
            found["precision"] = found["precision"].replace("amp-", "mixed-")
    kernel = optimizer_kernel(job) if job.plan.optimizer == "adamw" else None
    return found | {"sharded_by": sharder(job), "optimizer_kernel": kernel}


def figures(job: Job) -> tuple[Any, ...]:
    found = answer(job, with_changes=False)
    return tuple(rank.needed_bytes for rank in found.ranks), found.time and found.time.step_s, found.host


def read_again(
    job: Job, options: Mapping[str, Any], sets: Iterable[tuple[str, ...]], *, formats: tuple[str, ...] = ()
) -> Iterable[Read]:
    """The job that each set of its files gives, with what they do not say."""
    files: dict[str, File] = {file.name: file for file in files_of(job, formats)[0]}
    with tempfile.TemporaryDirectory() as folder:
        write_all(files, Path(folder))
        for names in sets:
            if not all(name in files for name in names):
                continue
            said = frozenset().union(*(files[name].said for name in names))
            given = supplied(job, options, said) | {"from": tuple(str(Path(folder) / name) for name in names)}
            try:
                yield Read(names, job_of(given))
            except VramcastError as refusal:
                if not any(text in str(refusal) for text in INCOMPLETE):
                    raise AssertionError(f"{names} of {options}: {refusal}") from refusal


@pytest.mark.parametrize("engine", TRAINERS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_files_of_a_training_plan_read_back_as_that_plan(engine: str, data: st.DataObject) -> None:
    options = data.draw(plans(engine))
    try:
        job = job_of(options)
        expected = figures(job)
    except VramcastError:
        assume(False)
    try:
        saying_all(job)
    except VramcastError as refusal:
        event(f"refused: {str(refusal)[:60]}")
        return
    for names, again in read_again(job, options, SETS[engine]):
        event(" ".join(names))
        assert plain(again) == plain(job), (names, options)
        assert figures(again) == expected, (names, options)


@pytest.mark.parametrize("by", ["fsdp1", "fsdp2", "deepspeed"])
@pytest.mark.parametrize(("shards", "precision"), [("everything", "bf16"), ("optimizer+gradients", "amp-bf16")])
@pytest.mark.parametrize("more", [
    {}, {"peft": "lora"}, {"peft": "lora", "base_weights": "nf4"}, {"offload_parameters": "cpu", "grad_accum": 4},
    {"reshard_after_forward": False, "recompute": "full"}, {"engine_option": ("autocast=true", "liger=true")},
])
def test_who_shards_reads_back(by: str, shards: str, precision: str, more: dict[str, Any]) -> None:
    asked = {"model": "llama-3.2-1b", "gpus": "8xh100", "engine": "huggingface", "sharded_by": by, "shards": shards}
    options = named(asked | {"precision": precision} | more)
    try:
        job = job_of(options)
        expected = figures(job)
    except VramcastError as refusal:
        pytest.skip(str(refusal))
    try:
        files_of(job)
    except VramcastError:
        return  # said, not written otherwise
    found = list(read_again(job, options, SETS["huggingface"]))
    assert found
    for names, again in found:
        assert plain(again) == plain(job), names
        assert figures(again) == expected, names
