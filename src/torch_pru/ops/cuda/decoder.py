"""Small kernels of a training step: the decoder's, softmax with cross-entropy, the gradient of a lookup."""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import device_of, launch_on, pass_over
from .plan import Launch, ceil_div, round_up

THREADS = 512
BLOCKS_PER_MULTIPROCESSOR = 4
LOOKUP_THREADS = 256


def cross_entropy(logits: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """-log softmax of each row of ``logits`` at its target.

    Args:
        logits: (rows, padded), 16 bits, contiguous; padded is a multiple of 8, and places past the
            vocabulary hold -infinity. With ``gradient`` they become the losses' gradient.
        targets: (rows,) int64, from 0 to below the vocabulary's size; there is no ``ignore_index``.

    Returns:
        (rows,) float32.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    row_bytes = 2 * logits.shape[1]
    threads = 256 if row_bytes <= 32 * 1024 else THREADS
    room = device_of(logits.device.index).shared_bytes
    # As many blocks as a multiprocessor holds at once, so that none of them has to wait for another's end:
    # each keeps a row in shared memory, and 1 KB for its partial sums and for the system.
    at_once = min(1536 // threads, room // (row_bytes + 1024))
    constants = (
        ("BF16", int(logits.dtype == torch.bfloat16)),
        ("GRADIENT", int(gradient)),
        ("KEPT", int(at_once > 0)),
        ("BLOCKS", at_once or 2),
        ("THREADS", threads),
    )
    blocks = (at_once or 2) * device_of(logits.device.index).multiprocessors
    shared = row_bytes if at_once else 0
    launch = Launch("cross_entropy", constants, (blocks, 1), threads, shared_bytes=shared)
    launch_on(launch, logits.device, (logits, targets.contiguous(), losses), logits.shape)
    return losses


def decoder_operand(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The decoder's weight (V, E) and bias (V,), both float32, in 16 bits for ``padded`` words.

    padded is V up to a multiple of 8; the words past V have the weight 0 and the bias -infinity.

    Returns:
        (padded, E) and (padded,).
    """
    words, width = weight.shape
    padded = round_up(words, 8)
    operand = torch.empty(padded, width, device=weight.device, dtype=dtype)
    shift = torch.empty(padded, device=weight.device, dtype=dtype)
    launch = _filling("decoder_operand", dtype, weight.device)
    tensors = (weight.contiguous(), bias.contiguous(), operand, shift)
    launch_on(launch, weight.device, tensors, (words, padded, width))
    return operand, shift


def decoder_rows(hidden: Tensor, scale: Tensor, gradient: Tensor) -> Tensor:
    """Multiply ``gradient`` (n, E) by ``scale`` (n,) in place; returns the features of the weight's gradient.

    Args:
        hidden: (n, E), 16 bits, as ``gradient``.
        scale: float32, s.

    Returns:
        (n, padded + 8): s·h, zeros up to padded, the next multiple of 8, and s eight times.
    """
    rows, width = hidden.shape
    packs = ceil_div(width, 8) + 1
    features = torch.empty(rows, 8 * packs, device=hidden.device, dtype=hidden.dtype)
    launch = _filling("decoder_rows", hidden.dtype, hidden.device)
    tensors = (hidden.contiguous(), scale.contiguous(), gradient, features)
    launch_on(launch, hidden.device, tensors, (rows, width, packs))
    return features


def add_rows(table: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add each of ``rows`` to the row of ``table`` that its token names: what a lookup's gradient does.

    Args:
        table: (V, E) float32; its rows may lie apart, elements of a row may not.
        tokens: (n,) int64.
        rows: (n, E) float32.
    """
    tokens, rows, stride = tokens.contiguous(), rows.contiguous(), table.stride(0)
    packed = table.shape[1] % 4 == 0 and stride % 4 == 0
    packed = packed and table.data_ptr() % 16 == 0 and rows.data_ptr() % 16 == 0
    constants = (("BF16", 0), ("VECTOR", int(packed)), ("THREADS", LOOKUP_THREADS))
    # A block for each position. Their number is part of a kernel's configuration: a few sizes serve all.
    launch = Launch("add_rows", constants, (round_up(len(tokens), 1024), 1), LOOKUP_THREADS)
    launch_on(launch, table.device, (table, rows, tokens), (len(tokens), table.shape[1], stride))


def _filling(kernel: str, dtype: torch.dtype, device: torch.device) -> Launch:
    constants = (("BF16", int(dtype == torch.bfloat16)),)
    return pass_over(kernel, constants, device, threads=THREADS, per_multiprocessor=BLOCKS_PER_MULTIPROCESSOR)
