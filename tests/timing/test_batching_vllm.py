"""The same decisions, step by step, as vLLM's own scheduler, where `vllm` can be imported: no card is needed."""

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from vramcast.timing.batching import Arrival, Batching, Limits, Pool

pytest.importorskip("vllm.v1.core.sched.scheduler", exc_type=ImportError)

BLOCK = 16


class Second:
    """Every step takes one."""

    def decode(self, sequences: int, context: float) -> float:
        return 1.0

    def mixed(self, sequences: int, context: float, chunks: Any) -> float:
        return 1.0


def vllm_scheduler(blocks: int, limits: Limits, *, caches: bool) -> Any:
    """vLLM's scheduler over a pool of full attention."""
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    config = MagicMock()
    config.scheduler_config = SimpleNamespace(
        max_num_seqs=limits.sequences, max_num_scheduled_tokens=None, max_num_batched_tokens=limits.tokens,
        policy="fcfs", scheduler_reserve_full_isl=limits.whole_prompt, long_prefill_token_threshold=0,
        enable_chunked_prefill=limits.chunks, async_scheduling=False,
    )
    config.cache_config = SimpleNamespace(
        num_gpu_blocks=blocks, enable_prefix_caching=caches, mamba_cache_mode="none", block_size=BLOCK,
        prefix_caching_hash_algo="builtin",
    )
    for name in ("lora_config", "kv_events_config", "kv_transfer_config", "ec_transfer_config", "speculative_config"):
        setattr(config, name, None)
    config.observability_config = SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False)
    config.parallel_config = SimpleNamespace(
        data_parallel_index=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
    )
    config.model_config = SimpleNamespace(
        max_model_len=1 << 20, is_encoder_decoder=False, enable_return_routed_experts=False,
    )
    registry = SimpleNamespace(supports_multimodal_inputs=lambda _: False)
    grammar = SimpleNamespace(should_advance=lambda _: False, grammar_init=lambda _: None)
    return Scheduler(config, cache, grammar, block_size=BLOCK, mm_registry=registry)


Step = tuple[dict[int, int], set[int]]


def vllm_decisions(scheduler: Any, arrivals: list[Arrival], *, caches: bool) -> list[Step]:
    """Tokens of each request that runs, and who is cut off, while every step takes a second."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256) if caches else None
    found: list[Step] = []
    now, left, numbers = 0.0, list(enumerate(arrivals)), random.Random(7)
    while left or scheduler.has_unfinished_requests():
        while left and left[0][1].at_s <= now:
            number, arrival = left.pop(0)
            sampling = SamplingParams(max_tokens=arrival.answer, ignore_eos=True)
            sampling.update_from_generation_config({}, 1)
            tokens = [numbers.randrange(1 << 30) for _ in range(arrival.prompt)]
            scheduler.add_request(Request(
                request_id=str(number), prompt_token_ids=tokens, sampling_params=sampling, pooling_params=None,
                block_hasher=hasher))
        output = scheduler.schedule()
        counts = output.num_scheduled_tokens
        if counts:
            found.append((
                {int(name): count for name, count in counts.items()}, {*map(int, output.preempted_req_ids or ())}))
            names = list(counts)
            sampled = []
            for name in names:
                request = scheduler.requests[name]
                done = request.num_computed_tokens >= request.num_tokens
                sampled.append([numbers.randrange(1 << 30)] if done else [])
            scheduler.update_from_output(output, ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)},
                sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        now += 1.0
    return found


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_decisions_are_those_of_vllm(seed: int, caches: bool) -> None:
    chosen = random.Random(seed)
    limits = Limits(chosen.choice((4, 8, 32)), chosen.choice((48, 96, 256)), whole_prompt=chosen.random() < 0.5)
    blocks = chosen.choice((30, 60, 200))
    arrivals, at = [], 0.0
    for _ in range(60):
        at += chosen.choice((0.0, 1.0, 5.0, 40.0))
        arrivals.append(Arrival(at, chosen.randint(1, 200), chosen.randint(1, 120)))
    theirs = vllm_decisions(vllm_scheduler(blocks, limits, caches=caches), arrivals, caches=caches)
    ours = Batching(Pool(blocks - 1, BLOCK, caches=caches), limits, Second(), records=True)  # vLLM keeps one block
    ours.run(arrivals)
    assert ours.decisions is not None
    for step, (own, other) in enumerate(zip(ours.decisions, theirs, strict=True)):
        assert (dict.fromkeys(own.decoding, 1) | dict(own.chunks), {*own.cut_off}) == other, step
    assert blocks > 30 or ours.preemptions  # the smallest pool runs out
