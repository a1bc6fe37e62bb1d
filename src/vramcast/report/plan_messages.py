"""The words of reports on searches, in each language; part of `messages.MESSAGES`."""

from __future__ import annotations

from typing import Final

PLAN_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "found.largest-batch": {
        "en": "largest micro-batch that fits: {value} samples ({what})",
        "zh": "能放下的最大微批次：{value}（{what}）",
    },
    "found.longest-sequence": {
        "en": "longest sequence that fits: {value} tokens ({what})",
        "zh": "能放下的最长序列：{value} 个 token（{what}）",
    },
    "found.knee": {
        "en": "a larger micro-batch than {value} gains less than 5 % or does not fit ({what})",
        "zh": "微批次超过 {value} 后收益低于 5 % 或放不下（{what}）",
    },
    "found.largest-model": {
        "en": "largest model of the catalogue that fits: {value} ({what})",
        "zh": "目录中能训练的最大模型：{value}（{what}）",
    },
    "found.smallest-box": {
        "en": "smallest machine that is enough: {value} ({what})",
        "zh": "够用的最小机器：{value}（{what}）",
    },
    "found.cheapest-box": {
        "en": "cheapest machine that is enough: {value} ({what})",
        "zh": "够用的最便宜机器：{value}（{what}）",
    },
    "found.parameters": {"en": "LLaMA-like up to", "zh": "LLaMA 类最大"},
    "found.model": {"en": "largest of the catalogue", "zh": "目录中最大"},
    "goal.fastest": {"en": "fastest", "zh": "最快"},
    "goal.cheapest": {"en": "cheapest", "zh": "最便宜"},
    "goal.gpu-hours": {
        "en": "fewest GPU-hours (no price is known; --price 2.5usd gives one)",
        "zh": "GPU 小时最少（价格未知；可用 --price 2.5usd 指定）",
    },
    "goal.fewest-gpus": {"en": "fewest GPUs", "zh": "用卡最少"},
    "goal.least-memory": {"en": "least memory", "zh": "显存占用最低"},
    "plan.best": {"en": "{goal}: {label}", "zh": "{goal}：{label}"},
    "plan.nothing_fits": {"en": "none of {count} plans fits", "zh": "{count} 个方案都放不下"},
    "plan.limits_missed": {
        "en": "none of {count} plans keeps to the limits of the run; {fitting} of them fit in memory",
        "zh": "{count} 个方案都不满足训练期限或预算；其中 {fitting} 个显存放得下",
    },
    "plan.missed.deadline": {
        "en": "deadline: the fastest run takes {least}, the limit is {allowed}",
        "zh": "期限：最快需要 {least}，限制为 {allowed}",
    },
    "plan.missed.budget": {
        "en": "budget: the cheapest run costs {least}, the limit is {allowed}",
        "zh": "预算：最便宜需要 {least}，限制为 {allowed}",
    },
    "plan.enough": {
        "en": "{times} times the machines keep it: {amount} with",
        "zh": "机器增至 {times} 倍即可满足：{amount}",
    },
    "plan.none_enough": {
        "en": "no number of machines looked at keeps it (--max-gpus and --global-batch bound them); a longer deadline "
              "does",
        "zh": "试过的机器数量都不能满足（受 --max-gpus 与 --global-batch 限制）；可放宽期限",
    },
    "plan.counts": {"en": "{plans} plans looked at, {fitting} fit", "zh": "共比较 {plans} 个方案，{fitting} 个放得下"},
    "plan.command": {"en": "run: {command}", "zh": "命令：{command}"},
    "plan.replica": {"en": "each replica: {command}", "zh": "每个副本的命令：{command}"},
    "plan.comma": {"en": ", ", "zh": "，"},
    "plan.step": {"en": "step {seconds}", "zh": "每步 {seconds}"},
    "plan.speed": {"en": "{rate} tokens/s", "zh": "{rate} token/s"},
    "plan.per_hour": {"en": "{amount} per hour", "zh": "每小时 {amount}"},
    "plan.per_tokens": {"en": "{amount} per million tokens", "zh": "每百万 token {amount}"},
    "plan.per_run": {"en": "the run: {amount}", "zh": "整个训练：{amount}"},
    "plan.run_length": {"en": "the run takes {length}", "zh": "整个训练需 {length}"},
    "plan.interval": {"en": "90 % between {low} and {high}", "zh": "90 % 区间 {low} 至 {high}"},
    "plan.caution": {"en": "caution: {text}", "zh": "注意：{text}"},
    "plan.gives_back": {
        "en": "{mark} fits only because the allocator gives cached memory back when the card is full: expect retries "
              "and slow steps",
        "zh": "{mark} 仅因显存占满时分配器归还缓存才放得下：可能重试并变慢",
    },
    "plan.table": {"en": "Plans, best first", "zh": "方案（从优到劣）"},
    "plan.shared": {"en": "all with {options}", "zh": "共同选项：{options}"},
    "plan.memory": {"en": "per GPU", "zh": "每卡"},
    "plan.needed": {"en": "needed, all GPUs", "zh": "所需（全部卡）"},
    "plan.needed_each": {"en": "needed, fullest", "zh": "所需（最满的卡）"},
    "plan.needs": {
        "en": "the load needs {total} of all GPUs, {each} of the fullest",
        "zh": "负载所需：全部卡共 {total}，最满的卡 {each}",
    },
    "plan.measure": {
        "en": "ranked by what the load needs, over all GPUs, then on the fullest: weights, its part of the cache, "
              "activations, graphs, contexts; \"per GPU\" is what the engine takes",
        "zh": "排序依据为负载所需显存（先全部卡之和，再最满的卡）：权重、负载占用的缓存、激活、CUDA 图、上下文；"
              "“每卡”是引擎占用的量",
    },
    "plan.fleet": {
        "en": "({replicas} replicas on {machines} x {machine})",
        "zh": "（{replicas} 个副本，{machines} x {machine}）",
    },
    "plan.fleet_of_one": {
        "en": "({replicas} replica on {machines} x {machine})",
        "zh": "（{replicas} 个副本，{machines} x {machine}）",
    },
    "plan.ttft": {"en": "first token after {seconds}", "zh": "首个 token {seconds}"},
    "plan.per_user": {
        "en": "with the prompts' time: {rate} tokens/s per user",
        "zh": "计入提示时间：每用户 {rate} token/s",
    },
    "plan.all_replicas": {"en": "{rate} tokens/s of all replicas", "zh": "所有副本合计 {rate} token/s"},
    "plan.per_generated": {"en": "{amount} per million generated tokens", "zh": "每百万生成 token {amount}"},
    "plan.first_token": {"en": "first token", "zh": "首 token"},
    "plan.users_each": {"en": "tokens/s per user", "zh": "每用户 token/s"},
    "plan.rate_of_all": {"en": "of all replicas", "zh": "所有副本"},
    "plan.step_s": {"en": "step", "zh": "每步"},
    "plan.price": {"en": "per million tokens", "zh": "每百万 token"},
    "plan.price_generated": {"en": "per million generated", "zh": "每百万生成 token"},
    "plan.reasons": {"en": "Why it wins", "zh": "为什么最优"},
    "plan.why_none": {"en": "Why none fits", "zh": "为什么都放不下"},
    "plan.why_none.limit": {"en": "Why none keeps the limits", "zh": "为什么都不满足限制"},
    "plan.why_none.untimed": {"en": "Why none can be compared", "zh": "为什么无法比较"},
    "plan.nothing_fits.limit": {"en": "none of {count} plans keeps the limits", "zh": "{count} 个方案都不满足限制"},
    "plan.nothing_fits.untimed": {
        "en": "none of {count} plans that fits has a known speed",
        "zh": "{count} 个方案中放得下的速度都未知",
    },
    "plan.nearest.left_out": {"en": "Nearest that is left out", "zh": "最接近但未采用的方案"},
    "plan.nearest.limit": {"en": "Nearest that misses a limit", "zh": "最接近但超出限制的方案"},
    "plan.nearest.untimed": {"en": "Nearest whose speed is not known", "zh": "最接近但速度未知的方案"},
    "plan.change.limit": {"en": "possible with {change} ({cost})", "zh": "改用 {change} 即可（{cost}）"},
    "plan.change.untimed": {"en": "possible with {change} ({cost})", "zh": "改用 {change} 即可（{cost}）"},
    "reason.respect": {
        "en": "{respect}: the best with {other} instead of {own} {worse}",
        "zh": "{respect}：改用 {other}（现为 {own}）的最优方案{worse}",
    },
    "reason.as_stored": {"en": "as stored", "zh": "原样"},
    "reason.bound": {
        "en": "decoding is bound by {bound}: {share} of a step goes to {cause}",
        "zh": "解码受限于{bound}：每步 {share} 的时间用于{cause}",
    },
    "reason.first-token": {
        "en": "the first token takes {value} s, bound by {bound}",
        "zh": "首个 token 需要 {value} s，受限于{bound}",
    },
    "reason.per-user": {
        "en": "one user alone gets {value} tokens/s, bound by {bound}",
        "zh": "只有一个用户时也只有 {value} token/s，受限于{bound}",
    },
    "reason.per-user.several": {
        "en": "each of {users} users gets {value} tokens/s, bound by {bound}",
        "zh": "{users} 个用户每人 {value} token/s，受限于{bound}",
    },
    "reason.no-speed": {"en": "its speed is not known", "zh": "速度未知"},
    "reason.memory": {"en": "more memory is needed than the card has", "zh": "所需显存超过单卡容量"},
    "reason.load-gpus": {
        "en": "the load takes {value} GPUs, --on and --max-gpus allow {limit}",
        "zh": "该负载需要 {value} 张卡，--on 与 --max-gpus 只允许 {limit} 张",
    },
    "reason.replica-gpus": {
        "en": "one replica takes {value} GPUs, --on and --max-gpus allow {limit}",
        "zh": "一个副本需要 {value} 张卡，--on 与 --max-gpus 只允许 {limit} 张",
    },
    "worse.fastest.share": {"en": "is {share} slower", "zh": "慢 {share}"},
    "worse.fastest.times": {"en": "is {times} times as slow", "zh": "耗时为 {times} 倍"},
    "worse.cheapest.share": {"en": "is {share} dearer", "zh": "贵 {share}"},
    "worse.cheapest.times": {"en": "is {times} times as dear", "zh": "价格为 {times} 倍"},
    "worse.fewest-gpus.share": {"en": "needs {share} more GPUs", "zh": "多用 {share} 的卡"},
    "worse.fewest-gpus.times": {"en": "needs {times} times the GPUs", "zh": "用卡为 {times} 倍"},
    "worse.least-memory.share": {"en": "takes {share} more memory", "zh": "多占 {share} 显存"},
    "worse.least-memory.times": {"en": "takes {times} times the memory", "zh": "显存为 {times} 倍"},
    "plan.nearest": {"en": "Nearest that does not fit", "zh": "最接近但放不下的方案"},
    "plan.change": {
        "en": "{verdict} with {change}: {size} ({cost})", "zh": "改用 {change} 后{verdict}：{size}（{cost}）",
    },
    "change.slower": {"en": "{cost}; {share} more time", "zh": "{cost}；时间 +{share}"},
    "change.faster": {"en": "{cost}; {share} less time", "zh": "{cost}；时间 -{share}"},
    "plan.decisions": {"en": "The way there", "zh": "决策路径"},
    "plan.techniques": {
        "en": "Techniques, each alone, computed for this case",
        "zh": "各项技术（逐项单独计算，针对本例）",
    },
    "plan.saves": {"en": "saves", "zh": "节省"},
    "plan.slower": {"en": "time", "zh": "时间"},
    "plan.verdict": {"en": "verdict", "zh": "结论"},
    "plan.against": {"en": "against", "zh": "对比基准"},
    "plan.options": {"en": "options", "zh": "选项"},
    "plan.when": {"en": "when: {when}; needs: {needs}", "zh": "适用：{when}；需要：{needs}"},
    "plan.more_techniques": {
        "en": "{count} more change little; --explain shows them, and when to use each",
        "zh": "另有 {count} 项影响很小；--explain 显示全部及适用场合",
    },
    "plan.picture": {"en": "Cost against speed", "zh": "成本与速度"},
    "plan.tokens_axis": {"en": "tokens/s", "zh": "token/s"},
    "plan.cost_axis": {"en": "{unit} per million tokens", "zh": "每百万 token（{unit}）"},
    "plan.alike": {
        "en": "of plans that differ only in recomputation, micro-batch or chunks of a stage the best is listed",
        "zh": "仅在重计算、微批次或虚拟级上不同的方案只列最优者",
    },
    "plan.looking": {"en": "{plans} plans looked at, {seconds} s", "zh": "已查看 {plans} 个方案，{seconds} 秒"},
    "plan.on_front": {"en": "no plan is both faster and cheaper", "zh": "没有既更快又更便宜的方案"},
    "plan.behind": {"en": "another is faster and cheaper", "zh": "另有更快且更便宜的方案"},
    "technique": {"en": "technique", "zh": "技术"},
    "decision.fits": {
        "en": "{verdict}: {needed} of {capacity}", "zh": "{verdict}：需要 {needed}，可用 {capacity}",
    },
    "decision.high": {"en": ", 90 % up to {high}", "zh": "，90 % 至 {high}"},
    "decision.size_yes": {
        "en": "yes: {needed} of states, {capacity} usable",
        "zh": "超过：状态共 {needed}，单卡可用 {capacity}",
    },
    "decision.size_no": {
        "en": "no: {needed} of states, {capacity} usable",
        "zh": "不超过：状态共 {needed}，单卡可用 {capacity}",
    },
    "decision.more_yes": {"en": ": {needed} of {capacity}", "zh": " 台：{needed}，可用 {capacity}"},
    "decision.host": {
        "en": ", and at least {host} of main memory in each machine",
        "zh": "；每台机器另至少需内存 {host}",
    },
}
"""Key -> language -> text."""

