"""How the sequences of a step are cut into mini-batches and micro-batches of one rank.

[batch] verl/workers/fsdp_workers.py `__init__`: sizes are given in prompts before `rollout.n`, and normalised to a
rank; trainer/ppo/ray_trainer.py `_balance_batch`, on unasked since 0.2: ranks get as many sequences and about as many
tokens, in the order of the step
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.post_training import PostTrainingJob
from vramcast.engines.post_training.releases import MICRO_TOKENS
from vramcast.errors import InvalidSpec
from vramcast.units import ceil_div

RISING: Final = 5
"""Micro-batches of which each is longer than all before, in one of 5! stages of a run's thousand [count]."""


class Batches(NamedTuple):
    """What passes through a network at once on one card, and how often."""

    tokens: int  # of one forward on this rank, padding included where there is any
    samples: int  # rows of it: 1 where sequences lie behind one another
    accumulated: int  # micro-batches of an optimizer step
    steps: int  # optimizer steps of a step of the algorithm
    sequences: int = 1  # that pass at once
    shorter: tuple[int, ...] = ()  # what others of an optimizer step have, where lengths differ, rising [tokens]


def trainer_cluster(job: PostTrainingJob) -> Cluster:
    """The cards that the trainer runs on.

    Raises: InvalidSpec where they are no whole machines
    """
    return part_of(job.cluster, job.trainer_gpus)


def seen_from(job: PostTrainingJob, role: str) -> PostTrainingJob:
    """The question as a network with cards of its own sees it; of any other the question itself.

    Raises: InvalidSpec where they are no whole machines
    """
    own = next((gpus for roles, gpus in job.own_gpus.items() if role in roles.split("+")), None)
    if own is None:
        return job
    return replace(job, cluster=part_of(job.cluster, own), rollout=replace(job.rollout, gpus=None), own_gpus={})


def part_of(cluster: Cluster, gpus: int) -> Cluster:
    """So many cards of a cluster: whole machines, or as many of each.

    Raises: InvalidSpec where they are neither, or none
    """
    if gpus == cluster.count:
        return cluster
    shared = gpus > cluster.gpus_per_node and gpus % cluster.gpus_per_node > 0
    if gpus < 1 or (shared and gpus % cluster.num_nodes):
        raise InvalidSpec(
            "cards of one's own leave {} of {} GPUs, which are no whole machines of {}",
            gpus, cluster.count, cluster.gpus_per_node
        )
    nodes = cluster.num_nodes if shared else max(1, gpus // cluster.gpus_per_node)
    return replace(cluster, num_nodes=nodes, gpus_per_node=gpus // nodes, instance=None)


def replicas(job: PostTrainingJob) -> int:
    """Data-parallel ranks of the trainer; `ulysses` of them share a sequence.

    Raises: InvalidSpec for degrees that do not divide
    """
    ranks, ulysses = job.plan.data_parallel(trainer_cluster(job).count), job.updates.ulysses
    if ranks % ulysses:
        raise InvalidSpec(
            "ulysses={} does not divide {} data-parallel ranks; use a divisor of {}", ulysses, ranks, ranks
        )
    return ranks // ulysses


def _adding(job: PostTrainingJob) -> int:
    """Ranks whose budgets add up to a micro-batch's: each has one of its own [verl megatron_actor.py], where NeMo-RL's
    bins have the tokens of all that divide a sequence [nemo distributed/batched_data_dict.py `shard_by_batch_size`]."""
    if job.framework == "nemo-rl":
        return 1
    return job.updates.ulysses * (job.plan.cp if job.framework in ("verl", "slime") else 1)


def usual_budget(job: PostTrainingJob) -> int:
    """Tokens of a dynamic micro-batch where nobody says: verl's default, or what the longest sequence takes of a rank
    where that is more, with which verl would stop [verl utils/seqlen_balancing.py `rearrange_micro_batches`]."""
    return max(MICRO_TOKENS, ceil_div(job.episodes.longest, _adding(job)))


def batches(job: PostTrainingJob, *, learns: bool, of_critic: bool = False) -> Batches:
    """How the sequences of a step are cut on one rank [batch].

    Args:
        learns: the update; else a pass without gradients
        of_critic: of the network that estimates values, whose sizes may be its own

    Raises: InvalidSpec for sizes that do not divide or are too small for a sequence
    """
    updates, episodes, data = job.updates, job.episodes, replicas(job)
    whole = episodes.prompts * episodes.samples
    mini = updates.mini_batch * episodes.samples
    if whole % data or mini % data or updates.mini_batch > episodes.prompts:
        raise InvalidSpec(
            "prompts={} and mini-batch={} x samples={} must be multiples of {} data-parallel ranks, and a mini-batch "
            "no larger than the step", episodes.prompts, updates.mini_batch, episodes.samples, data
        )
    local = (mini if learns else whole) // data
    sequences, tokens = updates.micro_batch, updates.micro_tokens
    if not learns and (updates.log_prob_micro_batch or updates.log_prob_tokens):
        sequences, tokens = updates.log_prob_micro_batch, updates.log_prob_tokens
    if of_critic and (updates.critic_micro_batch or updates.critic_micro_tokens):
        sequences, tokens = updates.critic_micro_batch, updates.critic_micro_tokens
    steps = ceil_div(episodes.prompts, updates.mini_batch) * updates.epochs if learns else 1
    length = episodes.longest if updates.padded else episodes.usual
    if sequences is not None and tokens is None:
        sequences = min(sequences, local)
        balanced = data if job.framework == "verl" else 0
        at_once = sequences * length if updates.padded else episodes.most_tokens(sequences, balanced=balanced)
        accumulated = ceil_div(local, sequences)
        rising = 0 if updates.padded or length == episodes.longest else min(accumulated, RISING)
        deviates = (NormalDist().inv_cdf((place + 0.5) / rising) for place in range(rising - 1))
        return Batches(ceil_div(at_once, updates.ulysses), sequences if updates.padded else 1, accumulated, steps,
                       sequences,
                       tuple(ceil_div(episodes.most_tokens(sequences, one, balanced=balanced), updates.ulysses)
                             for one in deviates))
    shared = _adding(job)
    budget = (tokens or usual_budget(job)) * shared
    if job.framework in ("openrlhf", "slime"):  # a sequence that is longer is a micro-batch alone [seqlen_balancing.py]
        budget = max(budget, episodes.most_tokens(1))
    elif budget < episodes.longest:
        raise InvalidSpec(
            "micro-tokens={} x {} ranks that share them are fewer than the {} tokens of the longest sequence; use at "
            "least {}", tokens, shared, episodes.longest, ceil_div(episodes.longest, shared)
        )
    at_once = min(budget, local * length)
    return Batches(ceil_div(at_once, updates.ulysses), 1, ceil_div(local * length, at_once), steps,
                   ceil_div(at_once, length))
