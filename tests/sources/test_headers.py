"""Headers of checkpoints: numbers, paths, whole files."""

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.asking import vramcast
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.sources import weights as safetensors
from vramcast.sources.by_name import by_name
from vramcast.sources.files import Content, write_folder, write_whole
from vramcast.sources.numbers import model_from_numbers
from vramcast.sources.resolve import resolve_model

# Headers of safetensors and GGUF files: read exactly, refused kindly, bounded.

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": False,
}
SLOW_FILES = settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def safetensors_bytes(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A file whose data are zeros: name -> (dtype, shape, bytes)."""
    header: dict[str, object] = {}
    position = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(position)


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_bytes(metadata: dict[str, str | int], tensors: dict[str, tuple[list[int], int]]) -> bytes:
    """A GGUF 3 file: metadata of strings and uint32, tensors name -> (shape fastest first, ggml type f16 = 1)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += gguf_string(key)
        out += struct.pack("<I", 8) + gguf_string(value) if isinstance(value, str) else struct.pack("<II", 4, value)
    offset = 0
    for name, (shape, kind) in tensors.items():
        out += gguf_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        size = 2
        for number in shape:
            size *= number
        offset += -(-size // 32) * 32
    out += bytes(-len(out) % 32)
    return out + bytes(offset)


LLAMA_GGUF = gguf_bytes(
    {
        "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
        "llama.feed_forward_length": 128, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.context_length": 512,
    },
    {"token_embd.weight": ([64, 256], 1), "output.weight": ([64, 256], 1)},
)


def test_a_gguf_file_describes_the_same_model_as_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tiny.gguf").write_bytes(LLAMA_GGUF)
    by_config, by_gguf = resolve_model(str(tmp_path)), resolve_model(str(tmp_path / "tiny.gguf"))
    assert count_parameters(by_gguf).total == count_parameters(by_config).total


def test_a_checkpoint_that_disagrees_with_its_config_is_noted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": ("BF16", [10, 10], 200)}))
    assert any("100 elements" in note for note in resolve_model(str(tmp_path)).notes)


def test_safetensors_bytes_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("BF16", [3, 5], 30), "b": ("F32", [7], 28)}))
    weights = safetensors.read_file(path)
    assert (weights.elements, weights.num_bytes) == (22, 58)


@pytest.mark.parametrize(("data", "words"), [
    (b"", "safetensors"),
    (struct.pack("<Q", 2**60) + b"{}", "safetensors"),
    (safetensors_bytes({"a": ("BF16", [3, 5], 30)})[:-1], "bytes"),
    (safetensors_bytes({"a": ("BF16", [3, 5], 31)}), "a"),
    (safetensors_bytes({"a": ("X9", [1], 1)}), "X9"),
    (safetensors_bytes({"a": ("BF16", [-1], 2)}), "a"),
])
def test_broken_safetensors_get_one_sentence(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        safetensors.read_file(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(data=st.binary(max_size=200), cut=st.integers(0, len(LLAMA_GGUF)), place=st.integers(0, 400))
@SLOW_FILES
def test_no_gguf_bytes_do_more_than_raise_a_source_error(tmp_path: Path, data: bytes, cut: int, place: int) -> None:
    path = tmp_path / "fuzz.gguf"
    for mutated in (data, LLAMA_GGUF[:cut], LLAMA_GGUF[:place] + data + LLAMA_GGUF[place + len(data) :]):
        path.write_bytes(mutated)
        try:
            resolve_model(str(path))
        except VramcastError as error:
            assert "\n" not in str(error)


@given(data=st.binary(max_size=200), place=st.integers(0, 100))
@SLOW_FILES
def test_no_safetensors_bytes_do_more_than_raise_a_source_error(tmp_path: Path, data: bytes, place: int) -> None:
    path = tmp_path / "model.safetensors"
    good = safetensors_bytes({"a": ("BF16", [3, 5], 30)})
    for mutated in (data, good[:place], good[:place] + data + good[place + len(data) :]):
        path.write_bytes(mutated)
        try:
            safetensors.read_file(path)
        except SourceError as error:
            assert "\n" not in str(error)


def test_a_huge_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (5 << 20))
    with pytest.raises(SourceError, match="refused"):
        resolve_model(str(tmp_path))


# Models from plain numbers add up.

@pytest.mark.parametrize("numbers", [
    {"params": "1B"},
    {"params": "many", "layers": 2, "hidden": 64},
    {"params": "1M", "layers": 96, "hidden": 12288},
    {"params": "7B", "layers": 32, "hidden": 4096, "heads": 33},
    {"params": "7B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 5},
    {"params": "7B", "layers": 32, "hidden": 10**9},
    {"params": "7B", "layers": 32, "hidden": 4096, "ffn": 100},
    {"params": "7B", "layers": 32, "hidden": 4096, "heads": -32},
    {"params": "7B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": -8},
    {"params": "7B", "layers": 32, "hidden": 4096, "vocab": 0},
    {"params": "9" * 30, "layers": 32, "hidden": 4096},
])
def test_numbers_that_cannot_add_up_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        model_from_numbers(**numbers)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_first_question_of_all_is_answered() -> None:
    asked = ("--params", "100B", "--layers", "80", "--hidden", "10240", "--tp", "8")
    whole = vramcast("train", *asked, "--gpus", "8xh100")
    assert whole.returncode == 1 and "engine megatron" in whole.stdout and whole.stdout.startswith("does not fit")
    sharded = ("--engine", "megatron", "--recompute", "full", "--shards", "optimizer", "--pp", "4")
    assert vramcast("train", *asked, "--gpus", "64xh100", *sharded).returncode == 0
    assert "the fewest of each card that hold 100B parameters" in vramcast("train", *asked).stdout


# Models that a file names by a path of the machine that runs it: the folder has the model's name.

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


# Files are written whole or not at all, one alone and many together.

def full(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A disk that has room for so many files more."""
    written = [0]
    really = os.fsync

    def fsync(descriptor: int) -> None:
        written[0] += 1
        if written[0] > after:
            raise OSError(28, "No space left on device")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_what_was_there_stays_until_the_new_content_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.toml"
    write_whole(path, "old")
    path.chmod(0o600)
    write_whole(path, "newer")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("newer", 0o600)
    full(monkeypatch, 0)
    with pytest.raises(SourceError, match="No space left on device"):
        write_whole(path, "newest")
    assert [one.name for one in tmp_path.iterdir()] == ["job.toml"]
    assert path.read_text() == "newer"


@pytest.mark.parametrize("there", [0, 1, 2])
def test_a_folder_gets_all_files_or_none(there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made" / "plan"
    files = {"a.json": Content("{}"), "run.sh": Content("#!", executable=True), "README.md": Content("read")}
    full(monkeypatch, there)
    with pytest.raises(SourceError, match="make room"):
        write_folder(folder, files)
    assert not (tmp_path / "made").exists()
    monkeypatch.undo()
    write_folder(folder, files)
    assert sorted(one.name for one in folder.iterdir()) == ["README.md", "a.json", "run.sh"]
    assert os.access(folder / "run.sh", os.X_OK) and not os.access(folder / "a.json", os.X_OK)


def test_files_of_before_stay_where_a_folder_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"a": Content("old"), "b": Content("old")})
    full(monkeypatch, 1)
    with pytest.raises(SourceError):
        write_folder(tmp_path, {"a": Content("new"), "b": Content("new")})
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"a": "old", "b": "old"}
