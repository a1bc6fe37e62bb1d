"""Types and mixes of ggml against files and logs that were published."""

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.llamacpp.weights import weights_of
from vramcast.errors import UnknownName
from vramcast.states.ggml import Where, known_mix, mix_format, type_of

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
