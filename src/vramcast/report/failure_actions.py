"""The words of what to change and what to check after a failure; part of `messages.rare_messages`."""

from __future__ import annotations

from typing import Final

FAILURE_ACTIONS: Final[dict[str, dict[str, str]]] = {
    "fix.expandable": {
        "en": "let segments grow instead of lying apart: pieces join (set it before Python starts)",
        "zh": "让段可以扩展，碎片得以合并（在 Python 启动前设置）",
    },
    "fix.newer_torch": {
        "en": "update to PyTorch 2.1 or newer and let segments grow instead of lying apart: pieces join",
        "zh": "升级到 PyTorch 2.1 以上，让段可以扩展，碎片得以合并",
    },
    "fix.max_split": {
        "en": "do not split blocks larger than this, so that large requests find them whole (PyTorch 1.10 or newer)",
        "zh": "大于此值的块不再切分，大申请能找到整块（PyTorch 1.10 以上）",
    },
    "fix.shapes": {
        "en": "fewer different shapes: pad to multiples, sort by length, run the longest batch first",
        "zh": "减少形状种类：按倍数填充、按长度排序、先跑最长的批次",
    },
    "fix.empty_cache": {
        "en": "between phases of different shapes (training, evaluation), not in every step",
        "zh": "在形状不同的阶段之间调用（训练、评估），不要每步调用",
    },
    "fix.fewer_graphs": {"en": "capture fewer graphs, or none", "zh": "少捕获或不捕获 CUDA 图"},
    "fix.no_reduce_overhead": {
        "en": 'compile without graphs: not mode="reduce-overhead"',
        "zh": '编译时不用 CUDA 图：不用 mode="reduce-overhead"',
    },
    "fix.share_pool": {"en": "let graphs that never run at once share a pool", "zh": "让不同时运行的图共用一个池"},
    "fix.detach": {
        "en": "keep numbers, not tensors: what a loss or an output that is kept still refers to is never freed",
        "zh": "保存数值而非张量：被保留的 loss 或输出会使整张图无法释放",
    },
    "fix.no_grad": {"en": "evaluate without a graph", "zh": "评估时不建计算图"},
    "fix.record": {
        "en": "record the allocator's history, dump it at the failure and ask again with --snapshot",
        "zh": "记录分配历史，失败时导出，再用 --snapshot 询问",
    },
    "fix.first_error": {
        "en": "read the first error above this line: that is the cause",
        "zh": "查看这一行之上的第一个错误：那才是原因",
    },
    "fix.synchronous": {
        "en": "run once with synchronous launches: the traceback then names the kernel",
        "zh": "用同步启动再跑一次，回溯会指出具体内核",
    },
    "fix.newer_server": {"en": "try the server's newest release", "zh": "试用该服务的最新版本"},
    "fix.shape_overflow": {
        "en": "print shapes before the failing line: one is negative or far too large",
        "zh": "打印出错行之前的形状：有负数或过大的维度",
    },
    "fix.shorter_context": {"en": "allow only as many tokens as the cache holds", "zh": "只允许缓存容纳得下的长度"},
    "fix.higher_fraction": {"en": "give the engine more of the card", "zh": "给引擎更多显存"},
    "fix.kv_8bit": {"en": "keep the cache in 8 bits: half the bytes a token", "zh": "缓存用 8 位：每 token 减半"},
    "fix.eager": {"en": "no graphs: their memory goes to the cache", "zh": "不用 CUDA 图，省下的给缓存"},
    "fix.more_cards": {"en": "divide weights and cache over cards", "zh": "把权重与缓存分到多卡"},
    "fix.quantised": {"en": "smaller weights leave more to the cache", "zh": "权重量化，给缓存留更多空间"},
    "fix.fewer_layers": {
        "en": "put fewer layers on the card; the others stay in main memory",
        "zh": "少放几层到卡上，其余留在内存",
    },
    "fix.micro_batch_llama": {
        "en": "a smaller physical batch: a smaller compute buffer",
        "zh": "减小物理批次，计算缓冲区随之变小",
    },
    "fix.one_copy": {"en": "build without copies for pipeline parallelism", "zh": "编译时去掉流水线并行的副本"},
    "fix.flash_llama": {
        "en": "flash attention: no scores in the compute buffer",
        "zh": "Flash Attention：计算缓冲区不存分数矩阵",
    },
    "fix.split": {"en": "divide layers by what each card has free", "zh": "按各卡空闲比例分配层"},
    "fix.shorter_llama": {"en": "a shorter context", "zh": "缩短上下文"},
    "fix.smaller_quant": {
        "en": "a smaller quantisation of the same model (Q4_K_M instead of Q8_0)",
        "zh": "用更小的量化（Q4_K_M 代替 Q8_0）",
    },
    "fix.flash": {
        "en": "attention that never builds the scores in one piece; fp16 or bf16, or older cards fall back",
        "zh": "使用不整块存分数的注意力；需 fp16 或 bf16，否则老卡会退回",
    },
    "fix.chunks": {"en": "compute it in parts, or on the CPU", "zh": "分块计算，或放到 CPU 上"},
    "fix.fused_loss": {"en": "a loss that never holds all logits", "zh": "使用不保存全部 logits 的损失"},
    "fix.no_spill": {
        "en": 'NVIDIA control panel, CUDA sysmem fallback policy: "prefer no fallback"; it then fails at once '
        "instead of becoming slow",
        "zh": "NVIDIA 控制面板的 CUDA 系统内存回退策略设为“不回退”：会立即失败而不是变慢",
    },
    "fix.inference_mode": {"en": "when only running the model: keep no graph", "zh": "只推理时不保留计算图"},
    "fix.quantised_load": {"en": "load the weights in 4 or 8 bits", "zh": "以 4 或 8 位加载权重"},
    "fix.smaller_batch": {
        "en": "smaller micro-batches, more of them accumulated",
        "zh": "减小微批次，用梯度累积补足",
    },
    "fix.checkpointing": {"en": "compute activations again instead of keeping them", "zh": "重算激活而不保存"},
    "fix.8bit_optimizer": {"en": "optimizer states in 8 bits", "zh": "8 位优化器状态"},
    "fix.set_to_none": {"en": "free gradients before the next forward", "zh": "前向之前释放梯度"},
    "fix.shard": {
        "en": "divide states over cards (FSDP, ZeRO), or put them into main memory",
        "zh": "把状态分到多卡（FSDP、ZeRO）或放到内存",
    },
    "fix.prefill_tokens": {"en": "fewer tokens in one prefill", "zh": "减少一次预填充的 token"},
    "fix.chunked_prefill": {"en": "smaller prefill chunks: smaller activations", "zh": "减小预填充分块"},
    "fix.jax_fraction": {
        "en": "let XLA take more of the card than three quarters",
        "zh": "让 XLA 使用超过四分之三的显存",
    },
    "fix.remat": {"en": "compute activations again in backward", "zh": "反向时重算激活"},
    "fix.tf_growth": {
        "en": "let TensorFlow take memory as it needs it, not the whole card",
        "zh": "让 TensorFlow 按需占用，而不是占满整卡",
    },
    "fix.metal_ratio": {
        "en": "lift Metal's limit, set before torch is imported; the whole machine may become slow",
        "zh": "取消 Metal 上限（须在导入 torch 前设置）；可能拖慢整机",
    },
    "fix.larger_card": {
        "en": "a card with more memory: vramcast train or serve says which",
        "zh": "换更大的卡：vramcast train 或 serve 可算出",
    },
    "fix.stop_others": {"en": "see who holds the card and end it", "zh": "查看占卡的进程并结束它"},
    "fix.watch": {"en": "watch who holds the card while it fails", "zh": "失败时观察是谁占用显卡"},
    "fix.other_card": {"en": "use a card that is free", "zh": "换一张空闲的卡"},
    "fix.own_ranks": {
        "en": "every rank on its own card: else all open a context on card 0",
        "zh": "每个进程用自己的卡，否则都在 0 号卡上建上下文",
    },
    "fix.zombies": {
        "en": "find processes that nvidia-smi does not list: earlier runs, other containers",
        "zh": "找出 nvidia-smi 未列出的进程：上次运行、其他容器",
    },
    "fix.raise_fraction": {"en": "raise the limit of this process", "zh": "提高本进程的上限"},
    "fix.lower_fraction": {"en": "leave more beside the engine's share", "zh": "给引擎份额之外多留空间"},
    "fix.raise_static": {
        "en": "a larger static pool, where weights leave nothing for the cache",
        "zh": "权重之外没有缓存空间时，增大静态池",
    },
    "fix.fewer_requests": {
        "en": "smaller activations and graphs: fewer requests at once",
        "zh": "减少并发请求，激活与图随之变小",
    },
    "fix.trt_fraction": {"en": "let the cache take less of the free memory", "zh": "让缓存少占空闲显存"},
    "fix.metal_cache": {"en": "give cached Metal memory back between phases", "zh": "在阶段之间归还 Metal 缓存"},
    "fix.leave_room": {
        "en": "leave room before the library starts: smaller batch, or initialise the library first",
        "zh": "在库启动前留出空间：减小批次，或先初始化该库",
    },
    "fix.jax_preallocate": {"en": "let XLA take memory as it needs it", "zh": "让 XLA 按需占用"},
    "fix.lazy_modules": {"en": "load kernels when they are first used", "zh": "首次使用时才加载内核"},
    "fix.nccl_buffers": {"en": "smaller and fewer NCCL buffers", "zh": "减小、减少 NCCL 缓冲区"},
    "fix.workspace": {"en": "a smaller cuBLAS workspace", "zh": "减小 cuBLAS 工作区"},
    "fix.second_allocator": {
        "en": "empty or bound the other allocator of the process",
        "zh": "清空或限制进程内的另一分配器",
    },
    "fix.what_is_free": {
        "en": "or take no more of the card than is free",
        "zh": "或只使用空闲的那部分显存",
    },
    "fix.fewer_sequences": {"en": "fewer sequences at once", "zh": "减少同时处理的序列"},
    "fix.smaller_input": {"en": "a smaller batch, or smaller inputs", "zh": "减小批次或输入"},
    "fix.pod_limit": {"en": "raise the memory limit of the container", "zh": "提高容器的内存上限"},
    "fix.job_limit": {"en": "ask the batch system for more main memory", "zh": "向调度系统申请更多内存"},
    "fix.layers_off": {
        "en": "let the layers that do not fit run from main memory, slowly",
        "zh": "放不下的层放在内存中运行（慢）",
    },
    "fix.fewer_workers": {"en": "fewer loader workers, fewer batches ahead", "zh": "减少加载进程与预取批次"},
    "fix.shm": {"en": "more shared memory for the container", "zh": "增大容器的共享内存"},
    "fix.unpinned": {"en": "do not pin the loader's batches", "zh": "不锁页"},
    "fix.low_cpu": {"en": "load weights one by one, not two whole copies", "zh": "逐个加载权重，避免两份完整副本"},
    "fix.mmap": {"en": "map the file instead of reading it into main memory", "zh": "映射文件而不是读入内存"},
    "fix.more_host": {
        "en": "see what ended it, and give the job more main memory",
        "zh": "查看是谁终止了它，并给任务更多内存",
    },
    "fix.technique": {"en": "{technique}: {device} in all", "zh": "{technique}：合计 {device}"},
    "fix.change_holds": {
        "en": "the cache then holds {sequences} sequences; {device} in all",
        "zh": "缓存可容纳 {sequences} 条序列；合计 {device}",
    },
    "fix.change": {"en": "{device} in all", "zh": "合计 {device}"},
    "fix.replayed": {
        "en": "the recording under this setting reserves {reserved} at its peak instead of {before}",
        "zh": "用此设置回放，峰值保留 {reserved}，原为 {before}",
    },
    "fix.replayed_avoids": {
        "en": "the recording under this setting does not run out: {reserved} reserved at its peak, {before} without",
        "zh": "用此设置回放不再失败：峰值保留 {reserved}，原为 {before}",
    },
    "check.loss_scale": {
        "en": "NaN with fp16: print scaler.get_scale() every step. A scale that halves again and again means "
        "overflow; call scaler.unscale_(optimizer) before clipping, start at GradScaler(init_scale=2.**13), or "
        "use bf16",
        "zh": "fp16 出现 NaN：每步打印 scaler.get_scale()，不断减半即为溢出；裁剪前先 scaler.unscale_(optimizer)，用 "
        "GradScaler(init_scale=2.**13)，或改用 bf16",
    },
    "check.loss_scale.job": {
        "en": "{card} has bf16, which needs no loss scale; this job asks for {precision}: --precision mixed-bf16 or "
        "amp-bf16",
        "zh": "{card} 支持 bf16，无需损失缩放；本任务为 {precision}：用 --precision mixed-bf16 或 amp-bf16",
    },
    "check.fp32_parts": {
        "en": "keep softmax, norms and the loss in fp32 (autocast does): logits.float() before cross entropy; find "
        "the first bad operator with torch.autograd.set_detect_anomaly(True)",
        "zh": "softmax、归一化和损失保持 fp32（autocast 会这样做）：交叉熵前 logits.float()；用 "
        "torch.autograd.set_detect_anomaly(True) 找出第一个出错的算子",
    },
    "check.rng": {
        "en": "checkpointing and dropout: backward must draw the same masks, so keep checkpoint(..., "
        "preserve_rng_state=True); it costs time, not memory",
        "zh": "检查点与 dropout：反向须得到相同掩码，保持 checkpoint(..., preserve_rng_state=True)；费时间不费显存",
    },
    "check.batch_norm": {
        "en": "checkpointing and batch norm: running statistics are updated twice a step; leave such layers outside, "
        "or use momentum 1 - sqrt(1 - m): 0.0513 instead of 0.1",
        "zh": "检查点与 batch norm：运行统计每步更新两次；把这些层放在外面，或用动量 1 - sqrt(1 - m)：0.1 改为 0.0513",
    },
    "check.reentrant": {
        "en": "checkpointing with frozen inputs (LoRA) gives no gradients when reentrant: "
        'gradient_checkpointing_kwargs={{"use_reentrant": False}}',
        "zh": '输入不需梯度时（LoRA），可重入检查点得不到梯度：gradient_checkpointing_kwargs={{"use_reentrant": False'
        "}}",
    },
    "check.buckets": {
        "en": "ZeRO buckets: reduce_bucket_size and allgather_bucket_size are elements, not bytes (5e8 is 1 GB in 16 "
        'bits), and "overlap_comm": true keeps two; with little memory use 5e7',
        "zh": "ZeRO 桶：reduce_bucket_size 与 allgather_bucket_size 以元素计（5e8 在 16 位下为 1 GB），"
        '"overlap_comm": true 保留两份；显存紧张时用 5e7',
    },
    "check.buckets.job": {
        "en": "this job: {elements} elements are {bucket} a bucket, {copies} of them: {buffers}",
        "zh": "本任务：{elements} 个元素，每桶 {bucket}，共 {copies} 个：{buffers}",
    },
    "check.wrapping": {
        "en": "FSDP units: what is wrapped as one is gathered as one; wrap every layer (fully_shard(layer) for each, "
        "or transformer_auto_wrap_policy), else one flat unit gathers the whole model",
        "zh": "FSDP 单元：包成一个就整体收集；应逐层包装（对每层 fully_shard(layer)，"
        "或 transformer_auto_wrap_policy），否则一个大单元会收集整个模型",
    },
    "check.wrapping.job": {
        "en": "this job: one flat unit gathers {whole}, a layer {layer}",
        "zh": "本任务：整体包装收集 {whole}，逐层只需 {layer}",
    },
    "check.offload": {
        "en": "slow offload: pin the buffers (\"pin_memory\": true), use DeepSpeedCPUAdam (not torch's Adam), see "
        "PCIe with nvidia-smi -q | grep -A3 'Link Width', accumulate more to step less often",
        "zh": '卸载慢：锁页（"pin_memory": true），用 DeepSpeedCPUAdam 而非 torch 的 Adam，用 nvidia-smi -q | grep '
        "-A3 'Link Width' 检查 PCIe，多累积少更新",
    },
    "check.offload.job": {
        "en": "this job: {moved} cross PCIe a step and card; transfers and updates that nothing hides take {waits} "
        "of {step}",
        "zh": "本任务：每步每卡经 PCIe 传输 {moved}；未被掩盖的传输与更新用时 {waits}，每步共 {step}",
    },
}
"""Key -> language -> text."""
