"""Every word a report prints, in each language."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from vramcast.report.calibration_messages import CALIBRATION_MESSAGES, HOOK_MESSAGES
from vramcast.report.log_messages import LOG_MESSAGES
from vramcast.report.market_messages import MARKET_MESSAGES
from vramcast.report.plan_messages import PLAN_MESSAGES

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.planning import PlanAnswer

LANGUAGES: Final = ("en", "zh")

AnswerT = TypeVar("AnswerT", bound="Answer | PlanAnswer")

MESSAGES: Final[dict[str, dict[str, str]]] = {
    "verdict.fits": {"en": "fits", "zh": "放得下"},
    "verdict.fits closely": {"en": "fits closely", "zh": "放得下但很紧"},
    "verdict.may run out": {"en": "may run out", "zh": "可能放不下"},
    "verdict.does not fit": {"en": "does not fit", "zh": "放不下"},
    "verdict.line": {"en": "{verdict}: {reason}", "zh": "{verdict}：{reason}"},
    "verdict.within": {"en": "{needed} of {capacity}", "zh": "需要 {needed}，可用 {capacity}"},
    "verdict.within.per_gpu": {"en": "{needed} of {capacity} per GPU", "zh": "每卡 {needed}，可用 {capacity}"},
    "verdict.close": {
        "en": "{needed} of {capacity}, 90 % up to {high}", "zh": "需要 {needed}，可用 {capacity}，90 % 区间上限 {high}",
    },
    "verdict.close.per_gpu": {
        "en": "{needed} of {capacity} per GPU, 90 % up to {high}",
        "zh": "每卡 {needed}，可用 {capacity}，90 % 区间上限 {high}",
    },
    "verdict.beyond": {"en": "{needed} needed, {capacity} usable", "zh": "需要 {needed}，可用 {capacity}"},
    "verdict.beyond.per_gpu": {
        "en": "{needed} needed, {capacity} usable per GPU, {excess} too much",
        "zh": "每卡需要 {needed}，可用 {capacity}，超出 {excess}",
    },
    "host_does_not_fit": {
        "en": "{places} (per GPU {needed} of {capacity})",
        "zh": "{places}（每卡 {needed}，可用 {capacity}）",
    },
    "host_short": {
        "en": "{place}: at least {needed} needed in each machine, {there} there",
        "zh": "{place}：每台机器至少需要 {needed}，只有 {there}",
    },
    "host_enough": {
        "en": "{place}: at least {needed} of {there} in each machine",
        "zh": "{place}：每台机器至少 {needed}，共有 {there}",
    },
    "host_unknown": {
        "en": "{place}: at least {needed} needed in each machine; how much there is is not known, so not checked",
        "zh": "{place}：每台机器至少需要 {needed}；机器容量未知，未作检查",
    },
    "host_enough_span": {
        "en": "{place}: {needed} to {most} of {there} in each machine",
        "zh": "{place}：每台机器 {needed} 至 {most}，共有 {there}",
    },
    "host_tight": {
        "en": "{place}: {needed} to {most} needed in each machine, {there} there: it may run out",
        "zh": "{place}：每台机器需要 {needed} 至 {most}，只有 {there}：可能不足",
    },
    "host_unknown_span": {
        "en": "{place}: {needed} to {most} needed in each machine; how much there is is not known, so not checked",
        "zh": "{place}：每台机器需要 {needed} 至 {most}；机器容量未知，未作检查",
    },
    "host_parts": {"en": "Main memory of each machine, at least and at most", "zh": "每台机器的内存（至少与至多）"},
    "place.main memory": {"en": "main memory", "zh": "内存"},
    "place.local disks": {"en": "local disks", "zh": "本地盘"},
    "capacity": {
        "en": "the cache holds {tokens} tokens: {concurrency} sequences of {context} tokens",
        "zh": "缓存可容纳 {tokens} 个 token：{concurrency} 条长度 {context} 的序列",
    },
    "longest_context": {
        "en": "longest context of {sequences} at once: {longest} tokens",
        "zh": "{sequences} 条并发时每条最长 {longest} 个 token",
    },
    "safe_fraction": {
        "en": "highest safe memory fraction: {fraction}",
        "zh": "安全的最高显存比例：{fraction}",
    },
    "token_counts": {"en": "Tokens in the cache, by what is counted", "zh": "缓存 token 数（按计数方式）"},
    "speed_prefill": {
        "en": "prefill: first token of a {prompt}-token prompt after {first}, {rate} tokens/s, {bound}-bound",
        "zh": "预填充：{prompt} token 的提示首 token {first}，{rate} token/s，受限于{bound}",
    },
    "speed_decode": {
        "en": "decode alone: {user} tokens/s per user, {rate} tokens/s in all at {context} tokens, {bound}-bound",
        "zh": "仅解码：上下文 {context} 时每用户 {user} token/s，合计 {rate} token/s，受限于{bound}",
    },
    "speed_sustained": {
        "en": "with the prompts' time: {user} tokens/s per user, {rate} tokens/s in all "
              "({prompt} tokens in, {answer} out)",
        "zh": "计入提示时间：每用户 {user} token/s，合计 {rate} token/s（输入 {prompt}，输出 {answer} token）",
    },
    "found.smallest-gpu": {
        "en": "smallest card that fits: {value} ({what})",
        "zh": "能放下的最小的卡：{value}（{what}）",
    },
    "found.fewest-gpus": {"en": "fewest GPUs that fit: {value} ({what})", "zh": "最少需要 {value} 张卡（{what}）"},
    "found.best-split": {"en": "fastest split that fits: {value} ({what})", "zh": "最快的切分：{value}（{what}）"},
    "found.longest-context": {
        "en": "longest context that fits: {value} tokens ({what})",
        "zh": "能放下的最长上下文：{value} 个 token（{what}）",
    },
    "found.most-users": {
        "en": "most sequences at once that fit: {value} ({what})",
        "zh": "最多同时 {value} 条序列（{what}）",
    },
    "found.quantisation": {
        "en": "most precise weights that fit: {value} ({what})",
        "zh": "能放下的最高精度权重：{value}（{what}）",
    },
    "found_nothing": {
        "en": "none of {count} plans fits; the nearest is",
        "zh": "{count} 个方案都放不下；最接近的是",
    },
    "tried": {"en": "Tried: {count} plans, those next to the result", "zh": "共试了 {count} 个方案，结果附近的是"},
    "plan": {"en": "plan", "zh": "方案"},
    "kv_tokens": {"en": "KV tokens", "zh": "KV token"},
    "sequences": {"en": "sequences", "zh": "序列"},
    "tokens_per_s": {"en": "tokens/s", "zh": "token/s"},
    "why_not": {"en": "why not", "zh": "原因"},
    "nearest_failing": {"en": "nearest that is left out: {what}", "zh": "最接近但未采用的：{what}"},
    "holds": {"en": "{sequences} sequences", "zh": "{sequences} 条序列"},
    "where_time_goes": {"en": "Where the time goes", "zh": "时间花在哪里"},
    "prefill": {"en": "prefill", "zh": "预填充"},
    "decode": {"en": "decode", "zh": "解码"},
    "step_time": {
        "en": "{step} a step, {rate} tokens/s, bound by {bound}",
        "zh": "每步 {step}，{rate} token/s，受限于{bound}",
    },
    "step_time_mfu": {
        "en": "{step} a step, {rate} tokens/s, MFU {mfu}; bound by {bound}",
        "zh": "每步 {step}，{rate} token/s，MFU {mfu}；受限于{bound}",
    },
    "cause.products": {"en": "matrix products", "zh": "矩阵乘法"},
    "cause.attention": {"en": "attention", "zh": "注意力"},
    "cause.pointwise": {"en": "norms, gates, losses and other traffic", "zh": "归一化、激活、损失等访存"},
    "cause.tensor": {"en": "waiting for tensor-parallel ranks", "zh": "等待张量并行"},
    "cause.context": {"en": "waiting for context-parallel ranks", "zh": "等待上下文并行"},
    "cause.expert": {"en": "waiting for expert-parallel ranks", "zh": "等待专家并行"},
    "cause.pipeline": {"en": "pipeline bubbles and transfers", "zh": "流水线气泡与传输"},
    "cause.gradients": {"en": "reducing gradients, what nothing hides", "zh": "梯度归约（未被掩盖部分）"},
    "cause.optimizer": {"en": "clipping and optimizer step", "zh": "梯度裁剪与优化器更新"},
    "cause.offload": {"en": "transfers to and from the host", "zh": "主机与显卡间传输"},
    "cause.host": {"en": "host between two steps", "zh": "步间主机开销"},
    "cause.stragglers": {"en": "waiting for the slowest machine", "zh": "等待最慢的机器"},
    "cause.gathered": {"en": "gathering weights, what nothing hides", "zh": "收集权重（未被掩盖部分）"},
    "bound.pipeline": {"en": "the pipeline", "zh": "流水线"},
    "bound.offload": {"en": "offloading", "zh": "卸载"},
    "bound.compute": {"en": "compute", "zh": "算力"},
    "bound.memory": {"en": "memory", "zh": "显存带宽"},
    "bound.communication": {"en": "communication", "zh": "通信"},
    "bound.main_memory": {"en": "main memory", "zh": "内存带宽"},
    "cause.main_memory": {"en": "reading and computing on the host", "zh": "在主机上读取与计算"},
    "bound.launch": {"en": "launch", "zh": "内核启动"},
    "cause.weights": {"en": "reading weights", "zh": "读权重"},
    "cause.cache": {"en": "reading the cache", "zh": "读缓存"},
    "cause.activations": {"en": "moving activations", "zh": "搬运激活"},
    "cause.compute": {"en": "computing", "zh": "计算"},
    "cause.communication": {"en": "communication", "zh": "通信"},
    "cause.launch": {"en": "launches and scheduling", "zh": "内核启动与调度"},
    "phase_decides": {
        "en": "  the highest moment is: {phase}",
        "zh": "  最高点出现在：{phase}",
    },
    "levels": {
        "en": "allocated {allocated}, reserved {reserved}, device {device} (90 % between {low} and {high})",
        "zh": "已分配 {allocated}，已保留 {reserved}，设备占用 {device}（90 % 区间 {low} 至 {high}）",
    },
    "device_level": {
        "en": "device {device} (90 % between {low} and {high})",
        "zh": "设备占用 {device}（90 % 区间 {low} 至 {high}）",
    },
    "question": {
        "en": "{model} ({parameters} parameters) on {gpus}, {engine}",
        "zh": "{model}（{parameters} 参数），{gpus}，{engine}",
    },
    "ledger": {
        "en": "Ledger of the fullest rank: {role}, {count} of {total} GPUs",
        "zh": "占用最多的一类进程：{role}，{count}/{total} 张卡",
    },
    "role": {
        "en": "Role {role}: {count} of {total} GPUs",
        "zh": "角色 {role}：{count}/{total} 张卡",
    },
    "others": {"en": "{count} smaller entries", "zh": "其余 {count} 项"},
    "total": {"en": "total (device)", "zh": "合计（设备）"},
    "phases": {"en": "Peak of each phase", "zh": "各阶段峰值"},
    "allocated": {"en": "allocated", "zh": "已分配"},
    "reserved": {"en": "reserved", "zh": "已保留"},
    "device": {"en": "device", "zh": "设备"},
    "ignored": {"en": "not in this answer: {what}", "zh": "此结果未计入：{what}"},
    "assumed": {"en": "Assumed", "zh": "假设"},
    "warnings": {"en": "Warnings", "zh": "警告"},
    "largest": {"en": "largest entry: {path}, {size}", "zh": "最大的一项：{path}，{size}"},
    "changes": {"en": "Changes, each computed", "zh": "修改方案（均已计算）"},
    "no_change": {
        "en": "no single change makes it fit; combine them, or use more or larger GPUs",
        "zh": "没有任何单项修改能放下；请组合使用，或换更多、更大的卡",
    },
    "formula": {"en": "formula", "zh": "公式"},
    "source": {"en": "source", "zh": "来源"},
    "basis": {"en": "basis", "zh": "依据"},
    "parameters": {"en": "parameters", "zh": "参数"},
    "layer": {"en": "layer", "zh": "层"},
    "kind": {"en": "kind", "zh": "类型"},
    "output_shape": {"en": "output shape", "zh": "输出形状"},
    "saved": {"en": "saved", "zh": "保存"},
    "flops": {"en": "FLOPs", "zh": "FLOPs"},
    "category.weights": {"en": "weights", "zh": "权重"},
    "category.gradients": {"en": "gradients", "zh": "梯度"},
    "category.optimizer": {"en": "optimizer", "zh": "优化器"},
    "category.activations": {"en": "activations", "zh": "激活"},
    "category.temporaries": {"en": "temporaries", "zh": "临时张量"},
    "category.communication": {"en": "communication", "zh": "通信"},
    "category.workspaces": {"en": "workspaces and context", "zh": "工作区与上下文"},
    "category.inputs": {"en": "inputs", "zh": "输入"},
    "category.kv cache": {"en": "KV cache", "zh": "KV 缓存"},
    "category.cuda graphs": {"en": "CUDA graphs", "zh": "CUDA 图"},
    "category.lora slots": {"en": "LoRA slots", "zh": "LoRA 槽位"},
    "category.draft model": {"en": "draft model", "zh": "草稿模型"},
    "category.encoder cache": {"en": "encoder cache", "zh": "编码器缓存"},
    "category.allocator": {"en": "reserved, not allocated", "zh": "已保留未分配"},
    "category.slack": {"en": "slack of blocks", "zh": "块内余量"},
    "phase.load": {"en": "load", "zh": "加载"},
    "phase.first step": {"en": "first step", "zh": "第一步"},
    "phase.step": {"en": "steady step", "zh": "稳定步"},
    "phase.evaluation": {"en": "evaluation", "zh": "评估"},
    "phase.warm-up": {"en": "warm-up", "zh": "预热"},
    "phase.serving": {"en": "serving", "zh": "服务"},
    "phase.after": {"en": "after the last step", "zh": "最后一步之后"},
    "phase.checkpoint": {"en": "checkpoint", "zh": "保存检查点"},
    "sweep_progress": {
        "en": "{done} of {total} questions, {rate} per second, {left} left",
        "zh": "已完成 {done}/{total} 个问题，每秒 {rate} 个，剩余 {left}",
    },
    "sweep_resumed": {
        "en": "{done} of {total} questions were answered before",
        "zh": "此前已回答 {done}/{total} 个问题",
    },
    "sweep_result": {
        "en": "{total} questions: {fitting} fit, {failing} do not, {errors} cannot be answered",
        "zh": "{total} 个问题：{fitting} 个放得下，{failing} 个放不下，{errors} 个无法回答",
    },
    "written": {"en": "written to {directory}: {names}", "zh": "已写入 {directory}：{names}"},
    **LOG_MESSAGES,
    **HOOK_MESSAGES,
    **CALIBRATION_MESSAGES,
    **MARKET_MESSAGES,
    **PLAN_MESSAGES,
}
"""Key -> language -> text. Both languages have every key and the same placeholders; a test says so."""


@cache
def rare_messages() -> dict[str, dict[str, str]]:
    """The messages of reports on failures, recordings, traces, live GPUs and as files: others need none of them."""
    from vramcast.report.failure_actions import FAILURE_ACTIONS
    from vramcast.report.failure_messages import FAILURE_MESSAGES
    from vramcast.report.failure_numbers import FAILURE_NUMBERS
    from vramcast.report.replay_messages import REPLAY_MESSAGES
    from vramcast.report.trace_messages import TRACE_MESSAGES
    from vramcast.report.watch_messages import WATCH_MESSAGES
    from vramcast.report.written.words import REPORT_MESSAGES

    return {
        **FAILURE_ACTIONS, **FAILURE_MESSAGES, **FAILURE_NUMBERS, **REPLAY_MESSAGES, **REPORT_MESSAGES,
        **TRACE_MESSAGES, **WATCH_MESSAGES,
    }


class Words:
    """The messages of one language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, **values: object) -> str:
        """The text of `key` with its placeholders filled in."""
        texts = MESSAGES[key] if key in MESSAGES else rare_messages()[key]
        return texts[self.language].format(**values)

    def spoken(self, answer: AnswerT) -> AnswerT:
        """An answer, or that of a search, with all that the layers below say in it in this language."""
        if self.language == "en":
            return answer
        from vramcast.report.spoken import spoken

        return spoken(answer, self)

    def said(self, sentence: str) -> str:
        """A sentence of a layer below, which speaks English; in English where it has no other form."""
        if self.language == "en":
            return sentence
        from vramcast.report.chinese import in_chinese

        return in_chinese(sentence)


def words_here(language: str | None = None) -> Words:
    """The messages of a language, or of the locale of this process where none is chosen."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return Words(language or language_of(locale))


def language_of(locale: str) -> str:
    """The language of a locale name such as 'zh_CN.UTF-8'; English where there is none."""
    return "zh" if locale.lower().startswith("zh") else "en"
