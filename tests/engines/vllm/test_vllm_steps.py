"""vLLM: groups of its cache, packing, its start, settings and steps."""

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.api import serve_job_of
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.model import Attention, LinearAttention, Mixer, MultiLatentAttention
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.vllm.deploy import cache_spec
from vramcast.engines.vllm.groups import CacheSpec, grouped, kind_of
from vramcast.engines.vllm.process import attention_workspace
from vramcast.engines.vllm.settings import Settings, settings_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.serving import answer
from vramcast.units import GIB, MIB

# The profiled step, captures and adapter slots: what is in them, by version and plan.


def ask(model: str, engine: str = "vllm@0.19", gpus: str = "h100", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": gpus, "engine": engine, "context": 8192} | options))


def gib(answer: ServeAnswer, name: str) -> float:
    return answer.startup[name] / GIB


def slots(answer: ServeAnswer) -> int:
    return sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == "lora slots")


def test_only_the_last_stage_draws_tokens() -> None:
    deployment = ask("llama-3.1-8b", gpus="2xh100", pp=2, tp=1, memory_fraction=0.95)
    assert gib(deployment, "activation peak") == pytest.approx(1.10, abs=0.01)  # as a log of 0.19 prints
    assert {rank.role for rank in deployment.ranks} == {"first stage", "last stage"}


@pytest.mark.parametrize(("engine", "asked", "context", "tokens"), [
    ("vllm@0.5.3", None, 8192, 8192), ("vllm@0.5.3", False, 8192, 8192), ("vllm@0.5.3", True, 8192, 512),
    ("vllm@0.5.3", None, 65536, 512), ("vllm@0.5.3", False, 65536, 65536), ("vllm@0.5.2", None, 65536, 65536),
    ("vllm@0.7", None, 65536, 2048), ("vllm@0.9", False, 8192, 2048), ("vllm@0.19", False, 65536, 65536),
])
def test_prompts_are_cut_by_version_and_wish(engine: str, asked: bool | None, context: int, tokens: int) -> None:
    said = () if asked is None else (f"chunked-prefill={str(asked).lower()}",)
    job = serve_job_of({"model": "llama-3.1-8b", "gpus": "l40s", "engine": engine, "context": context,
                        "engine-option": said})
    assert settings_of(job).batched_tokens == tokens


def test_steps_shorter_than_the_context_need_prompts_that_are_cut() -> None:
    short = {"context": 8192, "batched_tokens": 4096, "gpus": "l40s"}
    with pytest.raises(InvalidSpec, match="refuses steps shorter than the context of 8,192"):
        ask("llama-3.1-8b", engine_option=("chunked-prefill=false",), **short)
    assert any("--enable-chunked-prefill" in note for note in ask("llama-3.1-8b", "vllm@0.6", **short).assumptions)


def test_matrices_of_four_bits_are_unpacked_for_their_product() -> None:
    packed = ask("llama-3.1-8b", "vllm@0.9", weights="nf4", max_sequences=1, batched_tokens=8192)
    plain = ask("llama-3.1-8b", "vllm@0.9", max_sequences=1, batched_tokens=8192)
    assert gib(packed, "activation peak") - gib(plain, "activation peak") == pytest.approx(28672 * 4096 * 2 / GIB)


def test_data_parallel_attention_widens_the_experts_batch() -> None:
    one = ask("qwen3-30b-a3b", gpus="2xh100", tp=2, expert_parallel=True, max_sequences=8)
    two = ask("qwen3-30b-a3b", gpus="2xh100", tp=1, dp=2, expert_parallel=True, max_sequences=8)
    assert gib(two, "activation peak") > 1.7 * gib(one, "activation peak")


