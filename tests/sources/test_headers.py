"""Headers of safetensors and GGUF files: read exactly, refused kindly, bounded."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.blocks.parameters.model import count_parameters
from vramcast.errors import SourceError, VramcastError
from vramcast.sources import weights as safetensors
from vramcast.sources.resolve import resolve_model

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
