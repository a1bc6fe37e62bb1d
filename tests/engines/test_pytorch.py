"""Ways to train that stand on PyTorch's own: FSDP, DeepSpeed, device maps, frozen parts, attention kernels, cuBLAS."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from tests.formats.plans import files, training
from vramcast.api import job_of
from vramcast.catalogue.models import load_model
from vramcast.domain.cublas import LARGE_BYTES, SMALL_BYTES, lt_workspace_bytes, workspace_bytes
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import AttentionKernel, Job, Phase, Plan, Precision, Shards, Workload
from vramcast.domain.program import Category, Extent, extent, live_at_end
from vramcast.engines import deepspeed, pytorch
from vramcast.engines.transformers.versions import NEVER, SDPA_SINCE, attention_kernels
from vramcast.errors import InvalidSpec, UnknownName, Unsupported, VramcastError
from vramcast.estimate.training import answer
from vramcast.units import GIB, MIB

# The plain PyTorch engine.

CARD = Gpu(name="card", vendor="NVIDIA", arch="Ampere", compute_capability="8.0", visible_bytes=80 * GIB)


def job(model: str = "llama-3.2-1b", *, gpus: int = 1, **changes: object) -> Job:
    """A small question; `changes` go to workload or plan by name."""
    in_workload = {name: value for name, value in changes.items() if name in Workload.__struct_fields__}
    in_plan = {name: value for name, value in changes.items() if name in Plan.__struct_fields__}
    workload = {"seq_len": 1024, **in_workload}
    plan = {"precision": Precision.BF16, **in_plan}
    return Job(
        model=load_model(model), workload=Workload(**workload), plan=Plan(**plan),
        cluster=Cluster(gpu=CARD, gpus_per_node=gpus),
    )


def phase(asked: Job, name: Phase = Phase.STEP) -> Extent:
    """Extent of one phase, from zero."""
    return extent(pytorch.ranks(asked)[0].phases[name])


def test_a_reference_model_of_dpo_is_one_more_copy_of_the_weights() -> None:
    alone = extent(pytorch.ranks(job())[0].phases[Phase.LOAD]).net
    both = extent(pytorch.ranks(job(objective="dpo"))[0].phases[Phase.LOAD]).net
    assert both == 2 * alone


@pytest.mark.parametrize(
    ("more", "match"),
    [({}, "add --shards everything"),
     ({"attention": AttentionKernel.EAGER, "shards": Shards.EVERYTHING}, "--attention flash"),
     ({"model": "mamba-130m", "shards": Shards.EVERYTHING}, "recurrent")],
)
def test_positions_are_divided_between_fused_kernels_beside_fsdp(more: dict[str, str], match: str) -> None:
    with pytest.raises(Unsupported, match=match):
        pytorch.ranks(job(**{"gpus": 8, "cp": 2, **more}))


def test_everything_is_sharded_by_fsdp_and_optimizer_states_alone_are_refused_with_what_would_work() -> None:
    every, nothing = (job(gpus=8, shards=shards) for shards in (Shards.EVERYTHING, Shards.NOTHING))
    shared, alone = phase(every, Phase.LOAD).net, phase(nothing, Phase.LOAD).net
    assert shared == pytest.approx(alone / 8, rel=0.01)
    with pytest.raises(InvalidSpec, match="use --shards everything, or --engine deepspeed"):
        pytorch.ranks(job(gpus=8, shards=Shards.OPTIMIZER))


@pytest.mark.parametrize(
    ("usual", "name"), [("sgd", "lomo"), ("sgd", "adalomo"), ("galore", "galore-layerwise")]
)
def test_gradients_that_die_in_backward_are_never_all_there(usual: str, name: str) -> None:
    gradients = 2 * 1_235_814_400
    plain, fused = (pytorch.ranks(job(precision=Precision.BF16, optimizer=o))[0] for o in (usual, name))
    peaks = [extent((*run.phases[Phase.LOAD], *run.phases[Phase.STEP])).peak for run in (plain, fused)]
    assert extent(fused.phases[Phase.STEP]).net == 0
    largest = 128_256 * 2048
    assert peaks[1] < peaks[0] - gradients + 4 * 4 * largest


@pytest.mark.parametrize(("changes", "named"), [
    ({"optimizer": "lomo", "grad_accum": 4}, "--grad-accum 1"),
    ({"optimizer": "lomo", "gpus": 2}, "one GPU"),
    ({"optimizer": "lomo", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "one GPU"),
    ({"optimizer": "galore", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "flattens"),
    ({"optimizer": "galore-layerwise", "engine": "huggingface", "gpus": 2}, "the Trainer stops"),
])
def test_an_engine_that_cannot_step_so_is_refused(changes: dict[str, Any], named: str) -> None:
    engine = changes.pop("engine", "pytorch")
    asked = replace(job(**{"precision": Precision.BF16, **changes}), engine=engine)
    with pytest.raises((Unsupported, InvalidSpec), match=named):
        answer(asked, with_changes=False)


# DeepSpeed ZeRO and ColossalAI's low-level ZeRO.

PARAMETERS = 1_235_814_400


def sharded(shards: Shards, *, gpus: int = 4, **changes: object) -> Job:
    """A job that DeepSpeed runs."""
    return job(gpus=gpus, shards=shards, precision=Precision.MIXED_BF16, **changes)


def loaded(asked: Job) -> dict[Category, int]:
    """Bytes per category after DeepSpeed's initialisation."""
    sums: dict[Category, int] = {}
    for tensor, count in live_at_end(deepspeed.ranks(asked)[0].phases[Phase.LOAD]).items():
        sums[tensor.category] = sums.get(tensor.category, 0) + tensor.block_bytes * count
    return sums


