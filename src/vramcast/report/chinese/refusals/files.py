"""Files, hubs and configurations that cannot be used, in Chinese."""

from __future__ import annotations

from typing import Final

FILES_ZH: Final[dict[str, str]] = {
    # what several kinds of file have in common
    "{file}: no command that starts {engine} stands in it": "{file}：其中没有启动 {engine} 的命令",
    "{file}: not a text file": "{file}：不是文本文件",
    "{file}: not a text file in UTF-8": "{file}：不是 UTF-8 文本文件",
    "{file}: not TOML: {reason}": "{file}：不是 TOML：{reason}",
    "{file}: not YAML: {reason}": "{file}：不是 YAML：{reason}",
    "{file}: not JSON: {reason}": "{file}：不是 JSON：{reason}",
    "{file}: cannot be read ({reason})": "{file}：无法读取（{reason}）",
    "{file}: cannot be written ({reason})": "{file}：无法写入（{reason}）",
    "{file}: aliases are not allowed": "{file}：不允许使用别名",
    "{file}: no such file or directory": "{file}：没有这个文件或目录",
    "No such file or directory": "没有这个文件或目录",
    "Permission denied": "没有权限",
    "Is a directory": "是一个目录",
    "{file}: No such file or directory; name a folder that is there": "{file}：没有这个目录；请指定已存在的目录",
    "{file}: is a folder; name a file in it": "{file}：是目录；请指定其中的文件",
    "{file}: {reason}; name another place, or make room": "{file}：{reason}；请换一个位置，或腾出空间",
    "{file}: cannot be written ({reason}); name another place, or make room":
        "{file}：无法写入（{reason}）；请换一个位置，或腾出空间",
    "the output cannot be written: {reason}; make room, or send it elsewhere":
        "无法写出输出：{reason}；请腾出空间，或输出到别处",
    "{file}: line {line}: {reason}": "{file}：第 {line} 行：{reason}",
    "{file}: line 1: column {name} stands twice": "{file}：第 1 行：列 {name} 重复",
    "{file}: line {line}: {cells} cells for {columns} columns": "{file}：第 {line} 行：{cells} 个单元格对 {columns} 列",
    "{file}: at most {most} MiB are read": "{file}：最多读取 {most} MiB",
    # job files and calibrations
    "{file}: a job file is a table of options, one per line": "{file}：任务文件应是选项表，每行一个",
    "{file}: such a file has at most {most} bytes": "{file}：此类文件最多 {most} 字节",
    "{file}: oldest={oldest} is newer than newest={newest}": "{file}：oldest={oldest} 比 newest={newest} 更新",
    "{file}: version {text} must be written like 0.19": "{file}：版本 {text} 必须写成 0.19 的形式",
    "{file}: a calibration has at most {most} bytes": "{file}：校准文件最多 {most} 字节",
    "{file}: no calibration: {reason}": "{file}：不是校准文件：{reason}",
    "a correction of {measured} over {predicted} bytes must measure 0 or more and have predicted at least 1":
        "修正 {measured}/{predicted} 字节无效：实测须不小于 0，预测须不小于 1",
    "--save-calibration compares with the plain prediction; leave out --calibration":
        "--save-calibration 与未校准的预测比较；请去掉 --calibration",
    "{file} measures nothing that a calibration could correct; save none":
        "{file} 中没有可供校准的实测；不必保存",
    "{file} holds no memory events and no segments; record with torch.cuda.memory._record_memory_history() before the "
    "first allocation":
        "{file} 没有显存事件也没有段；请在首次分配前调用 torch.cuda.memory._record_memory_history() 记录",
    "{file} has no device {device}; use one of {known}": "{file} 没有设备 {device}；可用 {known}",
    "{file} holds no device that is looked at ({wanted}); it holds {known}: "
    "compare with a recording of the same device":
        "{file} 不含所查看的设备（{wanted}），只有 {known}：请与同一设备的记录比较",
    "a recording is named by a path, not by {value}; give a str or a Path":
        "记录要用路径指定，而不是 {value}；请给 str 或 Path",
    # configurations of other tools
    "the tokenizer is named by an environment variable that is not given": "分词器由未给出的环境变量指定",
    "moe-layer-freq={text} is not a list expression": "moe-layer-freq={text} 不是列表表达式",
    "multi-token prediction over hybrid layers is not modelled": "未建模混合层上的多 token 预测",
    "hybrid layer {name} is not modelled": "未建模混合层 {name}",
    "elastic (Flextron) training is not modelled": "未建模弹性（Flextron）训练",
    "{file}: its arguments describe no network; name a model, and give it with --from":
        "{file}：其参数没有描述网络；请指定模型，并配合 --from 给出",
    "{file}: none of {formats} is recognised in it; --from-format names one":
        "{file}：未识别为 {formats} 之一；可用 --from-format 指定",
    "{file} is a {format} configuration; use vramcast {command} --from":
        "{file} 是 {format} 的配置；请用 vramcast {command} --from",
    "train_batch_size={batch} is not {micro} x {steps} x {ranks} ranks = {all}; correct one of them, or the GPUs":
        "train_batch_size={batch} 不等于 {micro} x {steps} x {ranks} 个进程 = {all}；请改正其一或卡数",
    "{file}: not what {format} takes: {kind}": "{file}：不符合 {format} 的格式：{kind}",
    "--from-format says whose a file of --from is; give --from FILE":
        "--from-format 说明 --from 的文件属于谁；请给出 --from FILE",
    "--ignore-unread says how a file of --from is read; give --from FILE":
        "--ignore-unread 说明如何读取 --from 的文件；请给出 --from FILE",
    "train_batch_size={batch} does not divide by {ranks} ranks x {micro}":
        "train_batch_size={batch} 不能被 {ranks} 个进程 x {micro} 整除",
    "{file}: must be a table of names and values, at most {depth} deep": "{file}：必须是名称与值的表，最多 {depth} 层",
    "{file}: a configuration has at most {most} bytes": "{file}：配置最多 {most} 字节",
    "{file}: no closing quotation for {mark}; check the quotes": "{file}：{mark} 没有闭合；请检查引号",
    "{file}: ${opening} without {closing}; check the brackets and quotes":
        "{file}：${opening} 缺少 {closing}；请检查括号与引号",
    "{file}: its variables come to more than {most} characters": "{file}：其变量合计超过 {most} 个字符",
    "{file}: a command of more than {most} words": "{file}：命令超过 {most} 个词",
    "{file}: torchtitan reads no TOML since 0.3; give the command with its --section.name values":
        "{file}：torchtitan 自 0.3 起不读 TOML；请给出带 --section.name 值的命令",
    # checkpoints, hubs, the network
    "{file}: config.json holds no object": "{file}：config.json 不是对象",
    "{file}: config.json is not JSON ({reason})": "{file}：config.json 不是 JSON（{reason}）",
    "{file}: give a config.json, a directory, a .safetensors or a .gguf file":
        "{file}：请给出 config.json、目录、.safetensors 或 .gguf 文件",
    "{file}: no config.json in it, and weights alone do not tell the architecture":
        "{file}：其中没有 config.json，仅凭权重无法得知结构",
    "{file}: no config.json beside {missing}, and weights alone do not tell the architecture":
        "{file}：{missing} 旁没有 config.json，仅凭权重无法得知结构",
    "{file}: a config of more than {most} bytes is refused": "{file}：拒绝超过 {most} 字节的配置",
    "{url} cannot be reached ({reason})": "无法访问 {url}（{reason}）",
    "{url} redirects more than {most} times": "{url} 重定向超过 {most} 次",
    "{url} answered with status {status}": "{url} 返回状态 {status}",
    "{url} redirects from https to plain http at {host}": "{url} 从 https 重定向到 {host} 的明文 http",
    "{url} is no web address; it must begin with https:// or http://":
        "{url} 不是网址；必须以 https:// 或 http:// 开头",
    "{url} sends {size} bytes where at most {most} were expected": "{url} 发送 {size} 字节，预期最多 {most}",
    "{url} sends more than the {most} bytes expected": "{url} 发送超过预期的 {most} 字节",
    "{url} sends more than {most} bytes, or than {line} in one line": "{url} 发送超过 {most} 字节，或单行超过 {line}",
    "{url} broke off after {size} bytes": "{url} 在 {size} 字节后中断",
    "{url} took more than {limit} s for one small file": "{url} 取一个小文件超过 {limit} s",
    "{url} took more than {limit} s for one list": "{url} 取一份列表超过 {limit} s",
    "{url} does not serve parts of files, so headers cannot be read": "{url} 不支持分段下载，无法读取文件头",
    "{file}: neither an embedding tensor nor a token list tells the vocabulary":
        "{file}：词嵌入张量与 token 表都没有给出词表大小",
    "{model}: {hub} answered with status {status}; try again later, or give a path to config.json":
        "{model}：{hub} 返回状态 {status}；请稍后再试，或给出 config.json 的路径",
    "{model}: HF_HUB_OFFLINE is set and no cache holds it; give a path to config.json":
        "{model}：已设置 HF_HUB_OFFLINE 且缓存中没有；请给出 config.json 的路径",
    "{name}={value} must begin with https:// or http://": "{name}={value} 必须以 https:// 或 http:// 开头",
    "HF_TOKEN holds characters no token has; copy it anew": "HF_TOKEN 含有非法字符；请重新复制",
    "{model}: {hub} wants a token for it (or it does not exist); set HF_TOKEN":
        "{model}：{hub} 要求令牌（或该模型不存在）；请设置 HF_TOKEN",
    "{model}: {hub} has no such model with a config.json at revision {revision}; for a GGUF repository download the "
    "file and give its path":
        "{model}：{hub} 的版本 {revision} 没有带 config.json 的该模型；GGUF 仓库请下载文件并给出路径",
    "{model}: {reason}; download its config.json and give the path":
        "{model}：{reason}；请下载其 config.json 并给出路径",
    "{model}: {hub} refuses the token given; accept the model's terms there or correct it":
        "{model}：{hub} 拒绝该令牌；请在那里接受模型条款或改正令牌",
    "{file}: a header of {size} bytes is refused": "{file}：拒绝 {size} 字节的文件头",
    "{file}: {size} bytes are too few for a safetensors file": "{file}：{size} 字节不足以构成 safetensors 文件",
    "{file}: a header of {size} bytes is no safetensors header (2 to {most})":
        "{file}：{size} 字节的文件头不是 safetensors 文件头（2 至 {most}）",
    "{file}: is cut short, its header of {header} bytes does not fit {size} bytes":
        "{file}：文件不完整，{header} 字节的文件头与 {size} 字节不符",
    "{file}: dtype {dtype} is none of {known}": "{file}：dtype {dtype} 不在 {known} 之中",
    "{file}: shape must be at most 64 sizes from 0 up": "{file}：shape 最多 64 维，且不小于 0",
    "{file}: {count} elements of {dtype} are not a possible size": "{file}：{count} 个 {dtype} 元素的大小不合理",
    "{file}: offsets {start}..{end} do not hold its {size} bytes": "{file}：偏移 {start}..{end} 与其 {size} 字节不符",
    "{file}: {size} bytes of data where the header lists {listed}": "{file}：数据 {size} 字节，而文件头列出 {listed}",
    "{file}: an index of more than {most} bytes is refused": "{file}：拒绝超过 {most} 字节的索引",
    "{file}: lists {count} shards where 1 to {most} are possible": "{file}：列出 {count} 个分片，只允许 1 至 {most}",
    "{file}: shard {name} is missing beside it": "{file}：旁边缺少分片 {name}",
    "{file}: the safetensors header is no JSON table ({reason})": "{file}：safetensors 文件头不是 JSON 表（{reason}）",
    "{file}: no safetensors index ({reason})": "{file}：不是 safetensors 索引（{reason}）",
    "{file}: shard {name} is not a plain .safetensors file name": "{file}：分片 {name} 不是普通的 .safetensors 文件名",
    # logs
    "{file}: not a text file; give what the program printed": "{file}：不是文本文件；请给出程序打印的内容",
    "{file}: the log is empty; give what the program printed": "{file}：日志为空；请给出程序打印的内容",
    "{file}: the log is empty": "{file}：日志为空",
    "{file}: no start-up of a known engine in it; looked for {known}":
        "{file}：其中没有已知引擎的启动日志；查找了 {known}",
    "{file} loads {model}, which is no file here and no known model; name it: vramcast serve MODEL --reconcile ...":
        "{file} 加载 {model}，它不是本地文件也不是已知模型；请写明：vramcast serve MODEL --reconcile ...",
    "{file} does not name the model; name it: vramcast serve MODEL --reconcile ...":
        "{file} 没有写明模型；请写明：vramcast serve MODEL --reconcile ...",
    "{file} does not name the cards; give --gpus, for example --gpus {example:w}":
        "{file} 没有写明卡型；请给出 --gpus，例如 --gpus {example}",
    "{file} does not name the cards; give --gpus, for example --gpus {example:w} (as much memory have {names})":
        "{file} 没有写明卡型；请给出 --gpus，例如 --gpus {example}（显存相同的有 {names}）",
    "{file} does not name the cards; give --gpus, for example --gpus {example:w} (no known card has {size} bytes)":
        "{file} 没有写明卡型；请给出 --gpus，例如 --gpus {example}（没有 {size} 字节的已知卡）",
    "{file} does not name the cards; give --gpus, for example --gpus {example:w} (it says {name})":
        "{file} 没有写明卡型；请给出 --gpus，例如 --gpus {example}（其中写的是 {name}）",
    "--engine {engine} contradicts {file}, which is a log of {other}":
        "--engine {engine} 与 {file} 矛盾，后者是 {other} 的日志",
    # recordings
    "{file}: containers lie too deep in one another; no recording does": "{file}：容器嵌套过深；记录不会如此",
    "{file}: the zip holds {count} files that could be meant; give one with one recording":
        "{file}：zip 中有 {count} 个可能的文件；请给只含一份记录的",
    "{file}: the zip is encrypted; unpack it first": "{file}：zip 已加密；请先解压",
    "{file}: cannot be read: {reason}; give the path of a recording": "{file}：无法读取：{reason}；请给出记录的路径",
    "{file}: zstd needs the package zstandard; pip install zstandard, or unpack it with zstd -d":
        "{file}：zstd 需要 zstandard 包；pip install zstandard，或用 zstd -d 解压",
    "the device was full at this point of the recording": "记录到此处时设备已满",
    "a {kind} is no text; give a text as str, or the path of one": "{kind} 不是文本；请以 str 给出文本，或给出路径",
    "{file}: No such file; give the path of a text, or the text itself":
        "{file}：没有这个文件；请给出文本的路径，或文本本身",
    "{file}: {reason}; give the path of a text, or pipe the text in":
        "{file}：{reason}；请给出文本的路径，或用管道传入",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
