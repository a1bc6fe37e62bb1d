"""Facts beside a failure, as tables: versions, cards and settings anywhere; what a traceback passes through; steps.

They decide nothing here. Patterns are bounded and tried only where plain words stand.
"""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from typing import Final, NamedTuple

from vramcast.sources.failures.text import Run

NUMBER: Final = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
VERSION: Final = r"[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,6})?(?:[.+-]?[0-9A-Za-z.+]{1,40})?"


class Said(NamedTuple):
    """A fact that stands anywhere: plain words, and a pattern that begins with them; its group is the value."""

    words: str
    pattern: str
    meaning: str = ""


FACTS: Final[dict[str, tuple[Said, ...]]] = {
    "torch": (
        Said("pytorch version", rf"pytorch version ?[:=(] ?v?({VERSION})", "version of PyTorch"),
        Said("torch==", rf"torch==({VERSION})"),
        Said("torch version", rf"torch version ?[:=]? ?({VERSION})"),
    ),
    "vllm": (
        Said("vllm api server version", rf"vllm api server version ({VERSION})", "version of vLLM"),
        Said("llm engine (v", rf"llm engine \(v({VERSION})\)"),
        Said("vllm version", rf"vllm version ?[:=]? ?v?({VERSION})"),
        Said("vllm==", rf"vllm==({VERSION})"),
    ),
    "sglang": (
        Said("sglang==", rf"sglang==({VERSION})", "version of SGLang"),
        Said("sglang version", rf"sglang version ?[:=]? ?({VERSION})"),
    ),
    "transformers": (Said("transformers==", rf"transformers==({VERSION})", "version of Transformers"),),
    "cuda": (
        Said("cuda version:", r"cuda version: ?([0-9]{1,2}\.[0-9]{1,2})", "version of CUDA"),
        Said("cuda used to build pytorch", r"cuda used to build pytorch ?: ?([0-9]{1,2}\.[0-9]{1,2})"),
    ),
    "rocm": (Said("rocm used to build pytorch", rf"rocm used to build pytorch ?: ?({VERSION})", "version of ROCm"),),
    "driver": (
        Said("driver version", r"driver version ?:? ?([0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)", "version of the driver"),
    ),
    "llama.cpp": (Said("build: ", r"build: ([0-9]{2,6} \([0-9a-f]{7,40}\))", "build of llama.cpp"),),
    "gpu": (
        Said(
            "nvidia ",
            r"nvidia ((?:geforce |tesla |rtx |quadro |titan |g?[abhltv][0-9])[\w -]{1,40}?\w)"
            r"(?= ?[,;|)(:]|$| with| on\b| off\b)",
            "name of a card",
        ),
        Said("geforce ", r"(geforce (?:rtx|gtx) ?[0-9]{3,4}(?: ti| super)?)"),
        Said("amd instinct", r"(amd instinct [\w]{2,12})"),
        Said("radeon", r"(radeon[\w ]{2,24}[0-9]{3,4}[a-z ]{0,4})"),
    ),
    "alloc_conf": (
        Said(
            "pytorch_cuda_alloc_conf=",
            r"pytorch_cuda_alloc_conf=[\"']?([\w:,.>\[\]-]{3,200}+)(?! ?to avoid)",
            "setting of the allocator, as the text has it",
        ),
        Said("pytorch_alloc_conf=", r"pytorch_alloc_conf=[\"']?([\w:,.>\[\]-]{3,200}+)(?! ?to avoid)"),
        Said("pytorch_hip_alloc_conf=", r"pytorch_hip_alloc_conf=[\"']?([\w:,.>\[\]-]{3,200}+)(?! ?to avoid)"),
        Said("pytorch_npu_alloc_conf=", r"pytorch_npu_alloc_conf=[\"']?([\w:,.>\[\]-]{3,200}+)(?! ?to avoid)"),
    ),
    "visible_devices": (
        Said("cuda_visible_devices=", r"cuda_visible_devices=[\"']?([\w,-]{1,200})", "cards that the process may use"),
    ),
    "memory_utilization": (
        Said(
            "gpu_memory_utilization=", r"gpu_memory_utilization=([0-9.]{1,8})", "share of the card that an engine takes"
        ),
        Said("--gpu-memory-utilization", r"--gpu-memory-utilization[ =]([0-9.]{1,8})"),
        Said("mem_fraction_static=", r"mem_fraction_static=([0-9.]{1,8})"),
        Said("--mem-fraction-static", r"--mem-fraction-static[ =]([0-9.]{1,8})"),
    ),
    "loss_not_finite": (
        *(
            Said(f"loss{between}{value}", r"loss['\"]?[ :=]{1,4}'?(nan|-?inf)\b", "a loss that is not a number")
            for between in (" ", ": ", ":", "=", " = ", "': ", "': '", '": ')
            for value in ("nan", "inf", "-inf")
        ),
        Said("nan loss", "(nan loss)"),
        Said("loss is nan", "(loss is nan)"),
    ),
    "loss_scale": (
        Said(
            "overflow! ", r"(overflow! [^.]{0,60}skipping step[^\"]{0,80})", "a step skipped because gradients overflow"
        ),
        Said("gradient overflow", r"(gradient overflow\. {0,3}skipping step)"),
        Said("reducing loss scale", r"(reducing loss scale to [0-9.e+-]{1,24})"),
        Said("loss scale already at minimum", "(loss scale already at minimum)"),
    ),
    "offload": (
        Said("offload_optimizer", "(offload_optimizer)", "something is kept in main memory"),
        Said("offload_param", "(offload_param)"),
        Said("cpu_offload", "(cpu_offload)"),
        Said("--cpu-offload-gb", r"(--cpu-offload-gb[ =][0-9.]{1,8})"),
        Said("zero-offload", "(zero-offload)"),
        Said("offloaded to the cpu", "(offloaded to the cpu)"),
    ),
    "wsl": (Said("microsoft-standard-wsl", "(wsl)?", "Windows Subsystem for Linux"),),
    "windows": (
        Said("c:\\users\\", "()", "paths of Windows"),
        Said("platform: windows", "()"),
        Said("windows-10", "()"),
    ),
    "tpu": (
        Said("libtpu", "()", "a TPU"),
        Said("tpu_worker", "()"),
        Said("tpu-inference", "()"),
        Said("vllm/v1/worker/tpu", "()"),
    ),
    "retries": (
        Said(
            "pytorch allocator cache flushes",
            r"(pytorch allocator cache flushes since last step)",
            "the allocator had to empty its cache",
        ),
    ),
}
"""Name -> where it stands; the meaning is told once."""

