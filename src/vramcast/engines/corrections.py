"""Programs with tensors as large as a calibration measured them: of training and of serving alike."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.calibration import Calibration, Correction
from vramcast.domain.program import Alloc, Basis, Free, Loop, Program, Tensor


def corrected_by(calibration: Calibration, program: Program, known: dict[Tensor, Tensor] | None = None) -> Program:
    """The program with its tensors as large as a calibration says; `known` are tensors that other programs share."""
    return _corrected(calibration, program, {} if known is None else known)


def _corrected(calibration: Calibration, program: Program, known: dict[Tensor, Tensor]) -> Program:
    nodes: list[Alloc | Free | Loop] = []
    for node in program:
        if isinstance(node, Loop):
            nodes.append(replace(node, body=_corrected(calibration, node.body, known)))
            continue
        if node.tensor not in known:
            known[node.tensor] = scaled(calibration, node.tensor)
        nodes.append(type(node)(known[node.tensor]))
    return tuple(nodes)


def scaled(calibration: Calibration, tensor: Tensor) -> Tensor:
    """A tensor as large as a calibration says."""
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
