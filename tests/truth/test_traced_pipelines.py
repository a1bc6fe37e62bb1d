"""Rows of inference with diffusers are traced where they say enough, and refused with the reason elsewhere."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from truth.traced_pipelines import Unfit, predict
from vramcast.tracing.extensions.stand_ins import prepare_torchvision

FLUX = {
    "model": "black-forest-labs/FLUX.1-dev", "engine": "diffusers", "quant_dtype": "bf16",
    "quantity": "peak_allocated_gb", "notes": "1024x1024",
}


@pytest.fixture(autouse=True)
def torchvision():
    prepare_torchvision()


def test_all_networks_are_on_the_card_and_decoding_is_above_them():
    weights = 11.90e9 * 2 + 4.76e9 * 2 + 0.12e9 * 2 + 0.08e9 * 2  # denoiser, T5, CLIP, autoencoder in bf16
    assert weights / 1e9 < predict(FLUX) < weights / 1e9 + 4


def test_tiles_take_less_than_whole_frames():
    row = FLUX | {"model": "BestWishYsh/ConsisID-preview"}
    whole = predict(row | {"notes": "13 frames 720x480; +sequential_cpu_offload"})
    assert predict(row | {"notes": "13 frames 720x480; +vae.tiling"}) < whole / 2


@pytest.mark.parametrize(("change", "reason"), [
    ({"engine": "stable-diffusion.cpp"}, "is not diffusers"),
    ({"model": "unspecified"}, "the model is not named"),
    ({"quant_dtype": "bnb 4-bit"}, "quantised by bitsandbytes"),
    ({"notes": "two input images"}, "name no size"),
])
def test_what_a_row_leaves_out_is_said(change, reason):
    with pytest.raises(Unfit, match=reason):
        predict(FLUX | change)
