"""Models of vision, audio and diffusion train and infer, and every operator of theirs has been read."""

from importlib.util import find_spec

import pytest
import torch

for name in ("torchvision", "transformers", "diffusers"):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

from vramcast.catalogue.gpus import load_gpu  # noqa: E402
from vramcast.tracing.extensions.stand_ins import prepare_torchvision  # noqa: E402
from vramcast.tracing.session import Session  # noqa: E402

prepare_torchvision()

import diffusers  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402

AUDIO = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
         "conv_dim": (16,) * 7}
SPEECH = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
SMALL_DIT = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "sample_size": 16}


def randn(*size):
    return torch.randn(*size, device="cuda")


def zeros(*size):
    return torch.zeros(*size, dtype=torch.long, device="cuda")


def speech(kind, model, config, **inputs):
    return lambda: (getattr(transformers, model)(getattr(transformers, config)(**kind)), inputs)


def denoiser(name, sizes, **inputs):
    return lambda: (getattr(diffusers, name)(**sizes), inputs)


MODELS = {
    "wav2vec2": speech(AUDIO, "Wav2Vec2ForCTC", "Wav2Vec2Config", input_values=lambda: randn(2, 8000),
                       labels=lambda: zeros(2, 5) + 1),
    "whisper": speech(SPEECH, "WhisperForConditionalGeneration", "WhisperConfig",
                      input_features=lambda: randn(1, 80, 3000), labels=lambda: zeros(1, 5) + 1),
    "encodec": speech({"num_filters": 4, "hidden_size": 16, "codebook_dim": 16}, "EncodecModel", "EncodecConfig",
                      input_values=lambda: randn(1, 1, 4800)),
    "unet": denoiser(
        "UNet2DConditionModel",
        {"block_out_channels": (32, 32), "layers_per_block": 1, "cross_attention_dim": 32, "attention_head_dim": 8,
         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        sample=lambda: randn(1, 4, 16, 16), timestep=lambda: zeros(1), encoder_hidden_states=lambda: randn(1, 7, 32),
    ),
    "dit": denoiser("DiTTransformer2DModel", SMALL_DIT, hidden_states=lambda: randn(1, 4, 16, 16),
                    timestep=lambda: zeros(1), class_labels=lambda: zeros(1)),
    "sd3": denoiser(
        "SD3Transformer2DModel",
        {**SMALL_DIT, "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 64},
        hidden_states=lambda: randn(1, 16, 16, 16), timestep=lambda: zeros(1),
        encoder_hidden_states=lambda: randn(1, 7, 32), pooled_projections=lambda: randn(1, 64),
    ),
    "flux": denoiser(
        "FluxTransformer2DModel",
        {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        hidden_states=lambda: randn(1, 16, 64), timestep=lambda: randn(1),
        encoder_hidden_states=lambda: randn(1, 7, 32), pooled_projections=lambda: randn(1, 32),
        img_ids=lambda: torch.zeros(16, 3, device="cuda"), txt_ids=lambda: torch.zeros(7, 3, device="cuda"),
    ),
    "vae": denoiser(
        "AutoencoderKL",
        {"block_out_channels": (32, 32), "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2}, sample=lambda: randn(1, 3, 32, 32),
    ),
}


def traced(step):
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        step()
    assert not session.simulation.unseen
    return session.device.allocator.peak_allocated_bytes


def first_floats(out):
    parts = out.values() if hasattr(out, "values") else out
    return next(part for part in parts if isinstance(part, torch.Tensor) and part.is_floating_point())


@pytest.mark.parametrize("name", MODELS)
def test_training_needs_more_than_inference(name):
    def run(is_training):
        model, inputs = MODELS[name]()
        model = model.to("cuda").train(is_training)
        with torch.set_grad_enabled(is_training):
            out = first_floats(model(**{key: make() for key, make in inputs.items()}))
        if is_training:
            out.mean().backward()
            assert any(parameter.grad is not None for parameter in model.parameters())

    assert traced(lambda: run(True)) > traced(lambda: run(False)) > 0


DETECTION = ("ssdlite320_mobilenet_v3_large", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn")


@pytest.mark.parametrize("name", DETECTION)
def test_detection_trains_and_infers(name):
    def run(is_training):
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None).to("cuda").train(is_training)
        images = [torch.rand(3, 96, 128, device="cuda") for _ in range(2)]
        if not is_training:
            with torch.no_grad():
                found = model(images)
            assert len(found) == 2 and found[0]["boxes"].shape[1] == 4
            return
        targets = [
            {"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]], device="cuda"), "labels": zeros(1) + 1,
             "masks": torch.zeros(1, 96, 128, dtype=torch.uint8, device="cuda")} for _ in images
        ]
        sum(model(images, targets).values()).backward()

    assert traced(lambda: run(True)) > traced(lambda: run(False)) > 0


@pytest.mark.parametrize("name", ["deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"])
def test_segmentation_trains(name):
    def run():
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None).to("cuda")
        out = model(randn(2, 3, 64, 64))["out"]
        torch.nn.functional.cross_entropy(out, zeros(2, 64, 64)).backward()

    assert traced(run) > 0
