"""A plan as torchtune's recipe: its YAML, and the `tune run` that starts it.

[torchtune] meta-pytorch/torchtune 0.7 torchtune/_recipe_registry.py, torchtune/_cli/run.py, recipes/configs/**.yaml
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.job import Job, Loss, Peft, Precision, Recompute, Shards
from vramcast.errors import Unsupported
from vramcast.formats.files import PLACEHOLDER, File, Order, hub_id
from vramcast.formats.launch import RUN, head_of, run_script
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.reading import written
from vramcast.formats.table import Refusal, Row, refuse
from vramcast.formats.tools.deepspeed import LEARNING_RATE
from vramcast.formats.tools.torchtune import ATTENTION, CHUNKED, HEAD, MLP, MODELS, OPTIMIZERS, PLAIN, ROW

NAME: Final = "torchtune.yaml"

BUILDERS: Final = written(MODELS) | {"mistral-7b-v0.1": "mistral_7b"}
"""Our name -> what builds it."""

CLASSES: Final = written(OPTIMIZERS)

DISTRIBUTED: Final = (
    'tune run --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$GPUS_PER_NODE" \\\n'
    '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\\n'
)


class Family(NamedTuple):
    """Where torchtune has a network, and how its checkpoint and its tokenizer are read."""

    module: str  # of torchtune.models
    kind: str  # of the checkpoint
    tokenizer: str
    files: tuple[tuple[str, str], ...] = (("path", "tokenizer.model"),)


_VOCABULARY: Final = (("path", "vocab.json"), ("merges_file", "merges.txt"))
_ORIGINAL: Final = (("path", "original/tokenizer.model"),)

FAMILIES: Final[dict[str, Family]] = {
    "gemma_": Family("gemma", "GEMMA", "gemma.gemma_tokenizer"),
    "gemma2_": Family("gemma2", "GEMMA2", "gemma.gemma_tokenizer"),
    "code_llama2_": Family("code_llama2", "LLAMA2", "llama2.llama2_tokenizer"),
    "llama2_": Family("llama2", "LLAMA2", "llama2.llama2_tokenizer"),
    "llama3_1_": Family("llama3_1", "LLAMA3", "llama3.llama3_tokenizer", _ORIGINAL),
    "llama3_2_": Family("llama3_2", "LLAMA3_2", "llama3.llama3_tokenizer", _ORIGINAL),
    "llama3_3_": Family("llama3_3", "LLAMA3", "llama3.llama3_tokenizer", _ORIGINAL),
    "llama3_": Family("llama3", "LLAMA3", "llama3.llama3_tokenizer", _ORIGINAL),
    "mistral_": Family("mistral", "MISTRAL", "mistral.mistral_tokenizer"),
    "phi3_": Family("phi3", "PHI3_MINI", "phi3.phi3_mini_tokenizer"),
    "phi4_": Family(
        "phi4", "PHI4", "phi4.phi4_tokenizer", (("vocab_path", "vocab.json"), ("merges_path", "merges.txt"))),
    "qwen2_5_": Family("qwen2_5", "QWEN2", "qwen2_5.qwen2_5_tokenizer", _VOCABULARY),
    "qwen2_": Family("qwen2", "QWEN2", "qwen2.qwen2_tokenizer", _VOCABULARY),
    "qwen3_": Family("qwen3", "QWEN3", "qwen3.qwen3_tokenizer", _VOCABULARY),
}
"""Beginning of a builder's name -> its family; longer beginnings come first."""

OF_BASES: Final = ("qwen2_5_1_5b", "qwen2_5_7b", "qwen2_5_14b", "qwen2_5_32b", "qwen2_5_72b", "qwen3_0_6b",
                   "qwen3_1_7b", "qwen3_4b", "qwen3_8b", "qwen3_14b")
"""Builders that come as _base and as _instruct."""

REST: Final = (
    Line("device", "cuda"),
    Line("metric_logger", (Line("_component_", "torchtune.training.metric_logging.StdoutLogger"),)),
    Line("log_every_n_steps", 1), Line("log_peak_memory_stats", True), Line("log_level", "INFO"),
)

