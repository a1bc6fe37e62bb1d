"""The catalogue of pipelines: every file loads, names lead somewhere, wrong ones are answered."""

import pytest

from vramcast.catalogue.index import PIPELINES
from vramcast.catalogue.pipelines import aliases_of, load_pipeline, parse_entry, summary_of
from vramcast.domain.model import Model
from vramcast.engines.diffusers import elements_of, pipeline_elements
from vramcast.errors import SourceError


@pytest.mark.parametrize("name", PIPELINES.names())
def test_every_pipeline_loads_with_a_denoiser_and_an_autoencoder(name: str) -> None:
    pipeline = load_pipeline(name)
    assert pipeline.denoisers
    assert pipeline.autoencoder is not None
    assert pipeline_elements(pipeline) > 10**8
    assert all(component.tokens for component in pipeline.of_role("encoder"))


def test_the_index_is_up_to_date() -> None:
    assert PIPELINES.aliases == PIPELINES.built(aliases_of), "run python -m vramcast.catalogue.pipelines"
    assert [*PIPELINES.summaries.values()] == [summary_of(name) for name in PIPELINES.names()]


@pytest.mark.parametrize(
    ("model", "count"),
    [("stable-diffusion-xl-base", 694_659_840), ("flux.1-dev", 4_762_310_656), ("wan2.1-t2v-14b", 5_680_910_336)],
)
def test_the_largest_text_encoder_is_as_published(model: str, count: int) -> None:
    encoders = [part.network for part in load_pipeline(model).of_role("encoder")]
    assert max(elements_of(network) for network in encoders if isinstance(network, Model)) == count


@pytest.mark.parametrize(("text", "message"), [
    ("family = 1", "x.toml: Expected `str`, got `int`"),
    ('source = ""\nchecked = 2026-01-01\nfamily = "x"\ncomponents = []\nother = 1', "unknown field `other`"),
    ("=", "x.toml"),
])
def test_a_bad_file_is_named(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_entry(text, file="x.toml")
