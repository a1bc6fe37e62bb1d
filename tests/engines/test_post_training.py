"""Stages of post-training: what a card holds, what torch counts in each process, and what a release does otherwise."""

from functools import cache
from typing import Any, Final

import pytest

import vramcast
from tests.formats.plans import named
from vramcast import sources
from vramcast.api.answers import post_training_answer, post_training_job_of
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import PostTrainingAnswer, RankAnswer
from vramcast.domain.program import extent
from vramcast.engines.post_training import fsdp, megatron
from vramcast.engines.post_training.batches import batches
from vramcast.engines.post_training.rollout import engine, serve_job
from vramcast.errors import InvalidSpec
from vramcast.units import GIB

CARDS: Final = "8xh100-sxm-80gb"


@cache
def _asked(options: tuple[tuple[str, Any], ...]) -> PostTrainingAnswer:
    """Without the changes that would fit, which most of these questions do not ask about and some take seconds for."""
    return post_training_answer(named(dict(options)), with_changes=False)


def asked(model: str = "qwen2.5-1.5b", gpus: str = CARDS, **options: Any) -> PostTrainingAnswer:
    return _asked(tuple({"model": model, "gpus": gpus, "micro_batch": 4, "samples": 2, **options}.items()))


def role(answer: PostTrainingAnswer, name: str) -> RankAnswer:
    return next(rank for rank in answer.ranks if rank.role == name)


QUESTIONS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"framework": "verl@0.4"}, {"framework": "verl@0.9", "reference": True, "sharded_by": "fsdp2"},
    {"algorithm": "ppo", "offload_parameters": "cpu", "offload_optimizer": "cpu", "framework": "verl@0.6"},
    {"peft": "lora", "sleep": False}, {"rollout": "sglang", "entropy": True}, {"rollout_gpus": 4, "ahead": True},
    {"framework": "nemo-rl", "model": "qwen2.5-7b"}, {"alloc_conf": "expandable_segments:True"}, {"padded": True},
    {"model": "qwen3-30b-a3b", "gpus": "8xh200", "ulysses": 2},
    {"reward_model": "qwen2.5-0.5b", "reward_micro_batch": 32, "framework": "verl@0.7"},
    {"reward_model": "llama-3-8b-rm", "engine": "megatron", "sleep": False, "reward_fraction": 0.3},
    {"model": "qwen2.5-vl-3b", "image_size": 448, "images": 2, "padded": False},
    {"framework": "openrlhf", "reward_model": "qwen2.5-0.5b", "algorithm": "ppo"},
    {"framework": "ms-swift", "engine": "megatron", "peft": "lora", "trainer_leaves": True, "trainer_sleep": True,
     "model": "qwen3.5-2b", "freeze": "towers,projectors", "sleep_level": 1},
    {"framework": "ms-swift", "engine": "megatron", "rollout_gpus": 4, "tp": 2},
    {"framework": "openrlhf@0.8", "zero": "3", "trainer_sleep": True, "reward_model": "qwen2.5-1.5b"},
    {"framework": "openrlhf", "algorithm": "ppo", "reward_model": "qwen2.5-1.5b", "rollout_gpus": 2,
     "own_gpus": ("critic+reward=2",), "offload_optimizer": "cpu"},
)


@pytest.mark.parametrize("options", QUESTIONS, ids=str)
def test_the_ledger_adds_up_and_a_card_is_the_sum_of_its_processes(options: dict[str, Any]) -> None:
    found = asked(**options)
    cards = [rank for rank in found.ranks if rank.ledger]
    processes = [rank for rank in found.ranks if not rank.ledger]
    assert len(cards) == 1 + ("rollout_gpus" in options) + ("own_gpus" in options)
    assert sum(card.count for card in cards) == 8
    for card in cards:
        assert sum(entry.num_bytes for entry in card.ledger) == card.peak.device_bytes
        assert all(entry.num_bytes >= 0 for entry in card.ledger)
        low, high = card.interval_bytes
        assert low <= card.peak.device_bytes <= high
        for name, peak in card.phases.items():
            assert 0 < peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
            own = [process.phases[name] for process in processes if name in process.phases]
            assert max(one.device_bytes for one in own) <= peak.device_bytes <= sum(one.device_bytes for one in own)
            assert all(one.allocated_bytes <= one.reserved_bytes for one in own)


