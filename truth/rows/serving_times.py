"""Latencies of serving runs in closed loop: so many requests are in flight, another comes when one is answered.

[rule] ai-dynamo/aiconfigurator generator/rule_plugin/benchmark/{trtllm,vllm}.rule, which wrote the settings of
servers of runs that are not InferenceX's: `max_num_tokens = max_batch_size + isl + 1500`, batches of all in flight

Degrees are read as the runs' commands mean them: where one number splits attention and spreads experts (`--tp 8
--ep 8`), rows multiply it with itself, and (64, 8, 8) are eight cards.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from truth.contract import Prediction, Refused
from truth.rows import inferencex
from truth.rows.inferencex import MEAN, SPREAD, Started, measured
from truth.rows.names import model_of
from truth.rows.serving.common import version_of
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Speed
from vramcast.domain.device import Cluster
from vramcast.domain.model import Model
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.checks import divides
from vramcast.engines.serving.table import SERVING
from vramcast.estimate.serving import deploy, sequences_held
from vramcast.estimate.speed import timed, timed_apart
from vramcast.question.serving import parse_engine
from vramcast.units import ceil_div

Row = dict[str, Any]

FIRST_TOKEN: Final = "TTFT"
TOKEN: Final = "TPOT"
"""Levels of these rows [ms]."""

SYSTEMS: Final = {
    "h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-180gb", "gb200": "gb200-186gb",
    "gb300": "gb300-288gb", "b300_sxm": "b300-270gb", "a100_sxm": "a100-sxm4-80gb", "l40s": "l40s",
}

FORMATS: Final = {"fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "fp4": "nvfp4", "bf16": "bf16"}
"""Words of rows for the weights of products -> storage format."""

DYNAMO: Final = (0, 9)
"""Lower numbers of TensorRT-LLM's rows are those of Dynamo around it."""

BY_RULE: Final = ("tensorrt-llm", "vllm")
TOKENS: Final = 32
"""Of a block, of which steps are a multiple [rule]."""

LARGEST_GROUP: Final = 32
"""Cards of one instance. Rows with more, or with as many as divide no head, count the cards of all instances."""


MACHINE: Final = 8
"""Cards that a switch joins where there is no rack."""


class Degrees(NamedTuple):
    """How one instance lies over its cards."""

    tp: int
    pp: int
    dp: int
    expert_parallel: bool
    instances: int  # that share the requests

    def as_started(self, started: Started) -> Degrees:
        """As the script of a run chose, where it did."""
        apart = self.dp > 1 if started.apart is None else started.apart
        experts = self.expert_parallel if started.experts is None else started.experts
        ranks = self.tp * self.dp
        return self._replace(tp=1, dp=ranks, expert_parallel=experts) if apart and self.dp == 1 else self._replace(
            expert_parallel=experts)

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.dp


