"""What the layers below say of plans, techniques and decisions, in Chinese."""

from __future__ import annotations

from typing import Final

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