@pytest.mark.parametrize("version", ["0.4", "0.8"])
def test_an_engine_that_does_not_sleep_keeps_its_pools(version: str) -> None:
    sleeping, awake = (asked(framework=f"verl@{version}", sleep=sleep) for sleep in (True, False))
    for name in ("old_log_prob", "update_actor"):
        kept = role(awake, "card").phases[name].device_bytes - role(sleeping, "card").phases[name].device_bytes
        assert kept > 0.3 * awake.capacity_bytes
    assert role(awake, "card").phases["generate"] == role(sleeping, "card").phases["generate"]


@pytest.mark.parametrize(("model", "options", "gib"), [
    ("qwen3-8b", {"gpus": "2xgb10", "framework": "verl@0.9"}, 15.26),  # note-gb10-qwen3-8b-2nodes: fp32 over two
    ("llama-3.2-3b", {"gpus": "4xrtx-a6000", "framework": "verl@0.2", "reference": True, "offload_reference": False},
     4.488),  # search-r1-93-a6000: fp32, and a reference in 16 bits on the card
    ("qwen2.5-7b", {"gpus": CARDS}, 4 * 7_615_616_512 / 8 / GIB),
])
def test_weights_after_the_start_are_those_that_runs_print(model: str, options: dict[str, Any], gib: float) -> None:
    assert asked(model, **options).resting["trainer"]["init"] / GIB == pytest.approx(gib, rel=1e-3)


def test_a_measured_update_is_met() -> None:
    """note-gb10-qwen3-1.7b-2nodes: torch's maximum in the trainer 16.09 GiB."""
    found = asked("qwen3-1.7b", gpus="2x1xgb10", framework="verl@0.9", rollout="vllm@0.23", micro_batch=1, samples=8,
                  prompts=64, prompt_len=1024, response_len=2048, memory_fraction=0.35, offload_parameters="cpu",
                  offload_optimizer="cpu")
    assert role(found, "trainer").peak.allocated_bytes / GIB == pytest.approx(16.09, rel=0.01)


def test_trl_gives_cached_memory_back_only_where_its_engine_sleeps() -> None:
    """[TRL vllm_generation.py `sync_weights`: `empty_cache` before `wake_up`]"""
    awake, asleep = (
        asked(framework="trl", peft="lora", prompts=64, mini_batch=64, sleep=sleep) for sleep in (False, True))
    kept, given = (role(found, "card").phases for found in (awake, asleep))
    spread = [max(found) - min(found) for found in (
        [phases[name].reserved_bytes for name in ("generate", "update_actor", "update_weights")]
        for phases in (kept, given))]
    assert spread[0] < 0.02 * GIB < 8 * GIB < spread[1]


def test_trls_engine_starts_before_a_sharded_trainer_is_prepared() -> None:
    """[TRL grpo_trainer.py `__init__`] vLLM 0.8 counts all on the card against its share, and finds no optimizer.

    A published run of 0.17: Qwen2.5-7B over seven cards of 80 GB, ZeRO-3, 0.3 of a card for the engine.
    """
    common: dict[str, Any] = {
        "model": "qwen2.5-7b", "gpus": "7xa100-sxm-80gb", "framework": "trl@0.18", "memory_fraction": 0.3,
        "micro_batch": 1, "samples": 7, "prompts": 7, "mini_batch": 7,
    }
    sharded, on_host, whole = (asked(**{**common, **more}) for more in (
        {"zero": "3"}, {"zero": "2"}, {"gpus": "h100-sxm-80gb", "model": "qwen2.5-0.5b"}))
    assert sharded.fits and not sharded.shortfall
    for found in (sharded, on_host):
        card = role(found, "card").phases
        assert card["engine_start"].device_bytes < 0.35 * found.capacity_bytes < card["init"].device_bytes
    card = role(whole, "card").phases
    assert card["init"].device_bytes < card["engine_start"].device_bytes


