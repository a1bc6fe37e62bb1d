"""What traces assume and why they stop, in Chinese."""

from __future__ import annotations

from typing import Final

TRACING_ZH: Final[dict[str, str]] = {
    "no --gpu given: {gpu}": "未给出 --gpu：取 {gpu}",
    "no --batch given: {batch}": "未给出 --batch：取 {batch}",
    "no --batch given: {batch}, the least that batch norm trains with":
        "未给出 --batch：取 {batch}，即批归一化训练所需的最小值",
    "no sample_size in its config: {high} x {wide}": "其配置没有 sample_size：取 {high} x {wide}",
    "no --seq-len given: {length}": "未给出 --seq-len：取 {length}",
    "no --loss given: {loss}": "未给出 --loss：取 {loss}",
    "no --capacity given: the main memory of this machine": "未给出 --capacity：取本机内存",
    "the model's own": "模型自带的损失",
    "the mean of the first output": "首个输出的均值",
    "input {size} per sample": "每个样本的输入为 {size}",
    "77 positions of text": "文本为 77 个位置",
    "{length} positions; its config has {longest}, beyond which learned positions fail on a card":
        "{length} 个位置；其配置为 {longest}，超出时可学习的位置编码在卡上会报错",
    "torch {version}: tracing is tested with 2.13": "torch {version}：追踪仅在 2.13 上测试过",
    "the script runs out of memory, catches that and goes on; with memory enough its peak would be {size}":
        "脚本显存不足后捕获异常并继续；若显存足够，其峰值为 {size}",
    "{goal} looked for in steps of {unit}": "按步长 {unit} 查找 {goal}",
    "smallest and largest CUDA context seen on {arch}": "{arch} 上所见最小与最大的 CUDA 上下文",
    "{what}, {count} times": "{what}（{count} 次）",
    "{what}, {count} times ({place})": "{what}（{count} 次，{place}）",
    "{value} read from {operator}": "从 {operator} 读得 {value}",
    "{value} read from {operator} ({place})": "从 {operator} 读得 {value}（{place}）",
    "{value} read from {operator}, {count} times": "从 {operator} 读得 {value}（{count} 次）",
    "{value} read from {operator}, {count} times ({place})": "从 {operator} 读得 {value}（{count} 次，{place}）",
    "data decides which elements {operator} takes: all are counted as taken":
        "{operator} 取哪些元素由数据决定：按全部取用计",
    "data decides which elements {operator} takes: all are counted as taken ({place})":
        "{operator} 取哪些元素由数据决定：按全部取用计（{place}）",
    "data decides which elements {operator} takes: all are counted as taken, {count} times":
        "{operator} 取哪些元素由数据决定：按全部取用计（{count} 次）",
    "data decides which elements {operator} takes: all are counted as taken, {count} times ({place})":
        "{operator} 取哪些元素由数据决定：按全部取用计（{count} 次，{place}）",
    "what data decides above can be given by its line: --value {place}=..., a value, or of elements their share (0.5) "
    "or number": "上述由数据决定的内容可按行给出：--value {place}=...，可为数值，或所取元素的比例（0.5）或个数",
    "target sequences of {count} labels": "目标序列为 {count} 个标签",
    "no factor of a product is zero": "乘积中没有为零的因子",
    "all rows of a sparse gradient are distinct": "稀疏梯度的各行互不相同",
    "LBFGS: curvatures are positive, the history is full (2 x history_size gradients) from the second step on":
        "LBFGS：曲率为正，从第二步起历史已满（2 x history_size 份梯度）",
    # recordings
    "{count} events of the unknown action {name} were left out": "略去 {count} 个未知动作 {name} 的事件",
    "{count} events of the CPU were left out": "略去 {count} 个 CPU 事件",
    # a script and its surroundings
    "no optimizer of torch.optim: a call of backward ends a step":
        "没有 torch.optim 的优化器：以一次 backward 调用作为一步",
    "a child process of the script is not traced": "脚本的子进程未追踪",
    "the script uses the network": "脚本使用了网络",
    "a checkpoint holds this rank's optimizer states: those of other ranks are not gathered":
        "检查点只含本进程的优化器状态：未收集其他进程的",
    "a checkpoint of tensors without data is not written": "没有数据的张量不写入检查点",
    "torch.compile is not modelled: the step is traced as it runs eagerly; compiled, fused operators keep fewer "
    "tensors, reordered ones and autotuning may hold more":
        "未对 torch.compile 建模：按 eager 执行追踪；编译后融合的算子保留的张量更少，重排的算子与自动调优可能占用更多",
    "torch.compile runs without CUDA graphs; theirs keep a pool of their own":
        "torch.compile 未使用 CUDA 图；启用时图另占自己的池",
    "flex_attention runs as its compiled kernel": "flex_attention 按编译后的内核执行",
    "what the driver keeps for CUDA graphs themselves is not counted": "驱动为 CUDA 图本身保留的显存未计入",
    "data loader workers run in the process itself": "数据加载进程在本进程内运行",
    "TransformerEncoder keeps the padding of its batch; nested tensors without it need less":
        "TransformerEncoder 保留批次的填充；不含填充的嵌套张量占用更少",
    "of the processes that torch.multiprocessing starts, one is traced": "torch.multiprocessing 启动的进程只追踪一个",
    "{time} ms between events: time is not simulated": "事件间隔按 {time} ms：不模拟时间",
    "the compiled module {name} of {library} is taken to be built": "假定 {library} 的编译模块 {name} 已构建",
    "the compiled part of xformers is taken to be built": "假定 xformers 的编译部分已构建",
    "xformers was imported outside of the simulation: its attention is taken to be CUTLASS's":
        "xformers 在模拟之外导入：其注意力按 CUTLASS 计算",
    "cuDNN's attention is taken to work in one fp32 gradient of the queries and their row sums":
        "假定 cuDNN 注意力使用一份 Q 的 fp32 梯度及其行和",
    "backward of TransformerEngine's norms is taken to run one block a multiprocessor":
        "假定 TransformerEngine 归一化的反向每个 SM 运行一个线程块",
    "stopped after {count} forwards: the last {quiet} brought no new peak":
        "{count} 次前向后停止：最近 {quiet} 次没有新的峰值",
    "stopped after {count} calls of backward": "{count} 次 backward 调用后停止",
    "stopped after {count} replays of CUDA graphs": "{count} 次 CUDA 图重放后停止",
    "stopped after {count} optimizer steps": "{count} 次优化器更新后停止",
    "stopped after {count} optimizer steps, each of which leaves {size} more allocated: a longer run takes more":
        "{count} 次优化器更新后停止，每次更新都多留下 {size} 已分配显存：运行越久占用越多",
    "stopped after {count} optimizer steps, which differ, and the last ones still rose: a longer run may take more":
        "{count} 次优化器更新后停止；各步不同，最后几步峰值仍在上升：运行更久可能占用更多",
    "stopped after {count} optimizer steps, which differ: the last {quiet} brought no new peak":
        "{count} 次优化器更新后停止；各步不同，最后 {quiet} 步没有新的峰值",
    "what comes after these steps, as an evaluation, is not part of the answer; --steps runs further":
        "这些步之后的部分（例如评估）不在结果之内；--steps 可多运行几步",
    "stopped at the time limit of {limit} s after {far}": "达到 {limit} s 时限而停止，此前完成 {far}",
    "{steps} optimizer steps and {forwards} forwards, at {place}":
        "{steps} 次优化器更新、{forwards} 次前向（位于 {place}）",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
