"""A plain PyTorch training script: autocast, recomputation, DDP or FSDP.

[FSDP1] torch.distributed.fsdp.FullyShardedDataParallel; [FSDP2] torch.distributed.fsdp.fully_shard
[SDPA] torch.nn.attention.sdpa_kernel
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards
from vramcast.engines.eager.releases import sharder
from vramcast.errors import Unsupported
from vramcast.formats.files import File, Order, hub_id
from vramcast.formats.launch import RUN, run_script
from vramcast.formats.python_parts import (
    BEFORE_LOSS,
    COMPUTE_DTYPES,
    LOSSES,
    WEIGHT_DTYPES,
    build_model_lines,
    constant,
    kernel_lines,
    optimizer_lines,
    stored_before,
)
from vramcast.formats.tools.deepspeed import LEARNING_RATE

SCRIPT: Final = "train.py"

LOSS_CHUNKS: Final = 8
"""Pieces of the chunked loss, as torchtitan has them [count]."""


def write(order: Order) -> tuple[File, ...]:
    """The script and the line that starts it.

    Raises: Unsupported for plans that PyTorch's own data parallelism does not run
    """
    _check(order)
    text = _script(order)
    run = run_script(order, SCRIPT)
    compile(text, SCRIPT, "exec")
    return order.file(SCRIPT, text, notes=stored_before(order, SCRIPT)), order.file(RUN, run, executable=True)


def _check(order: Order) -> None:
    job: Job = order.job
    plan = job.plan
    if plan.tp * plan.pp * plan.cp * plan.ep > 1:
        raise Unsupported("the PyTorch script splits over data-parallel ranks only; use tp=pp=cp=ep=1")
    if plan.shards is Shards.OPTIMIZER:
        raise Unsupported("PyTorch's FSDP2 does not shard {} only; use --shards everything", plan.shards)
    if plan.precision is Precision.FP8:
        raise Unsupported("the PyTorch script has no fp8; use --format torchtitan or megatron")
    if plan.recompute is Recompute.SELECTIVE:
        raise Unsupported("the PyTorch script recomputes whole layers; use --recompute full")
    if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
        raise Unsupported("PyTorch offloads to the host only; use --offload-optimizer cpu")
    if job.workload.objective not in ("pretrain", "sft"):
        raise Unsupported(
            "the PyTorch script optimises no {}; --format llamafactory writes dpo", job.workload.objective
        )


def fully_sharded(order: Order) -> bool:
    """Whether weights, gradients and states are split."""
    return bool(order.ask("shards") != Shards.NOTHING and order.job.cluster.count > 1)


def loss_of(order: Order) -> Loss:
    """What the plan computes the loss with, the engine's own where it does not say."""
    chosen = order.ask("loss")
    if chosen is not None:
        return Loss(chosen)
    if order.job.engine == "torchtitan":
        return Loss.CHUNKED
    return Loss.COMPILED if order.ask("compile") else Loss.EAGER


def _script(order: Order) -> str:
    ask, job = order.ask, order.job
    ask.also("objective")
    precision = Precision(ask("precision"))
    loss = loss_of(order)
    dtype = WEIGHT_DTYPES[precision]
    if job.plan.peft is not None:
        dtype = COMPUTE_DTYPES.get(precision, dtype)
    return TEXT.format(
        title=f"{job.model.name} on {job.cluster.name} with PyTorch alone",
        imports=_imports(order, loss),
        constants=_constants(order, precision, loss),
        build=build_model_lines(order, dtype=dtype),
        kernel=kernel_lines(order),
        spread=_spread(order, precision),
        optimizer=optimizer_lines(order),
        before_loss=BEFORE_LOSS.get(loss, ""),
        loss="\n".join(LOSSES[loss]),
        autocast=_autocast(order, precision),
        tf32='    torch.set_float32_matmul_precision("high")  # fp32 products run in TF32\n'
        if precision is Precision.TF32 else "",
        compiled="    model = torch.compile(model)  # as planned\n" if ask("compile") else "",
    )


def _imports(order: Order, loss: Loss) -> str:
    lines = ""
    if order.ask("attention") != AttentionKernel.EAGER:
        lines += "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
    return lines + ("from torch.utils.checkpoint import checkpoint\n" if loss is Loss.CHUNKED else "")


