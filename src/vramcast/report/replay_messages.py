"""The words of reports on replayed recordings, in each language; part of `messages.MESSAGES`."""

from __future__ import annotations

from typing import Final

REPLAY_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "replay.peak": {
        "en": "peak: {reserved} reserved, {allocated} allocated",
        "zh": "峰值：已保留 {reserved}，已分配 {allocated}",
    },
    "replay.peak_allocated": {"en": "peak: {allocated} allocated", "zh": "峰值：已分配 {allocated}"},
    "replay.peak_least": {
        "en": "peak: at least {allocated} allocated; what was held before the recording and stays is not in it",
        "zh": "峰值：已分配至少 {allocated}；录制前已存在且一直保留的不在其中",
    },
    "replay.peak_simulated": {
        "en": "peak: at least {allocated} allocated, simulated {reserved} reserved; what was held before the recording "
              "and stays is not in it",
        "zh": "峰值：已分配至少 {allocated}，模拟已保留 {reserved}；录制前已存在且一直保留的不在其中",
    },
    "replay.main": {
        "en": "of {count} devices, device {device} held most: {size}",
        "zh": "共 {count} 个设备，设备 {device} 占用最多：{size}",
    },
    "replay.main_failed": {
        "en": "of {count} devices, device {device} ran out of memory",
        "zh": "共 {count} 个设备，设备 {device} 显存不足",
    },
    "replay.failed": {
        "en": "the replay failed: the simulated allocator does not do what the recorded one did, so reserved memory "
              "below is not that of the process, and holes and other settings are not told",
        "zh": "重放失败：模拟分配器与记录中的行为不符，因此下面的已保留并非该进程的值，空洞和其他设置不再给出",
    },
    "replay.device": {"en": "device {device}: ", "zh": "设备 {device}："},
    "replay.file": {
        "en": "{name}: {events} events, {allocations} allocations",
        "zh": "{name}：{events} 个事件，{allocations} 次分配",
    },
    "replay.conf": {"en": "recorded with {conf}", "zh": "录制时的设置：{conf}"},
    "replay.when": {"en": "allocated was highest after event {event}", "zh": "第 {event} 个事件后已分配最高"},
    "replay.when_time": {
        "en": "allocated was highest after event {event}, {time} after the first",
        "zh": "第 {event} 个事件后已分配最高，距首个事件 {time}",
    },
    "replay.when_start": {
        "en": "allocated was highest before the first event",
        "zh": "首个事件之前已分配最高",
    },
    "replay.exact": {
        "en": "replay: {matched} of {allocations} allocations at their recorded address, "
              "{segments} of {segment_events} segment events as recorded",
        "zh": "重放：{allocations} 次分配中 {matched} 次地址与记录相同，{segment_events} 个段事件中 {segments} 个相同",
    },
    "replay.contradiction": {
        "en": "not compared: the blocks that the file lists are not those that its events lead to ({why}); "
              "dump before recording is switched off",
        "zh": "未比较：文件列出的块与其事件不符（{why}）；请在关闭记录之前转储",
    },
    "replay.exact_addresses": {
        "en": "replay: {matched} of {allocations} allocations at their recorded address",
        "zh": "重放：{allocations} 次分配中 {matched} 次地址与记录相同",
    },
    "replay.surplus": {
        "en": "{count} segment events of the replay are not in the recording",
        "zh": "重放多出 {count} 个记录中没有的段事件",
    },
    "replay.final.True": {"en": "blocks at the end identical", "zh": "结束时的块完全相同"},
    "replay.final.False": {"en": "blocks at the end differ", "zh": "结束时的块不同"},
    "replay.not_exact": {
        "en": "replay: reserved memory is simulated, as the recording lists no segments to compare with",
        "zh": "重放：记录中没有段可比较，已保留为模拟值",
    },
    "replay.recorded": {
        "en": "not replayed: figures are what the recorded allocator itself counted; the recording lists no segments, "
              "so holes are not known",
        "zh": "未重放：数值为所录分配器自己的计数；记录中没有段，因此空洞未知",
    },
    "replay.recorded_alone": {
        "en": "not replayed: figures are what the recorded allocator itself counted; its events have no addresses, so "
              "which blocks were live, and what other settings would do, are not known",
        "zh": "未重放：数值为所录分配器自己的计数；事件没有地址，因此哪些块在使用以及其他设置的效果均未知",
    },
    "replay.summed": {
        "en": "not replayed: its events have no addresses, as torch 1.9 wrote them, so sizes are added up; reserved "
              "memory, which blocks were live, and what other settings would do, are not known",
        "zh": "未重放：事件没有地址（torch 1.9 即如此），只能累加大小；已保留、哪些块在使用以及其他设置的效果均未知",
    },
    "replay.final.None": {"en": "the recording lists no blocks to compare", "zh": "记录中没有可比较的块"},
    "replay.course": {"en": "Course", "zh": "过程"},
    "replay.legend": {
        "en": "filled: allocated; line: reserved; {events} events from left to right",
        "zh": "填充：已分配；线：已保留；从左到右共 {events} 个事件",
    },
    "replay.legend_allocated": {
        "en": "filled: allocated; {events} events from left to right",
        "zh": "填充：已分配；从左到右共 {events} 个事件",
    },
    "replay.no_holes": {
        "en": "where in reserved memory it is, is not known: the recording lists no segments",
        "zh": "记录中没有段，因此不知道位于已保留的何处",
    },
    "replay.held": {"en": "Live at the peak, by category", "zh": "峰值时的占用（按类别）"},
    "replay.modules": {"en": "by module (the nearest forward)", "zh": "按模块（最近的 forward）"},
    "replay.lines": {"en": "by line of your code", "zh": "按用户代码行"},
    "replay.stacks": {"en": "by stack", "zh": "按调用栈"},
    "replay.largest": {"en": "Largest blocks", "zh": "最大的块"},
    "replay.blocks": {"en": "{count} blocks", "zh": "{count} 块"},
    "replay.block": {"en": "1 block", "zh": "1 块"},
    "replay.unnamed": {"en": "(no line recorded)", "zh": "（没有记录行号）"},
    "replay.no_module": {"en": "(outside any forward)", "zh": "（不在任何 forward 中）"},
    "replay.no_stack": {"en": "(no stack recorded)", "zh": "（没有记录调用栈）"},
    "replay.unknown": {
        "en": "{size} of it in {count}: no rule names what it is for",
        "zh": "其中 {size}（{count}）没有规则能判断用途",
    },
    "replay.held_before": {
        "en": "{size} of it in {count} was there before the recording, or took the place of what was, as weights, "
              "optimizer states and caches do; record from the start of the process to tell them apart",
        "zh": "其中 {size}（{count}）在录制前就已存在，或取代了录制前已有的块，如权重、优化器状态和缓存；"
              "从进程开始处录制即可区分",
    },
    "replay.held_unlisted": {
        "en": "{size} of it was there before the recording, which does not say what it is; record from the start of "
              "the process to see it",
        "zh": "其中 {size} 在录制前就已存在，记录没有说明是什么；从进程开始处录制即可看到",
    },
    "replay.unlisted": {"en": "not listed", "zh": "未列出"},
    "replay.rest": {"en": "{count} more", "zh": "其余 {count} 项"},
    "replay.since": {"en": "since event {event}", "zh": "自第 {event} 个事件"},
    "replay.age": {"en": "{age} old", "zh": "已存在 {age}"},
    "replay.before": {"en": "since before the recording", "zh": "录制前已存在"},
    "replay.category.kv cache": {"en": "KV cache", "zh": "KV 缓存"},
    "replay.category.weights": {"en": "weights", "zh": "权重"},
    "replay.category.gradients": {"en": "gradients", "zh": "梯度"},
    "replay.category.optimizer": {"en": "optimizer states", "zh": "优化器状态"},
    "replay.category.activations": {"en": "activations", "zh": "激活"},
    "replay.category.workspaces": {"en": "workspaces", "zh": "工作区"},
    "replay.category.temporaries": {"en": "temporaries", "zh": "临时张量"},
    "replay.category.inputs": {"en": "inputs", "zh": "输入"},
    "replay.category.backward": {"en": "made by an unfinished backward pass", "zh": "未完成的反向传播所分配"},
    "replay.category.held before": {"en": "held since before the recording", "zh": "录制前已存在且一直保留"},
    "replay.category.unknown": {"en": "unknown", "zh": "未知"},
    "replay.fragmentation": {
        "en": "Fragmentation: {run} of the run (1 - peak allocated / peak reserved)",
        "zh": "碎片率：整个过程 {run}（1 - 已分配峰值 / 已保留峰值）",
    },
    "replay.fragmentation_then": {
        "en": "when reserved was highest, {share} of {reserved} was in no tensor:",
        "zh": "已保留最高时，{reserved} 中有 {share} 不属于任何张量：",
    },
    "replay.part.requested": {"en": "tensors", "zh": "张量"},
    "replay.part.rounding": {"en": "rounding and slack", "zh": "取整与余量"},
    "replay.part.awaiting": {"en": "freed, in use on another stream", "zh": "已释放，其他流仍在使用"},
    "replay.part.split": {"en": "holes in segments that something else holds", "zh": "被其他块占住的段中的空洞"},
    "replay.part.cached": {
        "en": "whole free segments (empty_cache returns them)", "zh": "整段空闲（empty_cache 可归还）",
    },
    "replay.class": {"en": "holes of {low} to {high}", "zh": "{low} 到 {high} 的空洞"},
    "replay.class_last": {"en": "holes of {low} and more", "zh": "{low} 以上的空洞"},
    "replay.holes": {"en": "Largest holes and their neighbours", "zh": "最大的空洞及其相邻块"},
    "replay.hole": {
        "en": "{size} at {address}, in a segment of {segment}",
        "zh": "{size}，地址 {address}，所在段 {segment}",
    },
    "replay.neighbour_before": {"en": "before it", "zh": "之前"},
    "replay.neighbour_after": {"en": "after it", "zh": "之后"},
    "replay.edge": {"en": "end of the segment", "zh": "段边界"},
    "replay.pinned": {"en": "Segments that little holds", "zh": "仅被少量内存占住的段"},
    "replay.pin": {
        "en": "{free} of {size} free at {address}; {live} holds it",
        "zh": "地址 {address}：{size} 中 {free} 空闲，被 {live} 占住",
    },
    "replay.failures": {"en": "Out of memory in the recording", "zh": "录制中的显存不足"},
    "replay.failure": {
        "en": "event {event}: {request} asked for, {allocated} allocated and {reserved} reserved",
        "zh": "第 {event} 个事件：请求 {request}，已分配 {allocated}，已保留 {reserved}",
    },
    "replay.failure_allocated": {
        "en": "event {event}: {request} asked for, {allocated} allocated",
        "zh": "第 {event} 个事件：请求 {request}，已分配 {allocated}",
    },
    "replay.contiguous.None": {
        "en": "free in the allocator: {free}, on the card: {driver}; whether it would have been enough in one piece "
              "cannot be told",
        "zh": "分配器中空闲：{free}，卡上空闲：{driver}；若连成一片是否够用无法判断",
    },
    "replay.contiguous.True": {
        "en": "{free} was free in the allocator, the largest piece {largest}, and {driver} on the card: "
              "in one piece it would have been enough, so this is fragmentation",
        "zh": "分配器中空闲 {free}（最大一块 {largest}），卡上空闲 {driver}：若连成一片就够用，因此是碎片问题",
    },
    "replay.contiguous.False": {
        "en": "{free} was free in the allocator, the largest piece {largest}, and {driver} on the card: "
              "not enough even in one piece",
        "zh": "分配器中空闲 {free}（最大一块 {largest}），卡上空闲 {driver}：即使连成一片也不够",
    },
    "replay.not_known": {"en": "an unknown amount", "zh": "未知数量"},
    "replay.more_failures": {"en": "{count} more like these", "zh": "另有 {count} 次"},
    "replay.variants": {"en": "Under other settings", "zh": "其他设置下的重放"},
    "replay.variants_capacity": {
        "en": "Under other settings, with {capacity} to reserve",
        "zh": "其他设置下的重放（可保留 {capacity}）",
    },
    "replay.setting": {"en": "setting", "zh": "设置"},
    "replay.defaults": {"en": "defaults", "zh": "默认"},
    "replay.as_recorded": {"en": "{conf} (of the recording)", "zh": "{conf}（录制时）"},
    "replay.as_assumed": {
        "en": "{conf} (assumed: the recording states none)", "zh": "{conf}（假定：记录未说明设置）",
    },
    "replay.least_laid": {
        "en": "what was held before the recording and stays is not in these figures, nor in what runs out of memory",
        "zh": "录制前已存在且一直保留的不在这些数值中，也未计入是否显存不足",
    },
    "replay.laid_anew": {
        "en": "what was live before the recording is laid out anew under each, without the cache of its past; the "
              "recording itself reserved {reserved}",
        "zh": "录制前已存在的块在各设置下重新排布，不含此前的缓存；录制本身保留了 {reserved}",
    },
    "replay.unlisted_laid": {
        "en": "{size} that was there before the recording is taken as one piece under each; the recording itself "
              "reserved {reserved}",
        "zh": "录制前已存在的 {size} 在各设置下按一整块计算；录制本身保留了 {reserved}",
    },
    "replay.peak_reserved": {"en": "peak reserved", "zh": "已保留峰值"},
    "replay.change": {"en": "change", "zh": "变化"},
    "replay.retries": {"en": "retries", "zh": "重试"},
    "replay.oom": {"en": "out of memory", "zh": "显存不足"},
    "replay.oom_at": {"en": "at event {event}, {size} asked for", "zh": "第 {event} 个事件，请求 {size}"},
    "replay.oom_start": {
        "en": "before the first event, {size} asked for", "zh": "首个事件之前，请求 {size}",
    },
    "replay.oom_again": {"en": "where the recording did ({count})", "zh": "与录制时相同处（{count} 次）"},
    "replay.no_oom": {"en": "no", "zh": "否"},
    "replay.advice.lowers": {
        "en": "{conf} would have lowered reserved memory most: by {saved} to {reserved} ({share})",
        "zh": "{conf} 降低已保留最多：减少 {saved}，至 {reserved}（{share}）",
    },
    "replay.advice.avoids": {
        "en": "{conf} would have avoided the out-of-memory error, with {reserved} reserved at most",
        "zh": "{conf} 可避免显存不足，已保留最高 {reserved}",
    },
    "replay.advice.unsure": {
        "en": "{conf} comes to {saved} less reserved memory, which is less than laying out anew what was live before "
              "the recording changes: that proves nothing",
        "zh": "{conf} 使已保留减少 {saved}，小于重新排布录制前已存在的块所带来的变化：不能说明问题",
    },
    "replay.advice.not_repeated": {
        "en": "laid out anew, the same requests do not run out where the recording did: no setting can be shown to "
              "help",
        "zh": "重新排布后，同样的请求不会在录制时的位置耗尽显存：无法证明哪种设置有用",
    },
    "replay.advice.none": {
        "en": "none of {tried} other settings would have lowered reserved memory",
        "zh": "其他 {tried} 种设置都不能降低已保留",
    },
    "replay.advice.none_avoids": {
        "en": "none of {tried} other settings would have avoided the out-of-memory error",
        "zh": "其他 {tried} 种设置都不能避免显存不足",
    },
    "replay.leaks": {"en": "Growth over steps", "zh": "随步数的增长"},
    "replay.leaks_none": {
        "en": "nothing grows over {steps} steps (found by {by})",
        "zh": "{steps} 步中没有持续增长（步由{by}得出）",
    },
    "replay.leaks_some": {
        "en": "{size} a step more, over {steps} steps (found by {by}), at {count}",
        "zh": "每步增加 {size}，共 {steps} 步（步由{by}得出），{count}",
    },
    "replay.leaks_untold": {
        "en": "cannot be told: the recording has {steps}, and a leak shows over 3 or more",
        "zh": "无法判断：录制中有 {steps}，至少 3 步才能看出泄漏",
    },
    "replay.leaks_no_addresses": {
        "en": "cannot be told: the events have no addresses, so when a block was freed is not known",
        "zh": "无法判断：事件没有地址，不知道块何时释放",
    },
    "replay.steps": {"en": "{count} whole steps", "zh": "{count} 个完整步"},
    "replay.step": {"en": "1 whole step", "zh": "1 个完整步"},
    "replay.no_steps": {"en": "no step that could be recognised", "zh": "无法识别的步"},
    "replay.places": {"en": "{count} places", "zh": "{count} 处"},
    "replay.place": {"en": "1 place", "zh": "1 处"},
    "replay.by.optimizer": {"en": "stacks of the optimizer", "zh": "优化器的调用栈"},
    "replay.by.annotations": {"en": "marks of the optimizer", "zh": "优化器标记"},
    "replay.by.repetition": {"en": "what repeats", "zh": "重复模式"},
    "replay.leak": {
        "en": "{size} a step (blocks: {blocks}), {live} by now: {category}",
        "zh": "每步 {size}（{blocks} 块），现已 {live}：{category}",
    },
    "replay.difference": {"en": "Against {name}", "zh": "与 {name} 相比"},
    "replay.same_process.True": {
        "en": "one process: the recordings share events", "zh": "同一进程：两份记录有共同事件",
    },
    "replay.same_process.False": {
        "en": "no event in common: compared as two runs", "zh": "没有共同事件：按两次运行比较",
    },
    "replay.same_process.None": {
        "en": "events without times cannot tell one process from two: compared as two runs",
        "zh": "事件没有时间，无法判断是否为同一进程：按两次运行比较",
    },
    "replay.was": {"en": "before", "zh": "之前"},
    "replay.is": {"en": "now", "zh": "现在"},
    "replay.what.reserved": {"en": "peak reserved", "zh": "已保留峰值"},
    "replay.what.peak": {"en": "peak allocated", "zh": "已分配峰值"},
    "replay.what.end": {"en": "allocated at the end", "zh": "结束时已分配"},
    "replay.segments.True": {
        "en": "{count} segments at the end are new ({size})", "zh": "结束时新增 {count} 个段（{size}）",
    },
    "replay.segments.False": {
        "en": "{count} segments are gone at the end ({size})", "zh": "结束时消失 {count} 个段（{size}）",
    },
    "replay.grown.peak": {"en": "at the peak", "zh": "峰值时"},
    "replay.grown.end": {"en": "at the end", "zh": "结束时"},
    "replay.notes": {"en": "Notes", "zh": "说明"},
    "replay.written": {"en": "written: {path}", "zh": "已写入：{path}"},
    "replay.page.title": {"en": "Replay of {name}", "zh": "{name} 的重放"},
    "replay.page.timeline": {"en": "Timeline", "zh": "时间线"},
    "replay.page.hint": {
        "en": "move over it to read a moment; drag to zoom, double-click for everything",
        "zh": "移动鼠标查看某一时刻；拖动放大，双击还原",
    },
    "replay.page.map": {"en": "Segments when reserved was highest", "zh": "已保留最高时的段"},
    "replay.page.live": {"en": "live", "zh": "使用中"},
    "replay.page.free": {"en": "free", "zh": "空闲"},
    "replay.page.awaits": {"en": "awaiting free", "zh": "等待释放"},
    "replay.page.event": {"en": "event", "zh": "事件"},
    "replay.page.rounding": {"en": "rounding, slack", "zh": "取整与余量"},
    "replay.page.filter": {"en": "filter by category, file or function", "zh": "按类别、文件或函数筛选"},
    "replay.page.address": {"en": "address", "zh": "地址"},
    "replay.page.size": {"en": "size", "zh": "大小"},
    "replay.page.age": {"en": "age", "zh": "存在时间"},
    "replay.page.category": {"en": "category", "zh": "类别"},
    "replay.page.stack": {"en": "stack, innermost first", "zh": "调用栈（最内层在前）"},
    "replay.page.exact": {"en": "replayed exactly", "zh": "完全一致"},
    "replay.page.matched": {"en": "at their recorded address", "zh": "地址与记录一致"},
    "replay.page.fragmentation": {"en": "fragmentation", "zh": "碎片率"},
    "replay.page.shown": {"en": "{count} largest of {total} shown", "zh": "显示最大的 {count} 个，共 {total} 个"},
}