TECHNIQUES_ZH: Final[dict[str, tuple[str, str, str]]] = {
    "flash attention": (
        "Flash Attention",
        "总是使用；序列越长收益越大",
        "FlashAttention 2 需要 Ampere 及以上；老卡有其他不存分数矩阵的内核",
    ),
    "mixed precision": ("混合精度", "总是使用，除非已知损失需要 fp32", "bf16 需要 Ampere 及以上，其余用 fp16"),
    "expandable segments": ("可扩展段", "已保留远大于已分配时", "PyTorch 2.1 及以上"),
    "ZeRO 1": ("ZeRO 1", "放不下的是优化器状态；多卡首选", "多个数据并行进程"),
    "ZeRO 2": ("ZeRO 2", "梯度也太大；部分框架在梯度累积时收益很小", "多个数据并行进程"),
    "ZeRO 3": ("ZeRO 3", "单卡放不下权重", "高速互连：每个微批次每层要收集两次"),
    "FSDP": ("FSDP", "同 ZeRO 3，由 PyTorch 自带", "高速互连：每个微批次每层要收集两次"),
    "HSDP": ("HSDP", "多台机器且机间网络较慢", "一台机器能放下整个模型"),
    "fused cross entropy": (
        "融合交叉熵",
        "大词表、长序列：logits 是最大的张量",
        "Liger、cut cross entropy 或框架自带内核",
    ),
    "half the micro-batch": ("微批次减半", "放不下的是激活", "用梯度累积保持批大小不变"),
    "micro-batch of one": ("微批次为 1", "放不下的是激活", "用梯度累积保持批大小不变"),
    "selective recomputation": ("选择性重计算", "激活略微超出", "框架知道哪些算子重算代价低"),
    "full recomputation": ("完全重计算", "激活远远超出", "无"),
    "tensor parallelism": ("张量并行", "单层或其激活对一张卡太大", "NVLink：不跨机器"),
    "tensor parallelism over the machine": ("整机张量并行", "仅靠流水线放不下", "NVLink，且注意力头数可整除"),
    "sequence parallelism": ("序列并行", "有张量并行时总是使用", "张量并行"),
    "pipeline parallelism": ("流水线并行", "一台机器放不下，或互连较慢", "每步有很多微批次"),
    "context parallelism": ("上下文并行", "长序列", "序列长度可整除"),
    "fp8": ("fp8", "新卡上的大矩阵乘", "Ada、Hopper 及以上；torchao 或 TransformerEngine"),
    "compile": ("torch.compile", "逐点算子占内存和时间", "静态形状，且模型可被 torch.compile 追踪"),
    "8-bit optimizer": ("8-bit 优化器", "单卡或少量卡上放不下优化器状态", "bitsandbytes 或 torchao"),
    "pure bf16": ("纯 bf16", "其他办法都放不下时的微调", "Ampere 及以上"),
    "optimizer on the CPU": (
        "优化器放到 CPU",
        "状态在卡上放不下，且每步较长",
        "内存：每参数 12 字节，由所有机器分担",
    ),
    "optimizer on NVMe": ("优化器放到 NVMe", "内存也太小", "本地盘：每参数 12 字节"),
    "weights and optimizer on the CPU": (
        "权重和优化器放到 CPU",
        "卡很少时的最后手段",
        "内存：每参数 14 至 16 字节，由所有机器分担",
    ),
    "activations on the CPU": ("激活放到 CPU", "长序列，配合重计算", "锁页内存，PCIe 4 及以上"),
    "LoRA": ("LoRA", "微调", "本身已足够好的模型"),
    "QLoRA": ("QLoRA", "在一张小卡上微调", "bitsandbytes"),
    "half the sequence": ("序列减半", "数据允许", "文档能放进去"),
}
"""Technique -> its name, when to use it, what it needs."""

