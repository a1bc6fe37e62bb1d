"""Megatron-LM command lines as jobs: arguments -> model, workload, plan, engine options."""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import read_entry
from vramcast.domain.job import Job, Plan, Precision, Recompute, Shards
from vramcast.domain.model import (
    MoE,
    Norm,
)
from vramcast.engines.megatron.chunk import stage_layers
from vramcast.engines.megatron.options import Context, Options
from vramcast.errors import Unsupported
from vramcast.formats.files import Order
from vramcast.formats.lines import Line, Table, when
from vramcast.formats.table import Row, Switch, lines_of, read_values

Arguments = dict[str, Any]

GPT2_VOCAB: Final = 50257
BERT_UNCASED_VOCAB: Final = 30522
BERT_CASED_VOCAB: Final = 28996
NEMOTRON_VOCAB: Final = 256000
LLAMA2_VOCAB: Final = 32000

BY_TOKENIZER: Final = {
    "GPT2BPETokenizer": GPT2_VOCAB, "Llama2Tokenizer": LLAMA2_VOCAB, "BertWordPieceLowerCase": BERT_UNCASED_VOCAB,
    "BertWordPieceCase": BERT_CASED_VOCAB,
}
"""Tokenizers whose name says their vocabulary."""

BY_FILE: Final = {
    "nemotron_2_256k": NEMOTRON_VOCAB, "llama_tokenizer.model": LLAMA2_VOCAB, "bigcode/starcoder2-tokenizer": 49152,
    "nvidia/Nemotron-H-": 131072,
}
"""Names of tokenizers' own files and repositories [NVIDIA/NeMo-Framework-Launcher launcher_scripts/conf/training/llama,
starcoder2]."""

DEFAULT_TOKENIZERS: Final = {
    "gpt": "GPT2BPETokenizer", "hybrid": "GPT2BPETokenizer", "bert": "BertWordPieceLowerCase",
    "t5": "BertWordPieceLowerCase",
}
"""Those of the entry scripts [pretrain_gpt.py, pretrain_hybrid.py, examples/bert/pretrain_bert.py `args_defaults`]."""

ROTARY: Final = ("rope", "mrope", "yarn")


DEGREES: Final = (
    Row("tp", "tensor-model-parallel-size", 1, "ranks that divide every layer"),
    Row("pp", "pipeline-model-parallel-size", 1, "stages, one after the other"),
    Row("cp", "context-parallel-size", 1, "ranks that divide every sequence"),
)
DEGREES_OF_EXPERTS: Final = (
    Row("ep", "expert-model-parallel-size", 1, "ranks that divide the experts"),
    Row("etp", "expert-tensor-parallel-size", None, "ranks that divide one expert"),
)
ENDS: Final = (
    Row("first_stage_layers", "decoder-first-pipeline-num-layers", None, "layers of the first stage"),
    Row("last_stage_layers", "decoder-last-pipeline-num-layers", None, "layers of the last stage"),
)

STRATEGIES: Final = {
    "no_shard": Shards.NOTHING, "optim": Shards.OPTIMIZER, "optim_grads": Shards.OPTIMIZER_AND_GRADIENTS,
    "optim_grads_params": Shards.EVERYTHING,
}
"""What `--data-parallel-sharding-strategy` splits."""