@pytest.mark.parametrize("options", [
    {"engine": "vllm@0.19"}, {"engine": "sglang", "attention_dp": True},
    {"engine": "tensorrt-llm", "attention_dp": True},
])
def test_copies_that_share_experts_divide_each_where_nobody_has_them_whole(options: dict[str, Any]) -> None:
    """One server's data-parallel ranks hold one set of experts: 671 billion in FP8 on 8 H200, one rank a copy."""
    shared = {"gpus": "8xh200", "tp": 1, "dp": 8, "max_sequences": 64}
    divided, whole = (ask("deepseek-v3", **options | shared | more) for more in ({}, {"expert_parallel": True}))
    assert divided.fits
    experts = [sum(entry.num_bytes for entry in found.fullest.ledger if "moe.experts" in entry.path)
               for found in (divided, whole)]
    assert experts[0] == pytest.approx(experts[1], rel=0.02)
    copies = ask("qwen3-30b-a3b", "sglang", gpus="2xh100", tp=1, dp=2)  # as many servers
    assert gib(copies, "weights") > 1.8 * gib(ask("qwen3-30b-a3b", gpus="2xh100", tp=1, dp=2), "weights")


@pytest.mark.parametrize("engine", ["vllm@0.19", "sglang"])
def test_blocks_of_fp8_are_not_divided(engine: str) -> None:
    """vllm-project/vllm#17569: 1,536 over 8 ranks are 192, one and a half blocks."""
    options = {"engine": engine, "gpus": "8xh100", "tp": 8}
    with pytest.raises(InvalidSpec, match=r"192 .* use --tp 1, --tp 2, --tp 4 or --expert-parallel"):
        ask("qwen3-235b-a22b-fp8", **options)
    with pytest.raises(InvalidSpec, match="192 "):  # said again, and no other FP8
        ask("qwen3-235b-a22b-fp8", **options | {"weights": "fp8"})
    if engine != "sglang":  # whose copies are servers of their own
        with pytest.raises(InvalidSpec, match=r"use --dp 1, --dp 2, --dp 4 or --expert-parallel"):
            ask("qwen3-235b-a22b-fp8", **options | {"tp": 1, "dp": 8})
    for other in ({"expert_parallel": True}, {"tp": 4, "pp": 2}):
        assert ask("qwen3-235b-a22b-fp8", **options | other).fits
    assert ask("qwen3-235b-a22b", **options).fits


def test_images_are_profiled_unless_switched_off() -> None:
    seen = ask("qwen2.5-vl-7b", max_sequences=1)
    without = ask("qwen2.5-vl-7b", max_sequences=1, engine_option=("images=0", "videos=0"))
    pictures = ask("qwen2.5-vl-7b", max_sequences=1, engine_option=("videos=0",))
    text = ask("qwen2.5-vl-7b", max_sequences=1, engine_option=("language-model-only=true",))
    assert gib(seen, "activation peak") > 1.9 * gib(without, "activation peak")
    assert gib(text, "activation peak") == gib(without, "activation peak")
    assert gib(without, "activation peak") <= gib(pictures, "activation peak") <= gib(seen, "activation peak")
    assert gib(text, "weights") < gib(without, "weights") - 1


