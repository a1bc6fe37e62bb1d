"""torchtitan's registries: what one function says, what other lines of it change, what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.plans import named
from vramcast.api import job_of, train
from vramcast.domain.job import Job
from vramcast.errors import VramcastError

FILE = """
from torchtitan.trainer import Trainer
from . import model_registry

def whole() -> Trainer.Config:
    compile_config = CompileConfig(enable=True)
    model_spec = model_registry("8B")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))),
        hf_assets_path="./assets", model_spec=model_spec, optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=1000),
        dataloader=GrainDataLoader.Config(dataset=Packing(dataset=DATASETS["c4"])),
        parallelism=ParallelismConfig(tensor_parallel_degree=2, pipeline_parallel_schedule="Interleaved1F1B"),
        activation_checkpoint=FullAC.Config(), compile=compile_config, validator=Validator.Config(freq=500))

def changed() -> Trainer.Config:
    config = whole()
    config.compile = CompileConfig(enable=True, components=["loss"])
    config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.training.disable_cuda_graphs = True
    config.model_spec = model_registry("debugmodel", attn_backend="varlen", converters=[
        Float8LinearConverter.Config(model_compile_enabled=True)])
    return config

def chunks() -> Trainer.Config:
    config = whole()
    config.compile = CompileConfig(enable=True, components=["loss"])
    return config

def older() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("70B"), training=TrainingConfig(local_batch_size=4, seq_len=4096),
                          loss=CrossEntropyLoss.Config(), optimizer=default_adamw())

def other() -> FluxTrainer.Config:
    return FluxTrainer.Config(loss=MSELoss.Config())

def narrow() -> Trainer.Config:
    config = whole()
    config.model_spec = model_registry("8B", converters=[NVFP4LinearConverter.Config(fqns=["layers"])])
    return config

def odd() -> Trainer.Config:
    config = whole()
    for each in config.parts:
        each.wide = True
    return config

def unknown() -> Trainer.Config:
    config = whole()
    config.model_spec = model_registry("9B")
    config.optimizer = OptimizersContainer.Config(param_groups=[ParamGroupConfig(optimizer_name="Muon")])
    return config
"""


def asked(folder: Path, function: str, **options: Any) -> Job:
    folder = folder / "llama3"
    folder.mkdir()
    (folder / "config_registry.py").write_text(FILE, encoding="utf-8")
    question = {"gpus": "8xh100", "from": (str(folder / "config_registry.py"),), "args": function}
    return job_of(question | named(options))


@pytest.mark.parametrize(("function", "model", "plan", "workload", "graphs"), [
    ("whole", "llama-3.1-8b", {"tp": 2, "recompute": "full", "compile": True, "loss": "chunked", "optimizer": "adamw"},
     {"seq_len": 8192, "micro_batch": 2}, True),
    ("changed", "llama3-debugmodel", {"compile": False, "loss": "compiled"}, {"micro_batch": 2}, False),
    ("chunks", "llama-3.1-8b", {"compile": False, "loss": "chunked"}, {}, True),
    ("older", "llama-3.1-70b", {"recompute": "selective", "loss": "eager"}, {"seq_len": 4096, "micro_batch": 4}, None),
])
def test_a_function_says_what_it_and_later_lines_set(
    tmp_path: Path, function: str, model: str, plan: dict[str, Any], workload: dict[str, Any], graphs: bool | None
) -> None:
    job = asked(tmp_path, function)
    assert job.model.name == model
    assert {name: getattr(job.plan, name) for name in plan} == plan
    assert {name: getattr(job.workload, name) for name in workload} == workload
    assert job.engine_options.get("cuda_graphs") is graphs
    assert bool(job.engine_options.get("float8")) is (function == "changed")


@pytest.mark.parametrize(("function", "message"), [
    ("other", "is not made by Trainer.Config"), ("narrow", "model_spec.converters"),
    ("odd", "for each in config.parts"),
    ("unknown", "llama3 9B is no network known here"), ("unknown", "optimizer: is none of AdamW and Adam"),
    ("absent", "absent"), ("", "8 recipes stand in the file"),
])
def test_what_may_change_the_answer_is_named(tmp_path: Path, function: str, message: str) -> None:
    with pytest.raises(VramcastError, match=message):
        asked(tmp_path, function)


@pytest.mark.parametrize("more", [{"pp": 2}, {"offload_optimizer": "cpu"}])
def test_gradients_stay_where_a_graph_is_replayed(more: dict[str, Any]) -> None:
    question: dict[str, Any] = {"gpus": "8xh100", "engine": "torchtitan", "recompute": "none"}
    eager = train("llama-3.2-1b", **question).peak.allocated_bytes
    graph = question | {"engine_option": ("cuda_graphs=true",)}
    # 1.2 billion gradients in fp32 over eight ranks, of which the last layers' were there at the peak
    assert 400 << 20 < train("llama-3.2-1b", **graph).peak.allocated_bytes - eager < 600 << 20
    with pytest.raises(VramcastError, match="CUDA graphs are modelled without"):
        train("llama-3.2-1b", **graph | more)