REFUSALS: Final = (
    Refusal(lambda job: job.plan.pp * job.plan.ep > 1,
            "torchtune has no pipeline and no expert parallelism; use pp=ep=1"),
    Refusal(lambda job: job.data_parallel > 1 and job.plan.shards is not Shards.EVERYTHING,
            "torchtune shards everything, not {plan.shards}; use --shards everything"),
    Refusal(lambda job: job.plan.recompute is Recompute.SELECTIVE,
            "torchtune recomputes whole layers only; use --recompute full"),
    Refusal(lambda job: job.plan.precision not in (Precision.BF16, Precision.MIXED_BF16, Precision.FP32),
            "torchtune trains in bf16 or fp32, not in {plan.precision}; use --precision bf16"),
    Refusal(lambda job: job.workload.objective not in ("pretrain", "sft"),
            "torchtune's recipe is written for pretrain and sft, not for {workload.objective}"),
    Refusal(lambda job: job.engine_version is not None and job.engine_version < (0, 3),
            "recipes of torchtune before 0.3 are not written; use --engine torchtune@0.3 or later"),
    Refusal(lambda job: (job.plan.offload_optimizer == "cpu") != (job.plan.offload_parameters == "cpu"),
            "torchtune offloads weights, gradients and states together; use both --offload-optimizer cpu and "
            "--offload-parameters cpu"),
)


def write(order: Order) -> tuple[File, ...]:
    """The recipe's configuration, and the command that runs it.

    Raises: Unsupported for networks and settings that torchtune does not have
    """
    job: Job = order.job
    refuse(REFUSALS, job)
    several = job.cluster.count > 1
    recipe = ("lora" if job.plan.peft else "full") + "_finetune_" + ("distributed" if several else "single_device")
    table = (*_network(order), *_data(order), *_loss(order), *_optimizer(order), *_memory(order), *_sharding(order),
             *REST)
    order.ask.also("attention", "objective")
    text = yaml_text(table, head=head_of(order, f"tune run {recipe} --config {NAME}"))
    program = f"{recipe} --config {NAME}"
    script = run_script(order, program, starter=DISTRIBUTED if several else "tune run \\\n")
    return order.file(NAME, text), order.file(RUN, script, executable=True)


def _network(order: Order) -> Table:
    job: Job = order.job
    builder = BUILDERS.get(job.model.name.lower())
    family = next((found for start, found in FAMILIES.items() if (builder or "").startswith(start)), None)
    if builder is None or family is None or "vision" in builder:
        raise Unsupported(
            "torchtune's recipe is not written for {}; use llama-3.1-8b, qwen3-8b, gemma-2-9b and their kin",
            job.model.name
        )
    builder += "_instruct" if builder in OF_BASES else ""
    folder = f"checkpoints/{hub_id(job.model).rpartition('/')[2]}"
    return (
        Line("output_dir", "output"),
        Line("model", _model(order, f"torchtune.models.{family.module}.", builder)),
        Line("tokenizer", (
            Line("_component_", f"torchtune.models.{family.tokenizer}"),
            *(Line(name, f"{folder}/{file}") for name, file in family.files),
            Line("max_seq_len", order.ask("seq_len"), "positions of a sample"),
        )),
        Line("checkpointer", (
            Line("_component_", "torchtune.training.FullModelHFCheckpointer"),
            Line("checkpoint_dir", folder, f"tune download {hub_id(job.model)} --output-dir {folder}"),
            Line("checkpoint_files", [PLACEHOLDER], "the weights' files in that folder"),
            Line("recipe_checkpoint", None),
            Line("output_dir", "output"),
            Line("model_type", family.kind),
        )),
        Line("resume_from_checkpoint", False),
    )


def _model(order: Order, module: str, builder: str) -> Table:
    ask, peft = order.ask, order.job.plan.peft
    if peft is None:
        return (Line("_component_", module + builder),)
    if ask("peft.method") not in ("lora", "dora"):
        raise Unsupported("torchtune has no {}; use lora or dora", peft.method)
    _check_adapters(order, peft)
    words = set(ask("peft.targets"))
    given = {word: name for name, word in ATTENTION.items()}
    rank = ask("peft.rank")
    lines = [
        Line("_component_", f"{module}{'qlora' if peft.base == 'nf4-dq' else 'lora'}_{builder}"),
        Line("lora_attn_modules", [name for word, name in given.items() if word in words], "the adapted matrices"),
        Line("apply_lora_to_mlp", words >= set(MLP)),
        *([Line("apply_lora_to_output", True)] if HEAD in words else []),
        Line("lora_rank", rank),
        Line("lora_alpha", 2 * rank, "not part of the plan"),
        Line("lora_dropout", ask("peft.dropout")),
    ]
    return (*lines, *([Line("use_dora", True, "direction and magnitude apart")] if peft.method == "dora" else []))