SWITCHES: Final = (
    Switch("deterministic", True, "deterministic-mode"),
    Switch("gradient_accumulation_fusion", False, "no-gradient-accumulation-fusion"),
    Switch("bias_gelu_fusion", False, "no-bias-gelu-fusion"),
    Switch("bias_swiglu_fusion", False, "no-bias-swiglu-fusion"),
    Switch("bias_dropout_fusion", False, "no-bias-dropout-fusion"),
    Switch("rope_fusion", False, "no-rope-fusion"),
    Switch("masked_softmax_fusion", False, "no-masked-softmax-fusion"),
    Switch("attention_mask", False, "no-create-attention-mask-in-dataloader"),
    Switch("overlap_p2p_warmup_flush", True, "overlap-p2p-communication-warmup-flush"),
    Switch("accumulate_in_fp32", False, "grad-reduce-in-bf16"),
    Switch("overlap_grad_reduce", True, "overlap-grad-reduce"),
    Switch("overlap_param_gather", True, "overlap-param-gather"),
    Switch("tp_comm_overlap", True, "tp-comm-overlap"),
    Switch("count_zeros", True, "log-num-zeros-in-grad"),
    Switch("overlap_moe_comm", True, "overlap-moe-expert-parallel-comm"),
    Switch("param_layout", False, "no-use-layer-wise-param-layout"),
    Switch("mtp_shared", True, "mtp-use-repeated-layer"),
)
SWITCHES_OF_EXPERTS: Final = (
    Switch("grouped_gemm", True, "moe-grouped-gemm"),
    Switch("permute_fusion", True, "moe-permute-fusion"),
    Switch("shared_expert_overlap", True, "moe-shared-expert-overlap"),
)
"""Options of the engine."""

UNTOLD: Final = ("accumulate_in_fp32", "shared_expert_overlap")
"""Those whose absence leaves the choice to the engine."""

LAST: Final = (
    "defer_embedding_wgrad", "cross_entropy", "precision_aware", "moments", "main_params",
    "shared_expert_overlap", "clip_grad", "accumulate_in_fp32", "capacity_factor",
)
"""Options of the engine that are said behind the others, in this order."""

IMPLEMENTATION: Final = Row("transformer_impl", "transformer-impl", "transformer_engine", "whose layers run")
VALUES: Final = (
    Row("attention_backend", "attention-backend", "auto", "whose attention runs"),
    Row("vocab_divisor", "make-vocab-size-divisible-by", 128,
          "the vocabulary is padded to a multiple of it x tp"),
    Row("optimizer", "optimizer", "adam", "as planned"),
)
"""Options of the engine that are always written."""
DISPATCHER: Final = Row("dispatcher", "moe-token-dispatcher-type", "allgather", "how tokens reach their experts")
RECOMPUTE_METHOD: Final = Row("recompute_method", "recompute-method", "block")
FP8_RECIPE: Final = Row("fp8_recipe", "fp8-recipe", "")
IN_BF16: Final = (
    Row("bf16_at_start", "num-layers-at-start-in-bf16", 1), Row("bf16_at_end", "num-layers-at-end-in-bf16", 1),
)
"""Layers beside those in fp8, where --first-last-layers-bf16 is given."""
MAIN: Final = Row("main_params", "main-params-dtype", "fp32", "weights that the optimizer steps")
FRACTION: Final = Row("offload_fraction", "optimizer-offload-fraction", 1.0, "of them")
INSTANCES: Final = Row("optimizer_instances", "num-distributed-optimizer-instances", 1, "copies of the states")
INTERLEAVED: Final = Row("interleave_group", "microbatch-group-size-per-virtual-pipeline-stage", 0)

NORMS: Final = {Norm.RMS: "RMSNorm", Norm.LAYER: "LayerNorm"}

LATENT_ATTENTION: Final = (
    Row("q_lora_rank", "q-lora-rank"),
    Row("kv_lora_rank", "kv-lora-rank", 32),
    Row("qk_nope_dim", "qk-head-dim", 128),
    Row("qk_rope_dim", "qk-pos-emb-head-dim", 64),
    Row("v_head_dim", "v-head-dim", 128),
)
MAMBA: Final = (
    Row("state_dim", "mamba-state-dim", 128),
    Row("num_heads", "mamba-num-heads"),
    Row("head_dim", "mamba-head-dim", 64),
    Row("num_groups", "mamba-num-groups", 8),
)
DELTA_NET: Final = (
    Row("conv_kernel", "linear-conv-kernel-dim", 4),
    Row("num_k_heads", "linear-num-key-heads", 16),
    Row("num_v_heads", "linear-num-value-heads", 32),
    Row("k_head_dim", "linear-key-head-dim", 128),
    Row("v_head_dim", "linear-value-head-dim", 128),
)
TOP_K: Final = Row("top_k", "moe-router-topk", 2, "experts of a token")
EXPERTS: Final = (
    Row("shared_width", "moe-shared-expert-intermediate-size", 0, "experts that every token visits"),
    Row("shared_gate", "moe-shared-expert-gate", False),
    Row("score_bias", "moe-router-enable-expert-bias", False),
)
LATENT_EXPERTS: Final = Row("latent_width", "moe-latent-size", 0)