def test_a_reference_whose_adapters_are_switched_off_gathers_none_of_them() -> None:
    """FSDP1 has a unit of its own for each of their factors; the ten published LoRA runs need a third less for it."""
    for more, faster in (({"peft": "lora"}, True), ({}, False), ({"peft": "lora", "sharded_by": "fsdp2"}, False)):
        seconds = asked(reference=True, **more).time.seconds
        assert (seconds["ref_log_prob"] < 0.95 * seconds["old_log_prob"]) is faster


def test_one_card_of_trl_shards_nothing() -> None:
    """Where cards are varied the sharder is that of the cards that are left."""
    found = vramcast.rl("qwen2.5-0.5b", gpus="4xh100-sxm-80gb", framework="trl", zero="2", micro_batch=4, prompts=32,
                        mini_batch=32, samples=8, find="fewest-gpus")
    assert found.found is not None and found.found.value == 1


def test_an_engine_never_finds_less_than_nothing() -> None:
    assert asked("deepseek-v3", algorithm="gspo").shortfall.startswith("the engine finds 0 bytes free")


SLEEPING: Final[dict[str, Any]] = {"framework": "openrlhf", "zero": "3", "trainer_sleep": True, "algorithm": "ppo",
                                   "reward_model": "qwen2.5-1.5b"}


def test_an_engine_that_rates_answers_holds_its_share_while_it_does() -> None:
    """verl since 0.8 serves the reward network by a second engine, which sleeps with its weights on the host."""
    plain, rated = asked(), asked(reward_model="qwen2.5-1.5b", reward_fraction=0.4)
    card = role(rated, "card")
    share = 0.4 * rated.capacity_bytes
    assert share < card.phases["reward"].device_bytes < share + (12 << 30)
    more = card.phases["update_actor"].device_bytes - role(plain, "card").phases["update_actor"].device_bytes
    assert 0 < more < 5 << 30  # what no sleep gives back
    assert any(part.name == "weights of the reward network" for part in rated.host.parts)


def test_fsdp2s_offload_policy_leaves_nothing_of_the_trainer_on_the_card_between_stages() -> None:
    """Shards, gradients and states are on the host, 16 B a parameter, the first two pinned; units are gathered."""
    options = {"sharded_by": "fsdp2", "offload_parameters": "cpu", "offload_optimizer": "cpu", "framework": "verl@0.8"}
    moved, there = asked(**options), asked(**options, trainer_option=("steps_on_host=true",))
    update, less = (role(found, "trainer").phases["update_actor"].allocated_bytes for found in (moved, there))
    assert there.resting["trainer"]["old_log_prob"] < 100 << 20
    assert update - less > 0.9 * 8 * there.num_parameters / 8
    host = sum(part.low_bytes for part in there.host.parts if part.name != "processes")
    assert host >= 16 * there.num_parameters and there.time is None


def test_openrlhfs_logits_are_fp32_and_their_gradient_is_another_tensor() -> None:
    """2 bytes of the head, 4 of the cast, 4 of flash-attn's gradient, 2 of the gradient of the cast."""
    one, two = (role(asked(framework="openrlhf", zero="3", recompute="full", micro_batch=count, response_len=3584),
                     "trainer").phases["update_actor"].allocated_bytes for count in (2, 4))
    tokens = 2 * 4096
    logits = (two - one) / (tokens * 151_936)
    assert 8 < logits < 10


def test_critic_and_actor_learn_at_once_where_neither_sleeps() -> None:
    awake, asleep = (asked(**{**SLEEPING, "trainer_sleep": sleeps}) for sleeps in (False, True))
    assert "update_critic" in role(asleep, "critic").phases
    assert "update_critic" not in role(awake, "critic").phases
    card, parts = role(awake, "card"), [role(awake, name) for name in ("trainer", "critic")]
    assert card.phases["update_actor"].device_bytes > sum(one.phases["update_actor"].reserved_bytes for one in parts)


