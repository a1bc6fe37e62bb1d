"""What a user of `vramcast serve --engine llama.cpp` gets, from a file's header and from names."""

import struct
from pathlib import Path

from vramcast.api import serve
from vramcast.domain.answer import ServeAnswer

LAYERS, HIDDEN, FFN, HEADS, VOCAB = 4, 512, 1024, 4, 1024
F32, Q8_0, Q4_K = 0, 8, 12
BYTES = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144)}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensors() -> list[tuple[str, tuple[int, ...], int]]:
    found = [("token_embd.weight", (HIDDEN, VOCAB), Q4_K), ("output_norm.weight", (HIDDEN,), F32)]
    found.append(("output.weight", (HIDDEN, VOCAB), Q8_0))
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, HIDDEN),
            "attn_v": (HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (HIDDEN, FFN),
            "ffn_up": (HIDDEN, FFN), "ffn_down": (FFN, HIDDEN),
        }
        for part, shape in shapes.items():
            found.append((f"blk.{layer}.{part}.weight", shape, Q4_K if len(shape) > 1 else F32))
    return found


def size_of(shape: tuple[int, ...], kind: int) -> int:
    elements = 1
    for size in shape:
        elements *= size
    block, size = BYTES[kind]
    return elements // block * size


def gguf(path: Path) -> Path:
    """A file of a tiny Llama whose weights are a hole."""
    values = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": HEADS,
        "context_length": 8192,
    }
    listed = tensors()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(values) + 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in values.items():
        head += text(f"llama.{key}") + struct.pack("<II", 4, value)
    offset = 0
    for name, shape, kind in listed:
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", kind, offset)
        offset += -(-size_of(shape, kind) // 32) * 32
    start = -(-len(head) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(start + offset)
    return path


def weights_bytes(found: ServeAnswer) -> int:
    return sum(entry.num_bytes for entry in found.fullest.ledger if entry.category == "weights")


def test_layers_left_to_the_host_are_not_on_the_card(tmp_path: Path) -> None:
    file = str(gguf(tmp_path / "tiny.gguf"))
    sizes = [weights_bytes(serve(model=file, gpus="rtx-3090", context=4096, gpu_layers=count)) for count in (5, 3, 1)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


def test_what_does_not_fit_says_how_many_layers_do() -> None:
    found = serve(model="llama-3.1-70b", gpus="rtx-3090", engine="llama.cpp", weights="q4_k_m", context=8192)
    assert not found.fits
    said = next(line for line in found.warnings if "--gpu-layers" in line)
    layers = int(said.split()[0])
    for count, fits in ((layers, True), (layers + 1, False)):
        again = serve(
            model="llama-3.1-70b", gpus="rtx-3090", engine="llama.cpp", weights="q4_k_m", context=8192, gpu_layers=count
        )
        assert again.fits is fits
