"""The words of reports on traced runs, in each language; part of `messages.rare_messages`."""

from __future__ import annotations

from typing import Final

TRACE_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "trace.levels": {
        "en": "allocated {allocated}, reserved {reserved}, device {device}",
        "zh": "已分配 {allocated}，已保留 {reserved}，设备占用 {device}",
    },
    "trace.host_level": {"en": "allocated {allocated} of main memory", "zh": "占用内存 {allocated}"},
    "trace.highest": {"en": "highest, {phase}: ", "zh": "最高点，{phase}："},
    "trace.steady": {"en": "steady step: ", "zh": "稳定步："},
    "trace.interval": {"en": "device {low} to {high}: {basis}", "zh": "设备占用 {low} 至 {high}：{basis}"},
    "trace.cache": {
        "en": "within the card only because cached memory is given back to the driver, which takes time",
        "zh": "仅因向驱动归还缓存才放得下，会变慢",
    },
    "trace.what": {
        "en": "{target} ({parameters} parameters) on {gpu}: {how}",
        "zh": "{target}（{parameters} 参数），{gpu}：{how}",
    },
    "trace.what_script": {"en": "{target} on {gpu}: {how}", "zh": "{target}，{gpu}：{how}"},
    "trace.traced": {"en": "steps: {steps}, events: {events}", "zh": "追踪 {steps} 步，{events} 个事件"},
    "trace.ranks": {"en": "rank {rank} of {world}", "zh": "第 {rank} 号进程，共 {world} 个"},
    "trace.eval": {"en": "inference", "zh": "推理"},
    "trace.train": {"en": "training", "zh": "训练"},
    "trace.batch": {"en": "batch {batch}", "zh": "批大小 {batch}"},
    "trace.positions": {"en": "{count} positions", "zh": "{count} 个位置"},
    "trace.failure": {
        "en": "runs out of memory in step {step}, {phase}, asking for {size}",
        "zh": "第 {step} 步{phase}时显存耗尽，请求 {size}",
    },
    "trace.failure_where": {"en": "at {line}{module}: {operator}", "zh": "位置 {line}{module}：{operator}"},
    "trace.failure_module": {"en": ", in {module}", "zh": "，模块 {module}"},
    "trace.nowhere": {"en": "no line of Python", "zh": "无 Python 行"},
    "trace.phase.setup": {"en": "before the first forward", "zh": "首次前向之前"},
    "trace.phase.forward": {"en": "forward", "zh": "前向"},
    "trace.phase.backward": {"en": "backward", "zh": "反向"},
    "trace.phase.optimizer": {"en": "optimizer step", "zh": "优化器更新"},
    "trace.would_print": {"en": "PyTorch would print", "zh": "PyTorch 将打印"},
    "trace.ledger": {"en": "Ledger at the peak of the steady step", "zh": "稳定步峰值时的明细"},
    "trace.by.module": {"en": "By module at that peak", "zh": "该峰值按模块"},
    "trace.by.line": {"en": "By source line at that peak", "zh": "该峰值按源码行"},
    "trace.by.operator": {"en": "By operator at that peak", "zh": "该峰值按算子"},
    "trace.unnamed": {"en": "outside of all", "zh": "其他"},
    "trace.blocks": {"en": "{count} blocks", "zh": "{count} 块"},
    "trace.page.title": {"en": "{name}, traced", "zh": "{name} 的模拟运行"},
    "trace.course": {"en": "Course of the run", "zh": "运行过程"},
    "trace.legend": {
        "en": "area: allocated, line: reserved; {events} events from left to right",
        "zh": "面积：已分配，线：已保留；从左到右共 {events} 个事件",
    },
    "trace.unknown": {
        "en": "Operators not known in CUDA form: counted by their outputs, what they take inside is not",
        "zh": "未知 CUDA 实现的算子：只计输出，内部占用未计",
    },
    "trace.unknown_share": {
        "en": "{count} operators, {share} of the peak is output of theirs",
        "zh": "{count} 个算子，其输出占峰值的 {share}",
    },
    "trace.calls": {"en": "{count} calls", "zh": "{count} 次"},
    "trace.of_peak": {"en": "{size} at the peak ({share})", "zh": "峰值处 {size}（{share}）"},
    "trace.outputs": {"en": "outputs of {size}", "zh": "输出共 {size}"},
    "trace.more": {"en": "{count} more: --json lists all", "zh": "另有 {count} 项：--json 列出全部"},
    "trace.stopped": {"en": "{why}", "zh": "提前停止：{why}"},
    "trace.found.batch": {"en": "largest batch that fits: {value}", "zh": "能放下的最大批大小：{value}"},
    "trace.found.seq-len": {"en": "longest sequence that fits: {value}", "zh": "能放下的最长序列：{value}"},
    "trace.found_nothing": {"en": "even {what} does not fit", "zh": "即使 {what} 也放不下"},
    "trace.tried": {"en": "Traced: {count} runs", "zh": "共追踪 {count} 次"},
    "trace.kind.layers": {"en": "module", "zh": "模块"},
    "trace.temporaries": {"en": "temporaries", "zh": "临时"},
}