@pytest.mark.parametrize("options", [
    {}, {"padded": True}, {"micro_batch": 64}, {"alloc_conf": "expandable_segments:True"}, {"mean_response_len": 512},
], ids=str)
def test_lengths_that_grow_from_micro_batch_to_micro_batch_leave_blocks_cached(options: dict[str, Any]) -> None:
    """One micro-batch, padded ones and segments that expand leave none; what the card needs is the same."""
    found = asked(**{"mean_response_len": 128, "mean_prompt_len": 512, "prompts": 128, "mini_batch": 128,
                     "framework": "verl@0.5", "padded": False, "memory_fraction": 0.3} | options)
    update = role(found, "trainer").phases["update_actor"]
    assert any("more cached" in sentence for sentence in found.assumptions) is (not options)
    assert options or update.reserved_bytes > 1.3 * update.allocated_bytes
    assert found.high_bytes <= found.capacity_bytes


def test_the_trainer_learns_in_segments_that_expand_since_0_6() -> None:
    """Moments made between activations hold none of their segments; start and handover are as they were."""
    sizes = {"offload_parameters": "none", "micro_batch": 8, "gpus": "2xh100-sxm-80gb"}
    before, since = (asked(**sizes, framework=f"verl@{release}", rollout="vllm@0.11", padded=False, graphs=True)
                     for release in ("0.5", "0.6"))
    old, new = (role(found, "trainer").phases for found in (before, since))
    assert new["init"] == old["init"]
    assert new["update_actor"].allocated_bytes <= old["update_actor"].allocated_bytes
    assert since.resting["trainer"]["update_actor"] <= before.resting["trainer"]["update_actor"]
    assert new["update_actor"].reserved_bytes < old["update_actor"].reserved_bytes


def test_adapters_on_one_card_are_handed_over_without_a_copy_of_their_base() -> None:
    """FSDP shards nothing over one rank, so its summons gather nothing."""
    phases = role(asked(gpus="h100-sxm-80gb", peft="lora"), "trainer").phases
    assert phases["update_weights"].allocated_bytes < phases["init"].allocated_bytes + GIB


def test_a_full_card_takes_cached_memory_back_before_it_is_out() -> None:
    """verl-tuning-qwen2-70b_grpo_32_h800_fsdp_vllm ran: 101.6 GiB where nothing is given back, 70 of them live."""
    found = asked("qwen2-72b-instruct", gpus="4x8xh800", framework="verl@0.4", prompts=1024, mini_batch=256, samples=5,
                  prompt_len=512, response_len=512, mean_prompt_len=103, mean_response_len=250, micro_batch=None,
                  micro_tokens=24000, reference=True, offload_parameters="cpu", offload_optimizer="cpu",
                  rollout_tp=16, memory_fraction=0.6, padded=False)
    assert found.fits and found.fullest.gives_back_cache and found.cautions[0].startswith("fits only because")


@pytest.mark.parametrize(("release", "card", "share", "most"), [
    ("2025.8", "t4", 0.7, 0.7), ("2025.9.6", "t4", 0.7, 0.9), ("2025.9.6", "t4", 0.95, 0.95),
    ("2025.12", "l4", 0.5, 0.83125), ("2025.12", "l4", 0.95, 0.95), ("2026.8", "l4", 0.95, 0.78375),
    ("2026.8", "h200", 0.5, 0.87875),
])
def test_unsloths_engine_takes_its_own_share_while_it_stands_by(
    release: str, card: str, share: float, most: float
) -> None:
    options = {"model": "qwen3-4b", "gpus": card, "framework": f"unsloth@{release}", "memory-fraction": share,
               "prompts": 1, "samples": 8}
    shares = [serve_job(post_training_job_of({**options, "sleep": sleep})).plan.memory_fraction
              for sleep in (True, False)]
    assert shares == pytest.approx([most, share])


