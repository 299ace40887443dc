"""The passes around the input product of a layer as kernels; ``ops/folding.py`` says what each of them is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_pru.ops import folding
from torch_pru.ops.folding import Band, aligned, pooling_levels
from torch_pru.ops.spec import TransformSpec

from .launch import at_multiple, launch_on, pass_over
from .plan import Launch

GATES = 4  # of the kernels for a residual
LARGEST = 2**31  # what 32 bits index


def size_reason(spec: TransformSpec, gates: int) -> str | None:
    """Why the kernels cannot fold a transform of this size, or None."""
    size = gates * spec.out_features * aligned(spec.in_features)
    return None if size < LARGEST else f"{size} weights: the kernels count in 32 bits"


def fold(weights: Sequence[Tensor], windows: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    kind = weights[0].dtype if weights[0].dtype in (torch.float32, dtype) else torch.float32
    weights = [(weight if weight.dtype == kind else weight.to(kind)).contiguous() for weight in weights]
    _, gates, _, features = weights[0].shape
    units = [weight.shape[2] for weight in weights]
    folded = weights[0].new_empty(sum(units) * gates, aligned(features), dtype=dtype)
    bands = [level.fold for level in pooling_levels(features, windows, folded.device)]
    _launch_fold("fold", weights, units, bands, folded)
    return folded


def unfold(
    folded: Tensor,
    gates: int,
    features: int,
    units: Sequence[int],
    windows: tuple[int, ...],
    dtype: torch.dtype,
) -> list[Tensor]:
    kind = dtype if dtype in (torch.float32, folded.dtype) else torch.float32
    shapes = [(1, gates, size, features >> level) for level, size in enumerate(units)]
    weights = [folded.new_empty(shape, dtype=kind) for shape in shapes]
    bands = [level.unfold for level in pooling_levels(features, windows, folded.device)]
    _launch_fold("unfold", weights, units, bands, folded)
    return weights if kind == dtype else [weight.to(dtype) for weight in weights]


def spread(x: Tensor, gates: int) -> Tensor:
    if gates != GATES:
        return folding.spread(x, gates)
    result = x.new_empty(x.shape[0], x.shape[1] * GATES)
    _launch_residual("spread", at_multiple(x.contiguous(), 4), result)
    return result


def collect(x: Tensor, gates: int) -> Tensor:
    if gates != GATES:
        return folding.collect(x, gates)
    result = x.new_empty(x.shape[0], x.shape[1] // GATES)
    _launch_residual("collect", result, at_multiple(x.contiguous(), 16))
    return result


def _launch_fold(
    kernel: str, weights: Sequence[Tensor], units: Sequence[int], bands: Sequence[Band], folded: Tensor
) -> None:
    features = weights[0].shape[-1]
    first, share = [band.first for band in bands], [band.share for band in bands]
    tensors = (*weights, None, *first, None, *share, folded)
    widths = [band.share.shape[0] for band in bands]
    step = _step(weights[0], features)
    launch = fold_launch(kernel, len(weights), weights[0].shape[1], step, weights[0].dtype, folded)
    launch_on(launch, folded.device, tensors, (*units, 0, *widths, features, folded.shape[1]))


def fold_launch(
    kernel: str, levels: int, gates: int, step: int, weight_dtype: torch.dtype, folded: Tensor
) -> Launch:
    """Of ``fold`` or ``unfold``; ``step`` values of a row of the first level are read or written at once."""
    constants = (
        ("LEVELS", levels),
        ("GATES", gates),
        ("FLOAT_WEIGHTS", int(weight_dtype == torch.float32)),
        ("STEP", step),
    )
    return _launch(kernel, constants, folded)


def _step(weight: Tensor, features: int) -> int:
    """How many values of a row of the first level are read or written at once: at most 16 bytes."""
    start, size = weight.data_ptr(), weight.element_size()
    step = 16 // size
    while features % step or start % (step * size):
        step //= 2
    return step


def _launch_residual(kernel: str, values: Tensor, gates: Tensor) -> None:
    launch_on(residual_launch(kernel, values), values.device, (values, gates), (values.numel(),))


def residual_launch(kernel: str, values: Tensor) -> Launch:
    """Of ``spread`` or ``collect``."""
    return _launch(kernel, (), values)


def _launch(kernel: str, constants: tuple[tuple[str, int], ...], operand: Tensor) -> Launch:
    constants = (*constants, ("BF16", int(operand.dtype == torch.bfloat16)))
    return pass_over(kernel, constants, operand.device)
