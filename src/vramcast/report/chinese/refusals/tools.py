"""What the command line, sweeps, recordings and live GPUs refuse, in Chinese."""

from __future__ import annotations

from typing import Final

TOOLS_ZH: Final[dict[str, str]] = {
    "this is a bug of vramcast, please report it with the command you ran (VRAMCAST_DEBUG=1 shows where)":
        "这是 vramcast 的缺陷，请连同所运行的命令一起报告（VRAMCAST_DEBUG=1 可显示位置）",
    "no machine of the catalogue is so; loosen a filter, or give --hardware FILE for your own":
        "目录中没有这样的机器；请放宽条件，或用 --hardware FILE 给出自己的机器",
    "no text: give a FILE, or pipe one in: python train.py 2>&1 | vramcast oom":
        "没有文本：请给出 FILE，或用管道传入：python train.py 2>&1 | vramcast oom",
    "--picture shows a search, not the answer of --find; leave out one of them":
        "--picture 显示搜索结果，而不是 --find 的答案；请去掉其一",
    "mirror={text} must be written PROVIDER=ADDRESS": "mirror={text} 必须写成 PROVIDER=ADDRESS",
    "--write writes the plan that the options say; give it without --find and --reconcile":
        "--write 写出选项所述的方案；请不要与 --find、--reconcile 同用",
    "--report writes the answer to a question, not a comparison; give it without --reconcile":
        "--report 写出问题的答案，而不是对比；请不要与 --reconcile 同用",
    "--save-calibration needs --reconcile LOG: it saves what a log teaches":
        "--save-calibration 需要 --reconcile LOG：它保存从日志得到的修正",
    "--find looks for a plan, --reconcile compares the one of a log; give one of them":
        "--find 寻找方案，--reconcile 比较日志中的方案；请只给其一",
    "--set {text} must be written NAME=VALUE, for example --set command=train":
        "--set {text} 必须写成 NAME=VALUE，例如 --set command=train",
    "{target} is no script, so nothing may stand behind it; for a factory give --arg":
        "{target} 不是脚本，其后不能有参数；工厂函数请用 --arg",
    "--arg is for factories; what a script takes stands behind --": "--arg 用于工厂函数；脚本的参数写在 -- 之后",
    "--json and --csv - both write to standard output; give --csv a file":
        "--json 与 --csv - 都写到标准输出；请给 --csv 一个文件",
    "--{option} {value} must be at least {least}ms": "--{option} {value} 至少为 {least}ms",
    "--{option} {value} must be a time such as 500ms, 2s, 10m or 8h":
        "--{option} {value} 必须是时间，例如 500ms、2s、10m 或 8h",
    "--pyodide and --wheel say what a static site is made of; give --build DIR":
        "--pyodide 与 --wheel 用于构建静态站点；请给出 --build DIR",
    "the server needs {packages}: pip install 'vramcast[web]'": "服务器需要 {packages}：pip install 'vramcast[web]'",
    "--picture {path} must end in .svg or .html": "--picture {path} 必须以 .svg 或 .html 结尾",
    "--picture has nothing to draw: no plan that fits has a known speed": "--picture 无可绘制：放得下的方案都没有速度",
    "--report {path} must end in {known}": "--report {path} 必须以 {known} 结尾",
    "a report has no {kind} {name}; use {known}": "报告没有 {kind} {name}；可用 {known}",
    # a recorded run beside its question
    "{file} was recorded on {recorded}, the job asks for {asked} ({gpus}); give --gpus with the card it ran on":
        "{file} 记录自 {recorded}，而任务要求 {asked}（{gpus}）；请用 --gpus 给出实际运行的卡",
    "{file} was recorded on {count} GPUs, the job asks for {asked}; give --gpus {example}":
        "{file} 记录自 {count} 张卡，而任务要求 {asked} 张；请给出 --gpus {example}",
    "{file} was recorded on {count} GPU, the job asks for {asked}; give --gpus {example}":
        "{file} 记录自 {count} 张卡，而任务要求 {asked} 张；请给出 --gpus {example}",
    "calibrate compares with the plain prediction; leave out --calibration":
        "calibrate 与未校准的预测比较；请去掉 --calibration",
    "{file} tells no entries apart that a calibration could correct; record with vramcast.record_memory and "
    "attach(model, optimizer), or for a server compare its log with vramcast serve --reconcile":
        "{file} 没有分项，无法校准；请用 vramcast.record_memory 与 attach(model, optimizer) 记录，服务端请用 "
        "vramcast serve "
        "--reconcile 比较其日志",
    "{file} holds no step and no reading of a card: record a run of a few steps with vramcast.record_memory, or with "
    "vramcast watch --record":
        "{file} 没有训练步也没有显卡读数：请用 vramcast.record_memory 或 vramcast watch --record 记录几步",
    "the recordings are of runs on different numbers of GPUs: {counts}; give those of one run":
        "这些记录来自卡数不同的运行：{counts}；请给出同一次运行的记录",
    "{file} is damaged: it has readings of a card that it does not name": "{file} 已损坏：含有未登记显卡的读数",
    "{file} is damaged: {reason}": "{file} 已损坏：{reason}",
    "a callback for {library} needs {package}, which is not installed: pip install {again}":
        "{library} 的回调需要 {package}，但未安装：pip install {again}",
    "history=True records for a snapshot; give snapshot_at_oom, for example oom.pickle":
        "history=True 为快照记录历史；请给出 snapshot_at_oom，例如 oom.pickle",
    # live GPUs
    "no GPU can be read here. {reason}": "此处无法读取任何 GPU。{reason}",
    "no GPU {name} is here; there is: {known}": "此处没有 GPU {name}；现有：{known}",
    "{count} GPUs are called {name}; name one by its uuid, or choose --vendor":
        "有 {count} 张 GPU 名为 {name}；请用 uuid 指定，或选择 --vendor",
    "`npu-smi info` shows no chip in a form that is known (known: 23.0 to 26.0)":
        "`npu-smi info` 的输出格式未知（已知 23.0 至 26.0）",
    "`mthreads-gmi` shows no card in a form that is known (known: 1.14 to 2.4)":
        "`mthreads-gmi` 的输出格式未知（已知 1.14 至 2.4）",
    "amd-smi did not print a list of cards": "amd-smi 没有打印显卡列表",
    "`{command} --json` did not print an object": "`{command} --json` 没有打印对象",
    "Ascend: {reason}": "昇腾：{reason}",
    "Ascend: npu-smi is not installed": "昇腾：未安装 npu-smi",
    "Moore Threads: {reason}": "摩尔线程：{reason}",
    "Moore Threads: mthreads-gmi is not installed": "摩尔线程：未安装 mthreads-gmi",
    "AMD: neither amd-smi nor rocm-smi is installed": "AMD：未安装 amd-smi 或 rocm-smi",
    "NVIDIA: reading these cards needs nvidia-ml-py: pip install 'vramcast[watch]'":
        "NVIDIA：读取这些卡需要 nvidia-ml-py：pip install 'vramcast[watch]'",
    "no libnvidia-ml.so.1: no NVIDIA driver is installed, or this container was started without it (docker run "
    "--gpus all)":
        "找不到 libnvidia-ml.so.1：未安装 NVIDIA 驱动，或容器启动时未带驱动（docker run --gpus all）",
    "the driver is installed and not loaded; `modprobe nvidia` loads it":
        "驱动已安装但未加载；`modprobe nvidia` 可加载",
    "no permission to talk to the driver; open /dev/nvidiactl and /dev/nvidia* to this user, or give the container "
    "the device":
        "没有访问驱动的权限；请对该用户开放 /dev/nvidiactl 与 /dev/nvidia*，或把设备交给容器",
    "libnvidia-ml and the loaded driver have different versions: the driver was updated and the old one is still "
    "loaded; restart, or reload the modules":
        "libnvidia-ml 与已加载驱动版本不同：驱动已更新而旧驱动仍在使用；请重启或重新加载模块",
    "a card's external power cables are not attached": "有显卡未接外部供电",
    "the kernel has a problem with a card's interrupts": "内核处理某张卡的中断有问题",
    "the driver finds no card": "驱动没有找到显卡",
    "`{command}` printed {size} bytes, more than any table of cards has":
        "`{command}` 打印了 {size} 字节，超出任何显卡表",
    "`{command}` failed with exit code {code}": "`{command}` 失败，退出码 {code}",
    "`{command}` failed with exit code {code}: {reason}": "`{command}` 失败，退出码 {code}：{reason}",
    "`{command}` did not print JSON: {text}": "`{command}` 没有打印 JSON：{text}",
    "cannot run `{command}`: {reason}": "无法运行 `{command}`：{reason}",
    "`{command}` gave no answer within {limit} s": "`{command}` 在 {limit} s 内没有响应",
    "--prometheus {text} must be [HOST]:PORT, for example :9400 or 0.0.0.0:9400":
        "--prometheus {text} 必须是 [HOST]:PORT，例如 :9400 或 0.0.0.0:9400",
    "--prometheus needs prometheus_client: pip install 'vramcast[watch]'":
        "--prometheus 需要 prometheus_client：pip install 'vramcast[watch]'",
    "cannot serve metrics on {address}: {reason}; give another port":
        "无法在 {address} 提供指标：{reason}；请换端口",
    "cannot serve metrics on {address}: {reason}; give an address of this machine":
        "无法在 {address} 提供指标：{reason}；请用本机地址",
    "no recording {file}; `vramcast watch --record {again}` makes one":
        "没有记录 {file}；`vramcast watch --record {again}` 可生成",
    "cannot use {file} as a recording: {reason}": "无法把 {file} 用作记录：{reason}",
    "{file} is not a recording of vramcast, and is left as it is; give another file":
        "{file} 不是 vramcast 的记录，保持原样；请换文件",
    "cannot record into {file}: {reason}": "无法记录到 {file}：{reason}",
    "{file} has schema {schema} and this vramcast reads {known}; {hint}":
        "{file} 的 schema 为 {schema}，本版本读取 {known}；{hint}",
    "{file} holds no run yet": "{file} 还没有运行记录",
    "{file} holds no run {run}; its runs: {runs}": "{file} 没有运行 {run}；其中有：{runs}",
    "cannot write {file}: {reason}": "无法写入 {file}：{reason}",
    "{file} does not begin with the columns of this CSV, and is left as it is; give another file":
        "{file} 开头不是此 CSV 的列名，保持原样；请换文件",
    # sweeps
    "{file}: {option} and {other} are one option; give one of them": "{file}：{option} 与 {other} 是同一选项；只给其一",
    "workers={count} must be 1 or more": "workers={count} 至少为 1",
    "--address is that of a Ray cluster; add --engine ray": "--address 是 Ray 集群的地址；请加 --engine ray",
    "{file}: holds answers of other questions than {spec} has now; give another --out, or --restart to drop them":
        "{file}：其中答案对应的问题与 {spec} 现有的不同；请换 --out，或用 --restart 丢弃",
    "{file}: holds answers of vramcast {version}, this is {own}; give another --out, or --restart to ask everything "
    "again":
        "{file}：其中是 vramcast {version} 的答案，当前为 {own}；请换 --out，或用 --restart 全部重算",
    "{file}: was written in another form of journals (form {found}, this is form {own}); give another --out, or "
    "--restart to ask everything again":
        "{file}：以另一种日志格式写成（格式 {found}，当前为格式 {own}）；请换 --out，或用 --restart 全部重算",
    "{file}: was changed meanwhile; run the same command again": "{file}：期间被改动；请重新运行同一命令",
    "{file}: another sweep is writing it; wait for that one or give another --out":
        "{file}：另一个批量任务正在写入；请等待，或换 --out",
    "{file}: is no journal of a sweep; move it away or give another --out":
        "{file}：不是批量任务的日志；请移走，或换 --out",
    "{file}: cannot be written ({reason}); what stands in it is kept, make room and run the same command again":
        "{file}：无法写入（{reason}）；已有内容保留，请腾出空间后重新运行同一命令",
    "worker processes cannot start: a script must call vramcast.sweep under `if __name__ == \"__main__\":`, or use "
    "workers=1":
        "工作进程无法启动：脚本须在 `if __name__ == \"__main__\":` 下调用 vramcast.sweep，或用 workers=1",
    "a machine of the cluster has vramcast {version}, this one {own}; install the same":
        "集群中有机器装的是 vramcast {version}，本机为 {own}；请安装相同版本",
    "--engine ray needs Ray; install it with pip install 'vramcast[ray]'":
        "--engine ray 需要 Ray；请用 pip install 'vramcast[ray]' 安装",
    "Ray at {address} cannot be used: {reason}": "无法使用 {address} 的 Ray：{reason}",
    "processes of the cluster die before they answer anything: {reason}": "集群进程在回答前退出：{reason}",
    "a machine of the cluster cannot answer: {reason}; install vramcast {version} on all of them":
        "集群中有机器无法回答：{reason}；请在所有机器上安装 vramcast {version}",
    "{file}: results are written as {known}; give --out such a name": "{file}：结果写为 {known}；--out 请用这类名称",
    "{file}: Parquet needs pyarrow; install it with pip install 'vramcast[sweep]', or write --out {other}":
        "{file}：Parquet 需要 pyarrow；请用 pip install 'vramcast[sweep]' 安装，或写 --out {other}",
    "{file}: there is no folder {folder}": "{file}：没有目录 {folder}",
    "{file}: is a folder; give --out the name of a file": "{file}：是目录；--out 请给文件名",
    "{file}: is the file of the questions; give --out another name": "{file}：是问题文件本身；--out 请用其他名称",
    "{file}: cannot be written ({reason}); the answers are kept, run the same command again":
        "{file}：无法写入（{reason}）；答案已保留，请重新运行同一命令",
    "{file}: the exclusions leave nothing of {count} questions; drop one of them":
        "{file}：排除条件去掉了全部 {count} 个问题；请去掉一条",
    "{file}: {part} must be a list of tables, {again}": "{file}：{part} 必须是表的列表，即 {again}",
    "{file}: axis {name} must be a list of values; what never changes belongs in [defaults]":
        "{file}：轴 {name} 必须是取值列表；不变的放到 [defaults]",
    "{file}: axis {name} is empty; give values or leave it out": "{file}：轴 {name} 为空；请给出取值或去掉",
    "{file}: zip needs two or more lists that walk together; one alone belongs in [axes]":
        "{file}：zip 需要两个以上同步的列表；单个请放到 [axes]",
    "{file}: lists of a zip must be equally long; these are {lengths}": "{file}：zip 的列表须等长；当前为 {lengths}",
    "{file}: has no questions; give [axes] or [[rows]]": "{file}：没有问题；请给出 [axes] 或 [[rows]]",
    "{file}: which command? give command = {known} in [defaults]":
        "{file}：哪个命令？请在 [defaults] 给出 command = {known}",
    "{file}: exclude {rule} is true of no question; correct or drop it":
        "{file}：排除 {rule} 不匹配任何问题；请改正或去掉",
    "{file}: {name} is an axis twice; put its values into one": "{file}：{name} 作为轴出现两次；请合并取值",
    "{file}: an empty exclude would leave out everything; say what to leave out":
        "{file}：空的 exclude 会排除全部；请写明排除什么",
    "{file}: exclude names {name}, which no question says": "{file}：exclude 提到 {name}，但没有问题用到它",
    "{file}: a question is an object of options": "{file}：问题应是选项对象",
    "{file}: a sweep is a {known} file": "{file}：批量任务应是 {known} 文件",
    "{file}: the product is {count} questions, more than {most}; leave out values, or allow it with --limit {again}":
        "{file}：组合共 {count} 个问题，超过 {most}；请减少取值，或用 --limit {again} 允许",
    "{file}: {part} must be a table of options": "{file}：{part} 必须是选项表",
    "{file}: must be a regular file: its questions are read twice": "{file}：必须是普通文件：问题要读两遍",
    "{file}: has no questions": "{file}：没有问题",
    "{file}: which command? add a column command with train or serve, or --set command=train":
        "{file}：哪个命令？请加一列 command（train 或 serve），或 --set command=train",
    "{file}: a sweep is made of tables: defaults, axes, zip, exclude, rows, part":
        "{file}：批量任务由这些表组成：defaults、axes、zip、exclude、rows、part",
    "{file}: beside [[part]] only [defaults] can stand, not {name}":
        "{file}：[[part]] 之外只能有 [defaults]，不能有 {name}",
    "{file}: part must be a list of tables, [[part]]": "{file}：part 必须是表的列表，即 [[part]]",
    "stopped: {done} of {all} questions are answered and kept in {file}; the same command goes on from there":
        "已停止：{all} 个问题中已回答 {done} 个并保存在 {file}；同一命令可继续",
    "the process that answered it died, every time; it may need too much memory":
        "回答它的进程每次都退出；可能内存不足",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