def test_unsloths_network_is_there_once() -> None:
    """Asleep, the engine leaves its cache to the trainer and nothing more."""
    awake, asleep = (asked("qwen3-4b", "l4", framework="unsloth@2025.8", sleep=sleep, micro_batch=8, samples=8,
                           prompts=1).ranks for sleep in (False, True))
    cache = next(entry.num_bytes for entry in awake[0].ledger if entry.path.endswith("key-value cache"))
    weights = sum(entry.num_bytes for entry in awake[0].ledger if entry.path.startswith("weights/"))
    assert 2.6 * GIB < weights < 3 * GIB
    updates = [one[0].phases["update_actor"].allocated_bytes for one in (awake, asleep)]
    assert updates[0] - updates[1] == cache
    assert awake[1].phases["update_actor"].allocated_bytes == asleep[1].phases["update_actor"].allocated_bytes


@pytest.mark.parametrize("framework", ["verl@0.8", "trl"])
def test_a_micro_batch_has_the_images_of_all_its_prompts(framework: str) -> None:
    def pixels(**options: Any) -> int:
        found = asked("qwen2.5-vl-3b", framework=framework, prompt_len=2048, **options)
        assert ("vision tower" in " ".join(found.assumptions)) == ("image_size" not in options)
        (card, *_) = found.ranks
        return card.phases["update_actor"].allocated_bytes

    one, two, four = (pixels(image_size=448, images=count) for count in (1, 2, 4))
    more = pixels(image_size=448, images=2, micro_batch=8) - pixels(image_size=448, micro_batch=8)
    assert pixels() < one and four - two == pytest.approx(2 * (two - one), rel=0.1)
    assert more == pytest.approx(2 * (two - one), rel=0.1)


