"""Reinforcement-learning post-training: what is asked of it, and a card that several processes share."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Final, Literal

from msgspec import Struct

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan, require_counts
from vramcast.domain.model import Model, Noun
from vramcast.domain.program import Program, Tensor
from vramcast.domain.serving import Draft
from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec

Algorithm = Literal["ppo", "grpo", "dapo", "gspo", "dr-grpo", "rloo", "reinforce++", "remax", "gpg"]

VARIATION: Final = 0.5
"""Standard deviation of a length over its mean: of prompts and answers of arithmetic and mathematics; assumed."""

RAREST: Final = 3.0
"""Standard deviations by which the longest of a run's thousand micro-batches exceeds the mean one."""

RATES: Final = ("critic", "reference", "reward")
"""Networks beside the one that learns."""

CARDS: Final = ("card", "trainer's card", "engine's card", *(f"{role}'s card" for role in RATES))
"""Roles of cards as a whole, among those of their processes: of all, or of the one that has cards of its own."""

WITH_CRITIC: Final = ("ppo",)
"""Algorithms whose advantages a second network, which learns, estimates (generalised advantage estimation)."""


class Episodes(Noun, frozen=True):
    """What one step generates. A prompt is answered `samples` times."""

    prompts: int = 1024  # of one step [count]
    samples: int = 1  # answers to a prompt [count]
    prompt_len: int = 512  # longest [tokens]
    response_len: int = 512
    mean_prompt_len: int | None = None  # None: every prompt is as long as the longest [tokens]
    mean_response_len: int | None = None
    response_deviation: float | None = None  # standard deviation of an answer's length; None: VARIATION of it [tokens]
    image_size: int | None = None  # of networks that see; None where they read any: prompts of text [pixels per side]
    images: int | None = None  # in a prompt, whose positions are part of it; None: one, of networks that see [count]

    def __post_init__(self) -> None:
        require_counts(self, "prompts", "samples", "prompt_len", "response_len", "mean_prompt_len", "mean_response_len",
                       "image_size", zero=("images",))
        for mean, most, name in ((self.mean_prompt_len, self.prompt_len, "prompt"),
                                 (self.mean_response_len, self.response_len, "response")):
            if mean is not None and mean > most:
                raise InvalidSpec("mean-{}-len={} is longer than {}-len={}, the longest one", name, mean, name, most)

    @property
    def longest(self) -> int:
        """Prompt and answer [tokens]."""
        return self.prompt_len + self.response_len

    @property
    def usual(self) -> int:
        """Tokens of a sequence that is as long as the mean; of the longest where no mean is known."""
        means = (self.mean_prompt_len or self.prompt_len, self.mean_response_len or self.response_len)
        return sum(means)

    def most_tokens(self, sequences: int, deviations: float = RAREST, *, balanced: int = 0) -> int:
        """Of the longest of a run's micro-batches of so many sequences, or of one that exceeds the mean one by less.

        The mean of n lengths deviates by the square root of n less than one of them; all answers to a prompt share it.
        Where ranks are balanced each has as many tokens as the others of that step, and answers to a prompt, which are
        alike, lie on as many ranks as there are: n of a rank's N deviate by the root of 1 - n/N less, and the step by
        what all of its lengths do. None is longer than the longest.

        Args:
            balanced: ranks among which a step's sequences are divided by their lengths; 0: they are not [count]
        """
        whole = self.prompts * self.samples
        alike = self.samples if not balanced else max(1.0, self.samples / balanced)  # answers to a prompt on one rank

        def spread(count: float, of_step: float) -> float:
            if not balanced:
                return 1 / sqrt(count)
            return sqrt(max(0.0, 1 - sequences * balanced / whole) / count + 1 / of_step)

        parts = ((self.mean_prompt_len, self.prompt_len, None, spread(max(1.0, sequences / alike), self.prompts)),
                 (self.mean_response_len, self.response_len, self.response_deviation, spread(sequences, whole)))
        return round(sequences * sum(
            most if mean is None else min(most, mean * (
                1 + deviations * (VARIATION if deviation is None else deviation / mean) * spreads))
            for mean, most, deviation, spreads in parts
        ))


class Updates(Noun, frozen=True):
    """How the sequences of a step go through the networks that are trained and asked.

    Micro-batches are so many sequences on one data-parallel rank, or so many tokens on one card.
    """

    mini_batch: int = 256  # prompts of an optimizer step [count]
    epochs: int = 1  # passes over the sequences of a step [count]
    micro_batch: int | None = None  # sequences [count]
    micro_tokens: int | None = None  # tokens of a dynamic micro-batch [tokens]
    log_prob_micro_batch: int | None = None  # the same of passes without gradients; None: as the update
    log_prob_tokens: int | None = None
    critic_micro_batch: int | None = None  # None: as the actor
    critic_micro_tokens: int | None = None
    reward_micro_batch: int | None = None  # None: as other passes without gradients
    reward_micro_tokens: int | None = None
    ulysses: int = 1  # ranks that divide a sequence
    entropy: bool = False  # its gradient is part of the loss
    entropy_kernel: Literal["compiled", "eager", "chunked"] | None = None  # None: compiled, eager of padded batches
    fused_loss: bool = False  # logits are never whole
    padded: bool = False  # batches are padded to the longest sequence
    reuses_log_prob: bool = False  # those of the engine that generates, instead of a pass of the network
    reference: bool = False  # a KL term asks the network as it was
    offload_reference: bool | None = None  # None: as the framework does unasked
    sleeps: bool = False  # states of the optimizer leave the card between updates, where they step on it
    leaves: bool = False  # weights of transformers' Trainer leave it while the engine generates

    def __post_init__(self) -> None:
        require_counts(self, "mini_batch", "epochs", "micro_batch", "micro_tokens", "log_prob_micro_batch",
                       "log_prob_tokens", "critic_micro_batch", "critic_micro_tokens",
                       "reward_micro_batch", "reward_micro_tokens", "ulysses")


