"""PyTorch's own list of operators, traced: `python -m truth.traced_operators [--dtype NAME] [--only OP...] [--rows]`.

Every operator of torch.testing's `op_db` runs its sample inputs on the CPU and in a simulation, forward and backward,
with floats whose values the simulation does not know. Compared are shapes, types, strides, which results are views of
what, which get gradients, and whether the memory of every result is counted. Strides of some operators differ between
the CPU and CUDA in PyTorch itself: those rows are printed to be read, not failures.
Needs `expecttest`, which torch.testing imports.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import VramcastError
from vramcast.tracing.session import Session

CARD: Final = "a100-sxm4-80gb"
SAMPLES: Final = 6
MOST_SAMPLES_READ: Final = 200
AT_ONCE: Final = 25
"""Operators a simulation: entering one takes longer than an operator."""
FALLBACKS: Final = (torch.float32, torch.complex64, torch.int64, torch.bool)
HOST_TENSORS: Final = frozenset({"tensor_split"})
"""Operators whose samples hold a tensor that has to stay on the host."""
CHOSEN: Final = "data decides which elements"


class Place(NamedTuple):
    """What can be seen of a result."""

    shape: tuple[int, ...]
    dtype: str
    view_of: int | None  # number of the input whose memory it is
    needs_gradient: bool
    stride: tuple[int, ...]  # of dimensions with more than one element


class Observed(NamedTuple):
    """One sample's forward and backward."""

    results: list[Place]
    gradients: list[Place | None]
    uncounted: int  # results without their memory


class Row(NamedTuple):
    """One operator."""

    name: str
    samples: int
    refused: str = ""  # in a sentence of ours, or in torch's words for what CUDA does not have
    crashed: str = ""
    different: str = ""
    strides: str = ""
    assumed: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Every sample."""
        return not self.refused and not self.crashed

    @property
    def is_same(self) -> bool:
        """Shapes, types, views, gradients and memory."""
        return self.runs and not self.different


def copy_of(value: Any, device: str, session: Session | None) -> Any:
    """The same tensor elsewhere, with its strides; where simulated, floats lose their values."""
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        return value.detach().to(device).requires_grad_(value.requires_grad)
    with torch.no_grad():
        plain = value.detach().resolve_conj().resolve_neg()
        storage = plain.untyped_storage()
        flat = torch.empty(0, dtype=plain.dtype).set_(storage, 0, (storage.nbytes() // plain.itemsize,), (1,))
        copy = flat.clone().to(device).as_strided(plain.size(), plain.stride(), plain.storage_offset())
        if session is not None and (value.is_floating_point() or value.is_complex()):
            session.simulation.values.lose(copy)
    return copy.detach().requires_grad_(value.requires_grad)


def observe(operator: Any, sample: Any, device: str, session: Session | None) -> Observed:
    """Run one sample.

    Raises: what the operator raises
    """
    def there(value: Any) -> Any:
        stays = operator.name in HOST_TENSORS and isinstance(value, torch.Tensor) and value is not sample.input
        return value if stays else copy_of(value, device, session)

    given, args, kwargs = tree_map(there, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    inputs = _tensors((given, args, kwargs))
    out = operator(given, *args, **kwargs)
    results = [_place(one, inputs) for one in _tensors(out)]
    differentiated = [one for one in _tensors(sample.output_process_fn_grad(out)) if one.requires_grad]
    leaves = [one for one in inputs if one.requires_grad]
    gradients: list[Place | None] = []
    if leaves and differentiated and all(one.layout is torch.strided for one in differentiated):
        ones = [torch.ones_like(one) for one in differentiated]
        found = torch.autograd.grad(differentiated, leaves, ones, allow_unused=True)
        gradients = [None if one is None else _place(one, []) for one in found]
    uncounted = 0 if session is None else sum(not _is_counted(one, session) for one in _tensors(out))
    return Observed(results, gradients, uncounted)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor, inputs: list[torch.Tensor]) -> Place:
    view_of, stride = None, ()
    if tensor.layout is torch.strided:
        keys = [one.untyped_storage()._cdata if one.layout is torch.strided else 0 for one in inputs]
        key = tensor.untyped_storage()._cdata
        view_of = keys.index(key) if key in keys else None
        if tensor.numel():
            stride = tuple(step for size, step in zip(tensor.size(), tensor.stride(), strict=True) if size > 1)
    return Place(tuple(tensor.size()), str(tensor.dtype), view_of, tensor.requires_grad, stride)


def _is_counted(tensor: torch.Tensor, session: Session) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cuda":
        return True
    resident, size = session.memory.of(tensor), tensor.untyped_storage().nbytes()
    return not size or (resident is not None and resident.block is not None and resident.block.num_bytes == size)


class Case(NamedTuple):
    """An operator with what the CPU made of its samples."""

    operator: Any
    samples: list[Any]
    real: list[Observed | None]  # None: the CPU refuses the sample


def prepared(operator: Any, dtype: torch.dtype, count: int) -> Case:
    """Samples spread over those there are, run on the CPU."""
    grad = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    found = [
        sample for sample, _ in zip(
            operator.sample_inputs("cpu", dtype, requires_grad=grad), range(MOST_SAMPLES_READ), strict=False
        )
    ]
    samples = [found[index * len(found) // count] for index in range(count)] if len(found) > count else found
    return Case(operator, samples, [_on_host(operator, one) for one in samples])


def _on_host(operator: Any, sample: Any) -> Observed | None:
    try:
        return observe(operator, sample, "cpu", None)
    except Exception:  # whatever an operator refuses a sample with
        return None


def judged(case: Case, session: Session) -> Row:
    """One operator, inside an active session."""
    simulation, name = session.simulation, full_name(case.operator)
    simulation.unseen.clear()
    before = sum(one.count for one in session.assumptions if one.what.startswith(CHOSEN))
    row = Row(name, sum(one is not None for one in case.real))
    for sample, real in zip(case.samples, case.real, strict=True):
        if real is None:
            continue
        try:
            row = compared(row, real, observe(case.operator, sample, "cuda", session))
        except VramcastError as error:
            row = row._replace(refused=str(error))
        except Exception as error:  # a row of the table, not the end of it
            words = f"{type(error).__name__}: {error}"
            row = row._replace(refused=words) if "CUDA" in words else row._replace(crashed=words)
    chosen = sum(one.count for one in session.assumptions if one.what.startswith(CHOSEN)) > before
    if chosen:
        row = row._replace(different="", strides="", assumed=True)
    return row._replace(unknown=tuple(sorted(simulation.unseen)))


def compared(row: Row, real: Observed, traced: Observed) -> Row:
    """The row with what differs in one more sample."""
    if traced.uncounted:
        row = row._replace(different=f"{traced.uncounted} results without memory")
    pairs: list[tuple[Sequence[Place | None], Sequence[Place | None]]] = [
        (real.results, traced.results), (real.gradients, traced.gradients)
    ]
    for ours, theirs in pairs:
        if len(ours) != len(theirs) or any((a is None) != (b is None) for a, b in zip(ours, theirs, strict=True)):
            return row._replace(different=f"{len(ours)} results or gradients, traced {len(theirs)}, or not the same")
        for one, other in zip(ours, theirs, strict=True):
            if one is None or other is None:
                continue
            if one[:-1] != other[:-1]:
                row = row._replace(different=f"{tuple(one[:-1])}, traced {tuple(other[:-1])}")
            elif one.stride != other.stride:
                row = row._replace(strides=f"strides {one.stride}, traced {other.stride}")
    return row


def full_name(operator: Any) -> str:
    """ "linalg.pinv.singular": with the variant where there is one."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else str(operator.name)


def rows_of(operators: Iterable[tuple[Any, torch.dtype]], count: int) -> Iterator[Row]:
    """Each operator's row, those without a sample that the CPU runs left out."""
    todo = list(operators)
    for start in range(0, len(todo), AT_ONCE):
        cases = [prepared(operator, dtype, count) for operator, dtype in todo[start : start + AT_ONCE]]
        session = Session(load_gpu(CARD))
        with session.active():
            yield from [row for row in (judged(case, session) for case in cases) if row.samples]


def choice(operator: Any, dtype: torch.dtype) -> torch.dtype | None:
    """The type asked for; for fp32, the first other one that an operator has."""
    supported = operator.supported_dtypes("cpu")
    wanted = FALLBACKS if dtype is torch.float32 else (dtype,)
    return next((one for one in wanted if one in supported), None)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.traced_operators", description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--rows", action="store_true", help="print what differs, is refused or unknown")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, options.dtype)
    asked = [one for one in op_db if not options.only or one.name in options.only]
    chosen = [(one, found) for one in asked if (found := choice(one, dtype)) is not None]
    rows = list(rows_of(chosen, options.samples))
    for row in rows if options.rows else []:
        for what in ("crashed", "different", "refused", "strides"):
            if getattr(row, what):
                print(f"{row.name:<44}{what:<10}{' '.join(getattr(row, what).split())[:160]}")
        if row.unknown:
            print(f"{row.name:<44}{'unknown':<10}{', '.join(row.unknown)}")
    print(
        f"{options.dtype}: {sum(row.runs for row in rows)} of {len(rows)} operators run, "
        f"{sum(row.is_same for row in rows)} with the CPU's shapes, types, views and gradients and all memory counted, "
        f"{sum(row.is_same and not row.strides for row in rows)} with its strides, too; "
        f"{sum(row.assumed for row in rows)} of a size that data decide, as documented; "
        f"{sum(bool(row.refused) for row in rows)} refused in a sentence (on CUDA, too, or a layout not simulated), "
        f"{sum(bool(row.crashed) for row in rows)} crashed; "
        f"{sum(bool(row.unknown) for row in rows)} call operators that are listed as unknown"
    )
    return 1 if any(row.crashed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
