"""What frameworks do not do, or what is not modelled of them, in Chinese."""

from __future__ import annotations

from typing import Final

ENGINES_ZH: Final[dict[str, str]] = {
    "{name}={value} is not modelled for --engine {engine}; use --engine {able}, or {again}":
        "--engine {engine} 未建模 {name}={value}；请用 --engine {able}，或 {again}",
    "{name}={value} is not modelled for --engine {engine}; use --engine deepspeed, or --engine torchtitan for FSDP2":
        "--engine {engine} 未建模 {name}={value}；请用 --engine deepspeed，或用 --engine torchtitan（FSDP2）",
    "{name}={value} is not modelled for --engine transformers, which spreads layers over GPUs (device_map); "
    "use --pp {pp}, or --engine vllm":
        "--engine transformers 按 device_map 把层分布到各卡，未建模 {name}={value}；请用 --pp {pp}，或 --engine vllm",
    "{name}={value} is not modelled for megatron; use {other}": "megatron 未建模 {name}={value}；请用 {other}",
    "{name}={value} says nothing to {engine}; leave it out": "{name}={value} 对 {engine} 无意义；请去掉",
    "engine-option {name}={value} must be {kind}": "engine-option {name}={value} 必须是{kind}",
    "a number above 0": "大于 0 的数",
    "a number": "数字",
    "a whole number": "整数",
    "true or false": " true 或 false",
    # training
    "megatron's layers are pre-norm and sequential; parallel or post-norm layers need engine pytorch":
        "megatron 的层为 pre-norm 顺序结构；并行或 post-norm 的层请用引擎 pytorch",
    "megatron models attention, MLA and Mamba-2 mixers; use engine pytorch for others":
        "megatron 支持注意力、MLA 与 Mamba-2；其他请用引擎 pytorch",
    "sparse attention with an indexer is not modelled for training; use a model without it":
        "训练未建模带索引器的稀疏注意力；请用不含它的模型",
    "Gemini's chunked weights are not modelled for --engine colossalai; use --shards optimizer+gradients, or --engine "
    "deepspeed":
        "--engine colossalai 未建模 Gemini 的分块权重；请用 --shards optimizer+gradients，或 --engine deepspeed",
    "precision {precision} is not modelled for --engine colossalai; use mixed-bf16":
        "--engine colossalai 未建模精度 {precision}；请用 mixed-bf16",
    "ColossalChat's trainer {trainer} is not modelled; use one of {known}":
        "未建模 ColossalChat 的训练器 {trainer}；可用 {known}",
    "objective={objective} is not modelled for --engine colossalai; use sft or dpo":
        "--engine colossalai 未建模 objective={objective}；请用 sft 或 dpo",
    "{what} is not modelled for --engine {engine} with ZeRO; use --engine pytorch":
        "--engine {engine} 配合 ZeRO 未建模 {what}；请用 --engine pytorch",
    "virtual stages and shard groups are not modelled for --engine {engine}; use --engine megatron for the former, "
    "--engine torchtitan for the latter":
        "--engine {engine} 未建模虚拟级与分片组；前者请用 --engine megatron，后者请用 --engine torchtitan",
    "fp8 is not modelled for --engine {engine}; use --engine megatron or --precision bf16":
        "--engine {engine} 未建模 fp8；请用 --engine megatron 或 --precision bf16",
    "selective recomputation is not modelled for --engine {engine}; use --recompute full, or --engine torchtitan or "
    "megatron":
        "--engine {engine} 未建模选择性重计算；请用 --recompute full，或 --engine torchtitan 或 megatron",
    "activation offload is not modelled for --engine {engine}; use --recompute full":
        "--engine {engine} 未建模激活卸载；请用 --recompute full",
    "{model} has no transformer layers to build; trace it instead":
        "{model} 没有可构建的 transformer 层；请改用 vramcast trace",
    "--loss {loss} is not modelled for --engine {engine}; use --loss fused_linear":
        "--engine {engine} 未建模 --loss {loss}；请用 --loss fused_linear",
    "precision {precision} keeps an fp32 copy in the optimizer, which --engine {engine} does not; use amp-bf16, bf16, "
    "or --engine deepspeed":
        "精度 {precision} 在优化器中保留 fp32 副本，而 --engine {engine} 没有；请用 amp-bf16、bf16，或 --engine "
        "deepspeed",
    "offload is not modelled for --engine {engine}; use --engine deepspeed":
        "--engine {engine} 未建模卸载；请用 --engine deepspeed",
    "torchtitan's pipelines receive samples of one length; leave --min-seq-len out, or use --pp 1":
        "torchtitan 的流水线只接收同一长度的样本；请去掉 --min-seq-len，或用 --pp 1",
    "litgpt has decoders of text only, and {model} is none; use --engine pytorch":
        "litgpt 只有文本解码器，而 {model} 不是；请用 --engine pytorch",
    "litgpt's fine-tuning scripts divide nothing but data; use --engine torchtitan":
        "litgpt 的微调脚本只切分数据；请用 --engine torchtitan",
    "litgpt shards everything over several GPUs; use --shards everything":
        "litgpt 在多卡上切分全部内容；请用 --shards everything",
    "litgpt cannot train quantised models on several GPUs; use one GPU": "litgpt 不能在多卡上训练量化模型；请用单卡",
    "litgpt has no {method}; use lora or adapter": "litgpt 没有 {method}；请用 lora 或 adapter",
    "litgpt cannot adapt {targets}; use {known}": "litgpt 不能适配 {targets}；请用 {known}",
    "recompute-modules={name} is not modelled for megatron; use {known}":
        "megatron 未建模 recompute-modules={name}；可用 {known}",
    "recompute-modules={name} changes nothing of {model}: {why}; leave it out":
        "recompute-modules={name} 对 {model} 不起作用：{why}；请去掉",
    "it has no softmax attention": "它没有 softmax 注意力",
    "it has no experts in grouped products": "它没有分组矩阵乘的专家",
    "TransformerEngine makes each of its norms within the product behind it, and keeps what that reads":
        "TransformerEngine 把每个归一化并入其后的矩阵乘，并保留其输入",
    "it has no latent attention": "它没有潜注意力",
    "it has no dense MLP": "它没有稠密 MLP",
    "it has no experts": "它没有专家",
    "it has no shared experts that run by themselves": "它没有单独运行的共享专家",
    "litgpt adapts the whole MLP or nothing of it; add {paths} to --lora-targets":
        "litgpt 要么适配整个 MLP 要么完全不适配；请把 {paths} 加入 --lora-targets",
    "sub_group_size={size} cuts a rank's {count} elements into more than {most} sub-groups; use at least {least}":
        "sub_group_size={size} 会把一个 rank 的 {count} 个元素切成超过 {most} 个子组；至少用 {least}",
    "DeepSpeed keeps masters in bf16 since 0.18.3; use --precision mixed-bf16":
        "DeepSpeed 自 0.18.3 起才以 bf16 保存主权重；请用 --precision mixed-bf16",
    "DeepSpeed keeps masters in fp16 on the host only; add --offload-optimizer cpu":
        "DeepSpeed 只能在主机上以 fp16 保存主权重；请加上 --offload-optimizer cpu",
    "engine option {name}={text} must be a release, as in {example}":
        "引擎选项 {name}={text} 必须是发布版本，例如 {example}",
    "{sharder} cannot shard optimizer states alone; use --shards everything, or --engine deepspeed":
        "{sharder} 不能只分片优化器状态；请用 --shards everything，或 --engine deepspeed",
    "FSDP offloads to the host only; use --offload-parameters cpu, or --engine deepspeed":
        "FSDP 只能卸载到主机；请用 --offload-parameters cpu，或 --engine deepspeed",
    "FSDP offloads weights and optimizer together; add --offload-parameters cpu":
        "FSDP 把权重与优化器一起卸载；请加上 --offload-parameters cpu",
    "FSDP cannot shard bitsandbytes' 8-bit weights; use --base-weights nf4, or --shards nothing":
        "FSDP 不能分片 bitsandbytes 的 8 位权重；请用 --base-weights nf4，或 --shards nothing",
    "the PyTorch script shares copies under FSDP2 only; use --sharded-by fsdp2":
        "PyTorch 脚本只在 FSDP2 下共享副本；请用 --sharded-by fsdp2",
    "--peft {method} is LLaMA-Adapter as litgpt has it; use --engine litgpt, or --peft lora":
        "--peft {method} 是 litgpt 的 LLaMA-Adapter；请用 --engine litgpt，或 --peft lora",
    "--peft {method} adapts no weight of {model}; name some with --lora-targets":
        "--peft {method} 未适配 {model} 的任何权重；请用 --lora-targets 指定",
    "adapters on {path} are not modelled for --engine {engine}; leave it out of --lora-targets":
        "--engine {engine} 未建模 {path} 上的适配器；请从 --lora-targets 中去掉",
    "--loss {loss} never runs the head that --lora-targets names; use --loss eager":
        "--loss {loss} 不会运行 --lora-targets 所指的输出层；请用 --loss eager",
    "PEFT adapts stacked experts by lora alone, not by {method}; leave {path} out":
        "PEFT 只能用 lora 适配堆叠的专家，不能用 {method}；请去掉 {path}",
    "PEFT adapts stacked experts without dropout; leave out {path}, or use --lora-dropout 0":
        "PEFT 适配堆叠的专家时不支持 dropout；请去掉 {path}，或用 --lora-dropout 0",
    "litgpt is modelled for dense attention models; use --engine pytorch or megatron":
        "litgpt 只建模稠密注意力模型；请用 --engine pytorch 或 megatron",
    "{model}: megatron models text decoders and encoder-decoders; use engine pytorch":
        "{model}：megatron 只建模文本解码器与编码器-解码器；请用引擎 pytorch",
    "pipeline stages of encoder-decoders are not modelled for megatron; use pp=1":
        "megatron 未建模编码器-解码器的流水线级；请用 pp=1",
    "optimizer={name} updates weights inside backward, which is modelled for one GPU with engine pytorch or "
    "huggingface; use adafactor":
        "optimizer={name} 在反向传播中更新权重，只对单卡的 pytorch 或 huggingface 引擎建模；请用 adafactor",
    "optimizer={name} updates weights inside backward; use --grad-accum 1":
        "optimizer={name} 在反向传播中更新权重；请用 --grad-accum 1",
    "optimizer={name} needs the shapes of weights, which {who} flattens into partitions; use adamw, or engine "
    "pytorch with --sharded-by fsdp2":
        "optimizer={name} 需要权重的形状，而 {who} 把权重展平为分区；请用 adamw，"
        "或改用引擎 pytorch 加 --sharded-by fsdp2",
    "engine option trl={text} must be a release, as in trl=0.24": "引擎选项 trl={text} 必须是发布版本，例如 trl=0.24",
    "{name}={text} must be a release such as 2.13": "{name}={text} 必须是发布版本，例如 2.13",
    "moments={dtype} needs precision_aware=true": "moments={dtype} 需要 precision_aware=true",
    "PEFT is not modelled for megatron; use engine huggingface or unsloth":
        "megatron 未建模 PEFT；请用引擎 huggingface 或 unsloth",
    "megatron keeps its weights on the GPU; use engine deepspeed to offload parameters":
        "megatron 的权重留在卡上；要卸载参数请用引擎 deepspeed",
    "megatron offloads a distributed optimizer only; add --shards optimizer":
        "megatron 只能卸载分布式优化器；请加 --shards optimizer",
    "recomputing layernorm and mla_up_proj together is not modelled with fp8; leave one out":
        "fp8 下未建模同时重计算 layernorm 与 mla_up_proj；请去掉其一",
    "activation offload is not modelled for megatron; use --recompute full":
        "megatron 未建模激活卸载；请用 --recompute full",
    "the private pools of CUDA graphs are not modelled for megatron; leave cuda_graphs out":
        "megatron 未建模 CUDA 图的私有池；请去掉 cuda_graphs",
    "megatron is not compiled as a whole; leave compile out": "megatron 不作整体编译；请去掉 compile",
    "schedule={name} is not part of megatron; use 1f1b or interleaved":
        "megatron 没有 schedule={name}；请用 1f1b 或 interleaved",
    "megatron shards optimizer states (optimizer) or everything (its FSDP); use one of these":
        "megatron 只切分优化器状态（optimizer）或全部（其 FSDP）；请用其一",
    "grad-accum={count}: interleaved stages take micro-batches in groups of {group}, at least pp={pp}; use a multiple "
    "of {unit}, or --virtual-stages 1":
        "grad-accum={count}：交错流水线每组取 {group} 个微批，至少 pp={pp}；请用 {unit} 的倍数，或 --virtual-stages 1",
    "stage_layers={text} must be the layers of every stage, such as 3-4-4-3":
        "stage_layers={text} 必须写明每级的层数，例如 3-4-4-3",
    "{stages} pipeline stages (pp={pp}) do not divide {layers} layers; use {known} stages, or first_stage_layers and "
    "last_stage_layers":
        "{stages} 个流水线级（pp={pp}）不能整除 {layers} 层；请用 {known} 级，或给出 first_stage_layers 与 "
        "last_stage_layers",
    "stage_layers={text} does not place {layers} layers on pp={pp} x virtual_stages={stages} stages":
        "stage_layers={text} 没有把 {layers} 层放到 pp={pp} x virtual_stages={stages} 级上",
    "{engine} divides positions evenly over tp={tp} and cp={cp}, by {divisor}; {asked} does not divide so, "
    "use {below} or {above}":
        "{engine} 按 tp={tp}、cp={cp} 均分位置，须能被 {divisor} 整除；{asked} 不能，请用 {below} 或 {above}",
    "torchtitan version {text} is no date; use a year and month, as in 2025-02":
        "torchtitan 版本 {text} 不是日期；请用年月，例如 2025-02",
    "{chunks} pipeline chunks are more than {layers} layers and two ends; use fewer stages":
        "{chunks} 个流水线块超过 {layers} 层加首尾两端；请减少级数",
    "micro-batch={size} makes {count} pipeline micro-batches, which interleaved stages do not divide into {rounds} "
    "rounds; use a multiple of pp={pp}":
        "micro-batch={size} 产生 {count} 个流水线微批，交错级无法分成 {rounds} 轮；请用 pp={pp} 的倍数",
    "torchtitan trains all weights; use --engine litgpt or huggingface for adapters":
        "torchtitan 训练全部权重；适配器请用 --engine litgpt 或 huggingface",
    "torchtitan's encoders are not modelled; use --engine pytorch for models of several stacks":
        "未建模 torchtitan 的编码器；多塔模型请用 --engine pytorch",
    "torchtitan is modelled with FSDP; use --shards everything, or --engine pytorch":
        "torchtitan 按 FSDP 建模；请用 --shards everything，或 --engine pytorch",
    "torchtitan is modelled with FSDP, which divides weights over two ranks or more; tp={tp} x pp={pp} leave one: use "
    "more GPUs, lower degrees, or --engine pytorch":
        "torchtitan 按 FSDP 建模，至少要在两个 rank 间切分权重；tp={tp} x pp={pp} 只剩一个：请增加卡、降低并行度，或用 "
        "--engine pytorch",
    "torchtitan does not shard {what} only; use --shards everything":
        "torchtitan 不能只切分 {what}；请用 --shards everything",
    "torchtitan trains fp32 weights in bf16, not in {precision}; use mixed-bf16 or fp8":
        "torchtitan 以 bf16 训练 fp32 权重，而不是 {precision}；请用 mixed-bf16 或 fp8",
    "torchtitan offloads to the host only; use --offload-optimizer cpu":
        "torchtitan 只能卸载到主机；请用 --offload-optimizer cpu",
    "torchtitan's offload with pipeline parallelism is not modelled; use --pp 1":
        "未建模 torchtitan 的流水线并行卸载；请用 --pp 1",
    "torchtitan has no trainer {name}; use eager or graph": "torchtitan 没有训练器 {name}；请用 eager 或 graph",
    "{kind} layers are not modelled for torchtitan; use --engine megatron":
        "torchtitan 未建模 {kind} 层；请用 --engine megatron",
    "torchtune is modelled for full fine-tuning with --shards everything on several GPUs; use --engine litgpt for "
    "adapters and --engine pytorch for one GPU":
        "torchtune 只建模多卡 --shards everything 的全参数微调；适配器请用 --engine litgpt，单卡请用 --engine pytorch",
    "torchtune has no pipeline, context or expert parallelism; use --engine torchtitan":
        "torchtune 没有流水线、上下文或专家并行；请用 --engine torchtitan",
    "torchtune trains bf16 weights in bf16, not in {precision}; use bf16":
        "torchtune 以 bf16 训练 bf16 权重，而不是 {precision}；请用 bf16",
    "torchtune has no {loss} loss; use --loss chunked or eager":
        "torchtune 没有 {loss} 损失；请用 --loss chunked 或 eager",
    "torchtune offloads to the host only; use --offload-optimizer cpu":
        "torchtune 只能卸载到主机；请用 --offload-optimizer cpu",
    "torchtune is modelled for text decoders; use --engine pytorch for models of several stacks":
        "torchtune 只建模文本解码器；多塔模型请用 --engine pytorch",
    "torchtune is modelled for dense attention models; use --engine megatron":
        "torchtune 只建模稠密注意力模型；请用 --engine megatron",
    "--engine unsloth trains on one GPU, not {gpus}; use --engine huggingface":
        "--engine unsloth 只在单卡上训练，而不是 {gpus} 张；请用 --engine huggingface",
    "--engine unsloth adapts by {known}, not by {method}; use --engine huggingface":
        "--engine unsloth 用 {known} 微调，而不是 {method}；请用 --engine huggingface",
    # serving
    "context-parallel={text} must be a number of GPUs": "context-parallel={text} 必须是卡数",
    "context-parallel={ranks} needs as many GPUs; {cluster} has {there}":
        "context-parallel={ranks} 需要同样多的卡；{cluster} 只有 {there} 张",
    "{pipeline} has no autoencoder that is modelled": "{pipeline} 没有已建模的自编码器",
    "{name}={value} is not a multiple of {unit} pixels; use {near}":
        "{name}={value} 不是 {unit} 像素的倍数；请用 {near}",
    "{name}={value} is not a multiple of {unit} pixels": "{name}={value} 不是 {unit} 像素的倍数",
    "{model}: short convolutions are not modelled for llama.cpp; use engine vllm":
        "{model}：llama.cpp 未建模短卷积；请用引擎 vllm",
    "tensor-split={text} must be up to {cards} numbers such as 3,1":
        "tensor-split={text} 必须是至多 {cards} 个数，例如 3,1",
    "override-tensor names buffer {name}; use CPU or CUDA0 to {last}":
        "override-tensor 指定了缓冲区 {name}；请用 CPU 或 CUDA0 至 {last}",
    "override-tensor={text} must be written PATTERN=CPU or PATTERN=CUDA0":
        "override-tensor={text} 必须写成 PATTERN=CPU 或 PATTERN=CUDA0",
    "override-tensor: {reason}": "override-tensor：{reason}",
    "kv-dtype={value} is none of {engine}'s; use {known}": "{engine} 没有 kv-dtype={value}；可用 {known}",
    "kv-dtype={value} is none that transformers caches in; use {known}":
        "transformers 的缓存没有 kv-dtype={value}；可用 {known}",
    "expert-parallel: {model} has no experts to divide; leave it out":
        "expert-parallel：{model} 没有可切分的专家；请去掉",
    "pp={pp} is more than the {layers} layers of {model}; use fewer stages":
        "pp={pp} 超过 {model} 的 {layers} 层；请减少级数",
    "pp={pp} is more than the {layers} layers; use at most {most}": "pp={pp} 超过 {layers} 层；最多用 {most}",
    "{engine} trains language models, and {model} predicts no tokens; use --engine pytorch":
        "{engine} 训练语言模型，而 {model} 不预测 token；请用 --engine pytorch",
    "draft: {model} generates no tokens that a draft could propose; leave it out":
        "draft：{model} 不生成 token，草稿模型无从提议；请去掉",
    "{model} reads an encoder in every layer; use engine transformers":
        "{model} 每层都读取编码器；请用引擎 transformers",
    "draft: {model} has no attention layer an EAGLE draft could be like; use ngram":
        "draft：{model} 没有可供 EAGLE 草稿参照的注意力层；请用 ngram",
    "draft=mtp: {model} has no multi-token-prediction modules; use eagle or ngram":
        "draft=mtp：{model} 没有多 token 预测模块；请用 eagle 或 ngram",
    "{option} of {part} is not modelled for stable-diffusion.cpp; use --engine diffusers":
        "stable-diffusion.cpp 未建模 {part} 的 {option}；请用 --engine diffusers",
    "stable-diffusion.cpp keeps components on the card or on the host: leave out --offload":
        "stable-diffusion.cpp 的组件要么在卡上要么在主机上：请去掉 --offload",
    "flash attention works from build {since} on, not in {build}":
        "flash attention 从 build {since} 起可用，{build} 不可用",
    "drafts and LoRA slots are not modelled for --engine transformers; use --engine vllm":
        "--engine transformers 未建模草稿模型与 LoRA 槽位；请用 --engine vllm",
    "offloaded weights are not modelled for --engine transformers; use --engine llama.cpp":
        "--engine transformers 未建模权重卸载；请用 --engine llama.cpp",
    "input-len={prompt} is longer than context={context}; give a longer --context":
        "input-len={prompt} 超过 context={context}；请给出更长的 --context",
    "images of {model} may have any size; give --image-size, for example 1024":
        "{model} 的图像可为任意尺寸；请给出 --image-size，例如 1024",
    "the V0 engine keeps the recurrent states of {model} outside its blocks; use vllm@0.10":
        "V0 引擎把 {model} 的循环状态放在块之外；请用 vllm@0.10",
    "a request cannot be served within the capacity": "容量内无法满足某次显存申请",
    "a request of {size} needs {whole} from the device, where {held} are reserved and {allocated} allocated; "
    "free memory first, ask for less or use a larger device":
        "申请 {size} 需要向设备要 {whole}，而设备已保留 {held}、已分配 {allocated}；请先释放、减少申请或换更大的设备",
    # allocator settings
    "{option}:{value} is not a switch; use {again}:True or {other}:False":
        "{option}:{value} 不是开关；请用 {again}:True 或 {other}:False",
    "{option}:{value} is not a whole number; use one such as {again}:128":
        "{option}:{value} 不是整数；可用 {again}:128 之类",
    "{option}:{value} has no closing bracket; use a list such as [256:1,512:2,>:8]":
        "{option}:{value} 缺少右括号；可用 [256:1,512:2,>:8] 之类的列表",
    "{option}:{value} hands memory to the driver's own pools; only {again}:native is simulated":
        "{option}:{value} 把显存交给驱动自己的池；只模拟 {again}:native",
    "{option}:{value} is no allocator backend; use {again}:native":
        "{option}:{value} 不是分配器后端；请用 {again}:native",
    "torch {version} refuses {option}; it exists from {since} on":
        "torch {version} 不接受 {option}；它自 {since} 起才有",
    "allocator option {text} is not of the form option:value, as in max_split_size_mb:128":
        "分配器选项 {text} 不是 选项:值 的形式，例如 max_split_size_mb:128",
    "{option}:{value} is not a number; use one such as {again}:0.8": "{option}:{value} 不是数字；可用 {again}:0.8 之类",
    "{option}:0 is refused by torch; leave the option out to switch it off":
        "torch 不接受 {option}:0；要关闭请去掉该选项",
    "{option} has an interval of {size} MB, which is not a power of two; use 256 or 512":
        "{option} 有 {size} MB 的区间，不是 2 的幂；请用 256 或 512",
    "roundup_power2_divisions has {count} entries; give 16, or none to switch it off":
        "roundup_power2_divisions 有 {count} 项；请给 16 项，或不给以关闭",
    "torch {version} is too old; {oldest} and newer are simulated": "torch {version} 过旧；模拟 {oldest} 及以上版本",
    "large_segment_size_mb={size} is too small; use more than 10": "large_segment_size_mb={size} 过小；请大于 10",
    "garbage_collection_threshold={value} is out of range; use more than 0, less than 1":
        "garbage_collection_threshold={value} 超出范围；请在 0 与 1 之间（不含）",
    "per_process_memory_fraction={value} is out of range; use 0 to 1":
        "per_process_memory_fraction={value} 超出范围；请用 0 到 1",
    "torch {version} fails on roundup_power2_divisions of 1; use 2, 4, 8 ...":
        "torch {version} 对 roundup_power2_divisions 为 1 会出错；请用 2、4、8 等",
    "roundup_power2_divisions={value} is not a power of two; use 1, 2, 4, 8 ... or 0 for off":
        "roundup_power2_divisions={value} 不是 2 的幂；请用 1、2、4、8 等，或用 0 关闭",
    "{option}={value} is below the large segment size; use {least} or more":
        "{option}={value} 小于大段的尺寸；请用 {least} 或更大",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