@pytest.mark.parametrize(("model", "engine", "options", "pixels"), [
    ("glm-4.1v-9b", "vllm@0.16", {"engine_option": ("videos=0",)}, "1 images, 14,884 patches"),  # 1,708 pixels
    ("glm-4.1v-9b", "vllm@0.16", {}, "1 images, 29,768 patches"),  # four frames of them, in pairs
    ("glm-4.1v-9b", "vllm@0.19", {}, "1 images, 24,336 patches"),  # 78 x 78
    ("glm-4.1v-9b", "vllm@0.19", {"context": 65536}, "1 images, 120,000 patches"),  # a video of 30,000 tokens
    ("glm-4v-9b", "vllm@0.19", {}, "1 images, 6,400 patches"),
    ("internvl3-8b", "vllm@0.8", {}, "1 images, 13,312 patches"),  # 13 tiles
    ("internvl3-8b", "vllm@0.19", {}, "1 images, 32,768 patches"),  # 32 frames of 256 tokens
    ("internvl3-8b", "vllm@0.19", {"context": 32768}, "1 images, 131,072 patches"),
    ("internvl3-8b", "vllm@0.10", {"context": 32768}, "1 images, 32,768 patches"),  # as long as a batch
    ("internvl3-8b", "vllm@0.19", {"engine_option": ("videos=0",)}, "1 images, 13,312 patches"),
    ("kimi-vl-a3b", "vllm@0.19", {"max_sequences": 4}, "4 images, 17,424 patches"),
    ("lfm2-vl-1.6b", "vllm@0.19", {}, "1 images, 1,024 patches"),
    ("smolvlm-2.2b", "vllm@0.19", {}, "1 images, 12,393 patches"),  # 17 tiles of 27 x 27
    ("smolvlm-256m", "vllm@0.19", {}, "1 images, 17,408 patches"),
    ("qwen-vl", "vllm@0.10", {}, "1 images, 1,024 patches"),
    ("muse-glimmer-30b", "vllm@0.33", {"engine_option": ("videos=0",)}, "1 images, 16,384 patches"),
    ("muse-glimmer-30b", "vllm@0.33", {}, "1 images, 27,648 patches"),  # 48 pairs of frames of 144 tokens
])
def test_the_largest_image_or_video_of_a_family_is_profiled(
    model: str, engine: str, options: dict[str, Any], pixels: str
) -> None:
    found = ask(model, engine, gpus="h200", **({"max_sequences": 1} | options))
    formulas = [entry.formula for entry in found.fullest.ledger if entry.path.endswith("/pixels")]
    assert [formula.split(" x ")[0] for formula in formulas] == [pixels]


def test_every_sequence_of_llama_3_2_vision_is_profiled_with_four_tiles() -> None:
    """vllm-project/vllm issues 10034 and 10569: 256 sequences, 5 states stacked are 19.63 GiB."""
    options = {"tp": 4, "context": 4096, "gpus": "4xa100-sxm4-80gb"}
    found = ask("llama-3.2-11b-vision", "vllm@0.6", **options)
    sizes = {entry.path.rsplit("/")[-1]: entry.num_bytes for entry in found.fullest.ledger}
    assert sizes["encoder.inner states"] * 5 / 11 / GIB == pytest.approx(19.63, abs=0.005)
    assert not found.fits and ask("llama-3.2-11b-vision", "vllm@0.6", **options, max_sequences=16).fits


@pytest.mark.parametrize(("engine", "options", "error"), [
    ("vllm@0.11", (), Unsupported), ("vllm@0.9", ("v1=true",), InvalidSpec),
])
def test_only_the_v0_engine_has_llama_3_2_vision(engine: str, options: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"llama-3\.2-11b-vision"):
        ask("llama-3.2-11b-vision", engine, engine_option=options)


@pytest.mark.parametrize(("engine", "options", "sizes"), [
    ("vllm@0.19", {}, 51), ("vllm@0.11.0", {}, 67), ("vllm@0.11", {}, 51), ("vllm@0.19", {"max_sequences": 64}, 19),
    ("vllm@0.19", {"graphs": False}, 0), ("vllm@0.19", {"engine_option": ("graph-sizes=4",)}, 4),
    ("vllm@0.7", {}, 35), ("vllm@0.7", {"max_sequences": 1}, 2),
])
def test_so_many_batch_sizes_are_captured(engine: str, options: dict[str, Any], sizes: int) -> None:
    ledger = ask("llama-3.1-8b", engine, **options).fullest.ledger
    graphs = [entry.formula for entry in ledger if entry.category == "cuda graphs"]
    assert [int(formula.split()[0]) for formula in graphs] == ([sizes] if sizes else [])


