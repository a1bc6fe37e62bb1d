"""Configuration files that cannot be written of a plan, and what is to be said of those that are, in Chinese."""

from __future__ import annotations

from typing import Final

WRITING_ZH: Final[dict[str, str]] = {
    "--format and --force say what --write does; give --write DIR":
        "--format 与 --force 用于 --write；请给出 --write DIR",
    "Accelerate splits by tp and cp beside FSDP2 only; use --shards everything":
        "Accelerate 仅在 FSDP2 下支持 tp 与 cp；请用 --shards everything",
    "FSDP2 shards weights, gradients and states together, not {what} only; use --shards everything":
        "FSDP2 同时切分权重、梯度和状态，不能只切分 {what}；请用 --shards everything",
    "FSDP1 has no shards={shards} with tp={tp}, cp={cp}; use --shards everything with tp=cp=1":
        "FSDP1 在 tp={tp}、cp={cp} 下没有 shards={shards}；请用 --shards everything 且 tp=cp=1",
    "FSDP offloads to the host only; use --offload-optimizer cpu, or --engine deepspeed":
        "FSDP 只能卸载到主机；请用 --offload-optimizer cpu，或 --engine deepspeed",
    "Accelerate recomputes whole layers only; use --recompute full": "Accelerate 只能整层重计算；请用 --recompute full",
    "Accelerate's file has no {name}; use {again}=1, or --format megatron or torchtitan":
        "Accelerate 的文件没有 {name}；请用 {again}=1，或 --format megatron 或 torchtitan",
    "FSDP1's HYBRID_SHARD shares a copy inside a machine; use --shard-group {ranks} with --shards everything, or "
    "--format accelerate-fsdp2":
        "FSDP1 的 HYBRID_SHARD 在机器内共享一份；请用 --shard-group {ranks} 与 --shards everything，或 --format "
        "accelerate-fsdp2",
    "DeepSpeed has no precision {precision}; use mixed-bf16": "DeepSpeed 没有精度 {precision}；请用 mixed-bf16",
    "a DeepSpeed configuration splits over data-parallel ranks only; use tp=pp=cp=ep=1":
        "DeepSpeed 配置只在数据并行进程间切分；请用 tp=pp=cp=ep=1",
    "DeepSpeed offloads parameters with ZeRO 3 only; add --zero 3": "DeepSpeed 仅在 ZeRO 3 下卸载参数；请加 --zero 3",
    "DeepSpeed offloads to disks with ZeRO 3 only; add --zero 3, or offload to cpu":
        "DeepSpeed 仅在 ZeRO 3 下卸载到磁盘；请加 --zero 3，或卸载到 cpu",
    "no device plugin is known for cards of {vendor}; use --format pai-dlc":
        "没有 {vendor} 卡的设备插件；请用 --format pai-dlc",
    "a Deployment's pod lives on one machine; use fewer GPUs, or start serve.sh on every machine":
        "Deployment 的 pod 只在一台机器上；请减少卡，或在每台机器上启动 serve.sh",
    "a Deployment needs its server; choose its format too, for example --format vllm":
        "Deployment 需要服务端；请一并选择其格式，例如 --format vllm",
    "{formats} start nothing that a launcher could run; add --format transformers":
        "{formats} 不产生启动器可运行的程序；请加 --format transformers",
    "a service needs its server; choose its format too, for example --format vllm":
        "服务需要服务端；请一并选择其格式，例如 --format vllm",
    "no options ask for this plan again: {field:w} is {value}": "没有选项能再次提出此方案：{field} 为 {value}",
    "no options ask for this plan again: {why}": "没有选项能再次提出此方案：{why}",
    "LLaMA-Factory splits over data-parallel ranks only; use tp=pp=cp=ep=1":
        "LLaMA-Factory 只在数据并行进程间切分；请用 tp=pp=cp=ep=1",
    "LLaMA-Factory's file is written for {known}, not for {objective:w}, which it trains otherwise or not at all":
        "只为 {known} 写 LLaMA-Factory 的文件，不为 {objective} 写：它以别的方式训练，或不训练",
    "LLaMA-Factory leaves the towers of {model} frozen, which is not modelled; use --format transformers":
        "LLaMA-Factory 冻结 {model} 的视觉或音频塔，此情形未建模；请用 --format transformers",
    "LLaMA-Factory recomputes whole layers only; use --recompute full":
        "LLaMA-Factory 只能整层重计算；请用 --recompute full",
    "LLaMA-Factory trains decoders only, and {model} has other parts; use --format transformers":
        "LLaMA-Factory 只训练解码器，而 {model} 还有其他部分；请使用 --format transformers",
    "LLaMA-Factory has no {method}; use lora or dora, or --format transformers":
        "LLaMA-Factory 没有 {method}；请用 lora 或 dora，或 --format transformers",
    "LLaMA-Factory trains in no {precision}; use amp-bf16 or bf16":
        "LLaMA-Factory 不支持 {precision}；请用 amp-bf16 或 bf16",
    "LLaMA-Factory's Liger kernels replace norms, activations and rotary embeddings and fuse the head with its loss, "
    "all together; add --engine-option liger=true, or use --loss eager":
        "LLaMA-Factory 的 Liger 内核一并替换归一化、激活函数与旋转位置编码，并把输出层与损失融合；请加 "
        "--engine-option liger=true，或用 --loss eager",
    "LLaMA-Factory does not call prepare_model_for_kbit_training, which the plan counts; add --engine-option "
    "prepare_kbit=none":
        "LLaMA-Factory 不调用 prepare_model_for_kbit_training，而方案计入了它；请加 --engine-option prepare_kbit=none",
    "LLaMA-Factory loads frozen weights in 16 bits, not in float32; add --engine-option dtype=bfloat16":
        "LLaMA-Factory 以 16 位加载冻结的权重，而非 float32；请加 --engine-option dtype=bfloat16",
    "LLaMA-Factory keeps adapters in fp32 under autocast, not in {dtype}; use --adapter-dtype fp32, or bf16 with "
    "--precision bf16":
        "LLaMA-Factory 在 autocast 下把适配器保存为 fp32，而非 {dtype}；请用 --adapter-dtype fp32，或 --precision bf16 "
        "配 bf16",
    "LLaMA-Factory loads frozen weights as the checkpoint has them, not in fp32; use --precision amp-bf16":
        "LLaMA-Factory 按检查点的类型加载冻结权重，而非 fp32；请用 --precision amp-bf16",
    "files are for the newest Trainer, which has no optimizer {name} with kernel {kernel}; add --optimizer-kernel "
    "foreach":
        "文件针对最新的 Trainer，它没有内核为 {kernel} 的优化器 {name}；请加 --optimizer-kernel foreach",
    "LLaMA-Factory has no optimizer {name:w}; use {known}": "LLaMA-Factory 没有优化器 {name}；可用 {known}",
    "LLaMA-Factory has no optimizer {name} with kernel {kernel}; use {known}":
        "LLaMA-Factory 没有内核为 {kernel} 的优化器 {name}；可用 {known}",
    "{model}: stages of hybrid patterns are not written here; use --pp 1":
        "{model}：此处不写混合结构的流水线级；请用 --pp 1",
    "Megatron offloads optimizer states to the host only; use --offload-optimizer cpu":
        "Megatron 只能把优化器状态卸载到主机；请用 --offload-optimizer cpu",
    "Megatron-LM has switched off TransformerEngine's fused cross entropy; use --engine-option cross_entropy=native, "
    "or --loss eager":
        "Megatron-LM 已停用 TransformerEngine 的融合交叉熵；请用 --engine-option cross_entropy=native，或 --loss eager",
    "Megatron has no attention kernel efficient; use flash, cudnn or eager":
        "Megatron 没有 efficient 注意力内核；请用 flash、cudnn 或 eager",
    "{model}: Megatron's hybrid patterns have single mixers or channels only":
        "{model}：Megatron 的混合结构每层只有一个 mixer 或通道层",
    "{model}: Megatron has no argument for activation {name} (gated: {gated})":
        "{model}：Megatron 没有激活函数 {name} 的参数（门控：{gated}）",
    "{model}: Megatron arguments are written for decoders; use --engine huggingface":
        "{model}：Megatron 参数只为解码器编写；请用 --engine huggingface",
    "{model}: Megatron arguments are written for one kind of attention": "{model}：Megatron 参数只支持一种注意力",
    "{model}: its layers have different heads, which Megatron arguments cannot say":
        "{model}：各层注意力头不同，Megatron 参数无法表达",
    "{model}: sparse attention has an indexer that these arguments do not say":
        "{model}：稀疏注意力带索引器，这些参数无法表达",
    "{model}: Megatron has Mamba 2 only": "{model}：Megatron 只支持 Mamba 2",
    "{model}: its layers have different widths, which Megatron arguments cannot say":
        "{model}：各层宽度不同，Megatron 参数无法表达",
    "{model}: Megatron has no norm {name}": "{model}：Megatron 没有归一化 {name}",
    "{model} has {count} learned positions; use --seq-len up to that":
        "{model} 有 {count} 个可学习位置；--seq-len 不能超过它",
    "the module names of family {family} are not known here; adapt a model of family {known} ..., or leave --peft out":
        "{family} 系列的模块名未知；请适配 {known} 等系列的模型，或去掉 --peft",
    "{model}: {target} has no module of its own; use {known}": "{model}：{target} 没有自己的模块；可用 {known}",
    "the job has {size} bytes; PAI-DLC takes {most}": "任务有 {size} 字节；PAI-DLC 最多 {most}",
    "a PAI-EAS service is written for one machine; use fewer GPUs, or --format kubernetes":
        "PAI-EAS 服务只写单机；请减少卡，或用 --format kubernetes",
    "{model} has no head that a training script could use; use a language model":
        "{model} 没有训练脚本可用的输出层；请用语言模型",
    "the module names of family {family} are not known here; leave {word} out":
        "{family} 系列的模块名未知；请去掉 {word}",
    "{model}: {path} has no module of its own in all its layers; use {known}":
        "{model}：{path} 没有在其所有层中单独对应的模块；请用 {known}",
    "LLaMA-Factory names no stacked experts: leave {name} out of --lora-targets":
        "LLaMA-Factory 无法指定堆叠的专家：请从 --lora-targets 中去掉 {name}",
    "a script that adapts by {method} is not written; use {known}": "不写用 {method} 微调的脚本；可用 {known}",
    "no code is known for optimizer={name}; use {known}": "没有 optimizer={name} 的代码；可用 {known}",
    "the PyTorch script splits over data-parallel ranks only; use tp=pp=cp=ep=1":
        "PyTorch 脚本只在数据并行进程间切分；请用 tp=pp=cp=ep=1",
    "PyTorch's FSDP2 does not shard {what} only; use --shards everything":
        "PyTorch 的 FSDP2 不能只切分 {what}；请用 --shards everything",
    "the PyTorch script has no fp8; use --format torchtitan or megatron":
        "PyTorch 脚本不支持 fp8；请用 --format torchtitan 或 megatron",
    "the PyTorch script recomputes whole layers; use --recompute full": "PyTorch 脚本整层重计算；请用 --recompute full",
    "PyTorch offloads to the host only; use --offload-optimizer cpu":
        "PyTorch 只能卸载到主机；请用 --offload-optimizer cpu",
    "the PyTorch script optimises no {objective}; --format llamafactory writes dpo":
        "PyTorch 脚本不支持 {objective}；请用 --format llamafactory",
    "SGLang sizes its cache by a fraction; use --memory-fraction, or --engine vllm":
        "SGLang 按比例确定缓存大小；请用 --memory-fraction，或 --engine vllm",
    "SGLang has no drafts by {method}; use {known}": "SGLang 没有 {method} 草稿；可用 {known}",
    "commands are written for TensorRT-LLM 1.0 and later, which serves without a built engine":
        "只为 TensorRT-LLM 1.0 及以上编写命令，它不需要构建引擎",
    "copies, drafts and adapters of TensorRT-LLM are not written here; use --engine vllm":
        "此处不写 TensorRT-LLM 的副本、草稿与适配器；请用 --engine vllm",
    "SkyPilot has no name for {gpu}; use --format kubernetes or pai-dlc":
        "SkyPilot 没有 {gpu} 的名称；请用 --format kubernetes 或 pai-dlc",
    "a SkyPilot service is written for one machine; use fewer GPUs": "SkyPilot 服务只写单机；请减少卡",
    "torchtitan has no loss={loss}; use --loss chunked, or --loss eager":
        "torchtitan 没有 loss={loss}；请用 --loss chunked 或 --loss eager",
    "{model}: Megatron's arguments describe {made} parameters of its {counted}; use --engine huggingface":
        "{model}：Megatron 的参数只能描述 {made} 个参数，而它有 {counted} 个；请用 --engine huggingface",
    "torchtitan has no flavour for {model}; use llama-3.1-8b, qwen3-32b, deepseek-v3, gpt-oss-20b and their kin, or "
    "--format accelerate-fsdp2":
        "torchtitan 没有 {model} 的规格；请用 llama-3.1-8b、qwen3-32b、deepseek-v3、gpt-oss-20b 等，或 --format "
        "accelerate-fsdp2",
    "torchtitan plans are computed in mixed-bf16 or fp8, not in {precision}":
        "torchtitan 方案以 mixed-bf16 或 fp8 计算，而不是 {precision}",
    "torchtitan shards everything, not {what}; use --shards everything":
        "torchtitan 切分全部内容，而不是 {what}；请用 --shards everything",
    "torchtitan plans are computed with sequence parallelism; leave --no-sequence-parallel out":
        "torchtitan 方案按序列并行计算；请去掉 --no-sequence-parallel",
    "torchtitan has no tensor parallelism inside experts; use --etp 1, not {etp}":
        "torchtitan 专家内没有张量并行；请用 --etp 1，而不是 {etp}",
    "shard-group={ranks} must be a multiple of cp={cp}: torchtitan shards over both together":
        "shard-group={ranks} 必须是 cp={cp} 的倍数：torchtitan 在两者上一起切分",
    "torchtitan divides {layers} layers and ends by layers per stage, which never gives {stages} stages; use "
    "--virtual-stages 1 or 2":
        "torchtitan 按每级层数切分 {layers} 层与首尾，无法得到 {stages} 级；请用 --virtual-stages 1 或 2",
    "torchtitan has no optimizer {name}; use adamw or adam": "torchtitan 没有优化器 {name}；请用 adamw 或 adam",
    "the Trainer optimises no {objective}; --format llamafactory writes dpo":
        "Trainer 不支持 {objective}；请用 --format llamafactory",
    "the Trainer's arguments split over data-parallel ranks only; use tp=pp=cp=ep=1":
        "Trainer 的参数只在数据并行进程间切分；请用 tp=pp=cp=ep=1",
    "the Trainer has no fp8 of its own; use --engine megatron or torchtitan":
        "Trainer 自身不支持 fp8；请用 --engine megatron 或 torchtitan",
    "the Trainer recomputes whole layers only; use --recompute full": "Trainer 只能整层重计算；请用 --recompute full",
    "the Trainer has no optimizer {name}; use {known}": "Trainer 没有优化器 {name}；可用 {known}",
    "{tool} makes all logits at once, not in chunks as TRL's SFTTrainer; add --loss eager":
        "{tool} 一次计算全部 logits，不像 TRL 的 SFTTrainer 那样分块；请加 --loss eager",
    "the Trainer has no loss {name}; use eager, fused or fused_linear, or --engine pytorch":
        "Trainer 没有损失 {name}；请用 eager、fused 或 fused_linear，或 --engine pytorch",
    "the Trainer does not choose the kernel of {name}; leave --optimizer-kernel out":
        "Trainer 不能选择 {name} 的内核；请去掉 --optimizer-kernel",
    "{path}: {file} is a file; name another folder": "{path}：{file} 是文件；请指定其他目录",
    "{path}: no permission to write; name another folder": "{path}：没有写权限；请指定其他目录",
    "no configuration files are written for engine {engine}; use {known}": "不为引擎 {engine} 写配置文件；可用 {known}",
    "format {format} is not for plans of engine {engine}; use {known}":
        "格式 {format} 不适用于 {engine} 的方案；可用 {known}",
    "{path}: {files} are there already; --force overwrites, or name another folder":
        "{path}：{files} 已存在；--force 可覆盖，或指定其他目录",
    "{path}: {files} is there already; --force overwrites, or name another folder":
        "{path}：{files} 已存在；--force 可覆盖，或指定其他目录",
    "format {format} has nothing to say of this plan: it runs without":
        "格式 {format} 对该方案没有内容：不需要它也能运行",
    "format {format} and another one chosen both write {file}; choose one of them":
        "格式 {format} 与另一所选格式都会写 {file}；请只选其一",
    # notes beside the files
    "{file}: {computed} weights and activations, an fp32 copy in the optimizer":
        "{file}：权重与激活为 {computed}，优化器中有 fp32 副本",
    "{file}: with --precision {precision} DeepSpeed keeps an fp32 copy too; so the plan was computed":
        "{file}：--precision {precision} 时 DeepSpeed 也保留 fp32 副本；方案即按此计算",
    "{file}: the plan was computed with ZeRO 1, which is what DeepSpeed's 16-bit optimizers do least":
        "{file}：方案按 ZeRO 1 计算，这是 DeepSpeed 16 位优化器的最低级别",
    "{file}: its arguments make {made} parameters, the plan counts the {counted} of {model}":
        "{file}：其参数描述 {made} 个参数，而方案按 {model} 的 {counted} 个计算",
    "{file}: {model} has {what}, for which there is no argument here": "{file}：{model} 有 {what}，此处没有对应的参数",
    "a rotary embedding of a base that the plan does not know": "方案未知基数的旋转位置编码",
    "the compressed queries and keys are normed": "对压缩后的 Q 与 K 作归一化",
    "queries and keys are normed per head": "逐头归一化的 Q 与 K",
    "one learned logit per head": "每头一个可学习的 logit",
    "norms behind each part": "各部分之后的归一化", "layers without a rotary embedding": "没有旋转位置编码的层",
    "parallel attention and feed-forward": "并行的注意力与前馈层",
    "{file}: pre-training and fine-tuning take the same memory; name your own data":
        "{file}：预训练与微调显存相同；请填写自己的数据",
    "{file}: {instance} is not Alibaba Cloud's; the job asks a quota for {nodes} x {gpu} instead":
        "{file}：{instance} 不是阿里云的实例；任务改为申请 {nodes} x {gpu} 的配额",
    "{file}: MODEL must be a checkpoint already quantised to {format}":
        "{file}：MODEL 必须是已量化为 {format} 的检查点",
    "{file}: name a checkpoint of {model} stored as {format}; the one named is not":
        "{file}：请指定以 {format} 保存的 {model} 检查点；当前所写的不是",
    "{file}: SkyPilot does not rent {instance}; the task asks for the same cards anywhere":
        "{file}：SkyPilot 不能租用 {instance}；任务改为在任意处申请同样的卡",
    "{file}: SkyPilot rents a machine with {each} for every replica; the plan rents {nodes} x {machine} for all of "
    "them, and its price is theirs":
        "{file}：SkyPilot 为每个副本租一台 {each} 的机器；方案为全部副本租 {nodes} x {machine}，价格按后者",
    "{file}: weights and states in fp32": "{file}：权重与状态为 fp32",
    "{file}: the plan was computed for torchtitan of {date}; these names are those of 0.3.0":
        "{file}：方案按 {date} 的 torchtitan 计算；这些名称是 0.3.0 的",
    "{file}: the graph trainer runs as --module graph_trainer.llama3; the plan was computed for it":
        "{file}：graph 训练器以 --module graph_trainer.llama3 运行；方案即按它计算",
    "the plan is of {layers}; the checkpoint that the files name has all of them":
        "方案只含 {layers}；文件所写的检查点包含全部",
    "no checkpoint is known for {model}: replace {mark} by its path or hub id":
        "没有 {model} 的已知检查点：请把 {mark} 换成其路径或 hub id",
    "launchers alone: they start run.sh, which --format of a framework writes":
        "只有启动器：它们启动 run.sh，后者由某个框架的 --format 写出",
    "{option}={value} stands in none of the files: set it by hand": "{option}={value} 不在任何文件中：请手工设置",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