def degrees_of(parallel: dict[str, Any]) -> Degrees:
    """The degrees of an instance.

    >>> tp8_ep8 = {"tp_size": 64, "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 8}
    >>> degrees_of(tp8_ep8)
    Degrees(tp=8, pp=1, dp=1, expert_parallel=True, instances=1)
    """
    tp, pp, dp = parallel["tp_size"], parallel.get("pp_size") or 1, parallel.get("attention_dp_size")
    experts, parts = parallel["moe_ep_size"] or 1, parallel["moe_tp_size"] or 1
    world = experts * parts
    side = isqrt(world)
    if dp and side > 1 and side * side == world == tp * dp and (experts == parts or tp == dp):
        tp, dp, experts = (1, side, side) if dp > 1 else (side, 1, side)
    if not dp:  # experts over more cards than attention: whole copies of attention
        dp = max(1, world // tp)
    return Degrees(tp, pp, dp, world > tp or experts > 1, parallel.get("num_workers") or 1)


def predict(row: Row) -> Iterator[Prediction]:
    """Both latencies of a run.

    Raises: Refused where a row does not say how many requests or instances there were
    """
    if row["mode"] == "agg":
        speed, mark = speed_of(row, row["parallel"]), inferencex.DRAFTS if inferencex.speculates(row) else ""
        yield Prediction(FIRST_TOKEN + mark, first_token_ms(speed), row["ttft_ms"])
        yield Prediction(TOKEN + mark, token_ms(speed), row["tpot_ms"])
        return
    apart, drafts = inferencex.apart(row)
    instances = [Degrees(*part.degrees, part.instances) for part in apart] if apart else [
        degrees_of(row[part]) for part in ("prefill", "decode")]
    prefill, decode = (
        job_of(row, one._replace(instances=1), None, drafts=drafts == inferencex.DRAFTS) for one in instances)
    found = timed_apart(prefill, decode, instances=(instances[0].instances, instances[1].instances), spread=SPREAD)
    yield Prediction(f"{FIRST_TOKEN} apart{drafts}", _mean_ms(found.first_token_s, found.together_s), row["ttft_ms"])
    yield Prediction(f"{TOKEN} apart{drafts}", 1000 * found.token_s, row["tpot_ms"])


ROUNDS: Final = 10
"""Requests of each slot, as harnesses send them: the first of every slot come together."""


def first_token_ms(speed: Speed) -> float:
    """What a user waits for the first token."""
    assert speed.loaded_first_token_s is not None and speed.burst_first_token_s is not None
    return _mean_ms(speed.loaded_first_token_s, speed.burst_first_token_s)


def _mean_ms(loaded_s: float, together_s: float) -> float:
    return 1000 * ((ROUNDS - 1) * loaded_s + together_s) / ROUNDS


def token_ms(speed: Speed) -> float:
    """The mean time between two tokens of a user, other users' prompts among them."""
    assert speed.loaded_token_s is not None
    return 1000 * speed.loaded_token_s


def speed_of(row: Row, parallel: dict[str, Any]) -> Speed:
    """The speed of the instance that a row describes.

    Raises: Refused where it cannot be asked
    """
    job = job_of(row, degrees_of(parallel), parallel.get("batch_size"))
    found = timed(job, spread=SPREAD if measured(row) else 0.0, held=sequences_held(job, deploy(job)))
    if found.speed is None:
        raise Refused(found.assumptions[0] if found.assumptions else "the engine has no speed")
    return found.speed


def job_of(row: Row, degrees: Degrees, batch: int | None, *, drafts: bool = False) -> ServeJob:
    """The question behind one instance of a row; requests are shared evenly among instances."""
    engine, default = parse_engine(row["engine"])
    version = version_of(row) or default
    oldest = DYNAMO if engine == "tensorrt-llm" else SERVING[engine].oldest
    if not oldest <= version <= SERVING[engine].newest:
        version = default
    requests = row.get("concurrency") or batch
    if not requests:
        raise Refused("how many requests are in flight is not said")
    if degrees.cards > LARGEST_GROUP:
        raise Refused("the cards of all instances are counted as one")
    each = max(1, requests // degrees.instances)
    model, weights = network_of(row)
    started = Started("fp8" if engine == "tensorrt-llm" and row.get("precision") in ("fp8", "fp4") else "auto")
    mean = MEAN if measured(row) else 1.0
    if not measured(row) and engine in BY_RULE:
        started = started._replace(batched_tokens=ceil_div(requests + row["input_len"] + 1500, TOKENS) * TOKENS)
    if measured(row):
        started = inferencex.started(row) if row["mode"] == "agg" else started._replace(
            options=inferencex.experts_by(row))
        degrees = degrees.as_started(started)
    job = ServeJob(
        model=model,
        requests=Requests(
            context=row["input_len"] + row["output_len"], input_len=round(mean * row["input_len"]),
            output_len=round(mean * row["output_len"]), concurrency=each,
        ),
        plan=ServePlan(
            tp=degrees.tp, pp=degrees.pp, dp=degrees.dp, expert_parallel=degrees.expert_parallel, weights=weights,
            kv_dtype=started.kv_dtype, batched_tokens=started.batched_tokens, memory_fraction=started.memory_fraction,
            max_sequences=started.max_sequences, prefix_caching=started.prefix_caching,
            draft=inferencex.draft_of(attends_apart=degrees.dp > 1) if drafts or inferencex.speculates(row) else None,
        ),
        cluster=_cluster(SYSTEMS[row["system"]], degrees.cards),
        engine=engine, version=version, engine_options=started.options,
    )
    if not divides(job):
        raise Refused("the cards of all instances are counted as one")
    return job


def _cluster(card: str, cards: int) -> Cluster:
    one = parse_gpus(card)
    each = min(cards, one.gpu.link_cards[-1] if one.gpu.link_cards else MACHINE)
    return replace(one, gpus_per_node=each, num_nodes=ceil_div(cards, each))


def network_of(row: Row) -> tuple[Model, str | None]:
    """The network, and the format of its weights where it is not its checkpoint's own."""
    model, said = model_of(row["model"]), FORMATS[row.get("moe") or row.get("precision") or "bf16"]
    if said == "nvfp4" and model.quantisation != "mxfp4":
        packed = f"{model.name}-nvfp4"
        return (load_model(packed), None) if packed in MODELS.names() else (model, said)
    return model, None if model.quantisation or said == "bf16" else said