def test_sub_groups_of_some_elements_are_refused_before_they_are_made() -> None:
    asked = replace(sharded(Shards.EVERYTHING), engine_options={"sub_group_size": 2})
    with pytest.raises(Unsupported, match=r"sub_group_size=2 .* use at least"):
        deepspeed.ranks(asked)


@pytest.mark.parametrize("changes", [{"offload_optimizer": "cpu"}, {"options": {"grad_accum_dtype": "fp32"}}])
def test_stage_0_has_nothing_of_zeros(changes: dict[str, object]) -> None:
    options = changes.pop("options", {})
    with pytest.raises(Unsupported, match="with ZeRO only"):
        deepspeed.ranks(replace(sharded(Shards.NOTHING, **changes), engine_options=options))


def test_an_exchange_in_single_bits_keeps_errors_and_makes_copies_of_the_momentum() -> None:
    plain, bits = (sharded(Shards.NOTHING, optimizer=name) for name in ("adam", "onebit-adam"))
    states, more = (loaded(asked)[Category.OPTIMIZER] for asked in (plain, bits))
    assert more - states == pytest.approx((4 + 4 / 4) * PARAMETERS, rel=1e-4)  # a rank's error, and its share of all
    tops = [extent(deepspeed.ranks(asked)[0].phases[Phase.STEP]).peak for asked in (plain, bits)]
    assert tops[1] >= tops[0]
    with pytest.raises(Unsupported, match="without ZeRO"):
        answer(sharded(Shards.OPTIMIZER, optimizer="onebit-adam"))


# device_map="auto" over the cards of one process: where layers lie, and what each card takes.

PLACED = {  # layers of each card as transformers' own functions place networks on the meta device, 4.57.6 and 5.24.0
    ("Qwen/Qwen2.5-14B", 2): ("22 + 26", "24 + 24"),
    ("Qwen/Qwen2.5-14B", 4): ("9 + 14 + 14 + 11", "11 + 16 + 16 + 5"),
    ("Qwen/Qwen2.5-7B", 2): ("12 + 16", "14 + 14"),
    ("Qwen/Qwen2.5-7B", 4): ("4 + 9 + 9 + 6", "6 + 11 + 11 + 0"),
    ("Qwen/Qwen2.5-3B", 2): ("16 + 20", "20 + 16"),  # its head is its embedding, on the first card
    ("Qwen/Qwen2.5-3B", 4): ("6 + 11 + 11 + 8", "10 + 15 + 11"),
}


@pytest.mark.parametrize(("model", "cards"), PLACED)
def test_layers_lie_where_transformers_puts_them(model: str, cards: int) -> None:
    for release, layers in zip(("4.57", "5.20"), PLACED[model, cards], strict=True):
        job = job_of({"model": model, "gpus": f"{cards}xa100-sxm4-80gb", "engine": f"huggingface@{release}",
                      "peft": "lora", "pp": cards})
        assert any(f": {layers} layers" in text for text in answer(job, with_changes=False).assumptions), model


