"""Questions that contradict themselves, the model or the hardware, in Chinese."""

from __future__ import annotations

from typing import Final

KINDS_ZH: Final[dict[str, str]] = {
    "{kind}": " {kind}", "model": "模型", "GPU": " GPU", "instance": "实例", "pipeline": "扩散流水线", "option": "选项",
    "engine":
        "引擎", "serving engine": "推理引擎", "sweep engine": "批量引擎", "engine option of {engine}": " {engine} 引"
        "擎选项",
    "{engine} option": " {engine} 选项", "option of engine {engine}": " {engine} 引擎选项", "optimizer": "优化器",
    "PEFT method": " PEFT 方法", "architecture": "架构", "GPU generation": " GPU 架构", "model type": "模型类型",
    "GGUF architecture": " GGUF 架构", "GGUF mix": " GGUF 混合格式", "ggml type": " ggml 类型",
    "weight format": "权重格式", "cache dtype": "缓存数据类型", "cache of transformers": " transformers 缓存",
    "dtype of an input": "输入数据类型", "command": "命令", "format": "格式", "goal": "目标", "order": "排序方式",
    "kind of plan": "方案类型", "loss": "损失", "module to recompute": "重计算模块", "module to save": "保存模块",
    "network of diffusers": " diffusers 网络", "provider": "云厂商", "technique": "技术", "timm model": " timm 模型",
    "allocator option": "分配器选项", "table": "表", "name in {file}": "名称（{file}）",
}
"""What is looked up by name, as errors call it -> the same in Chinese."""

HINTS_ZH: Final[dict[str, str]] = {
    "": "",
    "; did you mean {near}?": "；是否指 {near}？",
    "; known: {names}": "；已知的有 {names}",
    "; `vramcast gpus` lists all": "；`vramcast gpus` 可列出全部",
    "; `vramcast models` lists all": "；`vramcast models` 可列出全部",
}
"""What an error adds to a name that nobody knows -> the same in Chinese."""

