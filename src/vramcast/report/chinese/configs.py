"""What is said in Chinese of configuration files: what of them was read, left out or filled in."""

from __future__ import annotations

from typing import Final

CONFIGS_ZH: Final[dict[str, str]] = {
    # what is assumed
    "{name}: left at the engine's default": "{name}：取引擎的默认值",
    "{name}: --{option} is assumed": "{name}：假设 --{option}",
    "{file} says no length of the samples: --{option} is assumed": "{file} 没有给出样本长度：假设 --{option}",
    "{file} says no length of the samples: left at the engine's default": "{file} 没有给出样本长度：取引擎的默认值",
    "says no length of the samples": "没有给出样本长度",
    "full training is assumed where no --peft is given: TrainingArguments say nothing of adapters":
        "未给出 --peft 时假设全参数训练：TrainingArguments 不涉及适配器",
    "the model of the file is left for {model}": "文件中的模型不用，改用 {model}",
    "per_device_train_batch_size is not given: {size}, as Transformers has it":
        "未给出 per_device_train_batch_size：取 Transformers 的默认值 {size}",
    "cutoff_len is not given: {size}, as LLaMA-Factory has it": "未给出 cutoff_len：取 LLaMA-Factory 的默认值 {size}",
    "not read, as the command does not use them: {names}": "命令未使用，因此未读取：{names}",
    "{what} is not read": "{what} 未读取",
    "{name} is set several times; read in the order of the file": "{name} 设定了多次；按文件中的顺序读取",
    "the text between << {mark} and {again}": "<< {mark} 与 {again} 之间的文本",
    # what an answer is without
    "{file}: only its network is taken; --from {again:w} takes the rest: {options}":
        "{file}：只取其网络；--from {again} 取其余部分：{options}",
    "{file}: starts {processes} processes, the question has {count} GPUs; those are taken":
        "{file}：启动 {processes} 个进程，而问题有 {count} 张卡；以卡数为准",
    "its command takes {taken} of the {count} GPUs": "其命令只用 {count} 张卡中的 {taken} 张",
    # what is refused, and why
    "{reasons}; --ignore-unread answers without what is not read": "{reasons}；--ignore-unread 忽略未读取的部分并作答",
    "and {count} more": "另有 {count} 项",
    "{file} is a configuration of {tool}, which is not read; give what it says as options":
        "{file} 是 {tool} 的配置，无法读取；请用选项给出其内容",
    "LLaMA-Factory, for Megatron": "LLaMA-Factory（Megatron）",
    "LLaMA-Factory, for inference or export": "LLaMA-Factory（推理或导出）",
    "LLaMA-Factory (its YAML is read)": "LLaMA-Factory（可读其 YAML）",
    "a script that accelerate launches": "由 accelerate 启动的脚本",
    "a script that the deepspeed launcher starts": "由 deepspeed 启动的脚本",
    "Transformers (a model's config.json: give it as MODEL)": "Transformers（模型的 config.json：请作为 MODEL 给出）",
    "vramcast (a job file: give it with --file)": "vramcast（任务文件：请用 --file 给出）",
    "may change memory or time and is not modelled": "可能改变显存或时间，但未建模",
    "{value} is not {wanted}": "{value} 不是{wanted}",
    "{value} is not set in the file": "{value} 在文件中未设定",
    "is filled in by a template": "由模板填入",
    "stands in a branch of the script that only a run takes": "位于只有运行时才确定的分支",
    "stands in the file with {count} different commands; keep one of them":
        "文件中有 {count} 条不同的命令；请只保留一条",
    "is no argument of a command that is understood": "不是可理解的命令的参数",
    "a whole number from 1 up": "不小于 1 的整数",
    "a number from 0 up": "不小于 0 的数",
    "a value that is understood": "可理解的值",
    "a table": "表",
    "a text": "文本",
    "0, 1, 2 or 3": "0、1、2 或 3",
    "1, 2 or 3": "1、2 或 3",
    "one of {names}": "以下之一：{names}",
    "is a file of its own; give it with another --from": "是单独的文件；请再用一个 --from 给出",
    "stands in {file}, a file of its own; give it with another --from, or --{option}":
        "在单独的文件 {file} 中；请再用一个 --from 给出，或给出 --{option}",
    "is auto, which the Trainer fills in; give its arguments with another --from, or {options}":
        "为 auto，由 Trainer 填入；请再用一个 --from 给出其参数，或给出 {options}",
    "is auto; give --precision": "为 auto；请给出 --precision",
    "{section} {version} knows no such name": "{section} {version} 没有这个名字",
    "{section} {version} knows no such name; did you mean {near}?": "{section} {version} 没有这个名字；是否指 {near}？",
    "must be of kind {kind}, not {value}": "类型必须为 {kind}，而不是 {value}",
    "must be a table of values, not {value}": "必须是一张表，而不是 {value}",
    "{name}: must be of kind {kind}, not {value}": "{name}：类型必须为 {kind}，而不是 {value}",
    "{name} is not modelled": "未建模 {name}",
    "{name} is not modelled; {known} are": "未建模 {name}；已建模 {known}",
    "{name} is not modelled; {known} is": "未建模 {name}；已建模 {known}",
    "{name} is not modelled; images are": "未建模 {name}；已建模图像",
    "{name} is not modelled for FSDP 2": "FSDP 2 未建模 {name}",
    "{name} is not modelled; --draft names what is": "未建模 {name}；可用 --draft 指定已建模的",
    "0 is not modelled; --zero 1, 2 and 3 are": "未建模 0；已建模 --zero 1、2、3",
    "{name} weights are not modelled": "未建模 {name} 权重",
    "is not given, nor is train_batch_size; add one, or --micro-batch":
        "未给出，train_batch_size 也未给出；请加上其一，或给出 --micro-batch",
    "is not given, and Megatron-LM has no default": "未给出，且 Megatron-LM 没有默认值",
    "is not given, and the vocabulary of {tokenizer} is not known here; add it, or name the model":
        "未给出，而此处不知道 {tokenizer} 的词表大小；请加上，或指定模型",
    "is not given: SGLang takes it from the adapters": "未给出：SGLang 从适配器得到",
    "is not true, so LLaMA-Factory trains nothing": "不为 true，因此 LLaMA-Factory 不训练",
    "{name} is missing; name the model beside --from": "缺少 {name}；请在 --from 之外指定模型",
    "builds a network or a run of its own; {known} are modelled": "构建自己的网络或流程；已建模 {known}",
    "leaves the batch to the run; give --micro-batch": "把批大小留给运行时；请给出 --micro-batch",
    "split_batches divides the batch over the ranks; give --micro-batch":
        "split_batches 把批大小分给各进程；请给出 --micro-batch",
    "evaluation of {samples} samples at once, where a step has {micro}, is not modelled":
        "一次评估 {samples} 个样本，而一步只有 {micro} 个，未建模",
    "replaces norms, activations and rotary embeddings too, which is not modelled":
        "还会替换归一化、激活与旋转位置编码，未建模",
    "replaces norms, activations and rotary embeddings too, which is not modelled; liger_kernel_config can leave it to "
    "the loss":
        "还会替换归一化、激活与旋转位置编码，未建模；liger_kernel_config 可只用于损失",
    "names a model with towers, which LLaMA-Factory leaves frozen; that is not modelled":
        "是带有视觉或音频塔的模型，LLaMA-Factory 将其冻结，未建模",
    "is left to the run beside {copies} copies; give --shard-group":
        "有 {copies} 份副本时留给运行时；请给出 --shard-group",
    "is not Python that can be read": "不是可读取的 Python",
    "stands in the file {count} times; keep the function that --config names":
        "文件中出现 {count} 次；请只保留 --config 所指的函数",
    "{groups} does not divide tp_size={tp}": "{groups} 不能整除 tp_size={tp}",
    "{copies} copies of {groups} groups are not modelled": "未建模 {copies} 份副本、每份 {groups} 组",
    "{experts} of tp_size={tp} is not modelled where groups attend apart; {again} is":
        "各组分开计算注意力时，未建模 tp_size={tp} 中的 {experts}；已建模 {again}",
    "{experts} of tp_size={tp} is not modelled; {again} is": "未建模 tp_size={tp} 中的 {experts}；已建模 {again}",
    "{algorithm} is not modelled without its kind; give --draft and --draft-tokens":
        "未写明种类时未建模 {algorithm}；请给出 --draft 与 --draft-tokens",
    "{algorithm} is not modelled without speculative_num_steps, which depends on the network; give --draft and "
    "--draft-tokens":
        "未给出取决于网络的 speculative_num_steps 时未建模 {algorithm}；请给出 --draft 与 --draft-tokens",
    "is named in {count} versions; give --engine {engine}@VERSION":
        "写明了 {count} 个版本；请给出 --engine {engine}@版本",
    "does not say which {engine} is in it; give --engine {again}@VERSION":
        "没有说明其中的 {engine} 版本；请给出 --engine {again}@版本",
    "runs on no GPU of NVIDIA or AMD; vramcast answers for those":
        "不在 NVIDIA 或 AMD 的 GPU 上运行；vramcast 只回答这些 GPU 的问题",
    "{model} is no checkpoint in {method}; name one that is, or give --weights":
        "{model} 不是 {method} 检查点；请指定这样的检查点，或给出 --weights",
    "units of {part} are not modelled; units of one layer are": "未建模以 {part} 为单元；已建模以一层为单元",
    "elastic (Flextron) training is not modelled": "未建模弹性（Flextron）训练",
    "multimodal Megatron models are not modelled": "未建模多模态 Megatron 模型",
    "TransformerEngine's op fuser is not modelled": "未建模 TransformerEngine 的算子融合器",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
