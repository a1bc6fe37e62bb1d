"""The words of reports on logs, in each language; part of `messages.MESSAGES`."""

from __future__ import annotations

from typing import Final

LOG_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "reconciled.agrees": {
        "en": "agrees: every entry is as large as predicted, but for rounding",
        "zh": "一致：除舍入误差外，各项与预测相同",
    },
    "reconciled.more": {
        "en": "largest difference: {entry}, {size} more than predicted, {share} of all differences",
        "zh": "差异最大的一项：{entry}，比预测多 {size}，占全部差异的 {share}",
    },
    "reconciled.less": {
        "en": "largest difference: {entry}, {size} less than predicted, {share} of all differences",
        "zh": "差异最大的一项：{entry}，比预测少 {size}，占全部差异的 {share}",
    },
    "reconciled.log": {"en": "{log}: {engine}", "zh": "{log}：{engine}"},
    "reconciled.rank": {"en": "{log}: {engine}, {rank}", "zh": "{log}：{engine}，{rank}"},
    "reconciled.predicted": {"en": "predicted: {verdict}", "zh": "预测：{verdict}"},
    "measured": {"en": "measured", "zh": "实测"},
    "predicted": {"en": "predicted", "zh": "预测"},
    "difference": {"en": "difference", "zh": "差异"},
    "follows": {"en": "follows from the others", "zh": "由其他各项决定"},
    "why": {"en": "Why", "zh": "原因"},
    "notes": {"en": "Notes", "zh": "说明"},
    "offer": {
        "en": "To use this in later questions: add --save-calibration FILE here, then ask with --calibration FILE.",
        "zh": "要在以后的提问中使用：此处加 --save-calibration FILE，之后提问时加 --calibration FILE。",
    },
    "calibration_saved": {"en": "Saved: ask with --calibration {path}", "zh": "已保存：提问时加 --calibration {path}"},
    "entry.communication": {"en": "non-torch (NCCL, kernels)", "zh": "非 torch（NCCL、内核）"},
    "entry.tokens": {"en": "tokens in the cache", "zh": "缓存 token 数"},
    "entry.concurrency": {"en": "concurrency", "zh": "并发数"},
    "oom": {"en": "Out of memory, {stage}", "zh": "显存不足，{stage}"},
    "oom.load": {"en": "while the weights were loaded", "zh": "加载权重时"},
    "oom.profile": {"en": "while the largest batch was tried", "zh": "试运行最大批次时"},
    "oom.capture": {"en": "after the cache was taken: while graphs were captured", "zh": "分配缓存后：捕获 CUDA 图时"},
    "oom.serve": {
        "en": "after start-up: while the sampler was warmed up or requests ran",
        "zh": "启动之后：采样器预热或处理请求时",
    },
    "oom.tried": {"en": "request that failed", "zh": "失败的申请"},
    "oom.total": {"en": "card in all", "zh": "整卡容量"},
    "oom.free": {"en": "free", "zh": "空闲"},
    "oom.process": {"en": "used by this process", "zh": "本进程占用"},
    "oom.others": {"en": "used by other processes", "zh": "其他进程占用"},
    "oom.allocated": {"en": "live tensors", "zh": "存活张量"},
    "oom.unallocated": {"en": "reserved, not allocated", "zh": "已保留未分配"},
    "oom.pools": {"en": "private pools (CUDA graphs)", "zh": "私有池（CUDA 图）"},
    "oom.predicted_device": {"en": "predicted for this process", "zh": "对本进程的预测"},
    "why.held": {
        "en": "{held} of the card was in use before the server began: another process holds it",
        "zh": "服务启动前卡上已占用 {held}：有其他进程",
    },
    "why.token_bytes": {
        "en": "a token takes {ratio} times the predicted bytes of the cache: see --kv-dtype, --block-tokens and layers "
        "that share blocks",
        "zh": "每个 token 占用的缓存是预测的 {ratio} 倍：请检查 --kv-dtype、--block-tokens 以及共享块的层",
    },
    "why.weights.more": {
        "en": "the engine keeps more than the plain weights (draft model, adapters, encoder, padding), or stores them "
        "wider than {weights}: say how with --weights",
        "zh": "引擎保留了更多内容（草稿模型、适配器、编码器、填充），或存储格式比 {weights} 更宽：用 --weights 指明",
    },
    "why.weights.less": {
        "en": "the weights are stored narrower than {weights}, or part of them is not loaded: say how with --weights",
        "zh": "权重的存储格式比 {weights} 更窄，或有一部分未加载：用 --weights 指明",
    },
    "why.draft model.more": {
        "en": "the draft model is larger than assumed: name it with --draft MODEL",
        "zh": "草稿模型比假设的大：用 --draft MODEL 指明",
    },
    "why.draft model.less": {
        "en": "the draft model is smaller than assumed: name it with --draft MODEL",
        "zh": "草稿模型比假设的小：用 --draft MODEL 指明",
    },
    "why.activations.more": {
        "en": "the profiled batch needs more: more sequences or tokens than asked here (--max-sequences, "
        "--batched-tokens), images in prompts, or kernels with larger workspaces",
        "zh": "试运行的批次需要更多：序列或 token 多于此处所设（--max-sequences、--batched-tokens）、提示中有图像，"
        "或内核工作区更大",
    },
    "why.activations.less": {
        "en": "the profiled batch needs less: fewer sequences or tokens than asked here (--max-sequences, "
        "--batched-tokens), or compiled kernels that keep less",
        "zh": "试运行的批次需要更少：序列或 token 少于此处所设（--max-sequences、--batched-tokens），"
        "或编译后的内核占用更少",
    },
    "why.communication.more": {
        "en": "NCCL, custom all-reduce or kernel modules take more on this machine, or another process used the card "
        "while the engine measured",
        "zh": "本机上 NCCL、自定义 all-reduce 或内核模块占用更多，或引擎测量时有其他进程使用该卡",
    },
    "why.communication.less": {
        "en": "NCCL, custom all-reduce or kernel modules take less on this machine",
        "zh": "本机上 NCCL、自定义 all-reduce 或内核模块占用更少",
    },
    "why.cuda graphs.more": {
        "en": "more or larger batches were captured than assumed",
        "zh": "捕获的批次比假设的更多或更大",
    },
    "why.cuda graphs.less": {
        "en": "fewer or smaller batches were captured than assumed",
        "zh": "捕获的批次比假设的更少或更小",
    },
    "why.inputs.more": {
        "en": "the runtime's own buffers are larger than assumed",
        "zh": "运行时自身的缓冲区比假设的大",
    },
    "why.inputs.less": {
        "en": "the runtime's own buffers are smaller than assumed",
        "zh": "运行时自身的缓冲区比假设的小",
    },
    "why.workspaces.more": {
        "en": "context, libraries and pools of this build take more than assumed, or another process uses the card",
        "zh": "此版本的上下文、库和内存池占用比假设的多，或有其他进程使用该卡",
    },
    "why.workspaces.less": {
        "en": "context, libraries and pools of this build take less than assumed",
        "zh": "此版本的上下文、库和内存池占用比假设的少",
    },
    "why.kv cache.more": {
        "en": "the cache holds more tokens or wider ones than asked: --context, --concurrency, --kv-dtype ({kv}), "
        "--cache-bytes",
        "zh": "缓存的 token 比所问的更多或更宽：--context、--concurrency、--kv-dtype（{kv}）、--cache-bytes",
    },
    "why.kv cache.less": {
        "en": "the cache holds fewer tokens or narrower ones than asked: --context, --concurrency, --kv-dtype ({kv}), "
        "--cache-bytes",
        "zh": "缓存的 token 比所问的更少或更窄：--context、--concurrency、--kv-dtype（{kv}）、--cache-bytes",
    },
    "why.kv cache.alone": {
        "en": "the other entries do not explain it: the share of the card (--memory-fraction, --cache-bytes), its "
        "memory or what others hold of it differ from what was asked",
        "zh": "其余各项无法解释：显存比例（--memory-fraction、--cache-bytes）、卡的容量或其他进程的占用与所问不同",
    },
    "version_unknown": {
        "en": "the log does not say the engine's version; taken as {version} (say which with --engine)",
        "zh": "日志未给出引擎版本；按 {version} 处理（可用 --engine 指明）",
    },
    "version_newer": {
        "en": "{engine} {version} is newer than what is modelled; answered as {newest}",
        "zh": "{engine} {version} 比已建模的版本新；按 {newest} 回答",
    },
    "other_card": {
        "en": "the log states a card of {stated}, {gpu} has {visible}: is it another card?",
        "zh": "日志中的卡容量为 {stated}，而 {gpu} 为 {visible}：是否另一种卡？",
    },
    "card_by_memory": {
        "en": "the log does not name the cards; {gpus} is the only one known with that much memory",
        "zh": "日志未给出卡型；已知卡型中只有 {gpus} 的容量相符",
    },
    "last_of_startups": {
        "en": "the log holds {count} start-ups; this is the last one",
        "zh": "日志中有 {count} 次启动；此处为最后一次",
    },
    "log_cut": {
        "en": "the log is longer than is read; its end was left out",
        "zh": "日志超出读取上限；末尾未读",
    },
    "log_is_half": {
        "en": "the log ends before the cache is sized; only what it states is compared",
        "zh": "日志在确定缓存大小之前结束；只比较其中给出的项",
    },
    "left_over": {
        "en": "the log states a sum only: what its share of the card leaves after the other entries",
        "zh": "日志只给出合计：显存份额减去其余各项",
    },
    "storage_unknown": {
        "en": "the log says the weights are stored as {quantisation}, which names no format: say which with --weights",
        "zh": "日志称权重以 {quantisation} 存储，但未指明格式：用 --weights 指明",
    },
    "engine_refused": {"en": "the engine gave up: {text}", "zh": "引擎放弃启动：{text}"},
}
"""Key -> language -> text."""