ROOTS: Final = ("nan", "-inf", "loss=inf", "loss: inf", "overflow", "loss scale")
"""What stands in a stretch without any failure that facts are looked for in all the same, in lower case."""

PATHS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "backward": (("in backward", ".backward(", "autograd.backward", "run_backward"), "through the backward pass"),
    "optimizer_step": (
        ("optimizer.step(", "/torch/optim/", "\\torch\\optim\\", "optim/optimizer.py"),
        "through the optimizer's step",
    ),
    "optimizer_state": (
        ("_init_group", "exp_avg", "init_state", "state['step']", "init_optimizer_state"),
        "through making optimizer states: the first step",
    ),
    "model_to_device": (
        ("in _apply", "in convert", ".to(device", ".cuda()", "in to return self._apply", "model.to("),
        "through moving a model to the device",
    ),
    "loading": (
        (
            "load_state_dict",
            "torch.load",
            "from_pretrained",
            "load_checkpoint",
            "safetensors",
            "load_model",
            "load_weights",
        ),
        "through loading weights",
    ),
    "generate": (("in generate", ".generate(", "generation/utils.py"), "through generation"),
    "no_grad": (("torch.no_grad", "inference_mode", "in decorate_context"), "under no_grad or inference_mode"),
    "data_loader": (("dataloader.py", "_utils/worker.py", "pin_memory.py"), "through the data loader"),
    "pin_memory": (("pin_memory",), "through pinning main memory"),
    "attention": (
        ("scaled_dot_product_attention", "flash_attn", "eager_attention_forward", "sdpa_attention", "xformers"),
        "through attention",
    ),
    "attention_eager": (
        ("eager_attention_forward", "torch.matmul(query", "attn_weights"),
        "through attention that builds the whole matrix",
    ),
    "cross_entropy": (
        ("cross_entropy", "logits.float()", "in compute_loss", "loss_function", "lm_head"),
        "through logits and loss",
    ),
    "compiled": (("torch/_dynamo", "torch/_inductor", "torchinductor", "_functorch"), "through torch.compile"),
    "graph_capture": (
        ("cuda_graph", "cudagraph", "capture_model", "in capture", "torch/cuda/graphs.py"),
        "through capturing graphs",
    ),
    "checkpointing": (("torch/utils/checkpoint.py", "gradient_checkpointing", "in recompute"), "through recomputation"),
    "profile_run": (
        ("profile_run", "determine_num_available_blocks", "determine_available_memory", "_dummy_run"),
        "through an engine's profiling run",
    ),
    "kv_cache": (
        ("initialize_kv_cache", "allocate_kv_cache", "_allocate_kv_cache", "init_memory_pool", "initialize_cache"),
        "through making the key/value cache",
    ),
    "fsdp": (("fully_sharded_data_parallel", "_fsdp", "torch/distributed/fsdp"), "through FSDP"),
    "deepspeed": (("deepspeed/runtime",), "through DeepSpeed"),
    "all_gather": (("all_gather", "allgather"), "through gathering shards"),
    "context": (
        ("_cuda_init", "_lazy_init", "cuctxcreate", "cudeviceprimaryctxretain", "_cuda_setdevice", "_cuda_set_device"),
        "through making the process's context",
    ),
    "validation": (
        ("in evaluate", "in validate", "evaluation_loop", "validation_step", "in eval"),
        "through evaluation",
    ),
    "vae_decode": (("vae.decode", "autoencoder_kl", "in decode_first_stage", "vaedecode"), "through an image decoder"),
    "metrics": (("nested_concat", "in gather_for_metrics", "all_preds"), "through collecting predictions"),
}
"""Name -> words of a traceback that passes there, and what that means."""

