"""Models that a file names by a path of the machine that runs it: the folder has the model's name."""

from __future__ import annotations

import pytest

from vramcast.blocks.parameters.model import count_parameters
from vramcast.errors import SourceError, UnknownName, Unsupported
from vramcast.sources.by_name import by_name
from vramcast.sources.resolve import resolve_model


@pytest.mark.parametrize(("path", "parameters", "quantisation"), [
    ("../models/Qwen1.5-72B-Chat", 72_287_920_128, None),
    ("/root/autodl-tmp/deepseek-ai/DeepSeek-R1-Distill-Qwen-14B/", 14_770_033_664, None),
    ("/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2", 8_030_261_248, None),
    ("/vol/Meta-Llama-3.1-8B-Instruct-bnb-4bit", 8_030_261_248, "nf4"),
    ("D:\\models\\Qwen1.5-72B-Chat", 72_287_920_128, None),
    ("Qwen1.5-72B-Chat", 72_287_920_128, None),
])
def test_a_folder_that_is_not_here_is_the_network_it_is_named_after(
    path: str, parameters: int, quantisation: str | None
) -> None:
    model = resolve_model(path)
    assert (count_parameters(model).total, model.quantisation) == (parameters, quantisation)
    assert any("as it is named" in note for note in model.notes)


@pytest.mark.parametrize(("text", "error", "said"), [
    ("/mnt/my-own-llama-sft", SourceError, "my-own-llama-sft is no name of the catalogue; name the model"),
    ("resnet50", UnknownName, "vramcast trace MODULE:FUNCTION"),
    ("flux.1-dev", Unsupported, "is a diffusion pipeline"),
    ("torchvision.models:resnet50", Unsupported, "vramcast trace torchvision.models:resnet50"),
])
def test_what_no_name_says_is_told_with_what_would_work(text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        resolve_model(text)


def test_a_name_that_two_owners_have_for_different_copies_says_nothing() -> None:
    assert by_name("meta-llama/Llama-3.1-405B-Instruct-FP8") is None
    assert by_name("/models/Meta-Llama-3.1-405B-Instruct-FP8".rpartition("/")[2]) is None
    assert by_name("neuralmagic/Meta-Llama-3.1-405B-Instruct-FP8") is not None
