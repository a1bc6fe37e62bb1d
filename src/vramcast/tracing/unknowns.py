"""What is done where a script asks for values that nobody computed.

Reading (`.item()`, `if`, `.tolist()`): a value that keeps a normal run on its normal path, noted with its place.
Indices (`topk`, `argmax`, `sort` ...): valid ones, spread evenly, so that experts get equal shares.
Shapes (`nonzero`, masks as indices, `unique` ...): the largest that is possible; where the user gave fewer elements,
those chosen are spread evenly.
A sentence where none of these is sensible.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._mode_utils import no_dispatch

from vramcast.errors import InvalidSpec, Note
from vramcast.question.tracing import Value
from vramcast.tracing.call import Call
from vramcast.tracing.holders import is_curvature
from vramcast.tracing.memory import META
from vramcast.tracing.origins import Place
from vramcast.tracing.rules.indexing import COORDINATES, check_masks, coordinates_bytes, is_mask
from vramcast.tracing.values import LARGEST_KNOWN_INTEGERS

if TYPE_CHECKING:
    from vramcast.tracing.memory import Device
    from vramcast.tracing.operators import Operator
    from vramcast.tracing.simulation import Simulation

COMPARISONS: Final = frozenset({"aten.equal", "aten.allclose"})
"""Operators that tell Python whether two tensors are equal: they are."""
READS: Final = COMPARISONS | {"aten._local_scalar_dense", "aten.is_nonzero"}
"""Operators that hand values to Python."""
HOLD: Final = frozenset({
    "aten.all", "aten._is_all_true", "aten.mul", "aten.isfinite", "aten.isclose", "aten.logical_and",
})
"""Makers of truth values that are true on the normal path; torch.isfinite ends in a product. All others are false."""
POSITIVE: Final = frozenset({"aten.ge", "aten.gt", "aten.ne"})
"""Makers of truth values that torch's C++ asks for (`is_scalar_tensor_true`, which compares with one): whether weights
and norms are positive."""
BREAKS: Final = re.compile(r"if\s+(?P<negated>not\b)?.*:\s*break\b")
"""A line that ends its loop early, as when every sequence is finished: the longest run takes the most memory."""
FINISHES: Final = re.compile(r"\w*(?<!un)finished\w*\s*=(?!=)\s*(?P<negated>not\b)?")
"""A line that notes whether its loop is over, as a search with beams does: it is not yet."""
NEVER_ASSERTED: Final = frozenset({"aten.isnan", "aten.isinf"})
"""Makers of truth values that are false whoever asks."""
SUMS: Final = frozenset({"aten.sum", "aten.count_nonzero"})
EXTREMES: Final = frozenset({"aten.max", "aten.min", "aten.amax", "aten.amin"})
"""Makers of integers that nothing sensible can stand for: sizes follow from them."""
FLOAT: Final = 1.0
INTEGER: Final = 1  # as a count it does not divide by zero, as an index it is mostly there


class Unknowns:
    """Answers of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def answers(self, operator: Operator, args: tuple[Any, ...]) -> bool:
        """Whether an operator asks for values, of which some are not known."""
        if operator.name in READS:
            return True
        return operator.depends_on_values and (operator.name != "aten.index" or any(map(is_mask, args[1])))

    def answer(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> Any:
        """The operator's result.

        Raises: InvalidSpec
        """
        if operator.name in READS:
            return self.scalar(args[0], operator.name)
        if operator.name == "aten.index":
            return self._index(operator, args, device)
        shapes = SHAPES.get(operator.name)
        place = self._place()
        if shapes is None:
            raise _needs(place, Note("the size of what {} returns", operator.name), "the number of elements")
        share = self._simulation.assumptions.given(place)
        made = shapes(_Sized(self._simulation, operator, device, share, place), args, kwargs)
        return self._written(made, kwargs["out"]) if isinstance(kwargs.get("out"), torch.Tensor) else made

    def scalar(self, tensor: torch.Tensor, operator: str = "") -> Value | complex:
        """What a tensor of one element holds.

        Raises: InvalidSpec where nothing sensible can stand for it
        """
        place = self._place()
        given = self._simulation.assumptions.given(place)
        if given is not None:
            return _as(given, tensor.dtype)
        maker = self._maker(tensor)
        if operator in COMPARISONS:
            is_question = tensor.dtype is torch.bool and not tensor.dim()
            return self._noted(not is_question or maker in POSITIVE or _holds(maker, place), operator, place)
        if tensor.dtype is torch.bool:
            return self._noted(_holds(maker, place) or is_curvature(), maker, place)
        if tensor.is_complex():
            self._noted(FLOAT, maker, place)
            return complex(FLOAT)
        if tensor.is_floating_point():
            return self._noted(FLOAT, maker, place)
        if maker in EXTREMES:
            raise _needs(place, Note("the integer that {} returns", maker), "the integer")
        return self._noted(INTEGER, maker, place)

    def array(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor that stands for a simulated one; the same where its values are known."""
        values = self._simulation.values
        known = values.of(tensor)
        if known is not None:
            return known
        place = self._place()
        given = self._simulation.assumptions.given(place)
        if given is None and not tensor.numel():
            return torch.empty(tensor.size(), dtype=tensor.dtype)
        value = given if given is not None else FLOAT if tensor.is_floating_point() else 0
        self._noted(value, self._maker(tensor), place)
        resident = self._simulation.memory.of(tensor)
        size = tensor.size() if resident is None else (tensor.untyped_storage().nbytes() // tensor.itemsize,)
        with no_dispatch():  # a large one would be without data
            whole = torch.full(size, value, dtype=tensor.dtype)
        if resident is None:
            return whole
        if resident.device is self._simulation.memory.host:
            resident.twin = whole.untyped_storage()  # `.numpy()` shares its memory
        return torch.as_strided(whole, tensor.size(), tensor.stride(), tensor.storage_offset())

    def suppose(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Give indices whose values nobody computed sensible ones."""
        if operator.name in SUMS and self._maker(args[0]) in NEVER_ASSERTED:
            self._simulation.values.set(out, torch.zeros(out.size(), dtype=out.dtype))
            return
        supposed = INDICES[operator.name](args, kwargs, out)
        if supposed is not None:
            tensor, values = supposed
            self._simulation.values.set(tensor, values.to(tensor.dtype))

    def _index(self, operator: Operator, args: tuple[Any, ...], device: Device) -> Any:
        place = self._place()
        check_masks(args[0], args[1])
        sized = _Sized(self._simulation, operator, device, self._simulation.assumptions.given(place), place)
        call = Call(self._simulation, operator, args, {}, device)
        indices: list[Any] = []
        chosen: list[Any] = []
        for index in args[1]:
            if not is_mask(index):
                indices.append(index)
                chosen.append(index)
                continue
            known = self._simulation.values.of(index)
            rows = sized.count(index.numel()) if known is None else int(known.count_nonzero())
            call.scratch(coordinates_bytes(index, rows), COORDINATES)
            indices += [torch.empty(rows, dtype=torch.int64, device=META) for _ in range(index.dim())]
            chosen += _spread(rows, index.size()) if known is None else known.nonzero(as_tuple=True)
        out = self._simulation.kernels(operator.func, (args[0], indices), {})
        self._simulation.adopt(out, device, operator.name)
        call.finish()
        known = self._simulation.values.of_call(operator, (args[0], chosen), {})
        if known is not None:
            self._simulation.values.keep(known, out)
        return out

    def _written(self, made: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """`out=`, made as large as the result."""
        with self._simulation:
            return out.resize_(made.size())

    def _noted(self, value: Value, maker: str, place: Place) -> Value:
        self._simulation.assumptions.note(Note("{} read from {}", value, maker or "data"), place, can_be_given=True)
        return value

    def _maker(self, tensor: torch.Tensor) -> str:
        resident = self._simulation.memory.of(tensor)
        return resident.operator if resident is not None else ""

    def _place(self) -> Place:
        return self._simulation.origins.place()


class _Sized:
    """Makes the outputs of one call whose size depends on data."""

    def __init__(
        self, simulation: Simulation, operator: Operator, device: Device, share: Value | None, place: Place
    ) -> None:
        self._simulation, self._operator, self._device = simulation, operator, device
        self._given, self.place = share, place

    def count(self, most: int) -> int:
        """Elements that are chosen of so many: all, unless the user said how many or which share."""
        if self._given is None:
            said = Note("data decides which elements {} takes: all are counted as taken", self._operator.name)
            self._simulation.assumptions.note(said, self.place, can_be_given=True)
            return most
        return min(most, round(most * self._given) if isinstance(self._given, float) else int(self._given))

    def number(self) -> int:
        """A number that only the user can know."""
        if self._given is None:
            raise _needs(self.place, Note("the size of what {} returns", self._operator.name), "the number of elements")
        return int(self._given)

    def make(self, *size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        out = torch.empty(size, dtype=dtype, device=META)
        self._simulation.adopt(out, self._device, self._operator.name)
        return out

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return self._simulation.values.of(tensor)

    def keep(self, out: torch.Tensor, values: torch.Tensor) -> None:
        self._simulation.values.set(out, values)


def _spread(count: int, size: torch.Size) -> list[torch.Tensor]:
    """Coordinates, a tensor a dimension, of so many elements in even steps: of all of them, their order."""
    places = torch.arange(count) * size.numel() // max(1, count)
    return list(torch.unravel_index(places, size))


def _nonzero(sized: _Sized, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Coordinates column by column [pytorch aten/src/ATen/native/cuda/Nonzero.cu: empty({dim, n}).t()]"""
    tensor = args[0]
    count = sized.count(tensor.numel())
    out = sized.make(tensor.dim(), count)
    if tensor.dim() and out.numel() <= LARGEST_KNOWN_INTEGERS:
        sized.keep(out, torch.stack(_spread(count, tensor.size())))
    return out.t()


def _masked_select(sized: _Sized, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    size = torch.broadcast_shapes(args[0].size(), args[1].size())
    known = sized.known(args[1])
    count = sized.count(prod(size)) if known is None else int(known.expand(size).count_nonzero())
    return sized.make(count, dtype=args[0].dtype)


def _unique(sized: _Sized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    most = sized.count(tensor.numel())
    named = dict(zip(("sorted", "return_inverse", "return_counts"), args[1:], strict=False)) | kwargs
    inverse = sized.make(*tensor.size()) if named.get("return_inverse") else sized.make(0)
    return sized.make(most, dtype=tensor.dtype), inverse, sized.make(most if named.get("return_counts") else 0)


def _unique_rows(sized: _Sized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """unique_dim: slices along a dimension [pytorch aten/src/ATen/native/cuda/Unique.cu `unique_dim_cuda_template`]"""
    tensor, dim = args[0], args[1]
    size = list(tensor.size())
    size[dim] = most = sized.count(size[dim])
    named = dict(zip(("sorted", "return_inverse", "return_counts"), args[2:], strict=False)) | kwargs
    counts = sized.make(most if named.get("return_counts") else 0)
    return sized.make(*size, dtype=tensor.dtype), sized.make(tensor.size(dim)), counts


def _plain_unique(sized: _Sized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _unique(sized, args, kwargs)[:2]


def _unique_consecutive(sized: _Sized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dim = args[3] if len(args) > 3 else kwargs.get("dim")
    if dim is not None:
        named = {name: value for name, value in kwargs.items() if name != "dim"}
        return _unique_rows(sized, (args[0], dim, True, *args[1:3]), named)
    return _unique(sized, (args[0], True, *args[1:3]), kwargs)


def _bincount(sized: _Sized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    return sized.make(least or sized.number())


def _repeat_interleave(sized: _Sized, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return sized.make(kwargs.get("output_size") or sized.number())


SHAPES: Final[dict[str, Callable[[_Sized, tuple[Any, ...], dict[str, Any]], Any]]] = {
    "aten.nonzero": _nonzero,
    "aten.masked_select": _masked_select,
    "aten._unique": _plain_unique,
    "aten._unique2": _unique,
    "aten.unique_dim": _unique_rows,
    "aten.unique_consecutive": _unique_consecutive,
    "aten.bincount": _bincount,
    "aten.repeat_interleave": _repeat_interleave,
}

Supposed = tuple[torch.Tensor, torch.Tensor] | None


def _chosen(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Supposed:
    """Of topk and the like: choices one after the other, so that each alternative is chosen equally often."""
    indices = out[1] if isinstance(out, (tuple, list)) else out
    if indices.numel() > LARGEST_KNOWN_INTEGERS or not args[0].dim():
        return None
    dim = _dimension(args, kwargs)
    if dim is None:
        return indices, torch.zeros(indices.size(), dtype=torch.int64)
    return indices, (torch.arange(indices.numel()) % max(1, args[0].size(dim))).reshape(indices.size())


def _dimension(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Along which an index operator of this table chooses."""
    ints = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    named = kwargs.get("dim")
    return named if named is not None else ints[0] if ints else None


def _topk(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Supposed:
    """Of one row, as of amplitudes by frequency, without the first: scripts that divide by what is chosen leave it out
    [thuml/Time-Series-Library models/TimesNet.py `FFT_for_Period`]."""
    found = _chosen((args[0], *args[2:]) if len(args) > 2 else (args[0], -1), kwargs, out)
    if found is None or args[0].dim() != 1 or found[0].numel() >= args[0].numel():
        return found
    return found[0], found[1] + 1


def _multinomial(args: tuple[Any, ...], _kwargs: dict[str, Any], out: Any) -> Supposed:
    return _chosen((args[0], -1), {}, out)


def _sorted(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Supposed:
    indices = out[1]
    if indices.numel() > LARGEST_KNOWN_INTEGERS or not indices.dim():
        return None
    dim = _dimension(args, kwargs)
    dim = -1 if dim is None else dim
    size = [1] * indices.dim()
    size[dim] = indices.size(dim)
    return indices, torch.arange(indices.size(dim)).reshape(size).expand(indices.size()).contiguous()


def _counted(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Supposed:
    """Sums of truth values: every one of them true."""
    if args[0].dtype is not torch.bool or not out.numel() or out.numel() > LARGEST_KNOWN_INTEGERS:
        return None
    return out, torch.full(out.size(), args[0].numel() // out.numel(), dtype=torch.int64)


INDICES: Final[dict[str, Callable[[tuple[Any, ...], dict[str, Any], Any], Supposed]]] = {
    "aten.topk": _topk,
    "aten.argmax": _chosen,
    "aten.argmin": _chosen,
    "aten.multinomial": _multinomial,
    "aten.sort": _sorted,
    "aten.sum": _counted,
    "aten.count_nonzero": _counted,
}


def _holds(maker: str, place: Place) -> bool:
    """Whether a truth value is true on the normal path: what a script asserts is, what ends its loop is not."""
    ends = BREAKS.match(place.source) or FINISHES.match(place.source)
    if ends is not None:
        return ends["negated"] is not None
    if maker not in NEVER_ASSERTED and place.source.startswith("assert "):
        return not place.source.startswith("assert not ")
    return maker in HOLD


def _as(value: Value, dtype: torch.dtype) -> Value:
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _needs(place: Place, what: str, which: str) -> InvalidSpec:
    name = place.filename.rpartition("/")[2]
    return InvalidSpec(
        "{}: {} depends on data, which simulated tensors do not have; give {} with --value {}:{}=...",
        place, what, which, name, place.line
    )