def test_what_copies_of_attention_divide_together_is_theirs_alone_in_sglang() -> None:
    """`DeepseekV2MLP` and `lm_head` lie on all eight ranks, `embed_tokens` and attention on each [deepseek_v2.py]."""
    options: dict[str, Any] = {"dp": 8, "gpus": "8xh200", "context": 8192, "attention_dp": True}
    found = {engine: {entry.path: entry.num_bytes for entry in ask("deepseek-v3", engine, **options).fullest.ledger}
             for engine in ("sglang", "tensorrt-llm")}
    for name, ranks in (("decoder.layers/mlp.down", 8), ("head/head.output", 8), ("decoder.layers/moe.shared.down", 8),
                        ("embedding/embedding.tokens", 1), ("decoder.layers/attention.out", 1)):
        whole, mine = (found[engine][f"weights/{name}"] for engine in ("tensorrt-llm", "sglang"))
        assert mine == pytest.approx(whole / ranks, rel=0.03), name  # rounded to blocks


@pytest.mark.parametrize(("engine", "options", "kept"), [
    ("vllm@0.19", {"tp": 8}, set()), ("sglang", {"tp": 8}, set()), ("vllm@0.19", {"tp": 4, "pp": 2}, {"embedding"}),
])
def test_the_target_s_tables_are_the_draft_s(engine: str, options: dict[str, Any], kept: set[str]) -> None:
    """"Sharing target model embedding weights\", "lm_head weights" [llm_base_proposer.py, deepseek_nextn.py]."""
    found = ask("deepseek-v3", engine, gpus="8xh200", context=8192, draft="mtp", **options)
    ledger = [entry.path for rank in found.ranks for entry in rank.ledger if entry.category == "draft model"]
    tables = {name for name in ("embedding", "head") for path in ledger if path.endswith(f"mtp.{name}")}
    assert ledger and tables == kept


def test_the_first_engine_did_not_count_slots_as_weights_before_0_8() -> None:
    plain, more = (ask("llama-3.1-8b", "vllm@0.7", lora_slots=count) for count in (0, 4))
    assert plain.startup["weights"] == more.startup["weights"]
    assert more.fullest.peak.allocated_bytes > plain.fullest.peak.allocated_bytes


def test_the_peak_logged_holds_graphs_since_0_27() -> None:
    before, after = (ask("qwen3-30b-a3b", engine) for engine in ("vllm@0.26", "vllm@0.27"))
    expected = gib(after, "CUDA graphs, estimated")
    assert gib(after, "activation peak") == pytest.approx(gib(before, "activation peak") + expected)


def test_recurrent_networks_are_refused_on_the_first_engine() -> None:
    with pytest.raises(Unsupported, match="V0 engine"):
        ask("jamba-v0.1", "vllm@0.7")


@pytest.mark.parametrize(
    ("options", "words"), [({"tp": 3, "gpus": "3xh100"}, "num_heads=32"), ({"pp": 40, "gpus": "40xh100"}, "layers"),
                           ({"dp": 2, "gpus": "2xh100", "engine": "sglang", "attention_dp": True}, "no experts")]
)
def test_degrees_that_do_not_divide_name_those_that_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidSpec, Unsupported), match=words):
        ask("llama-3.1-8b", **options)


# Groups of layers and their blocks against what vLLM's rules and logs say.

SPEC = CacheSpec(tp=1, kv_dtype="bf16", block_tokens=16, version=(0, 19), context=32768)
FULL = Attention(num_heads=32, num_kv_heads=16, head_dim=128)
WINDOW = Attention(num_heads=32, num_kv_heads=16, head_dim=128, window=1024)
STATE = LinearAttention(num_k_heads=16, num_v_heads=48, k_head_dim=128, v_head_dim=128)


def layout(*stages: list[Mixer], **changes: object):
    found = grouped(stages, replace(SPEC, **changes))
    assert found is not None
    return found


