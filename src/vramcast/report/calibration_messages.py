"""The words of the hook for training loops and of `vramcast calibrate`; part of `messages.MESSAGES`."""

from __future__ import annotations

from typing import Final

HOOK_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "hook.not_written": {
        "en": "vramcast: cannot record into {path}: {why}; training goes on, and so does the recording once it can",
        "zh": "vramcast：无法写入记录 {path}：{why}；训练继续，可写入后记录也会继续",
    },
    "hook.written_again": {"en": "vramcast: recording into {path} again", "zh": "vramcast：已恢复写入记录 {path}"},
    "hook.broken": {
        "en": "vramcast: the recording {path} ends here: {why}; training goes on",
        "zh": "vramcast：记录 {path} 到此为止：{why}；训练继续",
    },
    "hook.no_steps": {
        "en": "vramcast: {path} holds no step: call step() after each optimizer step, or use a callback",
        "zh": "vramcast：{path} 中没有任何训练步：请在每次优化器更新后调用 step()，或使用回调",
    },
    "hook.no_card": {
        "en": "vramcast: {path} holds no step: this process used no CUDA device",
        "zh": "vramcast：{path} 中没有任何训练步：本进程没有使用 CUDA 设备",
    },
    "hook.out_of_memory": {
        "en": "vramcast: out of memory in step {step}, {phase}. Why: vramcast oom LOG; with "
        "snapshot_at_oom=\"oom.pickle\" "
        "the next run tells more",
        "zh": "vramcast：第 {step} 步 {phase} 阶段显存不足。查原因：vramcast oom LOG；下次加 "
        "snapshot_at_oom=\"oom.pickle\" "
        "可得到更多信息",
    },
    "hook.snapshot": {
        "en": "vramcast: out of memory in step {step}, {phase}; snapshot written to {path}. "
        "Why, and what to change: vramcast oom --snapshot {path}",
        "zh": "vramcast：第 {step} 步 {phase} 阶段显存不足；快照已写入 {path}。查原因与对策：vramcast oom "
        "--snapshot {path}",
    },
    "hook.no_snapshot": {
        "en": "vramcast: out of memory in step {step}, {phase}; the snapshot {path} could not be written: {why}",
        "zh": "vramcast：第 {step} 步 {phase} 阶段显存不足；快照 {path} 写入失败：{why}",
    },
}

_STATES: Final = {
    "en": "the recording has {dtypes} parameters and {optimizer}: look at --precision, --optimizer, what is "
    "trained and "
    "how it is split",
    "zh": "记录中的参数为 {dtypes}，优化器为 {optimizer}：请核对 --precision、--optimizer、训练哪些参数以及如何切分",
}

