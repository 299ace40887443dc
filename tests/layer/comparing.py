"""What several tests of the layer do: take losses, collect gradients, compare dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_pru import PRU


def paper(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with two levels and four groups, where "auto" gives small layers one of each."""
    kinds = options.get("input_transform", "pyramidal"), options.get("context_transform", "grouped")
    defaults = {"levels": 2} if "pyramidal" in kinds else {}
    defaults |= {"groups": 4} if "grouped" in kinds else {}
    return defaults | dict(options)


def set_backend(pru: PRU, backend: str) -> PRU:
    pru.backend = backend
    return pru


def arrays_of(pru: PRU) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in pru.state_dict().items()}


def loss_weights(tensors: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """The same numbers in every dtype but float64, also where PyTorch draws others in 16 bits."""
    generator = torch.Generator().manual_seed(seed)
    wide = (torch.promote_types(x.dtype, torch.float32) for x in tensors)
    pairs = zip(tensors, wide, strict=True)
    return [torch.randn(x.shape, generator=generator, dtype=dtype).to(x.dtype) for x, dtype in pairs]


def gradients(results: Iterable[Tensor], **wanted: Tensor) -> dict[str, Tensor]:
    """Gradients, by name, of a fixed random weighting of all results."""
    results = list(results)
    loss = sum((x * w).sum() for x, w in zip(results, loss_weights(results), strict=True))
    found = torch.autograd.grad(loss, list(wanted.values()))
    return dict(zip(wanted, found, strict=True))


def assert_all_close(actual: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )
