"""Models that a file names by a path of the machine that runs it: the folder has the model's name."""

import pytest

from vramcast.catalogue.models import load_model
from vramcast.errors import SourceError, UnknownName, Unsupported
from vramcast.sources.by_name import by_name
from vramcast.sources.resolve import resolve_model


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


@pytest.mark.parametrize("folder", ["Qwen_Qwen3-0.6B", "/srv/text-generation-webui/user_data/models/Qwen_Qwen3-0.6B"])
def test_a_folder_may_be_called_after_owner_and_name(folder: str) -> None:
    found = resolve_model(folder)
    assert (found.main, found.vocab) == (load_model("qwen3-0.6b").main, load_model("qwen3-0.6b").vocab)
    assert "is taken for qwen3-0.6b" in str(found.notes)


def test_what_stands_before_an_underscore_is_an_owner_or_part_of_the_name() -> None:
    with pytest.raises(UnknownName, match="tiny_gpt2"):
        resolve_model("tiny_gpt2")