class Rollout(Noun, frozen=True):
    """The engine that generates, on the cards of the trainer. None leaves a choice to the framework."""

    tp: int | None = None
    dp: int = 1  # copies that start together
    attention_dp: bool = False  # they attend apart and share experts
    expert_parallel: bool = False  # whole experts over tp x dp
    kv_dtype: str | None = None  # of its cache; None: the weights'
    cache_bytes: int | None = None  # of its cache, instead of what its share leaves [bytes]
    block_tokens: int | None = None  # of a block of its cache
    draft: Draft | None = None  # what proposes tokens to it
    gpus: int | None = None  # cards of its own; None: those of the trainer [count]
    memory_fraction: float | None = None
    max_sequences: int | None = None
    batched_tokens: int | None = None
    context: int | None = None  # longest sequence [tokens]
    graphs: bool | None = None
    sleeps: bool = True  # its memory is given up while the trainer works
    ahead: bool = False  # it generates the next step's answers while the trainer learns from this one's
    lag: int = 1  # steps whose answers it works on at once, where it generates ahead [count]
    level: int | None = None  # of its sleep: 1 where weights wait on the host, 2 where they are dropped
    parts: int | None = None  # in which layers are handed over, one after the other; None: as the framework does
    bucket_mib: int | None = None  # of the handover to an engine that is a process of its own [MiB]
    layered_summon: bool = False  # adapters are gathered one layer after the other
    weights: str | None = None  # how it stores them; None: in 16 bits, as they are handed over
    engine_options: dict[str, str | int | float | bool] = {}  # of its own
    reward_tp: int | None = None  # of a second engine, which serves the network that rates answers
    reward_fraction: float | None = None  # of the card for it

    def __post_init__(self) -> None:
        require_counts(self, "tp", "dp", "lag", "cache_bytes", "block_tokens", "gpus", "max_sequences",
                       "batched_tokens", "context", "bucket_mib", "parts", "reward_tp")
        if self.level not in (None, 1, 2):
            raise InvalidSpec("sleep-level={} is neither 1 nor 2; --no-sleep keeps the engine awake", self.level)
        for name, share in (("memory", self.memory_fraction), ("reward", self.reward_fraction)):
            if share is not None and not 0.0 < share <= 1.0:
                raise InvalidSpec("{}-fraction={} must lie above 0 and up to 1, for example 0.5", name, share)


class PostTrainingJob(Noun, frozen=True, kw_only=True):
    """One question about post-training, complete."""

    model: Model
    cluster: Cluster
    framework: str
    version: Version
    engine: Literal["pytorch", "megatron", "huggingface", "deepspeed"] = "pytorch"  # of the trainer
    algorithm: Algorithm
    episodes: Episodes
    updates: Updates
    plan: Plan  # of the network that learns
    rollout: Rollout
    rollout_engine: str
    rollout_version: Version
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF of the trainer
    run_steps: int | None = None  # of the whole run
    critic: Model | None = None  # whose values are estimated; None: as the one that learns
    reward: Model | None = None  # that rates answers; None: a function does
    own_gpus: dict[str, int] = {}  # "critic", "reference", "reward", with "+" between: cards of their own [count]
    trainer_options: dict[str, str | int | float | bool] = {}  # of DeepSpeed or Megatron
    trainer: Job | None = None  # of TRL: the same run as its trainer's alone, whose answers come from elsewhere
    assumed: tuple[str, ...] = ()  # of what the question leaves open, one sentence each

    @property
    def trainer_gpus(self) -> int:
        """Cards that the trainer runs on [count]."""
        return self.cluster.count - (self.rollout.gpus or 0) - sum(self.own_gpus.values())

    @property
    def engine_gpus(self) -> int:
        """Cards that the engine runs on [count]."""
        return self.rollout.gpus or self.cluster.count


class Process(Struct, frozen=True, kw_only=True):
    """One process on a card: a context, a caching allocator, and pools that can be given up and taken back."""

    name: str
    outside: tuple[Tensor, ...] = ()  # beside its allocator, as long as it lives
    pools: tuple[Tensor, ...] = ()  # by name; torch counts them while they are given up, too


class Stage(Struct, frozen=True, kw_only=True):
    """A part of a step, for the whole card: what its processes do, one after the other, and which pools are there."""

    name: str
    programs: Mapping[str, Program] = {}  # of the processes that do anything
    awake: tuple[str, ...] = ()  # names of pools that hold memory of the card
    releases: tuple[str, ...] = ()  # processes that give cached memory back at its end
    expands: tuple[str, ...] = ()  # processes that have switched expandable segments on for it


class Card(Struct, frozen=True, kw_only=True):
    """What one card sees of a run, in order. What fits is judged on the sum over its processes at every moment."""

    processes: tuple[Process, ...]
    stages: tuple[Stage, ...]
    rising: tuple[Stage, ...] = ()  # updates once more whose micro-batches grow: what stays cached between them
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shortfall: str = ""  # why a process refuses to start, where the card's size alone does not say it
