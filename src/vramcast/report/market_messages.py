"""The words of reports on hardware and prices, in each language; part of `messages.MESSAGES`."""

from __future__ import annotations

from typing import Final

MARKET_MESSAGES: Final[dict[str, dict[str, str]]] = {
    "cost_per_hour": {"en": "costs {amount} per hour ({of})", "zh": "每小时 {amount}（{of}）"},
    "cost_per_tokens": {"en": "{amount} per million tokens", "zh": "每百万 token {amount}"},
    "cost_per_generated": {
        "en": "{amount} per million generated tokens, the prompts' time included",
        "zh": "每百万生成 token {amount}（计入提示时间）",
    },
    "cost_per_run": {"en": "the whole run: {amount} in {hours} hours", "zh": "整个训练：{amount}，{hours} 小时"},
    "price_of": {"en": "price of {date}", "zh": "{date} 的价格"},
    "price_age": {"en": "price of {date}, {days} days old", "zh": "{date} 的价格，已过 {days} 天"},
    "price_given": {"en": "price as given", "zh": "自定价格"},
    "tariff.on-demand": {"en": "on-demand", "zh": "按量付费"},
    "tariff.spot": {"en": "spot", "zh": "抢占式"},
    "instance": {"en": "instance", "zh": "实例"},
    "gpus": {"en": "GPUs", "zh": "GPU"},
    "gpu": {"en": "GPU", "zh": "GPU"},
    "generation": {"en": "generation", "zh": "架构"},
    "vendor": {"en": "vendor", "zh": "厂商"},
    "nameplate": {"en": "on the box", "zh": "标称显存"},
    "usable": {"en": "usable", "zh": "可用显存"},
    "usable_each": {"en": "usable each", "zh": "每卡可用"},
    "bandwidth": {"en": "bandwidth", "zh": "带宽"},
    "link": {"en": "link", "zh": "互连"},
    "network": {"en": "network", "zh": "网络"},
    "host_memory": {"en": "host memory", "zh": "内存"},
    "local_disks": {"en": "local disks", "zh": "本地盘"},
    "vcpus": {"en": "vCPUs", "zh": "vCPU"},
    "per_hour": {"en": "per hour", "zh": "每小时"},
    "per_gpu_hour": {"en": "per GPU-hour", "zh": "每卡每小时"},
    "region": {"en": "region", "zh": "地域"},
    "tariff": {"en": "tariff", "zh": "计费"},
    "price_date": {"en": "read on", "zh": "日期"},
    "age": {"en": "days old", "zh": "天数"},
    "note": {"en": "note", "zh": "说明"},
    "confidence": {"en": "confidence", "zh": "可信度"},
    "checked": {"en": "checked", "zh": "核对日期"},
    "dense_rate": {"en": "dense {dtype}", "zh": "稠密 {dtype}"},
    "watts": {"en": "power", "zh": "功耗"},
    "not_public": {"en": "not public", "zh": "未公开"},
    "updated": {
        "en": "{provider}: {count} prices of {regions} regions read from {source}",
        "zh": "{provider}：从 {source} 读取了 {regions} 个地域的 {count} 个价格",
    },
    "left_out": {"en": "  left out: {reason}", "zh": "  已略过：{reason}"},
    "not_updated": {"en": "{provider}: nothing changed: {reason}", "zh": "{provider}：未更新：{reason}"},
    "written_to": {"en": "written to {path}", "zh": "已写入 {path}"},
    "old_prices": {
        "en": "{count} of these prices are more than a year old; vramcast prices update reads new ones",
        "zh": "其中 {count} 个价格已超过一年；可用 vramcast prices update 更新",
    },
    "several_currencies": {
        "en": "prices are in {currencies}; none is converted, so they are sorted within each",
        "zh": "价格货币为 {currencies}；不做换算，分别排序",
    },
}