COSTS_ZH: Final[dict[str, str]] = {
    "none; it is faster": "无，反而更快",
    "more communication per step": "每步通信更多",
    "gathers the weights in forward and backward": "前向和反向都要收集权重",
    "about none": "几乎没有",
    "smaller matrix products": "矩阵乘更小",
    "computes again what is cheap to compute": "重算代价低的部分",
    "computes again what is cheap to compute: a few per cent more time": "重算代价低的部分：时间多百分之几",
    "one more forward": "多一次前向",
    "one more forward: about a third more time": "多一次前向：时间约多三分之一",
    "communication in every layer": "每层都要通信",
    "pipeline bubbles": "流水线气泡",
    "exchanges keys and values": "交换键和值",
    "8-bit states": "8-bit 状态",
    "the step runs at PCIe and CPU speed": "优化器更新受限于 PCIe 和 CPU",
    "trains adapters instead of the weights": "只训练适配器，不训练权重",
    "shorter context": "上下文更短",
    "states stay on the cards": "状态留在卡上",
    "more hardware": "更多硬件",
    **{f"{factor} times the GPUs": f"{factor} 倍的卡" for factor in range(2, 65)},
    "nothing: the cards are there": "无：卡本来就有",
    "a smaller cache, but graphs and sampler have room": "缓存变小，但 CUDA 图和采样有了空间",
    "less room for everything else on the card": "卡上留给其他用途的空间变小",
    "longer prompts take more steps": "长提示需要更多步",
    "the host starts every kernel: slower decoding": "每个内核由主机启动：解码变慢",
    "a little accuracy at long contexts": "长上下文精度略降",
    "about none in accuracy": "精度几乎不变",
    "some accuracy": "损失一些精度",
    "shorter sequences": "序列更短",
    "fewer users at once": "并发用户更少",
    "twice the hardware": "两倍硬件",
    "users wait longer for the first token": "用户等首个 token 更久",
    "answers come more slowly": "回答更慢",
    "users wait longer for the first token, answers come more slowly": "用户等首个 token 更久，回答也更慢",
}
"""What a change costs."""

