"""Groups of layers and their blocks against what vLLM's rules and logs say."""

import pytest
from msgspec.structs import replace

from vramcast.api import serve_job_of
from vramcast.domain.model import Attention, LinearAttention, Mixer, MultiLatentAttention
from vramcast.domain.serving import ServeJob
from vramcast.engines.vllm.deploy import cache_spec
from vramcast.engines.vllm.groups import CacheSpec, grouped, kind_of
from vramcast.engines.vllm.settings import settings_of

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
