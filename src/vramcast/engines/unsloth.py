"""Unsloth: one GPU, fused Triton kernels, a loss that never makes all logits, checkpoints that wait on the host.

[Zoo] unsloth_zoo gradient_checkpointing.py `UnslothCheckpointFunction`: inputs above MINIMUM_SIZE are copied to pinned
buffers, the last layer's is not from the second pass on; backward reads them through GPU buffers of the largest input,
two since double buffering; unsloth_zoo loss_utils.py `HAS_CUT_CROSS_ENTROPY`; fused_losses/cross_entropy_loss.py
`get_chunk_size`; fused_losses/fused_linear.py `_ce_impl`, `_flash_min_rows_auto`; unsloth_zoo
temporary_patches/moe_utils_bnb4bit.py: stacked experts become one `Params4bit` and are unpacked all together;
temporary_patches/gpt_oss.py `GptOssExpertsBnb4bit`: those of gpt-oss are linear layers again
[Unsloth] unsloth/models/llama.py `CausalLM_fast_forward`: whole logits under one Triton kernel; cut cross entropy
(fa8e59eb, where the card has it) above 1,024 tokens (b9fe2588); chunks (806bee24) of any length (0528b4ce);
unsloth/kernels (rms_layernorm, swiglu, rope_embedding, cross_entropy_loss): in-place backward as in Liger
[GRPO] unsloth_zoo rl_replacements.py `grpo_accumulated_loss`, eb68b541 (2025.9.10) and since da0c1e86 (2026.1.2);
unsloth models/rl_replacements.py `_get_per_token_logps_and_entropies`: until then reference and policy rate all answers
of a generation in one forward, and hidden states are kept of each, of which the loss makes logits again
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Job, Loss, Phase, Precision, RankProgram, Recompute
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.domain.version import Version, version_text
from vramcast.engines.eager.checks import refuse_shards
from vramcast.engines.eager.passes import Around, Piece, inference
from vramcast.engines.eager.phases import all_phases
from vramcast.engines.eager.preference import compared_phases, rated, rated_loss, refuse_fused
from vramcast.engines.eager.question import recipe_of, stepping_of
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.engines.eager.releases import unsloths_transformers
from vramcast.engines.eager.trl import beta_of, generated_at_once, trl_version
from vramcast.engines.pytorch import one_role
from vramcast.engines.transformers.versions import left_sentences, left_whole
from vramcast.errors import Note, Unsupported, joined
from vramcast.states.steps import Weight, weight_program
from vramcast.units import GIB, MIB

NEWEST_TRL: Final[Version] = (0, 24)
"""That Unsloth installs [unsloth pyproject.toml at 015bdef0d]."""

SMALLEST: Final = 2 * MIB
"""`MINIMUM_SIZE`: smaller inputs stay [bytes]."""


class Offloaded(Around):
    """What happens around recomputed layers of the main stack.

    Args:
        stack: name of the main stack
        size: of a layer's input [bytes]
        buffers: GPU buffers that inputs come back through
    """

    def __init__(self, stack: str, size: int, buffers: int) -> None:
        self.stack = stack
        self.buffer = Tensor(
            name="buffer of offloaded inputs", num_bytes=size, category=Category.ACTIVATIONS, owner=stack,
            source="unsloth_zoo gradient_checkpointing.py",
        )
        self.buffers = buffers if size > SMALLEST else 0

    def begin(self) -> Program:
        """The buffers last; while backward runs, one of them is the input that was read."""
        return (Alloc(self.buffer),) * self.buffers

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """Each input dies behind its layer."""
        plain = super().forward(stack, pieces, differentiates=differentiates)
        return tuple(self._around(stack, pieces, plain, after=True)) if differentiates else plain

    def turn(self) -> Program:
        """Before backward."""
        return (Free(self.buffer),) * min(1, self.buffers)

    def backward(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Each input comes back before its layer."""
        plain = super().backward(stack, pieces)
        return tuple(reversed(self._around(stack, pieces, tuple(reversed(plain)), after=False)))

    def end(self, gradients: tuple[Tensor, ...]) -> Program:
        """After all backward."""
        return (Free(self.buffer),) * (self.buffers - 1)

    def _around(self, stack: str, pieces: tuple[Piece, ...], loops: Program, *, after: bool) -> list[Node]:
        """The loops of the pieces, their inputs gone in between but for the last recomputed layer's."""
        found: list[Node] = []
        recomputed = [index for index, piece in enumerate(pieces) if piece.graph.checkpoints]
        for index, (piece, loop) in enumerate(zip(pieces, loops, strict=True)):
            assert isinstance(loop, Loop)
            hidden = piece.graph.inputs[0].tensor
            kept = 1 if recomputed and index == recomputed[-1] else 0
            if stack != self.stack or not self.buffers or index not in recomputed or piece.count == kept:
                found.append(loop)
                continue
            body = (*loop.body, Free(hidden)) if after else (Alloc(hidden), *loop.body)
            found.append(Loop(piece.count - kept, body, label=loop.label))
            if kept:
                found.append(Loop(kept, loop.body, label=loop.label))
        return found


