"""What options mean, in Chinese, by the English text that their table has."""

from __future__ import annotations

from typing import Final

SEVERAL: Final = "; several: "
"""Between the text of an option and the example of an axis that takes several values of it."""

HELP_ZH: Final[dict[str, str]] = {
    "a model of the catalogue, by name; without one, numbers": "目录中的模型名；不填则用数字描述",
    "without MODEL: number of weights, 100B": "不指定模型时：参数量，如 100B",
    "without MODEL: layers; with MODEL: cut it to that many": "不指定模型时：层数；指定模型时：截到该层数",
    "without MODEL: hidden width": "不指定模型时：隐藏层宽度",
    "without MODEL: attention heads": "不指定模型时：注意力头数",
    "without MODEL: key/value heads": "不指定模型时：KV 头数",
    "without MODEL: feed-forward width": "不指定模型时：前馈层宽度",
    "without MODEL: vocabulary": "不指定模型时：词表大小",
    "[NODESx]COUNTxGPU, [COUNTx]INSTANCE: 8xh100-sxm-80gb, aws:p5.48xlarge":
        "[机器数x]卡数x卡型，或 [台数x]实例：8xh100-sxm-80gb、aws:p5.48xlarge",
    "positions per sample (8k = 8192)": "每个样本的长度（8k = 8192）",
    "samples differ in length: positions of the shortest; --seq-len is the longest":
        "样本长度不一：最短样本的长度；--seq-len 为最长样本的长度",
    "samples per forward on one data-parallel rank": "每个数据并行进程一次前向的样本数",
    "samples per optimizer step; sets --grad-accum": "每次优化器更新的样本总数；据此设定梯度累积",
    "micro-batches per optimizer step": "每次优化器更新的微批数（梯度累积）",
    "what is optimised": "训练目标",
    "generated tokens per sample (ppo, grpo)": "每个样本生成的 token 数（ppo、grpo）",
    "encoder-decoder: positions of the decoder": "编码器-解码器模型：解码器长度",
    "vision: images per sample": "视觉：每个样本的图像数",
    "vision: pixels per side": "视觉：图像边长（像素）",
    "tokens of the whole run (1T = 10^12), for its cost": "整个训练的 token 数（1T = 10^12），用于计算费用",
    "framework that runs the job, huggingface@4.57 (transformers' version); by default pytorch on one GPU, torchtitan "
    "(FSDP2) on several":
        "训练框架，如 huggingface@4.57（transformers 的版本）；默认单卡为 pytorch，多卡为 torchtitan（FSDP2）",
    "what does the sharding, where the engine has a choice": "由谁切分（引擎可选时）",
    "key=value for the engine (repeatable)": "传给引擎的 key=value（可重复）",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF",
    "recipe of dtypes": "数据类型方案",
    "adamw, sgd, adafactor, lion, muon, adamw-8bit ...": "优化器：adamw、sgd、adafactor、lion、muon、adamw-8bit 等",
    "implementation of the step": "优化器更新的实现",
    "what the data-parallel group splits (also: zero = 0..3)": "数据并行组切分的内容（也可用 zero = 0..3）",
    "ZeRO stage, the same as --shards": "ZeRO 阶段，与 --shards 含义相同",
    "tensor-parallel degree": "张量并行度",
    "pipeline stages": "流水线级数",
    "context-parallel degree": "上下文并行度",
    "expert-parallel degree": "专家并行度",
    "tensor parallelism inside experts": "专家内部的张量并行度",
    "split norms and residuals over tp": "在张量并行组内切分归一化与残差",
    "model chunks per pipeline rank": "每个流水线进程的模型块数",
    "pipeline schedule": "流水线调度",
    "how context parallelism exchanges": "上下文并行的通信方式",
    "HSDP: ranks that share one copy": "HSDP：共享一份副本的进程数",
    "FSDP: free gathered weights": "FSDP：前向后释放收集的权重",
    "layers of the first pipeline stage": "第一级流水线的层数",
    "layers of the last pipeline stage": "最后一级流水线的层数",
    "activation checkpointing": "激活重算",
    "only that many layers of a stage": "每级只重算这么多层",
    "what selective recomputation drops": "选择性重算丢弃的内容",
    "attention kernel": "注意力内核",
    "head and cross entropy": "输出头与交叉熵",
    "torch.compile": "torch.compile",
    "optimizer states off the GPU": "优化器状态移出显卡",
    "weights off the GPU": "权重移出显卡",
    "saved activations off the GPU": "保存的激活移出显卡",
    "parameter-efficient fine-tuning": "参数高效微调",
    "rank of the adapters": "适配器的秩",
    "adapted weights: all-linear, q_proj, attention.q ..., or a regular expression":
        "适配的权重：all-linear、q_proj、attention.q 等，或正则表达式",
    "trained whole beside adapters: embedding, lm_head ...": "适配器之外完整训练的部分：embedding、lm_head 等",
    "dropout before the adapters": "适配器前的 dropout",
    "prefix and prompt tuning": "前缀与提示微调的虚拟 token 数",
    "storage of the frozen weights": "冻结权重的存储格式",
    "dtype of the adapters": "适配器的数据类型",
    "weights of the adapters, as PEFT prints them, where rank and targets do not say it":
        "适配器的权重数（以 PEFT 打印的为准），用于秩与目标模块不足以说明的情形",
    "2.5usd per GPU and hour, 98.32usd/node per machine and hour": "每卡每小时 2.5usd，或每台每小时 98.32usd/node",
    "spot prices instead of on-demand ones": "用竞价价格代替按量价格",
    "region of the price: us-east-1, cn-beijing": "价格所在地域：us-east-1、cn-beijing",
    "use prices in this currency only; none is converted": "只用该货币的价格；不做换算",
    "the inverse question: vary this until the load fits": "反向问题：改变它直到放得下",
    "longest sequence, prompt and answer (32k = 32768)": "最长序列，含提示与回答（32k = 32768）",
    "sequences in flight; diffusers: images per prompt": "同时处理的序列数；diffusers：每个提示的图像数",
    "tokens of a prompt": "提示的 token 数",
    "tokens of an answer": "回答的 token 数",
    "llama.cpp -ub": "llama.cpp 的 -ub",
    "images in a prompt": "提示中的图像数",
    "pixels per side of an image in a prompt": "提示中图像的边长（像素）",
    "generated image or video: pixels": "生成的图像或视频：像素",
    "generated video: frames": "生成的视频：帧数",
    "engine@version: vllm@0.19 (default), sglang, tensorrt-llm, llama.cpp, diffusers":
        "引擎@版本：vllm@0.19（默认）、sglang、tensorrt-llm、llama.cpp、diffusers",
    "what if the weights were stored so: fp8, int4, nf4, mxfp4, nvfp4, q4_k_m ...":
        "假设权重这样存储：fp8、int4、nf4、mxfp4、nvfp4、q4_k_m 等",
    "activations and unquantised weights": "激活与未量化权重的数据类型",
    "cache: auto, bf16, fp8, int8, q8_0 ...": "KV 缓存格式：auto、bf16、fp8、int8、q8_0 等",
    "llama.cpp: cached values, when not as keys": "llama.cpp：V 缓存格式（与 K 不同时）",
    "tensor-parallel degree; by default what pp and dp leave of the GPUs": "张量并行度；默认为 pp 与 dp 之外的全部卡",
    "data-parallel copies": "数据并行副本数",
    "decode context parallelism: the cache divided inside a tp group": "解码上下文并行：张量并行组内切分缓存",
    "whole experts per rank instead of slices": "每个进程持有完整专家而非切片",
    "implementation, where there is a choice": "注意力实现（可选时）",
    "share of the card the engine may take": "引擎可占用的显存比例",
    "absolute size of the cache instead of a share": "缓存的绝对大小（代替比例）",
    "vLLM max_num_seqs and its kin": "vLLM 的 max_num_seqs 及同类选项",
    "vLLM max_num_batched_tokens and its kin": "vLLM 的 max_num_batched_tokens 及同类选项",
    "tokens of one cache block": "一个缓存块的 token 数",
    "keep finished sequences' blocks for reuse": "保留已结束序列的缓存块以便复用",
    "CUDA graphs": "CUDA 图",
    "llama.cpp -ngl: layers on the cards": "llama.cpp 的 -ngl：放在卡上的层数",
    "diffusers: what waits on the host": "diffusers：留在主机上的部分",
    "diffusers: the VAE decodes in tiles": "diffusers：VAE 分块解码",
    "diffusers: the VAE decodes one image after the other": "diffusers：VAE 逐张解码",
    "largest rank of an adapter": "适配器的最大秩",
    "adapters on the card at once (vLLM max_loras)": "同时在卡上的适配器数（vLLM 的 max_loras）",
    "speculative decoding: eagle, eagle3, mtp, ngram, medusa or a MODEL":
        "投机解码：eagle、eagle3、mtp、ngram、medusa 或一个模型",
    "tokens proposed at once": "一次提议的 token 数",
    "what to look at: 8xh100-sxm-80gb, h100, aws:p5.48xlarge, aws, any (repeatable)":
        "考察的机器：8xh100-sxm-80gb、h100、aws:p5.48xlarge、aws、any（可重复）",
    "most GPUs of a plan: several machines where --on names a kind": "方案最多用的卡数；--on 只写机型时可用多台",
    "what makes a plan better (fastest)": "方案优劣的标准（默认最快）",
    "the inverse question: what fits, instead of which plan is best": "反向问题：什么放得下，而不是哪个方案最好",
    "no search: only the decision path and what each technique saves": "不搜索：只给出决策路径与各技术节省的显存",
    "share of each card that stays free: 5%; by default so much that the 90 % interval fits":
        "每卡保留的空闲比例：5%；默认留到 90 % 区间放得下",
    "with --find: share of each card that stays free: 5%; by default so much that the 90 % interval fits":
        "配合 --find：每卡保留的空闲比例：5%；默认留到 90 % 区间放得下",
    "most money of the run, with currency: 100000usd; needs --tokens":
        "整个训练的最高费用（含货币）：100000usd；需要 --tokens",
    "longest time of the run: 12h, 30d; needs --tokens": "整个训练的最长时间：12h、30d；需要 --tokens",
    "plans in the table (10)": "表中的方案数（10）",
    "techniques to try too: offload, nvme, offload-parameters, fp8, pure-bf16, 8bit-optimizer":
        "额外尝试的技术：offload、nvme、offload-parameters、fp8、pure-bf16、8bit-optimizer",
    "techniques not to try: sharding, recompute, tensor, pipeline, context, expert":
        "不尝试的技术：sharding、recompute、tensor、pipeline、context、expert",
    "length of the run: 300B, 1T": "训练的 token 总数：300B、1T",
    "most GPUs, all machines together": "所有机器合计最多的卡数",
    "what makes a deployment better (cheapest); least-memory: of what the load needs":
        "部署优劣的标准（默认最便宜）；least-memory：负载所需显存最少",
    "longest time to the first token: 500ms, 2s": "首 token 的最长时间：500ms、2s",
    "fewest tokens per second of each user, the prompts' time included": "每个用户每秒至少的 token 数（计入提示时间）",
}
"""Text of a table of options -> the same in Chinese."""


def help_of(text: str, language: str) -> str:
    """The text of an option in a language; in English where nobody has translated it.

    >>> help_of("pipeline stages; several: 1,2,4", "zh")
    '流水线级数；可给多个：1,2,4'
    """
    if language == "en":
        return text
    said, mark, example = text.partition(SEVERAL)
    return HELP_ZH.get(said, said) + mark.replace(SEVERAL, "；可给多个：") + example
