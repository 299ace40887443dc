"""Small kernels of a training step: softmax with cross-entropy, and the weights' update."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from .launch import device_of, launch_on
from .plan import Launch

THREADS = 512
BLOCKS_PER_MULTIPROCESSOR = 4


def cross_entropy(logits: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """-log softmax of each row of ``logits`` at its target.

    Args:
        logits: (rows, padded), 16 bits, contiguous; padded is a multiple of 8, and places past the
            vocabulary hold -infinity. With ``gradient`` they become the losses' gradient.
        targets: (rows,) int64.

    Returns:
        (rows,) float32.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    row_bytes = 2 * logits.shape[1]
    kept = (
        gradient and row_bytes <= device_of(logits.device.index).shared_bytes - 1024
    )  # less the partial sums
    constants = (
        ("BF16", int(logits.dtype == torch.bfloat16)),
        ("GRADIENT", int(gradient)),
        ("KEPT", int(kept)),
    )
    launch = _launch("cross_entropy", constants, logits.device, row_bytes if kept else 0)
    launch_on(launch, logits.device, (logits, targets, losses), logits.shape)
    return losses


def sgd_step(
    weight: Tensor,
    gradient: Tensor,
    average: Tensor | None,
    norm: Tensor,
    rate: Tensor,
    share: Tensor,
    *,
    clip: float,
    decay: float,
) -> None:
    """One step of clipped, averaged SGD on one weight, in place; see ``sgd.cu``. All float32, contiguous."""
    launch = _launch("sgd", (("BF16", 0),), weight.device)
    numbers = (weight.numel(), _bits(clip), _bits(decay))
    launch_on(launch, weight.device, (weight, gradient, average, norm, rate, share), numbers)


def _bits(number: float) -> int:
    """A double as the 64-bit word that carries it to a kernel."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


def _launch(
    kernel: str, constants: tuple[tuple[str, int], ...], device: torch.device, shared_bytes: int = 0
) -> Launch:
    """As many blocks as fill the device; each walks over its share, whatever the size."""
    blocks = BLOCKS_PER_MULTIPROCESSOR * device_of(device.index).multiprocessors
    return Launch(
        kernel=kernel,
        constants=(*constants, ("THREADS", THREADS)),
        blocks=(blocks, 1),
        threads=THREADS,
        cluster=1,
        shared_bytes=shared_bytes,
        bias_rows=0,
        cooperative=False,
    )
