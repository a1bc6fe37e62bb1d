"""Rules that every engine's plans obey: what a degree must divide. Checked once, before any engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

from vramcast.domain.job import Job
from vramcast.domain.model import MLP, Attention, Layer, MoE, MultiLatentAttention
from vramcast.errors import InvalidSpec

LARGEST_SUGGESTED = 128

Sizes = Iterator[tuple[str, int]]
Rule = Callable[[int], bool]


def check(job: Job) -> None:
    """Raise InvalidSpec when a degree does not divide what it splits, naming the degrees that would."""
    plan, model = job.plan, job.model
    layers = [run.layer for run in model.main.runs]
    _divides("tp", plan.tp, list(_tensor_parallel_sizes(layers)), model.name)
    key_values = [layer.mixer.num_kv_heads for layer in layers if isinstance(layer.mixer, Attention)]
    for size in key_values:
        _fits("tp", plan.tp, f"num_kv_heads={size} of {model.name}", _shares_evenly(size))
    experts = [layer.channel for layer in layers if isinstance(layer.channel, MoE)]
    if plan.ep > 1 and not experts:
        raise InvalidSpec(f"ep={plan.ep}: {model.name} has no experts to divide; use ep=1")
    for moe in experts:
        _fits("ep", plan.ep, f"num_experts={moe.num_experts} of {model.name}", _divisor_of(moe.num_experts))
    length = job.workload.seq_len
    _fits("cp", plan.cp, f"seq-len={length}", _divisor_of(length))
    if plan.pp * plan.virtual_stages > model.num_layers:
        raise InvalidSpec(
            f"pp={plan.pp} x virtual-stages={plan.virtual_stages} are more stages than the {model.num_layers} layers "
            f"of {model.name}; use at most {model.num_layers}"
        )
    ranks = job.data_parallel * plan.cp
    if plan.shard_group is not None and ranks % plan.shard_group:
        _fits("shard-group", plan.shard_group, f"the {ranks} data-parallel ranks", _divisor_of(ranks))


def _tensor_parallel_sizes(layers: list[Layer]) -> Sizes:
    for layer in layers:
        if isinstance(layer.mixer, (Attention, MultiLatentAttention)):
            yield "num_heads", layer.mixer.num_heads
        if isinstance(layer.channel, MLP):
            yield "ffn", layer.channel.width


def _divides(name: str, degree: int, sizes: list[tuple[str, int]], model: str) -> None:
    for what, size in sizes:
        common = gcd(*(other for _, other in sizes))
        _fits(name, degree, f"{what}={size} of {model}", _divisor_of(size), _divisor_of(common))


def _divisor_of(size: int) -> Rule:
    return lambda n: size % n == 0


def _shares_evenly(size: int) -> Rule:
    """Heads are divided, or each is copied to the same number of ranks."""
    return lambda n: size % n == 0 or n % size == 0


def _fits(
    name: str, degree: int, what: str, rule: Rule, suggest: Rule | None = None
) -> None:
    if rule(degree):
        return
    good = [str(n) for n in range(1, LARGEST_SUGGESTED + 1) if (suggest or rule)(n)][:8]
    listed = f"{', '.join(good[:-1])} or {good[-1]}" if len(good) > 1 else good[0]
    raise InvalidSpec(f"{name}={degree} does not divide {what}; use {listed}")