@pytest.mark.parametrize(("model", "method"), [
    ("Qwen/Qwen2.5-14B", {"peft": "lora"}), ("Qwen/Qwen2.5-3B", {"peft": "lora"}), ("qwen2.5-vl-7b", {"peft": "lora"}),
    ("Qwen/Qwen2.5-3B", {}), ("bert-base", {})])  # one table learns as embedding and as head, on the first card
def test_the_cards_together_hold_what_one_would(model: str, method: dict[str, str]) -> None:
    options = {"model": model, "engine": "huggingface", "recompute": "full", "seq-len": 512, **method}
    one = answer(job_of(options | {"gpus": "1xh200-sxm-141gb"}), with_changes=False)
    three = answer(job_of(options | {"gpus": "3xh200-sxm-141gb", "pp": 3}), with_changes=False)
    loaded = [sum(rank.phases[Phase.LOAD].allocated_bytes for rank in found.ranks) for found in (one, three)]
    assert abs(loaded[1] / loaded[0] - 1) < 1e-3  # slack of blocks and inputs apart
    highest = max(rank.phases[Phase.STEP].allocated_bytes for rank in three.ranks)
    assert highest < one.ranks[0].phases[Phase.STEP].allocated_bytes < 3 * highest
    if one.time is not None and three.time is not None:
        # they work in turn, but for updates, which cards make beside each other
        assert (0.95 if "peft" in method else 0.8) < three.time.step_s / one.time.step_s < 1.05


@pytest.mark.parametrize(("options", "said"), [
    ({"gpus": "4xh100", "pp": 2}, "use --pp 4"), ({"gpus": "2x2xh100", "pp": 2}, "give one machine"),
    ({"pp": 2, "shards": "everything"}, "--shards"),
    ({"pp": 2, "schedule": "gpipe"}, "--schedule"), ({"pp": 2, "objective": "dpo"}, "objective=dpo"),
])
def test_what_device_map_does_not_do_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(VramcastError, match=said):
        answer(job_of({"model": "Qwen/Qwen2.5-7B", "gpus": "2xh100", "engine": "huggingface", **options}))


# Parts that do not learn: no gradients, no states, and no activations where nothing learns before them.

MEBIBYTE = 2**20


def frozen_answer(model, **options):
    return vramcast.train(model, gpus="a100-sxm4-80gb", engine="pytorch", precision="bf16",
                          engine_option="model_loss=true", **options)


# as transformers 5.23 and torch 2.13 run them in a simulation; the answers were within 0.5 % of these
@pytest.mark.parametrize(("model", "options", "allocated"), [
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128}, 3902.99),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "freeze": "encoder"}, 1711.71),
    ("whisper-small", {"micro_batch": 4, "decoder_seq_len": 128, "recompute": "full"}, 2400.03),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "vision"}, 1839.29),
    ("clip-vit-large-patch14", {"micro_batch": 16, "freeze": "text"}, 5977.64),
    ("vit-base-patch16-224", {"micro_batch": 16}, 1507.53),
    ("mixtral-8x7b", {"layers": 2, "seq_len": 2048, "freeze": "layers"}, 8796.43),
])
def test_a_step_is_that_of_transformers(model, options, allocated):
    assert frozen_answer(model, **options).peak.allocated_bytes / MEBIBYTE == pytest.approx(allocated, rel=0.005)


@pytest.mark.parametrize(("sharder", "shards"), [
    ("fsdp1", "everything"), ("fsdp2", "everything"), ("deepspeed", "everything"), ("deepspeed", "optimizer"),
])
@pytest.mark.parametrize("parts", ["vision", "vision,projector", "vision,decoder"])
def test_sharded_runs_freeze_parts_too(sharder, shards, parts):
    asked = {"gpus": "4xa100-sxm4-80gb", "engine": "huggingface", "seq_len": 1024, "sharded_by": sharder,
             "shards": shards}
    all_learn = vramcast.train("llava-1.5-7b", **asked).peak.allocated_bytes
    assert vramcast.train("llava-1.5-7b", **asked, freeze=parts).peak.allocated_bytes < all_learn


