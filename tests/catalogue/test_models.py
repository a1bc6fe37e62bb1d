"""The model catalogue: every file loads, every name leads to one file, and wrong files say what is wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramcast.blocks.parameters.model import checkpoint_elements, count_parameters
from vramcast.catalogue.index import MODELS, PIPELINES, Index, joined
from vramcast.catalogue.models import aliases_of, entry_model, load_model, parse_entry, read_entry, summary_of
from vramcast.errors import InvalidSpec, SourceError, UnknownName, VramcastError
from vramcast.families import model_from_config
from vramcast.families.fields import Fields

GOOD = """source = "https://example.org"
checked = 2026-11-20
aliases = ["a/B"]

[config]
model_type = "llama"
"""


def test_index_is_current() -> None:
    assert MODELS.aliases == MODELS.built(aliases_of), "run python -m vramcast.catalogue.models"
    assert [*MODELS.summaries.values()] == [summary_of(name) for name in MODELS.names()]


def test_the_catalogue_is_large() -> None:
    assert len(MODELS.names()) >= 300


def test_every_file_is_a_model_that_meets_its_published_count() -> None:
    for name in MODELS.names():
        entry = read_entry(name)
        model = entry_model(name, entry)
        assert entry.source.startswith("https://"), name
        if entry.checkpoint is not None:
            found = checkpoint_elements(model, entry.checkpoint.stores, entry.checkpoint.lacks)
            assert found == entry.checkpoint.elements, name


@pytest.mark.parametrize("name", MODELS.names())
def test_every_key_of_a_config_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    plain = Fields.get

    def recording(self: Fields, key: str) -> object | None:
        read.add(key)
        return plain(self, key)

    monkeypatch.setattr(Fields, "get", recording)
    config = read_entry(name).config
    model_from_config(config, name=name)
    spelled = catalogue_keys(config)
    assert spelled - read - IGNORED == set()


IGNORED = {
    "intermediate_size",  # no dense layer in sight
    "intermediate_size_mlp",
    "num_key_value_heads",  # latent attention has none
    "pos_att_type",  # needs no weights when share_att_key
    "multi_query",  # new_decoder_architecture decides
    "parallel_attn",
    "moe_layer_freq",
    "quant_method",  # quant_algo says more
    "index_topk",  # how many keys an indexer picks weighs nothing
}
"""Keys that published configs state although another of their keys makes them void."""


def catalogue_keys(config: dict[str, Any]) -> set[str]:
    from vramcast.families.fields import OTHER_MEANINGS, SPELLINGS

    spellings = SPELLINGS | OTHER_MEANINGS.get(config.get("model_type", ""), {})
    keys: set[str] = set()
    for key, value in config.items():
        keys.add(spellings.get(key, key))
        if isinstance(value, dict):
            keys |= catalogue_keys(value)
    return keys


@pytest.mark.parametrize(("text", "name"), [
    ("Llama 3.1 8B", "llama-3.1-8b"), ("qwen3_8b", "qwen3-8b"), ("qwen3-next-80b", "qwen3-next-80b-a3b"),
    ("Qwen3 Coder 480B", "qwen3-coder-480b-a35b"), ("qwen3-moe-30b", None), ("mixtral", None), ("qwen3", None),
])
def test_a_name_is_found_as_people_write_it_where_it_means_one_model(text: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(UnknownName):
            load_model(text)
    else:
        assert load_model(text).name == name


def test_search_wants_every_word() -> None:
    found = MODELS.search("qwen2.5 7b")
    assert "qwen2.5-7b" in found
    assert "qwen2.5-14b" not in found
    assert MODELS.search("no such model") == ()


@pytest.mark.parametrize(("defect", "message"), [
    (GOOD.replace("source =", "origin ="), "test.toml: Object contains unknown field `origin`"),
    (GOOD.replace("aliases", "alias"), "test.toml: Object contains unknown field `alias`"),
    (GOOD.replace("checked = 2026-11-20\n", ""), "missing required field `checked`"),
    (GOOD.replace("2026-11-20", '"soon"'), "`$.checked`"),
    (GOOD + 'model_type = "gpt2"\n', "key 'model_type'"),
    (GOOD + '[checkpoint]\nelements = "many"\n', "`$.checkpoint.elements`"),
    (GOOD + '[checkpoint]\nelements = 1\nstores = ["luck"]\n', "luck"),
])
def test_wrong_files_name_file_and_key(defect: str, message: str) -> None:
    with pytest.raises(SourceError) as error:
        parse_entry(defect, file="test.toml")
    assert "test.toml" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(("said", "name"), [("phi4", "phi-4"), ("Qwen3 8B", "qwen3-8b"), ("llama3_8b", "llama-3-8b")])
def test_words_of_a_name_stand_apart_or_joined(said: str, name: str) -> None:
    assert MODELS.resolve(said) == name


@pytest.mark.parametrize("index", [MODELS, PIPELINES], ids=["models", "pipelines"])
def test_no_two_names_are_one_when_their_words_are_joined(index: Index) -> None:
    names = {(joined(alias), entry) for alias, entry in index.aliases.items()}
    assert len({alias for alias, _ in names}) == len(names)


@pytest.mark.parametrize("said", ["gemma 31b", "qwen 27b", "qwen-34b", "OLMo 27B", "llama 370b"])
def test_two_numbers_are_not_one(said: str) -> None:
    """Gemma 4 31B and Qwen3.5 27B are called so; gemma-3-1b and qwen2-7b are other networks."""
    with pytest.raises(UnknownName):
        MODELS.resolve(said)


def test_two_files_cannot_claim_one_alias(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(GOOD)
    with pytest.raises(SourceError, match=r"alias 'a/B' belongs to one\.toml"):
        Index("model", tmp_path).built(lambda name: parse_entry(GOOD, file=name).aliases)


def test_loading_imports_neither_yaml_nor_rich() -> None:
    program = (
        "import sys; from vramcast.catalogue.models import load_model; load_model('llama-3.1-8b'); "
        "print(sorted({'yaml', 'rich', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


HOSTILE: list[Any] = [None, True, 0, -3, 2**40, "x", [], [1, "a"], {}, 1.5, float("nan")]


@pytest.mark.parametrize("name", [
    "llama-3.1-8b", "deepseek-v3.2", "qwen3.5-27b", "qwen3-vl-4b", "gemma-4-26b-a4b", "nemotron-3-nano-30b-a3b",
    "jamba-v0.1", "whisper-tiny", "t5-small", "clip-vit-base-patch32", "mixtral-8x7b", "llama-3.2-11b-vision",
    "llama-4-scout", "deepseek-v4-flash", "kimi-linear-48b-a3b", "deberta-v3-base", "falcon-40b", "opt-350m",
    "gpt-neo-125m", "mimo-v2-flash", "glm-4.5", "gpt-oss-20b", "mamba-130m", "mpt-7b", "phi-3.5-moe", "chatglm3-6b",
    "qwen-7b", "vit-base-patch16-224", "minimax-text-01", "starcoder-15b",
])
def test_one_hostile_value_in_a_real_config_is_refused_or_read(name: str) -> None:
    config = read_entry(name).config
    sections: list[tuple[str, ...]] = [(), *((key,) for key, value in config.items() if isinstance(value, dict))]
    for path in sections:
        for key in config[path[0]] if path else config:
            for value in HOSTILE:
                changed = {**config, path[0]: {**config[path[0]], key: value}} if path else {**config, key: value}
                try:
                    count_parameters(model_from_config(changed, name=name))
                except VramcastError as error:
                    assert "\n" not in str(error)
    with pytest.raises(InvalidSpec):
        model_from_config({}, name=name)
