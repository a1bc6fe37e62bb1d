"""The workloads: every network with the settings that change what its memory does. Small: truth needs no large runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple


class Workload(NamedTuple):
    """One network and how it runs."""

    network: str  # key of `networks.NETWORKS`
    options: Mapping[str, Any] = {}  # of the network
    optimizer: str | None = "adamw_foreach"  # key of `run.OPTIMIZERS`; None: forward only, without gradients
    dtype: str = "fp32"  # of weights and floating inputs
    amp: str | None = None  # what autocast casts to
    accumulate: int = 1  # micro-batches a step
    compiled: bool = False
    clips: bool = False  # gradients, by norm
    keeps_gradients: bool = False  # filled with zeros instead of freed
    benchmarks_cudnn: bool = False
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF


PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fp32": {}, "amp_bf16": {"amp": "bf16"}, "amp_fp16": {"amp": "fp16"}, "bf16": {"dtype": "bf16"},
}
OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw_foreach", "adamw_single", "adamw_fused")
CONVNET: Final = {
    "channels_last": Workload("convnet", {"channels_last": True}, "momentum", amp="bf16"),
    "cudnn_benchmark": Workload("convnet", optimizer="momentum", benchmarks_cudnn=True),
    "inplace": Workload("convnet", {"inplace": True}, "momentum"),
    "compiled": Workload("convnet", optimizer="momentum", compiled=True),
    "inference": Workload("convnet", optimizer=None),
}
GPT: Final = {
    "eager_attention": Workload("gpt", {"fused": False}),
    "dropout": Workload("gpt", {"dropout": 0.1}),
    "checkpoint": Workload("gpt", {"checkpoints": True}),
    "accumulate4": Workload("gpt", accumulate=4),
    "keeps_gradients": Workload("gpt", keeps_gradients=True),
    "clips": Workload("gpt", clips=True),
    "fused_adamw": Workload("gpt", optimizer="adamw_fused"),
    "compiled": Workload("gpt", compiled=True),
    "compiled_bf16": Workload("gpt", compiled=True, amp="bf16"),
    "inference_bf16": Workload("gpt", optimizer=None, dtype="bf16"),
    "expandable": Workload("gpt", alloc_conf="expandable_segments:True"),
    "large_vocabulary": Workload("gpt", {"vocabulary": 128_256, "layers": 2}, dtype="bf16"),
    "batch1": Workload("gpt", {"batch": 1}),
    "batch16": Workload("gpt", {"batch": 16}),
}
TIMM: Final = {
    "resnet50": "momentum", "vit_base_patch16_224": "adamw_foreach", "convnext_tiny": "adamw_foreach",
    "efficientnet_b0": "momentum", "swin_tiny_patch4_window7_224": "adamw_foreach", "vgg16": "momentum",
    "densenet121": "momentum",
}
TRANSFORMERS: Final = ("bert", "gpt2", "llama", "qwen2", "t5", "mixtral", "vit")


def _workloads() -> Iterator[tuple[str, Workload]]:
    for optimizer in OPTIMIZERS:
        yield f"mlp_{optimizer}", Workload("mlp", optimizer=optimizer)
    yield "mlp_compiled", Workload("mlp", compiled=True)
    for name, precision in PRECISIONS.items():
        yield f"gpt_{name}", Workload("gpt", **precision)
    for name in ("fp32", "amp_bf16", "amp_fp16"):
        yield f"convnet_{name}", Workload("convnet", optimizer="momentum", **PRECISIONS[name])
    for name in ("fp32", "amp_bf16"):
        yield f"lstm_{name}", Workload("lstm", optimizer="adam", **PRECISIONS[name])
        yield f"moe_{name}", Workload("moe", **PRECISIONS[name])
        yield f"unet_{name}", Workload("unet", **PRECISIONS[name])
    yield "unet_inference", Workload("unet", optimizer=None)
    yield from ((f"convnet_{name}", workload) for name, workload in CONVNET.items())
    yield from ((f"gpt_{name}", workload) for name, workload in GPT.items())
    for model, optimizer in TIMM.items():
        yield f"timm_{model}_fp32", Workload("timm", {"model": model}, optimizer)
        yield f"timm_{model}_amp_bf16", Workload("timm", {"model": model}, optimizer, amp="bf16")
        yield f"timm_{model}_inference", Workload("timm", {"model": model}, None)
    for model in TRANSFORMERS:
        yield f"hf_{model}_sdpa_bf16", Workload("transformers", {"model": model}, dtype="bf16")
        yield f"hf_{model}_eager_bf16", Workload("transformers", {"model": model, "attention": "eager"}, dtype="bf16")
        yield f"hf_{model}_amp_bf16", Workload("transformers", {"model": model}, amp="bf16")
        yield f"hf_{model}_checkpoint", Workload("transformers", {"model": model, "checkpoints": True}, dtype="bf16")
    yield "hf_llama_generate", Workload("transformers", {"model": "llama", "generates": 64}, None, dtype="bf16")


WORKLOADS: Final[Mapping[str, Workload]] = dict(_workloads())
