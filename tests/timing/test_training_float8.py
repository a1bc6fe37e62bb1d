"""Casts of float8 linears: bytes counted by hand for a layer of Llama 3 8B, and what stays in 16 bits."""

from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import MLP, Attention, Layer
from vramcast.timing.training.parts import Operator
from vramcast.timing.training.tape import taped

HIDDEN, KEYS, WIDTH = 4096, 1024, 14336
LLAMA_8B = Layer(mixer=Attention(num_heads=32, num_kv_heads=8, head_dim=128), channel=MLP(width=WIDTH, gated=True))
COMPILED = Sizes(batch=1, seq_len=1, hidden=HIDDEN, norm="compiled", activation="compiled", rope="compiled")
WEIGHTS = 2 * HIDDEN * (HIDDEN + KEYS) + 3 * HIDDEN * WIDTH
LEAVING = HIDDEN + 2 * KEYS + HIDDEN + 2 * WIDTH + HIDDEN  # q, k, v, out, gate, up, down


def operators(kind: str, layer: Layer = LLAMA_8B) -> tuple[Operator, ...]:
    return taped(layer, COMPILED, kind)


def casts(kind: str, layer: Layer = LLAMA_8B) -> list[Operator]:
    return [operator for operator in operators(kind, layer) if operator.name == "conversion"]


def test_compiled_casts_read_an_input_once_and_attention_s_output_twice() -> None:
    found = casts("compiled")
    entering = HIDDEN + HIDDEN + HIDDEN + WIDTH  # of q, k and v; of out; of gate and up; of down
    assert sum(cast.bytes for cast in found) == 4 * entering + 2 * HIDDEN
    # what only attention reads, the values, has a gradient of attention's kernel
    assert sum(cast.backward_bytes for cast in found) == 4 * LEAVING + 2 * KEYS
    assert sum(cast.weight_bytes for cast in found) == 5 * WEIGHTS
    assert sum(cast.backward_weight_bytes for cast in found) == 3 * WEIGHTS