FRAME: Final = re.compile(r"File \"([^\"]{1,400})\", line ([0-9]{1,8}), in ([\w.<>]{1,120})", re.ASCII)
LIBRARY: Final = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python[0-9.]{1,5}[/\\]|[/\\]torch[/\\]|<frozen|<string>|[/\\]vllm[/\\]|[/\\]sglang[/\\]|[/\\]bin[/\\]",
    re.ASCII,
)
PROGRESS: Final[dict[str, re.Pattern[str]]] = {
    "epoch": re.compile(r"\bepochs?\b[\"' :=\[(#]{1,4}([0-9]{1,7})", re.ASCII | re.IGNORECASE),
    "step": re.compile(
        r"\b(?:global_step|step|steps|iter|iteration|batch)\b[\"' :=\[(#]{1,4}([0-9]{1,9})", re.ASCII | re.IGNORECASE
    ),
}
"""Where a run stood: the last number stated before the failure."""

RANK: Final = re.compile(
    r"\[(?:rank|default|Rank|RANK) ?:?([0-9]{1,5})\]|\brank ?([0-9]{1,5}):|\[[0-9]{1,4},([0-9]{1,5})\]<std", re.ASCII
)

MOST_OF_A_FACT: Final = 16
"""Different values that are kept of one fact."""

WINDOW: Final = 16 << 10
"""How far before a statement its traceback and progress are looked for [characters]."""


class Stated(NamedTuple):
    """A fact at a place of a run."""

    name: str
    value: str | int
    at: int


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


def stated(run: Run) -> list[Stated]:
    """What a run says anywhere."""
    found: list[Stated] = []
    for name, sayings in FACTS.items():
        values: dict[str, int] = {}
        for said in sayings:
            start = run.lowered.find(said.words)
            tries = 0
            while start >= 0 and len(values) < MOST_OF_A_FACT and tries < 4 * MOST_OF_A_FACT:
                match = _compiled(said.pattern).match(run.text, start, start + 400)
                if match is not None:
                    values.setdefault((match[1] or said.words).strip(), start)
                tries += 1
                start = run.lowered.find(said.words, start + len(said.words))
        found += [Stated(name, value, at) for value, at in values.items()]
    return found


def passed(run: Run, since: int, until: int) -> list[Stated]:
    """What the traceback before a statement passes through, its last frame of the user, and where the run stood."""
    since = max(since, until - WINDOW)
    trace = run.text.rfind("Traceback (most recent call last)", since, until)
    frames_since = trace if trace >= 0 else since
    found = [
        Stated(name, "yes", frames_since)
        for name, (words, _) in PATHS.items()
        if any(run.lowered.find(word.lower(), frames_since, until) >= 0 for word in words)
        and (trace >= 0 or run.lowered.find('file "', frames_since, until) >= 0)
    ]
    frames = list(FRAME.finditer(run.text, frames_since, until))
    own = [frame for frame in frames if not LIBRARY.search(frame[1])]
    for name, frame in (("user_frame", own[-1] if own else None), ("last_frame", frames[-1] if frames else None)):
        if frame is not None:
            found.append(Stated(name, f"{frame[1]}:{frame[2]} {frame[3]}", frame.start()))
    for name, pattern in PROGRESS.items():
        last = next(iter(deque(pattern.finditer(run.text, since, until), maxlen=1)), None)
        if last is not None:
            found.append(Stated(name, int(last[1]), last.start()))
    return found
