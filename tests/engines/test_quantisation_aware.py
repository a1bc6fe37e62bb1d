"""Training with quantised or packed weights, wide modules, and distillation."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramcast.api import job_of, train
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job, Phase
from vramcast.domain.model import Checkpoint
from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor, extent
from vramcast.engines.training import engine_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.checks import refuse_ignored
from vramcast.estimate.training import answer
from vramcast.operators.linear import LEARNED_RANGE, PER_TOKEN
from vramcast.question.build import build_job
from vramcast.units import GIB, MIB

# Linear layers that round what they read to few bits and back.

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}

ASKED: dict[str, Any] = {
    "engine": "huggingface", "precision": "bf16", "seq-len": 1024, "micro-batch": 2, "optimizer": "adamw",
    "loss": "eager", "gpus": "h100-sxm-80gb",
}


def peak(path: Path, *pairs: str, vocab: int = CONFIG["vocab_size"], **more: Any) -> float:
    config = path / "config.json"
    config.write_bytes(msgspec.json.encode(CONFIG | {"vocab_size": vocab}))
    options = ("autocast=true", "reentrant=false", *pairs)
    asked = ASKED | {"model": str(config), "engine-option": options} | more
    found = answer(job_of({name: value for name, value in asked.items() if value is not None}), with_changes=False)
    return found.peak.allocated_bytes / MIB


@pytest.mark.parametrize("recompute, recorded", [("none", 9180.8), ("full", 3536.6)])
def test_int4_weights_under_int8_inputs_keep_what_was_recorded(recompute: str, recorded: float, tmp_path: Path) -> None:
    """torchao 0.18 in transformers' Llama, by `vramcast trace`."""
    found = peak(tmp_path, "qat=int8-int4", "qat_group=32", recompute=recompute)
    assert found == pytest.approx(recorded, rel=0.002)


TORCHTUNE: dict[str, Any] = {
    "engine": "torchtune", "loss": None, "optimizer-kernel": "fused",
    "engine-option": ("qat=int8-int4-affine", "qat_group=256"),
}
ADAPTERS = {
    "peft": "lora", "lora-rank": 8, "adapter-dtype": "bf16",
    "lora-targets": "attention.q,attention.v,attention.out,mlp.gate,mlp.up,mlp.down",
}


@pytest.mark.parametrize("recorded, more", [
    (6502.0, {"recompute": "none"}), (3041.6, {"recompute": "full"}), (19727.5, {"recompute": "full", "vocab": 128256}),
])
def test_torchtune_rounds_its_head_in_every_chunk(recorded: float, more: dict[str, Any], tmp_path: Path) -> None:
    """torchtune bd2a0fc7 on one GPU with torchao 0.18, by `vramcast trace`."""
    assert peak(tmp_path, **TORCHTUNE, **more) == pytest.approx(recorded, rel=0.02)


def test_emulated_products_keep_what_was_recorded(tmp_path: Path) -> None:
    assert peak(tmp_path, "qat=mxfp4", recompute="full") == pytest.approx(2849.6, rel=0.005)


def test_rounding_keeps_fp32_copies_until_backward() -> None:
    """16.8 million weights in groups of 32 kept 310.4 MB less the 2 bytes that the product keeps; so many inputs 4."""
    kept, forward, _ = LEARNED_RANGE.sizes(1 << 24, 32)
    assert kept + 2 * (1 << 24) == 310_378_496
    assert kept + forward + 2 * (1 << 24) == 413_138_944
    assert PER_TOKEN.sizes(1 << 24, 1024)[0] == 4 << 24


def test_more_is_kept_the_more_is_rounded(tmp_path: Path) -> None:
    plain = peak(tmp_path, recompute="none")
    weights = peak(tmp_path, "qat=int4", recompute="none")
    both = peak(tmp_path, "qat=int8-int4", recompute="none")
    affine = peak(tmp_path, "qat=int8-int4-affine", recompute="none")
    assert plain < weights < both
    assert plain < affine < both


