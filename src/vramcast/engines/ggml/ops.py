"""Operators of ggml by the tensors they make; what each computes does not matter here.

[ggml] ggml-org/ggml src/ggml.c, one function of the same name each.
"""

from __future__ import annotations

from vramcast.engines.ggml.tensor import Shape, Tensor, shaped
from vramcast.states.ggml import row_bytes


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
        x: the tensor
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