@pytest.mark.parametrize(("parts", "error"), [
    ("vision,llm,projector", InvalidSpec), ("backbone,head", InvalidSpec), ("tower", UnknownName),
])
def test_what_leaves_nothing_or_names_nothing_is_refused(parts, error):
    with pytest.raises(error):
        frozen_answer("llava-1.5-7b", seq_len=1024, freeze=parts)


# Which attention runs: asked for, or what the engine runs unasked; what a family's code cannot call is refused.

FLASH, EAGER = AttentionKernel.FLASH, AttentionKernel.EAGER


def asked(model: str, engine: str, card: str = "1xh100-sxm-80gb", **options: object) -> Job:
    return training(model, card, engine=engine, seq_len=2048, **options)


def test_gpt_oss_runs_flash_attention_where_it_is_asked_for() -> None:
    full, flash = (
        answer(asked("gpt-oss-20b", "huggingface", peft="lora", recompute="full", **options), with_changes=False)
        for options in ({}, {"attention": "flash"})
    )
    assert flash.fullest.peak.allocated_bytes < full.fullest.peak.allocated_bytes
    assert any("attention runs in full, as transformers runs gpt_oss unasked" in text for text in full.assumptions)
    assert not any("attention runs in full" in text for text in flash.assumptions)


@pytest.mark.parametrize(("model", "kernel", "card", "named"), [
    ("gpt-oss-20b", "efficient", "1xh100-sxm-80gb", "eager or flash"),
    ("gpt-oss-20b", "flash", "1xa100-sxm4-80gb", "compute capability 9.0"),
    ("bloom-560m", "flash", "1xh100-sxm-80gb", "use eager"),
])
def test_what_a_family_cannot_call_is_refused(model: str, kernel: str, card: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        answer(asked(model, "huggingface", card, attention=kernel), with_changes=False)


def test_written_scripts_name_the_implementation_that_was_computed() -> None:
    def script(model: str, **options: object) -> str:
        found = files(asked(model, "huggingface", **options), "transformers")
        return "".join(file.text for file in found.values())

    assert 'attn_implementation="sdpa"' in script("llama-3.2-1b")
    assert 'attn_implementation="eager"' in script("gpt-oss-20b")
    assert 'attn_implementation="kernels-community/vllm-flash-attn3"' in script("gpt-oss-20b", attention="flash")


def test_no_family_without_any_fused_kernel_is_answered_for_one() -> None:
    for family, since in SDPA_SINCE.items():
        if since == NEVER:
            assert attention_kernels(family, (5, 23))[0] is EAGER, family


# cuBLAS workspaces: one function says their size, and every engine has the two of a step that differentiates.

def test_blackwell_has_the_larger_workspace_since_torch_2_12_and_hopper_always() -> None:
    sizes = {torch: workspace_bytes("10.0", torch=torch) for torch in ((2, 8), (2, 11), (2, 12), (2, 13))}
    assert list(sizes.values()) == [SMALL_BYTES, SMALL_BYTES, LARGE_BYTES, LARGE_BYTES]
    assert workspace_bytes("9.0", torch=(2, 0)) == workspace_bytes("12.0") == LARGE_BYTES == 32 * MIB
    assert workspace_bytes("11.0", torch=(2, 13)) == workspace_bytes(None) == SMALL_BYTES == 8_519_680
    assert workspace_bytes("8.0", torch=(1, 13)) == 0


def test_hipblas_has_its_own_sizes_and_names() -> None:
    assert workspace_bytes("gfx942") == 128 * MIB
    assert workspace_bytes("gfx90a", environment={"HIPBLAS_WORKSPACE_CONFIG": ":1024:2"}) == 2 * MIB
    assert workspace_bytes("gfx942", torch=(2, 5)) == 0


def test_cublaslt_shares_the_workspace_of_cublas_by_release_and_environment() -> None:
    unified = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}
    apart = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "4096"}
    assert lt_workspace_bytes(torch=(2, 10)) == MIB
    assert lt_workspace_bytes(torch=(2, 10), environment=unified) == lt_workspace_bytes(torch=(2, 13)) == 0
    assert lt_workspace_bytes(torch=(2, 13), environment=apart) == 4 * MIB
