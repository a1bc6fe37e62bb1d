"""Files that describe a network are known by its shape, and hostile ones end in a sentence."""

from typing import Any

import pytest

from tests.sources.test_headers import gguf_bytes
from tests.web.asking import post, refused
from vramcast.sources.resolve import config_of

GGUF = gguf_bytes(
    {"general.architecture": "llama", "llama.block_count": 30, "llama.embedding_length": 576,
     "llama.feed_forward_length": 1536, "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3,
     "llama.context_length": 8192},
    {"token_embd.weight": ([576, 49152], 1)},
)
HEAD = GGUF[:4096]  # a browser sends the beginning of a file
TUNE = config_of("llama-3.1-8b") | {"max_position_embeddings": 16384}


@pytest.mark.parametrize(("body", "query", "model", "exact"), [
    (config_of("llama-3.1-8b"), "", "llama-3.1-8b", True),
    (config_of("qwen3-30b-a3b"), "", "qwen3-30b-a3b", True),
    (TUNE, "", "llama-3-8b", False),
    (HEAD, f"name=x.gguf&size={len(GGUF)}", "smollm2-135m", True),
])
def test_a_network_is_known_by_its_shape(body: Any, query: str, model: str, exact: bool) -> None:
    assert post("network", body, query=query).document == {"schema": 1, "model": model, "exact": exact}


@pytest.mark.parametrize(("body", "query", "words"), [
    ({}, "", "model_type"),
    ({"model_type": ["llama"]}, "", "model_type"),
    (config_of("llama-3.1-8b") | {"hidden_size": 4064}, "name=mine", "mine describes a llama network"),
    (config_of("llama-3.1-8b") | {"num_hidden_layers": 10**30}, "", ""),
    (b"GGUF\x03\0\0\0", "", "cut short"),
    (b"", "", "no GGUF file"),
    (HEAD, "size=1", "size must be"),
    (HEAD, "size=9" + "9" * 40, "cut short"),
])
def test_what_describes_none_is_refused_in_a_sentence(body: Any, query: str, words: str) -> None:
    assert words in refused("network", body, query=query)
