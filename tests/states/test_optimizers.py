"""Bytes of optimizers' states and of ggml's formats."""

import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.program import extent, live_at_end
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.llamacpp.weights import weights_of
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.states.ggml import Where, known_mix, mix_format, type_of
from vramcast.states.optimizers import OPTIMIZERS, optimizer
from vramcast.states.steps import Weight, state_program, step_program

# States and step temporaries against published numbers and properties.

MATRIX = Weight("decoder.layers", "mlp.up", (14336, 4096), repeats=32)
NORM = Weight("decoder.layers", "norm", (4096,), repeats=64)


N = 4096 * 4096


@pytest.mark.parametrize(("name", "shape", "width", "size"), [
    ("adamw", (4096, 4096), 4, 8 * N), ("adamw-8bit", (4096, 4096), 4, 2 * N + 2 * 4 * N // 256),
    ("adamw-8bit", (4095,), 4, 2 * 4 * 4095), ("paged-adamw-8bit", (4096, 4096), 4, 0),
    ("adafactor", (1000, 500), 4, 4 * 1500), ("galore:128", (1024, 4096), 2, 2 * (2 * 128 * 4096 + 128 * 1024)),
    ("galore:100000", (64, 32), 4, 4 * (2 * 32 * 64 + 32 * 32)), ("lomo", (4096, 4096), 4, 0),
    ("adam-mini", (64, 32), 4, 4 * (64 * 32 + 64)), ("adam-mini", (64,), 4, 4 * 65),
    ("flash-adamw", (64, 32), 2, 3 * 64 * 32 + 2 * 2 * 64), ("flash-adamw", (64, 32), 4, 2 * 64 * 32 + 2 * 2 * 64),
    ("adamw-te-remainders", (64, 32), 4, 12 * 64 * 32),
    ("muon", (4096,), 4, 8 * 4096), ("muon", (64, 64), 4, 4 * 64 * 64),
])
def test_states_take_what_their_papers_and_packages_say(
    name: str, shape: tuple[int, ...], width: int, size: int
) -> None:
    assert optimizer(name).state_bytes(shape, width=width) == size


EMBEDDING = Weight("embedding", "embedding.tokens", (32_000, 4096), kind="embedding")


def test_a_trainers_8_bit_states_of_embeddings_have_32_bits() -> None:
    rule = replace(optimizer("adamw-8bit"), wide_embeddings=True)
    assert rule.state_bytes((4096, 4096)) == optimizer("adamw-8bit").state_bytes((4096, 4096))
    held = sum(state.num_bytes for state in rule.state_tensors(EMBEDDING.shape, width=2, kind="embedding"))
    assert held == 8 * EMBEDDING.elements


def test_narrow_weights_are_stepped_in_fp32_where_the_code_says_so() -> None:
    assert sum(optimizer("adafactor").temporaries((64, 64), width=4)) == 2 * 4 * 64 * 64
    assert sum(optimizer("adafactor").temporaries((64, 64), width=2)) == 4 * 4 * 64 * 64


def test_foreach_adamw_makes_a_copy_of_everything_and_fused_nothing() -> None:
    weights = [MATRIX, NORM]
    total = sum(weight.num_bytes * weight.repeats for weight in weights)
    assert extent(step_program(weights, optimizer("adamw"))).peak == total
    # the root and its quotient, and the denominator of the equal weight before
    assert extent(step_program(weights, optimizer("adamw"), kernel="loop")).peak == 3 * MATRIX.num_bytes
    assert step_program(weights, optimizer("adamw"), kernel="fused") == ()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_free_what_they_make_and_states_stay(name: str) -> None:
    rule = optimizer(name)
    for kernel in ("foreach", "fused", "loop"):
        assert not live_at_end(step_program([MATRIX, NORM], rule, kernel=kernel))
    states = live_at_end(state_program([MATRIX, NORM], rule))
    expected = sum(rule.state_bytes(weight.shape) * weight.repeats for weight in (MATRIX, NORM))
    assert sum(tensor.num_bytes * count for tensor, count in states.items()) == expected


def test_unknown_optimizers_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="adamw"):
        optimizer("adamww")


@pytest.mark.parametrize("name", ["galore:0", "galore:-1", "galore:x", "galore:9999999999"])
def test_bad_ranks_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="galore:128"):
        optimizer(name)


# Types and mixes of ggml against files and logs that were published.

TOKENIZER = 7_836_616
"""What files of Llama-3.1-8B hold beside their tensors [bytes]."""

PUBLISHED = {
    "q2_k": 3_179_131_904, "q3_k_s": 3_664_499_712, "q3_k_m": 4_018_918_400, "q3_k_l": 4_321_956_864,
    "q4_0": 4_675_892_224, "q4_k_s": 4_692_669_440, "q4_k_m": 4_920_734_272, "q5_k_s": 5_599_294_464,
    "q5_k_m": 5_732_987_904, "q6_k": 6_596_006_912, "q8_0": 8_540_771_328, "iq2_m": 2_948_281_344,
    "iq3_xxs": 3_274_913_792, "iq3_m": 3_784_823_808, "iq4_xs": 4_447_663_104,
}
"""Sizes of the files of bartowski/Meta-Llama-3.1-8B-Instruct-GGUF [bytes]."""


def job(model: str, mix: str | None) -> ServeJob:
    return ServeJob(
        model=load_model(model), requests=Requests(), plan=ServePlan(weights=mix),
        cluster=Cluster(gpu=load_gpu("rtx-4090"), gpus_per_node=1), engine="llama.cpp", version=(7000,),
    )


@pytest.mark.parametrize(("mix", "size"), PUBLISHED.items())
def test_mixes_give_published_file_sizes_but_for_the_text_in_their_headers(mix: str, size: int) -> None:
    weights = weights_of(job("llama-3.1-8b", mix), split_latent=False, joined_latent=True)
    assert abs(sum(weight.num_bytes for weight in weights) + TOKENIZER - size) < 2048


@pytest.mark.parametrize(("text", "mix"), [
    ("Qwen3-8B-Q4_K_M.gguf", "q4_k_m"), ("Q3_K - Small", "q3_k_s"), ("UD-Q6_K_XL", "q6_k"),
    ("IQ4_XS - 4.25 bpw", "iq4_xs"), ("IQ4_KS_R4 - 4.25 bpw", "iq4_ks_r4"), ("F16", "f16"), ("BF16", "bf16"),
    ("a file", None), ("mxfp4_moe", "mxfp4_moe"),
])
def test_mixes_are_read_from_names(text: str, mix: str | None) -> None:
    assert known_mix(text) == mix


def test_unknown_mixes_are_named() -> None:
    with pytest.raises(UnknownName, match="q4_k_m"):
        mix_format("q4_k_x", "blk.0.attn_q.weight", (8, 4096), Where(layer=0, layers=1, grouped=False, experts=0))
    with pytest.raises(UnknownName):
        type_of("q99")