WHOLE: Final = "liger"

CUTS_SINCE: Final[Version] = (2024, 11, 7)

WHOLE_UNTIL_TOKENS: Final = 1024
"""Up to here logits are made whole, from 2024.12.4 until 2025.10.10."""

CHUNKS_SINCE: Final[Version] = (2025, 8, 5)

FUSES_SINCE: Final[Version] = (2026, 10, 9)

SMALL_CARD: Final = 24.5 * GIB
"""Above, tiles need 4,096 tokens [Zoo, `_SMALL_CARD_BYTES`]."""

LONG: Final = 4096

OLDEST_CUTTING: Final = (7, 5)
OLDEST_TILING: Final = (8, 0)
"""Compute capabilities [Zoo, `HAS_CUT_CROSS_ENTROPY`, `_flash_ce_ok`]."""


class Chunking(NamedTuple):
    """How many chunks logits are split into."""

    since: Version
    logit_bytes: int  # counted for one logit [bytes]
    budget: int | None  # of one chunk; at most half of the free memory where `halves` [bytes]
    halves: bool = True
    up: bool = True  # rounds up to a multiple of four; else to the nearest


CHUNKING: Final = (
    Chunking((2026, 9, 3), 16, 4 * GIB),
    Chunking((2026, 7, 1), 4, 4 * GIB),
    Chunking((2025, 9, 8), 4, None, up=False),
    Chunking((0,), 4, GIB, halves=False, up=False),
)
"""[Zoo] `_get_chunk_multiplier`, `get_chunk_size`; newest first."""


def with_loss(job: Job, recipe: Recipe, version: Version) -> Recipe:
    """The recipe with the loss that this release runs unasked."""
    tokens = recipe.sizes.tokens
    card = _capability(job)
    if version >= FUSES_SINCE:
        tiled = tokens >= LONG or job.cluster.gpu.visible_bytes <= SMALL_CARD
        tiled = tiled and card >= OLDEST_TILING and not recipe.learns("head.output")
        return replace(recipe, loss="linear:unsloth_tiled" if tiled else "linear:unsloth")
    short = (2024, 12, 4) <= version < (2025, 10, 10) and tokens <= WHOLE_UNTIL_TOKENS
    if version < CUTS_SINCE or short or card < OLDEST_CUTTING:
        return replace(recipe, loss=WHOLE)
    if version < CHUNKS_SINCE:
        return replace(recipe, loss="linear:cut_cross_entropy")
    chunks = _chunks(job, recipe, version)
    return replace(recipe, loss="linear:unsloth_chunks", sizes=replace(recipe.sizes, loss_chunks=chunks))