@pytest.mark.parametrize("more, error", [
    ({"precision": "amp-bf16"}, Unsupported), ({"peft": "lora"}, Unsupported), ({"compile": True}, Unsupported),
])
def test_what_is_not_modelled_is_refused(more: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="quantisation-aware"):
        peak(tmp_path, "qat=int4", **more)


def test_groups_divide_rows(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="groups of 96"):
        peak(tmp_path, "qat=int4", "qat_group=96")


# Norms, embedding and head of 32 bits beside layers of 16, all of which learn.

@pytest.mark.parametrize("recompute, recorded", [("none", 3521.5), ("full", 2791.8)])
def test_wide_ends_beside_narrow_layers_are_as_recorded(recompute: str, recorded: float, tmp_path: Path) -> None:
    """transformers' Llama whose modules were cast so, by `vramcast trace`."""
    found = peak(tmp_path, "fp32_modules=true", "converts_outputs=false", recompute=recompute)
    assert found == pytest.approx(recorded, rel=0.007)


def test_ends_and_norms_have_four_bytes_and_layers_two() -> None:
    asked = ASKED | {"model": "qwen2.5-0.5b", "engine-option": ("autocast=true", "fp32_modules=true")}
    found = answer(job_of(asked), with_changes=False)
    sizes = {entry.path.rpartition("/")[2]: entry.num_bytes for entry in found.fullest.ledger
             if entry.path.startswith("weights")}
    assert sizes["embedding.tokens"] == pytest.approx(4 * 151_936 * 896, rel=0.001)
    assert sizes["mlp.up"] == pytest.approx(24 * 2 * 4864 * 896, rel=0.001)


@pytest.mark.parametrize("more", [
    {"peft": "lora"}, {"model": "falcon-7b"}, {"precision": "amp-bf16"}, {"model": "mixtral-8x7b"},
])
def test_what_is_cast_otherwise_is_refused(more: dict[str, Any]) -> None:
    asked = ASKED | {"model": "llama-3.2-1b", "engine-option": ("autocast=true", "fp32_modules=true")} | more
    with pytest.raises(Unsupported, match="fp32"):
        answer(job_of(asked), with_changes=False)


# bitsandbytes packs linear layers; experts that transformers stacks in one parameter are none.

CARD = "1xh200-sxm-141gb"


def trained(model: str, engine: str, base: str = "nf4", **more: object) -> Answer:
    options = {"model": model, "gpus": CARD, "engine": engine, "peft": "lora", "base-weights": base, "seq-len": 512}
    options |= more | ({"precision": "bf16"} if engine == "pytorch" else {})
    return answer(job_of(options), with_changes=False)


def weights_gib(found: Answer) -> float:
    return sum(e.num_bytes for e in found.fullest.ledger if e.category == "weights") / GIB


def test_an_int8_base_leaves_them_too() -> None:
    assert weights_gib(trained("kimi-linear-48b-a3b", "huggingface", base="int8")) == pytest.approx(90.3, rel=0.01)


def test_unpacked_experts_are_alive_together_where_they_are_one_tensor() -> None:
    # one loss for both, so that both peak in the backward of a layer and not one of them at its logits
    stacked, one_by_one = (
        trained("qwen3-30b-a3b", engine, loss="fused_linear") for engine in ("unsloth", "unsloth@2025.8")
    )
    more = stacked.fullest.peak.allocated_bytes - one_by_one.fullest.peak.allocated_bytes
    assert more == pytest.approx(128 * 768 * 2048 * 2, rel=0.2)


def test_linear_experts_are_packed_one_by_one_and_all_read_all_tokens() -> None:
    # 64.5 GB on one H100: README of axolotl's examples/llama-4 for its scout-qlora-single-h100-flex.yaml
    found = answer(job_of({
        "model": "llama-4-scout", "gpus": "h100-sxm-80gb", "engine": "huggingface@5.14", "peft": "lora",
        "base-weights": "nf4-dq", "seq-len": 4096, "images": 0, "lora-rank": 32, "precision": "amp-bf16",
        "optimizer": "adamw-4bit", "attention": "flash", "compile": True, "loss": "fused_linear",
        "offload-activations": True, "recompute": "none",
        "lora-targets": "attention.q,attention.k,attention.v,attention.out,moe.shared.gate,moe.shared.up,"
                        "moe.shared.down",
        "engine-option": ("linear_experts=true", "cut_cross_entropy=true", "prepare_kbit=none"),
    }), with_changes=False)
    assert weights_gib(found) == pytest.approx(57, rel=0.05)
    assert found.peak.device_bytes / GIB == pytest.approx(64.5, rel=0.08)


