"""What cannot be traced, and why, in Chinese."""

from __future__ import annotations

from typing import Final

NOT_TRACED_ZH: Final[dict[str, str]] = {
    "{value} cannot be traced; give a name, a torch.nn.Module or a function":
        "无法追踪 {value}；请给出名称、torch.nn.Module 或函数",
    "{options} means nothing for code at hand; use {known}": "{options} 对现有代码没有意义；可用 {known}",
    "tracing runs PyTorch, which is not installed: pip install 'vramcast[trace]'":
        "追踪需要 PyTorch，但未安装：pip install 'vramcast[trace]'",
    "{file}: no such script; check the name and the folder": "{file}：没有这个脚本；请检查名称与目录",
    "time-limit={limit} is more than a day; use at most {most}": "time-limit={limit} 超过一天；最多 {most}",
    "input={text} must be sizes with x between them, a dtype behind and a name before where they matter: 32x3x224x224, "
    "8x1024:int64, mask=BxS:bool":
        "input={text} 必须是以 x 分隔的尺寸，需要时后接 dtype、前加名称：32x3x224x224、8x1024:int64、mask=BxS:bool",
    "input={text} has a dimension of 0 or beyond 2^40; use 1 or more":
        "input={text} 有维度为 0 或超过 2^40；请用 1 或更大",
    "rank={rank} is not among the {world} ranks of --world-size; use 0 to {last}":
        "rank={rank} 不在 --world-size 的 {world} 个进程之内；请用 0 到 {last}",
    "--parallel {kind} needs ranks; give --world-size": "--parallel {kind} 需要多个进程；请给出 --world-size",
    "steps={steps} is more than memory needs to repeat; use at most {most}":
        "steps={steps} 超过显存达到稳定所需；最多用 {most}",
    "--input names {name} twice; give every name once": "--input 两次使用名称 {name}；每个名称只给一次",
    "arg={text} must be name=value, for example --arg depth=12": "arg={text} 必须是 name=value，例如 --arg depth=12",
    "--{option} has no meaning here: {reason}; leave it out": "--{option} 在此没有意义：{reason}；请去掉",
    "it is for scripts": "它用于脚本",
    "a script says that itself": "脚本自身会说明",
    "an --input has the letter {letter}, which stands for --{option}; give it":
        "某个 --input 含字母 {letter}，代表 --{option}；请给出它",
    "--eval computes no gradients, so --{option} has no meaning; leave one of them out":
        "--eval 不计算梯度，--{option} 没有意义；请去掉其一",
    "value={text} must be file:line=value, for example --value train.py:42=0.5":
        "value={text} 必须是 file:line=value，例如 --value train.py:42=0.5",
    "--device cpu is no longer simulated: traces are of cards; leave it out":
        "--device cpu 不再模拟：追踪只针对显卡；请去掉它",
    "value {text} is no number; write FILE:LINE=VALUE, as train.py:33=0.25 or train.py:40=true":
        "值 {text} 不是数字；请写 FILE:LINE=VALUE，例如 train.py:33=0.25 或 train.py:40=true",
    "value {text} names no place; write FILE:LINE=VALUE, as train.py:33=0.25":
        "值 {text} 没有位置；请写 FILE:LINE=VALUE，例如 train.py:33=0.25",
    "world size {count} has no rank; give 1 or more": "world size {count} 没有进程；请给 1 或更大",
    "rank {rank} is not in a world of {world} ranks; give 0 to {last}":
        "rank {rank} 不在 {world} 个进程之内；请给 0 到 {last}",
    "{count} cards per machine hold no rank; give 1 or more": "每台机器 {count} 张卡放不下进程；请给 1 或更大",
    "{name} of {gpu} is not known here; choose a card whose {again} is known":
        "{gpu} 的 {name} 未知；请选择 {again} 已知的卡",
    "{gpu} has no compute capability, which torch.cuda asks for; choose an NVIDIA card":
        "{gpu} 没有 torch.cuda 所需的计算能力；请选择 NVIDIA 卡",
    "{function} is a compiled function of which it is not known what it allocates; trace the step without it, or with "
    "the operators of PyTorch in its place":
        "{function} 是编译函数，其显存分配未知；请去掉它，或改用 PyTorch 算子后再追踪",
    "{function} stands in for a compiled function while a simulation runs, and none runs now":
        "{function} 只在模拟运行时替代编译函数，现在没有模拟",
    "TransformerEngine before 2.20 asks for its attention otherwise; trace with 2.20 or later":
        "TransformerEngine 2.20 之前的注意力接口不同；请用 2.20 及以上追踪",
    "{what} of pages, or in 8 bits, is not known; trace with attention in 16 bits":
        "分页或 8 位的 {what} 未知；请用 16 位注意力追踪",
    "{name} of TransformerEngine is not known; trace with DelayedScaling() or Float8CurrentScaling()":
        "TransformerEngine 的 {name} 未知；请用 DelayedScaling() 或 Float8CurrentScaling() 追踪",
    "{what} raised {kind}: {reason}": "{what} 抛出 {kind}：{reason}",
    "the forward raised {kind}: {reason}": "前向抛出 {kind}：{reason}",
    "the loss raised {kind}: {reason}": "损失抛出 {kind}：{reason}",
    "the step raised {kind}: {reason}": "训练步抛出 {kind}：{reason}",
    "what {target} takes is not known: give --input for ({names}), for example --input 8x1024":
        "{target} 的输入未知：请为（{names}）给出 --input，例如 --input 8x1024",
    "--seq-len has no meaning for these inputs: none has the letter S; write --input BxS:int64":
        "--seq-len 对这些输入没有意义：都不含字母 S；请写 --input BxS:int64",
    "loss=own: the forward returns no loss; give --loss, for example --loss mean":
        "loss=own：前向没有返回损失；请给出 --loss，例如 --loss mean",
    "the forward returns no tensor of floats; give --loss module:function that makes one of it":
        "前向没有返回浮点张量；请用 --loss module:function 由其得到损失",
    "loss={name} gives {what}, but backward begins at a scalar; reduce it, or give --loss mean":
        "loss={name} 给出 {what}，但反向须从标量开始；请归约，或用 --loss mean",
    "loss={name} is no function; give one that takes what the forward returns":
        "loss={name} 不是函数；请给出接收前向输出的函数",
    "tensors of layout {layout} are not simulated; use torch.sparse_coo or dense tensors":
        "不模拟 {layout} 布局的张量；请用 torch.sparse_coo 或稠密张量",
    "no parameter of the module needs a gradient; trace it with --eval": "模块没有需要梯度的参数；请用 --eval 追踪",
    "optimizer={name} is no class or function that makes an optimizer": "optimizer={name} 不是能产生优化器的类或函数",
    "optimizer={name}: torch.optim.{again} says: {reason}": "optimizer={name}：torch.optim.{again} 报告：{reason}",
    "8-bit optimizers are those of bitsandbytes: pip install bitsandbytes":
        "8-bit 优化器来自 bitsandbytes：pip install bitsandbytes",
    "what the script's process left behind cannot be read: {reason}": "无法读取脚本进程留下的结果：{reason}",
    "pack_padded_sequence needs the values of its lengths; give numbers, not results":
        "pack_padded_sequence 需要长度的数值；请给数字，而不是计算结果",
    "torch {version} cannot be traced, 2.11 and newer can: pip install 'vramcast[trace]'":
        "torch {version} 无法追踪，2.11 及以上可以：pip install 'vramcast[trace]'",
    "{place}: the script itself failed with {kind}: {reason}": "{place}：脚本自身出错，{kind}：{reason}",
    "{file} exited with {code}": "{file} 以 {code} 退出",
    "{file} exited with {code} after printing: {output}": "{file} 以 {code} 退出，此前输出：{output}",
    "{file} computes on the CPU alone and takes nothing of the card; move its model and data to the card, or name "
    "what builds the model, as {module}":
        "{file} 只在 CPU 上计算，未使用显卡；请把模型和数据移到卡上，或指出构建模型的函数，如 {module}",
    "nothing of {file} ran on the card; if it defines a model, name what builds it, as {module}, and give --input; if "
    "it is a script, it must call its training itself":
        "{file} 没有在卡上运行任何内容；若它只定义模型，请指出构建模型的函数，如 {module}，并给出 --input；"
        "若是脚本，它须自行调用训练",
    "the process of {file} ended {how}: {output}": "{file} 的进程结束（{how}）：{output}",
    "there is no script {file}; give the path of a Python file": "没有脚本 {file}；请给出 Python 文件的路径",
    "{file} was still running after {limit} s, in native code; raise --time-limit or give it arguments that make it "
    "shorter":
        "{file} 在 {limit} s 后仍在原生代码中运行；请增大 --time-limit 或给更短的参数",
    "{file} was still running after {limit} s: {far}; raise --time-limit or give it arguments that make it shorter":
        "{file} 在 {limit} s 后仍在运行：{far}；请增大 --time-limit 或给更短的参数",
    "stages of a pipeline ask each other which tensors they send, and one simulated rank has nobody to ask; give "
    "PipelineStage input_args and output_args of one micro-batch, torch.empty(..., device='meta', requires_grad=True)":
        "流水线各阶段互相询问所发送的张量，而单个模拟的 rank 无处可问；"
        "请给 PipelineStage 一个微批次的 input_args 与 output_args："
        "torch.empty(..., device='meta', requires_grad=True)",
    "the script needs DeepSpeed, which cannot be simulated; trace it with FSDP or DDP, or ask `vramcast train MODEL "
    "--engine deepspeed`":
        "脚本需要 DeepSpeed，无法模拟；请改用 FSDP 或 DDP 追踪，或用 `vramcast train MODEL --engine deepspeed`",
    "is not installed and ": "未安装且 ",
    "the script needs DeepSpeed, which is not installed and cannot be simulated; trace it with FSDP or DDP, or ask "
    "`vramcast train MODEL --engine deepspeed`":
        "脚本需要 DeepSpeed，它未安装且无法模拟；请改用 FSDP 或 DDP 追踪，或用 `vramcast train MODEL --engine "
        "deepspeed`",
    "a simulation is running already, and a process runs one at a time; leave its block first, or start another "
    "process":
        "已有模拟在运行，一个进程同时只能有一个；请先退出其代码块，或另起进程",
    "{operator} of sparse tensors is not simulated; make the gradients dense, as with sparse=False":
        "不模拟稀疏张量的 {operator}；请用稠密梯度，例如 sparse=False",
    "{operator} is not simulated, as torch has no kernel of it for tensors without data; register one with "
    "torch.library.register_fake, or leave it out of what is traced":
        "不模拟 {operator}：torch 没有它对无数据张量的内核；请用 torch.library.register_fake 注册，或从追踪中去掉它",
    "{name} cannot be copied ({kind}: {reason}); give a function that builds it":
        "无法复制 {name}（{kind}：{reason}）；请给出构建它的函数",
    "target {text} must be a script.py, module:factory, timm:NAME, transformers:MODEL or diffusers:CONFIG":
        "目标 {text} 必须是 script.py、module:factory、timm:NAME、transformers:MODEL 或 diffusers:CONFIG",
    "{name} is {kind}; give what builds a torch.nn.Module, or one":
        "{name} 是 {kind}；请给出构建 torch.nn.Module 的对象，或模块本身",
    "{name}: transformers {version} refuses its config: {kind}: {why}":
        "{name}：transformers {version} 拒绝其配置：{kind}: {why}",
    "{name}: transformers {version} does not know model_type={kind}; {hint}":
        "{name}：transformers {version} 不认识 model_type={kind}；{hint}",
    "{name} is a module already, so --arg has no meaning; leave it out": "{name} 已是模块，--arg 没有意义；请去掉",
    "{name} returned {kind}, not a torch.nn.Module; name what builds the module":
        "{name} 返回 {kind}，而不是 torch.nn.Module；请指定构建模块的对象",
    "{name}: not installed; pip install it, or check the name and the folder":
        "{name}：未安装；请 pip install，或检查名称与目录",
    "{name} cannot be imported: {kind}: {reason}": "无法导入 {name}：{kind}：{reason}",
    "{place}: {what} depends on data, which simulated tensors do not have; give {value} with --value "
    "{again}:{line}=...":
        "{place}：{what}取决于数据，而模拟张量没有数据；请用 --value {again}:{line}=... 给出{value}",
    "the size of what {operator} returns": "{operator} 返回的大小",
    "the integer that {operator} returns": "{operator} 返回的整数",
    "the number of elements": "元素个数",
    "the integer": "该整数",
    "{name} needs arguments: {names}; give them with --arg name=value":
        "{name} 需要参数：{names}；请用 --arg name=value 给出",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