def short_batches(job: Job, recipe: Recipe, version: Version) -> tuple[str, ...]:
    """What is to be said where a batch of fewer tokens makes more logits at once than this one does."""
    rule = next(rule for rule in CHUNKING if version >= rule.since)
    chunks = recipe.sizes.loss_chunks
    if recipe.loss != "linear:unsloth_chunks" or rule.up or chunks == 1:
        return ()
    whole = int(2 * _target(job, recipe, rule) // (recipe.model.vocab * rule.logit_bytes))
    return Note(
        "shorter batches can take more: Unsloth splits the logits of {} tokens in {}, and makes those of up to {} "
        "at once; --min-seq-len 1 asks for samples of all lengths", recipe.sizes.tokens, chunks, whole
    ),


def _capability(job: Job) -> tuple[int, ...]:
    """The card's compute capability; that of no NVIDIA card is none too old."""
    digits = (job.cluster.gpu.compute_capability or "").split(".")
    return tuple(int(digit) for digit in digits) if all(digit.isdecimal() for digit in digits) else OLDEST_TILING


def _chunks(job: Job, recipe: Recipe, version: Version) -> int:
    """`get_chunk_size`; what is free of the card is counted as all but the weights."""
    rule = next(rule for rule in CHUNKING if version >= rule.since)
    exact = recipe.sizes.tokens * recipe.model.vocab * rule.logit_bytes / _target(job, recipe, rule)
    if rule.up and exact <= 1:
        return 1
    return max(4 * (ceil(exact / 4) if rule.up else round(exact / 4)), 1)


def _target(job: Job, recipe: Recipe, rule: Chunking) -> int:
    """What the logits of one chunk may take [bytes]."""
    held = sum(weight.num_bytes * weight.repeats for weight in weights(recipe))
    free = (job.cluster.gpu.free_bytes - held) // 2
    return max(1, min(rule.budget or free, free) if rule.halves else rule.budget or free)


NEWEST: Final[Version] = (2026, 10, 9)

SHARES_TABLES_SINCE: Final[Version] = (4, 48)
"""A model has one rotary table; before, every layer had its own [unsloth models/llama.py `IS_ATTENTION_REFACTOR`]."""

TABLE_POSITIONS: Final = 4 * 8192
"""Of a table at first, where the model has that many [unsloth models/llama.py `LlamaRotaryEmbedding`]."""

TABLES: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "cohere"), (TABLE_POSITIONS, 2)),
    **dict.fromkeys(("gemma", "gemma2"), (TABLE_POSITIONS, 4)),
    "phi3": (4096, 2),
}
"""Family -> most positions of a table, bytes of a number [unsloth models/llama.py; gemma.py
`GemmaFixedRotaryEmbedding`; `LongRopeRotaryEmbedding`'s first table is of the original length]."""

PACKS_EXPERTS_SINCE: Final[Version] = (2026, 6, 2)
"""[Zoo] moe_utils_bnb4bit.py is in the wheel of this release, and not in 2026.6.1's."""

SHORTEST_OFFLOADED: Final = 512
"""Below, offloading takes longer than it saves [unsloth models/_utils.py `apply_unsloth_gradient_checkpointing`]."""

DYNAMIC_SINCE: Final[Version] = (2024, 12)
"""Since then names of models lead to dynamic 4-bit checkpoints [unsloth models/mapper.py, 2024-12-04]."""

DOUBLE_BUFFERS_SINCE: Final[Version] = (2026, 5, 1)
"""[unsloth_zoo 510d987f, 2026-05-04]"""

AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)
"""Accelerate converts returned logits to fp32."""

FOUR_BITS: Final = ("nf4", "nf4-dq")

IN_FP32_SINCE: Final[dict[str, Version]] = {
    "gemma3": (2025, 3, 15), "gemma3n": (2025, 6, 12), "gpt_oss": (2025, 8, 1), "gemma3_text": (2026, 2, 1),
    "qwen3_5": (2026, 3, 1), **dict.fromkeys(("gemma4", "gemma4_text", "qwen3_moe", "glm4_moe"), (2026, 7, 1)),
}
"""Family -> since when Unsloth runs it in fp32 around fp16 products where fp16 is asked for [unsloth models/loader.py
`FORCE_FLOAT32`: 49eece4d, e1693c1c, 9eab2cbc, acfe6703, 65f212b9, efcaffb1]."""