ASKING_ZH: Final[dict[str, str]] = {
    **{
        f"unknown {kind} {{name}}{hint}": f"未知的{chinese}：{{name}}{said}"
        for kind, chinese in KINDS_ZH.items() for hint, said in HINTS_ZH.items()
    },
    "the question is larger than can be answered": "问题过大，无法回答",
    # values
    "{name}={value} must be an amount with its currency, for example 100000usd or 1.5m cny":
        "{name}={value} 必须是带货币的金额，例如 100000usd 或 1.5m cny",
    "{name}={value} must be a duration, for example 12h, 30d or 2w": "{name}={value} 必须是时长，例如 12h、30d 或 2w",
    "{name}={value} must be a duration with its unit, for example 90m, 12h, 30d or 2w":
        "{name}={value} 必须是带单位的时长，例如 90m、12h、30d 或 2w",
    "{name}={value} must be a share, for example 5% or 0.05": "{name}={value} 必须是比例，例如 5% 或 0.05",
    "{name}={value} must be below 100%, for example 5% or 0.05": "{name}={value} 必须小于 100%，例如 5% 或 0.05",
    "{name}={value} must be more than 0 and at most 10^18": "{name}={value} 必须大于 0 且不超过 10^18",
    "seq-len={length}: the encoder of {model} reads {count} positions of sound, not more or fewer; --decoder-seq-len "
    "says how long the text is":
        "seq-len={length}：{model} 的编码器读入 {count} 个声音位置，不多也不少；文本长度用 --decoder-seq-len 指定",
    "{name}={length} is more than the {most} positions of {model}; use at most {most2}":
        "{name}={length} 超过 {model} 的 {most} 个位置；最多用 {most2}",
    "seq-len={length}: images of {model} have {count} positions; give --image-size instead":
        "seq-len={length}：{model} 的图像有 {count} 个位置；请改用 --image-size",
    "image-size={side} is below one patch of {model}; use {patch} or more":
        "image-size={side} 不足 {model} 的一个图块；请用 {patch} 或更大",
    "{name}={value} must be a whole number such as 4096 or 8k": "{name}={value} 必须是整数，例如 4096 或 8k",
    "{name}={value} must be a number such as 300M, 15B or 1.5T": "{name}={value} 必须是数字，例如 300M、15B 或 1.5T",
    "{name}={value} must be from 1 to 10^18": "{name}={value} 必须在 1 到 10^18 之间",
    "{name}={value} must be true or false": "{name}={value} 必须是 true 或 false",
    "{name}={value} must be a number from 0 up": "{name}={value} 必须是不小于 0 的数",
    "{name}={value} must be a size of memory, for example 24GiB, 80GB or 512MiB":
        "{name}={value} 必须是显存大小，例如 24GiB、80GB 或 512MiB",
    "{name}={value} must be a whole number from {least} to {most}": "{name}={value} 必须是 {least} 到 {most} 的整数",
    "{name} must be a text of at most 1000 characters": "{name} 必须是不超过 1000 个字符的文本",
    "{name}={value} is not known; use {known}": "{name}={value} 未知；可用 {known}",
    "{name} must be a list of names": "{name} 必须是名称列表",
    # what is asked
    "which GPUs? give --gpus, for example --gpus 8xh100-sxm-80gb":
        "用哪些卡？请给出 --gpus，例如 --gpus 8xh100-sxm-80gb",
    "which GPUs? give --gpus, for example --gpus 2xl40s, or --find smallest-gpu":
        "用哪些卡？请给出 --gpus，例如 --gpus 2xl40s，或 --find smallest-gpu",
    "which model? name one, or give --params, --layers and --hidden":
        "用哪个模型？请指定一个，或给出 --params、--layers 和 --hidden",
    "which pipeline? name one, for example flux.1-dev": "用哪个扩散流水线？请指定一个，例如 flux.1-dev",
    "an empty or endless model name": "模型名为空或过长",
    "--zero and --shards say the same; give one of them": "--zero 与 --shards 含义相同；只给其一",
    "--global-batch sets the gradient accumulation; give it or --grad-accum":
        "--global-batch 已决定梯度累积；请只给它或 --grad-accum",
    "global-batch={batch} is not a multiple of {unit} = data-parallel ranks x micro-batch; use {near}":
        "global-batch={batch} 不是 {unit}（数据并行进程数 x 微批）的倍数；请用 {near}",
    "--{option} describes a model by numbers; leave out the model {model} or --{again}":
        "--{option} 用数字描述模型；请去掉模型 {model} 或 --{again}",
    "layers={layers}: {model} has {there}; use at most that many":
        "layers={layers}：{model} 只有 {there} 层；请不超过该数",
    "--{option} needs --peft, for example --peft lora": "--{option} 需要 --peft，例如 --peft lora",
    "no weight of {model} is called {word}; it has {known}": "{model} 没有名为 {word} 的权重；它有 {known}",
    "no module of {model} that is trained whole is called {word}; it has {known}":
        "{model} 没有名为 {word}、可整体训练的模块；它有 {known}",
    "lora-targets={pattern} is no regular expression: {reason}": "lora-targets={pattern} 不是正则表达式：{reason}",
    "lora-targets={pattern} matches no whole module name of {model}":
        "lora-targets={pattern} 不匹配 {model} 的任何完整模块名",
    "lora-targets={pattern} matches no whole module name of {model}, such as {example}":
        "lora-targets={pattern} 不匹配 {model} 的任何完整模块名，例如 {example}",
    "PEFT adapts no out_proj of {family}; leave it out of --lora-targets":
        "PEFT 不适配 {family} 的 out_proj；请从 --lora-targets 中去掉",
    "transformers 5 holds {one} and {other} of the experts in one tensor, and PEFT adapts both or neither; name both":
        "transformers 5 把专家的 {one} 与 {other} 放在同一张量中，PEFT 要么都适配要么都不适配；请两个都写",
    "--peft {method} adapts nothing of {model} by itself; give --lora-targets: {known}":
        "--peft {method} 不会自行适配 {model} 的任何权重；请给出 --lora-targets：{known}",
    "--peft {method} adapts no weights that exist; leave out --lora-targets":
        "--peft {method} 不适配已有的权重；请去掉 --lora-targets",
    "{option}={value} says nothing without {asked}; add that, or leave {again} out":
        "{option}={value} 没有 {asked} 时无意义；请加上，或去掉 {again}",
    "engine-option {name}: {model} has no {part}; leave it out": "engine-option {name}：{model} 没有{part}；请去掉",
    "experts": "专家", "sliding windows": "滑动窗口", "recurrent states": "循环状态",
    "towers beside its language model": "语言模型之外的塔", "latent attention": "潜注意力",
    "--{name} says nothing of {model}; leave it out": "--{name} 与 {model} 无关；请去掉",
    "engine-option={text} must be written key=value": "engine-option={text} 必须写成 key=value",
    "sequences of {needed} tokens ({parts}) are longer than {context}; shorten them, or give --context {again}":
        "序列 {needed} 个 token（{parts}）超过 {context}；请缩短，或给出 --context {again}",
    "{model} is a diffusion pipeline, {engine} runs language models; use --engine diffusers or stable-diffusion.cpp":
        "{model} 是扩散流水线，而 {engine} 运行语言模型；请用 --engine diffusers 或 stable-diffusion.cpp",
    "--{option} says nothing about a diffusion pipeline; leave it out": "--{option} 与扩散流水线无关；请去掉",
    "engine version {text} must be written like {engine}@{version}; {hint}":
        "引擎版本 {text} 必须写成 {engine}@{version} 的形式；{hint}",
    "{engine} {version} is not covered; known are versions {known}": "未覆盖 {engine} {version}；已知版本为 {known}",
    "--draft-tokens needs --draft, for example --draft eagle": "--draft-tokens 需要 --draft，例如 --draft eagle",
    "{name}={value} does not divide {what}={size} of {model}; use {near}":
        "{name}={value} 不能整除 {model} 的 {what}={size}；请用 {near}",
    "{name}={value} does not divide {what}; use {near}": "{name}={value} 不能整除 {what}；请用 {near}",
    "tp={tp} x pp={pp} x cp={cp} = {all} does not divide {gpus} GPUs; use a multiple of {again} GPUs or smaller "
    "degrees":
        "tp={tp} x pp={pp} x cp={cp} = {all} 不能整除 {gpus} 张卡；请用 {again} 的倍数张卡，或减小并行度",
    "tp={tp} x pp={pp} x dp={dp} needs {needed} GPUs, {cluster} has {there}; use smaller degrees or more GPUs":
        "tp={tp} x pp={pp} x dp={dp} 需要 {needed} 张卡，{cluster} 只有 {there} 张；请减小并行度或增加卡",
    "pp={pp} x virtual-stages={stages} are more stages than the {layers} layers of {model}; use at most {most}":
        "pp={pp} x virtual-stages={stages} 的级数超过 {model} 的 {layers} 层；最多用 {most}",
    "ep={ep}: {model} has no experts to divide; use ep=1": "ep={ep}：{model} 没有可切分的专家；请用 ep=1",
    "ep={ep} = {all} does not divide the {gpus} GPUs of a pipeline stage; use a divisor of {again}, or more GPUs":
        "ep={ep} = {all} 不能整除每个流水线级的 {gpus} 张卡；请用 {again} 的约数，或增加卡",
    "ep={ep} x etp={etp} = {all} does not divide the {gpus} GPUs of a pipeline stage; use a divisor of {again}, "
    "or more GPUs":
        "ep={ep} x etp={etp} = {all} 不能整除每个流水线级的 {gpus} 张卡；请用 {again} 的约数，或增加卡",
    "etp={etp}: {model} has no experts; leave etp out": "etp={etp}：{model} 没有专家；请去掉 etp",
    "objective={objective} is not modelled for engine {engine}; use engine {other}":
        "{engine} 未建模 objective={objective}；请用引擎 {other}",
    "sharded-by={sharder} is not how engine {engine} shards; use {names}":
        "{engine} 不以 sharded-by={sharder} 切分；请用 {names}",
    "sharded-by={sharder} says who shards, and nothing is sharded; add --shards everything":
        "sharded-by={sharder} 指定由谁切分，但没有切分任何内容；请加上 --shards everything",
    "--find {goal} compares engines as they are today; leave out the version of {engine}":
        "--find {goal} 比较各引擎的当前版本；请去掉 {engine} 的版本",
    "{name}={value} is not modelled for engine {engine} sharded by {sharder}; leave it out":
        "{engine} 由 {sharder} 分片时未建模 {name}={value}；请去掉",
    "engine option {name} is for --sharded-by {sharder}; leave it out":
        "引擎选项 {name} 只用于 --sharded-by {sharder}；请去掉",
    "{name}={value} is not modelled for engine {engine}; leave it out": "{engine} 未建模 {name}={value}；请去掉",
    "precision={precision} is not modelled for engine litgpt; use bf16 (bf16-true)":
        "litgpt 未建模 precision={precision}；请用 bf16（bf16-true）",
    "offload-parameters needs ZeRO-3; add --zero 3": "offload-parameters 需要 ZeRO-3；请加 --zero 3",
    "{gpu} has no fp8; use precision {precision:w}, or Ada, Hopper or newer":
        "{gpu} 不支持 fp8；请用 precision {precision}，或换 Ada、Hopper 及以上的卡",
    "schedule=interleaved says nothing without virtual-stages above 1; add that, or leave it out":
        "没有大于 1 的 virtual-stages，schedule=interleaved 没有意义；请加上，或去掉它",
    "schedule=gpipe has one stage on a rank, not virtual-stages={chunks:w}; use 1":
        "schedule=gpipe 每个 rank 只有一个阶段，而不是 virtual-stages={chunks}；请用 1",
    "{name:w}={value:w} says nothing about a language model; leave it out":
        "{name}={value} 与语言模型无关；请去掉",
    "image-size={size:w} says nothing to {engine:w}; leave it out": "image-size={size} 对 {engine} 没有意义；请去掉",
    "{pipeline:w} generates images, no videos; leave frames out": "{pipeline} 生成图像而非视频；请去掉 frames",
    "context={context:w} is more than the {positions:w} positions that {model} learned":
        "context={context} 超过 {model} 学到的 {positions} 个位置",
    "context={context:w} is longer than the {positions:w} positions {model:w} was trained with, and {said}; use "
    "--context {limit:w}, or {variable:w}=1 with --engine-option {option:w}=true":
        "context={context} 超过 {model} 训练时的 {positions} 个位置，{said}；请用 --context {limit}，或设置 "
        "{variable}=1 并加 --engine-option {option}=true",
    "block-tokens={size:w} is no size of {engine:w}'s blocks; use {wanted}":
        "block-tokens={size} 不是 {engine} 的块大小；请用 {wanted}",
    "block-tokens={size:w} does not divide the {chunk:w} tokens of SGLang's prefill steps; use {wanted:w}, or other "
    "--batched-tokens":
        "block-tokens={size} 不能整除 SGLang 一步预填充的 {chunk} 个 token；请用 {wanted}，或换 --batched-tokens",
    "lora-rank={rank:w} says nothing without lora-slots; add that, or leave it out":
        "没有 lora-slots，lora-rank={rank} 没有意义；请加上，或去掉它",
    "lora-rank={rank:w} is no largest rank of {engine:w}; use {ranks}":
        "lora-rank={rank} 不是 {engine} 可用的最大秩；请用 {ranks}",
    "image-size={size:w} says nothing without images; add images, or leave it out":
        "没有图像时 image-size={size} 没有意义；请加上 images，或去掉它",
    "{option:w}: {model:w} keeps no keys and values; leave it out": "{option}：{model} 不保存键和值；请去掉它",
    "{engine:w} has no draft={kind:w}; use another draft, or --engine vllm":
        "{engine} 没有 draft={kind}；请换一种草稿，或用 --engine vllm",
    "{engine:w} has no draft={kind:w}; use {newer:w} or later":
        "{engine} 没有 draft={kind}；请用 {newer} 或更新的版本",
    "{engine:w} takes no draft model; use {newer:w} or later": "{engine} 不支持草稿模型；请用 {newer} 或更新的版本",
    "draft={draft:w} generates no tokens; use a language model": "draft={draft} 不生成 token；请用语言模型",
    "draft={draft:w} has a vocabulary of {rows:w}, {model:w} one of {own:w}; use a draft with the same":
        "draft={draft} 的词表为 {rows}，{model} 的为 {own}；请用词表相同的草稿模型",
    "{engine:w} does not run on {gpu:w}; {instead}": "{engine} 不能在 {gpu} 上运行；{instead}",
    "use --engine {engines}": "请用 --engine {engines}",
    "use another card": "请换一种卡",
    "{option:w}={value:w} needs compute capability {needed:w} under {engine:w}, and {gpu:w} has {own:w}; use a newer "
    "card or another format":
        "{option}={value} 在 {engine} 下需要计算能力 {needed}，而 {gpu} 为 {own}；请换更新的卡或其他格式",
    "vllm refuses dtype=bf16 on {gpu:w}, which has no bf16; use --dtype fp16":
        "{gpu} 不支持 bf16，vllm 会拒绝 dtype=bf16；请用 --dtype fp16",
    "attention=flash needs compute capability {needed:w}, and {gpu:w} has {own:w}; use sdpa":
        "attention=flash 需要计算能力 {needed}，而 {gpu} 为 {own}；请用 sdpa",
    "{stored:w} is bitsandbytes', which has no kernels for {vendor}'s {gpu:w} here; use another format, or "
    "NVIDIA's cards":
        "{stored} 属于 bitsandbytes，它没有 {vendor} {gpu} 的内核；请换其他格式，或用 NVIDIA 的卡",
    "stable-diffusion.cpp generates one image after the other, not {count:w} at once; leave concurrency out":
        "stable-diffusion.cpp 逐张生成图像，不能同时生成 {count} 张；请去掉 concurrency",
    "vLLM refuses such a --max-model-len": "vLLM 会拒绝这样的 --max-model-len",
    "SGLang refuses such a --context-length": "SGLang 会拒绝这样的 --context-length",
    "TensorRT-LLM cuts max_seq_len to that": "TensorRT-LLM 会把 max_seq_len 截到该值",
    "a multiple of 16": "16 的倍数", "a power of two": "2 的幂",
    "16, 32, 64 or 128": "16、32、64 或 128", "16, 32, 64, 128 or 256": "16、32、64、128 或 256",
    "8, 16 or 32": "8、16 或 32",
    "{model} reads no images; leave image-size and images out": "{model} 不接受图像；请去掉 image-size 与 images",
    "{model} has no encoder beside its decoder; leave decoder-seq-len out":
        "{model} 没有编码器；请去掉 decoder-seq-len",
    "min-seq-len={shortest} is longer than seq-len={longest}, which is the longest sample's; use a smaller one":
        "min-seq-len={shortest} 大于最长样本的长度 seq-len={longest}；请取更小的值",
    "objective={objective} compares answers, and {model} writes none; use pretrain":
        "objective={objective} 比较回答，而 {model} 不生成回答；请使用 pretrain",
    "objective={objective} learns from answers that it generates; give their tokens, --completion-len":
        "objective={objective} 从自己生成的回答中学习；请用 --completion-len 给出回答的 token 数",
    "completion-len needs objective ppo or grpo, not {objective}":
        "completion-len 需要 objective 为 ppo 或 grpo，而不是 {objective}",
    "engine option of {engine}: {reason}": "{engine} 的引擎选项：{reason}",
    "{engine} runs {known}; {name} is none": "{engine} 支持 {known}；{name} 不在其中",
    "dtype {dtype} has no rate; use one of {known}": "没有 {dtype} 的算力数据；可用 {known}",
    "a cluster of {nodes} x {cards} cards must have 1 to {most} in all":
        "{nodes} x {cards} 张卡的集群总数必须在 1 到 {most} 之间",
    "memory-fraction={fraction} must lie above 0 and up to 1, for example 0.9":
        "memory-fraction={fraction} 必须大于 0 且不超过 1，例如 0.9",
    "optimizer {name} has no usable rank; use a positive number, as in 'galore:128'":
        "优化器 {name} 的秩无效；请用正整数，例如 'galore:128'",
    "weights={name} is a mix of GGUF types; use --engine llama.cpp, or one type, q4_k":
        "weights={name} 是 GGUF 混合格式；请用 --engine llama.cpp，或单一类型 q4_k",
    # searches
    "--headroom says what a search leaves free; give --find with it, or leave it out":
        "--headroom 指定搜索预留的显存；请与 --find 一起给出，或去掉",
    "headroom={share} must be a share from 0 to below 1, for example 0.05":
        "headroom={share} 必须是 0 到 1（不含）的比例，例如 0.05",
    "a budget or a deadline needs the length of the run: give --tokens, such as --tokens 1T":
        "预算或期限需要训练长度：请给出 --tokens，例如 --tokens 1T",
    "nothing is left of {name}; allow at least one": "{name} 没有剩余的选择；请至少允许一个",
    "price per hour {price} must be more than 0 and less than 1,000,000":
        "每小时价格 {price} 必须大于 0 且小于 1,000,000",
    "currency {text} must be an ISO 4217 code such as USD or CNY": "货币 {text} 必须是 ISO 4217 代码，例如 USD 或 CNY",
    "currency={text} must be an ISO 4217 code such as USD or CNY":
        "currency={text} 必须是 ISO 4217 代码，例如 USD 或 CNY",
    "{model} is a diffusion pipeline; plan serve looks at language models":
        "{model} 是扩散流水线；plan serve 只搜索语言模型",
    "{model} generates no tokens, and plan serve compares by those; use vramcast serve for its memory":
        "{model} 不生成 token，而 plan serve 按 token 比较；显存请用 vramcast serve",
    "on what? give --on, for example --on 8xh100-sxm-80gb --on aws:g6e.12xlarge":
        "在什么上？请给出 --on，例如 --on 8xh100-sxm-80gb --on aws:g6e.12xlarge",
    "on what? give --on, for example --on 8xh100-sxm-80gb --on aws:p5.48xlarge":
        "在什么上？请给出 --on，例如 --on 8xh100-sxm-80gb --on aws:p5.48xlarge",
    "per-user={rate} must be more than 0 tokens per second": "per-user={rate} 必须大于每秒 0 个 token",
    "ttft={text} must be a time such as 500ms or 2s": "ttft={text} 必须是时间，例如 500ms 或 2s",
    "a search looks at PyTorch's default allocator; give --alloc-conf to vramcast train instead":
        "搜索按 PyTorch 默认分配器进行；请把 --alloc-conf 给 vramcast train",
    "--{option} names nothing; give at least one value or leave it out": "--{option} 为空；请至少给一个值或去掉",
    "max-gpus={most} leaves none of the machines of --on {names}": "max-gpus={most} 排除了 --on {names} 的全部机器",
    "--allow {name} and --forbid {other} contradict each other; give one of them":
        "--allow {name} 与 --forbid {other} 矛盾；只给其一",
    "--forbid {name} leaves nothing of {axis}; give one of them": "--forbid {name} 使 {axis} 没有选择；只给其一",
    "--find {goal} looks at one cluster, and --on names none; give one, for example --on 8xh100":
        "--find {goal} 只看一个集群，而 --on 没有给出；请给一个，例如 --on 8xh100",
    "--find {goal} looks at one cluster, {names}; give one, for example --on 8xh100":
        "--find {goal} 只看一个集群（{names}）；请给一个，例如 --on 8xh100",
    "--{option} says nothing about --find {goal}; leave it out": "--{option} 与 --find {goal} 无关；请去掉",
    "--find {goal} varies --{option} itself; leave it out": "--find {goal} 自身会改变 --{option}；请去掉",
    "--find {goal} looks at one plan; give one value of --{option}":
        "--find {goal} 只看一个方案；--{option} 请只给一个值",
    "--find {goal} looks for the model; leave out {model}": "--find {goal} 要找的就是模型；请去掉 {model}",
    "which formats {engine} loads is not known; use {engines}": "{engine} 能加载哪些格式未知；请用 {engines}",
    "no plan is possible: {reason}": "没有可行的方案：{reason}",
    "nothing to look at": "没有可查看的对象",
    "no step time is known: {reason}": "每步时间未知：{reason}",
    "prices in {currencies} are not compared; choose one with --currency":
        "{currencies} 的价格不互相比较；请用 --currency 选一种",
    "prices in {currencies} are not compared; choose with --currency":
        "{currencies} 的价格不互相比较；请用 --currency 选择",
    "none of the machines has a price; give --price, for example 2.5usd":
        "没有一种机器有价格；请给出 --price，例如 2.5usd",
    "no card to choose from": "没有可选的卡",
    "uneven stages need HiGHS: pip install 'vramcast[search]'":
        "不均匀的流水线级需要 HiGHS：pip install 'vramcast[search]'",
    "a search over training plans needs NumPy, which this page does not have; ask the command line":
        "搜索训练方案需要 NumPy，本页面没有；请使用命令行",
    "a search over training plans needs NumPy: pip install 'vramcast[search]'":
        "搜索训练方案需要 NumPy：pip install 'vramcast[search]'",
    "global-batch={batch} does not divide over {ranks} data-parallel ranks; use a multiple of {again}":
        "global-batch={batch} 不能分给 {ranks} 个数据并行进程；请用 {again} 的倍数",
    "max-gpus={most} leaves no cluster: the smallest given has {smallest} GPUs; allow {again}":
        "max-gpus={most} 排除了所有集群：最小的有 {smallest} 张卡；请允许 {again}",
    "no machine has a price in {currency}; there are prices in {known}":
        "没有机器以 {currency} 计价；有价格的货币为 {known}",
    "a budget needs prices, and no machine has one; give --price, for example --price 2.5usd":
        "预算需要价格，而没有机器有价格；请给出 --price，例如 --price 2.5usd",
    "{model}: plans of several stacks are not searched for megatron": "{model}：不为 megatron 搜索多塔模型的方案",
    # cards, machines, prices
    "{cluster} has {there} machines, {asked} are asked for": "{cluster} 只有 {there} 台机器，要求 {asked} 台",
    "price={price} is not in {currency}, and nothing is converted": "price={price} 不是 {currency}，且不作换算",
    "{gpus} has no list price; name a machine such as aws:p5.48xlarge, or give --price 2.5usd":
        "{gpus} 没有公开价格；请指定机器，例如 aws:p5.48xlarge，或给出 --price 2.5usd",
    "price={text} must read like 2.5usd (per GPU and hour) or 98.32usd/node (per machine and hour)":
        "price={text} 应写成 2.5usd（每卡每小时）或 98.32usd/node（每台每小时）",
    "{file}: line {line}: only [clusters.NAME] tables are read": "{file}：第 {line} 行：只读取 [clusters.NAME] 表",
    '{file}: no cluster in it; begin with [clusters.mybox] and gpu = "h100-sxm-80gb"':
        '{file}：没有集群；请以 [clusters.mybox] 和 gpu = "h100-sxm-80gb" 开头',
    "rdma={value} must be one of {known}, with network_gb_per_s":
        "rdma={value} 必须是 {known} 之一，并给出 network_gb_per_s",
    "link and link_gb_per_s must be given together; PCIe with its generation, for example PCIe4":
        "link 与 link_gb_per_s 必须同时给出；PCIe 要写代数，例如 PCIe4",
    "price_date={text} must be a date like 2026-11-20": "price_date={text} 必须是日期，例如 2026-11-20",
    "link_topology={value} must be one of {known}, with a link that is not PCIe":
        "link_topology={value} 必须是 {known} 之一，且互连不是 PCIe",
    "link_cards must be at least 2 and stand with a link_topology other than switch":
        "link_cards 至少为 2，并与 switch 以外的 link_topology 一起给出",
    "a cluster's name has letters, digits, '.', '_' and '-', a letter first":
        "集群名由字母、数字、'.'、'_' 和 '-' 组成，以字母开头",
    "{file}: line {line}: cluster {name}: {reason}": "{file}：第 {line} 行：集群 {name}：{reason}",
    "{name}={value} must be more than 0": "{name}={value} 必须大于 0",
    "GPUs {text} must read like 'h100', '8xh100-sxm-80gb' or '2x8xh100-sxm-80gb'":
        "GPU {text} 应写成 'h100'、'8xh100-sxm-80gb' 或 '2x8xh100-sxm-80gb'",
    "GPUs {text} ask for more cards than there are; use at most 1000000": "GPU {text} 的卡数过大；最多 1000000",
    "instance {name} is rented by several providers; use {known}": "多家云都有实例 {name}；请用 {known}",
    "{code} reads like a card code of PAI, and which card it is has not been published; name the card itself, for "
    "example h20-96gb (codes with a known card: {known})":
        "{code} 像是 PAI 的卡代码，但对应哪种卡未公布；请直接写卡型，例如 h20-96gb（已知的代码：{known}）",
    "price={text} must name its currency, for example 40usd (per machine and hour)":
        "price={text} 必须写明货币，例如 40usd（每台每小时）",
    "--on {text} must name what to search over, for example 8xh100-sxm-80gb, h100, aws, aws:p5.48xlarge or any":
        "--on {text} 必须说明搜索范围，例如 8xh100-sxm-80gb、h100、aws、aws:p5.48xlarge 或 any",
    # models by numbers and their configurations
    "params={text} must be a number of weights such as 7B or 350M": "params={text} 必须是参数量，例如 7B 或 350M",
    "params={text} needs --layers and --hidden as well, for example --layers 32 --hidden 4096":
        "params={text} 还需要 --layers 与 --hidden，例如 --layers 32 --hidden 4096",
    "hidden={value} must be a width from 1 to {most}": "hidden={value} 必须是 1 到 {most} 的宽度",
    "heads={heads} does not divide hidden={hidden}; give --heads that does":
        "heads={heads} 不能整除 hidden={hidden}；请给出可整除的 --heads",
    "kv-heads={kv} does not divide heads={heads}": "kv-heads={kv} 不能整除 heads={heads}",
    "params={params} are fewer than attention and embeddings of {layers} layers at hidden={hidden} take; use fewer "
    "layers or a smaller hidden width":
        "params={params} 少于 {layers} 层 hidden={hidden} 的注意力与词嵌入所需；请减少层数或隐藏宽度",
    "params={params}, but the sizes given make {made}; leave out --ffn or correct --params":
        "params={params}，但给出的尺寸对应 {made}；请去掉 --ffn 或改正 --params",
    "{name}={value} is more than any pipeline generates at once; use at most {most}":
        "{name}={value} 超过任何流水线一次所能生成的量；最多 {most}",
    "height={height} x width={width} x frames={frames} are more pixels than any pipeline generates at once; use at "
    "most {most}":
        "height={height} x width={width} x frames={frames} 的像素超过任何流水线一次所能生成的量；最多 {most}",
    "a process has no addresses for so much memory; ask for less": "进程没有足够的地址容纳这么多内存；请减少请求",
    "lora-dropout={value} must be from 0 up to, but not, 1": "lora-dropout={value} 必须不小于 0 且小于 1",
    "{field}={value} of {model} must be even": "{model} 的 {field}={value} 必须是偶数",
    "{field}={value} of {model} must be a table": "{model} 的 {field}={value} 必须是一张表",
    "{field}={value} of {model} does not divide {other}={size}": "{model} 的 {field}={value} 不能整除 {other}={size}",
    "{field}={value} of {model} must be an integer": "{model} 的 {field}={value} 必须是整数",
    "{field}={value} of {model} is no activation function of transformers, whose names are lower-case; use {name:w}":
        "{model} 的 {field}={value} 不是 transformers 的激活函数，其名称均为小写；请用 {name}",
    "{field}={value} of {model} is no activation function of transformers, whose names are lower-case; "
    "use one of {names}":
        "{model} 的 {field}={value} 不是 transformers 的激活函数，其名称均为小写；请从 {names} 中选择",
    "{field}={value} of {model} must be between {least} and {most}":
        "{model} 的 {field}={value} 必须在 {least} 与 {most} 之间",
    "{field}={value} of {model} must be at least 1": "{model} 的 {field}={value} 至少为 1",
    "{field}={value} of {model} must be true or false": "{model} 的 {field}={value} 必须是 true 或 false",
    "{field}={value} of {model} is more than {layers} layers": "{model} 的 {field}={value} 超过 {layers} 层",
    "{field}={value} of {model} must be a list of texts": "{model} 的 {field}={value} 必须是文本列表",
    "{field}={value} of {model} must be a list of integers": "{model} 的 {field}={value} 必须是整数列表",
    "{field}={value} of {model} must be a list of tables": "{model} 的 {field}={value} 必须是表的列表",
    "{field}={value} of {model} must hold integers between 0 and {most}":
        "{model} 的 {field}={value} 只能含 0 到 {most} 的整数",
    "{field}={value} of {model} times {other} must be between 1 and {most}":
        "{model} 的 {field}={value} 乘以 {other} 必须在 1 与 {most} 之间",
    "{field}={value} of {model} must not exceed num_hidden_layers={layers}":
        "{model} 的 {field}={value} 不能超过 num_hidden_layers={layers}",
    "{field}={value} of {model} must be below num_hidden_layers={layers}":
        "{model} 的 {field}={value} 必须小于 num_hidden_layers={layers}",
    "{field}={value} of {model} must name layers below num_hidden_layers={layers}":
        "{model} 的 {field}={value} 只能指小于 num_hidden_layers={layers} 的层",
    "{field}={value} of {model} is more than num_experts={experts}":
        "{model} 的 {field}={value} 超过 num_experts={experts}",
    "{field}={value} of {model} is more than the head width {width}":
        "{model} 的 {field}={value} 超过头宽 {width}",
    "{field}={value} of {model} is more than image_size={size}": "{model} 的 {field}={value} 超过 image_size={size}",
    "{field}={value} of {model} must be a row of {known}": "{model} 的 {field}={value} 必须由 {known} 组成",
    "{field}={value} of {model} must be the {layers} layers of hybrid_override_pattern":
        "{model} 的 {field}={value} 必须是 hybrid_override_pattern 的 {layers} 层",
    "{field}={value} of {model} must hold {layers} of 0, 4 and 128":
        "{model} 的 {field}={value} 必须含 {layers} 个 0、4 或 128",
    "config of {model} lacks {field}": "{model} 的配置缺少 {field}",
    "config of {model} lacks block_configs, which says what each layer holds":
        "{model} 的配置缺少 block_configs（说明每层内容）",
    "config of {model} has {layers} layers but no sizes for them": "{model} 的配置有 {layers} 层，但没有其尺寸",
    "config of {model} has neither model_type nor architectures":
        "{model} 的配置既没有 model_type 也没有 architectures",
    "config of {model} must be a table, not {kind}": "{model} 的配置必须是一张表，而不是 {kind}",
    "the audio encoder of {model} is not modelled; set audio_config to null to leave it out":
        "未建模 {model} 的音频编码器；可把 audio_config 设为 null 去掉它",
    "qk_layernorm=true of {model} is in no published phi model; leave it out":
        "{model} 的 qk_layernorm=true 不见于任何已发布的 phi 模型；请去掉",
    "num_heads * head_dim = {size} of {model} must be expand * hidden_size = {other}":
        "{model} 的 num_heads * head_dim = {size} 必须等于 expand * hidden_size = {other}",
    "{part} lacks attention or ffn": "{part} 缺少 attention 或 ffn",
    "{field} of {model} is cut short and cannot be continued; list all {layers} layers":
        "{model} 的 {field} 不完整且无法续写；请列出全部 {layers} 层",
    "{field} of {model} lists {count} layers, not num_hidden_layers={layers}":
        "{model} 的 {field} 列出 {count} 层，而不是 num_hidden_layers={layers}",
    "the image encoder of {model} is not modelled; pass its text_config":
        "未建模 {model} 的图像编码器；请传入其 text_config",
    "vision model type {kind} of {model} is none of {known}": "{model} 的视觉模型类型 {kind} 不在 {known} 之中",
    "text model type {kind} of {model} has no builder": "未支持 {model} 的文本模型类型 {kind}",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
