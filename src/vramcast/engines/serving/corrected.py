"""Where a calibration enters an engine: tensors of a corrected category, before the cache takes what is left."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.calibration import Calibration, Correction
from vramcast.domain.program import Alloc, Basis, Free, Loop, Program, Tensor
from vramcast.domain.serving import ServeJob


def corrected(job: ServeJob, program: Program) -> Program:
    """The program with its tensors as large as the job's calibration says; what frees a tensor must be in it too."""
    if job.calibration is None:
        return program
    return corrected_by(job.calibration, program)


def corrected_by(calibration: Calibration, program: Program, known: dict[Tensor, Tensor] | None = None) -> Program:
    """The program with its tensors as large as a calibration says; `known` are tensors that other programs share."""
    return _corrected(calibration, program, {} if known is None else known)


def corrected_tensor(job: ServeJob, tensor: Tensor) -> Tensor:
    """One tensor as large as the job's calibration says."""
    return tensor if job.calibration is None else _scaled(job.calibration, tensor)


def _corrected(calibration: Calibration, program: Program, known: dict[Tensor, Tensor]) -> Program:
    nodes: list[Alloc | Free | Loop] = []
    for node in program:
        if isinstance(node, Loop):
            nodes.append(replace(node, body=_corrected(calibration, node.body, known)))
            continue
        if node.tensor not in known:
            known[node.tensor] = _scaled(calibration, node.tensor)
        nodes.append(type(node)(known[node.tensor]))
    return tuple(nodes)


def _scaled(calibration: Calibration, tensor: Tensor) -> Tensor:
    correction = calibration.corrections.get(tensor.category)
    return tensor if correction is None else fitted(tensor, correction, calibration.source)


def fitted(tensor: Tensor, correction: Correction, source: str) -> Tensor:
    """A tensor as large as a correction of that file says."""
    ratio = correction.measured_bytes / correction.predicted_bytes
    return replace(
        tensor,
        num_bytes=correction.applied(tensor.num_bytes),
        basis=Basis.FITTED,
        formula=f"{ratio:.4f} x ({tensor.formula or f'{tensor.num_bytes:,} B'})",
        source=f"calibrated by {source}; {tensor.source}",
    )