# A student that learns from what a frozen teacher says beside it.

STUDENT, TEACHER, POSITIONS, MICRO = "qwen3-0.6b", "qwen3-1.7b", 1024, 2
LOGITS = POSITIONS * MICRO * 151_936


def asked(**options: object) -> Job:
    given = {"model": STUDENT, "gpus": "1xh100-sxm-80gb", "objective": "gkd", "teacher": TEACHER, "engine": "deepspeed",
             "seq-len": POSITIONS, "micro-batch": MICRO, **options}
    return build_job(given, resolve=lambda name: Checkpoint(model=load_model(name)))


def programs(job: Job) -> dict[Phase, Program]:
    refuse_ignored(job)
    return dict(import_module(engine_of(job).module).ranks(job)[0].phases)


def tensors(program: Program) -> list[Tensor]:
    found: list[Tensor] = []
    for node in program:
        found += tensors(node.body) * node.count if isinstance(node, Loop) else ()
        found += [node.tensor] if isinstance(node, Alloc) else ()
    return found


def test_the_teacher_is_loaded_once_and_never_learns() -> None:
    load = tensors(programs(asked(zero=1))[Phase.LOAD])
    weights = sum(one.num_bytes for one in load if one.owner.startswith("teacher."))
    assert weights == 2 * count_parameters(load_model(TEACHER)).total
    assert {one.category for one in load if one.owner.startswith("teacher.")} == {Category.WEIGHTS}


def test_a_teacher_loaded_in_float32_stays_so_beside_autocast_and_not_under_deepspeed() -> None:
    def held(**more: object) -> int:
        given = {"engine": "huggingface", "engine-option": ("teacher_dtype=float32",), **more}
        load = tensors(programs(asked(**given))[Phase.LOAD])
        return sum(one.num_bytes for one in load if one.owner.startswith("teacher."))

    each = count_parameters(load_model(TEACHER)).total
    assert held(precision="amp-bf16") == 4 * each
    assert held(precision="mixed-bf16", zero=1, **{"sharded-by": "deepspeed"}) == 2 * each


def test_an_anchored_loss_is_that_of_its_own_code() -> None:
    # LLaMA-Factory's asft_loss_func in a simulation: 9,963 MiB over 4 x 1,024 positions, 64,000 words and a small
    # network, 1.5 % more than this; as large as the logits in 16 bits 19 tensors are there at once
    more = {"engine-option": ("log_probs=asft",), "micro-batch": 4, "recompute": "full"}
    step = programs(asked(teacher="itself", layers=1, **more))[Phase.STEP]
    assert extent(step).peak / (LOGITS * 2 * 2) == pytest.approx(19, abs=0.5)