REFUSED: Final = {
    "--flextron": "elastic (Flextron) training is not modelled",
    "--img-h": "multimodal Megatron models are not modelled",
    "--use-transformer-engine-op-fuser": "TransformerEngine's op fuser is not modelled",
}


def first_batch(arguments: Arguments) -> int | None:
    """Samples of a step once a schedule of batches is at its end."""
    schedule = arguments.get("--step-batch-size-schedule")
    steps = schedule if isinstance(schedule, list) else str(schedule or "").split()
    return int(str(steps[-1]).split(":")[-1]) if steps else None


def _precision(arguments: Arguments) -> Precision:
    beside = arguments.get("--bf16"), arguments.get("--fp16")
    if arguments.get("--fp8-format"):
        return Precision.FP8
    if beside[1]:
        return Precision.MIXED_FP16
    return Precision.MIXED_BF16 if beside[0] else Precision.FP32


def plan_of(arguments: Arguments) -> Plan:
    """Degrees, sharding, precision and recomputation."""
    pp = int(arguments.get("--pipeline-model-parallel-size", 1))
    granularity = arguments.get("--recompute-granularity")
    if arguments.get("--recompute-activations"):
        granularity = granularity or "selective"  # the older name
    modules = tuple(arguments.get("--recompute-modules") or ())
    layers = arguments.get("--recompute-num-layers")
    if granularity == "full" and layers == 0:
        granularity = None
    sharded = bool(arguments.get("--use-distributed-optimizer"))
    shards = Shards.OPTIMIZER if sharded else Shards.NOTHING
    if arguments.get("--use-megatron-fsdp"):
        shards = STRATEGIES[arguments.get("--data-parallel-sharding-strategy", "no_shard")]
    chunks = _virtual_stages(arguments, pp)
    return Plan(
        **read_values((*DEGREES, *DEGREES_OF_EXPERTS, *ENDS), arguments),
        virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        sequence_parallel=bool(arguments.get("--sequence-parallel")),
        shards=shards,
        precision=_precision(arguments),
        recompute=Recompute(granularity) if granularity else Recompute.NONE,
        recompute_layers=layers if granularity == "full" and arguments.get("--recompute-method") == "block" else None,
        recompute_modules=modules if granularity == "selective" else (),
        offload_optimizer="cpu" if arguments.get("--optimizer-cpu-offload") else "none",
        offload_activations=bool(arguments.get("--fine-grained-activation-offloading")),
    )