def _constants(order: Order, precision: Precision, loss: Loss) -> str:
    ask = order.ask
    rows = [
        constant("MODEL", hub_id(order.job.model), "the checkpoint"),
        constant("SEQ_LEN", ask("seq_len"), "positions of a sample"),
        constant("MICRO_BATCH", ask("micro_batch"), "samples per forward on one GPU"),
        constant("GRAD_ACCUM", ask("grad_accum"), "forwards per optimizer step"),
        constant("LEARNING_RATE", LEARNING_RATE, "not part of the plan: set your own"),
        constant("SCALED", precision is Precision.AMP_FP16, "fp16 gradients need a scaled loss"),
        constant("RECOMPUTED_LAYERS", _recomputed(order), "layers that keep only their input; None: all of them"),
    ]
    if loss is Loss.CHUNKED:
        rows.append(constant("LOSS_CHUNKS", LOSS_CHUNKS, "pieces in which logits exist"))
    return "\n".join(rows)


def _recomputed(order: Order) -> int | None:
    if order.ask("recompute") == Recompute.NONE:
        return 0
    layers: int | None = order.ask("recompute_layers")
    return layers


def _autocast(order: Order, precision: Precision) -> str:
    dtype = COMPUTE_DTYPES.get(precision)
    if dtype is None or (fully_sharded(order) and _policy(order, precision)):
        return "contextlib.nullcontext()"
    return f"torch.autocast(device, dtype=torch.{dtype})"


def _spread(order: Order, precision: Precision) -> str:
    if order.job.cluster.count == 1:
        order.ask.also("shards")
        return "    return model  # one GPU\n"
    order.ask.also("sharded_by")
    if not fully_sharded(order):
        return _ddp_lines(order)
    return _fsdp1_lines(order, precision) if sharder(order.job) == "fsdp1" else _fsdp_lines(order, precision)


def _policy(order: Order, precision: Precision) -> str:
    """What is computed in other types than the weights are kept in, but for autocast."""
    compute = COMPUTE_DTYPES.get(precision)
    if order.job.engine == "pytorch":
        return f"param_dtype=torch.{compute}" if precision in (Precision.MIXED_BF16, Precision.MIXED_FP16) else ""
    return f"param_dtype=torch.{compute}, reduce_dtype=torch.float32" if compute else ""


def _reshards(order: Order) -> bool:
    """Whether gathered weights are freed after forward."""
    return bool(order.ask("reshard_after_forward")) and order.ask("shards") == Shards.EVERYTHING


def _offloads(order: Order) -> bool:
    return "cpu" in (order.ask("offload_optimizer"), order.ask("offload_parameters"))


def _ddp_lines(order: Order) -> str:
    views = bool(order.ask("option.gradient_as_bucket_view", False))
    return (
        "    if not distributed.is_initialized():\n        return model\n"
        "    ids = [torch.cuda.current_device()] if device == \"cuda\" else None\n"
        "    return torch.nn.parallel.DistributedDataParallel(\n"
        f"        model, device_ids=ids, gradient_as_bucket_view={views}\n    )\n"
    )


def _fsdp_lines(order: Order, precision: Precision) -> str:
    policy = f"MixedPrecisionPolicy({_policy(order, precision)})"
    group = order.ask("shard_group")
    mesh = (
        f'    mesh = init_device_mesh(device, (ranks // {group}, {group}), mesh_dim_names=("copies", "pieces"))\n'
        if group else '    mesh = init_device_mesh(device, (ranks,), mesh_dim_names=("pieces",))\n'
    )
    return (
        "    if not distributed.is_initialized():\n        return model\n"
        "    from torch.distributed.device_mesh import init_device_mesh\n"
        "    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard\n\n"
        f"    ranks = distributed.get_world_size()\n{mesh}"
        f"    options = dict(mesh=mesh, mp_policy={policy}, reshard_after_forward={_reshards(order)},\n"
        f"                   offload_policy={'CPUOffloadPolicy()' if _offloads(order) else 'OffloadPolicy()'})\n"
        "    for layer in layers_of(model):\n        fully_shard(layer, **options)\n"
        "    return fully_shard(model, **options)\n"
    )