@pytest.mark.parametrize(("engine", "pair", "said"), [
    ("huggingface", "log_probs=asft", "--objective gkd --teacher itself"),
    ("megatron", "optimizer=dist_muon", "optimizer=dist_muon is none of adam, sgd, muon"),
])
def test_a_value_that_an_option_cannot_be_here_is_said(engine: str, pair: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        train(STUDENT, gpus="1xh100-sxm-80gb", engine=engine, engine_option=(pair,))


@pytest.mark.parametrize(("beta", "kept"), [("0.5", 7), ("0", 2), ("1", 3)])
def test_a_divergence_keeps_what_autograd_saves_of_it(beta: str, kept: int) -> None:
    # counted with torch.autograd.graph.saved_tensors_hooks around TRL's generalized_jsd_loss
    step = tensors(programs(asked(**{"zero": 1, "engine-option": (f"beta={beta}",)}))[Phase.STEP])
    names = ("log_softmax", "divergence.")
    saved = (one for one in step if one.owner == "head" and one.name.startswith(names) and ".rows" not in one.name)
    assert sum(one.num_bytes for one in saved) == kept * 2 * LOGITS


def test_rows_that_come_and_go_are_less_than_all_at_once() -> None:
    whole, rows = (extent(programs(asked(**{"zero": 1, "engine-option": given}))[Phase.STEP]).peak
                   for given in (("beta=0.5",), ("log_probs=rows",)))
    assert rows < whole
    assert whole - rows < 6 * 2 * LOGITS


def test_the_teacher_asks_before_the_loss_is_there() -> None:
    order = [f"{one.owner}/{one.name}" for one in tensors(programs(asked(zero=1))[Phase.STEP])]
    last = max(place for place, path in enumerate(order) if path.startswith("teacher."))
    assert order.index("head/head.output") < last < order.index("head/log_softmax")


def test_zero_3_divides_the_teacher_and_gathers_the_student_to_write() -> None:
    four = asked(zero=3, gpus="4xh100-sxm-80gb")
    alone = sum(one.num_bytes for one in tensors(programs(four)[Phase.LOAD]) if one.owner.startswith("teacher."))
    assert alone < 2 * count_parameters(load_model(TEACHER)).total / 3
    writes = asked(**{"zero": 3, "gpus": "4xh100-sxm-80gb", "completion-len": 128})
    assert any("to write answers" in one.name for one in tensors(programs(writes)[Phase.STEP]))


def test_torchtune_keeps_both_distributions_of_every_chunk() -> None:
    step = tensors(programs(asked(engine="torchtune@0.6", precision="bf16"))[Phase.STEP])
    assert next(one.num_bytes for one in step if one.name == "divergence.kept") == (4 + 4 + 1) * LOGITS


def test_torchtunes_reference_logits_live_until_it_is_asked_again() -> None:
    plain = {"objective": "dpo", "teacher": None, "engine": "torchtune", "precision": "bf16"}
    own = tensors(programs(asked(**plain))[Phase.STEP])
    beside = tensors(programs(asked(**plain, peft="lora", **{"adapter-dtype": "bf16"}))[Phase.STEP])
    held = [one.num_bytes for one in beside if one.name == "logits held by the loop"]
    assert held == [4 * 2 * LOGITS]  # chosen and rejected, in fp32
    assert not [one for one in own if one.name == "logits held by the loop"]


@pytest.mark.parametrize("options", [{"teacher": None}, {"objective": "sft"}])
def test_a_teacher_and_who_learns_from_it_come_together(options: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec, match="gkd"):
        asked(**options)


def test_other_words_and_other_losses_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="vocabulary"):
        programs(asked(zero=1, teacher="llama-3.1-8b"))
    with pytest.raises(Unsupported, match="leave --loss"):
        programs(asked(zero=1, loss="fused_linear"))
    with pytest.raises(Unsupported, match="engine huggingface"):
        programs(asked(engine="pytorch"))


@pytest.mark.parametrize(("log_probs", "held"), [("behind", 2 * 2), ("whole+nll", 1.5 * 2)])
def test_xtuner_holds_logits_until_the_loss_is_there(log_probs: str, held: float) -> None:
    options = ("log_probs=" + log_probs, *(("precompute_ref_log_probs=true",) if "nll" in log_probs else ()))
    asks = {"objective": "dpo", "teacher": None, "engine": "huggingface", "loss": "eager", "precision": "amp-fp16",
            "engine-option": (*options, "converts_outputs=false")}
    order = tensors(programs(asked(**asks))[Phase.STEP])
    widths = {"head.output": 2, "teacher.logits": 2, "logits.chosen": 2, "log_softmax": 4}
    found = {one.name: one.num_bytes for one in order if one.owner == "head" and one.name in widths}
    assert found["log_softmax"] == 4 * 2 * LOGITS or "nll" in log_probs  # the last of them is of the chosen alone
    assert sum(size for name, size in found.items() if name != "log_softmax") == held * 2 * LOGITS
