"""What is said in Chinese of configuration files: what of them was read, left out or filled in."""

from __future__ import annotations

from typing import Final

CONFIGS_ZH: Final[dict[str, str]] = {
    "{name}: left at the engine's default": "{name}：取引擎的默认值",
    "{name}: --{option} is assumed": "{name}：假设 --{option}",
    "{file} says {name} is auto, which the Trainer fills in: --{option} is assumed":
        "{file} 中 {name} 为 auto，由 Trainer 填入：假设 --{option}",
    "{file} says {name} is auto, which the Trainer fills in: left at the engine's default":
        "{file} 中 {name} 为 auto，由 Trainer 填入：取引擎的默认值",
    "says {name} is auto, which the Trainer fills in": "中 {name} 为 auto，由 Trainer 填入",
    "{file} says no length of the samples: --{option} is assumed": "{file} 没有给出样本长度：假设 --{option}",
    "{file} says no length of the samples: left at the engine's default": "{file} 没有给出样本长度：取引擎的默认值",
    "says no length of the samples": "没有给出样本长度",
    "activation_checkpointing only sets how DeepSpeed's own checkpointing runs; give --recompute full where the model "
    "uses it":
        "activation_checkpointing 只设定 DeepSpeed 自身检查点的方式；若模型使用了它，请给出 --recompute full",
    "no model is read: {name} is missing; name the model beside --from":
        "未读出模型：缺少 {name}；请在 --from 之外指定模型",
    "elastic (Flextron) training is not modelled": "未建模弹性（Flextron）训练",
    "multimodal Megatron models are not modelled": "未建模多模态 Megatron 模型",
    "TransformerEngine's op fuser is not modelled": "未建模 TransformerEngine 的算子融合器",
    "the model of the file is left for {model}": "文件中的模型不用，改用 {model}",
    "{name} is a file of its own; give it with another --from": "{name} 是单独的文件；请再用一个 --from 给出",
    "is a file of its own; give it with another --from": "是单独的文件；请再用一个 --from 给出",
    "not set in the file: {names}": "文件中未设定：{names}",
    "{name}: {value} is not {wanted}; left out": "{name}：{value} 不是{wanted}；已略去",
    "{name}: {value} is not set in the file": "{name}：{value} 在文件中未设定",
    "a whole number from 1 up": "不小于 1 的整数",
    "one of {names}": "以下之一：{names}",
    "one of {names}; answered as one process a card": "以下之一：{names}；按每卡一个进程回答",
    "one of {names}; answered as FULL_SHARD": "以下之一：{names}；按 FULL_SHARD 回答",
    "a value that is understood; give --{option}": "可理解的值；请给出 --{option}",
    "{name}: not read; what matters for memory is given by options of vramcast":
        "{name}：未读取；与显存有关的请用 vramcast 的选项给出",
    "{count} more such commands are not read": "另有 {count} 条同类命令未读取",
    "not read, as the command does not use them: {names}": "命令未使用，因此未读取：{names}",
    "not read: {names}": "未读取：{names}",
    "{what} is not read": "{what} 未读取",
    "{name} is set several times; read as {value}": "{name} 设定了多次；按 {value} 读取",
    "quantization: {name} is not modelled; --weights names a format that is":
        "quantization：未建模 {name}；可用 --weights 指定已建模的格式",
    "per_device_train_batch_size is not given: {size}, as Transformers has it":
        "未给出 per_device_train_batch_size：取 Transformers 的默认值 {size}",
    "fsdp of the Trainer is answered as FSDP2 of torchtitan": "Trainer 的 fsdp 按 torchtitan 的 FSDP2 回答",
    "finetuning_type: {name} is not modelled; answered as full training":
        "finetuning_type：未建模 {name}；按全参数训练回答",
    "{name}: {section} {version} knows no such name": "{name}：{section} {version} 没有这个名字",
    "{name}: {section} {version} knows no such name; did you mean {near}?":
        "{name}：{section} {version} 没有这个名字；是否指 {near}？",
    "{name}: must be of kind {kind}, not {value}": "{name}：类型必须为 {kind}，而不是 {value}",
    "{name}: must be a table of values, not {value}": "{name}：必须是一张表，而不是 {value}",
    "the text between << {mark} and {again}": "<< {mark} 与 {again} 之间的文本",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