def _virtual_stages(arguments: Arguments, pp: int) -> int:
    if pp == 1:
        return 1
    if count := arguments.get("--num-virtual-stages-per-pipeline-rank"):
        return int(count)
    if layout := arguments.get("--pipeline-model-parallel-layout"):
        return len(_layout_stages(layout)) // pp
    if pattern := arguments.get("--hybrid-layer-pattern"):
        return max(1, len(str(pattern).split("/")[0].split("|")) // pp)
    if per_stage := arguments.get("--num-layers-per-virtual-pipeline-stage"):
        return int(arguments["--num-layers"]) // pp // int(per_stage)
    return 1


def _layout_stages(layout: str) -> list[str]:
    """'Et*2|(tt|)*5t|tmL' as one string of layer letters per stage."""
    text = layout.replace(",", "")
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"(\w)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def _stage_layers(arguments: Arguments) -> str:
    pp = int(arguments.get("--pipeline-model-parallel-size", 1))
    if pp == 1:
        return ""
    if layout := arguments.get("--pipeline-model-parallel-layout"):
        return ",".join(str(stage.count("t")) for stage in _layout_stages(layout))
    pattern = str(arguments.get("--hybrid-layer-pattern", "")).split("/")[0]
    if "|" in pattern:
        return ",".join(str(len(stage)) for stage in pattern.split("|"))
    ends = (arguments.get("--account-for-embedding-in-pipeline-split"),
            arguments.get("--account-for-loss-in-pipeline-split"))
    if not any(ends) or "--num-layers" not in arguments:
        return ""
    stages = pp * _virtual_stages(arguments, pp)
    each = (int(arguments["--num-layers"]) + sum(map(bool, ends))) // stages
    counts = [each] * stages
    counts[0] -= bool(ends[0])
    counts[-1] -= bool(ends[1])
    return ",".join(map(str, counts))


def engine_options_of(arguments: Arguments, family: str) -> dict[str, str | int | float | bool]:
    """`engine_options` of the engine `megatron`."""
    found: dict[str, str | int | float | bool] = {
        "transformer_impl": _implementation(arguments),
        **read_values((*VALUES, DISPATCHER, RECOMPUTE_METHOD, FP8_RECIPE, INSTANCES, INTERLEAVED), arguments),
        "stage_layers": _stage_layers(arguments),
        "fsdp": bool(arguments.get("--use-megatron-fsdp")),
        "fp8_param_gather": bool(arguments.get("--fp8-param-gather")),
        "router_fp32": arguments.get("--moe-router-dtype") == "fp32",
        "sinkhorn": arguments.get("--moe-router-load-balancing-type") == "sinkhorn",
        "cuda_graphs": arguments.get("--cuda-graph-impl", "none") != "none",
        "binary_head": not arguments.get("--bert-no-binary-head"),
        "cp_a2a": str(arguments.get("--cp-comm-type")).startswith("a2a"),  # "a2a+p2p": within groups of a ring
        "defer_embedding_wgrad": int(arguments.get("--wgrad-deferral-limit", 0))
        if arguments.get("--defer-embedding-wgrad-compute") else 0,
    }
    if family not in ("bert", "t5", "hybrid") and not found["fsdp"]:
        found["mtp_layers"] = int(arguments.get("--mtp-num-layers") or 0)
    elif family == "hybrid" and not found["fsdp"]:
        found["mtp_layers"] = str(arguments.get("--hybrid-layer-pattern", "")).count("/")
    for switch in (*SWITCHES, *SWITCHES_OF_EXPERTS):
        there = bool(arguments.get(f"--{switch.name}"))
        if there or switch.field not in UNTOLD:
            found[switch.field] = there is switch.value
    if arguments.get("--accumulate-allreduce-grads-in-fp32"):
        found["accumulate_in_fp32"] = True
    if arguments.get("--cross-entropy-loss-fusion"):
        found["cross_entropy"] = arguments.get("--cross-entropy-fusion-impl", "native")
    in_bf16 = read_values(IN_BF16, arguments)
    if arguments.get("--first-last-layers-bf16") and arguments.get("--fp8-format"):
        found |= in_bf16
    if arguments.get("--use-precision-aware-optimizer"):
        found |= {"precision_aware": True, "moments": arguments.get("--exp-avg-dtype", "fp32"),
                  **read_values((MAIN,), arguments)}
    fraction = FRACTION.of(arguments)
    if arguments.get("--optimizer-cpu-offload"):
        found["offload_fraction"] = float(fraction)
    if float(arguments.get("--clip-grad", 1.0)) == 0:
        found["clip_grad"] = False
    if (factor := arguments.get("--moe-expert-capacity-factor")) is not None:
        found["capacity_factor"] = float(factor)
    first = (name for name in Options.__struct_fields__ if name not in LAST)
    return {name: found[name] for name in (*first, *LAST) if name in found}


def _implementation(arguments: Arguments) -> str:
    if arguments.get("--spec") == ["local"] or arguments.get("--spec") == "local":
        return "local"
    return str(IMPLEMENTATION.of(arguments))


def vocabulary_of(tokenizer: str) -> int:
    """Words of a tokenizer that is named by the repository of its model, or by its own file; 0: not known."""
    if found := next((size for name, size in BY_FILE.items() if name in tokenizer), 0):
        return found
    name = MODELS.aliases.get(tokenizer.lower())
    size = read_entry(name).config.get("vocab_size") if name is not None else None
    return size if isinstance(size, int) else 0


def count_vocabulary(arguments: Arguments, family: str) -> int:
    """Words of the vocabulary, before it is padded."""
    tokenizer, size = arguments.get("--tokenizer-type"), arguments.get("--vocab-size")
    padded = arguments.get("--padded-vocab-size")
    if (known := padded if size is None else size) is not None:
        return int(known)
    if known := vocabulary_of(str(arguments.get("--tokenizer-model", ""))):
        return known
    if family == "bert":
        return BERT_UNCASED_VOCAB
    if family == "t5":
        return BERT_UNCASED_VOCAB + int(arguments.get("--vocab-extra-ids", 0))
    if str(tokenizer).startswith("${"):
        raise Unsupported("the tokenizer is named by an environment variable that is not given")
    return {"GPTSentencePieceTokenizer": NEMOTRON_VOCAB, **BY_TOKENIZER}.get(str(tokenizer), GPT2_VOCAB)


def optimizer_arguments(order: Order, options: Options) -> Table:
    ask = order.ask
    ask.also("optimizer")
    device = ask("offload_optimizer")
    if device == "nvme":
        raise Unsupported("Megatron offloads optimizer states to the host only; use --offload-optimizer cpu")
    return (
        *when(options.precision_aware or device == "cpu",
              Line("use-precision-aware-optimizer", True, "states in the dtypes named here"),
              Line("exp-avg-dtype", options.moments), Line("exp-avg-sq-dtype", options.moments),
              *lines_of((MAIN,), options)),
        *when(device == "cpu", Line("optimizer-cpu-offload", True, "states wait on the host"),
              *lines_of((FRACTION,), options)),
        *when(options.optimizer == "sgd", Line("sgd-momentum", 0.9)),
        *when(not options.clip_grad, Line("clip-grad", 0.0, "no norm of the gradients is taken")),
    )


def recompute_arguments(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    kind, layers, modules = Recompute(ask("recompute")), ask("recompute_layers"), ask("recompute_modules")
    if kind is Recompute.NONE:
        return ()
    if kind is Recompute.SELECTIVE:
        return (
            Line("recompute-granularity", "selective", "cheap parts run again in backward"),
            Line("recompute-modules", list(modules or ("core_attn",)), "the parts"),
        )
    whole = 1 if options.recompute_method == "uniform" else max(stage_layers(Context(job)))
    return (
        Line("recompute-granularity", "full", "layers keep only their input"),
        *lines_of((RECOMPUTE_METHOD,), options),
        Line("recompute-num-layers", whole if layers is None else layers,
             "layers of a stage" if options.recompute_method == "block" else "layers of a unit"),
    )


def expert_arguments(job: Job, options: Options) -> Table:
    if not any(isinstance(run.layer.channel, MoE) for run in job.model.main.runs):
        return ()
    return (
        *lines_of((DISPATCHER,), options), *_switches(SWITCHES_OF_EXPERTS, options),
        *when(options.router_fp32, Line("moe-router-dtype", "fp32")),
        *when(options.sinkhorn, Line("moe-router-load-balancing-type", "sinkhorn")),
        *when(options.capacity_factor is not None,
              Line("moe-expert-capacity-factor", options.capacity_factor, "tokens beyond it are dropped")),
    )


def _switches(table: tuple[Switch, ...], options: Options) -> Table:
    return tuple(Line(name, True) for field, value, name in table if getattr(options, field) is value)


def option_arguments(options: Options) -> Table:
    if options.cross_entropy == "te":
        raise Unsupported(
            "Megatron-LM has switched off TransformerEngine's fused cross entropy; use --engine-option "
            "cross_entropy=native, or --loss eager"
        )
    return (
        *_switches(SWITCHES, options), *lines_of((IMPLEMENTATION, *VALUES), options),
        *when(options.cross_entropy != "unfused", Line("cross-entropy-loss-fusion", True),
              Line("cross-entropy-fusion-impl", options.cross_entropy)),
        *when(options.defer_embedding_wgrad, Line("defer-embedding-wgrad-compute", True),
              Line("wgrad-deferral-limit", options.defer_embedding_wgrad)),
    )