ADAPTERS: Final = ("lora", "dora")
"""What `FastLanguageModel.get_peft_model` makes: a LoraConfig [unsloth models/llama.py 00060afe]."""


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """One GPU with everything on it.

    Raises: Unsupported for more than one GPU, and for adapters that Unsloth does not make
    """
    if job.cluster.count > 1:
        raise Unsupported("--engine unsloth trains on one GPU, not {}; use --engine huggingface", job.cluster.count)
    if job.plan.peft is not None and job.plan.peft.method not in ADAPTERS:
        raise Unsupported(
            "--engine unsloth adapts by {}, not by {}; use --engine huggingface",
            joined(" or ", ADAPTERS), job.plan.peft.method
        )
    refuse_shards(job, job.plan)
    plan = replace(job.plan, loss=job.plan.loss or Loss.FUSED_LINEAR)
    if job.plan.recompute is Recompute.SELECTIVE:
        plan = replace(plan, recompute=Recompute.FULL)
    asked, version, trainer = replace(job, plan=plan), job.engine_version or NEWEST, _trl(job)
    refuse_fused(trainer)
    rates = rated_loss(trainer)
    recipe = _packing(asked, recipe_of(asked, loss=rates, variants="liger", autocast=True))
    answers = job.workload.objective == "grpo" and job.plan.loss is None
    if answers:
        recipe = _of_answers(job, recipe, version)
    elif job.plan.loss is None and rates is None:
        recipe = with_loss(asked, recipe, version)
    whole = recipe.loss == WHOLE or rates is not None
    recipe = replace(recipe, outputs_fp32=whole and job.plan.precision in AUTOCAST)
    said = left_sentences(job.model, recipe.sizes.left_whole, unsloths_transformers(job.engine_version))
    around = _offloaded(asked, recipe)
    stepping, compared = replace(stepping_of(asked), around=around), rated(trainer, recipe)
    phases = dict(compared_phases(recipe, stepping, compared) if compared else all_phases(asked, recipe, stepping))
    phases[Phase.LOAD] += weight_program(_tables(job))
    if answers:
        before, behind = _rated_answers(job, recipe, version)
        phases |= {phase: (*before, *phases[phase], *behind) for phase in (Phase.FIRST_STEP, Phase.STEP)}
    notes = ["fused kernels with in-place backward", *said]
    if around is not None:
        notes.append(
            "inputs of recomputed layers wait on the host; --engine-option offload_checkpoints=false keeps them"
        )
    notes += [compared.said] if compared else []
    warnings = short_batches(asked, recipe, version)
    if job.plan.peft is not None and job.plan.peft.base in FOUR_BITS and version >= DYNAMIC_SINCE:
        warnings += (
            "every linear layer is counted as packed; checkpoints named -unsloth-bnb-4bit, which Unsloth takes for "
            "many names, keep some in 16 bits and take more",
        )
    if job.plan.precision is Precision.AMP_FP16 and version >= IN_FP32_SINCE.get(job.model.family, (9999,)):
        warnings += Note(
            "Unsloth runs {} in fp32 around fp16 products, because fp16 overflows; that is not modelled, and "
            "takes more", job.model.family
        ),
    return (replace(one_role(asked, phases, *notes), warnings=warnings),)


RATES_BY_ROWS_SINCE: Final[Version] = (2026, 1, 2)
"""Log-probabilities of a micro-batch instead of hidden states [GRPO]."""

LEAST_CHUNKS: Final = 4
CHUNK_POSITIONS: Final = 4096
"""Chunks of an answer's logits: so many, or one for so many positions [GRPO `autotune_batch_and_chunks`]."""


