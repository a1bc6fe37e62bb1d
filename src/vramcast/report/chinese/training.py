"""What answers about training assume and warn of, in Chinese."""

from __future__ import annotations

from typing import Final

TRAINING_ZH: Final[dict[str, str]] = {
    "{precision} with a loss scale: {gpu} has no bf16 tensor cores":
        "{precision}，使用损失缩放：{gpu} 没有 bf16 张量核心",
    "fits only because the allocator gives cached memory back when the card is full: expect retries and slow steps; "
    "--alloc-conf expandable_segments:True avoids most of it":
        "仅因显存占满时分配器归还缓存才放得下：可能重试并变慢；--alloc-conf expandable_segments:True 可基本避免",
    "{precision} on {gpu}, which has no bf16 tensor cores: it is emulated, timed as fp32; {instead}":
        "{gpu} 没有 bf16 张量核心，{precision} 只能模拟执行，按 fp32 计时；可改用 {instead}",
    "{engine} has no fp16; --engine deepspeed has": "--engine deepspeed（{engine} 不支持 fp16）",
    "what {engine} {version} changed since {newest}, the newest that is known":
        "{engine} {version} 自已知最新的 {newest} 以来的改动",
    "{engine} is modelled alike in every version: {version} changes nothing":
        "{engine} 各版本的建模相同：{version} 不改变结果",
    "seq-len={length} is longer than the {context} positions {model} was trained with":
        "seq-len={length} 超过 {model} 训练时的 {context} 个位置",
    "DeepSpeed keeps 16-bit weights and an fp32 copy of what learns":
        "DeepSpeed 保存 16 位权重，可训练部分另有 fp32 副本",
    "the frozen weights are loaded in 16 bits, adapters are {dtype} under autocast":
        "冻结的权重以 16 位加载，适配器在 autocast 下为 {dtype}",
    "a reward model: one score in the place of the vocabulary's head, as TRL's RewardTrainer loads it":
        "奖励模型：以一个分数代替词表输出层，如 TRL 的 RewardTrainer 所加载",
    "samples of {count} tokens; --seq-len says otherwise": "样本长 {count} 个 token；可用 --seq-len 另行指定",
    "samples of {count} tokens, as many positions as {model} has; --seq-len says otherwise":
        "样本长 {count} 个 token，即 {model} 的全部位置；可用 --seq-len 另行指定",
    "{count} positions of sound, which is what the encoder of {model} always reads":
        "{count} 个声音位置，{model} 的编码器总是读入这么多",
    "answers of {count} tokens, as many as {model} has; --decoder-seq-len says otherwise":
        "输出长 {count} 个 token，即 {model} 的全部位置；可用 --decoder-seq-len 另行指定",
    "images of {side} x {side2} pixels, {count} positions: patches of {patch} and a class token; --image-size says "
    "otherwise":
        "图像 {side} x {side2} 像素，{count} 个位置：边长 {patch} 的图块加一个分类 token；可用 --image-size 另行指定",
    "images of {side} x {side2} pixels, {count} positions: patches of {patch}; --image-size says otherwise":
        "图像 {side} x {side2} 像素，{count} 个位置：边长 {patch} 的图块；可用 --image-size 另行指定",
    "torchtune 0.7: head and loss run chunk by chunk; before, all logits were made first: --engine torchtune@0.6 "
    "counts them":
        "torchtune 0.7：输出层和损失逐块计算；此前先算出全部 logits：--engine torchtune@0.6 按此计算",
    "torchtitan of today: head and loss run chunk by chunk, since 2026-05; before, all logits were made, in fp32: "
    "--engine torchtitan@2026-04 counts them":
        "按当前的 torchtitan：自 2026-05 起输出层和损失逐块计算；此前先算出全部 fp32 logits："
        "--engine torchtitan@2026-04 按此计算",
    "adapters of rank {rank} on {paths}": "秩为 {rank} 的适配器位于 {paths}",
    "experts are not packed: transformers {version} stacks them in one parameter, and bitsandbytes converts linear "
    "layers only":
        "专家没有被压缩：transformers {version} 把它们堆叠为一个参数，而 bitsandbytes 只转换线性层",
    "no layer is packed: {family} has linear layers of its own, which transformers {version} passes by":
        "没有层被压缩：{family} 使用自己的线性层类，transformers {version} 不转换它们",
    "prepare_model_for_kbit_training: what is not packed is fp32, and so are hidden states":
        "prepare_model_for_kbit_training：未压缩的权重为 fp32，隐藏状态也是",
    "norms beside a packed base are fp32, and so are hidden states": "压缩权重之外的归一化权重为 fp32，隐藏状态也是",
    "TRL {version} prepares packed models: what is not packed is fp32, and so are hidden states":
        "TRL {version} 会准备压缩模型：未压缩的权重为 fp32，隐藏状态也是",
    "TRL {version} prepares packed models: norms are fp32, and so are hidden states":
        "TRL {version} 会准备压缩模型：归一化权重为 fp32，隐藏状态也是",
    "head and loss run in chunks of 256 tokens, as TRL's SFTTrainer does unasked since 1.7 (loss_type=chunked_nll); "
    "--loss eager for all logits at once":
        "输出层和损失按 256 个 token 分块计算，TRL 的 SFTTrainer 自 1.7 起默认如此（loss_type=chunked_nll）；"
        "--loss eager 一次计算全部 logits",
    "adapters of a packed base are bf16, as TRL makes them unasked; --adapter-dtype fp32 for others":
        "打包基座旁的适配器为 bf16，这是 TRL 的默认行为；用 --adapter-dtype fp32 可改变",
    "layers are recomputed, as {tool} does unasked; --recompute none switches that off":
        "各层会重计算，{tool} 默认如此；--recompute none 可关闭",
    "the frozen weights are loaded in float32": "冻结的权重以 float32 加载",
    "the frozen weights are loaded in float32, as TRL since 0.27 loads a model given by its id alone; --engine-option "
    "dtype=bfloat16 for 16 bits":
        "冻结的权重以 float32 加载，TRL 自 0.27 起如此加载仅由 id 给出的模型；--engine-option dtype=bfloat16 为 16 位",
    "the loss in chunks of 256 tokens that TRL's SFTTrainer makes since 1.7 (loss_type=chunked_nll): counted is that "
    "of all logits, as loss_type=nll and the Trainer itself make it":
        "TRL 的 SFTTrainer 自 1.7 起按 256 个 token 分块计算损失（loss_type=chunked_nll）：此处按全部 logits 计算，与 "
        "loss_type=nll 及 Trainer 本身一致",
    "GRPO with beta={beta}: a reference model is asked, too": "GRPO 的 beta={beta}：还要运行参考模型",
    "GRPO with beta=0, TRL's default since 0.19: no reference model; --engine-option beta=0.04 for one":
        "GRPO 的 beta=0（TRL 自 0.19 起的默认值）：没有参考模型；需要时用 --engine-option beta=0.04",
    "FusedAdam copies moments to fp32 while it steps them; bf16 ones no longer from TransformerEngine 2.14 on "
    "(--engine-option te=2.14)":
        "FusedAdam 更新时把动量复制为 fp32；自 TransformerEngine 2.14 起 bf16 动量不再复制（--engine-option te=2.14）",
    "inputs of recomputed layers wait on the host; --engine-option offload_checkpoints=false keeps them":
        "重计算层的输入存放在主机内存；--engine-option offload_checkpoints=false 则保留在显存",
    "{model} makes embeddings: this is its training as a language model, with logits of every token; contrastive "
    "losses over pairs of texts, which make none, are not modelled":
        "{model} 是嵌入模型：此处按语言模型训练计算，每个 token 都有 logits；不产生 logits 的文本对对比损失未建模",
    "shorter batches can take more: Unsloth splits the logits of {tokens} tokens in {chunks}, and makes those of up to "
    "{whole} at once; --min-seq-len 1 asks for samples of all lengths":
        "更短的批次可能占用更多：Unsloth 把 {tokens} 个 token 的 logits 分成 {chunks} 份，"
        "而不超过 {whole} 个 token 时一次生成；--min-seq-len 1 可按各种长度的样本计算",
    "Unsloth runs {family} in fp32 around fp16 products, because fp16 overflows; that is not modelled, and takes more":
        "由于 fp16 会溢出，Unsloth 在 fp16 乘积之外以 fp32 运行 {family}；此处未建模，实际占用更多",
    "every linear layer is packed; checkpoints named -unsloth-bnb-4bit keep some in 16 bits":
        "所有线性层都按压缩计算；名为 -unsloth-bnb-4bit 的检查点把其中一些保留为 16 位",
    "fused kernels with in-place backward": "融合内核，反向就地进行",
    "every expert receives the same number of tokens": "每个专家收到的 token 数相同",
    "every micro-batch is as long as the longest sample": "每个微批都与最长的样本一样长",
    "gradients of later micro-batches are added to those of the first and freed":
        "后续微批的梯度累加到第一个微批的梯度上，随后释放",
    "torch.compile fuses norms, activations, rotary embedding and the loss; the rest as in eager mode":
        "torch.compile 融合归一化、激活函数、旋转位置编码与损失，其余与 eager 模式相同",
    "attention runs in full, as transformers runs {family} unasked; --attention flash for fused kernels":
        "注意力按完整形式计算，这是 transformers 对 {family} 的默认方式；--attention flash 使用融合内核",
    "attention=flash of {family} needs compute capability {needed}, which {gpu} has not; use eager":
        "{family} 的 attention=flash 需要计算能力 {needed}，{gpu} 不具备；请用 eager",
    "attention={kernel} is none that transformers has for {family}; use {names}":
        "transformers 对 {family} 没有 attention={kernel}；请用 {names}",
    "every adapter is a unit of its own, as PEFT's fsdp_auto_wrap_policy wraps them":
        "每个适配器自成一个单元，与 PEFT 的 fsdp_auto_wrap_policy 一致",
    "packed weights are stored as 16-bit numbers, so that they can be sharded; block constants are not":
        "压缩的权重以 16 位数存储，因而可以分片；各块的常数不分片",
    "gradients of the micro-batches before the last add up unsharded (no_sync)":
        "最后一个微批之前的梯度不分片地累加（no_sync）",
    "Accelerate shards, not DeepSpeed: {sharder} is the default of {release}; --sharded-by says otherwise":
        "由 Accelerate 而不是 DeepSpeed 分片：{sharder} 是 {release} 的默认；可用 --sharded-by 改变",
    "FSDP1 over one GPU shards nothing, whatever was asked: PyTorch makes it NO_SHARD":
        "单卡上的 FSDP1 不做任何切分，无论要求的是什么：PyTorch 会改为 NO_SHARD",
    "FullyShardedDataParallel (FSDP1): a flat weight for every layer, one for all the rest":
        "FullyShardedDataParallel（FSDP1）：每层一个展平的权重，其余合为一个",
    "fully_shard (FSDP2): a unit for every layer": "fully_shard（FSDP2）：每层一个单元",
    "the loss takes logits in their own 16 bits; where transformers' model code computes it, it makes them fp32: "
    "--engine-option model_loss=true":
        "损失直接使用 16 位的 logits；"
        "若由 transformers 的模型代码计算损失，则会转为 fp32：--engine-option model_loss=true",
    "samples of {shortest} to {longest} tokens: {count} steps of different lengths fill the allocator; the order they "
    "come in is chance, and what is reserved depends on it; time is the longest's":
        "样本长度为 {shortest} 到 {longest} 个 token：用 {count} 个长度不同的步填充分配器；其先后顺序是随机的，"
        "保留显存取决于此；时间按最长的步计",
    "no module of {model} is called {names}: PEFT passes over names that it lacks":
        "{model} 没有名为 {names} 的模块：PEFT 会跳过它没有的名称",
    "attention runs in full: transformers has no fused kernel for {kinds}":
        "注意力按完整形式计算：transformers 没有 {kinds} 的融合内核",
    "batches of text only: the vision tower needs --image-size": "只按纯文本批次计算：视觉塔需要 --image-size",
    "no step time: {reason}": "无法给出每步时间：{reason}",
    "objective={objective} is not timed; pretrain and sft are": "objective={objective} 不计时；仅 pretrain 和 sft 计时",
    "models of several stacks are not timed, and {model} has {count}": "多塔模型不计时，而 {model} 有 {count} 个",
    "the catalogue has no bandwidth or no {dtype} rate of {gpu}": "目录中没有 {gpu} 的显存带宽或 {dtype} 算力",
    "{model} projects queries and outputs in two steps, which is not timed where operators run one by one; "
    "use --engine megatron":
        "{model} 的 Q 与输出分两步投影，逐算子执行时不计时；请用 --engine megatron",
    "network of {rate} Gb/s RDMA for each card; the question names none":
        "每卡按 {rate} Gb/s RDMA 网络计算；问题中没有给出网络",
    "samples are padded to {length} tokens, which tp={tp} divides": "样本补齐到 {length} 个 token，以便被 tp={tp} 整除",
    "as measured, instead of {formula}": "按实测值，而不是 {formula}",
    "calibrated by {source}": "由 {source} 校准",
    "calibrated by {source}: {name} {now} GiB instead of {before} GiB":
        "由 {source} 校准：{name} 为 {now} GiB，而不是 {before} GiB",
    "calibrated by {source}: {name} {now} MiB instead of {before} MiB":
        "由 {source} 校准：{name} 为 {now} MiB，而不是 {before} MiB",
    "calibrated by {source}: {changed} instead of {before}": "由 {source} 校准：{changed}，而不是 {before}",
    "calibrated by {source}: activations in proportion to a run with {facts}":
        "由 {source} 校准：激活按 {facts} 那次运行的比例推算",
    "calibration {source} is ignored: {mismatch}": "忽略校准 {source}：{mismatch}",
    "calibration {source}: {name} was measured with {facts} and is ignored here":
        "校准 {source}：{name} 是在 {facts} 下测得的，此处忽略",
    "calibration {source}: {engine} is not corrected for {category} here":
        "校准 {source}：{engine} 的 {category} 在此未作修正",
    "it was measured with {there}, not {here}": "它是用 {there} 测得的，不是 {here}",
    "it was measured on {there}, not {here}": "它是在 {there} 上测得的，不是 {here}",
    "it holds for {engine} {oldest} to {newest}, not {version}":
        "它适用于 {engine} {oldest} 至 {newest}，不含 {version}",
    "at least {low}, at most {high} of main memory in each machine, not checked":
        "每台机器需要内存 {low} 至 {high}，未作检查",
    "at least {low}, at most {high} of main memory in each machine of {there}":
        "每台机器需要内存 {low} 至 {high}，共有 {there}",
    # what stands in main memory
    "fp32 weights": "fp32 权重",
    "moments": "优化器动量",
    "fp32 gradients": "fp32 梯度",
    "fp32 gradients of a step": "一步的 fp32 梯度",
    "gradient partitions": "梯度分片",
    "16-bit weights": "16 位权重",
    "16-bit copy of the partition": "分片的 16 位副本",
    "16-bit weights they were made of": "转换前的 16 位权重",
    "partitions they were made of": "合并前的分片",
    "accumulated gradients": "累积的梯度",
    "sharded weights": "分片权重",
    "sharded gradients": "分片梯度",
    "gradients": "梯度",
    "swap buffers": "交换缓冲区",
    "swap buffers of weights": "权重交换缓冲区",
    "processes": "进程",
    "checkpoint, read by every rank": "每个进程各读一份检查点",
    "weights gathered to be saved": "为保存而汇集的权重",
    "{ranks} ranks x {elements} x {width} B": "{ranks} 个进程 x {elements} x {width} B",
    "{ranks} ranks x {elements} x {width} B, each block a power of two":
        "{ranks} 个进程 x {elements} x {width} B，每块取 2 的幂",
    "{ranks} ranks x {size} B, less what comes after it": "{ranks} 个进程 x {size} B，减去其后所占",
    "{ranks} ranks x {low} to {high} GB": "{ranks} 个进程 x {low} 至 {high} GB",
    "{size} B on one rank": "一个进程上 {size} B",
    "at least {needed} of local disks in each machine, not checked": "每台机器至少需要本地盘 {needed}，未作检查",
    "at least {needed} of local disks in each machine of {there}": "每台机器至少需要本地盘 {needed}，共有 {there}",
    "{place}: at least {needed} needed in each machine, {there} there":
        "{place}：每台机器至少需要 {needed}，只有 {there}",
    "main memory": "内存",
    "local disks": "本地盘",
    # roles of ranks, and how a number came to be
    "all": "所有进程",
    "first stage": "第一级",
    "middle stage": "中间级",
    "last stage": "最后一级",
    "stage {number:w} of {count:w}": "第 {number}/{count} 级",
    "card {number:w}": "卡 {number}",
    "formula": "公式",
    "traced": "追踪",
    "measured": "实测",
    "fitted": "拟合",
    "assumed": "假设",
    # models read from numbers and checkpoints
    "described by numbers: taken as a decoder with RMSNorm, rotary embedding and gated MLP, head untied":
        "按数字描述：视为带 RMSNorm、旋转位置编码与门控 MLP 的解码器，输出层不共享",
    "feed-forward width chosen so that the parameters add up": "前馈层宽度按总参数量推算",
    "every one of {heads} heads has keys and values of its own; --kv-heads says otherwise":
        "{heads} 个头各有自己的 K 和 V；可用 --kv-heads 指定",
    "vocabulary of {size} assumed": "假设词表大小为 {size}",
    "checkpoint stores packed weights ({dtypes}); its elements were not compared":
        "检查点保存的是打包权重（{dtypes}）；未比较元素数",
    "checkpoint also stores {extras} ({count} elements)": "检查点另外保存 {extras}（{count} 个元素）",
    "checkpoint holds {found} elements where the config gives {expected} ({share} %)":
        "检查点有 {found} 个元素，而配置对应 {expected} 个（{share} %）",
    "predicted: times count events, they are not microseconds": "预测值：时间按事件计数，不是微秒",
    "the first {left} of {all} events are left out, as max_entries does":
        "省略最早的 {left} 个事件（共 {all} 个），与 max_entries 相同",
    "memory runs out: the recording ends there": "显存耗尽：记录到此为止",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