@pytest.mark.parametrize(("model", "version", "options", "width"), [
    ("qwen3-next-80b-a3b", "0.19", {}, 2), ("qwen3.5-9b", "0.19", {}, 4), ("qwen3.5-9b", "0.16", {}, 2),
    ("mamba-2.8b", "0.19", {}, 2), ("nemotron-3-nano-30b-a3b", "0.19", {}, 4),
    ("mamba-2.8b", "0.19", {"mamba-ssm-cache-dtype": "float32"}, 4),
])
def test_states_are_wider_where_the_configuration_says_so(
    model: str, version: str, options: dict[str, str], width: int
) -> None:
    given = tuple(f"{name}={value}" for name, value in options.items())
    asked = {"model": model, "gpus": "8xh100", "engine": f"vllm@{version}", "engine-option": given, "context": 4096}
    job = serve_job_of(asked)
    assert isinstance(job, ServeJob)
    assert cache_spec(job, settings_of(job)).state_width == width


@pytest.mark.parametrize(("states", "kept"), [("none", 1), ("align", 2)])
def test_prefix_caching_keeps_a_second_state(states: str, kept: int) -> None:
    found = layout([FULL, STATE], states=states)
    assert [group.blocks(32768, 8192) for group in found.groups if group.kind == "state"] == [kept]


def test_a_state_for_every_block_grows_with_the_sequence() -> None:
    found = layout([FULL, STATE], states="all")
    assert found.groups[1].blocks(32768, 8192) == found.groups[0].blocks(32768, 8192)
    assert found.groups[0].block_tokens % 256 == 0


def test_windows_are_kept_at_full_length_without_the_hybrid_manager() -> None:
    mixed: list[Mixer] = [FULL, WINDOW]
    for changes in ({"version": (0, 9)}, {"hybrid_manager": False}, {"windows": False}):
        found = layout(mixed, **changes)
        assert [group.kind for group in found.groups] == ["full attention"]
        assert found.block_bytes == (2 * 16 * 2 * 16 * 128 * 2,)


@pytest.mark.parametrize(
    ("version", "dtype", "auto", "row"),
    [((0, 19), "bf16", True, 1152), ((0, 11), "bf16", True, 656), ((0, 19), "fp8", False, 656)],
)
def test_sparse_latent_attention_has_an_fp8_row_of_its_own(
    version: tuple[int, ...], dtype: str, auto: bool, row: int
) -> None:
    sparse = MultiLatentAttention(
        num_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_head_dim=128,
        indexer_heads=64, indexer_dim=128,
    )
    kind = kind_of(sparse, replace(SPEC, version=version, kv_dtype=dtype, auto_dtype=auto))
    assert kind is not None
    assert kind.token_bytes == row + 132  # the index key in fp8 with its scale


def test_layers_that_read_anothers_keys_keep_nothing() -> None:
    shared = Attention(num_heads=32, num_kv_heads=16, head_dim=128, shared_kv=True)
    assert layout([FULL, shared]).block_bytes == layout([FULL]).block_bytes
    assert grouped([[shared]], SPEC) is None


# How mxfp4 experts lie in memory: kernels by version and card, sizes of the layouts they want.

def job(model: str, version: tuple[int, ...], *, gpu: str = "h100-sxm-80gb", **plan: object) -> ServeJob:
    """A deployment on cards of a kind."""
    return ServeJob(
        model=load_model(model), requests=Requests(context=8192), plan=ServePlan(**plan), engine="vllm",
        version=version, cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8),
    )


def test_gpt_oss_120b_serves_on_one_h100_at_95_percent_under_0_11() -> None:
    found = answer(job("gpt-oss-120b", (0, 11), memory_fraction=0.95))
    assert found.fits


# vLLM's start-up arithmetic against figures its logs print, and against its rules.

def startup_ask(model: str, **options: Any) -> ServeAnswer:
    given = {"gpus": "h100", "engine": "vllm@0.19", "context": 8192, "memory_fraction": 0.95} | options
    return vramcast.serve(model, **given)


def test_a_draft_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="multi-token-prediction"):
        startup_ask("llama-3.1-8b", draft="mtp")


def test_embedding_models_keep_no_cache() -> None:
    assert startup_ask("bge-large-en-v1.5", context=512).capacity is None


# Defaults of vLLM by version, card and network, as its releases have them.

