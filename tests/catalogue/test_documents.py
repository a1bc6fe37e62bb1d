"""Files of the catalogue: documents, formats, pipelines and cuDNN's workspaces."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from vramcast.catalogue.contexts import WORKSPACE_COLUMNS as COLUMNS
from vramcast.catalogue.contexts import WORKSPACES as FILE
from vramcast.catalogue.contexts import read_shares, workspace_share
from vramcast.catalogue.formats import load_format, problems
from vramcast.catalogue.index import PIPELINES
from vramcast.catalogue.pipelines import aliases_of, load_pipeline, parse_entry, summary_of
from vramcast.catalogue.tables import NoDocument, parse_yaml
from vramcast.domain.model import Model
from vramcast.engines.diffusers import elements_of, pipeline_elements
from vramcast.errors import SourceError, UnknownName
from vramcast.formats.reading import read_config
from vramcast.question.files import read_job

# Documents of others are read or refused, in one sentence and in time that grows as they do.

LARGEST: Final = 1 << 20
SECONDS: Final = 20.0  # the worst took minutes
YAML: Final[dict[str, Callable[[int], str]]] = {
    "brackets": lambda n: "[" * n, "braces": lambda n: "{a: " * n, "dashes": lambda n: "- " * n,
    "questions": lambda n: "? " * n, "sixties": lambda n: "a: " + "1:" * n + "1", "anchors": lambda n: "&a " * n,
    "fractions": lambda n: "a: " + "1:" * n + "1.5", "digits": lambda n: "a: " + "9" * n,
    "commas": lambda n: "[" + "a ," * n, "documents": lambda n: "---\n" * n, "tags": lambda n: "!a " * n,
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_of_a_mebibyte_is_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(NoDocument):
        parse_yaml(YAML[name](LARGEST)[:LARGEST])
    assert time.process_time() - began < SECONDS


BOMB: Final = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
CHAIN: Final = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))


@pytest.mark.parametrize("text", [BOMB, BOMB.replace("[", "{<<: [").replace("]", "]}"), CHAIN, "a: &a [*a]"])
def test_aliases_are_read_as_far_as_what_they_repeat_is_a_document(text: str) -> None:
    usual = "a: &a {b: 1}\nc: {<<: *a, d: *a}\n"
    assert parse_yaml(usual) == yaml.safe_load(usual)
    with pytest.raises(NoDocument):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!bool zz", "!!int ''", "2001-99-99", "!!float x", "<<: 1", "!!set [1]"]
)
def test_values_that_are_none_of_their_tag_are_refused(text: str) -> None:
    with pytest.raises(NoDocument):
        parse_yaml(text)


@pytest.mark.parametrize("name", ["job.yaml", "job.toml"])
def test_files_of_either_kind_are_refused_with_their_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("a: " + "[" * 20_000 if name.endswith("yaml") else "a." * 20_000 + "a = 1")
    with pytest.raises(SourceError, match=name):
        read_job(path)


def test_configurations_are_refused_with_their_name(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: " + "[" * 20_000)
    with pytest.raises(SourceError, match="more than 64 levels"):
        read_config(path)


# Snapshots of names load, and the checker says what is wrong in one sentence.

DEEPSPEED = "deepspeed"


@pytest.mark.parametrize(("values", "sentence"), [
    ({"zero_optimisation": {}}, "knows no such name; did you mean zero_optimization?"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4 is none of 0, 1, 2, 3"),
    ({"zero_optimization": {"stage": "three"}}, "must be of kind int"),
    ({"zero_optimization": 3}, "zero_optimization: must be a table of values, not 3"),
    ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, "offload_param.device: 'gpu' is none of"),
    ({"amp": {"enabled": True}}, "amp: removed from deepspeed"),
    ({"zero_optimization": {"overlap_comm": 1}}, "must be of kind bool"),
])
def test_what_is_wrong_is_said_with_where_it_stands(values: dict[str, Any], sentence: str) -> None:
    (found,) = problems(load_format(DEEPSPEED), "config", values)
    assert sentence in found


def test_a_missing_name_that_is_required_is_said() -> None:
    found = list(problems(load_format("skypilot"), "replica_policy", {}))
    assert found == ["replica_policy: min_replicas is required by skypilot 0.14.1"]


def test_other_spellings_are_known() -> None:
    entry = load_format("sglang").find("ServerArgs", "tensor_parallel_size")
    assert entry is load_format("sglang").sections["ServerArgs"]["tp_size"]


def test_an_unknown_format_is_named_with_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="did you mean deepspeed"):
        load_format("deepsped")


# The catalogue of pipelines: every file loads, names lead somewhere, wrong ones are answered.

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


# The table of cuDNN workspaces.

HEAD = ",".join(COLUMNS)
ROW = "2.0,dense,data,1,2,4,measured,2026-11-21,medium"


def test_every_kind_of_kernel_and_phase_has_a_share():
    for kernel in ("pointwise", "dense", "strided", "grouped", "narrow"):
        for phase in ("forward", "data", "filter"):
            assert workspace_share(kernel, phase, (2, 13)) >= 0


def test_the_newest_row_that_is_not_newer_than_torch_counts():
    assert workspace_share("dense", "data", (1, 13)) == workspace_share("dense", "data", (1, 10)) == 0
    assert workspace_share("dense", "data", (2, 0)) == workspace_share("dense", "data", (2, 13)) > 0


@pytest.mark.parametrize(("text", "problem"), [
    ("kernel,phase\n", "missing columns checked, confidence"),
    (f"{HEAD}\n{ROW[:-7]}\n", "8 cells for 9 columns"),
    (f"{HEAD}\n{ROW}\n{ROW}\n", "stands in line 2 already"),
    (f"{HEAD}\n{ROW.replace('2.0', 'two', 1)}\n", "torch_since must be a version"),
    (f"{HEAD}\n{ROW.replace(',2,', ',many,')}\n", "share='many' must be a positive number"),
    (f"{HEAD}\n{ROW.replace(',2,', ',5,')}\n", "low <= share <= high"),
])
def test_a_bad_table_is_named_with_its_row(text, problem):
    with pytest.raises(SourceError, match=problem):
        read_shares(text, file="t.csv")


def test_the_file_reads_as_it_stands():
    assert read_shares(FILE.read_text(encoding="utf-8"), file=FILE.name)