def _check_adapters(order: Order, peft: Peft) -> None:
    """Raise Unsupported for adapters that no builder makes."""
    ask, known = order.ask, {*ATTENTION.values(), *MLP, HEAD}
    words = set(peft.targets)
    if words - known or words & set(MLP) not in (set(), set(MLP)):
        raise Unsupported(
            "torchtune adapts matrices of attention, all of an MLP or the head, not {}; use "
            "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", ",".join(peft.targets)
        )
    if ask("peft.base") not in ("full", "nf4-dq"):
        raise Unsupported("torchtune packs frozen weights as nf4-dq, not as {}; use --base-weights nf4-dq", peft.base)
    width = "fp32" if order.job.plan.precision is Precision.FP32 else "bf16"
    if ask("peft.adapter_dtype") != width:
        raise Unsupported(
            "torchtune's adapters are {} as the model is, not {}; use --adapter-dtype {}",
            width, peft.adapter_dtype, width
        )


def _data(order: Order) -> Table:
    return (
        Line("dataset", (Line("_component_", "torchtune.datasets.alpaca_cleaned_dataset", "name your own"),
                         Line("packed", True, "samples of the planned length"))),
        Line("seed", None), Line("shuffle", True),
        ROW["micro_batch"].line(order.ask("micro_batch")), ROW["grad_accum"].line(order.ask("grad_accum")),
        Line("epochs", 1), Line("max_steps_per_epoch", None),
    )


def _loss(order: Order) -> Table:
    job: Job = order.job
    asked, before = order.ask("loss"), job.engine_version is not None and job.engine_version < (0, 7)
    if asked is None or asked == Loss.CHUNKED:
        order.ask.also("loss")
        name = f"torchtune.modules.loss.{CHUNKED if before else 'LinearCrossEntropyLoss'}"
        return (Line("loss", (Line("_component_", name, "the head's output exists chunk by chunk"),)),)
    if asked == Loss.EAGER:
        return (Line("loss", (Line("_component_", f"torch.nn.{PLAIN}", "all logits exist at once"),)),)
    raise Unsupported("torchtune has no {} loss; use --loss chunked or eager", asked)


def _optimizer(order: Order) -> Table:
    name, kernel = order.ask("optimizer"), order.ask("optimizer_kernel") or "fused"
    if name not in CLASSES:
        raise Unsupported("torchtune's recipe is not written with {}; use {}", name, ", ".join(CLASSES))
    lines = [Line("_component_", CLASSES[name]), Line("lr", LEARNING_RATE, "not part of the plan")]
    if CLASSES[name].startswith("torch."):
        lines += [Line("fused", True)] if kernel == "fused" else [Line("foreach", kernel == "foreach")]
    schedule = (Line("_component_", "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"),
                Line("num_warmup_steps", 100))
    return (Line("optimizer", tuple(lines)), *([Line("lr_scheduler", schedule)] if order.job.plan.peft else []),
            Line("optimizer_in_bwd", False), Line("clip_grad_norm", None))


def _memory(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    row: Row = ROW["recompute"]
    return (
        Line("dtype", "fp32" if ask("precision") == Precision.FP32 else "bf16", ROW["precision"].why),
        Line(row.name, ask("recompute") == Recompute.FULL, f"recompute: {plan.recompute}"),
        ROW["offload_activations"].line(ask("offload_activations")),
        ROW["compile"].line(ask("compile"), "the blocks and the loss"),
    )


def _sharding(order: Order) -> Table:
    ask, job = order.ask, order.job
    ask.also("sequence_parallel", "cp_kind", "shards")
    if job.cluster.count == 1:
        return ()
    ranks, cp, group = job.data_parallel, ask("cp"), ask("shard_group") or job.data_parallel * job.plan.cp
    if group % cp or (ranks * cp) % group:
        raise Unsupported("shard-group={} must be a multiple of cp={} that divides {} ranks", group, cp, ranks * cp)
    lines = [ROW["tp"].line(ask("tp")), ROW["cp"].line(cp)]
    if group < ranks * cp:
        lines += [Line("data_parallel_shard_dim", group // cp, "ranks that share one copy"),
                  Line("data_parallel_replicate_dim", ranks * cp // group, "copies")]
    if ask("tp") > 1:
        lines.append(Line("tensor_parallel_plan", (
            Line("_component_", "torchtune.models.llama3.base_llama_tp_plan", "what each rank has of a layer"),)))
    if not ask("reshard_after_forward"):
        lines.append(ROW["reshard_after_forward"].line(False))
    offload = (ask("offload_optimizer"), ask("offload_parameters")) == ("cpu", "cpu")
    lines.append(Line("fsdp_cpu_offload", offload))
    if ask("option.split_root"):
        lines.append(Line("custom_sharded_layers", ["tok_embeddings", "output"], "gathered apart from the rest"))
    return tuple(lines)
