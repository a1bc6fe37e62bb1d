"""Building bricks: a linear with its bias, a norm with its weights, all as `Parameter`s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import Norm, Parameter, Split

_SPLIT_BIASES: Final = (Split.COLUMN, Split.KV, Split.VOCAB)


def linear(
    path: str, rows: int, columns: int, *, split: Split = Split.REPLICATED, bias: bool = False
) -> tuple[Parameter, ...]:
    """`rows x columns` weight (out, in) and, if asked, its bias.

    A bias is divided with the output dimension; behind a row-parallel weight every rank holds all of it.
    """
    weight = Parameter(path=path, shape=(rows, columns), split=split)
    if not bias:
        return (weight,)
    bias_split = split if split in _SPLIT_BIASES else Split.REPLICATED
    return weight, Parameter(path=f"{path}.bias", shape=(rows,), split=bias_split, kind="bias")


def norm(path: str, kind: Norm | None, width: int) -> tuple[Parameter, ...]:
    """The weights a norm over `width` channels owns."""
    if kind is None or kind is Norm.PLAIN:
        return ()
    weight = Parameter(path=f"{path}.weight", shape=(width,), kind="norm")
    if kind is Norm.LAYER:
        return weight, Parameter(path=f"{path}.bias", shape=(width,), kind="norm")
    return (weight,)


def vector(path: str, width: int, *, split: Split = Split.REPLICATED, trainable: bool = True) -> Parameter:
    """One number per head or channel."""
    return Parameter(path=path, shape=(width,), split=split, kind="scalar", trainable=trainable)


def prefixed(prefix: str, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The same parameters under another path."""
    return tuple(replace(parameter, path=f"{prefix}.{parameter.path}") for parameter in parameters)