RESPECTS_ZH: Final[dict[str, str]] = {
    "cards": "卡", "engine": "框架", "tensor parallelism": "张量并行", "pipeline": "流水线",
    "context parallelism": "上下文并行", "expert parallelism": "专家并行", "virtual stages": "虚拟级",
    "sharding": "切分", "recomputation": "重计算", "optimizer offload": "优化器卸载", "precision": "精度",
    "micro-batch": "微批次", "machine": "机器", "weights": "权重", "kv cache": "KV 缓存",
}
"""In what plans differ."""

DECISIONS_ZH: Final[dict[str, str]] = {
    "one-card": "单卡直接放得下吗？",
    "one-card-recompute": "加上完全重计算呢？",
    "one-card-8bit": "再用 8-bit 优化器呢？",
    "one-card-bf16": "改用纯 bf16 呢？",
    "one-card-offload": "把优化器放到 CPU 呢？",
    "size": "参数量超过单卡能容纳其状态的上限吗（每参数 16 字节）？",
    "zero-1": "ZeRO 1 放得下吗？",
    "zero-2": "ZeRO 2 呢？",
    "zero-3": "ZeRO 3（FSDP）呢？",
    "zero-3-recompute": "再加完全重计算呢？",
    "tensor": "机内张量并行加 ZeRO 1 呢？",
    "pipeline": "每台机器再作一级流水线呢？",
    "offload": "ZeRO 3 且优化器放到 CPU 呢？",
    "offload-all": "权重也放到 CPU 呢？",
    "more": "用 ZeRO 3 和完全重计算，需要多少台这样的机器？",
}

ACTIONS_ZH: Final[dict[str, str]] = {
    "take it": "采用",
    "copy it to every card for speed": "复制到每张卡以提速",
    "shard them": "切分状态",
    "activations and temporaries are what is too large": "放不下的是激活和临时张量",
    "use that many": "使用这么多台",
    "recompute activations": "重计算激活",
    "save on what each parameter takes": "减少每个参数的占用",
    "train in pure bf16, if its rounding does no harm": "若舍入无害，用纯 bf16 训练",
    "put the optimizer on the CPU": "把优化器放到 CPU",
    "use several cards": "使用多张卡",
    "shard gradients as well": "再切分梯度",
    "shard weights as well": "再切分权重",
    "split the layers themselves": "切分层本身",
    "add pipeline stages or offload": "增加流水线级数或卸载",
    "offload": "卸载到 CPU",
    "put the weights on the CPU as well": "权重也放到 CPU",
    "use more cards, or larger ones": "使用更多或更大的卡",
}
"""What follows from a finding."""
