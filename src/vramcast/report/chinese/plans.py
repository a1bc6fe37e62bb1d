"""What searches say of plans in Chinese: why one does not fit, what was left out, what was looked at."""

from __future__ import annotations

from typing import Final

from vramcast.domain.answer import Fit
from vramcast.report.messages import MESSAGES

OWN_SPEED: Final = {
    "": "", ", {step} a step": "，每步 {step}",
    ", {step} a step, {rate} tokens/s": "，每步 {step}，{rate} token/s",
}
"""What may be said of the speed of a file's own plan."""

PLANS_ZH: Final[dict[str, str]] = {
    "{needed} needed, {there} usable": "需要 {needed}，可用 {there}",
    "no plan of {engines} is known here": "此处没有 {engines} 的可行方案",
    "needs --allow {name:w}": "需要 --allow {name}",
    "at least {low}, at most {high} of main memory in each machine": "每台机器需内存 {low} 至 {high}",
    "full recomputation: {options}": "完全重计算：{options}",
    "copies: {options}": "多副本：{options}",
    "full recomputation": "完全重计算",
    "tensor parallelism": "张量并行",
    "tensor and pipeline parallelism": "张量并行与流水线并行",
    "8-bit optimizer": "8-bit 优化器",
    "pure bf16": "纯 bf16",
    "optimizer on the CPU": "优化器放到 CPU",
    "weights and optimizer on the CPU": "权重和优化器放到 CPU",
    "activations on the CPU": "激活放到 CPU",
    "no price is known: costs are GPU-hours": "价格未知：费用以 GPU 小时计",
    "left out: {reason}": "未纳入：{reason}",
    "left out for want of a price: {names}": "因没有价格未纳入：{names}",
    "left out for want of a speed: {names}": "因没有速度数据未纳入：{names}",
    "left out: {count} machines priced in another currency than {currency}":
        "未纳入：{count} 种机器的价格不是 {currency}",
    "left out: {count} machines with the same cards and links as a cheaper one":
        "未纳入：{count} 种机器，与更便宜的机器卡型和互连相同",
    "{count} pipelines of {engine}, read one by one; --engine {again} looks at them":
        "{engine} 的 {count} 种流水线需逐一计算；--engine {again} 会查看它们",
    "not in the table of techniques: {technique}: {reason}": "不在技术表中：{technique}：{reason}",
    "engines looked at: {engines}; --engine names others": "查看的框架：{engines}；可用 --engine 指定其他框架",
    "global batch of {samples} samples; --global-batch says otherwise":
        "全局批大小为 {samples} 个样本；可用 --global-batch 指定",
    "fp16 with a loss scale on {gpus}, which have no bf16 tensor cores; --precision says otherwise":
        "{gpus} 没有 bf16 张量核心，使用带损失缩放的 fp16；可用 --precision 指定",
    "engine: {engine}; --engine vllm,sglang looks at several": "引擎：{engine}；--engine vllm,sglang 可查看多个",
    "weights as stored and in fp8; --weights stored,awq-int4 looks at other formats":
        "权重按原格式与 fp8；--weights stored,awq-int4 可查看其他格式",
    "no plan leaves the upper end of its 90 % interval on the card: what is shown may run out":
        "没有方案能把 90 % 区间的上限留在卡内：所示方案可能放不下",
    "90 % up to {high}, {usable} usable": "90 % 区间上限 {high}，可用 {usable}",
    "context of {tokens} tokens: a prompt and its answer": "上下文 {tokens} 个 token：提示加回答",
    "sequences of {tokens} tokens, the longest the model takes; --context says otherwise":
        "序列为 {tokens} 个 token，即模型支持的最长；可用 --context 指定",
    "left to the search, not taken from the file: {options}": "交给搜索决定，不取自文件：{options}",
    "{samples} samples are those of one GPU; --global-batch says how many a step has":
        "{samples} 个样本是一张卡的；可用 --global-batch 指定每步的样本数",
    **{
        f"the file's own plan on {{gpus}}: {fit}, {{size}} of {{there}} per GPU{english}":
            f"文件自身的方案在 {{gpus}} 上：{MESSAGES[f'verdict.{fit}']['zh']}，"
            f"每卡 {{size}}（可用 {{there}}）{chinese}"
        for english, chinese in OWN_SPEED.items() for fit in Fit
    },
    "the file's own plan is not possible on {gpus}: {reason}": "文件自身的方案在 {gpus} 上不可行：{reason}",
    "no deployment of {model} is possible on these machines: {reason}": "这些机器上无法部署 {model}：{reason}",
    "its weights take at least {size} GiB": "其权重至少需要 {size} GiB",
    "{engine} does not run on {gpu}": "{engine} 不能在 {gpu} 上运行",
    "{engine} has no {weights} weights on {gpu}": "{engine} 在 {gpu} 上不支持 {weights} 权重",
    "no plan of {engines} is possible for {model} on {clusters}: {reason}":
        "{model} 在 {clusters} 上没有可行的 {engines} 方案：{reason}",
    "degrees must divide the cards and the model, and the data-parallel ranks they leave must divide "
    "global-batch={batch}":
        "并行度必须整除卡数与模型，余下的数据并行进程数必须整除 global-batch={batch}",
    "no multiple of the machines that was looked at is enough: a shorter sequence, fewer bytes a parameter "
    "(--allow 8bit-optimizer,pure-bf16,offload) or larger cards are left":
        "查看过的机器倍数都不够：可缩短序列、减少每参数字节（--allow 8bit-optimizer,pure-bf16,offload）或换更大的卡",
    "no machine in the list": "列表中没有机器",
    # what a change costs, beside the table of costs
    "about one forward more": "约多一次前向",
    "other rounding": "舍入不同",
    "8-bit states": "8-bit 状态",
    "smaller matrices, more launches": "矩阵更小，内核启动更多",
    "{factor} times the GPUs": "{factor} 倍的卡",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
