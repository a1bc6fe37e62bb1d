"""Models that a file names by a path of the machine that runs it: the folder has the model's name."""

import pytest

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
