"""The words of reports on failures: causes, evidence, numbers; part of `messages.rare_messages`."""

from __future__ import annotations

from typing import Final

FAILURE_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "failed.too_big": {"en": "the job needs more memory than there is", "zh": "任务所需显存超过现有显存"},
    "failed.fragmented": {
        "en": "enough memory is reserved, in pieces that the request does not fit",
        "zh": "已保留的显存足够，但被切成碎片，放不下这次申请",
    },
    "failed.other_process": {"en": "another process holds the card", "zh": "显卡被其他进程占用"},
    "failed.memory_fraction": {
        "en": "a limit that was set is reached, or leaves too little beside it; the card itself is not too small",
        "zh": "达到了人为设定的上限，或上限之外所剩太少；并非显卡本身太小",
    },
    "failed.private_pools": {
        "en": "captured graphs keep memory that nothing else can use",
        "zh": "CUDA 图的私有池占着别人用不了的显存",
    },
    "failed.context_and_libraries": {
        "en": "context, libraries or another allocator of the process found or left no room",
        "zh": "上下文、库或进程内其他分配器没有空间，或占满了空间",
    },
    "failed.host_memory": {
        "en": "main memory ran out (also pinned or shared memory), not the card's",
        "zh": "耗尽的是主机内存（含锁页或共享内存），不是显存",
    },
    "failed.leak": {"en": "memory in use grows from step to step", "zh": "显存占用逐步增长（泄漏）"},
    "failed.bug": {"en": "a mistake that looks like lack of memory", "zh": "是程序错误，看起来像显存不足"},
    "failed.unknown": {"en": "the text does not say enough to tell the cause", "zh": "文本信息不足，无法判断原因"},
    "failed.no_failure": {
        "en": "no failure in this text, only what is held: give it together with the log of what failed",
        "zh": "文本中没有失败，只有占用情况：请与失败的日志一起提供",
    },
    "name.too_big": {"en": "too big", "zh": "太大"},
    "name.fragmented": {"en": "fragmented", "zh": "碎片化"},
    "name.other_process": {"en": "another process", "zh": "其他进程"},
    "name.memory_fraction": {"en": "memory fraction", "zh": "显存比例"},
    "name.private_pools": {"en": "private pools", "zh": "私有池"},
    "name.context_and_libraries": {"en": "context and libraries", "zh": "上下文与库"},
    "name.host_memory": {"en": "host memory", "zh": "主机内存"},
    "name.leak": {"en": "leak", "zh": "泄漏"},
    "name.bug": {"en": "bug", "zh": "程序错误"},
    "name.unknown": {"en": "unknown", "zh": "未知"},
    "detail.shared_memory_spill": {"en": "Windows lends main memory", "zh": "Windows 借用了主机内存"},
    "detail.compute_buffer": {"en": "compute buffer", "zh": "计算缓冲区"},
    "detail.layers": {"en": "weights of the layers", "zh": "各层权重"},
    "detail.kv_cache": {"en": "KV cache", "zh": "KV 缓存"},
    "detail.attention_scores": {"en": "attention scores in one piece", "zh": "整块的注意力分数"},
    "detail.logits": {"en": "logits of the loss", "zh": "损失的 logits"},
    "detail.one_tensor": {"en": "one tensor", "zh": "单个张量"},
    "detail.weights": {"en": "weights", "zh": "权重"},
    "detail.optimizer_states": {"en": "optimizer states", "zh": "优化器状态"},
    "detail.activations": {"en": "activations", "zh": "激活"},
    "detail.driver_pieces": {"en": "the driver refuses although memory is free", "zh": "有空闲显存但驱动拒绝"},
    "detail.free_enough": {"en": "memory was free", "zh": "当时有空闲显存"},
    "detail.allowed": {"en": "limit of this process", "zh": "本进程的上限"},
    "detail.graphs": {"en": "CUDA graphs beside the engine's share", "zh": "引擎份额之外的 CUDA 图"},
    "detail.static_pool": {"en": "static pool", "zh": "静态池"},
    "detail.not_memory": {"en": "another error, reworded", "zh": "另一错误被改写"},
    "detail.no_failure": {"en": "no failure", "zh": "没有失败"},
    "detail.other_error": {"en": "another error", "zh": "另一种错误"},
    "detail.overflow": {"en": "impossible size", "zh": "不可能的大小"},
    "detail.metal": {"en": "Metal outside PyTorch's heaps", "zh": "PyTorch 堆之外的 Metal 分配"},
    "detail.library_handle": {"en": "a library's handle or workspace", "zh": "库的句柄或工作区"},
    "detail.loader": {"en": "data loader", "zh": "数据加载"},
    "detail.pinned": {"en": "pinned memory", "zh": "锁页内存"},
    "detail.killed": {"en": "ended by the system", "zh": "被系统终止"},
    "why.spilled": {
        "en": "{allocated} live and {reserved} reserved are more than the card's {total}: Windows lends main memory, "
        "slowly, until that ends too",
        "zh": "存活 {allocated}、已保留 {reserved}，超过整卡 {total}：Windows 借用主机内存（很慢），直到也用完",
    },
    "why.larger_than_card": {
        "en": "one request of {tried} is larger than the whole card, {total}: nothing that is freed can help",
        "zh": "单次申请 {tried} 超过整卡 {total}：释放什么都没用",
    },
    "why.one_tensor": {
        "en": "one request of {tried} is {tried_share} of the card's {total}",
        "zh": "单次申请 {tried}，占整卡 {total} 的 {tried_share}",
    },
    "why.large_request": {
        "en": "{tried} in one request were refused beside {free} free: Windows counts as free what one process may not "
        "take, and smaller requests go in",
        "zh": "单次申请 {tried} 被拒，尽管空闲 {free}：Windows 把单个进程不可用的也算作空闲，较小的申请可以放下",
    },
    "why.live_fills": {
        "en": "live tensors, {allocated}, fill {allocated_share} of the {limit} there is",
        "zh": "存活张量 {allocated}，占可用 {limit} 的 {allocated_share}",
    },
    "why.live_half": {
        "en": "live tensors take {allocated}, {allocated_share} of the {limit} there is",
        "zh": "存活张量 {allocated}，为可用 {limit} 的 {allocated_share}",
    },
    "why.small_card": {
        "en": "of a card of {total} the context of a process alone takes a tenth or more",
        "zh": "{total} 的卡，仅进程上下文就占一成以上",
    },
    "why.pieces_enough": {
        "en": "{unallocated} of the {reserved} reserved ({scattered}) lie unused between live tensors, more than the "
        "{tried} asked for; no single piece is that large, and the driver had only {free}. Without gaps live "
        "tensors and the request would take {together}",
        "zh": "已保留的 {reserved} 中有 {unallocated}（{scattered}）闲置在存活张量之间，多于所申请的 {tried}；但没有"
        "一块够大，驱动也只剩 {free}。若无空隙，存活张量加本次申请只需 {together}",
    },
    "why.pieces_usual": {
        "en": "{unallocated} of the {reserved} reserved lie unused in pieces; {scattered} is usual and seldom the "
        "cause",
        "zh": "已保留的 {reserved} 中有 {unallocated} 为碎片；{scattered} 属正常，很少是原因",
    },
    "why.pieces_and_free": {
        "en": "pieces ({unallocated}) and free memory ({free}) together, {both}, would hold the {tried} asked for; "
        "each alone is too small",
        "zh": "碎片（{unallocated}）与空闲（{free}）合计 {both}，可容纳所申请的 {tried}；单独都不够",
    },
    "why.free_enough_running": {
        "en": "the driver had {free} free and refused {tried}: it may have that memory in pieces too, or keep to a "
        "limit that the message does not show",
        "zh": "驱动有 {free} 空闲却拒绝了 {tried}：空闲显存可能也是碎的，或存在消息未显示的上限",
    },
    "why.free_enough": {
        "en": "{free} were free, far more than the {tried} asked for: what refused does not stand in the message",
        "zh": "当时空闲 {free}，远多于所申请的 {tried}：拒绝的原因不在消息中",
    },
    "why.free_enough_host": {
        "en": "with {free} free on the card, main memory, page file or a driver limit can be what ran out (Windows, "
        "WSL)",
        "zh": "卡上空闲 {free}，耗尽的可能是主机内存、页面文件或驱动限额（Windows、WSL）",
    },
    "why.free_enough_others": {
        "en": "{free} were free when the message was written: another process may have given them back just then",
        "zh": "写下消息时空闲 {free}：可能是其他进程刚刚释放",
    },
    "why.others": {
        "en": "other processes hold {others}, {others_share} of the card's {total}; without them the request fits",
        "zh": "其他进程占用 {others}，为整卡 {total} 的 {others_share}；没有它们就放得下",
    },
    "why.outside": {
        "en": "{outside} of the card's {total} are held outside this process's PyTorch ({reserved}): far more than "
        "context and libraries take",
        "zh": "整卡 {total} 中有 {outside} 不在本进程的 PyTorch 内（{reserved}）：远超上下文与库所需",
    },
    "why.beside": {
        "en": "this process holds {beside} outside PyTorch's allocator, {beside_share} of the card: context, NCCL, "
        "or another allocator (tiny-cuda-nn, a server, a second framework)",
        "zh": "本进程在 PyTorch 分配器之外占用 {beside}（整卡的 {beside_share}）：上下文、NCCL 或另一分配器（"
        "tiny-cuda-nn、服务引擎、另一框架）",
    },
    "why.fraction": {
        "en": "this process may take {allowed} only: {reserved} reserved and the {tried} asked for are more, while "
        "{free} of the card are free",
        "zh": "本进程只允许使用 {allowed}：已保留 {reserved} 加所申请的 {tried} 已超出，而卡上还空闲 {free}",
    },
    "why.round_share": {
        "en": "{free} of the card were free and {tried} refused just where the {reserved} reserved reach {share} of "
        "it: a memory fraction was set, which this version's message leaves out",
        "zh": "卡上空闲 {free} 却拒绝了 {tried}，而已保留 {reserved} 恰达整卡的 {share}：设定了显存比例，"
        "此版本的消息不显示",
    },
    "why.pools": {
        "en": "private pools of captured graphs keep {pools} free that the request of {tried} may not use",
        "zh": "CUDA 图的私有池留有 {pools} 空闲，{tried} 的申请不能使用",
    },
    "why.pools_large": {
        "en": "private pools keep {pools} of the card's {total}",
        "zh": "私有池占着整卡 {total} 中的 {pools}",
    },
    "why.overflow": {
        "en": "a request of {tried} was meant by nobody: a size overflowed",
        "zh": "没有人会申请 {tried}：是大小计算溢出",
    },
    "why.library_free": {
        "en": "{free} were free when the library failed: not memory, rather its version or an earlier error",
        "zh": "库失败时还有 {free} 空闲：不是显存问题，多半是版本或此前的错误",
    },
    "why.kv_tokens": {
        "en": "one sequence may have {length} tokens, the cache holds {tokens}",
        "zh": "单条序列最长 {length} token，缓存只容纳 {tokens}",
    },
    "why.kv_bytes": {
        "en": "one longest sequence needs {needed} of cache, {available} are left",
        "zh": "一条最长序列需要 {needed} 缓存，只剩 {available}",
    },
    "why.no_cache": {
        "en": "weights and activations leave nothing of the engine's share for the cache",
        "zh": "权重与激活占满了引擎的份额，缓存没有空间",
    },
    "why.low_fraction": {
        "en": "the engine may take only {fraction} of the card",
        "zh": "引擎只被允许使用整卡的 {fraction}",
    },
    "why.high_fraction": {
        "en": "the engine takes {fraction} of the card for itself: too little is left for graphs, libraries and peaks",
        "zh": "引擎占用整卡的 {fraction}：留给 CUDA 图、库和峰值的太少",
    },
    "why.static_fraction": {
        "en": "weights, draft model and cache must fit into the static pool; what is not in it is left to activations",
        "zh": "权重、草稿模型和缓存须放进静态池；池外部分留给激活",
    },
    "why.server_filled": {
        "en": "weights and cache fill the engine's share of the card: {free} are left for graphs and libraries, "
        "which ask for {tried}",
        "zh": "权重与缓存占满了引擎的份额：给 CUDA 图与库只剩 {free}，而它们要 {tried}",
    },
    "why.taken_before": {
        "en": "{held} of the card were taken before the engine began, only {free} were free",
        "zh": "引擎启动前卡上已占用 {held}，只剩 {free}",
    },
    "why.share_too_large": {
        "en": "the engine wants {wanted}, {free} were free when it began",
        "zh": "引擎要 {wanted}，启动时只有 {free} 空闲",
    },
    "why.tgi_few": {
        "en": "so few tokens take megabytes: the server words every error of its warm-up as lack of memory",
        "zh": "这么少的 token 只需几兆：该服务把预热中的任何错误都说成显存不足",
    },
    "why.tgi": {
        "en": "the server words every error of its warm-up as lack of memory; the cause stands above it in the log",
        "zh": "该服务把预热中的任何错误都说成显存不足；真正原因在日志上文",
    },
    "why.buffer": {
        "en": "one buffer of {tried} was asked of one device",
        "zh": "向一个设备申请了 {tried} 的单个缓冲区",
    },
    "why.bare_buffer": {
        "en": "a card that refuses always leaves a line with size and device; there is none, so it was main memory",
        "zh": "显卡拒绝时总会留下带大小和设备的一行；没有这一行，所以是主机内存",
    },
    "why.library": {
        "en": "a library found no memory for its handle or workspace: everything else had taken the card before",
        "zh": "库找不到句柄或工作区所需的显存：卡已被占满",
    },
    "why.library_last": {
        "en": "a library fails last where the job itself fills the card",
        "zh": "任务本身占满显卡时，最后失败的往往是库",
    },
    "why.reserves_all": {
        "en": "TensorFlow reserves nearly the whole card when it starts and leaves its libraries too little; let it "
        "grow, or limit it",
        "zh": "TensorFlow 启动时几乎占满整卡，留给库的太少；让它按需增长或加以限制",
    },
    "why.convolution": {
        "en": "cuDNN tried every algorithm of a convolution: none had room for its workspace beside the job",
        "zh": "cuDNN 试过卷积的所有算法：在任务之外都放不下工作区",
    },
    "why.context": {
        "en": "it failed while the process made its context, before it held anything: somebody else has the card",
        "zh": "失败发生在进程创建上下文时，此时它还未占用显存：显卡被别人占着",
    },
    "why.busy": {
        "en": "a table in the text shows {busy} of a card in use; a process that failed holds nothing any more",
        "zh": "文本中的表显示某卡已用 {busy}；失败的进程已不再占用",
    },
    "why.server_graphs": {
        "en": "a server captured graphs after it had filled its share of the card: nothing was left for them",
        "zh": "服务占满份额之后才捕获 CUDA 图：驱动已没有空间",
    },
    "why.only_table": {"en": "the text shows what is held, but no failure", "zh": "文本只显示占用情况，没有失败"},
    "why.metal": {
        "en": "{beside} of this process are outside PyTorch's heaps, which hold {allocated}",
        "zh": "本进程有 {beside} 不在 PyTorch 的堆里，堆内为 {allocated}",
    },
    "why.metal_own": {
        "en": "PyTorch's own heaps hold {allocated} of the {allowed} Metal allows",
        "zh": "PyTorch 自己的堆占用 {allocated}，Metal 上限为 {allowed}",
    },
    "why.host": {"en": "the message speaks of main memory", "zh": "消息说的是主机内存"},
    "why.loader": {"en": "it failed in the data loader", "zh": "失败发生在数据加载中"},
    "why.capture": {"en": "it failed while a graph was captured", "zh": "失败发生在捕获 CUDA 图时"},
    "why.grew": {
        "en": "from failure to failure live memory grew by {grew}",
        "zh": "多次失败之间存活显存增长了 {grew}",
    },
    "why.leak_words": {"en": "the text says that memory grows", "zh": "文本提到显存在增长"},
    "why.late": {
        "en": "it failed at step {step}, after all those that fitted: something grew, or a larger batch came",
        "zh": "在第 {step} 步失败，此前都放得下：有东西在增长，或来了更大的批次",
    },
    "why.not_memory": {
        "en": "this error is not about the card's memory: an index, a kernel or its block's own memory",
        "zh": "此错误与显存容量无关：索引、内核或线程块自身的内存",
    },
    "why.exabyte": {
        "en": "more than an exabyte was asked for: the size is negative or overflowed",
        "zh": "申请超过 1 EB：大小为负或溢出",
    },
    "why.during_load": {
        "en": "it failed while the model was put on the card: weights alone do not fit",
        "zh": "失败发生在把模型放到卡上时：仅权重就放不下",
    },
    "why.during_optimizer": {
        "en": "it failed in the optimizer's step, whose states appear in the first one",
        "zh": "失败发生在优化器更新：状态在第一步才出现",
    },
    "why.during_backward": {
        "en": "it failed in backward, where saved activations and gradients meet",
        "zh": "失败发生在反向传播：激活与梯度同时存在",
    },
    "why.during_attention": {
        "en": "it failed in attention, whose scores grow with the square of the length",
        "zh": "失败发生在注意力：分数随长度平方增长",
    },
    "why.during_loss": {
        "en": "it failed in the loss: logits are as large as tokens times vocabulary",
        "zh": "失败发生在损失：logits 大小为 token 数乘词表",
    },
    "why.during_generate": {
        "en": "it failed while generating: the cache grows with every token",
        "zh": "失败发生在生成时：缓存随每个 token 增长",
    },
    "why.no_figures": {
        "en": "the message has no figures; most such failures are jobs that are too big",
        "zh": "消息没有数字；这类失败多数是任务太大",
    },
    "why.nothing_else": {
        "en": "nothing in the figures speaks for another cause",
        "zh": "数字中没有指向其他原因的证据",
    },
    "why.second": {"en": "it may also be ({share}): {cause}", "zh": "也可能是（{share}）：{cause}"},
    "why.ended": {
        "en": "the process held {resident} of main memory when the system ended it",
        "zh": "系统终止该进程时，它占用内存 {resident}",
    },
    "why.live_and_free": {
        "en": "{allocated} are in live tensors, {free} were free; {tried} were asked for",
        "zh": "存活张量占 {allocated}，空闲 {free}；申请 {tried}",
    },
    "why.pieces_table": {
        "en": "{unallocated} of the {reserved} reserved ({scattered}) lie unused between live tensors after a failure; "
        "the summary does not say how much was asked for",
        "zh": "失败之后，已保留的 {reserved} 中有 {unallocated}（{scattered}）闲置在存活张量之间；"
        "汇总表未说明申请了多少",
    },
    "why.replay_avoids": {
        "en": "replay: the same requests on the same card do not run out with {setting}",
        "zh": "回放：同样的申请、同样的卡，用 {setting} 不会耗尽",
    },
    "why.short": {
        "en": "{tried} were asked for; {free} free and {unallocated} in gaps are {missing} less",
        "zh": "申请 {tried}；空闲 {free} 加空隙 {unallocated}，还差 {missing}",
    },
    "why.freed_meanwhile": {
        "en": "another process gave memory back while the engine measured its own: it cannot tell what it may take",
        "zh": "引擎测量自身用量时，另一进程归还了显存：无法判断可用多少",
    },
    "why.warmup": {
        "en": "the cache had taken its share; what is left beside it does not hold the warm-up of so many sequences",
        "zh": "缓存已占其份额；剩余的显存放不下这么多序列的预热",
    },
    "why.cache_full": {
        "en": "requests at once need more tokens than the cache holds: some wait, are computed again or refused",
        "zh": "同时的请求所需 token 多于缓存容量：部分请求等待、重算或被拒绝",
    },
    "why.batch_of_one": {"en": "not even a batch of one fits", "zh": "批次为一也放不下"},
    "why.modules_left": {
        "en": "weights do not fit the cards even quantised: some layers were to go to main memory",
        "zh": "量化后的权重仍放不下：部分层须放到内存",
    },
    "why.over_limit": {
        "en": "{needed} are needed, {limit} is the most there is: {over} too much",
        "zh": "需要 {needed}，上限 {limit}：超出 {over}",
    },
    "why.above_limit": {
        "en": "one request of {tried} is more than the {limit} that is granted to any",
        "zh": "单次申请 {tried} 超过允许的上限 {limit}",
    },
    "why.pool_full": {
        "en": "{allocated} of the {limit} that the allocator may take are in use; {tried} more do not fit",
        "zh": "分配器上限 {limit} 中已用 {allocated}；再要 {tried} 放不下",
    },
    "why.metal_buffer": {
        "en": "one tensor of {tried} is more than Metal lets a buffer be",
        "zh": "单个张量 {tried} 超过 Metal 缓冲区的上限",
    },
    "job.fits": {
        "en": "{by}: the job as given fits, {device} of {capacity}: what failed is another job, or another cause",
        "zh": "{by}：所给任务放得下，{capacity} 中用 {device}：失败的是别的任务，或另有原因",
    },
    "job.fits closely": {
        "en": "{by}: the job as given fits closely, {device} of {capacity}: what failed is another job, or another "
        "cause",
        "zh": "{by}：所给任务放得下但很紧，{capacity} 中用 {device}：失败的是别的任务，或另有原因",
    },
    "job.may run out": {
        "en": "{by}: the job as given may run out, {device} of {capacity}: the 90 % interval goes beyond the card",
        "zh": "{by}：所给任务可能放不下，{capacity} 中用 {device}：90 % 区间超出显卡",
    },
    "job.cache_short": {
        "en": "serve: weights fit, but the {cache} left for the cache hold {sequences} sequences of {context} tokens; "
        "{asked} at once take {needed}",
        "zh": "serve：权重放得下，但留给缓存的 {cache} 只容纳 {sequences} 条 {context} token 的序列；"
        "同时 {asked} 条需要 {needed}",
    },
    "job.does not fit": {
        "en": "{by}: the job as given does not fit, {device} needed, {capacity} usable",
        "zh": "{by}：所给任务放不下，需要 {device}，可用 {capacity}",
    },
    "job.other_card": {
        "en": "the message is of a card with {total}, the job was given one with {capacity}",
        "zh": "消息中的卡为 {total}，任务所给的卡为 {capacity}",
    },
    "job.agrees": {
        "en": "live tensors {allocated} and the request of {tried} agree with the predicted {predicted}",
        "zh": "存活张量 {allocated} 加申请 {tried}，与预测 {predicted} 相符",
    },
    "job.more": {
        "en": "live tensors {allocated} and the request of {tried} are more than the predicted {predicted}: "
        "something is kept that the job does not need",
        "zh": "存活张量 {allocated} 加申请 {tried}，多于预测 {predicted}：有任务不需要的东西被保留",
    },
    "job.less": {
        "en": "live tensors {allocated} and the request of {tried} are less than the predicted {predicted}: it "
        "failed before its peak, or is another job",
        "zh": "存活张量 {allocated} 加申请 {tried}，少于预测 {predicted}：在峰值之前失败，或是别的任务",
    },
    "proof.none_avoids": {
        "en": "replay: it runs out under each of the {count} settings of the allocator that usually help",
        "zh": "回放：通常有用的 {count} 种分配器设置下都会耗尽",
    },
    "proof.no_device": {"en": "replay: the snapshot has no device", "zh": "回放：快照中没有设备"},
    "proof.failed": {
        "en": "replay of device {device}: {events} events, failures: {ooms}, peak {allocated} allocated and {reserved}"
        " reserved",
        "zh": "回放设备 {device}：{events} 个事件，{ooms} 次失败，峰值已分配 {allocated}，已保留 {reserved}",
    },
    "proof.peak": {
        "en": "replay of device {device}: {events} events, no failure recorded ({ooms}), peak {allocated} allocated "
        "and {reserved} reserved",
        "zh": "回放设备 {device}：{events} 个事件，未记录失败（{ooms}），峰值已分配 {allocated}，已保留 {reserved}",
    },
    "proof.failed_allocated": {
        "en": "recording of device {device}: {events} events, failures: {ooms}, peak {allocated} allocated",
        "zh": "设备 {device} 的录制：{events} 个事件，{ooms} 次失败，峰值已分配 {allocated}",
    },
    "proof.peak_allocated": {
        "en": "recording of device {device}: {events} events, no failure recorded ({ooms}), peak {allocated} allocated",
        "zh": "设备 {device} 的录制：{events} 个事件，未记录失败（{ooms}），峰值已分配 {allocated}",
    },
    "proof.other_failure": {
        "en": "the snapshot has no failure with the figures of this one: it is of another moment or process",
        "zh": "快照中没有与此数字相符的失败：属于其他时刻或进程",
    },
    "proof.not_replayed": {
        "en": "the recording cannot be replayed as it went, so no setting is shown to help: see vramcast replay",
        "zh": "该录制无法如实重放，因此不能证明哪种设置有用：见 vramcast replay",
    },
    "proof.not_repeated": {
        "en": "replay: laid out anew, the same requests do not run out where the recording did: no setting is shown to "
        "help",
        "zh": "回放：重新排布后，同样的请求不会在录制时的位置耗尽：不能证明哪种设置有用",
    },
    "proof.category": {"en": "replay: {size} in {category} then", "zh": "回放：当时{category}占 {size}"},
    "proof.holder": {"en": "replay: {size} held by {line}", "zh": "回放：{line} 占用 {size}"},
}
"""Key -> language -> text."""
