"""What answers about serving assume and warn of, in Chinese, and why a load does not fit."""

from __future__ import annotations

from typing import Final

BEYOND: Final = "context={context} is longer than the {positions} positions {model} was trained with"
BEYOND_ZH: Final = "context={context} 超过 {model} 训练时的 {positions} 个位置"

SERVING_ZH: Final[dict[str, str]] = {
    BEYOND: BEYOND_ZH,
    BEYOND + "; llama-server cuts every slot to that": BEYOND_ZH + "；llama-server 会把每个槽位截到该值",
    BEYOND + "; its context is allocated nevertheless": BEYOND_ZH + "；其上下文照样分配",
    BEYOND + "; transformers only warns": BEYOND_ZH + "；transformers 只给出警告",
    "{engine} runs on {gpu} in {vendor}'s own build: memory is that of its CUDA build":
        "{engine} 在 {gpu} 上以 {vendor} 自己的版本运行：显存按其 CUDA 版本计算",
    "the plan uses {used} of {there} GPUs; the others could hold {copies} more copies, or raise --tp":
        "方案只用了 {there} 张卡中的 {used} 张；其余的还能放 {copies} 份副本，或增大 --tp",
    "nothing is left for the cache: {taken}; {missing} more than the engine may take":
        "没有显存留给缓存：{taken}；比引擎可用的多出 {missing}",
    "starts, but holds {held} of {wanted} sequences of {context} tokens: they take {needed}, the cache has {size}":
        "可以启动，但 {wanted} 条 {context} token 的序列只容纳 {held} 条：它们需要 {needed}，缓存为 {size}",
    "starts, but holds {held} of {wanted} sequences of {context} tokens: they take {needed}, the cache has {size}; "
    "the longest context that fits is {longest}":
        "可以启动，但 {wanted} 条 {context} token 的序列只容纳 {held} 条：它们需要 {needed}，缓存为 {size}；"
        "能放下的最长上下文为 {longest}",
    "the cache of {size} holds {sequences} sequences of {context} tokens; {wanted} take {needed}":
        "{size} 的缓存可容纳 {sequences} 条 {context} token 的序列；{wanted} 条需要 {needed}",
    "the cache of {size} holds {sequences} sequences of {context} tokens; {wanted} take {needed}; "
    "the longest context that fits is {longest}":
        "{size} 的缓存可容纳 {sequences} 条 {context} token 的序列；{wanted} 条需要 {needed}；能放下的最长上下文为 "
        "{longest}",
    "weights {size:w} GiB": "权重 {size} GiB",
    "weights {size:w} MiB": "权重 {size} MiB",
    "activation peak {size:w} GiB": "激活峰值 {size} GiB",
    "activation peak {size:w} MiB": "激活峰值 {size} MiB",
    "non-torch {size:w} GiB": "torch 之外 {size} GiB",
    "non-torch {size:w} MiB": "torch 之外 {size} MiB",
    "CUDA graphs {size:w} GiB": "CUDA 图 {size} GiB",
    "CUDA graphs {size:w} MiB": "CUDA 图 {size} MiB",
    # engines
    "all sequences are one batch, equally long and without padding": "所有序列作为一个批次，等长且无填充",
    "what growing caches leave free in PyTorch's allocator is given back before the card is full":
        "缓存增长在 PyTorch 分配器中留下的空闲，会在显卡占满前归还",
    'layers lie on the GPUs as device_map="auto" balances them': '各层按 device_map="auto" 均衡分布在各卡上',
    "the PyTorch backend": "PyTorch 后端",
    "a built TensorRT engine": "构建好的 TensorRT 引擎",
    "sliding windows are kept at full length, unless --engine-option sliding-windows=true":
        "滑动窗口层的缓存按完整长度保存，除非 --engine-option sliding-windows=true",
    "the graphs of build 211; cuBLAS's pool of the CUDA backend is not counted":
        "按 build 211 的计算图；CUDA 后端的 cuBLAS 池未计入",
    "{parts} run on the host, as the engine does with T5": "{parts} 在主机上运行（引擎对 T5 即如此）",
    "convolutions run without cuDNN workspaces larger than what is freed beside them":
        "卷积所用 cuDNN 工作区不大于同时释放的显存",
    "the denoiser and text encoders of more than 10^9 parameters are quantised, the others are not":
        "去噪网络及参数超过 10^9 的文本编码器被量化，其余不量化",
    "the host holds {size} of weights, cache and buffers": "主机内存保存 {size} 的权重、缓存和缓冲区",
    "cuBLAS and temporary copies of weights are counted with the CUDA context":
        "cuBLAS 与权重的临时副本计入 CUDA 上下文",
    "a publisher's own mix is taken for the plain mix of its size": "发布者自定的量化混合按同规格的标准混合计算",
    "{fitting} of {layers} layers fit, the head counted: --gpu-layers {again}":
        "含输出层共 {layers} 层，放得下 {fitting} 层：--gpu-layers {again}",
    "--fit would move layers to the host, it leaves 1024 MiB of each card free; --fit off keeps this plan":
        "--fit 会把部分层移到主机，它给每张卡留 1024 MiB；--fit off 可保持此方案",
    "the cards have room for {there} tokens of context, the model takes {most}":
        "显卡可容纳 {there} 个 token 的上下文，模型最多 {most}",
    "mem-fraction-static {fraction}, as asked": "mem-fraction-static {fraction}（指定）",
    "mem-fraction-static {fraction}, SGLang's own choice for the card and the arguments":
        "mem-fraction-static {fraction}（SGLang 按显卡与参数自选）",
    "SGLang runs at most {running} requests at once here, the others wait; raise --max-sequences":
        "SGLang 此时最多同时运行 {running} 个请求，其余等待；可增大 --max-sequences",
    "{sequences} sequences and {tokens} tokens a step, vLLM's default":
        "每步 {sequences} 条序列、{tokens} 个 token（vLLM 默认）",
    "{sequences} sequences, vLLM's default": "{sequences} 条序列（vLLM 默认）",
    "{tokens} tokens a step, vLLM's default": "每步 {tokens} 个 token（vLLM 默认）",
    "{engine:w} runs {running:w} of {asked:w} sequences at once, the others wait; raise --max-sequences":
        "{engine} 同时只运行 {asked} 条序列中的 {running} 条，其余等待；可增大 --max-sequences",
    "gpu-memory-utilization {fraction}, vLLM's default": "gpu-memory-utilization {fraction}（vLLM 默认）",
    # speed
    "no speed: {reason}": "无法给出速度：{reason}",
    "encoder-decoder models are not timed": "编码器-解码器模型不计时",
    "the host is taken for {machine}: {cores} cores that read {rate} GB/s; --engine-option host-bandwidth=GB/s and "
    "threads=N say otherwise":
        "主机假定为{machine}：{cores} 核，读内存 {rate} GB/s；可用 --engine-option host-bandwidth=GB/s、threads=N 指定",
    "a desktop with two channels of DDR5-5600": "双通道 DDR5-5600 台式机",
    "a workstation with eight channels of DDR5-5200": "八通道 DDR5-5200 工作站",
    "one Xeon of the fourth generation": "一颗第四代至强",
    "the catalogue has no bandwidth or rates of {gpu}": "目录中没有 {gpu} 的带宽或算力",
    "speed is that of prompts of {prompt} tokens and answers of {answer}; --input-len and --output-len say otherwise":
        "速度按提示 {prompt} 个 token、回答 {answer} 个 token 计算；可用 --input-len 与 --output-len 指定",
    "the time of the vision tower is left out": "未计入视觉塔的时间",
    "speed is that without speculative decoding: how many proposals are accepted is not known":
        "速度按不使用投机解码计算：草稿的接受率未知",
    "the {length} that {model} was trained with": "{model} 训练时的 {length}",
    # what is counted and printed
    "tokens": "token",
    "tokens of full attention": "全注意力的 token",
    "tokens of sliding windows": "滑动窗口的 token",
    "recurrent states": "循环状态",
    "concurrency x context": "并发数 x 上下文",
    "sequences x context": "序列数 x 上下文",
    "blocks per group": "每组的块",
    "cells": "单元",
    "activation peak": "激活峰值",
    "non-torch": "torch 之外",
    "CUDA graphs": "CUDA 图",
    "CUDA graphs, estimated": "CUDA 图（估计）",
    "KV cache": "KV 缓存",
    "convolution states": "卷积状态",
    "weights": "权重",
    "keys": "K",
    "keys of windows": "窗口的 K",
    "values": "V",
    "values of windows": "窗口的 V",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