def _fsdp1_lines(order: Order, precision: Precision) -> str:
    """Every layer a unit; adapters, which learn while what is around them does not, are units of their own."""
    if order.ask("shard_group") is not None:
        raise Unsupported("the PyTorch script shares copies under FSDP2 only; use --sharded-by fsdp2")
    policy = _policy(order, precision)
    prefetch = order.ask("option.backward_prefetch", "pre") == "pre"
    return (
        "    if not distributed.is_initialized():\n        return model\n"
        "    from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel\n"
        "    from torch.distributed.fsdp import MixedPrecision, ShardingStrategy\n"
        "    from torch.distributed.fsdp.wrap import CustomPolicy\n\n"
        "    layers = {id(layer) for layer in layers_of(model)}\n\n"
        "    def apart(module):\n"
        "        learns = [weight.requires_grad for weight in module.parameters(recurse=False)]\n"
        f"        return id(module) in layers or ({order.job.plan.peft is not None} and any(learns))\n\n"
        "    return FullyShardedDataParallel(\n"
        "        model, auto_wrap_policy=CustomPolicy(apart), use_orig_params=True,\n"
        f"        sharding_strategy=ShardingStrategy.{'FULL_SHARD' if _reshards(order) else 'SHARD_GRAD_OP'},\n"
        f"        mixed_precision={f'MixedPrecision({policy})' if policy else None},\n"
        f"        backward_prefetch={'BackwardPrefetch.BACKWARD_PRE' if prefetch else None},\n"
        f"        cpu_offload=CPUOffload(offload_params={_offloads(order)}),\n"
        "        device_id=torch.cuda.current_device() if device == \"cuda\" else torch.device(device),\n    )\n"
    )


TEXT: Final = '''\
"""{title}.

`bash run.sh` trains on random tokens of the planned length, which shows memory and speed; put your own data into
`batches`.
"""

import contextlib
import os

import torch
import torch.nn.functional as F
from torch import distributed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
{imports}
{constants}


{build}

def layers_of(model):
    """The layers: the lists of modules that are not inside another list."""
    found = []
    for child in model.children():
        found += list(child) if isinstance(child, torch.nn.ModuleList) else layers_of(child)
    return found


def recompute(model):
    """Layers that keep only their input and run again in backward."""
    wanted = {{id(layer) for layer in layers_of(model)[:RECOMPUTED_LAYERS]}}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in wanted:
                setattr(parent, name, checkpoint_wrapper(child))


def attention_kernel():
    """Where attention runs."""
{kernel}

def spread(model, device):
    """The model over all ranks, as planned."""
{spread}

{optimizer}

{before_loss}def loss_of(model, tokens):
    """Cross entropy of the next token."""
{loss}


class WithLoss(torch.nn.Module):
    """The network and its loss in one forward: what shares weights over ranks gathers them around it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        """The loss of a batch."""
        return loss_of(self.model, tokens)


def batches(vocab, device):
    """Random tokens of the planned shape, without end."""
    while True:
        yield torch.randint(vocab, (MICRO_BATCH, SEQ_LEN), device=device)


def step(model, optimizer, scaler, data, device):
    """One optimizer step over all micro-batches; the mean loss."""
    total = 0.0
    for index in range(GRAD_ACCUM):
        last = index == GRAD_ACCUM - 1
        waits = model.no_sync() if hasattr(model, "no_sync") and not last else contextlib.nullcontext()
        with waits:
            with {autocast}, attention_kernel():
                loss = model(next(data)) / GRAD_ACCUM
            scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return total


def main(model=None, steps=3, device="cuda"):
    """Train a few steps; another model, for example a small one on CPU, can be handed in."""
    if "RANK" in os.environ and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
{tf32}    model = (model or build_model()).to(device)
    model.train()
    vocab = model.config.get_text_config().vocab_size
    recompute(model)
    model = spread(WithLoss(model), device)
{compiled}    optimizer = build_optimizer(model)
    scaler = torch.amp.GradScaler(device, enabled=SCALED and device == "cuda")
    data, losses = batches(vocab, device), []
    for _ in range(steps):
        losses.append(step(model, optimizer, scaler, data, device))
        if device == "cuda":
            print(f"loss {{losses[-1]:.3f}}, peak {{torch.cuda.max_memory_allocated() / 2**30:.2f}} GiB allocated, "
                  f"{{torch.cuda.max_memory_reserved() / 2**30:.2f}} GiB reserved", flush=True)
    return losses


def finish():
    """Take the process group down once the model that used it is gone: the other way round gloo hangs now and then."""
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    finish()
'''
