"""Tensors of ggml, the operators by the tensors they make, and the graph they are computed in.

Symbols:  ne elements per dimension, fastest first   nb bytes per step in a dimension

[ggml] ggml-org/ggml src/ggml.c: `ggml_nbytes`, `ggml_new_tensor_impl`, `ggml_visit_parents`; ggml-org/ggml src/ggml.c,
one function of the same name each
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
        if tensor.seen:
            return
        tensor.seen = True
        waiting = [(tensor, iter(tensor.src))]  # an own stack: graphs are deeper than Python recurses
        while waiting:
            node, left = waiting[-1]
            for source in left:
                if not source.seen:
                    source.seen = True
                    waiting.append((source, iter(source.src)))
                    break
            else:
                waiting.pop()
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


def like(op: str, *src: Tensor) -> Tensor:
    """A result of the first source's shape and type: unary, add, mul, rope, soft_max, norms."""
    return Tensor(src[0].dtype, src[0].ne, op=op, src=src)


def mul_mat(weight: Tensor, x: Tensor) -> Tensor:
    """x times the transposed weight, in f32."""
    return Tensor("f32", (weight.ne[1], x.ne[1], x.ne[2], x.ne[3]), op="mul_mat", src=(weight, x))


def mul_mat_id(weight: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """Products with the experts that `ids` names, in f32."""
    return Tensor("f32", shaped(weight.ne[1], ids.ne[0], x.ne[2]), op="mul_mat_id", src=(weight, x, ids))


def moe_up_gate(up: Tensor, gate: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """Both products of gated experts and what joins them, in one operator of ik_llama.cpp."""
    return Tensor("f32", shaped(up.ne[1], ids.ne[0], x.ne[2]), op="moe_up_gate", src=(up, gate, x, ids))


def get_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table; indices stay indices, everything else becomes f32."""
    dtype = "i32" if table.dtype == "i32" else "f32"
    return Tensor(dtype, (table.ne[0], rows.ne[0], rows.ne[1], rows.ne[2]), op="get_rows", src=(table, rows))


def view(x: Tensor, *ne: int, steps: tuple[int, ...] = (), op: str = "view") -> Tensor:
    """Part of a tensor.

    Args:
        ne: elements per dimension
        steps: bytes per step of the second and further dimensions; the rest lies without gaps
    """
    shape = shaped(*ne)
    nb = [x.nb[0], *steps]
    while len(nb) < 4:
        nb.append(row_bytes(x.dtype, shape[0]) if len(nb) == 1 else nb[-1] * shape[len(nb) - 1])
    return Tensor(x.dtype, shape, op=op, src=(x,), root=x, nb=(nb[0], nb[1], nb[2], nb[3]))


def reshape(x: Tensor, *ne: int) -> Tensor:
    """The same elements in other dimensions."""
    return Tensor(x.dtype, shaped(*ne), op="reshape", src=(x,), root=x)


def permute(x: Tensor, *axes: int) -> Tensor:
    """Dimension i of the source becomes dimension axes[i]."""
    ne, nb = [0, 0, 0, 0], [0, 0, 0, 0]
    for source, axis in enumerate(axes):
        ne[axis], nb[axis] = x.ne[source], x.nb[source]
    shape: Shape = (ne[0], ne[1], ne[2], ne[3])
    return Tensor(x.dtype, shape, op="permute", src=(x,), root=x, nb=(nb[0], nb[1], nb[2], nb[3]))


def transpose(x: Tensor) -> Tensor:
    """The first two dimensions exchanged."""
    ne, nb = (x.ne[1], x.ne[0], *x.ne[2:]), (x.nb[1], x.nb[0], *x.nb[2:])
    return Tensor(x.dtype, ne, op="transpose", src=(x,), root=x, nb=nb)


def cont(x: Tensor, *ne: int) -> Tensor:
    """A copy without gaps."""
    return Tensor(x.dtype, shaped(*ne) if ne else x.ne, op="cont", src=(x,))


def cast(x: Tensor, dtype: str) -> Tensor:
    """A copy of another type."""
    return Tensor(dtype, x.ne, op="cpy", src=(x,))


def copy_into(x: Tensor, target: Tensor) -> Tensor:
    """The copy of a tensor into another one's memory."""
    return Tensor(target.dtype, target.ne, op="cpy", src=(x, target), root=target, nb=target.nb)


def set_rows(target: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """Rows written into a cache."""
    return Tensor(target.dtype, target.ne, op="set_rows", src=(x, rows, target), root=target, nb=target.nb)


def concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Both behind each other along one dimension."""
    ne = [size + (b.ne[axis] if index == axis else 0) for index, size in enumerate(a.ne)]
    return Tensor(a.dtype, shaped(*ne), op="concat", src=(a, b))


def repeat(x: Tensor, *ne: int) -> Tensor:
    """Copies of a tensor until the shape is full."""
    return Tensor(x.dtype, shaped(*ne), op="repeat", src=(x,))


def flash_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *sinks: Tensor) -> Tensor:
    """Attention without stored scores, in f32, heads behind width."""
    src = (q, k, v, *((mask,) if mask is not None else ()), *sinks)
    return Tensor("f32", (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), op="flash_attn", src=src)


def top_k(scores: Tensor, count: int) -> Tensor:
    """Indices of the largest: a view of all of them in order."""
    order = Tensor("i32", scores.ne, op="argsort", src=(scores,))
    return view(order, count, scores.ne[1], scores.ne[2], scores.ne[3], steps=order.nb[1:])


def sum_rows(x: Tensor) -> Tensor:
    """One number per row."""
    return Tensor(x.dtype, (1, *x.ne[1:]), op="sum_rows", src=(x,))


def sized(op: str, dtype: str, ne: tuple[int, ...], *src: Tensor) -> Tensor:
    """The result of any other operator, by its shape."""
    return Tensor(dtype, shaped(*ne), op=op, src=src)
