"""Weights that depend on what they connect, not on how a layer stores them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_pru import PRU
from torch_pru.ops.spec import TransformSpec


def waves(*shape: int, seed: float = 0.0) -> Tensor:
    """Numbers between -1 and 1, all different, the same on every machine."""
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    return (0.7 * places + 3.1 * seed + 0.05 * (places % 11)).cos().view(shape).float()


def matrix(seed: int, units: int, features: int) -> Tensor:
    """(4, units, features): the weight from feature to gate of unit."""
    return waves(4, units, features, seed=seed) * 1.7 / math.sqrt(features)


@torch.no_grad()
def fill(pru: PRU) -> PRU:
    for number, (spec, names) in enumerate(zip(pru.specs, pru._names, strict=True)):
        _fill(pru, 5 * number + 1, spec.input, names.input, names.input_kernels)
        _fill(pru, 5 * number + 3, spec.context, names.context, names.context_kernels)
        for name, seed, part in zip(names.biases, (1, 3), (spec.input, spec.context), strict=False):
            levels = [
                0.3 * waves(4, size, seed=5 * number + seed + 10 * level + 0.5)
                for level, size in enumerate(part.level_sizes)
            ]
            pru.get_parameter(name).copy_(torch.cat(levels, dim=1).flatten())
    return pru


def _fill(pru: PRU, seed: int, spec: TransformSpec, names: tuple[str, ...], kernels: tuple[str, ...]) -> None:
    for level, name in enumerate(names):
        parameter = pru.get_parameter(name)
        parameter.copy_(matrix(seed + 10 * level, parameter.shape[0] // 4, parameter.shape[1]).flatten(0, 1))
    for name in kernels:
        parameter = pru.get_parameter(name)
        parameter.copy_(waves(len(parameter), seed=seed))
