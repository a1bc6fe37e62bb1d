"""What the page and its API refuse, in Chinese."""

from __future__ import annotations

from typing import Final

WEB_ZH: Final[dict[str, str]] = {
    "the body holds {kind}; send one object of options": "请求体是 {kind}；请发送一个选项对象",
    "the body is not UTF-8; send JSON in UTF-8": "请求体不是 UTF-8；请发送 UTF-8 的 JSON",
    "the body nests too deep; a question is one flat object": "请求体嵌套过深；问题应是一个扁平对象",
    "the body is not JSON ({reason}); send one object of options": "请求体不是 JSON（{reason}）；请发送一个选项对象",
    "{name} must be a text, not {kind}": "{name} 必须是文本，而不是 {kind}",
    "{name} has more than {most} MiB; send its beginning and end": "{name} 超过 {most} MiB；请发送开头与结尾",
    "{name}={value} is not known; use {known}": "{name}={value} 未知；可用 {known}",
    "unknown key {name}; known: {known}": "未知的键 {name}；已知的有 {known}",
    "'question' must be an object of options": "'question' 必须是选项对象",
    "'job' must be an object of options": "'job' 必须是选项对象",
    "'checks' must be true or false": "'checks' 必须是 true 或 false",
    "nothing that was looked at fits, so there is no plan to write files of":
        "查看过的方案都放不下，没有可写文件的方案",
    "'formats' must be a list of names of formats, for example [\"deepspeed\"]":
        "'formats' 必须是格式名列表，例如 [\"deepspeed\"]",
    "files are written of the plan that the options say; ask without find": "文件按选项所述的方案写出；请不要带 find",
    "port={port} must be from 0 to 65535; 0 takes any free one":
        "port={port} 必须在 0 到 65535 之间；0 表示任意空闲端口",
    "port {port} needs rights that this user has not; give --port 8000":
        "端口 {port} 需要该用户没有的权限；请给 --port 8000",
    "port {port} is in use; give another one, or --port 0 for any that is free":
        "端口 {port} 已被占用；请换一个，或用 --port 0",
    "host={host} is no address of this machine; give --host 127.0.0.1":
        "host={host} 不是本机地址；请给 --host 127.0.0.1",
    "{host}:{port} cannot be listened on ({reason}); give another --host or --port":
        "无法监听 {host}:{port}（{reason}）；请换 --host 或 --port",
    "too many large bodies at once; send it again in a second": "同时的大请求过多；请一秒后重发",
    "too many questions at once; ask again in a second": "同时的问题过多；请一秒后再问",
    "the body did not arrive within {limit} s": "请求体未在 {limit} s 内到达",
    "no answer within {limit} s; ask for less, or use the command line": "{limit} s 内没有答案；请缩小问题，或用命令行",
    "the process that answered has ended, which large questions do; ask for less":
        "回答的进程已退出（问题过大时会如此）；请缩小问题",
    "whoever asked has left": "提问者已离开",
    "the body has more than {size}; {instead}": "请求体超过 {size}；{instead}",
    "send less": "请减小",
    "the command line, vramcast replay FILE, reads larger ones": "更大的请用命令行 vramcast replay FILE",
    "there is no {path}; /api/openapi.json lists what there is": "没有 {path}；/api/openapi.json 列出全部路径",
    "{path} takes {methods}, not {method}": "{path} 接受 {methods}，而不是 {method}",
    "compressed bodies are not read; send the body as it is": "不读取压缩的请求体；请原样发送",
    "{path} takes {types}; say so in Content-Type": "{path} 接受 {types}；请在 Content-Type 中写明",
    "{method} takes no body here; ask by the address alone": "此处 {method} 不带请求体；请只用地址提问",
    "the address has more than {most} KiB; send questions as a body": "地址超过 {most} KiB；请用请求体发送问题",
    "the query of the address names a parameter twice; give it once": "地址中的参数重复；请只给一次",
    "the query of the address cannot be read; write name=value&...": "无法读取地址中的参数；请写成 name=value&...",
    "unknown parameter {name} of the address; known: {known}": "地址中有未知参数 {name}；已知的有 {known}",
    "this server answers only to names of this machine; open localhost": "本服务只响应本机名称；请打开 localhost",
    "this is a bug of vramcast; please report it with the question you asked (reference {reference})":
        "这是 vramcast 的缺陷；请连同所提的问题一起报告（编号 {reference}）",
    "{folder} is not an empty folder; name one that is empty or does not exist":
        "{folder} 不是空目录；请指定空的或不存在的目录",
    "{folder} lacks {names}; give the folder of the npm package pyodide: npm install pyodide@{version}, then --pyodide "
    "node_modules/pyodide":
        "{folder} 缺少 {names}；请给出 npm 包 pyodide 的目录：npm install pyodide@{version}，然后 --pyodide "
        "node_modules/pyodide",
    "{file} is no wheel; they are named like msgspec-{version}-...-{tag}.whl":
        "{file} 不是 wheel；其名称形如 msgspec-{version}-...-{tag}.whl",
    "{file} does not exist": "{file} 不存在",
    "{file} is for {tag}; a browser with this Pyodide needs {needed}":
        "{file} 适用于 {tag}；该 Pyodide 的浏览器需要 {needed}",
    "npm is not there to fetch Pyodide; give --pyodide FOLDER with the npm package pyodide {version}":
        "没有 npm，无法获取 Pyodide；请用 --pyodide FOLDER 给出 npm 包 pyodide {version}",
    "{folder} does not say which Python it is for": "{folder} 没有说明适用的 Python",
    "{name} could not be fetched ({reason})": "无法获取 {name}（{reason}）",
    "{file} cannot be unpacked; download it again": "无法解压 {file}；请重新下载",
    "{model} looks like a path or an address: a question from the web names no file and no address; name a model of "
    "the catalogue, or give params, layers and hidden":
        "{model} 像是路径或网址：网页上的问题不能指定文件或地址；请用目录中的模型名，或给出 params、layers 和 hidden",
    "{name} must be one value, not a list": "{name} 必须是单个值，而不是列表",
    "{name} must be a text": "{name} 必须是文本",
    "{name} lists {count} values; give at most {most}": "{name} 有 {count} 个值；最多 {most} 个",
    "{model} is in no catalogue, and no hub is asked here; name a model of the catalogue, or give params, layers and "
    "hidden (vramcast web --hub {hub} answers for ids of that hub)":
        "目录中没有 {model}，此处也不查询 hub；请用目录中的模型名，或给出 params、layers 和 hidden（vramcast web "
        "--hub {hub} 可回答该 hub 的 id）",
    "{option} names {what}: a question from the web names no file": "{option} 指定了 {what}：网页上的问题不能指定文件",
    "a file of prices; give price instead": "价格文件；请改用 price",
    "a file of own clusters; give gpus instead": "自有集群文件；请改用 gpus",
    "{option} cannot be asked from the web; use the command line": "{option} 不能在网页上使用；请用命令行",
    "{name} must be a text, a number, true or false, or a list of texts":
        "{name} 必须是文本、数字、true 或 false，或文本列表",
    "{name} has more than {most} characters": "{name} 超过 {most} 个字符",
    "a list": "列表",
    "a text": "文本",
}
"""Template -> the same in Chinese. Gaps hold values; several templates of one sentence are its variants."""