def _of_answers(job: Job, recipe: Recipe, version: Version) -> Recipe:
    """The recipe of a micro-batch whose head reads the answers alone."""
    rows = version >= RATES_BY_ROWS_SINCE
    chunks = max(LEAST_CHUNKS, recipe.sizes.seq_len // CHUNK_POSITIONS) if rows else 1
    sizes = replace(
        recipe.sizes, last_logits=job.workload.completion_len + 1, loss_chunks=chunks * job.workload.micro_batch)
    return replace(recipe, loss="linear:unsloth_rows" if rows else "linear:unsloth_grpo", sizes=sizes)


def _rated_answers(job: Job, recipe: Recipe, version: Version) -> tuple[Program, Program]:
    """What comes before the micro-batches of a generation, and what goes behind them: passes of the reference and of
    the policy, which rates its own answers where vLLM has written them (`vllm_importance_sampling_correction`)."""
    asks = ["reference"] * bool(beta_of(job)) + ["policy"] * bool(job.engine_options.get("shares_weights"))
    micro = job.workload.micro_batch
    answers = micro if version >= RATES_BY_ROWS_SINCE else micro * (generated_at_once(job) or job.workload.grad_accum)
    sizes = replace(recipe.sizes, batch=answers, adapter=None, last_logits=1)
    rating = inference(replace(recipe, recompute=False, sizes=sizes, loss=WHOLE))
    if version >= RATES_BY_ROWS_SINCE:
        return rating * bool(asks), ()
    kept = [Tensor(
        name=f"hidden states of the {who}", num_bytes=answers * recipe.sizes.seq_len * recipe.model.hidden
        * recipe.sizes.numerics.compute, category=Category.ACTIVATIONS, owner="answers",
        formula=f"{answers:,} x {recipe.sizes.seq_len:,} x {recipe.model.hidden:,} x {recipe.sizes.numerics.compute} B",
        source="unsloth models/rl_replacements.py") for who in asks]
    before = [node for tensor in kept for node in (*rating, Alloc(tensor))]
    return tuple(before), tuple(map(Free, kept))


def _tables(job: Job) -> tuple[Weight, ...]:
    """Cosines and sines of every layer, where it has its own."""
    model = job.model
    if unsloths_transformers(job.engine_version) >= SHARES_TABLES_SINCE or model.family not in TABLES:
        return ()
    most, width = TABLES[model.family]
    widest = max(getattr(layer.mixer, "head_dim", 0) for layer in model.main.layers)
    shape = (max(min(most, model.context or most), job.workload.seq_len), widest)
    return tuple(
        Weight("rotary", name, shape, len(model.main.layers), width, learns=False, source="unsloth models/llama.py")
        for name in ("cos_cached", "sin_cached")
    )


def _offloaded(job: Job, recipe: Recipe) -> Offloaded | None:
    """`use_gradient_checkpointing="unsloth"`, which is the default, and plain checkpoints of short sequences."""
    asked = job.engine_options.get("offload_checkpoints", recipe.sizes.seq_len >= SHORTEST_OFFLOADED)
    if not (recipe.recompute and asked):
        return None
    buffers = 2 if (job.engine_version or NEWEST) >= DOUBLE_BUFFERS_SINCE else 1
    return Offloaded(recipe.model.main.name, recipe.sizes.residual_bytes, buffers)


def _trl(job: Job) -> Job:
    """The job as TRL's trainer sees it, which compares answers by logits that the patched network then returns."""
    plan = replace(job.plan, loss=None if job.plan.loss is Loss.EAGER else job.plan.loss)
    release = unsloths_transformers(job.engine_version)
    there = replace(job, engine="huggingface", engine_version=release, plan=plan, engine_options={})
    newest = {"trl": version_text(min(trl_version(there), NEWEST_TRL))}
    return replace(there, engine_options=newest)


def _packing(job: Job, recipe: Recipe) -> Recipe:
    """The recipe with the experts of a 4-bit base packed where this release of Unsloth packs them [Zoo]."""
    if not recipe.sizes.left_whole:
        return recipe
    left = left_whole(job.model.family, unsloths_transformers(job.engine_version))
    stacked = "moe.experts." in left and job.model.family != "gpt_oss"
    packs = (job.engine_version or NEWEST) >= PACKS_EXPERTS_SINCE or not stacked
    if job.plan.peft is not None and job.plan.peft.base in FOUR_BITS and packs:
        left = tuple(path for path in left if path != "moe.experts.")
        return replace(recipe, sizes=replace(recipe.sizes, left_whole=left, stacked=stacked))
    return replace(recipe, sizes=replace(recipe.sizes, left_whole=left))