def test_a_critic_under_megatron_has_one_column_for_a_head() -> None:
    """deepseek-llm-7b over tp 4: verl prints 1,727,778,816 parameters of the actor's rank and 1,622,925,312 of the
    critic's, whose value head every rank has whole."""
    found = asked("deepseek-llm-7b", "4xh100-sxm-80gb", framework="verl@0.2", engine="megatron", algorithm="ppo", tp=4,
                  prompts=64, memory_fraction=0.6)
    ledger = [entry.num_bytes for entry in found.ranks[0].ledger if entry.path == "weights/dense/parameter buffer"]
    assert sorted(size // 2 for size in ledger) == pytest.approx([1_622_925_312, 1_727_778_816], rel=1e-4)
    assert {"values", "update_critic"} <= found.ranks[0].phases.keys()


@pytest.mark.parametrize(("model", "fits"), [("qwen3-1.7b", True), ("qwen3-8b", False)])
def test_where_both_memories_are_one_offloads_leave_less_to_the_host(model: str, fits: bool) -> None:
    """Two GB10 whose runs ended so: pinned copies never go back."""
    found = asked(model, "2x1xgb10", framework="verl@0.9", offload_parameters="cpu", offload_optimizer="cpu",
                  memory_fraction=0.35, micro_batch=1, samples=8, prompts=32)
    assert found.host is not None and found.fits is fits
    assert found.host.memory_there_bytes == found.capacity_bytes - found.ranks[0].peak.device_bytes


@pytest.mark.parametrize(("stored", "width"), [(None, 2), ("fp8-block", 1)])
def test_the_engine_has_weights_as_they_are_handed_over(stored: str | None, width: int) -> None:
    """DeepSeek-V3's checkpoint is in fp8; what learns is bf16."""
    job = post_training_job_of({
        "model": "deepseek-v3", "gpus": "32x8xh100-sxm-80gb", "framework": "nemo-rl", "rollout-tp": 16, "tp": 8,
        "pp": 16, "ep": 16, "rollout-weights": stored, "samples": 16})
    weights = engine(job, held_bytes=0).weights.num_bytes * 16
    assert weights == pytest.approx(671e9 * width, rel=0.07)


def test_a_rank_of_dtensors_has_its_part_of_every_linear_layer() -> None:
    model = sources.resolve.resolve_model("qwen2.5-7b")
    half = fsdp.slice_of(model, 2)
    whole, part = (count_parameters(one).total for one in (model, half))
    assert 2 * part - whole == (2 * model.num_layers + 1) * model.hidden  # only norms are whole on both ranks
    with pytest.raises(InvalidSpec, match="tp=8 does not divide 28 heads"):
        fsdp.slice_of(model, 8)


def test_towers_that_learn_of_text_take_their_states_on_the_first_stage() -> None:
    sees, reads = (asked(name, engine="megatron", images=0) for name in ("qwen2.5-vl-7b", "qwen2.5-7b"))
    tower = sees.num_parameters - reads.num_parameters
    more = sees.resting["trainer"]["init"] - reads.resting["trainer"]["init"]
    assert more == pytest.approx((2 + 4 + 4 / 8) * tower, rel=0.02)  # weights, gradients, an eighth of fp32 copies


def test_an_engine_of_several_copies_divides_experts_among_them() -> None:
    several = {"model": "qwen3-30b-a3b", "framework": "nemo-rl", "rollout_tp": 1}
    alone, shared = (
        role(asked(**several, **more), "engine").peak.allocated_bytes
        for more in ({}, {"rollout_dp": 8, "rollout_expert_parallel": True, "memory_fraction": 0.2}))
    assert shared < alone


def test_an_engine_that_may_be_late_works_on_several_steps_at_once() -> None:
    seconds = []
    for lag in (1, 8):
        time = asked(framework="nemo-rl", rollout_gpus=6, ahead=True, lag=lag, prompts=8, mini_batch=8).time
        assert time is not None
        seconds.append(time.seconds["generate"])
    assert seconds[1] < seconds[0] / 2  # the longest answer of one step is not waited for alone
    with pytest.raises(InvalidSpec, match="--lag needs --ahead"):
        asked(framework="nemo-rl", lag=2)


@pytest.mark.parametrize(("framework", "each"), [("nemo-rl", 2048), ("verl", 4096)])
def test_a_budget_of_tokens_is_a_ranks_or_that_of_all_who_divide_a_sequence(framework: str, each: int) -> None:
    job = post_training_job_of({
        "model": "qwen2.5-1.5b", "gpus": CARDS, "framework": framework, "engine": "pytorch", "sharded-by": "fsdp2",
        "prompts": 256, "mini-batch": 256, "samples": 8, "prompt-len": 256, "response-len": 768, "micro-tokens": 4096,
        "ulysses": 2,
    })
    assert batches(job, learns=True).tokens == each


def test_context_parallel_ranks_divide_the_logits_of_a_pass_without_gradients() -> None:
    def most(cp: int) -> int:
        job = post_training_job_of({
            "model": "qwen2.5-1.5b", "gpus": CARDS, "framework": "nemo-rl", "engine": "megatron", "prompts": 64,
            "mini-batch": 64, "samples": 8, "prompt-len": 256, "response-len": 768, "micro-batch": 4, "cp": cp,
        })
        return extent(megatron.log_prob(job, batches(job, learns=False), entropy=False)).peak

    assert most(1) == 2 * most(2) == 4 * most(4)


def test_ms_swift_on_megatron_leaves_while_its_engine_generates_and_is_whole_beside_its_weights() -> None:
    answers = {leaves: asked(framework="ms-swift", engine="megatron", trainer_leaves=leaves, trainer_sleep=leaves,
                             sleep_level=2) for leaves in (True, False)}
    away, there = (role(answers[leaves], "card").phases for leaves in (True, False))
    weights = 2 * 2 * answers[True].num_parameters  # with those of the reference
    assert there["generate"].device_bytes - away["generate"].device_bytes > weights
    assert abs(there["update_weights"].device_bytes - away["update_weights"].device_bytes) < GIB
