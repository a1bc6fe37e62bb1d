"""What is said of cards, machines, links and prices in Chinese; what rates and sizes rest on."""

from __future__ import annotations

from typing import Final

HARDWARE_ZH: Final[dict[str, str]] = {
    # links and rates
    "no {link} between the cards, which is sold apart: they talk over {pcie}; link and link_gb_per_s in a --hardware "
    "file say that there is one":
        "卡间没有 {link}（需另购），通过 {pcie} 通信；若实际装有，可在 --hardware 文件中用 link 与 link_gb_per_s 说明",
    "how {link} joins the cards is not known: every group is given all of a card's links":
        "{link} 如何连接各卡未知：每组都按可用一张卡的全部链路计算",
    "400 Gb/s between machines for each card (assumed)": "机间每卡 400 Gb/s（假设）",
    "all-reduce over {link} at {share:w}, {latency:w} us each":
        "all-reduce 经由 {link}，达到其 {share}，每次 {latency} us",
    "all-reduce over {link} at {share:w} of {rate:w} GB/s, {latency:w} us each":
        "all-reduce 经由 {rate} GB/s {link}，达到其 {share}，每次 {latency} us",
    "all-reduce over {link} at {share:w} of {rate:w} GB/s, {used:w} of that among {ranks:w} of {joined:w} (mesh), "
    "{latency:w} us each":
        "all-reduce 经由 {rate} GB/s {link}，达到其 {share}，{joined} 张卡（全互连）中 {ranks} 张之间再为其 {used}，"
        "每次 {latency} us",
    "all-reduce over {link} at {share:w} of {rate:w} GB/s, {used:w} of that among {ranks:w} of {joined:w} "
    "({topology}), {latency:w} us each":
        "all-reduce 经由 {rate} GB/s {link}，达到其 {share}，{joined} 张卡（{topology}）中 {ranks} 张之间再为其 "
        "{used}，"
        "每次 {latency} us",
    "all-reduce over {link}, {latency:w} us each": "all-reduce 经由 {link}，每次 {latency} us",
    "{source}, and {share} of that with a model's shapes": "{source}；按模型的形状为其 {share}",
    "{link} at {share} of {rate} GB/s a direction ({source})": "单向 {rate} GB/s {link} 的 {share}（{source}）",
    "{link} joins {cards} cards as a {topology}: fewer use fewer links, more use {pcie}":
        "{link} 以{topology}连接 {cards} 张卡：卡更少则链路更少，更多则走 {pcie}",
    "{link} joins {cards} cards as a mesh: fewer use fewer links, more use {pcie}":
        "{link} 把 {cards} 张卡全互连：卡更少则链路更少，更多则走 {pcie}",
    "{rate} Gb/s {kind} a machine, {source}": "每台机器 {rate} Gb/s {kind}，{source}",
    "{dtype} products reach {share} of {rate} TFLOPS ({source})":
        "{dtype} 矩阵乘达到 {rate} TFLOPS 的 {share}（{source}）",
    "{dtype} products sustain {share} of {rate} TFLOPS ({source})":
        "{dtype} 矩阵乘持续达到 {rate} TFLOPS 的 {share}（{source}）",
    "memory reaches {share} of {rate} GB/s ({source})": "显存带宽达到 {rate} GB/s 的 {share}（{source}）",
    "memory sustains {share} of {rate} GB/s ({source})": "显存带宽持续达到 {rate} GB/s 的 {share}（{source}）",
    "cube mesh of {links} links": "{links} 链路立方体网格",
    "assumed: no public measurement of this card's products": "假设：没有该卡矩阵乘的公开实测",
    "assumed: no public measurement of this card's memory": "假设：没有该卡显存带宽的公开实测",
    "assumed: of the best product anybody measured, over a whole step": "假设：相对最好实测矩阵乘，按整步计",
    "assumed: as much above Blackwell as with 8 bits": "假设：相对 Blackwell 的提升与 8 位时相同",
    "assumed: RDMA adapters reach four fifths": "假设：RDMA 网卡达到五分之四",
    "assumed: sockets reach half": "假设：socket 达到一半",
    "fitted: {rows} of truth/{file}, {range}": "拟合：truth/{file} 的 {rows}，{range}",
    "fitted: {rows} of truth/{file}": "拟合：truth/{file} 的 {rows}",
    "fitted: full load of B200 with NVFP4 in truth/speeds.csv": "拟合：truth/speeds.csv 中 B200 NVFP4 满载",
    "{source}; fitted on {rows} of truth/{file}": "{source}；按 truth/{file} 的 {rows} 拟合",
    "real layers beside the best shape: first tokens on A100 in truth/speeds.csv, 0.78":
        "真实的层相对最佳形状：truth/speeds.csv 中 A100 的首 token，0.78",
    "[gpt-fast] {card} {reached} of {rate} GB/s": "[gpt-fast] {card}：{rate} GB/s 中的 {reached}",
    "[gpt-fast] {card} {reached} of {rate} GB/s with its launches":
        "[gpt-fast] {card}：{rate} GB/s 中的 {reached}（含内核启动）",
    "[SimuMax] B200 0.72 to 0.80 of NVLink in rings": "[SimuMax] B200 环形通信为 NVLink 的 0.72 至 0.80",
    "[SimuMax] B200 0.64 of NVLink in all-to-all": "[SimuMax] B200 all-to-all 为 NVLink 的 0.64",
    "[SimuMax] a100_pcie.json: 0.64 to 0.70 of 32 GB/s for 2 and 4 cards, 0.4 for 8":
        "[SimuMax] a100_pcie.json：2、4 卡为 32 GB/s 的 0.64 至 0.70，8 卡 0.4",
    "[SimuMax] B200 0.49 product by product; 0.47 fits whole steps of megatron-b200":
        "[SimuMax] B200 逐个矩阵乘 0.49；0.47 拟合 megatron-b200 的整步",
    "[SimuMax] B200, pointwise kernels of a training step": "[SimuMax] B200，训练步中的逐点内核",
    "[MAMF] B200 3432.5 of 4500, 0.85 of it over a whole step": "[MAMF] B200 4500 中的 3432.5，整步为其 0.85",
    # sources
    "simulated caching allocator, see docs/levels.md": "模拟的缓存分配器，见 docs/levels.md",
    "the checkpoint's tensors under the plan; docs/serving.md": "方案下检查点的各张量；docs/serving.md",
    "the draft's tensors; docs/serving.md": "草稿模型的张量；docs/serving.md",
    "tensors of the component's class under its config; docs/serving.md": "按配置得到的组件各张量；docs/serving.md",
    "the model's configuration and its code in transformers": "模型配置及其 transformers 代码",
    "the model's modules in transformers models/*/modeling_*.py": "transformers models/*/modeling_*.py 中的模型模块",
    "{source}, as its header says": "{source}，按其文件头",
    "given by the user": "由用户给出",
    "ggml-org/ggml src/ggml-alloc.c over the graph of src/llama-graph.cpp":
        "ggml-org/ggml src/ggml-alloc.c，按 src/llama-graph.cpp 的计算图",
    "transformers models/llama/modeling_llama.py and kin": "transformers models/llama/modeling_llama.py 等",
    "catalogue/contexts.csv, NCCL rows": "catalogue/contexts.csv 的 NCCL 行",
    "start-up log on 4 x H100": "4 x H100 上的启动日志",
    "{count} runs on H100 and GB300; docs/serving.md": "H100 与 GB300 上的 {count} 次运行；docs/serving.md",
    "{count} logs of {version} on {cards}: {range}": "{cards} 上 {version} 的 {count} 份日志：{range}",
    "{count} logs of {version} on {cards}: {range}, one {other}":
        "{cards} 上 {version} 的 {count} 份日志：{range}，一份 {other}",
    "{count} logs of {version} on {cards}; {range} over PCIe":
        "{cards} 上 {version} 的 {count} 份日志；PCIe 下 {range}",
    "cards of {range} GB": "{range} GB 的卡",
    "start-up logs of {version} on {cards}": "{cards} 上 {version} 的启动日志",
    "start-up logs of 0.19 on H100 at fraction 0.95": "H100 上 0.19 的启动日志（比例 0.95）",
    "{count} start-up logs of {version} on T4, four of them with adapters":
        "T4 上 {version} 的 {count} 份启动日志，其中四份带适配器",
    "{count} start-up logs of 0.19 on H100, half of them within 7 %":
        "H100 上 0.19 的 {count} 份启动日志，半数误差在 7 % 以内",
    "{count} start-up logs of 0.19 on H100, 16 to 80 dense layers, within 7 %, 4 with experts; adapters: one of 0.11":
        "H100 上 0.19 的 {count} 份启动日志，16 至 80 层稠密模型，误差 7 % 以内，另有 4 份带专家；适配器：一份 0.11",
    "the same less a third: one log of 0.10, piecewise only": "同上减三分之一：一份 0.10 日志，仅 piecewise",
    # formulas
    "peak reserved - allocated at the peak": "峰值时的已保留 - 已分配",
    "peak allocated - requests at the peak, rounded": "峰值时的已分配 - 取整后的请求",
    "one {arch} process": "一个 {arch} 进程",
    "{size} B for the forward thread, as much for the autograd thread": "前向线程 {size} B，autograd 线程同样",
    "{size} B for its handle": "其句柄 {size} B",
    "{size} B for one handle": "一个句柄 {size} B",
    "{size} B at once": "一次 {size} B",
    "{size} B of gradients in buckets of 25 MiB": "{size} B 的梯度，分成 25 MiB 的桶",
    "{size} B x {sequences} sequences x {context}": "{size} B x {sequences} 条序列 x {context}",
    "{blocks} blocks x {size}": "{blocks} 块 x {size}",
    "{groups} communicators x {size}": "{groups} 个通信器 x {size}",
    "{images} images, {patches} patches x {rest}": "{images} 张图像，{patches} 个 patch x {rest}",
    "{images} x {patches} patches x {rest}": "{images} x {patches} 个 patch x {rest}",
    "{layers} layers: {cells} cells, keys {keys}, values {values}":
        "{layers} 层：{cells} 个单元，K 为 {keys}，V 为 {values}",
    "{layers} layers: {slots} slots in {dtype}": "{layers} 层：{slots} 个槽位，{dtype}",
    "window and micro-batch, keys {keys}, values {values}": "窗口加微批，K 为 {keys}，V 为 {values}",
    "{count} elements over {ranks} ranks": "{count} 个元素，分给 {ranks} 个进程",
    "{count} x {size} B over {ranks} ranks": "{count} x {size} B，分给 {ranks} 个进程",
    "{cells} cells, keys {keys}, values {values}": "{cells} 个单元，K 为 {keys}，V 为 {values}",
    "{experts} experts x rank {rest}": "{experts} 个专家 x 秩 {rest}",
    "rank {rest}": "秩 {rest}",
    "{count} sequences": "{count} 条序列",
    "{count} slots in f32": "{count} 个槽位，f32",
    "{count} slots x {rest}": "{count} 个槽位 x {rest}",
    "{layers} layers: {rest}": "{layers} 层：{rest}",
    "{count} multiprocessors x {rest}": "{count} 个 SM x {rest}",
    "{count} positions x {rest}": "{count} 个位置 x {rest}",
    "{count} requests x {length} positions x {rest}": "{count} 个请求 x {length} 个位置 x {rest}",
    "{count} rows x {rest}": "{count} 行 x {rest}",
    "{count} sequences x {size} + {prefills} of prefills": "{count} 条序列 x {size} + 预填充 {prefills}",
    "{count} sequences x {rest}": "{count} 条序列 x {rest}",
    "{count} slots x rank {rest}": "{count} 个槽位 x 秩 {rest}",
    "{count} tokens": "{count} 个 token",
    "{count} tokens x {rest}": "{count} 个 token x {rest}",
    "{count} x {tokens} tokens x {rest}": "{count} x {tokens} 个 token x {rest}",
    "{tokens} tokens over {cells} cells, {rows} rows of logits": "{cells} 个单元上 {tokens} 个 token，{rows} 行 logits",
    "{count} tokens, {states} recurrent states": "{count} 个 token，{states} 个循环状态",
    "{count} tokens, {windows} tokens of sliding windows": "{count} 个 token，滑动窗口 {windows} 个 token",
    "{count} batch sizes; {base} MiB + {each} MiB a layer for {layers}":
        "{count} 种批大小；{base} MiB + {layers} 层每层 {each} MiB",
    "graph of {part} packed by ggml's allocator": "由 ggml 分配器排布的 {part} 计算图",
    "as {name} lays them out": "按 {name} 的布局",
    "matrices in {dtype}, convolutions in fp16, vectors and tables in fp32":
        "矩阵为 {dtype}，卷积为 fp16，向量与表为 fp32",
    # machines and prices
    "{machine} in {region}: {price} {currency} is more than {times} times away from the {low} to {high} known before":
        "{machine}（{region}）：{price} {currency} 与此前已知的 {low} 至 {high} 相差超过 {times} 倍",
    "no public price of {machine} is known; give --price, for example --price 2.5usd":
        "没有 {machine} 的公开价格；请用 --price 给出，例如 --price 2.5usd",
    "no price of {machine} is known for {market}, nor any other; give --price, for example --price 2.5usd":
        "没有 {machine} 在 {market} 下的价格，也没有其他价格；请用 --price 给出，例如 --price 2.5usd",
    "no price of {machine} is known for {market}; known are {known}; no currency is converted, "
    "--price takes your own":
        "没有 {machine} 在 {market} 下的价格；已知的有 {known}；不换算货币，可用 --price 自行给出",
    "{machine} has 1/{parts} of a card: its share of the speed is not published":
        "{machine} 只有 1/{parts} 张卡：其算力份额未公布",
    "PAI card code {code} is taken as {gpu}: {note}": "PAI 卡代码 {code} 按 {gpu} 计算：{note}",
    "no direct access between cards": "卡间不能直接访问",
    "or InfiniBand of the same rate": "或同速率的 InfiniBand",
    "beside {rate} Gbit/s of Ethernet": "另有 {rate} Gbit/s 以太网",
    "{rate} Gbit/s in all, the rest is for storage and management": "总计 {rate} Gbit/s，其余用于存储与管理",
    "bridges join pairs only, so four cards talk over PCIe": "桥接只连接两张卡，四张卡之间走 PCIe",
    "slice by the memory in the name of the type": "按规格名中的显存推算切片",
    "not on the documentation page; shape from price lists": "文档页未列出；规格取自价目表",
    "eRDMA, bandwidth not published; shape from price lists only": "eRDMA，带宽未公布；规格仅取自价目表",
    "Lingjun network (RoCE), bandwidth not published for the type": "灵骏网络（RoCE），该规格带宽未公布",
    "the catalogue it comes from names no link; V100 with 16 GB at eight a machine are SXM2 boards":
        "来源目录未写明互连；八卡机的 16 GB V100 为 SXM2 板",
    "the documentation names no card: 96 GB of HBM3, 4 TB/s, NVLink 900 GB/s, FP32 39.5 TFLOPS are those of an H20":
        "文档未写卡型：96 GB HBM3、4 TB/s、NVLink 900 GB/s、FP32 39.5 TFLOPS 与 H20 相符",
    "170 Gbit/s in all, 160 of them eRDMA": "总计 170 Gbit/s，其中 160 为 eRDMA",
    "invitational preview; the documentation names no card: figures are those of an RTX PRO 5000 Blackwell":
        "邀测；文档未写卡型：数据与 RTX PRO 5000 Blackwell 相符",
    "card code GU100: A100 or A800 with 80 GB, not published which; taken as the A800, whose NVLink is the slower":
        "卡代码 GU100：80 GB 的 A100 或 A800，未公布是哪种；按 NVLink 较慢的 A800 计算",
    "card code GU108: H800 class with 80 GB, model not published": "卡代码 GU108：80 GB 的 H800 级，型号未公布",
    "card code GU30: 24 GB, recommended beside the A10 (ecs.gn7i); model not published":
        "卡代码 GU30：24 GB，与 A10（ecs.gn7i）并列推荐；型号未公布",
    "card code GU8T: eight cards of 96 GiB, taken as the H20, model not published":
        "卡代码 GU8T：八张 96 GiB 的卡，按 H20 计算，型号未公布",
    "card of the RTX 5090 class: {size} MiB each in AliyunContainerService/karpenter-provider-alibabacloud":
        "RTX 5090 级的卡：AliyunContainerService/karpenter-provider-alibabacloud 中每张 {size} MiB",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