def settings(
    version: tuple[int, ...], gpu: str = "h100-sxm-80gb", *, model: str = "llama-3.1-8b", context: int = 8192,
    options: dict[str, Any] | None = None, **plan: Any,
) -> Settings:
    job = ServeJob(
        model=load_model(model), requests=Requests(context=context), plan=ServePlan(**plan),
        cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8), engine="vllm", version=version,
        engine_options=options or {},
    )
    return settings_of(job)


def test_prefix_caching_came_to_recurrent_networks_late() -> None:
    assert settings((0, 19)).prefix_caching
    assert not settings((0, 25), model="qwen3.5-27b").prefix_caching
    assert settings((0, 26), model="qwen3.5-27b").prefix_caching
    assert settings((0, 19), model="qwen3.5-27b", prefix_caching=True).prefix_caching


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "mib"), [
    ((0, 19), "h100-sxm-80gb", "llama-3.1-8b", None, 0),
    ((0, 19), "h100-sxm-80gb", "llama-3.1-8b", "FLASHINFER", 394),
    ((0, 11), "h100-sxm-80gb", "llama-3.1-8b", "FLASHINFER", 256),
    ((0, 19), "b200", "llama-3.1-8b", None, 394),  # data-centre Blackwell alone chooses FlashInfer
    ((0, 19), "b200", "llama-3.1-8b", "FLASH_ATTN", 0),
    ((0, 19), "b200", "deepseek-v3", None, 128),
    ((0, 14), "b200", "deepseek-v3", None, 0),  # CUTLASS's then
    ((0, 19), "b200", "deepseek-v3.2", None, 0),  # sparse
    ((0, 8), "b200", "llama-3.1-8b", None, 0),
    ((0, 27), "t4", "llama-3.1-8b", None, 0),
    ((0, 27), "b200", "deepseek-v4-flash", None, 0),
    ((0, 19), "b200", "bert-base-uncased", None, 0),  # reads both ways
    ((0, 19), "b200", "qwen3.5-9b", None, 394),
    ((0, 19), "rtx-5090", "llama-3.1-8b", None, 0),
    ((0, 19), "t4", "llama-3.1-8b", None, 394),  # FlashAttention wants Ampere
    ((0, 11, 0), "t4", "llama-3.1-8b", None, 0),
    ((0, 19), "b200", "phi-3-mini-4k", None, 0),  # heads of 96
    ((0, 19), "b200", "falcon-mamba-7b", None, 0),
])
def test_flashinfer_brings_a_workspace(version: tuple[int, ...], gpu: str, model: str, asked: str, mib: int) -> None:
    options = {} if asked is None else {"attention-backend": asked}
    tensor = attention_workspace(settings(version, gpu, model=model, options=options))
    assert (0 if tensor is None else tensor.num_bytes) == mib * MIB


@pytest.mark.parametrize(("gpu", "kernels"), [("l40s", "FLASHINFER"), ("h100-sxm-80gb", "FLASH_ATTN")])
def test_a_cache_in_fp8_is_read_by_flash_attention_on_hopper_alone(gpu: str, kernels: str) -> None:
    assert settings((0, 19), gpu, kv_dtype="fp8").attention == kernels


@pytest.mark.parametrize(("version", "gpu", "asked", "said"), [
    ((0, 19), "h100-sxm-80gb", "FLASHMLA", "latent"), ((0, 19), "t4", "FLASH_ATTN", "does not run it"),
    ((0, 19), "t4", "XFORMERS", "V1"),
])
def test_kernels_of_other_networks_cards_and_engines_are_refused(
    version: tuple[int, ...], gpu: str, asked: str, said: str
) -> None:
    with pytest.raises(InvalidSpec, match=said):
        settings(version, gpu, options={"attention-backend": asked})
    assert not settings((0, 9), "t4", options={"attention-backend": "XFORMERS"}).v1
    with pytest.raises(InvalidSpec, match="no layers of attention"):
        settings(version, gpu, model="falcon-mamba-7b", options={"attention-backend": "TRITON_ATTN"})
