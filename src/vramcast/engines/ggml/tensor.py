"""Tensors of ggml and the graph they are computed in.

[ggml] ggml-org/ggml src/ggml.c: `ggml_nbytes`, `ggml_new_tensor_impl`, `ggml_visit_parents`.
Symbols:  ne elements per dimension, fastest first   nb bytes per step in a dimension
"""

from __future__ import annotations

from math import prod
from typing import Final

from vramcast.states.ggml import TYPES, row_bytes

Shape = tuple[int, int, int, int]

VIEW_OPS: Final = frozenset(("view", "reshape", "permute", "transpose"))
"""Operators that only look at their source otherwise; no backend runs them."""

IN_PLACE_OPS: Final = frozenset(
    ("scale", "diag_mask_zero", "diag_mask_inf", "add", "add_id", "add1", "sub", "mul", "div", "sqr", "sqrt", "log",
     "unary", "rope", "rms_norm", "soft_max")
)
"""Operators whose result may take the place of a source that is not needed again [ggml-alloc.c `ggml_op_can_inplace`].
"""


class Tensor:
    """A node or leaf of a graph, with what scheduler and allocator keep of it. Equality is identity."""

    __slots__ = (
        "backend", "children", "copies", "dtype", "held", "home", "is_input", "is_output", "nb", "ne", "offset", "op",
        "root", "seen", "src", "views", "weight",
    )

    def __init__(
        self, dtype: str, ne: Shape, *, op: str = "none", src: tuple[Tensor, ...] = (), root: Tensor | None = None,
        nb: Shape | None = None,
    ) -> None:
        self.dtype, self.ne, self.op, self.src = dtype, ne, op, list(src)
        # a view of a view looks at the latter's source
        self.root: Tensor | None = None if root is None else root.root or root
        self.nb = nb or contiguous(dtype, ne)
        self.is_input = self.is_output = self.seen = self.held = self.weight = False
        self.home: int | None = None  # backend whose memory holds it already: weights and caches
        self.backend = -1  # that computes it
        self.children = self.views = self.offset = 0
        self.copies: dict[int, list[Tensor]] = {}  # backend -> copies there

    @property
    def num_bytes(self) -> int:
        """From the first to the last element [bytes]."""
        ne, nb, stored = self.ne, self.nb, TYPES[self.dtype]
        dense = stored.block == 1
        span = stored.block_bytes + (ne[0] - 1) * nb[0] if dense else row_bytes(self.dtype, ne[0])
        return span + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.ne)

    def same_layout(self, other: Tensor) -> bool:
        """Whether the other's memory can hold this as it is."""
        return self.dtype == other.dtype and self.ne == other.ne and self.nb == other.nb


def contiguous(dtype: str, ne: Shape) -> Shape:
    """Steps of a tensor without gaps [bytes]."""
    row = row_bytes(dtype, ne[0])
    return TYPES[dtype].block_bytes, row, row * ne[1], row * ne[1] * ne[2]


def shaped(*ne: int) -> Shape:
    """Four dimensions from up to four."""
    one, two, three, four = (*ne, 1, 1, 1, 1)[:4]
    return one, two, three, four


class Graph:
    """Nodes in the order of computation; leafs are what is not computed."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []

    def expand(self, tensor: Tensor) -> None:
        """Append a tensor behind everything it is computed from that is not there yet."""
        waiting = [(tensor, 0)]  # an own stack: graphs are deeper than Python recurses
        while waiting:
            node, position = waiting.pop()
            if not position:
                if node.seen:
                    continue
                node.seen = True
            if position < len(node.src):
                waiting += [(node, position + 1), (node.src[position], 0)]
                continue
            (self.leafs if node.op == "none" else self.nodes).append(node)


def placed(dtype: str, *ne: int, home: int, weight: bool = False) -> Tensor:
    """A tensor that lies in a backend's memory before the graph runs: a weight or a cache."""
    tensor = Tensor(dtype, shaped(*ne))
    tensor.home, tensor.weight = home, weight
    return tensor


def fed(dtype: str, *ne: int) -> Tensor:
    """An input that the host fills."""
    tensor = Tensor(dtype, shaped(*ne))
    tensor.is_input = True
    return tensor
