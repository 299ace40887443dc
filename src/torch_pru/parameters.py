"""The names and shapes of a layer's parameters, as ``nn.LSTM`` has them.

Of a layer with one level and one group they are exactly those of ``nn.LSTM``: ``weight_ih_l0`` (4M, N),
``weight_hh_l0`` (4M, M), ``bias_ih_l0`` and ``bias_hh_l0`` (4M,). Otherwise:

* ``weight_ih_l0_k1``, ``weight_ih_l0_k2``, … (4·m_k, n_k) are the matrices of the pyramid's levels.
* With g groups a matrix has 1/g of the columns, as the weight of a grouped convolution has:
  ``weight_hh_l0`` is (4M, M/g).
* Where the groups do not divide a level's sizes, its groups differ by one feature, and each has a matrix of
  its own: ``weight_ih_l0_k1_g1``, ``weight_ih_l0_k1_g2``, …
* ``pool_ih_l0_k2`` (window,) is the learned kernel that makes level 2 of level 1.
* ``weight_hr_l0`` (P, M) is the projection of ``proj_size=P``; then ``weight_hh_l0`` has P/g columns.
* ``_reverse`` comes last. :class:`~torch_pru.PRUCell` has the same names without ``_l0``.

Rows are gate-major in the order of ``nn.LSTM``: input, forget, cell, output.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from torch_pru.errors import LARGEST_SIZE, PRUError
from torch_pru.ops.spec import LayerSpec, TransformSpec

GATES = 4


class ParameterNames(NamedTuple):
    """The names of the parameters of one layer in one direction, in the order of :class:`LayerWeights`."""

    input: tuple[str, ...]
    context: tuple[str, ...]
    biases: tuple[str, ...]  # of input and context, or none
    input_kernels: tuple[str, ...]
    context_kernels: tuple[str, ...]
    projection: tuple[str, ...] = ()

    @property
    def weights_and_biases(self) -> tuple[str, ...]:
        """Without the pooling kernels."""
        return self.input + self.context + self.biases + self.projection


def matrix_names(name: str, spec: TransformSpec, suffix: str = "") -> tuple[str, ...]:
    """The names of the matrices of a transform, in the order of :meth:`TransformSpec.matrix_shapes`.

    Example:
        >>> matrix_names("weight_ih_l0", TransformSpec(8, (12, 4), windows=(3,)), "_reverse")
        ('weight_ih_l0_k1_reverse', 'weight_ih_l0_k2_reverse')
    """
    names = []
    for level in range(spec.levels):
        level_name = f"{name}_k{level + 1}" if spec.levels > 1 else name
        groups = [f"_g{group + 1}" for group in range(spec.groups)] if spec.is_uneven(level) else [""]
        names += [f"{level_name}{group}{suffix}" for group in groups]
    return tuple(names)


def kernel_names(name: str, spec: TransformSpec, suffix: str = "") -> tuple[str, ...]:
    """The names of the learned pooling kernels of a transform; usually there are none."""
    if spec.pooling != "convolution":
        return ()
    return tuple(f"{name}_k{level + 1}{suffix}" for level in range(1, spec.levels))


def parameter_names(spec: LayerSpec, bias: bool, layer: str = "", suffix: str = "") -> ParameterNames:
    """The names of a layer's parameters; ``layer`` is ``"_l0"``, …, ``suffix`` may be ``"_reverse"``."""
    return ParameterNames(
        matrix_names(f"weight_ih{layer}", spec.input, suffix),
        matrix_names(f"weight_hh{layer}", spec.context, suffix),
        (f"bias_ih{layer}{suffix}", f"bias_hh{layer}{suffix}") if bias else (),
        kernel_names(f"pool_ih{layer}", spec.input, suffix),
        kernel_names(f"pool_hh{layer}", spec.context, suffix),
        (f"weight_hr{layer}{suffix}",) if spec.is_projected else (),
    )


def register_parameters(
    module: nn.Module,
    spec: LayerSpec,
    names: ParameterNames,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    """Add the parameters of a layer to ``module``; their values are not set."""
    shapes: list[tuple[int, ...]] = [
        *spec.input.matrix_shapes(GATES),
        *spec.context.matrix_shapes(GATES),
        *((GATES * spec.hidden_size,) for _ in names.biases),
        *((window,) for window in spec.input.windows if names.input_kernels),
        *((window,) for window in spec.context.windows if names.context_kernels),
        *((spec.state_size, spec.hidden_size) for _ in names.projection),
    ]
    flat = [name for group in names for name in group]
    for name, shape in zip(flat, shapes, strict=True):
        register_parameter(module, name, shape, device, dtype)


def register_parameter(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    """Add a parameter of this shape; raises :class:`PRUError` if there is not enough memory."""
    if math.prod(shape) > LARGEST_SIZE // 16:  # PyTorch cannot express the number of bytes
        raise PRUError(f"{name} of shape {shape} is too large")
    try:
        value = torch.empty(shape, device=device, dtype=dtype)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):  # a device that does not exist
            raise
        raise PRUError(f"{name} of shape {shape}: there is not enough memory") from error
    module.register_parameter(name, nn.Parameter(value))