CALIBRATION_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "run.agrees": {
        "en": "agrees: no entry differs by more than 0.2% of the card", "zh": "一致：各项差异均不超过整卡的 0.2%",
    },
    "run.nothing": {"en": "nothing to compare: no memory was measured", "zh": "没有可比较的数据：未测到显存"},
    "run.more": {
        "en": "underestimated: {entry}, {size} more than predicted{relative}",
        "zh": "低估：{entry}，比预测多 {size}{relative}",
    },
    "run.less": {
        "en": "nothing underestimated; most overestimated: {entry}, {size} less than predicted{relative}",
        "zh": "没有低估的项；高估最多的是 {entry}，比预测少 {size}{relative}",
    },
    "run.rank": {"en": "rank {rank}", "zh": "rank {rank}"},
    "run.peak": {"en": "Peak of a steady step", "zh": "稳定步的峰值"},
    "run.other": {"en": "Other figures", "zh": "其他数据"},
    "run.derived": {"en": "not counted, see notes", "zh": "非直接计数，见说明"},
    "run.offer": {
        "en": "To use this in later questions: add --save calibration.toml here, then ask with --calibration "
        "calibration.toml.",
        "zh": "要在以后的提问中使用：此处加 --save calibration.toml，之后提问时加 --calibration calibration.toml。",
    },
    "run.entry.rest": {"en": "activations, temporaries and workspaces", "zh": "激活、临时张量与工作区"},
    "run.entry.outside": {"en": "context and communicators", "zh": "上下文与通信库"},
    "run.entry.level.allocated": {"en": "= allocated", "zh": "= 已分配"},
    "run.entry.level.reserved": {"en": "= reserved", "zh": "= 已保留"},
    "run.entry.level.device": {"en": "= device", "zh": "= 设备"},
    "run.entry.gradients.all": {"en": "all gradients", "zh": "全部梯度"},
    "run.entry.load.allocated": {"en": "allocated after load", "zh": "加载后已分配"},
    "run.entry.load.reserved": {"en": "reserved after load", "zh": "加载后已保留"},
    "run.entry.first step.allocated": {"en": "allocated in the first step", "zh": "第一步已分配"},
    "run.entry.first step.reserved": {"en": "reserved in the first step", "zh": "第一步已保留"},
    "run.entry.step time": {"en": "step time", "zh": "每步时间"},
    "run.why.weights.more": _STATES,
    "run.why.weights.less": _STATES,
    "run.why.gradients.more": _STATES,
    "run.why.gradients.less": _STATES,
    "run.why.optimizer.more": _STATES,
    "run.why.optimizer.less": _STATES,
    "run.why.rest.more": {
        "en": "activations and temporaries: the run keeps more than the plan says; look at the attention "
        "kernel, --loss, "
        "recomputation, the largest batch, and what the code keeps alive (outputs, losses with their graph)",
        "zh": "激活与临时张量：实际保留的比计划多；请核对注意力实现、--loss、重计算、最大批次，"
        "以及代码中仍被引用的张量（输出、带计算图的损失）",
    },
    "run.why.rest.less": {
        "en": "activations and temporaries: the run keeps less than the plan says; look at batches shorter than "
        "--seq-len, "
        "fused kernels, --loss and recomputation",
        "zh": "激活与临时张量：实际保留的比计划少；可能批次短于 --seq-len、使用了融合算子，或 --loss、重计算设置不同",
    },
    "run.why.allocator.more": {
        "en": "reserved, not allocated: sizes that vary from step to step leave holes, and each size the "
        "allocator has not "
        "seen adds to them; --alloc-conf expandable_segments:True is what usually helps",
        "zh": "已保留未分配：逐步变化的尺寸会留下空洞，每出现一个新尺寸都会增加；通常 --alloc-conf "
        "expandable_segments:True 有效",
    },
    "run.why.allocator.less": {
        "en": "reserved, not allocated: the run leaves fewer holes than the simulated allocator",
        "zh": "已保留未分配：实际空洞少于模拟的分配器",
    },
    "run.why.outside.more": {
        "en": "context and communicators: more kernels and libraries are loaded on this machine, or NCCL takes "
        "larger buffers",
        "zh": "上下文与通信库：本机加载了更多内核与库，或 NCCL 缓冲区更大",
    },
    "run.why.outside.less": {
        "en": "context and communicators: fewer kernels and libraries are loaded on this machine",
        "zh": "上下文与通信库：本机加载的内核与库较少",
    },
    "run.why.others": {
        "en": "{size} beside torch is more than any context: another process was on the card; it is not learned from",
        "zh": "torch 之外多出 {size}，超过任何上下文：卡上有其他进程；不从中学习",
    },
    "run.simulated": {
        "en": "recorded on a simulated card: sizes are those of a simulation, times are left out",
        "zh": "在模拟的卡上记录：大小来自模拟，不含时间",
    },
    "run.device_only": {
        "en": "no counters of torch in the recording: only what the driver shows of the process was compared",
        "zh": "记录中没有 torch 计数：只比较了驱动显示的进程显存",
    },
    "run.card_only": {
        "en": "no counters of torch and no processes in the recording: only what is used of the card by "
        "everyone was compared",
        "zh": "记录中没有 torch 计数，也没有进程：只比较了整卡已用显存",
    },
    "run.not_attached": {
        "en": "the recording does not say what was counted: attach(model, optimizer) tells weights, gradients "
        "and states apart",
        "zh": "记录未说明各部分大小：调用 attach(model, optimizer) 可区分权重、梯度与优化器状态",
    },
    "run.one_step": {
        "en": "only one step was recorded: a steady one may need more",
        "zh": "只记录了一步：稳定步可能需要更多",
    },
    "run.gradients": {
        "en": "weights, all gradients and optimizer states were counted; how many of the gradients live at the "
        "peak is taken "
        "from the prediction, and activations are what is left",
        "zh": "权重、全部梯度与优化器状态为计数所得；峰值时存活的梯度比例取自预测，激活为剩余部分",
    },
    "run.retries": {
        "en": "the allocator gave cached memory back {count} times to make room: the card was full, and steps "
        "are slower",
        "zh": "分配器为腾出空间归还缓存 {count} 次：卡已占满，训练变慢",
    },
    "run.everyone": {
        "en": "device bytes are of everyone on the card; it is taken that nobody else was there",
        "zh": "设备级显存包含卡上所有进程；此处假定没有其他进程",
    },
    "run.parameters": {
        "en": "the recording has {measured} parameters, the job {predicted}: is it the same model?",
        "zh": "记录中有 {measured} 个参数，问题中有 {predicted} 个：是同一个模型吗？",
    },
}
