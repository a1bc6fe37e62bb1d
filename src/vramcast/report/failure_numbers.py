"""The words of numbers and of the layout in reports on failures; part of `messages.rare_messages`."""

from __future__ import annotations

from typing import Final

FAILURE_NUMBERS: Final[dict[str, dict[str, str]]] = {
    "failure.sure": {"en": "{share} sure", "zh": "把握 {share}"},
    "failure.headline": {"en": "{cause} ({kind}, {sure})", "zh": "{cause}（{kind}，{sure}）"},
    "failure.where": {
        "en": "{name}, line {line}: {family}, {wording}",
        "zh": "{name} 第 {line} 行：{family}，{wording}",
    },
    "failure.repeats": {"en": "stands {count} times in the text", "zh": "文中出现 {count} 次"},
    "failure.versions": {"en": "wording of versions {versions}", "zh": "该措辞对应版本 {versions}"},
    "failure.card": {"en": "Who holds the card", "zh": "显存被谁占用"},
    "failure.numbers": {"en": "What the numbers mean", "zh": "各数字的含义"},
    "failure.fixes": {"en": "What to change, the best first", "zh": "如何修改（最佳在前）"},
    "failure.checks": {"en": "Stability and compatibility", "zh": "稳定性与兼容性"},
    "failure.saves": {"en": "saves {size} ({by})", "zh": "省 {size}（{by}）"},
    "failure.saves_most": {"en": "frees at most {size} ({by})", "zh": "最多省 {size}（{by}）"},
    "failure.enough": {"en": "enough", "zh": "足够"},
    "failure.not_enough": {"en": "not enough by itself", "zh": "单独不够"},
    "failure.none": {
        "en": "{name}: nothing here tells of memory running out; looked for: out-of-memory messages of PyTorch, "
        "TensorFlow, JAX and other frameworks, of cuBLAS, cuDNN and NCCL, of vLLM, SGLang, TensorRT-LLM and "
        "llama.cpp, processes that the system ended, and memory snapshots",
        "zh": "{name}：没有发现显存或内存耗尽的信息；查找的内容：PyTorch、TensorFlow、JAX 等框架，cuBLAS、cuDNN、NCCL，"
        "vLLM、SGLang、TensorRT-LLM、llama.cpp 的相关消息，被系统终止的进程，以及显存快照",
    },
    "failure.no_event": {
        "en": "{name}: a memory snapshot without an out-of-memory event; vramcast replay shows its peak and other "
        "settings",
        "zh": "{name}：快照中没有显存不足事件；vramcast replay 可显示其峰值与其他设置",
    },
    "failure.cut": {
        "en": "the text is longer than is read; its end was left out",
        "zh": "文本超出读取上限；末尾未读",
    },
    "failure.by.arithmetic": {"en": "the message's figures", "zh": "按消息中的数字"},
    "failure.by.train": {"en": "computed by train", "zh": "train 计算"},
    "failure.by.serve": {"en": "computed by serve", "zh": "serve 计算"},
    "failure.by.replay": {"en": "shown by replay", "zh": "回放证明"},
    "held.allocated": {"en": "live tensors", "zh": "存活张量"},
    "held.unallocated": {"en": "reserved, in pieces", "zh": "已保留的碎片"},
    "held.beside": {"en": "this process beside the allocator", "zh": "本进程分配器之外"},
    "held.others": {"en": "other processes", "zh": "其他进程"},
    "held.outside": {"en": "context, libraries, other processes", "zh": "上下文、库、其他进程"},
    "held.free": {"en": "free", "zh": "空闲"},
    "short.tried_bytes": {"en": "tried", "zh": "申请"},
    "short.total_bytes": {"en": "total", "zh": "总量"},
    "short.free_bytes": {"en": "free", "zh": "空闲"},
    "short.allocated_bytes": {"en": "allocated", "zh": "已分配"},
    "short.reserved_bytes": {"en": "reserved", "zh": "已保留"},
    "short.unallocated_bytes": {"en": "unallocated", "zh": "未分配"},
    "short.private_pools_bytes": {"en": "private pools", "zh": "私有池"},
    "short.allowed_bytes": {"en": "allowed", "zh": "允许"},
    "short.process_bytes": {"en": "this process", "zh": "本进程"},
    "short.other_processes_bytes": {"en": "other processes", "zh": "其他进程"},
    "short.other_allocations_bytes": {"en": "other allocations", "zh": "其他分配"},
    "short.beside_bytes": {"en": "beside", "zh": "分配器之外"},
    "short.others_bytes": {"en": "others", "zh": "他人"},
    "short.outside_bytes": {"en": "outside", "zh": "PyTorch 之外"},
    "short.max_model_len": {"en": "longest sequence", "zh": "最长序列"},
    "short.kv_tokens": {"en": "cache", "zh": "缓存"},
    "short.kv_needed_bytes": {"en": "cache needed", "zh": "所需缓存"},
    "short.kv_available_bytes": {"en": "cache available", "zh": "可用缓存"},
    "short.estimated_max_len": {"en": "would fit", "zh": "可容纳"},
    "short.memory_fraction": {"en": "fraction", "zh": "比例"},
    "short.device": {"en": "device", "zh": "设备"},
    "means.tried_bytes": {"en": "the request that failed, rounded up", "zh": "失败的申请（已向上取整）"},
    "means.tried.small": {
        "en": "the allocator asks the driver for 2 MiB whenever a tensor of up to 1 MiB needs a new segment: the "
        "tensor itself was small",
        "zh": "不超过 1 MiB 的张量需要新段时，分配器总向驱动要 2 MiB：张量本身很小",
    },
    "means.tried.large": {
        "en": "the allocator asks for 20 MiB whenever a tensor of 1 to 10 MiB needs a new segment",
        "zh": "1 至 10 MiB 的张量需要新段时，分配器总向驱动要 20 MiB",
    },
    "means.total_bytes": {
        "en": "what the card shows to programs, a little less than the label says",
        "zh": "程序可见的容量，略少于标称值",
    },
    "means.free_bytes": {
        "en": "what the driver had left for anybody, after PyTorch gave back all it could",
        "zh": "PyTorch 归还所有可归还的缓存之后，驱动还剩的空闲",
    },
    "means.free.enough": {
        "en": "what the driver had left; more than was asked for, so that something else refused",
        "zh": "驱动剩余的空闲；多于所申请，因此是别的原因拒绝了申请",
    },
    "means.allocated_bytes": {"en": "in live tensors", "zh": "存活张量占用"},
    "means.reserved_bytes": {
        "en": "taken from the driver by the allocator: live tensors and what it keeps for later; nvidia-smi shows "
        "this and the context",
        "zh": "分配器从驱动取得的总量：存活张量加留作后用的；nvidia-smi 显示它加上下文",
    },
    "means.unallocated_bytes": {
        "en": "reserved but not in use: gaps in segments that live tensors still hold, so they could not be given "
        "back",
        "zh": "已保留但未使用：所在的段仍有存活张量，因此无法归还",
    },
    "means.private_pools_bytes": {
        "en": "free blocks inside the pools of captured graphs, counted as allocated above",
        "zh": "CUDA 图私有池中的空闲块，上面计入已分配",
    },
    "means.allowed_bytes": {"en": "the limit of this process, set by somebody", "zh": "人为设定的本进程上限"},
    "means.process_bytes": {
        "en": "this process on the card: reserved, context and libraries",
        "zh": "本进程占卡：已保留、上下文与库",
    },
    "means.other_processes_bytes": {"en": "what the other processes listed hold", "zh": "所列其他进程占用"},
    "means.other_allocations_bytes": {
        "en": "what this process holds outside this allocator",
        "zh": "本进程在此分配器之外占用",
    },
    "means.beside_bytes": {
        "en": "this process less reserved: context, libraries, other allocators in it",
        "zh": "本进程减去已保留：上下文、库、进程内其他分配器",
    },
    "means.others_bytes": {"en": "the rest of the card: other processes", "zh": "其余部分：其他进程"},
    "means.outside_bytes": {
        "en": "total less free less reserved: context, libraries and other processes together",
        "zh": "总量减空闲减已保留：上下文、库和其他进程之和",
    },
    "means.max_model_len": {"en": "tokens that one sequence may have", "zh": "单条序列允许的 token 数"},
    "means.kv_tokens": {
        "en": "tokens that the cache holds, of all sequences together",
        "zh": "缓存可容纳的 token 总数",
    },
    "means.kv_needed_bytes": {"en": "cache of one sequence of that length", "zh": "一条该长度序列的缓存"},
    "means.kv_available_bytes": {
        "en": "what weights and activations leave of the engine's share",
        "zh": "引擎份额中除权重与激活之外的部分",
    },
    "means.estimated_max_len": {"en": "tokens that the engine says would fit", "zh": "引擎称可容纳的 token 数"},
    "means.memory_fraction": {"en": "share of the card that the engine may take", "zh": "引擎可用的显存比例"},
    "means.device": {"en": "number of the card as the process counts", "zh": "进程看到的卡号"},
}
"""Key -> language -> text."""
