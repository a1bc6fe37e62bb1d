"""Every kind of target runs on the inputs that it is given where nobody says any."""

import json
from importlib.util import find_spec

import pytest

for name in ("torchvision", "transformers", "diffusers", "timm"):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

import vramcast  # noqa: E402
from vramcast.errors import InvalidSpec  # noqa: E402

SMALL_UNET = {
    "block_out_channels": (32, 32), "layers_per_block": 1, "attention_head_dim": 8,
    "down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D"),
}
LAYERS = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers", "num_layers", "num_decoder_layers"), 1),
    "n_layer": 1, "n_layers": 1, "d_model": 96, "hidden_size": 96, "n_embd": 96,
}
TOWERS = {"text_config": LAYERS, "vision_config": LAYERS}


def config(tmp_path, **values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    return f"transformers:{tmp_path}"


def asked(target, **options):
    return vramcast.trace(target, steps=2, **options)


@pytest.mark.parametrize("network", ["UNet2DModel", "UNet2DConditionModel"])
def test_denoisers_without_a_sample_size_are_given_one_that_is_said(network):
    small = dict(SMALL_UNET)
    if network == "UNet2DConditionModel":
        small |= {"cross_attention_dim": 32, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
    answer = asked(f"diffusers:{network}", args=small)
    assert "no sample_size in its config: 64 x 64" in answer.assumptions


@pytest.mark.parametrize(
    ("family", "positions"),
    [("whisper", 448), ("bart", 1024), ("led", 1024), ("pegasus", 1024), ("t5", 1024), ("gpt2", 1024), ("mpt", 1024),
     ("clip", 77), ("siglip", 64), ("bert", 512)],
)
def test_positions_are_no_more_than_a_network_has(family, positions, tmp_path):
    given = config(tmp_path, model_type=family, **(TOWERS if family in ("clip", "siglip") else LAYERS))
    assert asked(given).question["seq_len"] == positions


@pytest.mark.parametrize("target", ["torchvision.models:inception_v3", "timm:levit_128s"])
def test_networks_with_batch_norm_train_on_two_samples(target):
    answer = asked(target)
    assert answer.question["batch"] == 2
    assert any("batch norm" in one for one in answer.assumptions)
    assert asked(target, eval=True).question["batch"] == 1


@pytest.mark.parametrize(("network", "sides"), [("r3d_18", "3x16x112x112"), ("s3d", "3x16x224x224")])
def test_networks_of_videos_are_given_videos(network, sides):
    assert asked(f"torchvision.models.video:{network}").question["inputs"] == [f"Bx{sides}"]


def test_a_config_without_a_class_is_all_of_an_encoder_and_a_decoder(tmp_path):
    inputs = asked(config(tmp_path, model_type="whisper", **LAYERS)).question["inputs"]
    assert inputs == ["input_features=Bx80x3000", "labels=BxS:int64"]


def test_two_towers_get_words_and_an_image(tmp_path):
    inputs = asked(config(tmp_path, model_type="clip", **TOWERS)).question["inputs"]
    assert inputs == ["input_ids=BxS:int64", "pixel_values=Bx3x224x224"]


@pytest.mark.parametrize(
    "values",
    [{"model_type": "llama", "hidden_size": "wide"}, {"model_type": "bit", "layer_type": "none"},
     {"model_type": "bert", "num_hidden_layers": None}, {"model_type": "vit", "image_size": None}],
)
def test_configs_that_transformers_refuses_are_refused_in_one_sentence(values, tmp_path):
    with pytest.raises(InvalidSpec) as refused:
        asked(config(tmp_path, **values))
    assert "\n" not in str(refused.value)
